"""What the zoo promises of each family, measured."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from . import FAMILIES, FLOAT32_ONLY, build, singles

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
            query, key = kwargs.get("query", args[0] if args else None), kwargs.get("key", *args[1:2])
            self._saw(query.shape[-2], key.shape[-2])
        elif func is F.multi_head_attention_forward:
            self._saw(args[0].shape[0], args[1].shape[0])
        elif func in _SOFTMAX and out.dim() >= 3:
            self._saw(*out.shape[-2:])
        return out

    def _saw(self, queries: int, keys: int) -> None:
        if queries == 1 < keys:  # the pooling head after the last layer
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
    """Build, run in both precisions, and measure."""
    try:
        start = time.perf_counter()
        model, inputs = build(name)
        with SquareAttention() as seen:
            out = first(model, inputs)
        seconds = time.perf_counter() - start
        gap = padding_gap(model, inputs, out) if name in FAMILIES and FAMILIES[name].padded else 0.0
        double = out.double() if name in FLOAT32_ONLY else first(*build(name, dtype=torch.float64))
        report = Report(name, tuple(out.shape), _attentions(seen), gap, seconds)
        return _judge(report, model, inputs, out, double)
    except Exception as error:  # the table must go on
        return Report(name, error=f"{type(error).__name__}: {str(error)[:150]}".replace("\n", " "))


def _attentions(seen: SquareAttention) -> str:
    sizes = "/".join(map(str, sorted(set(seen.square)))) or "-"
    return f"{len(seen.square)}/{seen.total} of {sizes}"


def _judge(report: Report, model: Any, inputs: Any, out: Tensor, double: Tensor) -> Report:
    square, total = map(int, report.attentions.split(" ")[0].split("/"))
    faults = {
        "not finite": not torch.isfinite(out).all(),
        "blind to its inputs": torch.equal(out, first(model, changed(inputs))),
        "not float64": double.dtype != torch.float64,
        f"precisions differ by {(double - out).abs().max():.1e}": not torch.allclose(
            double.float(), out, rtol=1e-3, atol=1e-3
        ),
        "padding leaks": report.padding > 1e-5 * max(1.0, out.abs().max().item()),
        "no square attention": not square,
        "other attention too": square < total,
    }
    error = "; ".join(fault for fault, bad in faults.items() if bad) or None
    return Report(report.name, report.shape, report.attentions, report.padding, report.seconds, error)
