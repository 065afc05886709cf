"""Does a method look at the word that decides the answer? (Mohebbi et al. 2023, section 5)

In number-agreement sentences the cue of the masked word is known. For the masked token's row, pieces summed to words,
special tokens included: the share on the cues (dot product), average precision, how many words have to be
probed, and how often the first one is a cue.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctxmix_hf.counting import layer_number
from ctxmix_hf.errors import InputError
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.metrics import (
    Array,
    average_precision,
    cue_first,
    dot_product,
    mean_of,
    probes_needed,
    summarise,
)
from ctxmix_hf.evaluation.scores import Scores
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form

METRICS = {
    "dot_product": dot_product,
    "average_precision": average_precision,
    "probes_needed": probes_needed,
    "cue_first": cue_first,
}
INPUT = "input"  # the place of the aggregated row beside layers 1, 2, ...


def alignments(
    scores: Sequence[Scores], method: str, metric: str
) -> tuple[list[list[float]], list[float]]:
    """Per layer and aggregated, one value per sentence."""
    measure = METRICS[metric]
    depth = max((len(s.layers[method]) for s in scores if method in s.layers), default=0)
    cues = [s.ready.unit_mask(s.ready.sample.cues) for s in scores]
    by_layer = [
        [
            measure(s.by_unit(s.layers[method][layer]), cue)
            for s, cue in zip(scores, cues, strict=True)
        ]
        for layer in range(depth)
    ]
    return by_layer, [
        measure(s.by_unit(s.final(method)), cue) for s, cue in zip(scores, cues, strict=True)
    ]


def with_cues(context: Context) -> tuple[list[Scores], str]:
    """Sentences whose cue is annotated, and a note on the others."""
    kept = [s for s in context.scores if s.ready.sample.cues]
    missing = len(context.scores) - len(kept)
    if not kept:
        raise InputError(
            "No sentence has a cue: cue alignment needs rows with words, target_index and "
            "cue_indices (the words that decide the target)."
        )
    return (
        kept,
        f"{missing} of {len(context.scores)} sentences left out: no cue annotated."
        if missing
        else "",
    )


def _cells(values: dict[str, list[float]], seed: int) -> list[Cell]:
    """n, the mean of every metric, and the 95 % bootstrap interval of the last one, `cue_first`."""
    first = summarise(values["cue_first"], seed)
    return [
        len(values["cue_first"]),
        *(mean_of(found) for found in values.values()),
        first.low,
        first.high,
    ]


@evaluation(
    "cue_alignment",
    "the share of the masked token's row that lies on its cue words, per layer and aggregated",
    "Mohebbi et al. 2023, section 5",
)
def cue_alignment(context: Context) -> EvaluationTable:
    """One row per method and layer; `layer` is `input` for the aggregated row. Higher is better,
    fewer probes are better.

    `ci_low` and `ci_high` are the 95 % bootstrap interval of `cue_first`.
    """
    scores, note = with_cues(context)
    rows: list[list[Cell]] = []
    for method in context.method_set.names:
        found = {name: alignments(scores, method, name) for name in METRICS}
        for layer in range(len(found["dot_product"][0])):
            rows.append(
                [
                    method,
                    str(layer_number(layer)),
                    *_cells({name: found[name][0][layer] for name in METRICS}, context.seed),
                ]
            )
        rows.append(
            [method, INPUT, *_cells({name: found[name][1] for name in METRICS}, context.seed)]
        )
    form = Form(
        "heatmap",
        "method",
        "dot_product",
        "layer",
        title="Alignment with the cue words, by layer and from the input",
    )
    caption = (
        "alignment of the masked token's row with its cue words (Mohebbi et al. 2023, section 5)"
    )
    columns = ("method", "layer", "n", *METRICS, "ci_low", "ci_high")
    return context.table(
        "cue_alignment",
        columns,
        rows,
        caption,
        form=form,
        notes=(context.accuracy, note),
        sentences=len(scores),
    )


@evaluation(
    "cue_alignment_sets",
    "cue alignment of the aggregated rows, per set of sentences",
    "Mohebbi et al. 2023, section 5",
)
def cue_alignment_sets(context: Context) -> EvaluationTable:
    """One row per method and set (`uid`): the aggregated row only."""
    scores, note = with_cues(context)
    sets = sorted({s.ready.sample.group for s in scores})
    rows: list[list[Cell]] = []
    for method in context.method_set.names:
        for name in sets:
            some = [s for s in scores if s.ready.sample.group == name]
            rows.append(
                [
                    method,
                    name or "-",
                    len(some),
                    *(mean_of(alignments(some, method, m)[1]) for m in METRICS),
                ]
            )
    form = Form(
        "heatmap",
        "method",
        "dot_product",
        "set",
        title="Alignment with the cue words, aggregated, by set",
    )
    caption = "alignment of the aggregated row with the cue words, by set"
    columns = ("method", "set", "n", *METRICS)
    return context.table(
        "cue_alignment_sets",
        columns,
        rows,
        caption,
        form=form,
        notes=(note,),
        sentences=len(scores),
    )


def layer_profile(scores: Sequence[Scores], method: str) -> Array | None:
    """Mean dot product per layer, or None where the method has no layers."""
    by_layer, _ = alignments(scores, method, "dot_product")
    return np.array([mean_of(values) for values in by_layer]) if by_layer else None
