"""Attention by blocks of rows: probabilities that nobody kept, made again from queries and keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

BLOCK = 2**23  # bytes of one block's probabilities: they stay near the processor
FEWEST, MOST = 16, 256  # rows of a block: bands want few, products of matrices many


def shifted_identity(rows: int, columns: int, offset: int, like: Tensor) -> Tensor:
    """`[rows, columns]`, 1 where column = row + offset: a block of the identity."""
    made = torch.zeros(rows, columns, dtype=like.dtype, device=like.device)
    made.diagonal(offset).fill_(1)
    return made


def row_blocks(tokens: int, bytes_per_row: int, most: int = BLOCK) -> list[slice]:
    """Slices over `tokens` target rows whose blocks take at most `most` bytes, within reason."""
    step = max(FEWEST, min(MOST, most // max(1, bytes_per_row)))
    return [slice(start, min(tokens, start + step)) for start in range(0, tokens, step)]


@dataclass(frozen=True)
class BlockAttention:
    """`softmax(q k^T * scale + mask)` for some rows at a time: linear in T to keep, nothing with T^2 elements made.

    `reach` tells which sources a block of rows can attend to at all (a window, a causal mask, padding at the end), so
    that pairs a local layer never connects cost nothing.
    """

    query: Tensor  # [B, H, T, E]
    key: Tensor  # [B, H or fewer, T, E]
    mask: Tensor | None  # as the model gave it to the attention function: bool, or added
    causal: bool
    scale: float
    dtype: torch.dtype  # statistics are taken in it
    _reach: dict[tuple[int, int], slice] = field(default_factory=dict, repr=False)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, tokens, _ = self.query.shape
        return batch, heads, tokens, tokens

    @property
    def bytes_per_row(self) -> int:
        batch, heads, tokens, _ = self.shape
        return batch * heads * tokens * self.dtype.itemsize

    def blocks(self, most: int = BLOCK) -> Iterator[slice]:
        """Slices over the target rows; narrower bands allow more rows at once."""
        batch, heads, tokens, _ = self.shape
        middle = slice(tokens // 2, min(tokens, tokens // 2 + FEWEST))
        seen = self.reach(middle)
        width = seen.stop - seen.start
        if 2 * width < tokens:  # a window: tall blocks would waste pairs that it never connects
            limit = max(1, most // (batch * heads * 2 * width * self.dtype.itemsize))
            step = max(FEWEST, min(MOST, limit, width))
            yield from (slice(start, min(tokens, start + step)) for start in range(0, tokens, step))
        else:
            yield from row_blocks(tokens, self.bytes_per_row, most)

    def reach(self, targets: slice) -> slice:
        """The sources that some of these rows may attend to, the rows themselves among them."""
        key = (targets.start, targets.stop)
        if key not in self._reach:
            self._reach[key] = self._find_reach(targets)
        return self._reach[key]

    def _find_reach(self, targets: slice) -> slice:
        tokens = self.shape[-1]
        start, stop = 0, targets.stop if self.causal else tokens
        if self.mask is not None:
            rows = self._mask_rows(targets, slice(0, tokens))
            if rows.dtype == torch.bool:
                open_to = rows
            else:
                open_to = rows > torch.finfo(rows.dtype).min / 2
                if not bool(open_to.any(dim=-1).all()):
                    return slice(0, tokens)  # a row with all masked alike attends to everything
            seen = open_to.flatten(0, -2).any(dim=0).nonzero()
            if not len(seen):
                return slice(targets.start, targets.stop)
            start, stop = max(start, int(seen[0])), min(stop, int(seen[-1]) + 1)
        return slice(min(start, targets.start), max(stop, targets.stop))

    def _mask_rows(self, targets: slice, sources: slice) -> Tensor:
        assert self.mask is not None
        tokens = self.shape[-1]
        mask = self.mask.expand(*self.mask.shape[:-2], tokens, tokens)
        return mask[..., targets, sources]

    def rows(self, targets: slice, sources: slice) -> Tensor:
        """`[B, H, targets, sources]`; `sources` must hold their reach."""
        query = self.query[:, :, targets].to(self.dtype) * self.scale
        key = self.key[:, :, sources].to(self.dtype)
        if key.shape[1] != query.shape[1]:
            key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores = query @ key.mT
        if self.causal:
            at = torch.arange(sources.start, sources.stop, device=scores.device)
            own = torch.arange(targets.start, targets.stop, device=scores.device)
            scores.masked_fill_(at[None] > own[:, None], -torch.inf)
        if self.mask is not None:
            mask = self._mask_rows(targets, sources)
            if mask.dtype == torch.bool:
                scores.masked_fill_(~mask, -torch.inf)
            else:
                scores += mask.to(scores.dtype)
        made = scores.softmax(dim=-1)
        if self.mask is not None and bool(made[..., 0].isnan().any()):
            made.nan_to_num_(0.0)  # rows without any source
        return made

    def whole(self) -> Tensor:
        """`[B, H, T, T]`."""
        everything = slice(0, self.shape[-1])
        return self.rows(everything, everything)

    def back(self, gradient: Tensor) -> Tensor:
        """`A^T g`, `[B, H, T, E]`: the derivative of `A V` with A frozen, for V."""
        found = torch.zeros(gradient.shape, dtype=self.dtype, device=gradient.device)
        for targets in self.blocks():
            sources = self.reach(targets)
            block = self.rows(targets, sources)
            found[:, :, sources] += block.mT @ gradient[:, :, targets].to(self.dtype)
        return found

    def is_causal(self) -> bool:
        """Does no token attend to a later one?"""
        if self.causal:
            return True
        tokens = self.shape[-1]
        first = self.rows(slice(0, 1), slice(0, tokens))
        if bool(first[..., 1:].any()):
            return False
        for targets in self.blocks():
            sources = self.reach(targets)
            block = self.rows(targets, sources)
            if bool(block.triu(1 + targets.start - sources.start).any()):
                return False
        return True

    def seen(self) -> Tensor:
        """`[B, T]` bool: the columns anybody attends to."""
        batch, _, tokens, _ = self.shape
        if self.mask is None:
            return torch.ones(batch, tokens, dtype=torch.bool, device=self.query.device)
        found = torch.zeros(batch, tokens, dtype=torch.bool, device=self.query.device)
        for targets in self.blocks():
            sources = self.reach(targets)
            found[:, sources] |= self.rows(targets, sources).amax(dim=(1, 2)) > 0
        return found

    def obeys(self, mask: Tensor) -> bool:
        """Does no real token attend to a masked one?"""
        if bool(mask.all()):
            return True
        for targets in self.blocks():
            sources = self.reach(targets)
            forbidden = mask[:, None, targets, None] & ~mask[:, None, None, sources]
            if bool(forbidden.any()) and bool(
                (self.rows(targets, sources) * forbidden).amax() > 1e-6
            ):
                return False
        return True


def scale_of(query: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
