"""Abnar & Zuidema 2020: does attention, raw, rolled out or as flow, follow blank-out and gradients?"""

from __future__ import annotations

from collections.abc import Sequence

from ctxmix_hf.evaluation.metrics import rank_correlation
from ctxmix_hf.evaluation.papers.desk import Desk
from ctxmix_hf.evaluation.papers.items import (
    RIGHT,
    Claim,
    Found,
    ItemRow,
    Ours,
    above,
    first_layer,
    item,
    last_layer,
    layer_name,
    mean_row,
    spread,
    told_accuracy,
    where_right,
)
from ctxmix_hf.evaluation.pronouns import consistent, with_candidates
from ctxmix_hf.evaluation.scores import BLANK_OUT_ABS, Scores

PAPER = "abnar2020"
Numbers = dict[str, Sequence[float]]
TABLE_1: Numbers = {
    "raw": (0.69, 0.10, -0.11, -0.09, 0.20, 0.29),
    "rollout": (0.32, 0.38, 0.51, 0.62, 0.70, 0.71),
    "flow": (0.32, 0.44, 0.70, 0.70, 0.71, 0.70),
}
TABLE_2: Numbers = {
    "raw": (0.53, 0.16, -0.06, 0.00, 0.24, 0.46),
    "rollout": (0.22, 0.27, 0.39, 0.47, 0.53, 0.54),
    "flow": (0.22, 0.31, 0.54, 0.61, 0.60, 0.61),
}
# DistilBERT; the paper leaves out layers 2 and 4
TABLE_3: dict[str, dict[int, float]] = {
    "raw": {1: 0.12, 3: 0.09, 5: 0.08, 6: 0.09},
    "rollout": {1: 0.11, 3: 0.12, 5: 0.13, 6: 0.13},
    "flow": {1: 0.11, 3: 0.11, 5: 0.12, 6: 0.14},
}
WAYS = {"raw": "attention", "rollout": "attention_rollout", "flow": "attention_flow"}
MOST = 500  # flow is the slow one


def layer_rows(
    scores: Sequence[Scores], method: str, scope: str, reference: str, label: str, paper: Numbers
) -> list[ItemRow]:
    """One row per layer: the mean over sentences of Spearman's correlation with the reference."""
    tables = [(s.layers if scope == "layer" else s.input)[method] for s in scores]
    depth = min(len(t) for t in tables)
    return [
        mean_row(
            layer_name(label, layer),
            [
                rank_correlation(t[layer], s.final(reference))
                for s, t in zip(scores, tables, strict=True)
            ],
            spread(paper.get(label), depth, layer),
        )
        for layer in range(depth)
    ]


def _three_ways(
    scores: Sequence[Scores], reference: str, paper: Numbers, which: str = ""
) -> list[ItemRow]:
    return [
        row
        for label, method in WAYS.items()
        for row in layer_rows(
            scores, method, "layer" if label == "raw" else "input", reference, label + which, paper
        )
    ]


def _verbs(desk: Desk, reference: str, paper: Numbers) -> Found:
    """All sentences, then those whose verb the model knows: an explanation of a guess has nothing to find."""
    scores = desk.context("linzen", MOST).scores
    known = where_right(scores)
    rows = _three_ways(scores, reference, paper)
    if known:
        rows += _three_ways(known, reference, {}, f", {RIGHT}")
    return Found(rows, len(scores), told_accuracy(scores))


def _beats_raw(ours: Ours) -> bool | None:
    best = max(last_layer(ours, "rollout"), last_layer(ours, "flow"))
    return above(best, last_layer(ours, "raw"))


CLAIMS = (
    Claim(
        "In the last layer rollout or flow follows the reference better than raw attention.",
        _beats_raw,
    ),
    Claim(
        "Rollout follows it better in the last layer than in the first.",
        lambda ours: above(last_layer(ours, "rollout"), first_layer(ours, "rollout")),
    ),
)
VERBS = (
    "The paper predicts a verb's number from [CLS], of the sentence up to the verb; here the verb is masked in "
    "the whole sentence, and the row is the mask's."
)


@item(
    PAPER,
    "Table 1",
    "Spearman's correlation with blank-out, by layer",
    "masked_lm",
    "linzen",
    CLAIMS,
    VERBS,
)
def table_1(desk: Desk) -> Found:
    return _verbs(desk, BLANK_OUT_ABS, TABLE_1)


@item(
    PAPER,
    "Table 2",
    "Spearman's correlation with the input gradient, by layer",
    "masked_lm",
    "linzen",
    CLAIMS,
    VERBS,
)
def table_2(desk: Desk) -> Found:
    return _verbs(desk, "grad_sum", TABLE_2)


@item(
    PAPER,
    "Table 3",
    "the same of a sentiment classifier's [CLS], with gradients",
    "classifier",
    "sst2",
    CLAIMS,
    "The paper's model is DistilBERT, on 100 sentences.",
)
def table_3(desk: Desk) -> Found:
    scores = desk.context("sst2 flow", 100).scores
    rows = _three_ways(scores, "grad_sum", {})
    depth = len(scores[0].layers["attention"])
    known = {
        layer_name(label, layer - 1): value
        for label, values in TABLE_3.items()
        for layer, value in values.items()
        if depth == 6
    }
    return Found(
        [ItemRow(r.name, r.ours, r.low, r.high, known.get(r.name)) for r in rows], len(scores)
    )


@item(
    PAPER,
    "Figure 4",
    "how often the candidate that the masked pronoun takes more from is the one the model means, by layer",
    "masked_lm",
    "pronouns",
    (
        Claim(
            "In the last layer flow is more consistent with the model's pronoun than raw attention.",
            lambda ours: above(last_layer(ours, "flow"), last_layer(ours, "raw")),
        ),
    ),
    "The paper shows two sentences of BERT's and gives no numbers; here are sentences of the second one's kind. "
    "Half is chance.",
)
def figure_4(desk: Desk) -> Found:
    scores = with_candidates(desk.context("pronouns"))
    rows = []
    for label, method in WAYS.items():
        each = [consistent(s, (s.layers if label == "raw" else s.input)[method]) for s in scores]
        rows += [
            mean_row(layer_name(label, layer), [one[layer] for one in each])
            for layer in range(len(each[0]))
        ]
    return Found(rows, len(scores))
