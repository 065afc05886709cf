"""Are two tensors the same numbers?"""

from __future__ import annotations

import torch
from torch import Tensor


def same_numbers(a: Tensor | None, b: Tensor | None) -> bool:
    """Same shape, dtype and values, wherever they live; NaN is the same as NaN, None only as None."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.allclose(a.detach().cpu(), b.detach().cpu(), rtol=0, atol=0, equal_nan=True))
