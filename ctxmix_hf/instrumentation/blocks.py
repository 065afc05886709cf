"""Turns the trace of one layer into a `Block`: roles first, then their tensors in the common layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctxmix_hf.instrumentation.feedforward import FoundFeedForward, find_feed_forward
from ctxmix_hf.instrumentation.layout import HiddenLayout, StandardAttention
from ctxmix_hf.instrumentation.norm_modules import NormCall
from ctxmix_hf.instrumentation.roles import (
    Branch,
    BranchFinder,
    LinearStep,
    Residual,
    Trunk,
    follow_trunk,
)
from ctxmix_hf.instrumentation.trace import Event, Trace
from ctxmix_hf.pieces import Block, NormState, Order

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
HALF_TOLERANCE = 5e-2  # what bfloat16 itself leaves of a sum; such records say "approximate"


def tolerance(dtype: torch.dtype) -> float:
    return TOLERANCE.get(dtype, HALF_TOLERANCE)


def precision_of(dtype: torch.dtype, *norms: NormCall | None) -> torch.dtype:
    """The precision sums can be expected to hold in: a norm that computes in float32 limits it."""
    rounds = any(norm is not None and norm.rounds for norm in norms)
    return torch.float32 if rounds and dtype == torch.float64 else dtype


@dataclass(frozen=True)
class Built:
    """A block, and where its roles stand in the trace, for the probe that tries to refute them."""

    block: Block
    layout: HiddenLayout
    precision: torch.dtype  # sums can be expected to hold in it
    branch: (
        int  # node of the projected attention (before a branch norm), or of its sum with the stream
    )
    beside: tuple[
        int, ...
    ]  # nodes that may not depend on the attention: the stream, and what ran in parallel


def build_block(
    trace: Trace,
    start: int,
    layer_input: int,
    output: int,
    product: Event,
    attention: StandardAttention,
    batch: int,
    *,
    prove: bool = True,
    whole: bool = True,
) -> Built:
    """The decomposition of one layer; raises `Unmatched` with the role that could not be found.

    `prove=False` skips running the feed-forward again where an earlier record of the same layer proved it;
    `whole=False` leaves it out, where it was not proved or nobody asks.
    """
    residual = BranchFinder(trace, start, layer_input, attention, batch).find(product)
    trunk = follow_trunk(trace, residual, output)
    layout, branch = residual.layout, residual.branch
    projection, bias = _effective(branch, attention)
    stream = layout.standard(trace.values[residual.stream])
    joined = layout.standard(trace.values[residual.joined])
    for node in branch.parallel:  # u without what ran beside the attention
        joined = joined - layout.standard(trace.values[node])
    norm1 = _state(trace, layout, trunk.norm1)
    found = _feed_forward(trace, residual, trunk, start) if whole else None
    if found is not None and prove and not _proved(trace, layout, found, trunk):
        found = None
    norms = [item[0] for item in (branch.norm, trunk.norm1, *trunk.tail) if item is not None]
    block = Block(
        projection=projection,
        projection_bias=bias,
        branch_norm=_state(trace, layout, branch.norm),
        residual=stream,
        before_norm=joined,
        norm1=norm1,
        output=joined if norm1 is None else layout.standard(trace.values[trunk.block_output]),
        tail=tuple(
            state for item in trunk.tail if (state := _state(trace, layout, item)) is not None
        ),
        tail_complete=trunk.complete,
        order=_order(branch, trunk),
        ffn_input_norm=None if found is None else _state(trace, layout, found.input_norm),
        ffn_output_norm=None if found is None else _state(trace, layout, found.output_norm),
        feed_forward=None if found is None else found.feed_forward,
        rounds=any(norm.rounds for norm in norms),
    )
    precision = precision_of(trace.values[residual.joined].dtype, *norms)
    probed = residual.joined if branch.norm is None else branch.norm[1]
    return Built(block, layout, precision, probed, (residual.stream, *branch.parallel))


def _order(branch: Branch, trunk: Trunk) -> Order:
    if branch.parallel:
        return "parallel"
    if branch.norm is not None:
        return "sandwich"
    return "post" if trunk.norm1 is not None else "pre"


def _effective(branch: Branch, attention: StandardAttention) -> tuple[Tensor, Tensor | None]:
    """`(projection [H, E, D], bias [D])` of everything between the product and the sum, evaluated, never read off:
    adapters, layer scales and constants are in it."""
    heads, size = attention.values.shape[1], attention.values.shape[3]
    like = attention.values
    with torch.no_grad():
        if len(branch.steps) == 1 and isinstance(
            branch.steps[0], LinearStep
        ):  # the plain case, for speed
            only = branch.steps[0]
            bias = None if only.bias is None else only.bias.detach().to(like)
            return only.weight.detach().to(like).mT.unflatten(0, (heads, size)), bias
        bias = branch(like.new_zeros(1, heads * size))[0]
        matrix = branch(torch.eye(heads * size).to(like)) - bias
    return matrix.unflatten(0, (heads, size)), bias


def _state(
    trace: Trace, layout: HiddenLayout, item: tuple[NormCall, int] | None
) -> NormState | None:
    return None if item is None else item[0].state(layout.standard(trace.values[item[1]]))


def _feed_forward(
    trace: Trace, residual: Residual, trunk: Trunk, start: int
) -> FoundFeedForward | None:
    if trunk.first_sum is None or residual.branch.parallel:
        return None
    on_trunk = _on_trunk(trace, trunk)
    joins = next((node for node in trunk.first_sum.inputs if node not in on_trunk), None)
    return None if joins is None else find_feed_forward(trace, joins, trunk.block_output, start)


def _on_trunk(trace: Trace, trunk: Trunk) -> set[int]:
    nodes = {trunk.block_output}
    for event in trace.events:
        if event.kind == "alias" and event.inputs[0] in nodes:
            nodes.add(event.output)
    return nodes


def _proved(trace: Trace, layout: HiddenLayout, found: FoundFeedForward, trunk: Trunk) -> bool:
    """Does the recognised feed-forward reproduce what the model computed?"""
    entry = found.input_norm
    x = layout.standard(trace.values[trunk.block_output])
    with torch.no_grad():
        if entry is not None:
            x = entry[0].state(x)(x)
        mine, theirs = found.feed_forward(x), layout.standard(trace.values[found.output])
        gap = (mine - theirs).abs().max() / theirs.abs().max().clamp(min=1.0)
    own = trace.values[found.output].dtype
    return bool(gap <= 10 * tolerance(precision_of(own, None if entry is None else entry[0])))
