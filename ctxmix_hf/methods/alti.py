"""ALTI: how close each source's part comes to the target's output (Ferrando et al. 2022, eq. 9-11)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.methods.base import METHODS, About, LayerMethod, check_choice
from ctxmix_hf.records import LayerRecord, NormState, Parts

AT_ONCE = 2**21  # bytes of differences: written and read again while they are in the cache
PUBLIC_CODE_SHIFT = 1e-6  # added to every coordinate by the distance routine of the authors' code


@METHODS.register("alti")
@dataclass(frozen=True)
class Alti(LayerMethod):
    """`C[i,j] = max(0, ||y_i||_1 - ||y_i - zt[i,j]||_1)` as shares of the row; y is the attention block's output.

    Covers the attention block (values, residual, first norm), not the feed-forward. `norm=2` takes Euclidean lengths;
    `through="norm2"` uses the second norm's parts against the layer's output; `public_code=True`
    repeats the two quirks of the authors' code (1e-6 on every coordinate, the norm's deviation
    without eps). On pre-LN layers y is the residual stream after attention.
    """

    norm: int = 1
    through: str = "norm1"
    public_code: bool = False

    by_rows = True
    reads_totals = True
    rows_sum_to_one = True
    about = About(
        "L1 closeness of each source's part to the block's output",
        "Ferrando et al. 2022",
        "max(0, ||y_i||_1 - ||y_i - zt[i,j]||_1), row shares",
        "O(T^2 H D) per layer, in chunks",
        "block",
        "the whole attention block",
        "feed-forward, second norm",
    )

    def __post_init__(self) -> None:
        check_choice("alti", "norm", self.norm, (1, 2))
        check_choice("alti", "through", self.through, ("norm1", "norm2"))

    def layer_map(self, layer: LayerRecord, budget: Budget) -> Tensor:
        parts = layer.parts(self.through)  # type: ignore[arg-type]
        if self.public_code:
            parts = _without_eps(layer, parts)
        closeness = self._closeness(layer, parts, budget)
        return to_shares(
            closeness.clamp(min=0) * (layer.mask[:, :, None] & layer.source_mask[:, None, :]),
            layer.mask,
        )

    def _closeness(self, layer: LayerRecord, parts: Parts, budget: Budget) -> Tensor:
        """`||y_i|| - ||y_i - part_ij||` for all pairs, `[B, T, T]`, source by source in chunks of targets."""
        batch, _, targets, sources = layer.attention.shape
        result = layer.attention.new_empty(batch, sources, targets)
        scaled = layer.attention if parts.scale is None else layer.attention * parts.scale[:, None]
        width, graph = parts.total.shape[-1], scaled.requires_grad or parts.total.requires_grad
        size = width * parts.total.element_size() * targets
        step = max(1, min(AT_ONCE // size, budget.bytes // (4 * size)))
        room = result.new_empty(0 if graph else min(step, sources), targets, width)
        for b in range(batch):
            y, length = parts.total[b], self._length(parts.total[b])
            for start in range(0, sources, 16 * step):
                some = slice(start, min(sources, start + 16 * step))
                weights = scaled[b, :, :, some].permute(2, 1, 0).contiguous()  # [S, targets, H]
                for first in range(some.start, some.stop, step):
                    chunk = slice(first, min(some.stop, first + step))
                    heads = parts.heads_of(chunk, b)
                    part = weights[chunk.start - start : chunk.stop - start]
                    vectors = (
                        part @ heads if graph else torch.bmm(part, heads, out=room[: len(heads)])
                    )  # [sources, targets, D]
                    result[b, chunk] = self._gap(vectors, y, length)
        diagonal = self._gap(parts.diagonal.clone(), parts.total, self._length(parts.total))
        result.diagonal(-layer.offset, dim1=-2, dim2=-1).copy_(diagonal)
        return result.mT

    def _length(self, y: Tensor) -> Tensor:
        return y.abs() if self.norm == 1 else y.norm(dim=-1)

    def _gap(self, vectors: Tensor, y: Tensor, length: Tensor) -> Tensor:
        """One sum over coordinates: two finished sums subtracted would lose digits. Works in place on `vectors`."""
        if vectors.requires_grad:
            return self._gap_with_graph(vectors, y, length)
        vectors.sub_(y)
        if self.public_code:
            vectors.add_(PUBLIC_CODE_SHIFT)
        if self.norm == 2:
            return length - vectors.norm(dim=-1)
        return vectors.abs_().sub_(length).sum(dim=-1).neg_()

    def _gap_with_graph(self, vectors: Tensor, y: Tensor, length: Tensor) -> Tensor:
        """The same without working in place, which a graph does not allow."""
        gap = vectors - y + (PUBLIC_CODE_SHIFT if self.public_code else 0)
        return length - gap.norm(dim=-1) if self.norm == 2 else (length - gap.abs()).sum(dim=-1)


def _without_eps(layer: LayerRecord, parts: Parts) -> Parts:
    """The same parts with the norms' deviations taken without eps; y is their sum, as in the authors' code."""
    block = layer.block
    norms: list[NormState] = [n for n in (block.norm1,) if n is not None]
    factor = torch.ones_like(parts.total[..., :1])
    for norm in norms:
        factor = factor * norm.deviation / (norm.deviation.square() - norm.eps).sqrt()
    bias = block.norm1.bias if block.norm1 is not None else None
    shift = 0 if bias is None else bias
    total = (parts.total - shift) * factor + shift
    scale = factor if parts.scale is None else parts.scale * factor
    return replace(parts, diagonal=parts.diagonal * factor, scale=scale, total=total)
