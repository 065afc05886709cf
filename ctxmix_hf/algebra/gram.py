"""Norms of sums of head vectors without the `[T, T, D]` vectors.

`||sum_h A[h,i,j] F[h,j]||^2 = a^T G_j a` with the H x H Gram matrix `G_j` of source j's head vectors and
`a = A[:, i, j]`: O(T^2 H^2) instead of O(T^2 H D). Where heads nearly cancel each other a float32 quadratic form has
no digits left: those few pairs are computed from their vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

CANCELS = 1e-2  # of the squared length the heads would have side by side; below it float32 forms lose digits
AT_ONCE = (
    5 * 2**18
)  # bytes of head vectors: they stay in the cache from the norms to the Gram matrices


def by_source(attention: Tensor) -> Tensor:
    """`[B, H, T, T]` -> `[B, source, H, target]`, laid out for one small product per source."""
    return attention.permute(0, 3, 1, 2).contiguous()


def head_vectors(values: Tensor, projection: Tensor) -> Tensor:
    """`[B, H, T, E]` by `[H, E, D]` -> F `[B, H, T, D]`: one product per head, whatever the number of examples."""
    flat = values.transpose(0, 1).flatten(1, 2)
    return torch.bmm(flat, projection).unflatten(1, (len(values), -1)).transpose(0, 1)


def slices(count: int, bytes_each: int) -> list[slice]:
    """Equal slices over `count` source tokens whose vectors fit into the cache together."""
    step = math.ceil(count / math.ceil(count * bytes_each / AT_ONCE))
    return [slice(start, start + step) for start in range(0, count, step)]


def summed_norms(
    weights: Tensor, vectors_of: Callable[[slice], list[Tensor]], grams: Tensor | None = None
) -> list[Tensor]:
    """`||sum_h A[h,i,j] F[h,j]||`, `[B, T target, T source]`, for several F at once.

    `weights` from `by_source`; `vectors_of` gives each F for a slice of all examples' sources, one example after the
    other, `[N, H, D]`; `grams` what `gram_rows` made of all of them, where the same sources meet many blocks of
    targets.
    """
    flat = weights.flatten(0, 1)  # [N, H, T]
    if grams is not None:
        squared = _squared(flat, grams, lambda: vectors_of(slice(0, len(flat))))
    else:
        first = vectors_of(slice(0, 1))[0]
        made = []
        for chunk in slices(len(flat), first.numel() * first.element_size()):
            vectors = vectors_of(chunk)
            made.append(_squared(flat[chunk], gram_rows(vectors), lambda v=vectors: v))  # type: ignore[misc]
        squared = torch.cat(made)  # [N, F, target]
    if squared.requires_grad:
        some = squared > 0  # a plain root would send an infinite slope through the zeros of padding
        norms = torch.where(some, squared, 1.0).sqrt() * some
    else:
        norms = squared.clamp_(min=0).sqrt_()
    return [norms[:, k].unflatten(0, weights.shape[:2]).mT for k in range(norms.shape[1])]


def gram_rows(vectors: list[Tensor]) -> Tensor:
    """K times `[N, H, D]` -> `[N, K (H + 1), H]`: each Gram matrix, the heads' lengths as one more row."""
    rows = []
    for v in vectors:
        gram = torch.bmm(v, v.mT)
        rows += [gram, gram.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt().unsqueeze(-2)]
    return torch.cat(rows, dim=-2)


def _squared(weights: Tensor, grams: Tensor, vectors: Callable[[], list[Tensor]]) -> Tensor:
    """`[N, H, T]`, `[N, K (H + 1), H]` -> `a^T G_j a` for every source of the chunk and every
    target, `[N, K, T]`.
    """
    heads = weights.shape[-2]
    forms = torch.bmm(grams, weights).unflatten(-2, (-1, heads + 1))
    squared = (forms[..., :heads, :] * weights.unsqueeze(-3)).sum(dim=-2)
    return (
        squared
        if squared.dtype == torch.float64
        else _repaired(squared, forms[..., heads, :], weights, vectors)
    )


def _repaired(
    squared: Tensor, side_by_side: Tensor, weights: Tensor, vectors: Callable[[], list[Tensor]]
) -> Tensor:
    """Where heads cancel, from the vectors themselves."""
    cancelled = squared < CANCELS * side_by_side.square()
    if not bool(cancelled.any()):
        return squared
    for k, each in enumerate(vectors()):
        for some in cancelled[:, k].nonzero().split(4096):  # a few megabytes at a time
            j, i = some.unbind(-1)
            part = (weights[j, :, i].unsqueeze(1) @ each[j]).squeeze(1)
            squared = squared.index_put((j, torch.full_like(j, k), i), part.square().sum(dim=-1))
    return squared
