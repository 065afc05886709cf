"""One layout for all families: attention `[B, H, T, T]`, values `[B, H, T, E]`, hidden states `[B, T, D]`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ctxmix_hf.algebra.rows import BlockAttention
from ctxmix_hf.instrumentation.fused import widened
from ctxmix_hf.instrumentation.trace import AttentionProduct


class Unmatched(Exception):
    """A role in the layer could not be found; the text ends up in the user's error message."""


@dataclass(frozen=True)
class StandardAttention:
    """The attention product in the common layout, in the precision statistics are taken in."""

    probabilities: Tensor  # [B, H, T, T]
    values: Tensor  # [B, H, T, E]
    context: Tensor  # [B, T, H*E], as the model computed it (own dtype)
    path: str
    deferred: BlockAttention | None = None

    @property
    def tokens(self) -> int:
        return self.probabilities.shape[-1]


def standard_attention(product: AttentionProduct, batch: int) -> StandardAttention:
    """Bring a product found in any layout to the common one, or say why it is not T x T over the sequence."""
    if product.equation is not None:
        a, v, context = _by_letters(product, batch)
    else:
        a, v, context = (
            _four_axes(t, batch) for t in (product.probabilities, product.values, product.context)
        )
    if a.shape[1] != v.shape[1]:
        v = v.expand(-1, a.shape[1], -1, -1)  # multi-query: one value head for all
    if a.shape[0] != batch or a.shape[2] != a.shape[3]:
        raise Unmatched(
            f"its attention is {tuple(product.probabilities.shape)}, not tokens x tokens over the whole sequence "
            "(windowed, pooled, cross- or approximated attention)."
        )
    wide = widened(a.dtype)
    merged = context.transpose(1, 2).flatten(2)
    return StandardAttention(a.to(wide), v.to(wide), merged, product.path, product.deferred)


def merged_context(product: AttentionProduct, batch: int) -> Tensor:
    """Heads side by side, `[B, T, H*E]`."""
    context = (
        _four_axes(product.context, batch)
        if product.equation is None
        else _by_letters(product, batch)[2]
    )
    return context.transpose(1, 2).flatten(2)


def _four_axes(t: Tensor, batch: int) -> Tensor:
    if t.dim() == 4:
        return t
    if t.dim() == 3 and t.shape[0] % batch == 0:
        return t.unflatten(0, (batch, -1))
    raise Unmatched(
        f"its attention product has shape {tuple(t.shape)}, not batch x heads x tokens x tokens."
    )


def _by_letters(product: AttentionProduct, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    assert product.equation is not None
    inputs, out = product.equation.split("->")
    a, v = inputs.split(",")
    source = next((c for c in a if c in v and c not in out), "")
    target = next((c for c in a if c not in v), "")
    size = next((c for c in v if c not in a), "")
    common = [c for c in a if c in v and c in out]
    if len(a) != 4 or len(common) != 2 or not (source and target and size):
        raise Unmatched(
            f"its attention is the contraction {product.equation!r}, which is not probabilities x values."
        )
    sizes = dict(zip(a, product.probabilities.shape, strict=True))
    b, h = common if sizes[common[0]] == batch else reversed(common)
    order = [(a, b + h + target + source), (v, b + h + source + size), (out, b + h + target + size)]
    tensors = (product.probabilities, product.values, product.context)
    moved = [
        t.permute([have.index(c) for c in want])
        for t, (have, want) in zip(tensors, order, strict=True)
    ]
    return moved[0], moved[1], moved[2]


ORDERS = ("btd", "tbd", "bdt")


def turned(value: Tensor, order: str) -> Tensor:
    """A tensor of this order as `[B, T, D]`; its own inverse."""
    return {"btd": value, "tbd": value.transpose(0, 1), "bdt": value.transpose(1, 2)}[order]


@dataclass(frozen=True)
class HiddenLayout:
    """How this family lays out hidden states, found by comparing the projection's input with the context."""

    batch: int
    tokens: int
    order: str = "btd"  # or "tbd" (xlnet) or "bdt" (convolutions)

    def standard(self, value: Tensor) -> Tensor:
        """Any hidden-state tensor of the layer as `[B, T, D]`; without its graph unless one is being kept."""
        value = value if torch.is_grad_enabled() else value.detach()
        return self.moved(value).to(widened(value.dtype))

    def unmoved(self, value: Tensor, like: Tensor) -> Tensor:
        """A `[B, T, D]` tensor in the layout of `like`: the inverse of `moved`."""
        if like.dim() == 2:
            return (value.transpose(0, 1) if self.order == "tbd" else value).reshape(like.shape)
        order = self.order_of(like)
        return value if order is None else turned(value, order)

    def after(self, before: Tensor, view: Tensor) -> HiddenLayout:
        """The layout of a view: "tbd" inside wavlm's attention, "btd" behind it, also where as many
        tokens as examples hide it.
        """
        if self.order == "bdt" or before.dim() != 3 or view.shape != before.transpose(0, 1).shape:
            return self
        if view.shape == before.shape and (
            torch.equal(view, before) or not torch.equal(view, before.transpose(0, 1))
        ):
            return self
        return replace(self, order="tbd" if self.order == "btd" else "btd")

    def order_of(self, value: Tensor) -> str | None:
        """Its own order where the shape shows it, else that of the stream."""
        shape = (self.batch, self.tokens)
        return next(
            (order for order in (self.order, *ORDERS) if turned(value, order).shape[:2] == shape),
            None,
        )

    def moved(self, value: Tensor) -> Tensor:
        """Any hidden-state tensor of the layer as `[B, T, D]`, in its own precision."""
        b, t = self.batch, self.tokens
        if value.dim() == 2 and value.shape[0] == b * t:
            return value.unflatten(0, (b, t) if self.order != "tbd" else (t, b)).transpose(
                0, int(self.order == "tbd")
            )
        if value.dim() != 3:
            raise Unmatched(
                f"a hidden state has shape {tuple(value.shape)}; expected batch x tokens x hidden."
            )
        order = self.order_of(value)
        if order is not None:
            return turned(value, order)
        if value.shape[:2] == (1, t):  # position tables broadcast over the batch
            return value.expand(b, -1, -1)
        raise Unmatched(
            f"a hidden state has shape {tuple(value.shape)}; expected {b} x {t} x hidden."
        )


def find_layout(attention: StandardAttention, projection_input: Tensor, batch: int) -> HiddenLayout:
    """Which order makes the output projection's input equal to the heads side by side?"""
    if projection_input.dim() == 4:  # heads not yet merged (a contraction over heads and head size)
        projection_input = projection_input.flatten(2)
    if projection_input.dim() == 2:  # tokens flattened over the batch
        projection_input = HiddenLayout(batch, attention.tokens).moved(projection_input)
    for order in ORDERS:
        moved = turned(projection_input, order)
        if moved.shape == attention.context.shape and torch.equal(moved, attention.context):
            return HiddenLayout(batch, attention.tokens, order)
    raise Unmatched(
        "the output projection does not read the heads side by side (gated or reordered heads)."
    )


def first_tensor(output: Any) -> Tensor | None:
    """Layers return a tensor (transformers 5), a tuple (4) or an output object."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list):
        return next((item for item in output if isinstance(item, Tensor)), None)
    values = getattr(output, "values", None)
    return first_tensor(tuple(values())) if callable(values) else None


def with_first_tensor(output: Any, tensor: Tensor) -> Any:
    """The same output with another tensor in that place."""
    if isinstance(output, Tensor):
        return tensor
    if isinstance(output, tuple | list):
        place = next(i for i, item in enumerate(output) if isinstance(item, Tensor))
        return type(output)((*output[:place], tensor, *output[place + 1 :]))
    place = next(key for key, item in output.items() if isinstance(item, Tensor))
    output[place] = tensor
    return output
