"""Ferrando et al. 2022 (ALTI): faithfulness, anisotropy, special tokens, and two models that agree."""

from __future__ import annotations

import numpy as np

from ctxmix_hf.errors import InputError
from ctxmix_hf.evaluation.agreement import by_word, descending_ranks
from ctxmix_hf.evaluation.attention_types import type_of
from ctxmix_hf.evaluation.geometry import directions
from ctxmix_hf.evaluation.metrics import mean_of, rank_correlation
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
    layer_name,
    mean_row,
    resampled,
    told_accuracy,
    where_right,
)
from ctxmix_hf.evaluation.scores import BLANK_OUT_ABS

PAPER = "ferrando2022"
METHODS = {"Attn Rollout": "attention_rollout", "Norm Rollout": "norm_rollout", "ALTI": "alti"}
# DistilBERT (six layers) and BERT (twelve): the nearer one is compared with
SST2 = {
    6: {"Attn Rollout": 0.23, "Norm Rollout": 0.29, "ALTI": 0.54},
    12: {"Attn Rollout": -0.03, "Norm Rollout": 0.41, "ALTI": 0.55},
}
SVA = {
    6: {"Attn Rollout": 0.23, "Norm Rollout": 0.31, "ALTI": 0.41},
    12: {"Attn Rollout": -0.02, "Norm Rollout": 0.19, "ALTI": 0.40},
}
CLAIMS = (
    Claim(
        "ALTI is the most faithful of the three.",
        lambda ours: above(ours["ALTI"], max(ours["Attn Rollout"], ours["Norm Rollout"])),
    ),
)
NEARER = (
    "The paper's numbers are DistilBERT's where our model has six layers or fewer, else BERT's."
)


def _nearer(numbers: dict[int, dict[str, float]], depth: int) -> dict[str, float]:
    return numbers[6 if depth <= 6 else 12]


@item(
    PAPER,
    "Table 2",
    "Spearman's correlation of the [CLS] row with the gradient's length, sentiment",
    "classifier",
    "sst2",
    CLAIMS,
    NEARER,
)
def table_2_sentiment(desk: Desk) -> Found:
    context = desk.context("sst2")
    numbers = _nearer(SST2, context.bench.depth)
    rows = [
        mean_row(
            label,
            [rank_correlation(s.final(name), s.final("grad_l2")) for s in context.scores],
            numbers[label],
        )
        for label, name in METHODS.items()
    ]
    return Found(rows, len(context.scores))


@item(
    PAPER,
    "Table 2",
    "Spearman's correlation of the [MASK] row with blank-out by [MASK], subject-verb agreement",
    "masked_lm",
    "linzen",
    CLAIMS,
    NEARER,
)
def table_2_agreement(desk: Desk) -> Found:
    context = desk.context("linzen mask", 500)
    numbers = _nearer(SVA, context.bench.depth)
    known = where_right(context.scores)
    rows = [
        mean_row(
            label + which,
            [rank_correlation(s.final(name), s.final(BLANK_OUT_ABS)) for s in some],
            None if which else numbers[label],
        )
        for which, some in (("", context.scores), (f", {RIGHT}", known))
        for label, name in METHODS.items()
        if some
    ]
    return Found(rows, len(context.scores), told_accuracy(context.scores))


@item(
    PAPER,
    "Figure 3",
    "mean cosine of random vectors: outputs of the attention block, and transformed vectors",
    "classifier",
    "sst2",
    (
        Claim(
            "Transformed vectors are less anisotropic than block outputs (first layer).",
            lambda ours: above(first_layer(ours, "outputs"), first_layer(ours, "transformed")),
        ),
        Claim(
            "They are so in every layer.",
            lambda ours: all(
                ours[name] > ours[name.replace("outputs", "transformed")]
                for name in ours
                if name.startswith("outputs")
            ),
        ),
    ),
    "The figure gives no numbers.",
)
def figure_3(desk: Desk) -> Found:
    context = desk.context("sst2", 500)
    rows: list[ItemRow] = []
    for name, found in directions(context).items():
        for layer, made in enumerate(found):
            indices = list(range(len(made.counts)))
            rows.append(
                resampled(
                    layer_name(name, layer),
                    indices,
                    lambda some, made=made: made.mean_cosine(np.asarray(some)),  # type: ignore[misc]
                    draws=100,
                )
            )
    return Found(rows, len(context.ready))


RANKED = {**METHODS, "grad_l2": "grad_l2"}


def _lowest(ours: Ours) -> bool | None:
    means = {
        label: mean_of([v for k, v in ours.items() if k.startswith(f"{label}, ")])
        for label in RANKED
    }
    return above(means["Attn Rollout"], means["ALTI"])


@item(
    PAPER,
    "Figure 6",
    "relevance rank of [CLS], [SEP] and punctuation (1 contributed most, 0 least)",
    "classifier",
    "sst2",
    (Claim("Attention rollout ranks these tokens higher than ALTI (mean).", _lowest),),
    "The figure gives no numbers.",
)
def figure_6(desk: Desk) -> Found:
    context = desk.context("sst2")
    rows = []
    for label, name in RANKED.items():
        kept: dict[str, list[float]] = {}
        for s in context.scores:
            row = s.final(name)
            ranks = 1 - (descending_ranks(row) - 1) / max(1, len(row) - 1)
            found: dict[str, list[float]] = {}
            for piece, rank in zip(s.ready.pieces, ranks, strict=True):
                found.setdefault(type_of(piece, context.bench.tokenizer), []).append(float(rank))
            for kind, values in found.items():
                kept.setdefault(kind, []).append(mean_of(values))
        rows += [
            mean_row(f"{label}, {kind}", kept[kind]) for kind in sorted(kept) if kind != "other"
        ]
    return Found(rows, len(context.scores))


SHOWN = {
    **METHODS,
    "grad_l2": "grad_l2",
    "gradient x input": "grad_dot_input",
    "IG": "integrated_gradients",
}


@item(
    PAPER,
    "Figure 7",
    "Spearman's correlation between two models' explanations of the same answer",
    "classifier",
    "sst2",
    (
        Claim(
            "ALTI is more consistent than every gradient method.",
            lambda ours: above(
                ours["ALTI"], max(ours["grad_l2"], ours["gradient x input"], ours["IG"])
            ),
        ),
    ),
    "The paper compares BERT with DistilBERT; here the classifier with the bundled one, over words. The figure "
    "gives no numbers.",
)
def figure_7(desk: Desk) -> Found:
    if not desk.is_second():
        raise InputError(
            "Figure 7 compares a classifier with the bundled one: give another (--classifier)."
        )
    first, second = (desk.context("sst2 two models", bundled=b) for b in (False, True))
    other = {s.ready.sample.key: s for s in second.scores}
    pairs = [(s, other[s.ready.sample.key]) for s in first.scores if s.ready.sample.key in other]
    alike = [(a, b) for a, b in pairs if a.predicted == b.predicted]
    rows = [
        mean_row(label, [rank_correlation(by_word(a, name), by_word(b, name)) for a, b in alike])
        for label, name in SHOWN.items()
    ]
    return Found(rows, len(alike))
