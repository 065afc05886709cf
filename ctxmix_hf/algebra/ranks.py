"""Ranks and rank correlation with average ranks for ties."""

from __future__ import annotations

import torch
from torch import Tensor


def average_ranks(values: Tensor) -> Tensor:
    """Ranks 1..n along the last axis; ties share the mean of their ranks."""
    order = values.argsort(dim=-1, stable=True)
    ordered = values.gather(-1, order)
    n = values.shape[-1]
    place = torch.arange(1, n + 1, dtype=values.dtype, device=values.device).expand_as(values)
    new = torch.ones_like(ordered, dtype=torch.long)
    new[..., 1:] = (ordered[..., 1:] != ordered[..., :-1]).long()
    group = new.cumsum(dim=-1) - 1
    total = torch.zeros_like(values).scatter_add_(-1, group, place)
    count = torch.zeros_like(values).scatter_add_(-1, group, torch.ones_like(values))
    mean = (total / count.clamp(min=1)).gather(-1, group)
    return torch.empty_like(values).scatter_(-1, order, mean)


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's correlation along the last axis; NaN where one side is constant (undefined, not 0)."""
    x, y = (average_ranks(t) for t in (a.double(), b.double()))
    x, y = x - x.mean(dim=-1, keepdim=True), y - y.mean(dim=-1, keepdim=True)
    return (x * y).sum(dim=-1) / (x.square().sum(dim=-1) * y.square().sum(dim=-1)).sqrt()
