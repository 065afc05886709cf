"""The numbers of all evaluations, as plain functions of scores: nothing here knows a model or a sentence.

An undefined value (a constant row, fewer than three tokens, no positive) is NaN, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ctxmix_hf.algebra.ranks import spearman

Array = NDArray[np.float64]
SHORTEST = 3  # tokens: two points always correlate with +1 or -1
NAN = float("nan")


def rank_correlation(a: Any, b: Any) -> float:
    """Spearman with average ranks; NaN below three tokens or where a side is constant or not finite."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if len(x) < SHORTEST or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return NAN
    return float(spearman(torch.from_numpy(x), torch.from_numpy(y)))


def pearson(a: Any, b: Any) -> float:
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if len(x) < SHORTEST or np.ptp(x) == 0 or np.ptp(y) == 0:
        return NAN
    return float(np.corrcoef(x, y)[0, 1])


# ---- cue alignment (Mohebbi et al. 2023, section 5) ---------------------------------------------------------------
def shares(scores: ArrayLike) -> Array:
    """A row divided by the sum of its absolute values: sums to 1 where no score is negative."""
    row = np.asarray(scores, dtype=np.float64)
    total = np.abs(row).sum()
    return row / total if total > 0 else row


def dot_product(scores: ArrayLike, gold: ArrayLike) -> float:
    """The share of the row that lies on the cue words."""
    return float(shares(scores) @ np.asarray(gold, dtype=np.float64))


def average_precision(scores: ArrayLike, gold: ArrayLike) -> float:
    """Area under the precision-recall steps; tied scores are one step, as in scikit-learn. NaN without a positive."""
    row, truth = np.asarray(scores, dtype=np.float64), np.asarray(gold) > 0
    if not truth.any() or not np.isfinite(row).all():
        return NAN
    order = np.argsort(-row, kind="stable")
    found = np.cumsum(truth[order])
    ends = np.append(
        np.flatnonzero(np.diff(row[order])), len(row) - 1
    )  # last place of each group of equal scores
    recall = found[ends] / found[-1]
    precision = found[ends] / (ends + 1)
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def probes_needed(scores: ArrayLike, gold: ArrayLike) -> float:
    """How many words have to be looked at, best first, until the first cue is met (expected number over ties)."""
    row, truth = np.asarray(scores, dtype=np.float64), np.asarray(gold) > 0
    if not truth.any() or not np.isfinite(row).all():
        return NAN
    best = row[truth].max()
    tied, cues = int((row == best).sum()), int(((row == best) & truth).sum())
    return float((row > best).sum() + (tied + 1) / (cues + 1))


def cue_first(scores: ArrayLike, gold: ArrayLike) -> float:
    """1 where the word with the highest score is a cue (of several that share it: the share that are cues)."""
    row, truth = np.asarray(scores, dtype=np.float64), np.asarray(gold) > 0
    if not truth.any() or not np.isfinite(row).all():
        return NAN
    best = row == row.max()
    return float((best & truth).sum() / best.sum())


# ---- plausibility (DeYoung et al. 2020, section 4.2) --------------------------------------------------------------
def top_k(scores: ArrayLike, k: int) -> NDArray[np.bool_]:
    """True on the k best; earlier words win ties."""
    row = np.asarray(scores, dtype=np.float64)
    chosen = np.zeros(len(row), dtype=bool)
    chosen[np.argsort(-row, kind="stable")[:k]] = True
    return chosen


def token_f1(chosen: ArrayLike, gold: ArrayLike) -> float:
    picked, truth = np.asarray(chosen) > 0, np.asarray(gold) > 0
    total = int(picked.sum() + truth.sum())
    return NAN if total == 0 else float(2 * (picked & truth).sum() / total)


def overlap(chosen: ArrayLike, gold: ArrayLike) -> float:
    """Intersection over union of the two sets of words."""
    picked, truth = np.asarray(chosen) > 0, np.asarray(gold) > 0
    union = int((picked | truth).sum())
    return NAN if union == 0 else float((picked & truth).sum() / union)


# ---- erasure (DeYoung et al. 2020, section 4.3) -------------------------------------------------------------------
def count_of(fraction: float, length: int) -> int:
    """How many of `length` tokens a fraction means: at least one."""
    return min(length, max(1, math.ceil(fraction * length - 1e-9)))


def area(fractions: Sequence[float], values: Sequence[float]) -> float:
    """Trapezoid area under a curve, divided by the width it spans."""
    x, y = np.asarray(fractions, dtype=np.float64), np.asarray(values, dtype=np.float64)
    return float(np.sum((x[1:] - x[:-1]) * (y[1:] + y[:-1]) / 2) / (x[-1] - x[0]))


# ---- summaries ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SampleSummary:
    """Mean, sample standard deviation and a bootstrap interval over the defined values; how many were not."""

    mean: float
    std: float
    low: float
    high: float
    n: int
    undefined: int


def summarise(
    values: Sequence[float], seed: int = 0, draws: int = 1000, level: float = 0.95
) -> SampleSummary:
    """Percentile bootstrap of the mean (Efron 1979). The same seed gives the same interval."""
    every = np.asarray(values, dtype=np.float64)
    known = every[np.isfinite(every)]
    missing = len(every) - len(known)
    if len(known) == 0:
        return SampleSummary(NAN, NAN, NAN, NAN, 0, missing)
    std = float(known.std(ddof=1)) if len(known) > 1 else NAN
    picks = np.random.default_rng(seed).integers(0, len(known), size=(draws, len(known)))
    means = known[picks].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return SampleSummary(float(known.mean()), std, float(low), float(high), len(known), missing)


def mean_of(values: Sequence[float]) -> float:
    """Mean of the defined values; NaN where there is none."""
    known = [v for v in values if math.isfinite(v)]
    return float(np.mean(known)) if known else NAN
