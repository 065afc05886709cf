"""How much of a token is left in its hidden state, and where does the rest come from? (Brunner et al. 2020, section 5;
Kobayashi et al. 2021; for effective attention Brunner, section 3)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.evaluation.bench import Bench, Ready
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.metrics import mean_of, pearson
from ctxmix_hf.evaluation.scores import MethodSet
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form
from ctxmix_hf.evaluation.work import Result, content_key, rounded
from ctxmix_hf.methods.ratios import STAGE_OF, mixing_ratios
from ctxmix_hf.recipes import method as recipe

FARTHEST = 10  # neighbours beyond are one group
SKETCH = 8  # random probes per token for HTA: unbiased, cheap


def chosen(context: Context) -> MethodSet:
    """Hidden token attribution as in the paper, or what was asked for."""
    return MethodSet.of([recipe("hta", sketch=SKETCH)] if context.methods is None else context.methods)


def map_statistics(maps: torch.Tensor) -> Result:
    """Own share, whether another token is the main contributor, and the mean share by distance, of `[L, T, T]` shares."""
    depth, size, _ = maps.shape
    own = maps.diagonal(dim1=-2, dim2=-1)
    away = (maps.argmax(dim=-1) != torch.arange(size)).double()
    gap = (torch.arange(size)[:, None] - torch.arange(size)[None]).abs().clamp(max=FARTHEST)
    sums = [[float(maps[layer][gap == d].sum()) / size for d in range(FARTHEST + 1)] for layer in range(depth)]
    pairs = [int((gap == d).sum()) / size for d in range(FARTHEST + 1)]
    return {"own": rounded(own.tolist()), "away": rounded(away.mean(dim=-1).tolist()), "sums": rounded(sums), "pairs": rounded(pairs)}


@torch.no_grad()
def _batch(bench: Bench, ready: Sequence[Ready], methods: MethodSet) -> list[Result]:
    out = bench.model(**bench.inputs([r.ids for r in ready]), output_decomposition=True, output_context_mixing=list(methods.maps.values()))
    results: list[Result] = []
    for b, item in enumerate(ready):
        size = len(item.ids)
        results.append({name: map_statistics(to_shares(made.input[b, :, :size, :size])) for name, made in out.context_mixing.items()})
    return results


def statistics(context: Context) -> list[Result]:
    context.need_sentences()
    methods = chosen(context)
    described = [context.bench.fingerprint, methods.described(), FARTHEST]
    keys = [content_key("mixing", item.sample.key, item.ids, *described) for item in context.ready]
    batches = context.bench.batches(context.ready, sentences=2)

    def compute(batch: Sequence[int]) -> list[Result]:
        return _batch(context.bench, [context.ready[i] for i in batch], methods)

    return context.store("mixing").run(keys, batches, compute, "mixing", context.progress)


@evaluation("mixing_own", "own-token contribution, and tokens that are not their own main contributor, by layer",
            "Brunner et al. 2020, figure 3")  # fmt: skip
def mixing_own(context: Context) -> EvaluationTable:
    """One row per method and layer: quartiles of the own share over tokens, and the share of tokens mostly made by others."""
    found = statistics(context)
    rows: list[list[Cell]] = []
    for name in chosen(context).maps:
        for layer in range(len(found[0][name]["own"])):
            own = np.concatenate([r[name]["own"][layer] for r in found])
            away = float(np.average([r[name]["away"][layer] for r in found], weights=[len(r[name]["own"][layer]) for r in found]))
            low, middle, high = (float(q) for q in np.quantile(own, [0.25, 0.5, 0.75]))
            rows.append([name, layer + 1, middle, low, high, float(own.mean()), away, len(own)])
    columns = ("method", "layer", "own_median", "own_q25", "own_q75", "own_mean", "not_main_contributor", "n")
    form = Form("lines", "method", "own_median", "layer", title="Contribution of the input token at the same position (median)")
    return context.table(
        "mixing_own", columns, rows, "own-token contribution, and share of tokens that others contribute to most", form=form
    )


@evaluation("mixing_distance", "contribution by distance between the tokens, by layer", "Brunner et al. 2020, figure 4")
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
                label = f"{name}, layer {layer + 1}"
                rows.append([name, label, layer + 1, d if d < FARTHEST else FARTHEST, each, total, len(some)])
    columns = ("method", "line", "layer", "distance", "each", "total", "n")
    form = Form("lines", "line", "each", "distance", title=f"Contribution of a neighbour by distance ({FARTHEST}: and farther)")
    caption = f"contribution of neighbours by distance ({FARTHEST} and farther as one)"
    return context.table("mixing_distance", columns, rows, caption, form=form)


@torch.no_grad()
def _ratio_batch(bench: Bench, ready: Sequence[Ready]) -> list[Result]:
    record = bench.model(**bench.inputs([r.ids for r in ready]), output_decomposition=True).decomposition
    found = {name: mixing_ratios(record, name) for name in STAGE_OF}
    return [{name: rounded(v[b, :, : len(r.ids)].mean(dim=-1).tolist()) for name, v in found.items()} for b, r in enumerate(ready)]


@evaluation("mixing_ratios", "how much of a token's new vector comes from other tokens, by part of the layer",
            "Kobayashi et al. 2021, section 4")  # fmt: skip
def mixing_ratios_table(context: Context) -> EvaluationTable:
    """Mean over tokens and sentences of `|sum of others| / (|sum of others| + |own|)`, per decomposition and layer."""
    context.need_sentences()
    keys = [content_key("ratios", item.sample.key, item.ids, context.bench.fingerprint) for item in context.ready]

    def compute(batch: Sequence[int]) -> list[Result]:
        return _ratio_batch(context.bench, [context.ready[i] for i in batch])

    found = context.store("ratios").run(keys, context.bench.batches(context.ready), compute, "mixing ratios", context.progress)
    rows: list[list[Cell]] = []
    for name in STAGE_OF:
        rows += [[name, layer + 1, mean_of([r[name][layer] for r in found]), len(found)] for layer in range(len(found[0][name]))]
    form = Form("heatmap", "decomposition", "ratio", "layer", title="Context-mixing ratio")
    return context.table("mixing_ratios", ("decomposition", "layer", "ratio", "n"), rows, "context-mixing ratio by layer", form=form)


@torch.no_grad()
def _effective_batch(bench: Bench, ready: Sequence[Ready]) -> list[Result]:
    asked: list[Any] = [recipe("attention", per_head=True), recipe("effective_attention", per_head=True)]
    maps = bench.model(**bench.inputs([r.ids for r in ready]), output_context_mixing=asked).context_mixing
    raw, effective = maps["attention"].heads, maps["effective_attention"].heads
    results: list[Result] = []
    for b, item in enumerate(ready):
        n = len(item.ids)
        pairs = [(raw[b, la, h, :n, :n], effective[b, la, h, :n, :n]) for la in range(raw.shape[1]) for h in range(raw.shape[2])]
        values = [pearson(x.flatten().tolist(), y.flatten().tolist()) for x, y in pairs]
        results.append({"length": n, "pearson": mean_of(values)})
    return results


@evaluation("effective_attention", "correlation of attention and effective attention against length", "Brunner et al. 2020, figure 1a")
def effective_attention(context: Context) -> EvaluationTable:
    """Pearson over all entries of a head's map, mean over heads and layers, by number of tokens. 1 while n <= head size."""
    context.need_sentences()
    keys = [content_key("effective", item.sample.key, item.ids, context.bench.fingerprint) for item in context.ready]

    def compute(batch: Sequence[int]) -> list[Result]:
        return _effective_batch(context.bench, [context.ready[i] for i in batch])

    found = context.store("effective").run(keys, context.bench.batches(context.ready), compute, "effective attention", context.progress)
    rows: list[list[Cell]] = []
    for length in sorted({r["length"] for r in found}):
        values = [r["pearson"] for r in found if r["length"] == length]
        rows.append(["attention, effective attention", length, mean_of(values), float(np.std(values)), len(values)])
    form = Form("lines", "between", "pearson", "tokens", title="Pearson correlation of raw and effective attention")
    caption = "Pearson correlation of attention and effective attention by length"
    return context.table("effective_attention", ("between", "tokens", "pearson", "std", "n"), rows, caption, form=form)
