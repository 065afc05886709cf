"""Rollout: the product of the layers' maps (Abnar & Zuidema 2020, eq. 1)."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor


class OverflowScaledWarning(UserWarning):
    """The unnormalised product left the range of its dtype and was divided by one scalar per layer."""


def with_residual(
    maps: Tensor, residual: float, mask: Tensor | None = None, offset: int = 0
) -> Tensor:
    """`(1 - residual) M + residual I` on real tokens, `[..., T, T]`: 0.5 is Abnar & Zuidema's.

    `maps` may hold some rows and columns only: `offset` is then the column of the first row's own token.
    """
    mixed = (1 - residual) * maps
    own = mixed.diagonal(offset, -2, -1)
    if mask is None:
        own += residual
    else:
        own += residual * mask.view(mask.shape[0], *(1,) * (maps.dim() - 3), mask.shape[1])
    return mixed


def rollout(maps: Tensor) -> Tensor:
    """`R_1 = M_1, R_l = M_l R_(l-1)`: `[B, L, T, T]` layer maps -> the map of every layer to the input, same shape.

    No identity is added and no row is normalised here. A product that overflows is divided by one scalar per layer,
    which changes no ranking and no row-normalised value, and a warning says so.
    """
    rolled = _product(maps)
    if bool(torch.isfinite(rolled[:, -1]).all()) or not bool(torch.isfinite(maps).all()):
        return rolled  # what overflows stays so to the last layer
    warnings.warn(
        "The unnormalised rollout is too large for its precision: each layer's map is divided by one scalar.",
        OverflowScaledWarning,
        stacklevel=3,
    )
    return _product(maps, rescale=True)


def _product(maps: Tensor, rescale: bool = False) -> Tensor:
    current = maps[:, 0]
    rolled = [current]
    for layer in maps.unbind(dim=1)[1:]:
        if rescale:
            current = current / current.abs().amax(dim=(-2, -1), keepdim=True).clamp(min=1e-30)
            layer = layer / layer.abs().amax(dim=(-2, -1), keepdim=True).clamp(min=1e-30)
        current = layer @ current
        rolled.append(current)
    return torch.stack(rolled, dim=1)
