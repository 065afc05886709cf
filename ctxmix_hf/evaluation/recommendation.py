"""Which method should be believed for this model? Said in words, from the numbers measured here and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ctxmix_hf.errors import InputError
from ctxmix_hf.evaluation.agreement import by_word
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.cue_alignment import alignments
from ctxmix_hf.evaluation.erasure import erasures, measures
from ctxmix_hf.evaluation.metrics import Array, average_precision, rank_correlation
from ctxmix_hf.evaluation.scores import RANDOM, Scores
from ctxmix_hf.evaluation.table import Cell, EvaluationTable

CRITERIA = {
    "cue alignment": "points at the annotated cue words most",
    "blank-out": "follows best what happens when a token is blanked out",
    "gradients": "agrees best with the gradient saliencies",
    "erasure": "finds the tokens without which the answer changes most",
    "rationales": "finds the words that people marked best",
}


@dataclass(frozen=True)
class Verdict:
    """The best and the second-best method by one criterion, and whether the difference is more than chance."""

    criterion: str
    best: str
    value: float
    second: str
    second_value: float
    separated: bool
    beats_random: bool | None
    n: int


def paired_interval(a: Array, b: Array, seed: int, draws: int = 1000) -> tuple[float, float]:
    """95 % bootstrap interval of the mean difference over the same sentences."""
    gap = a - b
    gap = gap[np.isfinite(gap)]
    if len(gap) == 0:
        return math.nan, math.nan
    picks = np.random.default_rng(seed).integers(0, len(gap), size=(draws, len(gap)))
    low, high = np.quantile(gap[picks].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def judge(criterion: str, values: dict[str, Array], seed: int) -> Verdict | None:
    """Rank methods by their mean; None where fewer than two have one."""
    means = {
        name: float(np.nanmean(v))
        for name, v in values.items()
        if name != RANDOM and np.isfinite(v).any()
    }
    order = sorted(means, key=lambda name: -means[name])
    if len(order) < 2:
        return None
    best, second = order[0], order[1]
    separated = paired_interval(values[best], values[second], seed)[0] > 0
    beats = paired_interval(values[best], values[RANDOM], seed)[0] > 0 if RANDOM in values else None
    return Verdict(
        criterion,
        best,
        means[best],
        second,
        means[second],
        separated,
        beats,
        int(np.isfinite(values[best]).sum()),
    )


def evidence(context: Context) -> dict[str, dict[str, Array]]:
    """Per criterion and method, one value per sentence, higher is better."""
    names = [n for n in [*context.method_set.maps, RANDOM] if n in context.compared]
    scores, found = context.scores, {}
    with_cue = (
        [s for s in scores if s.ready.sample.cues] if context.bench.head == "masked_lm" else []
    )
    gradients = [n for n in context.method_set.attributions if n not in ("blank_out", "ledger")]

    def each(measure: Callable[[str], list[float]]) -> dict[str, Array]:
        return {name: np.array(measure(name)) for name in names}

    if with_cue:
        found["cue alignment"] = each(lambda m: alignments(with_cue, m, "dot_product")[1])
    if "blank_out" in context.method_set.attributions:
        found["blank-out"] = each(
            lambda m: [rank_correlation(s.final(m), s.final("blank_out")) for s in scores]
        )
    if gradients:
        found["gradients"] = each(
            lambda m: [
                _mean([rank_correlation(s.final(m), s.final(g)) for g in gradients]) for s in scores
            ]
        )
    erased = erasures(context)
    found["erasure"] = each(lambda m: [measures(r["before"], r["curves"][m])[0] for r in erased])
    gold = [s for s in scores if s.ready.sample.gold and any(s.ready.sample.gold)]
    if gold:
        found["rationales"] = each(lambda m: [_precision(s, m) for s in gold])
    return found


def _mean(values: list[float]) -> float:
    known = [v for v in values if math.isfinite(v)]
    return float(np.mean(known)) if known else math.nan


def _precision(scores: Scores, method: str) -> float:
    gold = scores.ready.sample.gold
    assert gold is not None, "asked of sentences with marked words"
    return average_precision(by_word(scores, method), gold)


def in_words(verdict: Verdict) -> str:
    """One sentence a reader can act on."""
    said = f"{verdict.best} {CRITERIA[verdict.criterion]} ({verdict.value:.2f}, n = {verdict.n})"
    if verdict.beats_random is False:
        return f"{said}, but not measurably better than random scores: this criterion decides nothing here."
    if verdict.separated:
        return f"{said}, measurably better than the next, {verdict.second} ({verdict.second_value:.2f})."
    return (
        f"{said}, but {verdict.second} ({verdict.second_value:.2f}) cannot be told apart from "
        "it on so few sentences."
    )


@evaluation(
    "recommendation",
    "which method to believe for this model, in words",
    "drawn from the measured numbers",
)
def recommendation(context: Context) -> EvaluationTable:
    """One row per criterion; the notes say in words what follows, and what does not."""
    context.need_sentences()
    found = evidence(context)
    verdicts = [
        v
        for v in (judge(name, values, context.seed) for name, values in found.items())
        if v is not None
    ]
    if not verdicts:
        raise InputError("A recommendation needs at least two map methods to choose from.")
    rows: list[list[Cell]] = [
        [
            v.criterion,
            v.best,
            v.value,
            v.second,
            v.second_value,
            "yes" if v.separated else "no",
            "-" if v.beats_random is None else "yes" if v.beats_random else "no",
            v.n,
        ]
        for v in verdicts
    ]
    columns = (
        "criterion",
        "best",
        "value",
        "second",
        "second_value",
        "separated",
        "beats_random",
        "n",
    )
    notes = [in_words(v) for v in verdicts] + [overall(found)]
    return context.table(
        "recommendation", columns, rows, "the best method by each criterion", notes=notes
    )


def overall(found: dict[str, dict[str, Array]]) -> str:
    """The method with the best mean rank over the criteria."""
    names = [n for n in next(iter(found.values())) if n != RANDOM]
    places: dict[str, list[int]] = {name: [] for name in names}
    for values in found.values():
        means = {
            n: np.nanmean(values[n]) if np.isfinite(values[n]).any() else -math.inf for n in names
        }
        for place, name in enumerate(sorted(names, key=lambda n: -means[n]), 1):
            places[name].append(place)
    best = min(names, key=lambda n: (np.mean(places[n]), n))
    shown = ", ".join(f"{place} by {name}" for place, name in zip(places[best], found, strict=True))
    return (
        f"Over all {len(found)} criteria, {best} has the best mean place "
        f"({np.mean(places[best]):.1f} of {len(names)}: {shown}). "
        "This holds for this model and these sentences; another task can turn it round."
    )
