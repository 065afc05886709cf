"""The rest of a layer in closed form: from an altered state before the first norm to the layer's output.

`rest(u) = LN2(FFN(LN1(u)) + LN1(u))` for post-LN, `u + FFN(LN(u))` for pre-LN, and so on as the
block says. Used by Value Zeroing (many altered states per token) and HTA (its Jacobian); families
it does not describe replay the layer itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from ctxmix_hf.records import Block, FeedForward, LayerRecord, NormState
from ctxmix_hf.workspace import computed_once

HALF = 5e-2  # of the largest number: what a layer in half precision leaves of its own sums


@dataclass(frozen=True)
class Rest:
    """The rest of one layer; `u` are states before the first norm, any `[..., D]`."""

    block: Block
    feed_forward: (
        FeedForward | None
    )  # None for parallel layers, whose feed-forward does not see the attention
    entry: NormState | None  # the norm between u and the feed-forward's input

    @classmethod
    def of(cls, layer: LayerRecord) -> Rest | None:
        """None where the block does not describe the rest of the layer, which is checked on the recorded states."""
        return _proved_rest(layer)

    def __call__(self, u: Tensor) -> Tensor:
        assert self.feed_forward is not None
        entered = u if self.entry is None else self.entry(u)
        return self.after(u, entered, self.feed_forward(entered))

    def after(self, u: Tensor, entered: Tensor, fed: Tensor) -> Tensor:
        """From the feed-forward's output to the layer's. `fed` is used up."""
        if self.block.ffn_output_norm is not None:
            fed = self.block.ffn_output_norm(fed)
        out = fed.add_(entered if self.block.norm1 is not None else u)
        for norm in self.block.tail:
            out = norm(out)
        return out


@computed_once
def _proved_rest(layer: LayerRecord) -> Rest | None:
    block = layer.level2
    if block is None or not block.tail_complete:
        return None
    if block.order == "parallel":
        return Rest(block, None, None) if not block.tail and block.branch_norm is None else None
    if block.feed_forward is None:
        return None
    rest = Rest(block, block.feed_forward, block.norm1 or block.ffn_input_norm)
    gap = (rest(block.before_norm) - layer.output)[layer.mask].abs().max()
    # norms may round to float32 inside the model
    limit = {torch.float64: 1e-6}.get(layer.output.dtype, 1e-4)
    if getattr(layer.replay, "narrow", False):
        limit = HALF  # proved on a float32 copy of the layer; here only its rounding is left
    largest = layer.output[layer.mask].abs().max().clamp(min=1.0)
    return rest if bool(gap <= limit * largest) else None


@dataclass(frozen=True)
class ZeroedValues:
    """Layer outputs with one source's values at zero, for many (target, source) pairs at once
    (Mohebbi et al. 2023, eq. 10).

    `out_i^(-j) = rest(u_i - z[i,j])`: no attention is recomputed, and the feed-forward's first product is linear in
    `z[i,j]`, so it is taken once per head vector instead of once per pair.
    """

    rest: Rest
    heads: Tensor  # F [B, H, T, D]
    weights: Tensor  # A [B, H, T, T]; without numbers where nobody kept it
    output: Tensor  # [B, T, D], with nothing zeroed, by the same arithmetic
    inner: (
        tuple[Tensor, Tensor, Tensor] | None
    )  # (of u [B, T, F], of heads [B, T, H, F], constant [F])
    gate: tuple[Tensor, Tensor, Tensor] | None

    @classmethod
    def of(cls, layer: LayerRecord, targets: int | None = None) -> ZeroedValues | None:
        """None where the rest of the layer has no closed form. For fewer targets than heads the first product is
        cheaper once per pair.
        """
        return _zeroed_values(layer, targets is None or targets > layer.attention.shape[1])

    @classmethod
    def make(cls, layer: LayerRecord, rest: Rest, many: bool) -> ZeroedValues:
        heads = layer.head_vectors
        linearly = many and rest.feed_forward is not None and rest.block.branch_norm is None
        ff = rest.feed_forward
        inner = _first_product(rest, heads, ff.inner) if linearly and ff is not None else None
        gate = (
            _first_product(rest, heads, ff.gate)
            if linearly and ff is not None and ff.gate is not None
            else None
        )
        output = layer.output if rest.feed_forward is None else rest(rest.block.before_norm)
        return cls(rest, heads, layer.attention, output, inner, gate)

    def outputs(
        self,
        b: int,
        sources: slice,
        targets: slice | Tensor,
        head: int | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """`out_i^(-j)`, `[sources, targets, D]`, of example b; `head` zeroes the values in one head only. `rows` are
        the targets' attention `[B, H, targets, T]`, where the caller made it.
        """
        chosen = slice(None) if head is None else slice(head, head + 1)
        rows = self.weights[b, :, targets] if rows is None else rows[b]
        weights = rows[chosen][:, :, sources].permute(2, 1, 0).contiguous()  # [S, T', H]
        part = weights @ self.heads[b, chosen, sources].transpose(0, 1)  # z[i,j] [S, T', D]
        block = self.rest.block
        if self.rest.feed_forward is None:
            return self.output[b, targets] - part
        if block.branch_norm is not None:
            branch = part.neg_().add_(block.branch_norm.input[b, targets])
            return self.rest(block.branch_norm(branch).add_(block.residual[b, targets]))
        u = part.neg_().add_(block.before_norm[b, targets])
        if self.inner is None:
            return self.rest(u)
        entered, inverse = _enter(self.rest.entry, u)
        hidden = _inner(self.inner, b, sources, targets, chosen, weights, inverse)
        gate = (
            None
            if self.gate is None
            else _inner(self.gate, b, sources, targets, chosen, weights, inverse)
        )
        return self.rest.after(u, entered, self.rest.feed_forward.from_hidden(hidden, gate))


@computed_once
def _zeroed_values(layer: LayerRecord, many: bool) -> ZeroedValues | None:
    rest = Rest.of(layer)
    return None if rest is None else ZeroedValues.make(layer, rest, many)


def _first_product(
    rest: Rest, heads: Tensor, weights: tuple[Tensor, Tensor | None]
) -> tuple[Tensor, Tensor, Tensor]:
    """W1 applied to the norm's linear part of u and of the head vectors, and the constant W1 beta + b1."""
    matrix, bias = weights
    entry, u = rest.entry, rest.block.before_norm
    direct = (lambda v: v) if entry is None else entry.direction
    shift = torch.zeros_like(matrix[:, 0]) if bias is None else bias
    if entry is not None and entry.bias is not None:
        shift = shift + matrix @ entry.bias
    of_heads = linear(direct(heads).transpose(1, 2).reshape(-1, heads.shape[-1]), matrix)
    shape = (len(heads), heads.shape[2], heads.shape[1])  # [B, T, H]
    return linear(direct(u), matrix), of_heads.unflatten(0, shape), shift


def _enter(entry: NormState | None, u: Tensor) -> tuple[Tensor, Tensor | None]:
    """The norm of the altered states, and one over their deviation."""
    if entry is None or entry.kind == "affine":
        return (u if entry is None else entry(u)), None
    centred = entry.centre(u)
    inverse = centred.square().mean(dim=-1, keepdim=True).add_(entry.eps).rsqrt_()
    entered = centred.mul_(inverse) if entry.kind == "layer" else centred * inverse
    entered = entered if entry.weight is None else entered.mul_(entry.weight)
    return (entered if entry.bias is None else entered.add_(entry.bias)), inverse


def _inner(
    product: tuple[Tensor, Tensor, Tensor],
    b: int,
    sources: slice,
    targets: slice | Tensor,
    heads: slice,
    weights: Tensor,
    inverse: Tensor | None,
) -> Tensor:
    of_u, of_heads, shift = product
    base = of_u[b, targets].expand(weights.shape[0], -1, -1)
    hidden = torch.baddbmm(base, weights, of_heads[b, sources][:, heads], alpha=-1)
    if inverse is None:
        return hidden.add_(shift)
    return torch.addcmul(shift, hidden, inverse, out=hidden)
