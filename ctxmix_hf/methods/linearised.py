"""The rest of a layer, linear in the parts of each target: deviations of norms and activation ratios frozen.

`rest.Rest` runs what follows the attention on altered states; here the same block runs on PARTS of
one state. A norm keeps the deviation of the whole state, an activation becomes the factor `phi(h) /
h` of the whole pre-activation, and of a gated product each factor passes on half
(`instrumentation/linear.py` has the same rules). Then the parts of the layer's output add up to it,
biases aside: `share` says who gets those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import linear

from ctxmix_hf.errors import UnsupportedMethodError
from ctxmix_hf.methods.rest import HALF, Rest
from ctxmix_hf.records import FeedForward, LayerRecord, ModelRecord, NormState
from ctxmix_hf.workspace import computed_once

# (parts [t, S, D], bias [D] or [t, D], the t targets) -> parts with the bias shared out
Share = Callable[[Tensor, Tensor, slice], Tensor]


def no_share(parts: Tensor, bias: Tensor, targets: slice) -> Tensor:
    """Biases belong to no source."""
    return parts


def rounding(layer: LayerRecord) -> float:
    """How far numbers that are the same may be apart, relative to the largest."""
    if getattr(layer.replay, "narrow", False):
        return HALF
    return 1e-6 if layer.output.dtype == torch.float64 else 1e-4


def check_chain(record: ModelRecord, method: str) -> None:
    """What enters a layer, and what its residual carries, must be what left the layer below."""
    below = record[0].layer_input
    for layer in record:
        for what, state in (
            ("input", layer.layer_input),
            ("residual connection", layer.block.residual),
        ):
            same = state.shape == below.shape
            size = below[layer.mask].abs().max().clamp(min=1.0)
            if not same or bool((state - below)[layer.mask].abs().max() > rounding(layer) * size):
                raise UnsupportedMethodError(
                    f"{layer.title}: its {what} is not what left the layer below (something changes the tokens on the "
                    f"way), so {method} cannot follow it. Use norm_ff with rollout, or cm.ledger."
                )
        below = layer.output


@dataclass(frozen=True)
class LinearRest:
    """The rest of one layer for parts of example `b`; `ratios` are per token, `[B, T, F]`."""

    rest: Rest
    feed_forward: FeedForward
    ratio: Tensor  # (phi(h) - phi(0)) / h of what the activation reads
    at_zero: Tensor  # phi(0) [F]
    active: Tensor | None  # phi(gate) of a gated feed-forward
    inner: Tensor | None  # what it is multiplied with

    @classmethod
    def of(cls, layer: LayerRecord, method: str) -> LinearRest:
        """Raises where the layer has no decomposition, or its feed-forward was not proved."""
        return _linear_rest(layer, method)

    @classmethod
    def make(cls, layer: LayerRecord, method: str) -> LinearRest:
        block, rest = layer.block, Rest.of(layer)
        if rest is None or rest.feed_forward is None:
            why = (
                "runs beside the attention"
                if block.order == "parallel"
                else "is not an activation between two linear maps (experts, convolutions, adapters)"
            )
            raise UnsupportedMethodError(
                f"{layer.title}: its feed-forward {why}, so {method} cannot follow the parts through it. "
                "Use norm_enc or globenc, which leave the feed-forward out, or cm.ledger."
            )
        ff, u = rest.feed_forward, block.before_norm
        entered = u if rest.entry is None else rest.entry(u)
        inner = linear(entered, *ff.inner)
        driving = inner if ff.gate is None else linear(entered, *ff.gate)
        active = ff.activation(driving.clone())
        zero = ff.activation(driving.new_zeros(1, driving.shape[-1]))[0]
        some = driving != 0
        ratio = (active - zero) / torch.where(some, driving, 1.0) * some
        gated = ff.gate is not None
        return cls(rest, ff, ratio, zero, active if gated else None, inner if gated else None)

    def __call__(self, parts: Tensor, b: int, targets: slice, share: Share = no_share) -> Tensor:
        """Parts of `u` (before the first norm) `[t, S, D]` -> parts of the layer's output."""
        block, ff = self.rest.block, self.feed_forward

        def norm(state: NormState | None, vectors: Tensor) -> Tensor:
            if state is None:
                return vectors
            vectors = state.direction(vectors) / state.deviation[b, targets][:, None]
            return vectors if state.bias is None else share(vectors, state.bias, targets)

        def affine(vectors: Tensor, weights: tuple[Tensor, Tensor | None]) -> Tensor:
            made = linear(vectors, weights[0])
            return made if weights[1] is None else share(made, weights[1], targets)

        entered = norm(self.rest.entry, parts)
        ratio = self.ratio[b, targets][:, None]
        hidden = affine(entered, ff.inner if ff.gate is None else ff.gate) * ratio
        if bool((self.at_zero != 0).any()):
            hidden = share(hidden, self.at_zero, targets)
        if ff.gate is not None:
            assert self.active is not None and self.inner is not None
            active, inner = (t[b, targets][:, None] for t in (self.active, self.inner))
            hidden = (hidden * inner + affine(entered, ff.inner) * active) / 2
        fed = affine(hidden, ff.outer)
        fed = norm(block.ffn_output_norm, fed if ff.scale is None else fed * ff.scale)
        out = fed + (parts if block.norm1 is None else entered)
        for state in block.tail:
            out = norm(state, out)
        return out

    def on(self, b: int, real: Tensor) -> LinearRest:
        """The same for some tokens of one example, which becomes example 0."""
        pick = lambda t: None if t is None else t[b, real][None]

        def state(norm: NormState | None) -> NormState | None:
            return None if norm is None else replace(norm, input=norm.input[b, real][None])

        block = self.rest.block
        block = replace(
            block,
            norm1=state(block.norm1),
            ffn_output_norm=state(block.ffn_output_norm),
            tail=tuple(made for norm in block.tail if (made := state(norm)) is not None),
        )
        rest = replace(self.rest, block=block, entry=state(self.rest.entry))
        return replace(
            self,
            rest=rest,
            ratio=self.ratio[b, real][None],
            active=pick(self.active),
            inner=pick(self.inner),
        )

    def bytes_each(self, sources: int) -> int:
        """Of what one target needs while it passes."""
        width, wide = self.feed_forward.outer[0].shape
        return sources * (6 * width + 4 * wide) * self.ratio.element_size()


@computed_once
def _linear_rest(layer: LayerRecord, method: str) -> LinearRest:
    return LinearRest.make(layer, method)
