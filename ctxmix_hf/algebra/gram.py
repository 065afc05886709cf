"""Norms of sums of head vectors without the `[T, T, D]` vectors.

`||sum_h A[h,i,j] F[h,j]||^2 = a^T G_j a` with the H x H Gram matrix `G_j` of source j's head vectors and
`a = A[:, i, j]`: O(T^2 H^2) instead of O(T^2 H D). Where heads nearly cancel each other a float32 quadratic form has
no digits left: those few pairs are computed from their vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

CANCELS = 1e-2  # of the squared length the heads would have side by side; below it float32 forms lose digits
AT_ONCE = (
    5 * 2**19
)  # bytes of head vectors: from their making to the Gram matrices they stay in the cache

Vectors = Callable[
    [slice], Tensor
]  # of some of all examples' sources: their head vectors F `[N, H, D]`


def by_source(attention: Tensor) -> Tensor:
    """`[B, H, T, S]` -> `[B S, H, T]`, laid out for one small product per source."""
    return attention.permute(0, 3, 1, 2).flatten(0, 1).contiguous()


def head_vectors(values: Tensor, projection: Tensor) -> Tensor:
    """`[B, H, T, E]` by `[H, E, D]` -> F `[B, H, T, D]`: one product per head, whatever the number of examples."""
    flat = values.transpose(0, 1).flatten(1, 2)
    return torch.bmm(flat, projection).unflatten(1, (len(values), -1)).transpose(0, 1)


def slices(count: int, bytes_each: int) -> list[slice]:
    """Equal slices over `count` source tokens whose vectors fit into the cache together."""
    step = math.ceil(count / math.ceil(count * bytes_each / AT_ONCE))
    return [slice(start, min(count, start + step)) for start in range(0, count, step)]


def summed_norms(
    attention: Tensor, vectors: Sequence[Vectors], grams: Tensor | None = None
) -> list[Tensor]:
    """`||sum_h A[h,i,j] F[h,j]||`, `[B, T target, S source]`, for several F at once.

    Sources are counted over all examples, one after the other. `grams` is what `gram_rows` made of all of them, where
    the same sources meet many blocks of targets.
    """
    batch, _, _, sources = attention.shape
    if grams is not None:
        weights = attention.mT.contiguous().transpose(1, 2).flatten(0, 1)  # large: heads stay whole
        squared = _squared(weights, grams, vectors, slice(0, batch * sources))
    else:
        first = vectors[0](slice(0, 1))
        made, each = [], first.numel() * first.element_size()
        for some in slices(batch, sources * each):  # several short examples, or parts of a long one
            several = some.stop - some.start > 1
            for part in [slice(0, sources)] if several else slices(sources, each):
                start = some.start * sources + part.start
                chunk = slice(start, (some.stop - 1) * sources + part.stop)
                weights = by_source(attention[some, :, :, part])
                made.append(_squared(weights, gram_rows(vectors, chunk), vectors, chunk))
        squared = torch.cat(made)  # [N, F, target]
    if squared.requires_grad:
        real = squared > 0  # a plain root would send an infinite slope through the zeros of padding
        norms = torch.where(real, squared, 1.0).sqrt() * real
    else:
        norms = squared.clamp_(min=0).sqrt_()
    return [norms[:, k].unflatten(0, (batch, sources)).mT for k in range(norms.shape[1])]


def gram_rows(vectors: Sequence[Vectors], chunk: slice) -> Tensor:
    """K times F `[N, H, D]` -> `[N, K (H + 1), H]`: each Gram matrix, the heads' lengths as one more row."""
    rows = []
    for make in vectors:
        made = make(chunk)
        gram = torch.bmm(made, made.mT)
        rows += [gram, gram.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt().unsqueeze(-2)]
    return torch.cat(rows, dim=-2)


def _squared(weights: Tensor, grams: Tensor, vectors: Sequence[Vectors], chunk: slice) -> Tensor:
    """`[N, H, T]`, `[N, K (H + 1), H]` -> `a^T G_j a` for every source of the chunk and every
    target, `[N, K, T]`.
    """
    heads = weights.shape[-2]
    forms = torch.bmm(grams, weights).unflatten(-2, (-1, heads + 1))
    each = forms[..., :heads, :]
    squared = torch.mul(each, weights[:, None], out=None if forms.requires_grad else each).sum(-2)
    if squared.dtype == torch.float64:
        return squared
    cancelled = squared < CANCELS * forms[..., heads, :].square()
    if not bool(cancelled.any()):
        return squared
    for k, make in enumerate(vectors):  # where heads cancel, from the vectors themselves
        if not bool(cancelled[:, k].any()):
            continue
        made = make(chunk)
        for some in cancelled[:, k].nonzero().split(4096):  # a few megabytes at a time
            j, i = some.unbind(-1)
            part = (weights[j, :, i].unsqueeze(1) @ made[j]).squeeze(1)
            squared = squared.index_put((j, torch.full_like(j, k), i), part.square().sum(dim=-1))
    return squared
