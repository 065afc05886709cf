"""Integrated gradients from a masked sentence (Sundararajan et al. 2017, as used by Ferrando et al.
2022).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.attribution.base import ATTRIBUTIONS, AbstractAttribution, Case
from ctxmix_hf.attribution.gradients import check_signed, cut, finish_signed
from ctxmix_hf.errors import OptionError, UnsupportedMethodError
from ctxmix_hf.methods.base import About, check_choice

STEPS = {"gauss_legendre": 20, "riemann": 100}  # the papers take 100 of a right sum


def baseline_hidden(case: Case, baseline: str | Tensor) -> Tensor:
    """e^layer of the baseline: zeros, the same sentence masked (`masked_ids`), or (`"auto"`) zeros
    where there is no mask token.
    """
    if isinstance(baseline, Tensor) and baseline.is_floating_point():
        return baseline.to(case.hidden).expand_as(case.hidden)
    if isinstance(baseline, str):
        masks = case.record.input_ids is not None and case.special.get("mask") is not None
        baseline = ("mask" if masks else "zero") if baseline == "auto" else baseline
        case.notes["baseline"] = baseline
    if isinstance(baseline, str) and baseline == "zero":
        return torch.zeros_like(case.hidden)
    ids = baseline if isinstance(baseline, Tensor) else masked_ids(case)
    return case.record.replay.hidden_of(ids, case.layer)


def masked_ids(case: Case) -> Tensor:
    """[MASK] for all but the first and the last real token, which frame the sentence; a decoder's
    only frame is its start token.
    """
    ids = case.record.input_ids
    if ids is None:
        raise UnsupportedMethodError(
            "A masked baseline needs token ids: use baseline='zero' for images and sound."
        )
    ids, real = ids.clone(), case.record.mask
    decoder = case.decoder or case.record.causal
    for b in range(len(ids)):
        places = real[b].nonzero().squeeze(-1)
        framed = not decoder or int(ids[b, places[0]]) == case.special.get("bos")
        ids[b, places[int(framed) : None if decoder else -1]] = case.token("mask")
    return ids


@torch.no_grad()
def change_from(case: Case, start: Tensor) -> Tensor:
    """`[B]`: `f(e) - f(b)`, `start` the e^layer of b."""
    return case.question.score(case.logits) - case.score_from(start)


def nodes(rule: str, steps: int) -> tuple[Tensor, Tensor]:
    """Points on the way from baseline to input, and their weights."""
    if rule == "riemann":
        return torch.arange(1, steps + 1, dtype=torch.float64) / steps, torch.full(
            (steps,), 1.0 / steps, dtype=torch.float64
        )
    points, weights = np.polynomial.legendre.leggauss(steps)
    return torch.from_numpy((points + 1) / 2), torch.from_numpy(weights / 2)


@ATTRIBUTIONS.register("integrated_gradients")
@dataclass(frozen=True)
class IntegratedGradients(AbstractAttribution):
    """`a_j = sum_b (e_j - b_j)[b] * mean_k g_j(b + k/m (e - b))[b]`: signed, `sum_j a_j = f(e) - f(b)`.

    `signed=False` gives `|a_j|` as shares of 1, as Ferrando et al. 2022 compare them (`shares=False`: unnormalised).
    The default is `rule="gauss_legendre"` with m = 20 steps, which is far more complete than the
    papers' right sum, `rule="riemann"` with m = 100 steps, at a fifth of its cost. The baseline is
    the masked sentence (an encoder's first and last token stay and score 0), or zero where the
    model has no mask token; the notes say which, and how far the sum is from `f(e) - f(b)`.
    """

    steps: int | None = None  # None: 20 for gauss_legendre, 100 for riemann
    rule: str = "gauss_legendre"
    baseline: str | Tensor = "auto"
    signed: bool = True
    shares: bool | None = None  # of the absolute scores; None: where they are not signed

    about = About(
        "gradients averaged on the way from a masked sentence",
        "Sundararajan et al. 2017; Ferrando et al. 2022",
        "(e_j - b_j) . mean_k g_j(b + k/m (e - b))",
        "m forward and backward passes, batched",
        "model",
        "the whole model along a path",
        "nothing: its parts add up to f(e) - f(b)",
    )

    def __post_init__(self) -> None:
        check_choice("integrated_gradients", "rule", self.rule, ("riemann", "gauss_legendre"))
        if isinstance(self.baseline, str):
            check_choice(
                "integrated_gradients", "baseline", self.baseline, ("auto", "mask", "zero")
            )
        check_signed("integrated_gradients", self.signed, self.shares)
        if self.steps is None:
            object.__setattr__(self, "steps", STEPS[self.rule])
        elif self.steps < 1:
            raise OptionError("integrated_gradients: steps must be at least 1.")

    def scores(self, case: Case) -> Tensor:
        start = baseline_hidden(case, self.baseline)
        change = case.hidden - start
        steps = self.steps or STEPS[self.rule]
        points, weights = (t.to(case.hidden.device) for t in nodes(self.rule, steps))
        total = torch.zeros_like(change)
        for chunk in cut(case, steps):
            where = points[chunk].to(change.dtype)[:, None, None, None]
            along = (start[None] + where * change[None]).flatten(0, 1)
            grads = case.gradient(along).unflatten(0, (len(chunk), -1))
            total += (grads * weights[chunk].to(change.dtype)[:, None, None, None]).sum(dim=0)
        parts = (change * total).sum(dim=-1) * case.record.mask
        gap = parts.sum(dim=-1) - change_from(case, start)
        case.notes["completeness_error"] = gap.abs().max().item()
        return finish_signed(parts, self.signed, self.shares, case.record.mask)

    def owed(self, case: Case) -> Tensor:
        return change_from(case, baseline_hidden(case, self.baseline))
