"""Gradient attributions at e^0, the tensor that enters layer 1 (Modarressi et al. 2022, eq. 17, and its kin)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.attribution.base import ATTRIBUTIONS, AbstractAttribution, Case
from ctxmix_hf.errors import OptionError
from ctxmix_hf.methods.base import About

COST = "one forward and one backward pass"


def _finish(scores: Tensor, shares: bool, mask: Tensor) -> Tensor:
    scores = scores * mask
    return to_shares(scores[:, None], None)[:, 0] if shares else scores


def check_signed(name: str, signed: bool, shares: bool | None) -> None:
    if signed and shares:
        raise OptionError(
            f"{name}: shares=True divides absolute scores by their sum: say signed=False too."
        )


def finish_signed(parts: Tensor, signed: bool, shares: bool | None, mask: Tensor) -> Tensor:
    """Scores with their sign, or absolute ones (as shares unless `shares=False`)."""
    return parts * mask if signed else _finish(parts.abs(), shares is not False, mask)


@ATTRIBUTIONS.register("grad_l2")
@dataclass(frozen=True)
class GradientL2(AbstractAttribution):
    """`||g_j||` as shares, `g_j = d f / d e^0_j` (Ferrando et al. 2022)."""

    shares: bool = True

    about = About(
        "length of the gradient",
        "Ferrando et al. 2022",
        "||g_j|| / sum_k ||g_k||",
        COST,
        "model",
        "the whole model, to first order",
        "saturation",
    )

    def scores(self, case: Case) -> Tensor:
        return _finish(case.gradient(case.hidden).norm(dim=-1), self.shares, case.record.mask)


@ATTRIBUTIONS.register("grad_dot_input")
@dataclass(frozen=True)
class GradientDotInput(AbstractAttribution):
    """`g_j . e^0_j`, signed; `signed=False` gives `|g_j . e^0_j|` as shares (Ferrando et al. 2022)."""

    signed: bool = True
    shares: bool | None = None  # of the absolute scores; None: where they are not signed

    about = About(
        "gradient times input, summed",
        "Ferrando et al. 2022",
        "g_j . e_j (signed=False: |g_j . e_j| as shares)",
        COST,
        "model",
        "the whole model, to first order",
        "saturation",
    )

    def __post_init__(self) -> None:
        check_signed("grad_dot_input", self.signed, self.shares)

    def scores(self, case: Case) -> Tensor:
        products = (case.gradient(case.hidden) * case.hidden).sum(dim=-1)
        return finish_signed(products, self.signed, self.shares, case.record.mask)


@ATTRIBUTIONS.register("grad_x_input")
@dataclass(frozen=True)
class GradientTimesInput(AbstractAttribution):
    """`||g_j * e^0_j||`, the elementwise product's length (Modarressi et al. 2022), unnormalised."""

    shares: bool = False

    about = About(
        "gradient times input, length",
        "Modarressi et al. 2022",
        "||g_j * e_j||",
        COST,
        "model",
        "the whole model, to first order",
        "saturation",
    )

    def scores(self, case: Case) -> Tensor:
        return _finish(
            (case.gradient(case.hidden) * case.hidden).norm(dim=-1), self.shares, case.record.mask
        )


@ATTRIBUTIONS.register("grad_sum")
@dataclass(frozen=True)
class GradientSum(AbstractAttribution):
    """`|sum_b g_j[b]|` (Abnar & Zuidema 2020), unnormalised."""

    shares: bool = False

    about = About(
        "gradient, summed over coordinates",
        "Abnar & Zuidema 2020",
        "|sum_b g_j[b]|",
        COST,
        "model",
        "the whole model, to first order",
        "saturation, cancelling coordinates",
    )

    def scores(self, case: Case) -> Tensor:
        return _finish(case.gradient(case.hidden).sum(dim=-1).abs(), self.shares, case.record.mask)


def cut(case: Case, steps: int) -> list[Tensor]:
    """Step numbers in chunks that fit the memory budget."""
    batch, tokens, width = case.hidden.shape
    each = (
        60 * batch * tokens * (width + tokens) * len(case.record) * case.hidden.element_size() // 4
    )
    return [
        torch.arange(s.start, s.stop)
        for s in case.budget.chunks(steps, each, limit=max(1, 2048 // (batch * tokens)))
    ]
