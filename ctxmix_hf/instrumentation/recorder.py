"""Collects the layers of one forward pass. One `Recorder` per call, reached by the hooks through a context variable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ctxmix_hf.algebra.rows import BlockAttention
from ctxmix_hf.counting import layer_number
from ctxmix_hf.errors import InputError, RecordError, UnsupportedModelError
from ctxmix_hf.instrumentation.awake import run_awake
from ctxmix_hf.instrumentation.blocks import Built, build_block, tolerance
from ctxmix_hf.instrumentation.embeddings import embedding_norm
from ctxmix_hf.instrumentation.layout import (
    HiddenLayout,
    StandardAttention,
    Unmatched,
    first_tensor,
    standard_attention,
)
from ctxmix_hf.instrumentation.probe import Evidence, probe
from ctxmix_hf.instrumentation.projections import (
    find_attention_inputs,
    find_value_bias,
    find_value_map,
)
from ctxmix_hf.instrumentation.replay import LayerCall, LayerReplay
from ctxmix_hf.instrumentation.session import FusedLayers, Instrumentation, Program, Proof
from ctxmix_hf.instrumentation.tap import Tap, weakly
from ctxmix_hf.instrumentation.trace import Trace
from ctxmix_hf.methods.base import Reads
from ctxmix_hf.records import LayerRecord


class NeedsEvidence(Exception):
    """A slim call met a program that no earlier call has proved: it is made again with all that the probe needs."""


@dataclass
class Frame:
    """A module that may be a layer, while it runs: the widest one with exactly one attention product is the layer."""

    call: LayerCall
    hidden: int  # node of the frame's input
    start: int  # first event of this frame in the trace
    attentions: int = 0
    recorded: int = 0  # layers that were found inside it
    waiting: list[Layer] = field(
        default_factory=list
    )  # inner frames that are layers if this one is not


@dataclass
class Layer:
    """A finished frame with one attention product."""

    call: LayerCall
    hidden: int
    output: Tensor
    start: int
    trace: Trace

    @property
    def stack(self) -> str:
        """The list of layers it stands in."""
        return self.call.name.rpartition(".")[0]


@dataclass
class Stack:
    """What the layers of one list share."""

    batch: int
    mask: Tensor  # [B, T] bool
    padded: bool
    causal: bool = True  # until a token attends to a later one

    @classmethod
    def of(cls, batch: int, given: Tensor | None, seen: Tensor | BlockAttention) -> Stack:
        """Real tokens: the caller's mask where this stack obeys it, else (frames of speech) the
        columns anybody attends to. `seen` are the probabilities of its first layer, or what makes them.
        """
        mask = given
        if mask is None or mask.shape != (batch, seen.shape[-1]) or not _obeys(seen, mask):
            mask = seen.amax(dim=(1, 2)) > 0 if isinstance(seen, Tensor) else seen.seen()
        return cls(batch, mask, padded=not bool(mask.all()))

    def look_at(self, seen: Tensor | BlockAttention) -> None:
        """Of another of its layers: does it attend to later tokens?"""
        if self.causal:
            self.causal = _is_causal(seen) if isinstance(seen, Tensor) else seen.is_causal()


class Recorder:
    """What the hooks and the tap report to, and what turns their reports into `LayerRecord`s."""

    def __init__(
        self,
        owner: Instrumentation,
        batches: tuple[int, ...],
        mask: Tensor | None,
        keep_graph: bool,
    ) -> None:
        self.owner, self.batches, self.given_mask, self.keep_graph = (
            owner,
            batches,
            mask,
            keep_graph,
        )
        # takes each layer as it ends; the record then keeps only its outline
        self.gather: Any = None
        self.reads = Reads()
        self.slim = False  # a call that keeps little: what the probe would need is dropped too
        self.tap = Tap(weakly(self._on_attention))
        self.tap.trace = Trace()  # the embeddings, until the first layer opens
        self.prelude: Trace | None = self.tap.trace
        self.frames: list[Frame] = []
        self.layers: list[LayerRecord] = []
        self.stacks: dict[str, Stack] = {}
        self.silent: list[str] = []  # modules that ran without any attention
        self.crowded: list[
            str
        ] = []  # modules that ran several attention products and hold no layer
        self.embedding_sum: Tensor | None = None
        self.evidence: list[Evidence] = []  # one per layer
        self.unproved = False
        self._between: list[nn.Module] = []  # leaf modules since the last layer
        self._above: Tensor | None = None  # the last layer's output

    def _remember_fused(self) -> None:
        """After a call that looked at everything: could the next one do with the attention alone?"""
        owner = self.owner
        proofs = tuple(
            proof
            for seen in self.evidence
            if (proof := owner.proofs.get((seen.index, seen.signature))) is not None
        )
        fused = self.tap.fused == len(self.layers) == len(proofs)
        if fused and not owner.spans and owner.root is not None:
            names = tuple(layer.name for layer in self.layers)
            owner.fused = FusedLayers(names, proofs, self.towers(), Program.of(owner.root))

    # ---- reports from the hooks -------------------------------------------------------------------------------
    def enter(
        self, module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
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
            finished = [Layer(frame.call, frame.hidden, hidden, frame.start, trace)]
        elif frame.attentions > 1 and not frame.recorded and not finished:
            self.crowded.append(name)
        if outer is not None:
            outer.recorded += frame.recorded + len(finished)
        if outer is not None and outer.attentions <= 1:
            outer.waiting.extend(finished)
        else:
            self._finish(finished)
        if outer is None:
            self.tap.trace = None

    def module(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        if not self.frames and self.layers:
            self._between.append(module)
        trace = self.tap.trace
        if trace is not None and y is not x:
            trace.add("module", (trace.node(x),), trace.node(y), module)

    def _on_attention(self, trace: Trace) -> None:
        for frame in self.frames:
            frame.attentions += 1
            if frame.attentions == 2:  # a group of layers, not a layer: its inner frames count
                waiting, frame.waiting = frame.waiting, []
                frame.recorded += len(waiting)
                self._finish(waiting)

    # ---- from a finished frame to a record --------------------------------------------------------------------
    def _finish(self, layers: list[Layer]) -> None:
        for layer in layers:
            with torch._C.DisableTorchFunction(), torch.set_grad_enabled(self.keep_graph):
                try:
                    self._keep(layer, self._record(layer))
                except Unmatched as reason:
                    raise UnsupportedModelError(
                        f"{self.owner.family}: layer {layer_number(len(self.layers))} "
                        f"({layer.call.name}) cannot be read: {reason}"
                    ) from None

    def _keep(self, layer: Layer, record: LayerRecord) -> None:
        self.stacks[layer.stack].look_at(
            record.attention if record.deferred is None else record.deferred
        )
        self._above, self._between = layer.output, []
        if self.gather is not None:
            self.gather.add(record)
            record = record.outline()
        self.layers.append(record)

    def _record(self, layer: Layer) -> LayerRecord:
        index, name, trace = len(self.layers), layer.call.name, layer.trace
        product = trace.attentions(layer.start)[0]
        batch = self._batch(product.payload.probabilities)
        attention = standard_attention(product.payload, batch)
        layout = HiddenLayout(batch, attention.tokens)
        signature = hash((name, trace.signature(layer.start)))
        proof = self.owner.proofs.get((index, signature))
        built, why = None, ""
        if proof is None or self.reads.blocks:
            try:
                built = build_block(
                    trace,
                    layer.start,
                    layer.hidden,
                    trace.node(layer.output),
                    product,
                    attention,
                    batch,
                    prove=proof is None,
                    whole=proof is None or (proof.feed_forward and self.gather is None),
                )
                layout = built.layout
            except Unmatched as reason:
                why = _in_chunks(layer.call.module) or str(reason)
        else:
            why = "nobody asked for its parts."
        mask = self._padding(layer, attention, batch)
        kept = (lambda t: t) if self.keep_graph else Tensor.detach
        scaling = self.owner.scalings.get((index, signature), 0.0)
        inputs = None
        if scaling is not None and self.reads.projections and attention.deferred is None:
            inputs, settled = find_attention_inputs(
                trace, layer.start, layer.hidden, product, attention, layout, scaling or None
            )
            if settled:
                self.owner.scalings[index, signature] = None if inputs is None else inputs.scaling
        record = LayerRecord(
            index=index,
            name=name,
            layer_input=kept(layout.standard(trace.values[layer.hidden])),
            attention=kept(attention.probabilities) * mask[:, None, :, None]
            if self.stacks[layer.stack].padded and attention.deferred is None
            else kept(attention.probabilities),
            values=kept(attention.values),
            output=kept(layout.standard(layer.output)),
            mask=mask,
            path=attention.path,
            replay=LayerReplay(layer.call, layout, self.owner, callable=not self.owner.spans),
            level2=None if built is None else built.block,
            why_not=why,
            attention_inputs=inputs,
            value_bias=find_value_bias(trace, layer.start, product, attention)
            if self.reads.value_bias
            else None,
            value_map=find_value_map(trace, layer.start, layer.hidden, product, attention, layout)
            if self.reads.projections
            else None,
            deferred=attention.deferred,
            mixing="" if proof is None else proof.mixing,
            mixing_before="" if proof is None else proof.before,
        )
        self._check_finite(record)
        if self.slim and proof is None:
            raise NeedsEvidence
        evidence = self._gather_evidence(layer, record, built, signature, product.payload)
        if proof is None:
            self._prove(record, built, evidence)
        refused = evidence.refused if proof is None else proof.refused
        return record.refuted(refused) if refused else record

    def _batch(self, probabilities: Tensor) -> int:
        """Towers may read batches of different sizes: the attention's own, if some input of the call has it."""
        own = probabilities.shape[0]
        return own if probabilities.dim() == 4 and own in self.batches else self.batches[0]

    def _padding(self, layer: Layer, attention: StandardAttention, batch: int) -> Tensor:
        """The real tokens of this layer's stack."""
        seen = attention.probabilities if attention.deferred is None else attention.deferred
        known = self.stacks.get(layer.stack)
        if known is None or known.mask.shape[-1] != seen.shape[-1]:
            known = self.stacks[layer.stack] = Stack.of(batch, self.given_mask, seen)
        return known.mask

    # ---- proofs -----------------------------------------------------------------------------------------------
    def _gather_evidence(
        self, layer: Layer, record: LayerRecord, built: Built | None, signature: int, product: Any
    ) -> Evidence:
        """What the probe will need. Kept for every layer of a call, and only until its end; nothing is copied."""
        assert isinstance(record.replay, LayerReplay)
        layout, hidden = record.replay.layout, layer.trace.values[layer.hidden]
        above = self._above
        chained = (
            above is None
            or hidden is above
            or (hidden.shape == above.shape and bool(torch.equal(hidden, above)))
        )
        evidence = Evidence(
            record.index,
            signature,
            record.name,
            layer.call.module,
            hidden.detach(),
            product,
            layer.output.detach(),
            layout,
            record.mask,
            record.replay,
            tuple(self._between),
            chained,
        )
        if self.slim:  # proved already: of this only the chain is read
            nothing = hidden.new_empty(0)
            evidence.hidden = evidence.output = nothing
            evidence.product = replace(product, values=nothing, context=nothing, deferred=None)
            evidence.replay = None  # type: ignore[assignment]
        if built is not None and (record.index, signature) not in self.owner.proofs:
            evidence.claims(built, layer.trace, layer.start)
        self.evidence.append(evidence)
        return evidence

    def _prove(self, record: LayerRecord, built: Built | None, evidence: Evidence) -> None:
        """The first record of a program must add up; later ones trust it (`ModelRecord.check` always measures)."""
        self.unproved = True
        if built is None:
            return
        evidence.refused = _adds_up(record, built)
        evidence.fed = built.block.feed_forward is not None

    def _in_float32(self, seen: Evidence) -> None:
        """Half precision proves little: a float32 copy of the same layer must add up, feed-forward included."""
        wide = seen.replay.recorded.widened(self.owner)
        if wide is None:
            seen.fed = False
            return
        tap, trace = Tap(), Trace()
        tap.trace = trace
        start = trace.node(wide.hidden)
        with torch.no_grad():
            output = first_tensor(run_awake(SeeOnly(self.owner, trace), tap, wide.again))
        assert output is not None
        batch = seen.layout.batch
        try:
            product = trace.attentions()[0]
            attention = standard_attention(product.payload, batch)
            built = build_block(trace, 0, start, trace.node(output), product, attention, batch)
        except Unmatched as reason:
            seen.refused = str(reason)
            return
        record = LayerRecord(
            index=seen.index,
            name=wide.name,
            layer_input=built.layout.standard(wide.hidden),
            attention=attention.probabilities,
            values=attention.values,
            output=built.layout.standard(output),
            mask=seen.mask,
            path="",
            level2=built.block,
        )
        seen.refused = _adds_up(record, built)
        seen.fed = seen.fed and built.block.feed_forward is not None

    def settle(self, run: Callable[[], Any], inputs: Iterable[Tensor]) -> None:
        """Probe what no earlier call has proved, put the verdicts into the records and, where they
        hold for longer inputs, keep them.

        `run` calls the model again with `inputs`.
        """
        if not self.unproved:
            if self.owner.fused is None:
                self._remember_fused()
            return
        conclusive, failed = False, ""
        try:
            for seen in self.evidence:
                if (
                    seen.projection is not None
                    and not seen.refused
                    and seen.replay.narrow
                    and seen.replay.callable
                ):
                    self._in_float32(seen)
            conclusive = probe(self.owner, self.evidence, run, inputs, self.tap.defer_from)
        except (
            RuntimeError,
            ValueError,
            IndexError,
            TypeError,
            AssertionError,
            KeyError,
            AttributeError,
            Unmatched,
        ) as error:
            failed = (
                "the model could not be run again to check that only the attention mixes "
                f"tokens ({type(error).__name__})"
            )
        starts = {group[0] for group in self._groups()}
        for place, (seen, record) in enumerate(zip(self.evidence, self.layers, strict=True)):
            seen.before = (
                "" if place in starts else seen.before
            )  # between two towers anything may happen
            record = replace(record, mixing=seen.mixing or failed, mixing_before=seen.before)
            if seen.refused:
                record = record.refuted(seen.refused)
            elif record.level2 is not None and not seen.fed:
                record = replace(record, level2=replace(record.level2, feed_forward=None))
            self.layers[place] = record
            if conclusive:
                self.owner.proofs[record.index, seen.signature] = Proof(
                    seen.fed, seen.refused, seen.mixing, seen.before
                )
        self._remember_fused()

    def _check_finite(self, record: LayerRecord) -> None:
        if bool(record.output.sum().isfinite()):
            return  # padding may hold anything, so only a sum that is not finite needs the second look
        if not bool(record.output[record.mask].isfinite().all()):
            raise InputError(
                f"{record.title} gave NaN or infinite numbers: the weights or inputs are not finite."
            )

    # ---- the end of the call ----------------------------------------------------------------------------------
    def towers(self) -> dict[str, list[int]]:
        """Which layers belong together: name -> their places in `layers`. An error says what went
        past the instrumentation.
        """
        self._check_complete()
        groups = self._groups()
        if len(groups) == 1:
            sizes = sorted({layer.attention.shape[-1] for layer in self.layers})
            if len(sizes) > 1:
                raise UnsupportedModelError(
                    f"{self.owner.family}: layers see different numbers of tokens ({sizes}): maps "
                    "of such models do not "
                    "compose. Instrument one tower or stage of it."
                )
            return {"": groups[0]}
        return dict(
            zip(_names([self.layers[group[0]].name for group in groups]), groups, strict=True)
        )

    def _groups(self) -> list[list[int]]:
        """A tower starts where another list of layers is entered with something else than the last layer's output."""
        stacks = [layer.name.rpartition(".")[0] for layer in self.layers]
        groups: list[list[int]] = []
        for i, stack in enumerate(stacks):
            starts = i == 0 or (
                stack != stacks[i - 1]
                and not self.evidence[i].chained
                and not _numbered(stack, stacks[i - 1])
            )
            if (
                starts and stack in stacks[:i]
            ):  # entered again: one model that goes round, not two towers
                return [list(range(len(self.layers)))]
            if starts:
                groups.append([])
            groups[-1].append(i)
        return groups

    def _check_complete(self) -> None:
        family = self.owner.family
        if self.frames:
            raise RecordError("The forward pass ended inside a layer; nothing was recorded.")
        if self.crowded:
            unreadable = self.crowded[0]
            several = (
                "it runs more than one attention product (self- and cross-attention, or two "
                "streams), so no single matrix mixes its tokens"
            )
            if not self.layers:
                raise UnsupportedModelError(
                    f"{family}: layer {unreadable} cannot be read: {several}."
                )
            good, bad = _names([self.layers[0].name, unreadable])
            raise UnsupportedModelError(
                f"{family} has several towers. {bad} cannot be read: in its layer {unreadable} "
                f"{several}. Instrument the other one: "
                f"cm.instrument(model.{_tower_path(self.layers[0].name, unreadable)}) for {good}."
            )
        if not self.layers:
            raise UnsupportedModelError(
                f"{family}: no layer left a record: no softmax attention over the sequence was seen inside a "
                "layer (attention-free or approximated attention, or a fused flash/flex kernel: load with "
                "attn_implementation='sdpa' or 'eager')."
            )
        stacks = {layer.name.rpartition(".")[0] for layer in self.layers}
        silent = next((name for name in self.silent if name.rpartition(".")[0] in stacks), None)
        if silent is not None:
            raise UnsupportedModelError(
                f"{family}: layer {silent} left no record: it has no softmax attention over the sequence (a hybrid "
                "of attention with recurrence or convolution), so maps through it would be missing a layer."
            )


@dataclass
class SeeOnly:
    """Wakes the hooks for the modules of a layer that runs on its own."""

    owner: Instrumentation
    trace: Trace

    def enter(
        self, module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None: ...

    def leave(self, name: str, output: Any) -> None: ...

    def module(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        if y is not x:
            self.trace.add("module", (self.trace.node(x),), self.trace.node(y), module)


def _adds_up(record: LayerRecord, built: Built) -> str:
    """Why its parts are no parts; empty where they are."""
    for stage in ("norm1", "norm2"):
        error = record.reconstruction_error(stage)  # type: ignore[arg-type]
        if not error <= tolerance(built.precision):
            return f"its parts do not add up (relative error {error:.1e})."
    return ""


def _obeys(probabilities: Tensor | BlockAttention, mask: Tensor) -> bool:
    """Does no real token attend to a masked one? A tower of images has nothing to do with the mask of a text."""
    if isinstance(probabilities, BlockAttention):
        return probabilities.obeys(mask)
    if bool(mask.all()):
        return True
    forbidden = mask[:, None, :, None] & ~mask[:, None, None, :]
    return not bool((probabilities * forbidden).amax() > 1e-6)


def _names(paths: list[str]) -> list[str]:
    """What tells towers apart: the first part of their paths in which they differ."""
    split = [path.split(".") for path in paths]
    common = next(
        (i for i, parts in enumerate(zip(*split, strict=False)) if len(set(parts)) > 1), 0
    )
    return [parts[common] for parts in split]


def _numbered(path: str, other: str) -> bool:
    """Two members of one list, not two towers."""
    return _names([path, other])[0].isdigit()


def _tower_path(path: str, other: str) -> str:
    """The path of the tower that holds `path` and not `other`."""
    parts = path.split(".")
    return ".".join(
        parts[
            : 1
            + next(
                i for i, (a, b) in enumerate(zip(parts, other.split("."), strict=False)) if a != b
            )
        ]
    )


def _in_chunks(layer: nn.Module) -> str:
    size = getattr(layer, "chunk_size_feed_forward", 0)
    return (
        f"its feed-forward runs in chunks of {size} tokens; load it with chunk_size_feed_forward=0 (the same numbers)."
        if size
        else ""
    )


def _is_causal(attention: Tensor) -> bool:
    """Does no token attend to a later one? The first row nearly always tells."""
    if bool(attention[:, :, 0, 1:].any()):
        return False
    return not bool(attention.triu(1).any())
