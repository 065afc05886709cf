"""Rows to shares: a zero row stays zero, never NaN."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor


class ZeroRowWarning(UserWarning):
    """A real token's contributions are all zero."""


def to_shares(rows: Tensor, mask: Tensor | None = None) -> Tensor:
    """Divide each row `[..., T]` by its sum; warn where a real row (`mask [B, T]`) is all zero."""
    total = rows.sum(dim=-1, keepdim=True)
    empty = total == 0
    if mask is not None:
        real = mask.view(mask.shape[0], *(1,) * (rows.dim() - 3), mask.shape[1], 1)
        if bool((empty & real).any()):
            warnings.warn(
                "Some tokens have no contributions at all: their rows are zero.",
                ZeroRowWarning,
                stacklevel=2,
            )
    return rows / torch.where(empty, torch.ones_like(total), total)
