"""Collects the layers of one forward pass. One `Recorder` per call, reached by the hooks through a context variable."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ctxmix_hf.errors import InputError, RecordError, UnsupportedModelError
from ctxmix_hf.instrumentation.blocks import build_block, tolerance
from ctxmix_hf.instrumentation.embeddings import embedding_norm
from ctxmix_hf.instrumentation.layout import Attention, HiddenLayout, Unmatched, first_tensor, standard_attention
from ctxmix_hf.instrumentation.projections import find_attention_inputs
from ctxmix_hf.instrumentation.replay import LayerCall, LayerReplay
from ctxmix_hf.instrumentation.tap import Tap
from ctxmix_hf.instrumentation.trace import Event, Trace
from ctxmix_hf.records import AttentionInputs, LayerRecord

if TYPE_CHECKING:
    from ctxmix_hf.instrumentation.session import Instrumentation

# Set while a call records or injects; hooks of the same owner wake up for it, in this thread only.
ACTIVE: ContextVar[Any] = ContextVar("ctxmix_active", default=None)


@dataclass
class Frame:
    """A module that may be a layer, while it runs: the widest one with exactly one attention product is the layer."""

    call: LayerCall
    hidden: int  # node of the frame's input
    start: int  # first event of this frame in the trace
    attentions: int = 0
    waiting: list[Layer] = field(default_factory=list)  # inner frames that are layers if this one is not


@dataclass
class Layer:
    """A finished frame with one attention product."""

    call: LayerCall
    hidden: int
    output: Tensor
    start: int
    stop: int
    trace: Trace


class Recorder:
    """What the hooks and the tap report to, and what turns their reports into `LayerRecord`s."""

    def __init__(self, owner: Instrumentation, top: nn.Module, batch: int, mask: Tensor | None, keep_graph: bool) -> None:
        self.owner, self.top, self.batch, self.mask, self.keep_graph = owner, top, batch, mask, keep_graph
        self.request: Any = None
        self.gather: Any = None  # takes each layer as it ends; the record then keeps only its outline
        self.causal = True  # until a token attends to a later one
        self._padded: bool | None = None
        self.tap = Tap(self._on_attention)
        self.tap.trace = Trace()  # the embeddings, until the first layer opens
        self.prelude: Trace | None = self.tap.trace
        self.frames: list[Frame] = []
        self.layers: list[LayerRecord] = []
        self.silent: list[str] = []  # modules that ran without any attention
        self.embedding_sum: Tensor | None = None

    def __enter__(self) -> Recorder:
        self._token = ACTIVE.set(self)
        self.tap.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.tap.__exit__(*exc)
        ACTIVE.reset(self._token)

    # ---- reports from the hooks -------------------------------------------------------------------------------
    def enter(self, module: nn.Module, name: str, args: Any, kwargs: Any) -> None:
        call = LayerCall.of(module, name, args, kwargs)
        if call is None:
            return
        if self.prelude is not None:
            self._find_embeddings(self.prelude, call.hidden)
        if not self.frames:
            self.tap.trace = Trace()
        trace = self.tap.trace
        assert trace is not None
        self.frames.append(Frame(call, trace.node(call.hidden), len(trace.events)))

    def _find_embeddings(self, prelude: Trace, hidden: Tensor) -> None:
        self.prelude = None
        with torch._C.DisableTorchFunction():
            norm, start = embedding_norm(prelude, hidden, self.owner.root)
            if start is None or start.dim() != 3 or start.shape[1] not in hidden.shape:
                norm = start = None  # no sum of embeddings, or not one per token
            self.embedding_sum = start
            self.owner.remember_embeddings(norm)

    def leave(self, name: str, output: Any) -> None:
        if not self.frames or self.frames[-1].call.name != name:
            return
        frame, trace = self.frames.pop(), self.tap.trace
        assert trace is not None
        hidden = first_tensor(output)
        outer = self.frames[-1] if self.frames else None
        finished: list[Layer] = frame.waiting
        if frame.attentions == 0:
            self.silent.append(name)
        if frame.attentions == 1 and hidden is not None:
            finished = [Layer(frame.call, frame.hidden, hidden, frame.start, len(trace.events), trace)]
        if outer is not None and outer.attentions <= 1:
            outer.waiting.extend(finished)
        else:
            self._finish(finished)
        if outer is None:
            self.tap.trace = None

    def module(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        trace = self.tap.trace
        if trace is not None and y is not x:
            trace.add("module", (trace.node(x),), trace.node(y), module)

    def _on_attention(self, trace: Trace) -> None:
        for frame in self.frames:
            frame.attentions += 1
            if frame.attentions == 2:  # a group of layers, not a layer: its inner frames count
                waiting, frame.waiting = frame.waiting, []
                self._finish(waiting)

    # ---- from a finished frame to a record --------------------------------------------------------------------
    def _finish(self, layers: list[Layer]) -> None:
        for layer in layers:
            with torch._C.DisableTorchFunction(), torch.set_grad_enabled(self.keep_graph):
                try:
                    self._keep(self._record(layer))
                except Unmatched as reason:
                    raise UnsupportedModelError(
                        f"{self.owner.family}: layer {len(self.layers)} ({layer.call.name}) cannot be read: {reason}"
                    ) from None

    def _keep(self, record: LayerRecord) -> None:
        self.causal = self.causal and _is_causal(record.attention)
        if self.gather is not None:
            self.gather.add(record)
            record = record.outline()
        self.layers.append(record)

    def _record(self, layer: Layer) -> LayerRecord:
        index, name, trace = len(self.layers), layer.call.name, layer.trace
        product = trace.attentions(layer.start)[0]
        attention = standard_attention(product.payload, self.batch)
        layout = HiddenLayout(self.batch, attention.tokens)
        proof = self.owner.proofs.get(index)
        block, why, precision = None, "", self.owner.dtype
        try:
            block, layout, precision = build_block(
                trace, layer.start, layer.hidden, trace.node(layer.output), product, attention,
                self.batch, prove=proof is None, whole=proof is None or (proof and self.gather is None),
            )  # fmt: skip
        except Unmatched as reason:
            why = str(reason)
        kept = (lambda t: t) if self.keep_graph else Tensor.detach
        mask = self._padding(attention.probabilities)
        record = LayerRecord(
            index=index,
            name=name,
            layer_input=kept(layout.standard(trace.values[layer.hidden])),
            attention=self._without_padding(kept(attention.probabilities), mask),
            values=kept(attention.values),
            output=kept(layout.standard(layer.output)),
            mask=mask,
            path=attention.path,
            replay=LayerReplay(layer.call, layout, self.owner, callable=not self.owner.spans),
            level2=block,
            why_not=why,
            attention_inputs=self._attention_inputs(index, layer, product, attention, layout),
        )
        self._check(record, proof, precision)
        return record

    def _attention_inputs(
        self, index: int, layer: Layer, product: Event, attention: Attention, layout: HiddenLayout
    ) -> AttentionInputs | None:
        """Proved in the first record of a layer, then only read off."""
        known = self.owner.scalings.get(index, 0.0)
        if known is None or self.gather is not None:
            return None
        found = find_attention_inputs(layer.trace, layer.start, layer.hidden, product, attention, layout, known or None)
        self.owner.scalings[index] = None if found is None else found.scaling
        return found

    def _padding(self, probabilities: Tensor) -> Tensor:
        """Real tokens: the caller's mask, or (frames of speech) the columns that anybody attends to."""
        tokens = probabilities.shape[-1]
        if self.mask is not None and self.mask.shape[-1] == tokens:
            return self.mask
        self.mask = probabilities.amax(dim=(1, 2)) > 0
        return self.mask

    def _without_padding(self, attention: Tensor, mask: Tensor) -> Tensor:
        if self._padded is None:
            self._padded = not bool(mask.all())
        return attention * mask[:, None, :, None] if self._padded else attention

    def _check(self, record: LayerRecord, proof: bool | None, precision: torch.dtype) -> None:
        """The first record of a layer must add up; later ones trust it (`ModelRecord.check` always measures)."""
        self._check_finite(record)
        if record.level2 is None or proof is not None:
            return
        for stage in ("norm1", "norm2"):
            error = record.reconstruction_error(stage)  # type: ignore[arg-type]
            if not error <= tolerance(precision):
                record.level2 = None
                record.why_not = f"its parts do not add up (relative error {error:.1e})."
                return
        self.owner.proofs[record.index] = record.level2.feed_forward is not None

    def _check_finite(self, record: LayerRecord) -> None:
        if bool(record.output.sum().isfinite()):
            return  # padding may hold anything, so only a sum that is not finite needs the second look
        if not bool(record.output[record.mask].isfinite().all()):
            raise InputError(f"Layer {record.index} ({record.name}) gave NaN or infinite numbers: the weights or inputs are not finite.")

    def finished(self) -> list[LayerRecord]:
        """All layers, or an error that says what went past the instrumentation."""
        if not self.layers:
            raise UnsupportedModelError(
                f"{self.owner.family}: no layer left a record: no softmax attention over the sequence was seen inside a "
                "layer (attention-free or approximated attention, or a fused flash/flex kernel: load with "
                "attn_implementation='sdpa' or 'eager')."
            )
        stacks = {layer.name.rpartition(".")[0] for layer in self.layers}
        silent = next((name for name in self.silent if name.rpartition(".")[0] in stacks), None)
        if silent is not None:
            raise UnsupportedModelError(
                f"{self.owner.family}: layer {silent} left no record: it has no softmax attention over the sequence (a hybrid "
                "of attention with recurrence or convolution), so maps through it would be missing a layer."
            )
        if len({layer.attention.shape[-1] for layer in self.layers}) > 1:
            sizes = sorted({layer.attention.shape[-1] for layer in self.layers})
            raise UnsupportedModelError(
                f"{self.owner.family}: layers see different numbers of tokens ({sizes}): maps of such models do not "
                "compose. Instrument one tower or stage of it."
            )
        if self.frames:
            raise RecordError("The forward pass ended inside a layer; nothing was recorded.")
        return self.layers


def _is_causal(attention: Tensor) -> bool:
    """Does no token attend to a later one? The first row nearly always tells."""
    if bool(attention[:, :, 0, 1:].any()):
        return False
    return not bool(attention.triu(1).any())
