"""Whom does the masked pronoun look at, and whom does the model mean? (Abnar & Zuidema 2020, figure 4)"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from ctxmix_hf.counting import layer_number
from ctxmix_hf.errors import InputError
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.metrics import NAN, mean_of
from ctxmix_hf.evaluation.scores import RANDOM, Array, Scores
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form

HER, HIS = ("Mary", "Sara", "Anna", "Julia"), ("John", "Paul", "David", "Mark")
# the first one named is A; the second of the paper's two sentences, and others of its kind
FRAMES = (
    "{a} convinced {b} of [MASK] love .",
    "{a} told {b} about [MASK] new house .",
    "{a} met {b} after [MASK] long day .",
    "{a} showed {b} the way to [MASK] office .",
)


def sentences() -> list[dict[str, Any]]:
    """Sentences with a masked pronoun and two people, one for `her` and one for `his`: the referent
    of the good word is the first cue, that of the bad word the second. Neither answer is the right one.
    """
    rows = []
    for frame, (her, his), her_first in product(FRAMES, zip(HER, HIS, strict=True), (True, False)):
        a, b = (her, his) if her_first else (his, her)
        words = frame.format(a=a, b=b).split()
        rows.append(
            {
                "words": words,
                "target_index": words.index("[MASK]"),
                "good_word": "her",
                "bad_word": "his",
                "cue_indices": [words.index(her), words.index(his)],
            }
        )
    return rows


def lean(scores: Scores, rows: Array) -> Array:
    """How much of what two candidates get goes to the first, per row of `[L, T]`: `[L]`, NaN where both get nothing."""
    first, second = (
        rows[:, list(scores.ready.words[word])].sum(axis=1) for word in scores.ready.sample.cues
    )
    total = first + second
    return np.where(total > 0, first / np.where(total > 0, total, 1.0), NAN)


def with_candidates(context: Context) -> list[Scores]:
    """Sentences with a target, a foil and the referent of each."""
    kept = [
        s
        for s in context.scores
        if len(s.ready.sample.cues) == 2 and s.ready.good is not None and s.ready.bad is not None
    ]
    if not kept:
        raise InputError(
            "pronouns compares two candidates: give rows with words, target_index, good_word, bad_word and "
            "cue_indices=[what the good word refers to, what the bad word refers to]."
        )
    return kept


def consistent(scores: Scores, rows: Array) -> list[float]:
    """Per layer: does the candidate that gets more belong to the pronoun the model prefers? 1, 0, or half where
    neither gets more (flow often gives both the same): a row that says nothing counts as chance.
    """
    side = np.nan_to_num(np.sign(lean(scores, rows) - 0.5)) * np.sign(scores.answer - 0.5)
    return [float((v + 1) / 2) for v in side]


@evaluation(
    "pronouns",
    "the masked pronoun's two candidates in each layer, beside the pronoun the model prefers",
    "Abnar & Zuidema 2020, figure 4",
)
def pronouns(context: Context) -> EvaluationTable:
    """One row per method, scope and layer: the mean part of the good word's candidate in what both get, how often the
    candidate with more is the one the model means, and the mean probability of the good word against the bad one.
    """
    some = with_candidates(context)
    rows: list[list[Cell]] = []
    for method in (m for m in context.method_set.maps if m != RANDOM):
        for scope in ("layer", "input"):
            tables = [(s.layers if scope == "layer" else s.input).get(method) for s in some]
            if any(t is None for t in tables):
                continue
            leans = [lean(s, t) for s, t in zip(some, tables, strict=True) if t is not None]
            agree = [consistent(s, t) for s, t in zip(some, tables, strict=True) if t is not None]
            rows += [
                [
                    f"{method} ({scope})",
                    method,
                    scope,
                    layer_number(layer),
                    mean_of([one[layer] for one in leans]),
                    mean_of([one[layer] for one in agree]),
                    mean_of([s.answer for s in some]),
                    len(some),
                ]
                for layer in range(len(leans[0]))
            ]
    form = Form("heatmap", "row", "consistent", "layer", title="Candidates as the model means them")
    columns = ("row", "method", "scope", "layer", "first", "consistent", "preferred", "n")
    caption = (
        "how often the candidate with the larger share is the one the model's pronoun refers to"
    )
    return context.table("pronouns", columns, rows, caption, form=form, sentences=len(some))
