"""Attention that cannot change the output: the left null space of the value vectors (Brunner et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor


def project_on_range(attention: Tensor, values: Tensor) -> Tensor:
    """`A Q Q^T`, Q an orthonormal basis of the range of `values` `[..., n, E]`; A where the rows are independent.

    The rank is counted per head against `max(n, E) * eps * S_1`, as METHODS.md section 8 wants.
    """
    n, size = values.shape[-2:]
    left, singular, _ = torch.linalg.svd(values, full_matrices=False)
    threshold = max(n, size) * torch.finfo(values.dtype).eps * singular[..., :1]
    basis = left * (singular > threshold).unsqueeze(-2)
    projected = (attention @ basis) @ basis.mT
    full = (singular > threshold).sum(dim=-1) >= n  # nothing to remove: keep the weights to the last digit
    return torch.where(full[..., None, None], attention, projected)
