"""Norms of sums of head vectors without the `[T, T, D]` vectors.

`||sum_h A[h,i,j] F[h,j]||^2 = a^T G_j a` with the H x H Gram matrix `G_j` of source j's head vectors and
`a = A[:, i, j]`: O(T^2 H^2) instead of O(T^2 H D). Where heads nearly cancel each other a float32 quadratic form has
no digits left: those few pairs are computed from their vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor

CANCELS = 1e-2  # of the squared length the heads would have side by side; below it float32 forms lose digits


def by_source(attention: Tensor) -> Tensor:
    """`[B, H, T, T]` -> `[B, source, target, H]`, laid out for one small product per source."""
    return attention.permute(0, 3, 2, 1).contiguous()


def summed_norms(weights: Tensor, heads: Tensor) -> Tensor:
    """`weights` from `by_source`, vectors `[B, H, T, D]` -> `||sum_h A[h,i,j] F[h,j]||`, `[B, T target, T source]`."""
    vectors = heads.transpose(1, 2)  # [B, source, H, D]
    gram = vectors @ vectors.mT
    squared = ((weights @ gram) * weights).sum(dim=-1)  # [B, source, target]
    if squared.dtype != torch.float64:
        squared = _repaired(squared, weights, vectors, gram)
    some = squared > 0  # a plain root would send an infinite slope through the zeros of padding
    return (torch.where(some, squared, 1.0).sqrt() * some).mT


def _repaired(squared: Tensor, weights: Tensor, vectors: Tensor, gram: Tensor) -> Tensor:
    lengths = gram.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()  # [B, source, H]
    side_by_side = (weights @ lengths.unsqueeze(-1)).squeeze(-1).square()
    b, j, i = (squared < CANCELS * side_by_side).nonzero(as_tuple=True)
    if len(b) == 0:
        return squared
    parts = []
    for chunk in torch.arange(len(b), device=b.device).split(4096):  # a few megabytes at a time
        part = weights[b[chunk], j[chunk], i[chunk]].unsqueeze(1) @ vectors[b[chunk], j[chunk]]
        parts.append(part.squeeze(1).square().sum(dim=-1))
    return squared.index_put((b, j, i), torch.cat(parts))
