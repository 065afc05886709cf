"""Brunner et al. 2020: effective attention, identifiability, and how tokens mix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctxmix_hf.evaluation.attention_types import ANY, TYPES, measured
from ctxmix_hf.evaluation.identifiability import Task, counts, hidden_tasks
from ctxmix_hf.evaluation.metrics import mean_of
from ctxmix_hf.evaluation.mixing import (
    GROUPS,
    around,
    chosen,
    effective_found,
    relative_groups,
    statistics,
)
from ctxmix_hf.evaluation.papers.desk import Desk
from ctxmix_hf.evaluation.papers.items import (
    Claim,
    Found,
    Ours,
    Row,
    above,
    first_layer,
    item,
    last_layer,
    layer_name,
    mean_row,
    resampled,
)
from ctxmix_hf.evaluation.work import Result

PAPER = "brunner2020"
BERT = "The paper's model is BERT-base: twelve layers, heads of 64."
HTA = 100  # pairs for hidden token attribution, which is the slow one
PAIRS = 408  # as many as the paper's


# ---- effective attention ------------------------------------------------------------------------------------------
@item(
    PAPER,
    "Section 3.1",
    "dimension of the null space of attention, T - rank(V), beside its bound max(0, T - head size)",
    "encoder",
    "mrpc",
    (
        Claim(
            "The dimension is at least the bound.",
            lambda ours: all(
                v >= ours[name.replace("dimension", "bound")] - 1e-6
                for name, v in ours.items()
                if name.startswith("dimension")
            ),
        ),
    ),
    BERT,
)
def section_3(desk: Desk) -> Found:
    found = measured(desk.context("mrpc", PAIRS))
    rows = []
    for label, some in _lengths(found):
        rows.append(mean_row(f"dimension, {label}", [mean_of(r["null"]) for r in some]))
        rows.append(mean_row(f"bound, {label}", [max(0, r["length"] - r["size"]) for r in some]))
    return Found(rows, len(found))


def _lengths(found: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """Sentences by how their length compares with the head size."""
    size = found[0]["size"]
    bounds = {
        f"up to {size} tokens": (0, size),
        f"{size + 1} to {2 * size} tokens": (size, 2 * size),
        f"more than {2 * size} tokens": (2 * size, 10**9),
    }
    cut = {
        label: [r for r in found if low < r["length"] <= high]
        for label, (low, high) in bounds.items()
    }
    return [(label, some) for label, some in cut.items() if some]


@item(
    PAPER,
    "Figure 1a",
    "Pearson's correlation of raw and effective attention against length",
    "encoder",
    "mrpc",
    (
        Claim(
            "Beyond the head size the correlation falls with length.",
            lambda ours: (
                None if len(ours) < 2 else above(next(iter(ours.values())), [*ours.values()][-1])
            ),
        ),
    ),
    f"{BERT} It reads Wikipedia.",
)
def figure_1a(desk: Desk) -> Found:
    context = desk.context("mrpc", PAIRS)
    size = measured(context)[0]["size"]
    found = [{**r, "size": size} for r in effective_found(context)]
    rows = [
        mean_row(label, [r["pearson"] for r in some], 1.0 if label.startswith("up to") else None)
        for label, some in _lengths(found)
    ]
    return Found(rows, len(found))


def _to_types(desk: Desk, part: str, starts: Sequence[str], ends: Sequence[str]) -> Found:
    found = measured(desk.context("mrpc", PAIRS))
    rows = []
    for start in starts:
        for end in ends:
            name = f"{part}|{start}|{end}"
            some = [r["moved"][name] for r in found if name in r["moved"]]
            label = f"to {end}" if start == ANY else f"from {start} to {end}"
            rows += [
                mean_row(layer_name(label, layer), [values[layer] for values in some])
                for layer in range(len(some[0]) if some else 0)
            ]
    return Found(rows, len(found))


def _peak(ours: Ours, label: str) -> float:
    return max(v for k, v in ours.items() if k.startswith(f"{label}, layer "))


@item(
    PAPER,
    "Figure 1b",
    "mean raw attention to kinds of tokens, by layer",
    "encoder",
    "mrpc",
    (
        Claim(
            "[SEP] draws more raw attention in its best layer than [CLS] does.",
            lambda ours: above(_peak(ours, "to [SEP]"), _peak(ours, "to [CLS]")),
        ),
    ),
    f"{BERT} It reads Wikipedia; the figure gives no numbers.",
)
def figure_1b(desk: Desk) -> Found:
    return _to_types(desk, "raw", (ANY,), TYPES)


@item(
    PAPER,
    "Figure 1c",
    "mean effective attention to kinds of tokens, by layer",
    "encoder",
    "mrpc",
    (
        Claim(
            "The peak of [SEP] is gone: other tokens are above it everywhere.",
            lambda ours: all(
                ours[name.replace("to [SEP]", "to other")] > v
                for name, v in ours.items()
                if name.startswith("to [SEP]")
            ),
        ),
    ),
    f"{BERT} It reads Wikipedia; the figure gives no numbers.",
)
def figure_1c(desk: Desk) -> Found:
    return _to_types(desk, "effective", (ANY,), TYPES)


@item(
    PAPER,
    "Figure 5a",
    "mean effective attention from [SEP] and from other tokens to [SEP], by layer",
    "encoder",
    "mrpc",
    (),
    "The figure gives no numbers.",
)
def figure_5a(desk: Desk) -> Found:
    return _to_types(desk, "effective", ("[SEP]", "other"), ("[SEP]",))


@item(
    PAPER,
    "Figure 5b",
    "mean raw attention from [SEP] and from other tokens to [SEP], by layer",
    "encoder",
    "mrpc",
    (),
    "The figure gives no numbers.",
)
def figure_5b(desk: Desk) -> Found:
    return _to_types(desk, "raw", ("[SEP]", "other"), ("[SEP]",))


# ---- identifiability ----------------------------------------------------------------------------------------------
Counts = list[tuple[int, int]]


def _share(some: Sequence[tuple[int, int]]) -> float:
    return sum(r for r, _ in some) / max(1, sum(t for _, t in some))


def _identified(
    desk: Desk, tasks: Sequence[Task], labels: Sequence[str], paper: dict[str, float]
) -> Found:
    context = desk.context("mrpc", PAIRS)
    rows = []
    for label, by_fold in zip(labels, counts(context, tasks), strict=True):
        sentences = [pair for fold in by_fold for pair in fold]
        rows.append(resampled(label, sentences, _share, paper.get(label)))
    return Found(rows, len(context.ready))


def _maps(desk: Desk) -> list[tuple[str, str]]:
    return [("naive", "cosine"), ("naive", "l2"), *desk.fitting.maps]


SETTING = f"{BERT} How our maps are learned is the Fitting of the run."


@item(
    PAPER,
    "Figure 2a",
    "share of hidden tokens identified, by layer and map",
    "encoder",
    "mrpc",
    (
        Claim(
            "In the last layer a learned map identifies more tokens than the naive one (cosine).",
            lambda ours: above(
                last_layer(ours, "linear, cosine"), last_layer(ours, "naive, cosine")
            ),
        ),
        Claim(
            "Identifiability falls with depth (linear, cosine).",
            lambda ours: above(
                first_layer(ours, "linear, cosine"), last_layer(ours, "linear, cosine")
            ),
        ),
    ),
    f"{SETTING} The paper's last layer is the twelfth.",
)
def figure_2a(desk: Desk) -> Found:
    depth = desk.context("mrpc", PAIRS).bench.depth
    pairs = [(k, d, layer) for k, d in _maps(desk) for layer in range(1, depth + 1)]
    tasks = [Task(k, d, layer) for k, d, layer in pairs]  # type: ignore[arg-type]
    labels = [layer_name(f"{k}, {d}", layer - 1) for k, d, layer in pairs]
    return _identified(desk, tasks, labels, {layer_name("linear, cosine", depth - 1): 0.93})


@item(
    PAPER,
    "Figure 2b",
    "a linear map (cosine) learned on the first and on the last layer, tested on all",
    "encoder",
    "mrpc",
    (
        Claim(
            "Learned on the last layer, it does better on the layers below than on its own.",
            lambda ours: above(
                first_layer(ours, "learned on the last"), last_layer(ours, "learned on the last")
            ),
        ),
        Claim(
            "Learned on the first layer, it fails in the last more than one learned there.",
            lambda ours: above(
                last_layer(ours, "learned on the last"), last_layer(ours, "learned on the first")
            ),
        ),
    ),
    f"{SETTING} The paper's l = 12 gives 0.94 in its last layers.",
)
def figure_2b(desk: Desk) -> Found:
    depth = desk.context("mrpc", PAIRS).bench.depth
    pairs = [(s, t) for s in (1, depth) for t in range(1, depth + 1)]
    tasks = [Task("linear", "cosine", s, tested=t) for s, t in pairs]
    labels = [
        layer_name("learned on the first" if s == 1 else "learned on the last", t - 1)
        for s, t in pairs
    ]
    return _identified(desk, tasks, labels, {layer_name("learned on the last", depth - 1): 0.94})


@item(
    PAPER,
    "Figure 11",
    "tokens identified across single layers: e^(l-1) from e^l",
    "encoder",
    "mrpc",
    (
        Claim(
            "Later layers are harder (naive, cosine: last below first).",
            lambda ours: above(
                first_layer(ours, "naive, cosine"), last_layer(ours, "naive, cosine")
            ),
        ),
        Claim(
            "The naive baseline does well: above 0.8 in every layer (cosine).",
            lambda ours: min(v for k, v in ours.items() if k.startswith("naive, cosine")) > 0.8,
        ),
    ),
    f"{SETTING} The figure gives no numbers.",
)
def figure_11(desk: Desk) -> Found:
    tasks = hidden_tasks(desk.context("mrpc", PAIRS))
    labels = [layer_name(f"{t.kind}, {t.distance}", t.source - 1) for t in tasks]
    return _identified(desk, tasks, labels, {})


# ---- hidden token attribution -------------------------------------------------------------------------------------
OWN = {1: 0.306, 6: 0.144, 12: 0.107}
NOT_MAIN = {1: 0.0, 2: 0.0, 3: 0.0, 6: 0.18, 11: 0.30, 12: 0.30}
SKETCHED = "Hidden token attribution is estimated with eight random probes per token. " + BERT


def _mixing(desk: Desk) -> tuple[str, list[Result]]:
    context = desk.context("mrpc", HTA)
    return next(iter(chosen(context).maps)), statistics(context)


def _numbers(known: dict[int, float], depth: int) -> list[float | None]:
    """By layer; a model of another depth is compared at its first and last layer only."""
    if depth == 12:
        return [known.get(layer + 1) for layer in range(depth)]
    return [known[1], *[None] * (depth - 2), known[12]] if depth > 1 else [None]


@item(
    PAPER,
    "Figure 3a",
    "contribution of the input token to its own hidden vector, median over tokens",
    "encoder",
    "mrpc",
    (
        Claim(
            "It falls with depth.",
            lambda ours: above(first_layer(ours, "own"), last_layer(ours, "own")),
        ),
    ),
    f"{SKETCHED} The first and the last layer are set beside the paper's first and twelfth.",
)
def figure_3a(desk: Desk) -> Found:
    name, found = _mixing(desk)
    depth = len(found[0][name]["own"])
    numbers = _numbers(OWN, depth)
    rows = [
        resampled(
            layer_name("own", layer),
            [np.array(r[name]["own"][layer]) for r in found],
            lambda some: float(np.median(np.concatenate(list(some)))),
            numbers[layer],
        )
        for layer in range(depth)
    ]
    return Found(rows, len(found))


@item(
    PAPER,
    "Figure 3b",
    "share of tokens that are not their own main contributor",
    "encoder",
    "mrpc",
    (
        Claim(
            "It grows with depth.",
            lambda ours: above(last_layer(ours, "not main"), first_layer(ours, "not main")),
        ),
    ),
    f"{SKETCHED} The first and the last layer are set beside the paper's first and twelfth.",
)
def figure_3b(desk: Desk) -> Found:
    name, found = _mixing(desk)
    depth = len(found[0][name]["own"])
    numbers = _numbers(NOT_MAIN, depth)
    rows = []
    for layer in range(depth):
        units = [(r[name]["away"][layer], len(r[name]["own"][layer])) for r in found]
        rows.append(
            resampled(
                layer_name("not main", layer),
                units,
                lambda some: sum(a * n for a, n in some) / sum(n for _, n in some),
                numbers[layer],
            )
        )
    return Found(rows, len(found))


@item(
    PAPER,
    "Figure 4a",
    "relative contribution of neighbours by distance; each group sums to 1 over layers",
    "encoder",
    "mrpc",
    (
        Claim(
            "Near neighbours are taken up earlier than far ones (share in the first layer).",
            lambda ours: above(first_layer(ours, "1st"), first_layer(ours, "11th on")),
        ),
    ),
    f"{SKETCHED} The figure gives no numbers.",
)
def figure_4a(desk: Desk) -> Found:
    name, found = _mixing(desk)
    rows: list[Row] = []
    for group in GROUPS:
        some = [r for r in found if group in r[name]["groups"]]
        if not some:
            continue
        for layer in range(len(some[0][name]["own"])):

            def relative(units: Sequence[Result], layer: int = layer, group: str = group) -> float:
                return relative_groups(units, name)[group][layer]

            rows.append(resampled(layer_name(group, layer), some, relative, draws=100))
    return Found(rows, len(found))


@item(
    PAPER,
    "Figure 18b",
    "contribution to [CLS] from places around the first [SEP] of a pair, last layer",
    "encoder",
    "mrpc",
    (
        Claim(
            "The tokens right before and after [SEP] give more than those three places away.",
            lambda ours: above(
                min(ours["place -1"], ours["place +1"]), max(ours["place -3"], ours["place +3"])
            ),
        ),
    ),
    f"{SKETCHED} The figure gives no numbers.",
)
def figure_18b(desk: Desk) -> Found:
    name, found = _mixing(desk)
    ready = desk.context("mrpc", HTA).ready
    near = [around(r[name], i, -1) for r, i in zip(found, ready, strict=True)]
    places = sorted({d for one in near for d in one})
    rows = [mean_row(f"place {d:+d}", [one[d] for one in near if d in one]) for d in places]
    return Found(rows, sum(bool(one) for one in near))
