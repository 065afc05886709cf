"""N_FF: the norm family with the feed-forward included, its activation ratio frozen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.methods.base import METHODS, About, LayerMethod
from ctxmix_hf.methods.linearised import LinearRest
from ctxmix_hf.records import LayerRecord, ModelRecord


@METHODS.register("norm_ff")
@dataclass(frozen=True)
class NormFeedForward(LayerMethod):
    """`N_FF[i,j] = ||LN2(zt[i,j] + W2 (r_i * W1 zt[i,j]))||`, `r_i = phi(h_i) / h_i`, deviations and ratios frozen.

    `norm_enc` with the feed-forward's part of each source: `zt` are the parts after the first norm
    (Modarressi et al. 2022, eq. 7), the activation is a line through zero (Modarressi et al. 2023,
    section 3, "zero-origin"). A gated feed-forward passes on half through each factor. Parts and
    constant (all biases) add up to the layer's output. Pre-LN layers have no norm after the sums:
    `||zr[i,j] + W2 (r_i * W1 LN zr[i,j])||`. Layers whose feed-forward is not proved (experts,
    parallel blocks) are refused.

    Args:
        row_normalised: divide each row by its sum.

    Example:
        >>> cm.explain(model, "The keys to the cabinet are here.", "norm_ff").layer(-1)
    """

    row_normalised: bool = False

    about = About(
        "N through the whole layer, feed-forward included",
        "Modarressi et al. 2023; Kobayashi et al. 2021",
        "||LN2(zt[i,j] + W2 (phi(h_i)/h_i * W1 zt[i,j]))||",
        "O(T^2 D F) per layer, in chunks",
        "feed_forward",
        "attention, both residuals, both norms, feed-forward",
        "biases; why an activation is open",
    )

    def check(self, record: ModelRecord) -> None:
        """Is every layer's feed-forward proved?"""
        for layer in record:
            LinearRest.of(layer, "norm_ff")

    def layer_map(self, layer: LayerRecord, budget: Budget) -> Tensor:
        """`[B, T target, T source]`, rows of padding zero."""
        rest = LinearRest.of(layer, "norm_ff")
        batch, _, tokens, _ = layer.attention.shape
        rows = []
        for targets in budget.chunks(tokens, batch * rest.bytes_each(tokens)):
            parts = layer.vectors("residual", targets)
            rows.append(
                torch.stack([rest(parts[b], b, targets).norm(dim=-1) for b in range(batch)])
            )
        norms = torch.cat(rows, dim=1) * (layer.mask[:, :, None] & layer.mask[:, None, :])
        return to_shares(norms, layer.mask) if self.row_normalised else norms
