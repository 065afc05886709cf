"""Norms of sums of head vectors without the `[T, T, D]` vectors.

`||sum_h A[h,i,j] F[h,j]||^2 = a^T G_j a` with the H x H Gram matrix `G_j` of source j's head vectors and
`a = A[:, i, j]`: O(T^2 H^2) instead of O(T^2 H D). Gram matrices are taken in float64, so heads that cancel each
other keep their digits.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gram_matrices(heads: Tensor) -> Tensor:
    """`[B, H, T, D]` head vectors -> `[B, T, H, H]` inner products per source token, float64."""
    by_token = heads.transpose(1, 2).double()
    return by_token @ by_token.mT


def summed_norms(attention: Tensor, heads: Tensor) -> Tensor:
    """`[B, H, T, T]` weights, `[B, H, T, D]` vectors -> `||sum_h A[h,i,j] F[h,j]||`, `[B, T target, T source]`."""
    weights = attention.permute(0, 3, 2, 1).double()  # [B, source, target, H]
    squared = ((weights @ gram_matrices(heads)) * weights).sum(dim=-1)
    some = squared > 0  # a plain root would send an infinite slope through the zeros of padding
    return (torch.where(some, squared, 1.0).sqrt() * some).mT.to(attention.dtype)
