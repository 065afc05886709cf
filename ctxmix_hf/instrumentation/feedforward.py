"""Recognises the feed-forward of a layer, so that Value Zeroing can run it on altered states without the model.

`W2 act(W1 x + b1) + b2` or gated, read off the trace backwards from where it joins the residual stream, and accepted
only if it reproduces the captured output. Anything else (experts, convolutions) keeps the universal replay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ctxmix_hf.instrumentation.fused import widened
from ctxmix_hf.instrumentation.norm_modules import NormCall
from ctxmix_hf.instrumentation.roles import norm_of
from ctxmix_hf.instrumentation.trace import Event, Trace
from ctxmix_hf.records import FeedForward

Weights = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class FoundFeedForward:
    feed_forward: FeedForward
    input_norm: tuple[NormCall, int] | None
    output_norm: tuple[NormCall, int] | None
    output: int  # node of the feed-forward's own output, before an output norm


class Backtrack:
    """Walks the trace from a result to its causes."""

    def __init__(self, trace: Trace, position: int = 0) -> None:
        self.trace = trace
        self.producers: dict[int, Event] = {}
        self.modules: dict[
            int, Event
        ] = {}  # activations written as several operations are one module
        for event in trace.events[position:]:
            if event.kind == "module":
                self.modules[event.output] = event
            known = self.producers.get(event.output)
            if event.kind != "module" or known is None:
                self.producers[event.output] = event
            elif known.kind != "norm" and norm_of(trace, event) is not None:
                # a norm, not its last step (a scale, a cast back to half precision)
                self.producers[event.output] = event

    def origin(self, node: int) -> int:
        """The node before layout changes and dropouts."""
        event = self.producers.get(node)
        while event is not None and event.kind == "alias":
            node = event.inputs[0]
            event = self.producers.get(node)
        return node

    def event(self, node: int, *kinds: str) -> Event | None:
        event = self.producers.get(self.origin(node))
        return event if event is not None and event.kind in kinds else None

    def activation(self, node: int) -> Event | None:
        node = self.origin(node)
        return self.modules.get(node) or self.event(node, "activation")

    def linear(self, node: int, source: int) -> Weights | None:
        """The linear map from `source` to `node`; a slice of a fused map gets its own rows."""
        event = self.event(node, "linear")
        if event is None or self.origin(event.inputs[0]) != source:
            return None
        weight, bias = event.payload.dense()
        whole, part = self.trace.values[event.output], self.trace.values[node]
        size = part.shape[event.payload.hidden_axis]
        if size == weight.shape[0]:
            return _wide(weight, bias)
        if (
            event.payload.hidden_axis == -1
            and whole.dim() != part.dim()
            and whole.numel() // weight.shape[0] * size == part.numel()
        ):
            whole = whole.reshape(*part.shape[:-1], weight.shape[0])  # a map over flattened tokens
        for start in range(0, weight.shape[0], size):
            if torch.equal(whole[..., start : start + size], part):
                rows = slice(start, start + size)
                return _wide(weight[rows], None if bias is None else bias[rows])
        return None


def _wide(weight: Tensor, bias: Tensor | None) -> Weights:
    wide = widened(weight.dtype)
    return weight.detach().to(wide), None if bias is None else bias.detach().to(wide)


def find_feed_forward(
    trace: Trace, joins: int, block_output: int, start: int
) -> FoundFeedForward | None:
    """`joins` is the node that is added to the stream; `block_output` the node of a (post-LN) or u (pre-LN)."""
    back = Backtrack(trace, start)
    output_norm: tuple[NormCall, int] | None = None
    node = back.origin(joins)
    event = back.producers.get(node)
    norm = None if event is None else norm_of(trace, event)
    if event is not None and norm is not None:
        output_norm, node = (norm, event.inputs[0]), back.origin(event.inputs[0])
    output, scale = node, None
    scaled = back.event(node, "scale")
    if scaled is not None:
        scale, node = scaled.payload, back.origin(scaled.inputs[0])
    last = back.event(node, "linear")
    if last is None:
        return None
    source, input_norm = _source(trace, back, last, block_output)
    if source is None:
        return None
    core = _core(back, last, source)
    if core is None:
        return None
    activation, inner, gate = core
    if isinstance(scale, Tensor):
        scale = (
            scale.detach().to(widened(scale.dtype)).reshape(-1)
            if scale.numel() > 1
            else float(scale)
        )
    found = FeedForward(activation, inner, _wide(*last.payload.dense()), gate, scale)
    return FoundFeedForward(found, input_norm, output_norm, output)


def _source(
    trace: Trace, back: Backtrack, last: Event, block_output: int
) -> tuple[int | None, tuple[NormCall, int] | None]:
    """What the feed-forward reads: the block output itself, or a norm of it."""
    start = back.origin(block_output)
    for event in trace.events:
        norm = norm_of(trace, event) if event.kind in ("norm", "module") else None
        if (
            norm is not None
            and back.origin(event.inputs[0]) == start
            and _reads(back, last, event.output)
        ):
            return event.output, (norm, event.inputs[0])
    return (start, None) if _reads(back, last, start) else (None, None)


def _reads(back: Backtrack, last: Event, source: int) -> bool:
    return _core(back, last, source) is not None


def _core(
    back: Backtrack, last: Event, source: int
) -> tuple[Callable[[Tensor], Tensor], Weights, Weights | None] | None:
    """(activation, inner weights, gate weights) of what feeds the last linear map."""
    active = back.activation(last.inputs[0])
    if active is not None:
        inner = back.linear(active.inputs[0], source)
        return None if inner is None else (active.payload, inner, None)
    gated = back.event(last.inputs[0], "gate")
    if gated is None:
        return None
    for first, second in (gated.inputs, gated.inputs[::-1]):
        active = back.activation(first)
        gate = None if active is None else back.linear(active.inputs[0], source)
        inner = back.linear(second, source)
        if active is not None and gate is not None and inner is not None:
            return active.payload, inner, gate
    return None
