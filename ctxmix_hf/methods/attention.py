"""Raw attention: W, W_FIXEDRES and W_RES (Modarressi et al. 2022, eq. 13 and 15)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctxmix_hf.aggregation.rollout import with_residual
from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.methods.base import METHODS, About, LayerMethod
from ctxmix_hf.methods.ratios import mixing_ratio
from ctxmix_hf.records import LayerRecord
from ctxmix_hf.workspace import computed_once

ABNAR = "Abnar & Zuidema 2020"


@METHODS.register("attention")
@dataclass(frozen=True)
class Attention(LayerMethod):
    """`W[i,j] = mean_h A[h,i,j]`: the attention probabilities, averaged over heads; rows sum to 1.

    Leaves out everything but the weights: values, output projection, residual, norms, feed-forward.
    """

    per_head: bool = False

    by_rows = True
    joins_layers = True
    rows_sum_to_one = True
    about = About(
        summary="attention weights, averaged over heads",
        paper=ABNAR,
        equation="W[i,j] = mean_h A[h,i,j]",
        cost="none beyond the forward pass",
        needs="attention",
        covers="attention weights",
        leaves_out="values, residual, norms, feed-forward",
    )

    def layer_map(self, layer: LayerRecord, budget: Budget) -> Tensor:
        return mean_over_heads(layer)

    def head_maps(self, layer: LayerRecord, budget: Budget) -> Tensor | None:
        return layer.attention if self.per_head else None


@computed_once
def mean_over_heads(layer: LayerRecord) -> Tensor:
    """W `[B, T, T]`."""
    return layer.attention.mean(dim=1)


@METHODS.register("attention_fixedres")
@dataclass(frozen=True)
class AttentionFixedResidual(LayerMethod):
    """`0.5 W + 0.5 I`: attention with half of every token kept (Abnar & Zuidema 2020, section 3; W_FIXEDRES).

    With `per_head=True`, `0.5 A[h] + 0.5 I` per head, as their appendix' single-head rollout uses.
    """

    residual: float = 0.5
    per_head: bool = False

    by_rows = True
    joins_layers = True
    rows_sum_to_one = True
    about = About(
        summary="attention with half of each token kept by the residual",
        paper=ABNAR,
        equation="0.5 W + 0.5 I",
        cost="none beyond the forward pass",
        needs="attention",
        covers="attention weights, a fixed residual",
        leaves_out="values, the true residual, norms, feed-forward",
    )

    def layer_map(self, layer: LayerRecord, budget: Budget) -> Tensor:
        weights = mean_over_heads(layer)
        return with_residual(weights, self.residual, layer.mask, layer.offset)

    def head_maps(self, layer: LayerRecord, budget: Budget) -> Tensor | None:
        return with_residual(layer.attention, self.residual, layer.mask) if self.per_head else None


@METHODS.register("attention_res")
@dataclass(frozen=True)
class AttentionTrueResidual(LayerMethod):
    """`diag(r) A' + diag(1 - r)`, A' the off-diagonal weights as shares, r the true mixing ratio (W_RES, eq. 14-15)."""

    by_rows = True
    reads_totals = True
    rows_sum_to_one = True
    about = About(
        summary="attention mixed with the residual in the layer's true ratio",
        paper="Modarressi et al. 2022",
        equation="W_RES = diag(r_ENC) A' + diag(1 - r_ENC)",
        cost="one more attention product",
        needs="block",
        covers="attention weights, residual and norms through r",
        leaves_out="how much each source's value matters",
    )

    def layer_map(self, layer: LayerRecord, budget: Budget) -> Tensor:
        weights = mean_over_heads(layer)
        identity = layer.identity()
        others = weights * (1 - identity)
        total = others.sum(dim=-1, keepdim=True)
        alone = (total == 0).squeeze(-1)  # nobody else to look at: all of it is the token's own
        ratio = mixing_ratio(layer, "norm2").masked_fill(alone, 0.0)
        shares = others / torch.where(total == 0, torch.ones_like(total), total)
        mixed = ratio[..., None] * shares + (1 - ratio)[..., None] * identity
        return mixed * layer.mask[..., None]
