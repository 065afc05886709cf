"""Do methods agree with each other, and do models agree under one method? (Ferrando et al. 2022, figures 6 and 7)"""

from __future__ import annotations

import string
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ctxmix_hf.counting import layer_number
from ctxmix_hf.errors import InputError
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.faithfulness import too_short
from ctxmix_hf.evaluation.metrics import Array, mean_of, rank_correlation, shares, summarise
from ctxmix_hf.evaluation.scores import RANDOM, Scores
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form

SHOWN = 10  # sentences in the list of disagreements


def kind_of(scores: Scores, place: int) -> str:
    """What a token is: a special token by its name, punctuation, the target, or a word."""
    if scores.ready.special[place]:
        return scores.ready.pieces[place]
    if place == scores.ready.position:
        return "target"
    piece = scores.ready.pieces[place].strip("▁Ġ").removeprefix("##")
    return "punctuation" if piece and all(c in string.punctuation for c in piece) else "word"


def descending_ranks(row: Array) -> Array:
    """1 for the highest score; ties share the mean of their ranks."""
    return np.array([(row > v).sum() + ((row == v).sum() + 1) / 2 for v in row], dtype=np.float64)


@evaluation(
    "special_tokens",
    "how high special tokens and punctuation rank under each method",
    "Ferrando et al. 2022, figure 6",
)
def special_tokens(context: Context) -> EvaluationTable:
    """One row per method and kind of token: mean rank on the paper's scale (1 contributed most, 0 least) and share
    of the row."""
    context.need_sentences()
    kinds = [[kind_of(s, t) for t in range(len(s.ready.ids))] for s in context.scores]
    rows: list[list[Cell]] = []
    for method in context.method_set.names:
        ranks: dict[str, list[float]] = {}
        mass: dict[str, list[float]] = {}
        for s, kind in zip(context.scores, kinds, strict=True):
            row = s.final(method)
            relative = 1 - (descending_ranks(row) - 1) / max(1, len(row) - 1)
            for name, r, share in zip(kind, relative, shares(row), strict=True):
                ranks.setdefault(name, []).append(float(r))
                mass.setdefault(name, []).append(float(share))
        rows += [
            [method, name, mean_of(ranks[name]), mean_of(mass[name]), len(ranks[name])]
            for name in sorted(ranks)
        ]
    form = Form(
        "heatmap",
        "method",
        "relative_rank",
        "kind",
        title="Mean rank of kinds of tokens (1: contributed most)",
    )
    columns = ("method", "kind", "relative_rank", "share_per_token", "n")
    return context.table(
        "special_tokens",
        columns,
        rows,
        "rank and share of special tokens and punctuation in the aggregated row",
        form=form,
    )


@evaluation(
    "method_matrix", "mean rank correlation of every two methods", "Ferrando et al. 2022, section 6"
)
def method_matrix(context: Context) -> EvaluationTable:
    """Spearman correlation of the aggregated rows, mean over sentences; works for one sentence as well."""
    context.need_sentences()
    names = context.method_set.names
    rows: list[list[Cell]] = []
    for a in names:
        for b in names:
            found = summarise(
                [rank_correlation(s.final(a), s.final(b)) for s in context.scores],
                context.seed,
                draws=2,
            )
            rows.append([a, b, found.mean, found.std, found.n, found.undefined])
    form = Form("heatmap", "method", "mean", "with", title="Spearman correlation between methods")
    columns = ("method", "with", "mean", "std", "n", "undefined")
    caption = "Spearman correlation between the aggregated rows of two methods"
    return context.table(
        "method_matrix", columns, rows, caption, form=form, notes=(too_short(context.scores),)
    )


@evaluation(
    "method_layers",
    "how much a method's map of each layer agrees with the other methods' maps of it",
    "Ferrando et al. 2022, section 6",
)
def method_layers(context: Context) -> EvaluationTable:
    """One row per method and layer: Spearman with the other methods in the same layer, mean over them and sentences."""
    context.need_sentences()
    names = [
        n for n in context.compared if n != RANDOM and all(n in s.layers for s in context.scores)
    ]
    depth = min((len(s.layers[n]) for s in context.scores for n in names), default=0)
    rows: list[list[Cell]] = []
    for name in names:
        for layer in range(depth):
            others = [o for o in names if o != name]
            values = [
                rank_correlation(s.layers[name][layer], s.layers[o][layer])
                for s in context.scores
                for o in others
            ]
            rows.append(
                [
                    name,
                    layer_number(layer),
                    mean_of(values),
                    int(np.isfinite(values).sum()),
                    int((~np.isfinite(values)).sum()),
                ]
            )
    form = Form(
        "heatmap", "method", "mean", "layer", title="Agreement with the other methods, by layer"
    )
    caption = "mean Spearman correlation with the other methods' maps of the same layer"
    return context.table(
        "method_layers", ("method", "layer", "mean", "n", "undefined"), rows, caption, form=form
    )


def _pairwise(scores: Scores, names: Sequence[str]) -> list[tuple[float, str, str]]:
    found = [
        (rank_correlation(scores.final(a), scores.final(b)), a, b)
        for a, b in combinations(names, 2)
    ]
    return [item for item in found if np.isfinite(item[0])]


@evaluation(
    "disagreement",
    "the sentences on which the methods disagree most",
    "Ferrando et al. 2022, section 6",
)
def disagreement(context: Context) -> EvaluationTable:
    """The ten sentences with the lowest mean correlation between methods (random scores aside), and
    their worst pair.
    """
    context.need_sentences()
    names = [name for name in context.compared if name != RANDOM]
    if len(names) < 2:
        raise InputError("Disagreement needs at least two methods.")
    listed: list[tuple[str, float, str, float]] = []
    for s in context.scores:
        pairs = _pairwise(s, names)
        if pairs:
            worst = min(pairs)
            text = s.ready.sample.written("[MASK]" if context.bench.head == "masked_lm" else None)[
                0
            ]
            listed.append(
                (text, float(np.mean([p[0] for p in pairs])), f"{worst[1]} / {worst[2]}", worst[0])
            )
    listed.sort(key=lambda row: (row[1], row[0]))
    caption = "sentences with the lowest mean Spearman correlation between methods"
    return context.table(
        "disagreement",
        ("sentence", "mean", "most_different", "their_correlation"),
        listed[:SHOWN],
        caption,
    )


def by_word(scores: Scores, method: str) -> Array:
    """The aggregated row summed over the pieces of each word of the text: the same words for every tokenizer."""
    row = scores.final(method)
    return np.array([row[list(word)].sum() if word else 0.0 for word in scores.ready.words])


@evaluation(
    "model_consistency",
    "do two models that answer alike also give the same explanation?",
    "Ferrando et al. 2022, figure 7",
)
def model_consistency(context: Context) -> EvaluationTable:
    """Spearman between two models' aggregated rows, summed to words, on the sentences they answer alike."""
    if context.other is None:
        raise InputError("model_consistency compares two models: give model=(first, second).")
    second = {s.ready.sample.key: s for s in context.other.scores}
    pairs = [
        (s, second[s.ready.sample.key]) for s in context.scores if s.ready.sample.key in second
    ]
    alike = [
        (a, b)
        for a, b in pairs
        if (a.right == b.right if a.right is not None else a.predicted == b.predicted)
    ]
    rows: list[list[Cell]] = []
    for method in context.method_set.names:
        found = summarise(
            [rank_correlation(by_word(a, method), by_word(b, method)) for a, b in alike],
            context.seed,
        )
        rows.append(
            [method, found.mean, found.std, found.low, found.high, found.n, found.undefined]
        )
    form = Form(
        "bars",
        "method",
        "mean",
        error=("ci_low", "ci_high"),
        title="Consistency of two models' explanations",
    )
    note = (
        f"{len(alike)} of {len(pairs)} sentences are answered alike by {context.bench.name} and "
        f"{context.other.bench.name}."
    )
    columns = ("method", "mean", "std", "ci_low", "ci_high", "n", "undefined")
    caption = (
        "Spearman correlation between two models' rows over words, where they give the same answer"
    )
    return context.table(
        "model_consistency", columns, rows, caption, form=form, notes=(note,), sentences=len(alike)
    )
