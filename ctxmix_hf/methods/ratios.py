"""Context-mixing ratios: how much of a token's new vector comes from other tokens (Modarressi et
al. 2022, eq. 8 and 14).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ctxmix_hf.errors import UnknownNameError
from ctxmix_hf.records import STAGES, LayerRecord, ModelRecord, Stage

STAGE_OF = {"norm": "attention", "norm_res": "residual", "norm_resln": "norm1", "norm_enc": "norm2"}


def mixing_ratio(layer: LayerRecord, stage: Stage) -> Tensor:
    """`r_i = ||sum_(j!=i) t[i,j]|| / (||sum_(j!=i) t[i,j]|| + ||t[i,i]||)`, `[B, T]`: the norm of the sum.

    The sum over all sources is what the model computed minus what belongs to no token, so no product is needed.
    """
    parts = layer.parts(stage)
    others = (parts.total - parts.constant - parts.diagonal).norm(dim=-1)
    kept = parts.diagonal.norm(dim=-1)
    return (others / (others + kept)).nan_to_num(0.0) * layer.mask


def mixing_ratios(record: ModelRecord, decomposition: str = "norm_enc") -> Tensor:
    """`r_i` per layer, `[B, L, T]`, for `norm`, `norm_res`, `norm_resln` or `norm_enc` (or a stage's name).

    How much of a token's vector comes from the other tokens (Kobayashi et al. 2021; Modarressi et al. 2022, eq. 14).

    Args:
        record: What `output_decomposition=True` left.
        decomposition: `"norm"`, `"norm_res"`, `"norm_resln"` or `"norm_enc"`, or a stage of the record.

    Returns:
        `[B, L, T]`.

    Raises:
        UnknownNameError: There is no such decomposition.
    """
    stage = STAGE_OF.get(decomposition, decomposition)
    if stage not in STAGES:
        raise UnknownNameError.among("decomposition", decomposition, [*STAGE_OF, *STAGES])
    ratios = []
    for layer in record:
        ratios.append(mixing_ratio(layer, stage))  # type: ignore[arg-type]
        layer.release()
    return torch.stack(ratios, dim=1)
