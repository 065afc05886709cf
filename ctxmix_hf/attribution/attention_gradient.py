"""Attention times its gradient, accumulated over layers (Chefer et al. 2021, "Generic
Attention-model Explainability", eq. 5-6).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctxmix_hf.attribution.base import ATTRIBUTIONS, AbstractAttribution, Case
from ctxmix_hf.methods.base import About


@ATTRIBUTIONS.register("attention_gradient")
@dataclass(frozen=True)
class AttentionGradient(AbstractAttribution):
    """`R = I`, then `R += mean_h(max(0, dA * A)) R` layer by layer; the scores are the row of R that the head reads.

    `dA = d f / d A` at the attention probabilities of each layer (Chefer et al. 2021, arXiv
    2103.15679, eq. 5-6; f is the class' logit there: `of="logit"`). Heads that read one token
    ([CLS], the masked or the last word) have one row; where the head reads several, as in a mean,
    their rows are averaged. Scores are not negative. The identity keeps each token for itself:
    `drop_own=True` sets the score of a token that is read to 0, as the authors' code does with [CLS].

    Args:
        drop_own: leave out what a token that the head reads owes to itself.

    Example:
        >>> cm.attribute(model, "A charming film.", "attention_gradient", of="logit")
    """

    drop_own: bool = False

    about = About(
        "positive part of attention times its gradient, accumulated",
        "Chefer et al. 2021",
        "R += mean_h((dA * A)^+) R, R = I at first",
        "one forward and one backward pass",
        "model",
        "attention of all layers, by its effect on the class",
        "values and residuals but for a fixed 1; what speaks against the class",
    )

    def scores(self, case: Case) -> Tensor:
        """`[B, T]`, zero on padding."""
        layers, last = case.record.replay.attention_gradients(
            lambda output: case.question.score(output.logits)
        )
        mask = case.record.mask
        tokens = mask.shape[1]
        relevance = torch.eye(tokens, dtype=last.dtype, device=last.device).repeat(len(mask), 1, 1)
        for attention, gradient in layers:
            kept = (attention * gradient).clamp(min=0).mean(dim=1).to(relevance.dtype)
            kept = kept * (mask[:, :, None] & mask[:, None, :])
            relevance = relevance + kept @ relevance
        read = (last != 0).any(dim=-1) & mask  # [B, T]
        if self.drop_own:
            relevance = relevance - torch.diag_embed(relevance.diagonal(dim1=-2, dim2=-1) * read)
        rows = (relevance * read[..., None]).sum(dim=1) / read.sum(dim=1, keepdim=True).clamp(min=1)
        return rows * mask
