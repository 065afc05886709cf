"""Recognises queries, keys and values as affine functions of the tokens, which HTA's closed form needs.

Accepted only if `softmax(q k^T * scaling)` reproduces the recorded probabilities: rotary, relative and disentangled
positions fail that test and keep the universal route.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ctxmix_hf.instrumentation.blocks import precision_of, tolerance
from ctxmix_hf.instrumentation.feedforward import Backtrack
from ctxmix_hf.instrumentation.layout import HiddenLayout, StandardAttention
from ctxmix_hf.instrumentation.norm_modules import NormCall
from ctxmix_hf.instrumentation.roles import norm_of
from ctxmix_hf.instrumentation.trace import Event, Trace
from ctxmix_hf.records import AttentionInputs, ValueMap


def find_attention_inputs(
    trace: Trace,
    start: int,
    layer_input: int,
    product: Event,
    attention: StandardAttention,
    layout: HiddenLayout,
    proved_scaling: float | None = None,
) -> tuple[AttentionInputs | None, bool]:
    """The projections of one layer, and whether this input settles the question for later ones.

    `proved_scaling` from an earlier record of the same layer skips the proof. An input on which
    several scalings give the same probabilities (one token, equal scores) settles nothing.
    """
    back = Backtrack(trace, start)
    scores = next((e for e in trace.events[start:] if e.kind == "scores"), None)
    values = trace.known(product.payload.values)
    if scores is None or values is None or layout.order != "btd":
        return None, True
    for source, norm in _sources(trace, start, layer_input, back):
        found = [
            back.linear(_whole(trace, back, node), source) for node in (*scores.inputs, values)
        ]
        if any(item is None for item in found):
            continue
        query, key, value = found
        x = layout.standard(trace.values[layer_input])
        state = None if norm is None else norm.state(x)
        if proved_scaling is not None:
            return AttentionInputs(query, key, value, state, proved_scaling), True  # type: ignore[arg-type]
        own = precision_of(trace.values[layer_input].dtype, norm)
        candidates = [
            AttentionInputs(query, key, value, state, scaling)  # type: ignore[arg-type]
            for scaling in (1 / math.sqrt(attention.values.shape[-1]), 1.0)
        ]
        entered = x if state is None else state(x)
        right = [
            inputs
            for inputs in candidates
            if _reproduces(inputs, entered, attention, 100 * tolerance(own))
        ]
        if len(right) > 1:
            return None, False
        if right:
            return right[0], True
    return None, True


def find_value_bias(
    trace: Trace, start: int, product: Event, attention: StandardAttention
) -> Tensor | None:
    """`[H, 1, E]`: what every value vector holds whatever its token, zeros where the projection has
    no bias; None: not found.
    """
    found = _value_rows(Backtrack(trace, start), trace, product, attention)
    return None if found is None else found[2]


def find_value_map(
    trace: Trace,
    start: int,
    layer_input: int,
    product: Event,
    attention: StandardAttention,
    layout: HiddenLayout,
) -> ValueMap | None:
    """Values as an affine function of the layer's input or of a norm of it; None: not found.
    Whoever uses it proves it.
    """
    back = Backtrack(trace, start)
    found = _value_rows(back, trace, product, attention)
    if found is None or layout.order != "btd":
        return None
    event, weight, bias = found
    read = back.origin(event.inputs[0])
    if read == back.origin(layer_input):
        return ValueMap(weight, bias, None)
    for source, norm in _sources(trace, start, layer_input, back):
        if norm is not None and back.origin(source) == read:
            return ValueMap(weight, bias, norm.state(layout.standard(trace.values[layer_input])))
    return None


def _value_rows(
    back: Backtrack, trace: Trace, product: Event, attention: StandardAttention
) -> tuple[Event, Tensor, Tensor] | None:
    """The linear map the values come from, and its rows that make them: weight `[H, E, D]`, bias `[H, 1, E]`.

    The values are looked for among the outputs of the linear map they come from: alone, or as one of the parts of a map
    that also makes queries and keys, part by part or head by head; grouped queries share value heads.
    """
    node = trace.known(product.payload.values)
    event = None if node is None else back.event(node, "linear")
    if event is None or event.payload.hidden_axis != -1:
        return None
    weight, bias = event.payload.dense()
    batch, heads, tokens, size = attention.values.shape
    output = trace.values[event.output]
    if output.numel() != batch * tokens * weight.shape[0]:
        return None
    shift = weight.new_zeros(weight.shape[0]) if bias is None else bias.detach()
    wanted = attention.values.transpose(1, 2)  # [B, T, H, E]
    for groups in (
        g for g in range(heads, 0, -1) if heads % g == 0 and weight.shape[0] % (g * size) == 0
    ):  # value heads
        shapes = {
            (weight.shape[0] // (groups * size), groups, size): 0,
            (groups, weight.shape[0] // (groups * size), size): 1,
        }
        for shape, axis in shapes.items():
            for part in range(shape[axis]):
                made = output.reshape(batch, tokens, *shape).select(2 + axis, part).to(wanted.dtype)
                if torch.equal(made.repeat_interleave(heads // groups, dim=2), wanted):
                    chosen = (
                        t.reshape(*shape, -1).select(axis, part).to(wanted.dtype)
                        for t in (weight.detach(), shift)
                    )
                    rows, found = (t.repeat_interleave(heads // groups, dim=0) for t in chosen)
                    return event, rows, found.mT
    return None


def _sources(
    trace: Trace, start: int, layer_input: int, back: Backtrack
) -> list[tuple[int, NormCall | None]]:
    """The layer's input itself, then norms of it."""
    found: list[tuple[int, NormCall | None]] = [(layer_input, None)]
    for event in trace.events[start:]:
        norm = norm_of(trace, event) if event.kind in ("norm", "module") else None
        if norm is not None and back.origin(event.inputs[0]) == layer_input:
            found.append((event.output, norm))
    return found


def _whole(trace: Trace, back: Backtrack, node: int) -> int:
    """The node with heads still side by side: the linear map's own output, or its slice of a fused map."""
    event = back.producers.get(node)
    while event is not None and event.kind in ("alias", "scale") and trace.values[node].dim() == 4:
        node = event.inputs[0]
        event = back.producers.get(node)
    return node


def _reproduces(
    inputs: AttentionInputs, x: Tensor, attention: StandardAttention, limit: float
) -> bool:
    heads = attention.values.shape[1]

    def split(weights: tuple[Tensor, Tensor | None]) -> Tensor:
        return torch.nn.functional.linear(x, *weights).unflatten(-1, (heads, -1)).transpose(1, 2)

    try:
        q, k, v = split(inputs.query), split(inputs.key), split(inputs.value)
        scores = (q @ k.mT * inputs.scaling).masked_fill(attention.probabilities == 0, -torch.inf)
        rebuilt = scores.softmax(dim=-1).nan_to_num(0.0)
        return bool(
            (rebuilt - attention.probabilities).abs().max() <= limit
            and (v - attention.values).abs().max() <= limit * v.abs().max().clamp(min=1.0)
        )
    except RuntimeError:  # grouped queries: fewer key heads than query heads
        return False
