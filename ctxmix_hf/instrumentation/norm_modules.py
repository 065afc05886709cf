"""Recognises norm modules by numbers: whatever its class, a norm is what computes one of three formulas."""

from __future__ import annotations

import copy
from collections import OrderedDict
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
    weight, bias = map(_wide, _parameters(module))
    weight = weight + 1 if kind.plus_one and weight is not None else weight
    return NormCall(kind.kind, weight, bias, kind.eps, kind.rounds)


def _parameters(module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    weight = getattr(module, "weight", getattr(module, "scale", getattr(module, "gamma", None)))
    bias = getattr(module, "bias", getattr(module, "beta", None))
    return (weight if isinstance(weight, Tensor) else None), (
        bias if isinstance(bias, Tensor) else None
    )


def _recognise(module: nn.Module, x: Tensor, y: Tensor) -> _Kind | None:
    """By numbers of our own where the module can be copied: what a layer happens to be called with
    may have no mean, and half precision cannot tell a norm with a mean from one without."""
    weight, bias = _parameters(module)
    width = x.shape[-1]
    if x.shape != y.shape or any(
        p is not None and (p.shape != (width,) or p.is_meta) for p in (weight, bias)
    ):
        return None
    if isinstance(module, nn.Dropout | nn.Identity) or torch.equal(x, y):
        return None
    tried = _try(module, x)
    x, y = (x.detach(), y.detach()) if tried is None else tried
    strict = {torch.float64: 1e-10, torch.float32: 1e-5}.get(x.dtype, 2e-2)
    x, y = x.to(widened(x.dtype)), y.to(widened(y.dtype))
    weight, bias = (None if p is None else p.detach().to(x) for p in (weight, bias))
    for tolerance in sorted({strict, max(strict, 1e-5)}):
        for eps, plus_one, kind in product(
            _epsilons(module), (False, True), ("layer", "rms", "affine")
        ):
            if kind == "affine" and weight is None:
                continue  # an activation must not pass for a norm
            w = weight + 1 if plus_one and weight is not None else weight
            state = NormCall(kind, w, bias, eps).state(x)  # type: ignore[arg-type]
            if _close(state(x), y, tolerance):
                return _Kind(kind, eps, plus_one, rounds=tolerance > strict)  # type: ignore[arg-type]
    return None


def _try(module: nn.Module, like: Tensor) -> tuple[Tensor, Tensor] | None:
    """A float64 copy of the module on random numbers with a mean of their own, `[..., D]` in the
    axes it is called with.
    """
    copied = copy.copy(module)
    copied._parameters = {
        k: None if p is None else nn.Parameter(p.detach().double(), False)
        for k, p in module._parameters.items()
    }
    copied._buffers = {
        k: b.double() if isinstance(b, Tensor) and b.is_floating_point() else b
        for k, b in module._buffers.items()
    }
    copied._forward_hooks, copied._forward_pre_hooks = OrderedDict(), OrderedDict()
    generator = torch.Generator().manual_seed(0)
    x = (
        torch.randn(
            (*(min(4, size) for size in like.shape[:-1]), like.shape[-1]),
            generator=generator,
            dtype=torch.float64,
        )
        + 0.7
    )
    x = x.to(like.device)
    try:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            y = copied(x)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return None
    return (x, y) if isinstance(y, Tensor) and y.shape == x.shape else None


def _epsilons(module: nn.Module) -> list[float]:
    names = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")
    found = [
        getattr(module, name) for name in names if isinstance(getattr(module, name, None), float)
    ]
    return found or [1e-6, 1e-5, 1e-12, torch.finfo(torch.float32).eps]


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return bool((a - b).abs().max() <= tolerance * b.abs().max().clamp(min=1.0))
