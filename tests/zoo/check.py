"""What the zoo promises of each family, measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from . import EAGER_DIFFERS, FAMILIES, FLOAT32_ONLY, build, singles
from .spec import LAYERS, VOCAB

_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)


class SquareAttention(TorchFunctionMode):
    """Counts attention operations, and keeps the sizes of those whose queries and keys are as many."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.square = 0, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            query, key = (
                kwargs.get("query", args[0] if args else None),
                kwargs.get("key", *args[1:2]),
            )
            self._saw(query.shape[-2], key.shape[-2])
        elif func is F.multi_head_attention_forward:
            self._saw(args[0].shape[0], args[1].shape[0])
        elif func in _SOFTMAX and out.dim() >= 3:
            self._saw(*out.shape[-2:])
        return out

    def _saw(self, queries: int, keys: int) -> None:
        if (
            queries == 1 < keys or keys == VOCAB
        ):  # the pooling head after the last layer, or a vocabulary
            return
        self.total += 1
        if queries == keys or keys == queries + 1:  # one more: an attention sink
            self.square.append(queries)


@dataclass(frozen=True)
class Report:
    """`error` is None for a family that keeps every promise."""

    name: str
    shape: tuple[int, ...] = ()
    attentions: str = ""
    padding: float = 0.0
    seconds: float = 0.0
    error: str | None = None


def first(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The first output, as a user would read it."""
    with torch.no_grad():
        return model(**inputs)[0]


def padding_gap(model: Any, inputs: dict[str, Tensor], out: Tensor) -> float:
    """How far each row of the batch is from the same example computed alone."""
    gaps = []
    for i, single in enumerate(singles(inputs)):
        alone = first(model, single)[0]
        gaps.append((out[i][: len(alone)] - alone).abs().max().item())
    return max(gaps)


def changed(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The batch with another first token, patch or sample."""
    key = next(k for k in ("input_ids", "pixel_values", *inputs) if k in inputs)
    value = inputs[key].clone()
    value[0, 0] = value[0, 0] + 1
    return inputs | {key: value}


def examine(name: str) -> Report:
    """Build, run (in both precisions if the family is not to be refused), and measure."""
    try:
        start = time.perf_counter()
        model, inputs = build(name)
        with SquareAttention() as seen:
            out = first(model, inputs)
        report = Report(
            name, tuple(out.shape), _attentions(seen), seconds=time.perf_counter() - start
        )
        faults = _faults(name, model, inputs, out, seen) if name in FAMILIES else {}
        gap = padding_gap(model, inputs, out) if name in FAMILIES and FAMILIES[name].padded else 0.0
        faults |= {"not finite": not torch.isfinite(out).all()}
        faults |= {"padding leaks": gap > 1e-5 * max(1.0, out.abs().max().item())}
        error = "; ".join(fault for fault, bad in faults.items() if bad) or None
        return replace(report, padding=gap, error=error)
    except Exception as error:  # the table must go on
        return Report(name, error=f"{type(error).__name__}: {str(error)[:150]}".replace("\n", " "))


def _attentions(seen: SquareAttention) -> str:
    sizes = "/".join(map(str, sorted(set(seen.square)))) or "-"
    return f"{len(seen.square)}/{seen.total} of {sizes}"


def _faults(
    name: str, model: Any, inputs: Any, out: Tensor, seen: SquareAttention
) -> dict[str, bool]:
    double = out.double() if name in FLOAT32_ONLY else first(*build(name, dtype=torch.float64))
    eager = first(*build(name, attn_implementation="eager"))
    return {
        "not a PreTrainedModel": not isinstance(model, PreTrainedModel),
        f"config says {model.config.model_type}": model.config.model_type
        != FAMILIES[name].model_type,
        "blind to its inputs": torch.equal(out, first(model, changed(inputs))),
        "not float64": double.dtype != torch.float64,
        "precisions differ": not torch.allclose(double.float(), out, rtol=1e-3, atol=1e-3),
        "not repeatable": not torch.equal(out, first(*build(name))),
        "eager differs": name not in EAGER_DIFFERS
        and not torch.allclose(eager, out, rtol=1e-3, atol=1e-3),
        "too few square attentions": len(seen.square) < LAYERS,
        "other attention too": len(seen.square) < seen.total,
        "several lengths": len(set(seen.square)) > 1,
    }
