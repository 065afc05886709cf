"""Integrated gradients from a masked sentence (Sundararajan et al. 2017, as used by Ferrando et al. 2022; METHODS.md 9)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.attribution.base import ATTRIBUTIONS, AbstractAttribution, Case
from ctxmix_hf.attribution.gradients import _finish, cut
from ctxmix_hf.errors import OptionError, UnsupportedMethodError
from ctxmix_hf.methods.base import About, check_choice


def baseline_hidden(case: Case, baseline: str | Tensor) -> Tensor:
    """e^layer of the baseline: zeros, or the same sentence with [MASK] for all but its first and last real token."""
    if isinstance(baseline, Tensor) and baseline.is_floating_point():
        return baseline.to(case.hidden).expand_as(case.hidden)
    if isinstance(baseline, str) and baseline == "zero":
        return torch.zeros_like(case.hidden)
    ids = baseline if isinstance(baseline, Tensor) else masked_ids(case)
    return case.record.replay.hidden_of(ids, case.layer)


def masked_ids(case: Case) -> Tensor:
    ids = case.record.input_ids
    if ids is None:
        raise UnsupportedMethodError("A masked baseline needs token ids: use baseline='zero' for images and sound.")
    ids, real = ids.clone(), case.record.mask
    for b in range(len(ids)):
        places = real[b].nonzero().squeeze(-1)
        ids[b, places[1:-1]] = case.token("mask")
    return ids


def nodes(rule: str, steps: int) -> tuple[Tensor, Tensor]:
    """Points on the way from baseline to input, and their weights."""
    if rule == "riemann":
        return torch.arange(1, steps + 1, dtype=torch.float64) / steps, torch.full((steps,), 1.0 / steps, dtype=torch.float64)
    points, weights = np.polynomial.legendre.leggauss(steps)
    return torch.from_numpy((points + 1) / 2), torch.from_numpy(weights / 2)


@ATTRIBUTIONS.register("integrated_gradients")
@dataclass(frozen=True)
class IntegratedGradients(AbstractAttribution):
    """`a_j = sum_b (e_j - b_j)[b] * mean_k g_j(b + k/m (e - b))[b]`, score `|a_j|` as shares.

    `rule="riemann"` is the paper's right sum with m = 100 steps; `"gauss_legendre"` converges to rounding error.
    Completeness, `sum_j a_j = f(e) - f(b)`, is measured and kept in the notes. First and last token score 0.
    """

    steps: int = 100
    rule: str = "riemann"
    baseline: str | Tensor = "mask"
    signed: bool = False
    shares: bool = True

    about = About("gradients averaged on the way from a masked sentence", "Sundararajan et al. 2017; Ferrando et al. 2022",
                  "(e_j - b_j) . mean_k g_j(b + k/m (e - b))", "m forward and backward passes, batched", "model",
                  "the whole model along a path", "nothing: its parts add up to f(e) - f(b)")  # fmt: skip

    def __post_init__(self) -> None:
        check_choice("integrated_gradients", "rule", self.rule, ("riemann", "gauss_legendre"))
        if isinstance(self.baseline, str):
            check_choice("integrated_gradients", "baseline", self.baseline, ("mask", "zero"))
        if self.steps < 1:
            raise OptionError("integrated_gradients: steps must be at least 1.")

    def scores(self, case: Case) -> Tensor:
        start = baseline_hidden(case, self.baseline)
        change = case.hidden - start
        points, weights = (t.to(case.hidden.device) for t in nodes(self.rule, self.steps))
        total = torch.zeros_like(change)
        for chunk in cut(case, self.steps):
            where = points[chunk].to(change.dtype)[:, None, None, None]
            along = (start[None] + where * change[None]).flatten(0, 1)
            grads = case.gradient(along).unflatten(0, (len(chunk), -1))
            total += (grads * weights[chunk].to(change.dtype)[:, None, None, None]).sum(dim=0)
        parts = (change * total).sum(dim=-1) * case.record.mask
        with torch.no_grad():
            gap = parts.sum(dim=-1) - (case.score_from(case.hidden) - case.score_from(start))
        case.notes["completeness_error"] = gap.abs().max().item()
        return parts if self.signed else _finish(parts.abs(), self.shares, case.record.mask)
