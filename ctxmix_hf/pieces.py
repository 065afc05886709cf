"""The pieces a layer record is made of: norms, feed-forward, the attention block, and what a decomposition is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor


def _nothing_like(vectors: Tensor) -> Tensor:
    """Zeros of this shape that take no memory."""
    return vectors.new_zeros(()).expand(vectors.shape)


Order = Literal["post", "pre", "sandwich", "parallel"]


@dataclass(frozen=True)
class NormState:
    """A norm as it ran: `weight * (v - mean(v)) / deviation + bias` (no mean for RMS, neither for affine)."""

    kind: Literal["layer", "rms", "affine"]
    weight: Tensor | None  # [D]
    bias: Tensor | None  # [D]
    eps: float
    input: Tensor  # [B, T, D]

    @cached_property
    def deviation(self) -> Tensor:
        """`[B, T, 1]`: sqrt(var + eps), the population variance of the true input, shared by all its parts."""
        if self.kind == "affine":
            return torch.ones_like(self.input[..., :1])
        if self.kind == "layer":
            centred = self.input - self.input.mean(
                dim=-1, keepdim=True
            )  # var() takes ten times as long
            variance = centred.norm(dim=-1, keepdim=True).square() / centred.shape[-1]
            return (variance + self.eps).sqrt()
        return (self.input.square().mean(dim=-1, keepdim=True) + self.eps).sqrt()

    def rows(self, targets: slice) -> NormState:
        """The same norm of some targets."""
        made = replace(self, input=self.input[:, targets])
        if "deviation" in self.__dict__:
            made.__dict__["deviation"] = self.deviation[:, targets]
        return made

    def slim(self) -> NormState:
        """Its statistics without the vectors they were taken from."""
        made = replace(self, input=_nothing_like(self.input))
        made.__dict__["deviation"] = self.deviation
        return made

    def centre(self, vectors: Tensor) -> Tensor:
        return vectors - vectors.mean(dim=-1, keepdim=True) if self.kind == "layer" else vectors

    def direction(self, vectors: Tensor) -> Tensor:
        """The norm's linear part without the per-target division: `weight * centre(v)`, any `[..., D]`."""
        centred = self.centre(vectors)
        if self.weight is None:
            return centred
        in_place = centred is not vectors and not centred.requires_grad
        return centred.mul_(self.weight) if in_place else centred * self.weight

    def __call__(self, vectors: Tensor) -> Tensor:
        """The norm itself on other vectors `[..., D]`, with their own statistics."""
        shape = vectors.shape[-1:]
        if self.kind == "layer":
            return torch.nn.functional.layer_norm(vectors, shape, self.weight, self.bias, self.eps)
        if self.kind == "rms":
            scaled = torch.nn.functional.rms_norm(vectors, shape, self.weight, self.eps)
        else:
            scaled = self.direction(vectors)
        return scaled if self.bias is None else scaled + self.bias


@dataclass(frozen=True)
class FeedForward:
    """`W2 act(W1 x + b1) + b2`, or gated: `W2 (act(Wg x + bg) * (W1 x + b1)) + b2`; then times `scale`."""

    activation: Callable[[Tensor], Tensor]
    inner: tuple[Tensor, Tensor | None]  # W1 [D_ff, D], b1
    outer: tuple[Tensor, Tensor | None]  # W2 [D, D_ff], b2
    gate: tuple[Tensor, Tensor | None] | None = None
    scale: Tensor | float | None = None  # layer scale

    def from_hidden(self, inner: Tensor, gate: Tensor | None) -> Tensor:
        """From pre-activations `[N, D_ff]` to the output `[N, D]`."""
        hidden = self.activation(inner) if gate is None else self.activation(gate).mul_(inner)
        weight, bias = self.outer
        out = torch.nn.functional.linear(hidden, weight, bias)
        return out if self.scale is None else out * self.scale

    def __call__(self, x: Tensor) -> Tensor:
        inner = torch.nn.functional.linear(x, *self.inner)
        return self.from_hidden(
            inner, None if self.gate is None else torch.nn.functional.linear(x, *self.gate)
        )


@dataclass(frozen=True)
class Block:
    """The attention block and what follows it, as parts that add up (level 2).

    `u = residual + branch_norm?(context @ projection + projection_bias)`, `a = norm1?(u)`, `w = a + ffn_output`,
    `out = tail[-1]?(... w)`. Post-LN layers have `norm1` and one tail norm; pre-LN layers have neither.
    """

    projection: Tensor  # [H, E, D]
    projection_bias: Tensor | None  # [D]
    branch_norm: NormState | None
    residual: Tensor  # [B, T, D]
    before_norm: Tensor  # u [B, T, D]
    norm1: NormState | None
    output: Tensor  # a [B, T, D]
    tail: tuple[NormState, ...]
    tail_complete: bool  # False where the layer goes on with something that is not a sum or a norm (bottlenecks)
    order: Order
    ffn_input_norm: NormState | None = None  # pre-LN's norm before the feed-forward
    ffn_output_norm: NormState | None = None  # sandwich's norm after it
    feed_forward: FeedForward | None = None  # None where its shape was not recognised
    rounds: bool = False  # a norm inside computes in float32 whatever the model's precision is

    def rows(self, targets: slice) -> Block:
        """The same block of some targets."""
        cut = lambda norm: None if norm is None else norm.rows(targets)
        return replace(
            self,
            residual=self.residual[:, targets],
            before_norm=self.before_norm[:, targets],
            output=self.output[:, targets],
            branch_norm=cut(self.branch_norm),
            norm1=cut(self.norm1),
            tail=tuple(norm.rows(targets) for norm in self.tail),
            ffn_input_norm=None,
            ffn_output_norm=None,
            feed_forward=None,
        )

    def slim(self) -> Block:
        """What the lengths of parts need: the residual and the norms' statistics; the sums are left out."""
        cut = lambda norm: None if norm is None else norm.slim()
        return replace(
            self,
            before_norm=_nothing_like(self.before_norm),
            output=_nothing_like(self.output),
            branch_norm=cut(self.branch_norm),
            norm1=cut(self.norm1),
            tail=tuple(norm.slim() for norm in self.tail),
            ffn_input_norm=None,
            ffn_output_norm=None,
            feed_forward=None,
        )


@dataclass(frozen=True)
class AttentionInputs:
    """Queries and keys as affine functions of the tokens, proved to give the recorded probabilities."""

    query: tuple[Tensor, Tensor | None]  # Wq [H*E, D], bq
    key: tuple[Tensor, Tensor | None]
    value: tuple[Tensor, Tensor | None]
    input_norm: NormState | None  # pre-LN's norm between the tokens and the projections
    scaling: float


@dataclass(frozen=True)
class ValueMap:
    """Values as an affine function of their own token: `V[h, j] = weight[h] norm?(x_j) + bias[h]`."""

    weight: Tensor  # Wv [H, E, D]
    bias: Tensor  # [H, 1, E], zeros without one
    input_norm: NormState | None  # pre-LN's norm between the tokens and the projection


class Replay(Protocol):
    """The rest of a layer, run again by the model itself from altered parts."""

    def rerun(self, zeroed: int | None = None, head: int | None = None) -> Tensor:
        """Layer output `[B, T, D]` when the value row `zeroed` is 0 (in one head, or all); as recorded for None."""
        ...

    def zeroed(self, sources: Sequence[int], head: int | None = None) -> Tensor:
        """`rerun` for several sources at once: `[len(sources), B, T, D]`."""
        ...

    def from_hidden(self, hidden: Tensor) -> Tensor:
        """Layer output for another layer input `[K, T, D]`, K a multiple of B (rows repeat the batch)."""
        ...


@dataclass(frozen=True)
class Parts:
    """A decomposition: `total_i = sum_j part_ij + constant_i`, `part_ij = scale_i sum_h A_hij heads_hj + (i=j) own_i`.

    `heads` are the head vectors F taken through the linear part of each norm in `norms`; ask for few sources at a time.
    """

    make_heads: Callable[[], Tensor]  # F [B, H, T, D]
    diagonal: Tensor  # part_ii, attention and own together [B, T, D]
    total: Tensor  # [B, T, D], as captured
    make_constant: Callable[[], Tensor]
    make_own: Callable[[], Tensor | None] = lambda: None
    scale: Tensor | None = None  # [B, T, 1]
    norms: tuple[NormState, ...] = ()

    @cached_property
    def constant(self) -> Tensor:
        """`[B, T, D]`: what no source owns (biases, the feed-forward)."""
        return self.make_constant()

    @cached_property
    def own(self) -> Tensor | None:
        """`[B, T, D]`: the residual's share of a token in itself."""
        return self.make_own()

    @property
    def heads(self) -> Tensor:
        """`[B, H, T, D]`."""
        return self.heads_of(slice(None)).transpose(1, 2)

    def heads_of(self, sources: slice, example: int | slice = slice(None)) -> Tensor:
        """`heads` of some source tokens, `[B, sources, H, D]`."""
        vectors = self.make_heads()[example, :, sources].transpose(-3, -2)
        for norm in self.norms:
            vectors = norm.direction(vectors)
        return vectors
