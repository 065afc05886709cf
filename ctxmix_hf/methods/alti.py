"""ALTI: how close each source's part comes to the target's output (Ferrando et al. 2022, eq. 9-11)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.methods.base import METHODS, About, LayerMethod
from ctxmix_hf.records import LayerRecord, NormState, Parts
from ctxmix_hf.workspace import computed_once

AT_ONCE = 2**21  # bytes of differences: written and read again while they are in the cache
THRESHOLDS = (2.0, 8.0, 32.0, 128.0)  # of a row's mean bound: what a small part may be
DENSE = 3.0  # what a coordinate of a pair costs in the plain loop, in reads of one head's vectors
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

    choices = {"norm": (1, 2), "through": ("norm1", "norm2")}
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

    def layer_map(self, layer: LayerRecord, budget: Budget) -> Tensor:
        parts = layer.parts(self.through)  # type: ignore[arg-type]
        if self.public_code:
            parts = _without_eps(layer, parts)
        closeness = self._by_coordinates(layer, parts)
        if closeness is None:
            closeness = self._closeness(layer, parts, budget)
        diagonal = self._gap(parts.diagonal.clone(), parts.total, self._length(parts.total))
        closeness.diagonal(layer.offset, dim1=-2, dim2=-1).copy_(diagonal)
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
        return result.mT

    def _by_coordinates(self, layer: LayerRecord, parts: Parts) -> Tensor | None:
        """The same for a block of rows of a long text, without the vectors of all pairs; None where that saves nothing.

        With `q = sign(y) part`, `|y| - |y - part| = q - 2 max(0, q - |y|)`. The sum of q over coordinates is linear in
        the values: one product per head. The rest is zero wherever a part is smaller than the coordinate of y it is
        part of, which in a long text nearly all are: a bound on each part tells which pairs and coordinates are left.
        """
        whole = layer.whole
        if whole is None or self.norm == 2 or self.public_code or layer.attention.requires_grad:
            return None
        known = _known_coordinates(whole)
        if len(parts.norms) not in known:
            known[len(parts.norms)] = _coordinates(whole, parts.norms)
        projection, vectors, largest = known[len(parts.norms)]
        found = []
        for b, attention in enumerate(layer.attention):
            y, scale = parts.total[b], None if parts.scale is None else parts.scale[b]
            size, sign = y.abs(), torch.where(y < 0, -1.0, 1.0).to(y.dtype)
            sign = sign if scale is None else sign * scale
            linear, bound = (attention.new_zeros(attention.shape[1:]) for _ in range(2))
            scores = (sign @ projection.mT) @ layer.values[b].mT  # [H, targets, sources]
            for head, weights in enumerate(attention):
                linear.addcmul_(weights, scores[head])
                bound.addcmul_(weights, largest[b, head, layer.sources])
            bound *= 1.00001 if scale is None else scale.abs() * 1.00001  # rounding
            threshold = _threshold(bound, size, len(attention))
            if threshold is None:
                return None
            over = _small_parts(attention, vectors[b, :, :, layer.sources], size, sign, threshold)
            pairs = (bound > threshold).nonzero()
            heads = parts.make_heads()[b].transpose(0, 1)  # [sources, H, D]
            for some in pairs.split(max(1, AT_ONCE // (heads[0].numel() * heads.element_size()))):
                i, j = some.unbind(-1)
                part = torch.bmm(attention[:, i, j].mT.unsqueeze(1), heads[j]).squeeze(1)
                for norm in parts.norms:
                    part = norm.direction(part)
                over[i, j] = (part * sign[i] - size[i]).clamp_(min=0).sum(dim=-1)
            found.append(linear.sub_(over, alpha=2))
        return torch.stack(found)

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


@computed_once
def _known_coordinates(layer: LayerRecord) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
    """Number of norms behind -> what `_coordinates` made of the layer."""
    return {}


def _coordinates(layer: LayerRecord, norms: tuple[NormState, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """The projection through the norms `[H, E, D]`, the head vectors by coordinate `[B, H, D, T]`, and the largest of
    each `[B, H, T]`.
    """
    projection = layer.block.projection
    for norm in norms:
        projection = norm.direction(projection)
    vectors = projection.mT @ layer.values.mT
    return projection, vectors, torch.maximum(vectors.amax(dim=2), -vectors.amin(dim=2))


def _threshold(bound: Tensor, size: Tensor, heads: int) -> Tensor | None:
    """`[targets, 1]`: parts bounded by it are small; the one that leaves least to do, by some of the rows."""
    usual, some = bound.mean(dim=-1, keepdim=True), slice(None, None, 8)
    (width, sources), sample = (size.shape[1], bound.shape[1]), (size[some], bound[some])
    costs = []
    for factor in THRESHOLDS:
        small, large = sample[0] < factor * usual[some], sample[1] > factor * usual[some]
        costs.append(int(small.count_nonzero()) * sources + int(large.count_nonzero()) * width)
    if heads * min(costs) > DENSE * len(sample[0]) * sources * width:
        return None
    return usual * THRESHOLDS[costs.index(min(costs))]


def _small_parts(
    attention: Tensor, vectors: Tensor, size: Tensor, sign: Tensor, threshold: Tensor
) -> Tensor:
    """`sum_d max(0, q_d - |y_d|)` of the parts below their row's threshold, `[targets, sources]`: only coordinates of
    y that are smaller than it can count.
    """
    over = torch.zeros_like(attention[0])
    places = (size < threshold).nonzero()
    for some in places.split(max(1, AT_ONCE // (2 * over.shape[1] * over.element_size()))):
        i, d = some.unbind(-1)
        part = over.new_zeros(len(some), over.shape[1])
        for weights, values in zip(attention, vectors, strict=True):
            part.addcmul_(weights.index_select(0, i), values.index_select(0, d))
        part.mul_(sign[i, d][:, None]).sub_(size[i, d][:, None]).clamp_(min=0)
        over.index_add_(0, i, part)
    return over


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
