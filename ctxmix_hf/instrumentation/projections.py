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
from ctxmix_hf.instrumentation.layout import Attention, HiddenLayout
from ctxmix_hf.instrumentation.norms import NormCall
from ctxmix_hf.instrumentation.roles import norm_of
from ctxmix_hf.instrumentation.trace import Event, Trace
from ctxmix_hf.records import AttentionInputs


def find_attention_inputs(
    trace: Trace, start: int, layer_input: int, product: Event, attention: Attention, layout: HiddenLayout,
    proved_scaling: float | None = None,
) -> AttentionInputs | None:  # fmt: skip
    """The projections of one layer; `proved_scaling` from an earlier record of the same layer skips the proof."""
    back = Backtrack(trace, start)
    scores = next((e for e in trace.events[start:] if e.kind == "scores"), None)
    values = trace.known(product.payload.values)
    if scores is None or values is None or layout.order != "btd":
        return None
    for source, norm in _sources(trace, start, layer_input, back):
        found = [back.linear(_whole(trace, back, node), source) for node in (*scores.inputs, values)]
        if any(item is None for item in found):
            continue
        query, key, value = found
        state = None if norm is None else norm.state(layout.standard(trace.values[layer_input]))
        if proved_scaling is not None:
            return AttentionInputs(query, key, value, state, proved_scaling)  # type: ignore[arg-type]
        for scaling in (1 / math.sqrt(attention.values.shape[-1]), 1.0):
            inputs = AttentionInputs(query, key, value, state, scaling)  # type: ignore[arg-type]
            x = layout.standard(trace.values[layer_input])
            own = precision_of(trace.values[layer_input].dtype, norm)
            if _reproduces(inputs, x if state is None else state(x), attention, 100 * tolerance(own)):
                return inputs
    return None


def _sources(trace: Trace, start: int, layer_input: int, back: Backtrack) -> list[tuple[int, NormCall | None]]:
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


def _reproduces(inputs: AttentionInputs, x: Tensor, attention: Attention, limit: float) -> bool:
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
