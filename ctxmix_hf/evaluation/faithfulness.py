"""Does a method's row say what the model itself answers to? Rank correlation with blank-out and with gradients.

Abnar & Zuidema 2020 (tables 1 and 2), Modarressi et al. 2022 (table 1), Ferrando et al. 2022 (table
2) and Mohebbi et al. 2023 all report Spearman's correlation over the tokens of a sentence; here
with average ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctxmix_hf.counting import layer_number
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.metrics import SHORTEST, rank_correlation, summarise
from ctxmix_hf.evaluation.scores import BLANK_OUT_ABS, REFERENCES, Scores
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form

# Abnar & Zuidema 2020 compare with the first two, Modarressi et al. 2022 with the last
LAYER_REFERENCES = (BLANK_OUT_ABS, "grad_sum", "grad_x_input")
STATISTICS = ("mean", "std", "ci_low", "ci_high", "n", "undefined")


def _statistics(values: Sequence[float], seed: int) -> list[Cell]:
    found = summarise(values, seed)
    return [found.mean, found.std, found.low, found.high, found.n, found.undefined]


def references_of(context: Context) -> list[str]:
    """Signed and absolute blank-out, and every gradient saliency."""
    known = [name for name in REFERENCES if name in context.method_set.attributions]
    return [BLANK_OUT_ABS, *known] if "blank_out" in known else known


def too_short(scores: Sequence[Scores]) -> str:
    """A note on sentences for which no rank correlation exists."""
    count = sum(len(s.ready.ids) < SHORTEST for s in scores)
    return (
        f"{count} of {len(scores)} sentences have fewer than {SHORTEST} tokens: their rank correlation is undefined."
        if count
        else ""
    )


@evaluation(
    "faithfulness",
    "rank correlation of each method's aggregated row with blank-out and gradient saliencies",
    "Abnar & Zuidema 2020; Modarressi et al. 2022; Ferrando et al. 2022",
)
def faithfulness(context: Context) -> EvaluationTable:
    """One row per method and reference: mean, standard deviation, 95 % bootstrap interval over sentences."""
    context.need_sentences()
    scores = context.scores
    rows: list[list[Cell]] = []
    for method in context.compared:
        for reference in references_of(context):
            if reference == method:
                continue
            values = [rank_correlation(s.final(method), s.final(reference)) for s in scores]
            rows.append([method, reference, *_statistics(values, context.seed)])
    form = Form(
        "heatmap",
        "method",
        "mean",
        "reference",
        title="Spearman correlation of aggregated rows with references",
    )
    caption = "Spearman correlation over tokens with blank-out and gradient saliencies, mean over sentences"
    notes = (context.accuracy, too_short(scores))
    return context.table(
        "faithfulness", ("method", "reference", *STATISTICS), rows, caption, form=form, notes=notes
    )


@evaluation(
    "faithfulness_layers",
    "the same against blank-out and gradients, after every layer: the layer alone and rolled out",
    "Abnar & Zuidema 2020, tables 1 and 2; Modarressi et al. 2022, table 2",
)
def faithfulness_layers(context: Context) -> EvaluationTable:
    """One row per method and layer. `scope` is `layer` for the map of that layer alone, `input` for
    it rolled out so far.
    """
    context.need_sentences()
    scores = context.scores
    rows: list[list[Cell]] = []
    for reference in (r for r in LAYER_REFERENCES if r in references_of(context)):
        for method in context.method_set.maps:
            for scope in ("layer", "input"):
                rows += _by_layer(context, method, scope, reference)
    form = Form(
        "heatmap", "row", "mean", "layer", title="Spearman correlation with references, by layer"
    )
    columns = ("row", "method", "scope", "reference", "layer", *STATISTICS)
    caption = (
        "Spearman correlation after each layer: the layer's own map, and aggregated to the input"
    )
    return context.table(
        "faithfulness_layers", columns, rows, caption, form=form, notes=(too_short(scores),)
    )


def _by_layer(context: Context, method: str, scope: str, reference: str) -> list[list[Cell]]:
    scores = [s for s in context.scores if scope == "input" or method in s.layers]
    tables = [s.layers[method] if scope == "layer" else s.input[method] for s in scores]
    rows: list[list[Cell]] = []
    for layer in range(min((len(t) for t in tables), default=0)):
        values = [
            rank_correlation(t[layer], s.final(reference))
            for s, t in zip(scores, tables, strict=True)
        ]
        label = f"{method} ({scope}) / {reference}"
        rows.append(
            [
                label,
                method,
                scope,
                reference,
                layer_number(layer),
                *_statistics(values, context.seed),
            ]
        )
    return rows
