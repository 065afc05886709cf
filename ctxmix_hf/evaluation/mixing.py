"""How much of a token is left in its hidden state, and where does the rest come from? (Brunner et al. 2020, section 5;
Kobayashi et al. 2021; for effective attention Brunner, section 3)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.counting import layer_number
from ctxmix_hf.errors import InputError, OptionError
from ctxmix_hf.evaluation.bench import Bench, Ready
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.metrics import mean_of, pearson
from ctxmix_hf.evaluation.scores import MethodSet
from ctxmix_hf.evaluation.sessions import Result, content_key, rounded
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form
from ctxmix_hf.methods.ratios import STAGE_OF, mixing_ratios
from ctxmix_hf.recipes import method as recipe

Shares = list[list[float]]  # per layer
FARTHEST = 10  # neighbours beyond are one group
SKETCH = 8  # random probes per token for HTA: unbiased, cheap
# Neighbours by distance (Brunner et al. 2020, figure 4a): first and last of each group.
GROUPS = {
    "1st": (1, 1),
    "2nd": (2, 2),
    "3rd": (3, 3),
    "4th-5th": (4, 5),
    "6th-10th": (6, 10),
    "11th on": (11, 10**9),
}
AROUND = 3  # places on either side of the first [SEP]
SIDES = ("both", "left", "right")
PLACES = range(-10, 11)  # source minus target


def chosen(context: Context) -> MethodSet:
    """Hidden token attribution as in the paper, or what was asked for."""
    return MethodSet.of(
        [recipe("hta", sketch=SKETCH)] if context.methods is None else context.methods
    )


def neighbour_groups(maps: torch.Tensor, side: str = "both") -> dict[str, list[float]]:
    """The mean share of one neighbour in each group of distances, per layer (Brunner et al. 2020, C.2).

    Args:
        maps: shares `[L, T, T]`.
        side: "both" (left and right alike, as figure 4a), "left" or "right" neighbours alone.

    Returns:
        Group to one number per layer; groups farther away than the sentence is long are left out.
    """
    if side not in SIDES:
        raise OptionError(f"side must be one of {', '.join(map(repr, SIDES))}, got {side!r}.")
    size = maps.shape[-1]
    offset = torch.arange(size)[None] - torch.arange(size)[:, None]  # source - target
    gap = {"both": offset.abs(), "left": -offset, "right": offset}[side]
    found = {}
    for name, (first, last) in GROUPS.items():
        inside = (gap >= first) & (gap <= last)
        if inside.any():
            # each token's own mean first, so that tokens in the middle do not count more
            each = (maps * inside).sum(dim=-1) / inside.sum(dim=-1).clamp(min=1)
            found[name] = each[:, inside.any(dim=-1)].mean(dim=-1).tolist()
    return found


def by_place(maps: torch.Tensor) -> list[list[float]]:
    """The total share of neighbours at places -10 ... 10 (0 is the token itself), summed over tokens, per layer."""
    return [
        [float(maps[layer].diagonal(offset=d).sum()) for d in PLACES]
        for layer in range(maps.shape[0])
    ]


def map_statistics(maps: torch.Tensor, place: int = 0) -> Result:
    """Own share, whether another token is the main contributor, the mean share by distance and by group of
    neighbours, and the row of `place`, of `[L, T, T]` shares.
    """
    depth, size, _ = maps.shape
    own = maps.diagonal(dim1=-2, dim2=-1)
    away = (maps.argmax(dim=-1) != torch.arange(size)).double()
    gap = (torch.arange(size)[:, None] - torch.arange(size)[None]).abs().clamp(max=FARTHEST)
    sums = [
        [float(maps[layer][gap == d].sum()) / size for d in range(FARTHEST + 1)]
        for layer in range(depth)
    ]
    pairs = [int((gap == d).sum()) / size for d in range(FARTHEST + 1)]
    return {
        "own": rounded(own.tolist()),
        "away": rounded(away.mean(dim=-1).tolist()),
        "sums": rounded(sums),
        "pairs": rounded(pairs),
        "groups": {
            name if side == "both" else f"{name}, {side}": rounded(values)
            for side in SIDES
            for name, values in neighbour_groups(maps, side).items()
        },
        "places": rounded(by_place(maps)),
        "row": rounded(maps[:, place].tolist()),
    }


@torch.no_grad()
def _batch(bench: Bench, ready: Sequence[Ready], methods: MethodSet) -> list[Result]:
    out = bench.model(
        **bench.inputs_of(ready),
        output_decomposition=True,
        output_context_mixing=list(methods.maps.values()),
    )
    results: list[Result] = []
    for b, item in enumerate(ready):
        size = len(item.ids)
        results.append(
            {
                name: map_statistics(to_shares(made.input[b, :, :size, :size]), item.position)
                for name, made in out.context_mixing.items()
            }
        )
    return results


def statistics(context: Context) -> list[Result]:
    context.need_sentences()
    methods = chosen(context)
    described = [context.bench.fingerprint, methods.described(), FARTHEST]
    keys = [
        content_key("mixing, sides", item.sample.key, item.ids, *described)
        for item in context.ready
    ]
    batches = context.bench.batches(context.ready, sentences=2)

    def compute(batch: Sequence[int]) -> list[Result]:
        return _batch(context.bench, [context.ready[i] for i in batch], methods)

    return context.store("mixing").run(keys, batches, compute, "mixing", context.progress)


@evaluation(
    "mixing_own",
    "own-token contribution, and tokens that are not their own main contributor, by layer",
    "Brunner et al. 2020, figure 3",
)
def mixing_own(context: Context) -> EvaluationTable:
    """One row per method and layer: quartiles of the own share over tokens, and the share of tokens
    mostly made by others.
    """
    found = statistics(context)
    rows: list[list[Cell]] = []
    for name in chosen(context).maps:
        for layer in range(len(found[0][name]["own"])):
            own = np.concatenate([r[name]["own"][layer] for r in found])
            away = float(
                np.average(
                    [r[name]["away"][layer] for r in found],
                    weights=[len(r[name]["own"][layer]) for r in found],
                )
            )
            low, middle, high = (float(q) for q in np.quantile(own, [0.25, 0.5, 0.75]))
            rows.append(
                [name, layer_number(layer), middle, low, high, float(own.mean()), away, len(own)]
            )
    columns = (
        "method",
        "layer",
        "own_median",
        "own_q25",
        "own_q75",
        "own_mean",
        "not_main_contributor",
        "n",
    )
    form = Form(
        "lines",
        "method",
        "own_median",
        "layer",
        title="Contribution of the input token at the same position (median)",
    )
    return context.table(
        "mixing_own",
        columns,
        rows,
        "own-token contribution, and share of tokens that others contribute to most",
        form=form,
    )


@evaluation(
    "mixing_distance",
    "contribution by distance between the tokens, by layer",
    "Brunner et al. 2020, figure 4",
)
def mixing_distance(context: Context) -> EvaluationTable:
    """`total` is all neighbours at a distance together, `each` their mean."""
    found = statistics(context)
    rows: list[list[Cell]] = []
    for name in chosen(context).maps:
        for layer in range(len(found[0][name]["own"])):
            for d in range(1, FARTHEST + 1):
                some = [r[name] for r in found if r[name]["pairs"][d] > 0]
                total = mean_of([r["sums"][layer][d] for r in some])
                each = mean_of([r["sums"][layer][d] / r["pairs"][d] for r in some])
                label = f"{name}, layer {layer_number(layer)}"
                rows.append(
                    [
                        name,
                        label,
                        layer_number(layer),
                        d if d < FARTHEST else FARTHEST,
                        each,
                        total,
                        len(some),
                    ]
                )
    columns = ("method", "line", "layer", "distance", "each", "total", "n")
    form = Form(
        "lines",
        "line",
        "each",
        "distance",
        title=f"Contribution of a neighbour by distance ({FARTHEST}: and farther)",
    )
    caption = f"contribution of neighbours by distance ({FARTHEST} and farther as one)"
    return context.table("mixing_distance", columns, rows, caption, form=form)


def relative_groups(
    found: Sequence[Result], name: str, side: str = "both"
) -> dict[str, list[float]]:
    """Neighbour groups, mean over sentences, each divided by its sum over layers (Brunner et al. 2020, C.2)."""
    made = {}
    for group in GROUPS:
        label = group if side == "both" else f"{group}, {side}"
        some = [r[name]["groups"][label] for r in found if label in r[name]["groups"]]
        if some:
            each = np.mean(some, axis=0)
            made[group] = (each / each.sum()).tolist()
    return made


@evaluation(
    "mixing_neighbours",
    "in which layer is a group of neighbours taken up? each group sums to 1 over layers",
    "Brunner et al. 2020, figure 4a",
)
def mixing_neighbours(context: Context) -> EvaluationTable:
    """One row per method, side (both, left, right), group of distances and layer."""
    found = statistics(context)
    rows: list[list[Cell]] = [
        [
            name,
            group if side == "both" else f"{group}, {side}",
            side,
            layer_number(layer),
            value,
            len(found),
        ]
        for name in chosen(context).maps
        for side in SIDES
        for group, values in relative_groups(found, name, side).items()
        for layer, value in enumerate(values)
    ]
    form = Form("lines", "group", "relative", "layer", title="Relative contribution of neighbours")
    caption = "contribution of neighbours at each distance, divided by its sum over layers"
    columns = ("method", "group", "side", "layer", "relative", "n")
    return context.table("mixing_neighbours", columns, rows, caption, form=form)


def place_shares(found: Sequence[Result], name: str, layer: int) -> list[float]:
    """The total contribution of each place, summed over all tokens, as shares of the places together; the token
    itself (place 0) is left out (Brunner et al. 2020, figure 4b)."""
    total = np.sum([r[name]["places"][layer] for r in found], axis=0)
    total[PLACES.index(0)] = 0.0
    return (total / total.sum()).tolist()  # type: ignore[no-any-return]


@evaluation(
    "mixing_places",
    "total contribution of the neighbours left and right of a token, by layer",
    "Brunner et al. 2020, figure 4b",
)
def mixing_places(context: Context) -> EvaluationTable:
    """One row per method, layer and place (negative: left of the token); places of a layer sum to 1."""
    found = statistics(context)
    rows: list[list[Cell]] = [
        [name, f"{name}, layer {layer_number(layer)}", layer_number(layer), d, share, len(found)]
        for name in chosen(context).maps
        for layer in range(len(found[0][name]["own"]))
        for d, share in zip(PLACES, place_shares(found, name, layer), strict=True)
        if d
    ]
    form = Form("lines", "line", "share", "place", title="Contribution of neighbours by place")
    columns = ("method", "line", "layer", "place", "share", "n")
    caption = "total contribution of the ten neighbours on either side, as shares of these"
    return context.table("mixing_places", columns, rows, caption, form=form)


def own_by_tag(found: Sequence[Result], ready: Sequence[Ready], name: str) -> dict[str, Shares]:
    """Part of speech (or special token) to one list of own shares per layer (Brunner et al. 2020, C.5).

    The first piece of a word stands for it; a special token has its own name.
    """
    kept: dict[str, Shares] = {}
    for result, item in zip(found, ready, strict=True):
        own = result[name]["own"]
        tagged = [
            (piece, item.pieces[piece]) for piece, special in enumerate(item.special) if special
        ]
        if item.sample.tags is not None:
            tagged += [
                (pieces[0], tag)
                for pieces, tag in zip(item.words, item.sample.tags, strict=True)
                if pieces
            ]
        for piece, tag in tagged:
            layers = kept.setdefault(tag, [[] for _ in own])
            for layer, values in zip(layers, own, strict=True):
                layer.append(values[piece])
    return kept


def need_tags(ready: Sequence[Ready]) -> None:
    if not any(item.sample.tags for item in ready):
        raise InputError(
            "No word has a part of speech: give pos_tags=, a function from a list of words to a list of tags "
            "(ctxmix_hf.evaluation.hanta() is one: pip install 'ctxmix-hf[pos]'), or rows with a column pos_tags "
            "(one tag per word)."
        )


@evaluation(
    "mixing_pos",
    "own-token contribution by part of speech and layer; tags are given (pos_tags=)",
    "Brunner et al. 2020, figures 26-37",
)
def mixing_pos(context: Context) -> EvaluationTable:
    """One row per method, tag and layer: quartiles of the own share, and what nine of ten tokens lie between. Tags in
    the order of the last layer's median."""
    need_tags(context.ready)
    found = statistics(context)
    rows: list[list[Cell]] = []
    for name in chosen(context).maps:
        kept = own_by_tag(found, context.ready, name)
        for tag in sorted(kept, key=lambda t: -float(np.median(kept[t][-1]))):
            for layer, values in enumerate(kept[tag]):
                middle, *ends = (
                    float(q) for q in np.quantile(values, [0.5, 0.05, 0.25, 0.75, 0.95])
                )
                rows.append([name, tag, layer_number(layer), middle, *ends, len(values)])
    ends_of = ("own_q05", "own_q25", "own_q75", "own_q95")
    title = "Own contribution by part of speech"
    form = Form("boxes", "tag", "own_median", "layer", ends_of, title)
    columns = ("method", "tag", "layer", "own_median", *ends_of, "n")
    caption = "contribution of the input token at the same position, by part of speech"
    return context.table("mixing_pos", columns, rows, caption, form=form)


def around(result: Result, ready: Ready, layer: int, centre: str = "[SEP]") -> dict[int, float]:
    """Places relative to `centre` to their share of [CLS]: the first [SEP] of a pair (empty for a sentence that is
    not one), or [CLS] itself, whose places are those of the whole input (Brunner et al. 2020, figure 18)."""
    row = result["row"][layer]
    if centre == "[CLS]":
        return {d - ready.position: share for d, share in enumerate(row)}
    ends = [i for i, special in enumerate(ready.special) if special and i > 0]
    if ready.sample.second is None or not ends:
        return {}
    return {d: row[ends[0] + d] for d in range(-AROUND, AROUND + 1) if 0 <= ends[0] + d < len(row)}


@evaluation(
    "cls_context",
    "what the first token takes from places around itself and around the border of a pair",
    "Brunner et al. 2020, figure 18",
)
def cls_context(context: Context) -> EvaluationTable:
    """One row per method, centre, layer and place relative to it: the first [SEP] (18b), then [CLS] (18a). `share` is
    the mean over the pairs that reach so far; needs pairs of sentences."""
    found = statistics(context)
    rows: list[list[Cell]] = []
    for name in chosen(context).maps:
        for centre in ("[SEP]", "[CLS]"):
            for layer in range(len(found[0][name]["own"])):
                near = [
                    around(r[name], i, layer, centre)
                    for r, i in zip(found, context.ready, strict=True)
                ]
                line = f"{name}, {centre}, layer {layer_number(layer)}"
                for d in sorted({d for one in near for d in one}):
                    values = [one[d] for one in near if d in one]
                    rows.append(
                        [name, centre, line, layer_number(layer), d, mean_of(values), len(values)]
                    )
    if not any(row[1] == "[SEP]" for row in rows):
        raise InputError(
            "cls_context looks around the border between two sentences, and no row is a pair: give "
            "data with sentence1 and sentence2 (or columns={'text': ..., 'pair': ...})."
        )
    form = Form("lines", "line", "share", "place", title="Contribution to [CLS]")
    columns = ("method", "centre", "line", "layer", "place", "share", "n")
    caption = (
        "share of the first token that comes from places around the first [SEP] and around itself"
    )
    return context.table("cls_context", columns, rows, caption, form=form)


@torch.no_grad()
def _ratio_batch(bench: Bench, ready: Sequence[Ready]) -> list[Result]:
    record = bench.model(**bench.inputs_of(ready), output_decomposition=True).decomposition
    found = {name: mixing_ratios(record, name) for name in STAGE_OF}
    return [
        {name: rounded(v[b, :, : len(r.ids)].mean(dim=-1).tolist()) for name, v in found.items()}
        for b, r in enumerate(ready)
    ]


@evaluation(
    "mixing_ratios",
    "how much of a token's new vector comes from other tokens, by part of the layer",
    "Kobayashi et al. 2021, section 4",
)
def mixing_ratios_table(context: Context) -> EvaluationTable:
    """Mean over tokens and sentences of `|sum of others| / (|sum of others| + |own|)`, per decomposition and layer."""
    context.need_sentences()
    keys = [
        content_key("ratios", item.sample.key, item.ids, context.bench.fingerprint)
        for item in context.ready
    ]

    def compute(batch: Sequence[int]) -> list[Result]:
        return _ratio_batch(context.bench, [context.ready[i] for i in batch])

    found = context.store("ratios").run(
        keys, context.bench.batches(context.ready), compute, "mixing ratios", context.progress
    )
    rows: list[list[Cell]] = []
    for name in STAGE_OF:
        rows += [
            [name, layer_number(layer), mean_of([r[name][layer] for r in found]), len(found)]
            for layer in range(len(found[0][name]))
        ]
    form = Form("heatmap", "decomposition", "ratio", "layer", title="Context-mixing ratio")
    return context.table(
        "mixing_ratios",
        ("decomposition", "layer", "ratio", "n"),
        rows,
        "context-mixing ratio by layer",
        form=form,
    )


@torch.no_grad()
def _effective_batch(bench: Bench, ready: Sequence[Ready]) -> list[Result]:
    asked: list[Any] = [
        recipe("attention", per_head=True),
        recipe("effective_attention", per_head=True),
    ]
    maps = bench.model(**bench.inputs_of(ready), output_context_mixing=asked).context_mixing
    raw, effective = maps["attention"].heads, maps["effective_attention"].heads
    results: list[Result] = []
    for b, item in enumerate(ready):
        n = len(item.ids)
        pairs = [
            (raw[b, la, h, :n, :n], effective[b, la, h, :n, :n])
            for la in range(raw.shape[1])
            for h in range(raw.shape[2])
        ]
        values = [pearson(x.flatten().tolist(), y.flatten().tolist()) for x, y in pairs]
        results.append({"length": n, "pearson": mean_of(values)})
    return results


def effective_found(context: Context) -> list[Result]:
    """Per sentence: its length and the mean Pearson correlation of raw and effective attention."""
    context.need_sentences()
    keys = [
        content_key("effective", item.sample.key, item.ids, context.bench.fingerprint)
        for item in context.ready
    ]

    def compute(batch: Sequence[int]) -> list[Result]:
        return _effective_batch(context.bench, [context.ready[i] for i in batch])

    return context.store("effective").run(
        keys, context.bench.batches(context.ready), compute, "effective attention", context.progress
    )


@evaluation(
    "effective_attention",
    "correlation of attention and effective attention against length",
    "Brunner et al. 2020, figure 1a",
)
def effective_attention(context: Context) -> EvaluationTable:
    """Pearson over all entries of a head's map, mean over heads and layers, by number of tokens. 1
    while n <= head size.
    """
    found = effective_found(context)
    rows: list[list[Cell]] = []
    for length in sorted({r["length"] for r in found}):
        values = [r["pearson"] for r in found if r["length"] == length]
        rows.append(
            [
                "attention, effective attention",
                length,
                mean_of(values),
                float(np.std(values)),
                len(values),
            ]
        )
    form = Form(
        "lines",
        "between",
        "pearson",
        "tokens",
        title="Pearson correlation of raw and effective attention",
    )
    caption = "Pearson correlation of attention and effective attention by length"
    return context.table(
        "effective_attention",
        ("between", "tokens", "pearson", "std", "n"),
        rows,
        caption,
        form=form,
    )
