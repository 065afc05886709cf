"""Modarressi et al. 2022 (GlobEnc): eight variants rolled out, against gradient times input."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from ctxmix_hf.errors import InputError
from ctxmix_hf.evaluation.context import Context
from ctxmix_hf.evaluation.geometry import norm_weights
from ctxmix_hf.evaluation.metrics import mean_of, pearson, rank_correlation
from ctxmix_hf.evaluation.papers.abnar import layer_rows
from ctxmix_hf.evaluation.papers.desk import VARIANTS, Desk
from ctxmix_hf.evaluation.papers.items import (
    Claim,
    Found,
    ItemRow,
    Ours,
    above,
    item,
    last_layer,
    layer_name,
    mean_row,
    resampled,
)
from ctxmix_hf.evaluation.scores import Scores
from ctxmix_hf.evaluation.sessions import Result, content_key, rounded

PAPER = "modarressi2022"
SALIENCY = "grad_x_input"
# BERT-base on SST-2
TABLE_1 = {
    "W": -0.11,
    "W_FIXEDRES": -0.24,
    "W_RES": 0.19,
    "N": 0.44,
    "N_FIXEDRES": 0.48,
    "N_RES": 0.73,
    "N_RESLN": -0.21,
    "N_ENC": 0.77,
}
# first, middle and last layer of twelve, and the best one
TABLE_2 = {
    "Individual N": (-0.50, 0.28, 0.40, 0.41),
    "Individual N_RES": (-0.48, 0.29, 0.41, 0.41),
    "Individual N_ENC": (-0.47, 0.29, 0.41, 0.41),
    "Rollout N": (-0.50, 0.44, 0.44, 0.44),
    "Rollout N_RES": (-0.48, 0.70, 0.73, 0.73),
    "Rollout N_ENC": (-0.47, 0.74, 0.77, 0.78),
}
DIFFERENCE = "The paper's model is BERT-base with twelve layers; the true class's logit is explained, as there."


@item(
    PAPER,
    "Table 1",
    "Spearman's correlation of the rolled-out [CLS] row with gradient times input",
    "classifier",
    "sst2",
    (
        Claim(
            "Norms beat weights: N is above W.",
            lambda ours: above(ours["N"], ours["W"]),
        ),
        Claim(
            "N_ENC is the best of all.",
            lambda ours: above(ours["N_ENC"], max(v for k, v in ours.items() if k != "N_ENC")),
        ),
        Claim(
            "The first norm alone does harm: N_RESLN is below N_RES.",
            lambda ours: above(ours["N_RES"], ours["N_RESLN"]),
        ),
    ),
    DIFFERENCE,
)
def table_1(desk: Desk) -> Found:
    scores = desk.context("sst2").scores
    rows = [
        mean_row(
            label,
            [rank_correlation(s.final(method), s.final(SALIENCY)) for s in scores],
            TABLE_1[label],
        )
        for label, method in VARIANTS.items()
    ]
    return Found(rows, len(scores))


def _by_layer(scores: Sequence[Scores], method: str, scope: str) -> list[list[float]]:
    """One list per layer, one value per sentence."""
    tables = [(s.layers if scope == "Individual" else s.input)[method] for s in scores]
    return [
        [rank_correlation(t[layer], s.final(SALIENCY)) for s, t in zip(scores, tables, strict=True)]
        for layer in range(min(len(t) for t in tables))
    ]


@item(
    PAPER,
    "Table 2",
    "a layer's own map against the maps rolled out so far: first, middle, last and best layer",
    "classifier",
    "sst2",
    (
        Claim(
            "Rolled out, N_ENC is better in the last layer than alone.",
            lambda ours: above(ours["Rollout N_ENC, last"], ours["Individual N_ENC, last"]),
        ),
        Claim(
            "Rolled out, N_ENC is best in the last layer.",
            lambda ours: above(
                ours["Rollout N_ENC, last"],
                max(ours["Rollout N, last"], ours["Rollout N_RES, last"]),
            ),
        ),
    ),
    DIFFERENCE,
)
def table_2(desk: Desk) -> Found:
    scores = desk.context("sst2").scores
    rows: list[ItemRow] = []
    for name, numbers in TABLE_2.items():
        scope, variant = name.split()
        values = _by_layer(scores, VARIANTS[variant], scope)
        best = max(range(len(values)), key=lambda layer: mean_of(values[layer]))
        places = {"first": 0, "middle": len(values) // 2 - 1, "last": len(values) - 1, "best": best}
        rows += [
            mean_row(f"{name}, {place}", values[max(0, layer)], number)
            for (place, layer), number in zip(places.items(), numbers, strict=True)
        ]
    return Found(rows, len(scores))


def _highest(ours: Ours) -> bool | None:
    others = [last_layer(ours, label) for label in VARIANTS if label != "N_ENC"]
    return above(last_layer(ours, "N_ENC"), max(others))


@item(
    PAPER,
    "Figure 3",
    "the rolled-out variants' correlation with gradient times input, layer by layer",
    "classifier",
    "sst2",
    (
        Claim("N_ENC is highest in the last layer.", _highest),
        Claim(
            "Norms are above weights in the last layer (N and W, N_RES and W_RES).",
            lambda ours: (
                last_layer(ours, "N") > last_layer(ours, "W")
                and last_layer(ours, "N_RES") > last_layer(ours, "W_RES")
            ),
        ),
    ),
    DIFFERENCE,
)
def figure_3(desk: Desk) -> Found:
    scores = desk.context("sst2").scores
    rows = [
        row
        for label, method in VARIANTS.items()
        for row in layer_rows(scores, method, "input", SALIENCY, label, {})
    ]
    return Found(rows, len(scores))


COMPARED = {"N_RES": "norm_res", "N_RESLN": "norm_resln", "N_ENC": "norm_enc"}


def hta_correlations(context: Context) -> list[Result]:
    """Per sentence, variant and layer: Pearson over all entries of the layer's map with that of HTA x input."""
    bench = context.bench
    keys = [
        content_key("hta x input", item.sample.key, item.ids, bench.fingerprint)
        for item in context.ready
    ]

    @torch.no_grad()
    def compute(batch: Sequence[int]) -> list[Result]:
        ready = [context.ready[i] for i in batch]
        asked: list[Any] = ["hta_x_input", *COMPARED.values()]
        maps = bench.model(**bench.inputs_of(ready), output_context_mixing=asked).context_mixing
        results: list[Result] = []
        for b, one in enumerate(ready):
            n = len(one.ids)
            cut = {name: made.layers[b, :, :n, :n].flatten(1) for name, made in maps.items()}
            theirs = cut["hta_x_input"].tolist()
            results.append(
                {
                    label: rounded(
                        [pearson(a, b) for a, b in zip(cut[name].tolist(), theirs, strict=True)]
                    )
                    for label, name in COMPARED.items()
                }
            )
        return results

    order = bench.batches(context.ready, sentences=4)
    return context.store("hta").run(keys, order, compute, "HTA x input", context.progress)


@item(
    PAPER,
    "Figure 4",
    "Pearson's correlation of single layers' maps with hidden token attribution times input",
    "classifier",
    "sst2",
    (
        Claim(
            "N_RESLN is clearly lower than N_RES and N_ENC (mean over layers).",
            lambda ours: above(
                min(_mean_over_layers(ours, "N_RES"), _mean_over_layers(ours, "N_ENC")),
                _mean_over_layers(ours, "N_RESLN"),
            ),
        ),
    ),
    "The paper takes 256 sentences of BERT-base.",
)
def figure_4(desk: Desk) -> Found:
    found = hta_correlations(desk.context("sst2", 256))
    rows = [
        mean_row(layer_name(label, layer), [r[label][layer] for r in found])
        for label in COMPARED
        for layer in range(len(found[0][label]))
    ]
    return Found(rows, len(found))


@item(
    PAPER,
    "Section 4.3.2",
    "seconds that hidden token attribution times input takes, and those of N_ENC",
    "classifier",
    "sst2",
    (
        Claim(
            "It takes far longer: more than ten times.",
            lambda ours: above(ours["HTA x input for a second of N_ENC"], 10.0),
        ),
    ),
    "The paper: 2 hours for 256 sentences of BERT-base against 5 seconds for all its other maps, 1440 times, on a GPU. "
    "Ours are seconds of one core for each sentence, forward pass included; our HTA has a closed form.",
)
def section_4_3_2(desk: Desk) -> Found:
    context = desk.context("sst2", 20)
    spent: list[tuple[float, float]] = []
    with torch.no_grad():
        for one in context.ready:
            inputs = context.bench.inputs_of([one])
            each = []
            for name in ("hta_x_input", "norm_enc"):
                start = time.process_time()
                context.bench.model(**inputs, output_context_mixing=[name])
                each.append(time.process_time() - start)
            spent.append((each[0], each[1]))
    rows = [
        mean_row("HTA x input, seconds", [a for a, _ in spent]),
        mean_row("N_ENC, seconds", [b for _, b in spent]),
        resampled(
            "HTA x input for a second of N_ENC",
            spent,
            lambda some: sum(a for a, _ in some) / sum(b for _, b in some),
            7200 / 5,
        ),
    ]
    return Found(rows, len(spent))


def _mean_over_layers(ours: Ours, label: str) -> float:
    values = [v for name, v in ours.items() if name.startswith(f"{label}, layer ")]
    return mean_of(values)


@item(
    PAPER,
    "Figure 5",
    "Pearson's correlation of the two norms' weights where either is an outlier; needs no sentences",
    "classifier",
    "sst2",
    (
        Claim(
            "The outlier weights of the two norms are the opposite of each other (mean over layers below 0).",
            lambda ours: above(0.0, _mean_over_layers(ours, "LN1, LN2")),
            steady=True,
        ),
    ),
    "n counts the weights of a norm; intervals are over outlier dimensions. A layer with fewer than three of them has "
    "no correlation and is left out.",
)
def figure_5(desk: Desk) -> Found:
    layers = norm_weights(desk.context("sst2", 1))
    rows = []
    for i, made in enumerate(layers):
        pairs = list(zip(made.first[made.dimensions], made.second[made.dimensions], strict=True))
        name = layer_name("LN1, LN2", i)
        if len(pairs) < 3:
            continue
        rows.append(
            resampled(name, pairs, lambda some: pearson([p[0] for p in some], [p[1] for p in some]))
        )
    if not rows:
        raise InputError(
            "No layer of this model has three outlying dimensions, so there is no correlation."
        )
    return Found(rows, len(layers[0].first))
