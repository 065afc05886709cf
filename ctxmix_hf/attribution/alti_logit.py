"""ALTI-Logit: each layer's update of a logit, shared out over its sources and traced to the input
by ALTI (Ferrando et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ctxmix_hf.attribution.base import ATTRIBUTIONS, AbstractAttribution, Case
from ctxmix_hf.attribution.gradients import check_signed, finish_signed
from ctxmix_hf.errors import UnsupportedMethodError
from ctxmix_hf.methods.alti import Alti
from ctxmix_hf.methods.base import About
from ctxmix_hf.methods.linearised import check_chain
from ctxmix_hf.pieces import NormState


@ATTRIBUTIONS.register("alti_logit")
@dataclass(frozen=True)
class AltiLogit(AbstractAttribution):
    """`sum_l d^l M^(l-1)`, `d^l[j] = sum_i <g^l_i, z^l[i,j]>` the logit that layer l's attention
    brings from j, M the ALTI rollout.

    Ferrando et al. 2023 (arXiv 2305.12535): the residual stream is a sum of updates, each projected
    on the logit through the final norm (deviation frozen) and the unembedding, g; the update of a
    layer's attention is a sum over its sources, and those are traced to the input tokens by the
    product of the ALTI maps of the layers below, `M^0 = I`. The paper has pre-LN models; where
    norms stand on the residual stream (post-LN) their linear parts take g down through it. The
    feed-forwards' updates belong to no token: with the biases they are `notes["rest"]`, so that
    scores and rest sum to the logit.

    Args:
        initial: give each token that the head reads what its own e^0 brings directly; without it
            (the paper's) that is rest too. signed: keep the sign; False gives absolute shares.
        shares: of the absolute scores; None: where they are not signed.

    Example:
        >>> cm.attribute(model, "The keys to the cabinet", "alti_logit", class_index="are", foil="is")
    """

    initial: bool = False
    signed: bool = True
    shares: bool | None = None

    only_logit: ClassVar[bool] = True
    about = About(
        "updates of the logit by each layer's attention, traced by ALTI",
        "Ferrando et al. 2023",
        "sum_l d^l M^(l-1), d^l[j] = <g^l, z^l[i,j]>",
        "one backward pass through the head, ALTI maps",
        "model",
        "attention of all layers, on its direct way to the logit",
        "feed-forwards; what an update does in later layers",
    )

    def __post_init__(self) -> None:
        check_signed("alti_logit", self.signed, self.shares)

    def scores(self, case: Case) -> Tensor:
        """`[B, T]`, zero on padding."""
        record, mask = case.record, case.record.mask
        check_chain(record, "alti_logit")
        for layer in record:
            if not layer.block.tail_complete:
                raise UnsupportedMethodError(
                    f"{layer.title}: something other than a sum or a norm changes the residual stream, so no update "
                    "reaches the logit unharmed. Use the ledger."
                )
        question = replace(case.question, of="logit")
        value, g = record.replay.head_direction(question.of_examples)
        g = g * mask[..., None]
        updates: list[Tensor] = []  # [B, T source], the last layer first
        for layer in reversed(record.layers):
            block = layer.block
            for norm in (*reversed(block.tail), *([] if block.norm1 is None else [block.norm1])):
                g = _back_through(norm, g)
            parts = layer.parts("attention")
            per_head = torch.einsum("bid,bhjd->bhij", g, parts.heads)
            update = (per_head * layer.attention).sum(dim=1)
            update = update if parts.scale is None else update * parts.scale
            updates.append(update.sum(dim=1))
            layer.release()
        total = torch.zeros_like(updates[0])
        rollout: Tensor | None = None  # M^(l-1)
        for layer, update in zip(record.layers, reversed(updates), strict=True):
            total = total + (
                update if rollout is None else torch.einsum("bj,bjk->bk", update, rollout)
            )
            contributions = Alti().layer_map(layer, case.budget)
            rollout = contributions if rollout is None else contributions @ rollout
            layer.release()
        if self.initial:
            total = total + (g * record[0].layer_input).sum(dim=-1)
        total = total * mask
        case.notes["rest"] = (value - total.sum(dim=1)).tolist()
        return finish_signed(total, self.signed, self.shares, mask)


def _back_through(norm: NormState, g: Tensor) -> Tensor:
    """The transpose of a norm's linear part: `<g, norm(v)> = <_back_through(g), v>` for every part v."""
    g = g if norm.weight is None else g * norm.weight
    g = g / norm.deviation
    return g - g.mean(dim=-1, keepdim=True) if norm.kind == "layer" else g
