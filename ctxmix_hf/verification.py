"""Is it right, on this model and this input? The exactness check, layer by layer and method by method, as a table."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from ctxmix_hf.calling import call, read_batch
from ctxmix_hf.catalogue import list_methods
from ctxmix_hf.errors import CtxmixError, InputError, UnsupportedMethodError
from ctxmix_hf.instrumentation.account import any_readout
from ctxmix_hf.instrumentation.awake import keeps_modes
from ctxmix_hf.instrumentation.blocks import tolerance
from ctxmix_hf.instrumentation.session import ApproximateWarning, instrumentation_of
from ctxmix_hf.methods import METHODS
from ctxmix_hf.methods.jacobian import has_closed_form
from ctxmix_hf.methods.rest import Rest
from ctxmix_hf.modeling import instrument, uninstrument
from ctxmix_hf.records import Check, LayerRecord, ModelRecord
from ctxmix_hf.text.columns import aligned
from ctxmix_hf.text.kinds import Model, Tokenizer


@dataclass(frozen=True)
class LayerCheck:
    """One layer (from 1): its layout, and how far its parts are from what the model computed (relative)."""

    layer: int
    name: str
    order: str  # post, pre, sandwich, parallel; "-" where only the attention product is known
    block_error: float | None
    layer_error: float | None
    value_zeroing: str  # "shortcut" or "re-run"
    reason: str  # why there is no decomposition, or what else mixes tokens


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
    ledger: float | None = None  # how far a ledger of this input is from balancing (relative)
    ledger_reason: str = ""  # why there is none

    @property
    def exact(self) -> bool:
        """Every layer decomposed, nothing beside the attention mixing tokens, no half precision."""
        return (
            all(layer.block_error is not None and not layer.reason for layer in self.layers)
            and "model in" not in self.check.precision
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        head = f"{self.family}: {self.check}"
        rows = [("layer", "order", "block error", "layer error", "value zeroing", "name", "reason")]
        rows += [
            (
                str(x.layer),
                x.order,
                _number(x.block_error),
                _number(x.layer_error),
                x.value_zeroing,
                x.name,
                x.reason,
            )
            for x in self.layers
        ]
        methods = [
            ("method", "status", "why"),
            *((m.method, m.status, m.why) for m in self.methods),
        ]
        balance = self.ledger_reason if self.ledger is None else f"balances to {self.ledger:.1e}"
        return "\n".join(
            [head, "", *aligned(rows), "", f"ledger: {balance}", "", *aligned(methods)]
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


@keeps_modes
def verify(model: Model, batch: Any, tokenizer: Tokenizer | None = None) -> Verification:
    """Record `batch` (whatever `explain` takes) and check every layer and method. The model is left as it was.

    Args:
        model: Model transformers model; one without instrumentation is instrumented for this call only.
        batch: What `explain` takes.
        tokenizer: Found beside the weights where it is not given.

    Returns:
        What is exact and what is not, layer by layer and method by method; `print` it.

    Example:
        >>> print(cm.verify(model, "The keys to the cabinet are here."))
    """
    was_plain = instrumentation_of(model) is None
    if was_plain:
        instrument(model, tokenizer)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ApproximateWarning)  # the table says it
            recorded = call(
                model, read_batch(model, batch, tokenizer), output_decomposition=True
            ).decomposition
        records: list[ModelRecord] = [
            _without_what_does_not_add_up(record)
            for record in (recorded.values() if isinstance(recorded, dict) else [recorded])
        ]
        layers = tuple(_layer(layer) for record in records for layer in record)
        gap, reason = _ledger(records)
        methods = tuple(
            MethodCheck("ledger", "not applicable", reason)
            if m.method == "ledger" and gap is None
            else m
            for m in _methods(records)
        )
        return Verification(
            records[0].origin["model_type"], records[0].check, layers, methods, gap, reason
        )
    finally:
        if was_plain:
            uninstrument(model)


def _ledger(records: Sequence[ModelRecord]) -> tuple[float | None, str]:
    """(gap of a ledger of this input, why there is none): anything the model returns first is read out."""
    if len(records) > 1:
        return None, "this model has several towers, and a ledger starts at one"
    try:
        return float(records[0].replay.draw_up(any_readout, records[0].mask).gap.max()), ""
    except CtxmixError as error:
        return None, str(error)


def _without_what_does_not_add_up(record: ModelRecord) -> ModelRecord:
    """Calls trust the proof of a layer's first record; here every layer is measured on this input."""

    def measured(layer: LayerRecord) -> LayerRecord:
        if layer.level2 is None:
            return layer
        limit = tolerance(
            torch.float32
            if layer.level2.rounds and record.model_dtype == torch.float64
            else record.model_dtype
        )
        error = max(layer.reconstruction_error(stage) for stage in ("norm1", "norm2"))  # type: ignore[arg-type]
        layer.release()
        if error <= limit:
            return layer
        why = f"its parts do not add up on this input (relative error {error:.1e})."
        return layer.refuted(why)

    return replace(record, layers=tuple(map(measured, record)))


def _layer(layer: LayerRecord) -> LayerCheck:
    mixing = (layer.mixing_before and f"before it {layer.mixing_before}") or layer.mixing
    if layer.level2 is None:
        return LayerCheck(layer.number, layer.name, "-", None, None, "re-run", layer.why_not)
    block, whole = (layer.reconstruction_error(stage) for stage in ("norm1", "norm2"))  # type: ignore[arg-type]
    how = "re-run" if Rest.of(layer) is None else "shortcut"
    layer.release()
    return LayerCheck(layer.number, layer.name, layer.level2.order, block, whole, how, mixing)


def _methods(records: Sequence[ModelRecord]) -> tuple[MethodCheck, ...]:
    """The worst over towers; an exact method says nothing."""
    rank = ("exact", "approximate", "not applicable")
    checks = []
    for info in list_methods():
        needs = "layer" if info.name == "hta_x_input" else info.needs
        found = [_refusal(info.name, record) or _status(needs, record) for record in records]
        checks.append(MethodCheck(info.name, *max(found, key=lambda status: rank.index(status[0]))))
    return tuple(checks)


def _refusal(name: str, record: ModelRecord) -> tuple[str, str] | None:
    """What the method itself says against this record."""
    if name not in METHODS or any(layer.level2 is None for layer in record):
        return None
    try:
        METHODS.get(name)().check(record)
    except UnsupportedMethodError as error:
        return "not applicable", str(error)
    finally:
        for layer in record:
            layer.release()
    return None


def _status(needs: str, record: ModelRecord) -> tuple[str, str]:
    if needs in ("block", "feed_forward"):
        missing = next((layer for layer in record if layer.level2 is None), None)
        if missing is not None:
            return "not applicable", f"{missing.title}: {missing.why_not}"
    if needs in ("replay", "layer"):
        known = has_closed_form if needs == "layer" else lambda layer: Rest.of(layer) is not None
        stuck = next(
            (x for x in record if not known(x) and not getattr(x.replay, "callable", False)), None
        )
        for layer in record:
            layer.release()
        if stuck is not None:
            how = (
                "has no Jacobian in closed form and cannot be"
                if needs == "layer"
                else "can neither be decomposed nor"
            )
            return "not applicable", f"{stuck.title} {how} run again"
    why = record.approximate(needs)
    if why:
        return "approximate", why
    if record.model_dtype in (torch.float16, torch.bfloat16):
        return (
            "approximate",
            f"the model computes in {str(record.model_dtype).removeprefix('torch.')}",
        )
    return "exact", ""


def noise_for(model: PreTrainedModel, name: str) -> dict[str, Any]:
    """Noise of the shape a vision or speech model takes."""
    config, made = model.config, torch.Generator().manual_seed(0)
    key = getattr(model, "main_input_name", "")
    if key == "pixel_values":
        size = (
            config.image_size
            if isinstance(config.image_size, (list, tuple))
            else (config.image_size, config.image_size)
        )
        shape: tuple[int, ...] = (1, getattr(config, "num_channels", 3), *size)
    elif key == "input_values" and hasattr(config, "num_mel_bins"):
        shape = (1, getattr(config, "max_length", 1024), config.num_mel_bins)
    elif key == "input_values":
        shape = (1, 8000)
    elif (
        key == "input_features"
        and hasattr(config, "max_source_positions")
        and hasattr(config, "num_mel_bins")
    ):
        shape = (
            1,
            config.num_mel_bins,
            2 * config.max_source_positions,
        )  # Whisper reads windows of one length
    else:
        raise InputError(
            f"No probe is known for {name!r}, which takes {key!r}: use ctxmix_hf.verify(model, batch)."
        )
    values = torch.randn(shape, generator=made).to(model.device, model.dtype)
    return {key: values}
