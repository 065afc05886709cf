"""Is it right, on this model and this input? The exactness check, layer by layer and method by method, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ctxmix_hf.catalogue import list_methods
from ctxmix_hf.explaining import encode
from ctxmix_hf.instrumentation.session import instrumentation_of
from ctxmix_hf.methods.rest import Rest
from ctxmix_hf.modeling import instrument, uninstrument
from ctxmix_hf.records import Check, LayerRecord, ModelRecord


@dataclass(frozen=True)
class LayerCheck:
    """One layer: its layout, and how far its parts are from what the model computed (relative)."""

    layer: int
    name: str
    order: str  # post, pre, sandwich, parallel; "-" where only the attention product is known
    block_error: float | None
    layer_error: float | None
    value_zeroing: str  # "shortcut" or "re-run"
    reason: str


@dataclass(frozen=True)
class MethodCheck:
    """exact, approximate or not applicable, and why."""

    method: str
    status: str
    why: str


@dataclass(frozen=True)
class Verification:
    """The result of `verify`: prints as two tables."""

    family: str
    check: Check
    layers: tuple[LayerCheck, ...]
    methods: tuple[MethodCheck, ...]

    @property
    def exact(self) -> bool:
        return all(layer.block_error is not None for layer in self.layers) and "model in" not in self.check.precision

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        head = f"{self.family}: {self.check}"
        rows = [("layer", "order", "block error", "layer error", "value zeroing", "name")]
        rows += [(str(x.layer), x.order, _number(x.block_error), _number(x.layer_error), x.value_zeroing, x.name) for x in self.layers]
        methods = [("method", "status", "why"), *((m.method, m.status, m.why) for m in self.methods)]
        return "\n".join([head, "", *_table(rows), "", *_table(methods)])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def verify(model: Any, batch: Any, tokenizer: Any = None) -> Verification:
    """Record `batch` (tensors, or a text) and check every layer and method. The model is left as it was."""
    was_plain = instrumentation_of(model) is None
    if was_plain:
        instrument(model, tokenizer)
    try:
        inputs = encode(model, batch, tokenizer)[0] if isinstance(batch, str | list | tuple) else dict(batch)
        with torch.no_grad():
            record: ModelRecord = model(**inputs, output_decomposition=True).decomposition
        layers = tuple(_layer(layer) for layer in record)
        return Verification(record.origin["model_type"], record.check, layers, _methods(record))
    finally:
        if was_plain:
            uninstrument(model)


def _layer(layer: LayerRecord) -> LayerCheck:
    if layer.level2 is None:
        return LayerCheck(layer.index, layer.name, "-", None, None, "re-run", layer.why_not)
    block, whole = (layer.reconstruction_error(stage) for stage in ("norm1", "norm2"))  # type: ignore[arg-type]
    how = "re-run" if Rest.of(layer) is None else "shortcut"
    layer.release()
    return LayerCheck(layer.index, layer.name, layer.level2.order, block, whole, how, "")


def _methods(record: ModelRecord) -> tuple[MethodCheck, ...]:
    return tuple(MethodCheck(info.name, *_status(info.needs, record)) for info in list_methods())


def _status(needs: str, record: ModelRecord) -> tuple[str, str]:
    if needs == "block":
        missing = next((layer for layer in record if layer.level2 is None), None)
        if missing is not None:
            return "not applicable", f"layer {missing.index}: {missing.why_not}"
    if needs == "replay":
        stuck = next((x for x in record if Rest.of(x) is None and not getattr(x.replay, "callable", False)), None)
        for layer in record:
            layer.release()
        if stuck is not None:
            return "not applicable", f"layer {stuck.index} ({stuck.name}) can neither be decomposed nor run again"
    if record.model_dtype in (torch.float16, torch.bfloat16):
        return "approximate", f"the model computes in {str(record.model_dtype).removeprefix('torch.')}"
    return "exact", ""
