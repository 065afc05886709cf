"""Attention that cannot change the output: the left null space of the value vectors (Brunner et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget


def project_on_range(attention: Tensor, values: Tensor) -> Tensor:
    """`A Q Q^T`, Q an orthonormal basis of the range of `values` `[..., n, E]`; A where the rows are independent.

    The rank is counted per head against `max(n, E) * eps * S_1`: relative to the head's own largest singular value.
    """
    return on_range(attention, *range_basis(values))


def range_basis(values: Tensor) -> tuple[Tensor, Tensor]:
    """`(Q [..., n, E], whether the rows are independent [...])`."""
    n, size = values.shape[-2:]
    left, singular, _ = torch.linalg.svd(values, full_matrices=False)
    threshold = max(n, size) * torch.finfo(values.dtype).eps * singular[..., :1]
    basis = left * (singular > threshold).unsqueeze(-2)
    return basis, (singular > threshold).sum(dim=-1) >= n


def on_range(attention: Tensor, basis: Tensor, full: Tensor) -> Tensor:
    """`A Q Q^T`; where there is nothing to remove the weights stay to the last digit."""
    projected = (attention @ basis) @ basis.mT
    return torch.where(full[..., None, None], attention, projected)


def project_on_visible_range(
    attention: Tensor, values: Tensor, visible: Tensor, budget: Budget
) -> Tensor:
    """Row by row: `a Q Q^T` with Q a basis of the range of the values this row sees; `[H, n, n]`,
    `[H, n, E]`, `[n, n]` bool.

    The head's output stays `A V`, and a row gives nothing to a token it does not see.
    """
    heads, n, size = values.shape
    result = torch.zeros_like(attention)
    for rows in budget.chunks(n, 4 * heads * n * size * values.element_size()):
        seen = values.unsqueeze(1) * visible[rows, :, None]  # [H, rows, n, E]
        result[:, rows] = project_on_range(attention[:, rows].unsqueeze(-2), seen).squeeze(-2)
    return result
