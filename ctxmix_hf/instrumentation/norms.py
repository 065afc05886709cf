"""Recognises norm modules by numbers: whatever its class, a norm is what computes one of three formulas."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ctxmix_hf.instrumentation.fused import widened
from ctxmix_hf.records import NormState


@dataclass(frozen=True, slots=True)
class NormCall:
    """A norm as it was called; `weight` already holds Gemma's `1 + w`."""

    kind: Literal["layer", "rms", "affine"]
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    rounds: bool = False  # computes in float32 whatever the model's precision is

    def state(self, x: Tensor) -> NormState:
        """`x` is the norm's input as `[B, T, D]` in wide precision."""
        return NormState(self.kind, _wide(self.weight), _wide(self.bias), self.eps, x)


def _wide(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.detach().to(widened(parameter.dtype))


@dataclass(frozen=True, slots=True)
class _Kind:
    kind: Literal["layer", "rms", "affine"]
    eps: float
    plus_one: bool
    rounds: bool


# Kinds are proved once per module; weights are read anew each time, so tuning a model changes nothing here.
_KINDS: WeakKeyDictionary[nn.Module, _Kind | None] = WeakKeyDictionary()


def as_norm(module: nn.Module, x: Tensor, y: Tensor) -> NormCall | None:
    """The norm this module is, given one input and output of it, or None."""
    if module not in _KINDS:
        _KINDS[module] = _recognise(module, x, y)
    kind = _KINDS[module]
    if kind is None:
        return None
    weight, bias = _parameters(module)
    weight = weight + 1 if kind.plus_one and weight is not None else weight
    return NormCall(kind.kind, weight, bias, kind.eps, kind.rounds)


def _parameters(module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    weight = getattr(module, "weight", getattr(module, "scale", getattr(module, "gamma", None)))
    bias = getattr(module, "bias", getattr(module, "beta", None))
    return (weight if isinstance(weight, Tensor) else None), (bias if isinstance(bias, Tensor) else None)


def _recognise(module: nn.Module, x: Tensor, y: Tensor) -> _Kind | None:
    weight, bias = _parameters(module)
    width = x.shape[-1]
    if x.shape != y.shape or any(p is not None and (p.shape != (width,) or p.is_meta) for p in (weight, bias)):
        return None
    if isinstance(module, nn.Dropout | nn.Identity) or torch.equal(x, y):
        return None
    wide_x, wide_y = x.detach().to(widened(x.dtype)), y.detach().to(widened(y.dtype))
    strict = {torch.float64: 1e-10, torch.float32: 1e-5}.get(x.dtype, 2e-2)
    for tolerance in sorted({strict, max(strict, 1e-5)}):
        for eps, plus_one, kind in product(_epsilons(module), (False, True), ("layer", "rms", "affine")):
            if kind == "affine" and weight is None:
                continue  # an activation must not pass for a norm
            w = weight + 1 if plus_one and weight is not None else weight
            state = NormCall(kind, w, bias, eps).state(wide_x)  # type: ignore[arg-type]
            if _close(state(wide_x), wide_y, tolerance):
                return _Kind(kind, eps, plus_one, rounds=tolerance > strict)  # type: ignore[arg-type]
    return None


def _epsilons(module: nn.Module) -> list[float]:
    names = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")
    found = [getattr(module, name) for name in names if isinstance(getattr(module, name, None), float)]
    return found or [1e-6, 1e-5, 1e-12, torch.finfo(torch.float32).eps]


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return bool((a - b).abs().max() <= tolerance * b.abs().max().clamp(min=1.0))
