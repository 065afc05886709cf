"""Does a map look like what people would point at? (DeYoung et al. 2020, section 4.2; alignments: any gold pairs)

Gold per word: `rationale` (one number per word) or `rationale_indices`. Gold per pair: `alignment`, a list of
[target word, source word]. Plausible is not faithful: a model may be right for other reasons.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ctxmix_hf.errors import InputError
from ctxmix_hf.evaluation.agreement import by_word
from ctxmix_hf.evaluation.bench import Bench, Ready
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.metrics import (
    average_precision,
    mean_of,
    overlap,
    summarise,
    token_f1,
    top_k,
)
from ctxmix_hf.evaluation.scores import MethodSet
from ctxmix_hf.evaluation.sessions import Result, content_key
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form

MATCH = 0.5  # overlap at which two rationales count as the same


@evaluation(
    "plausibility",
    "agreement of the aggregated row with words that people marked",
    "DeYoung et al. 2020, section 4.2",
)
def plausibility(context: Context) -> EvaluationTable:
    """One row per method: AUPRC; token F1 and IOU of as many top words as the gold has; share of
    sentences with IOU >= 0.5.
    """
    every = context.scores
    scores = [s for s in every if s.ready.sample.gold is not None and any(s.ready.sample.gold)]
    if not scores:
        raise InputError(
            "No sentence has gold: plausibility needs a column rationale (one number per word) or rationale_indices."
        )
    left = len(every) - len(scores)
    rows: list[list[Cell]] = []
    for method in context.method_set.names:
        golds = [np.asarray(s.ready.sample.gold) > 0 for s in scores]
        words = [by_word(s, method) for s in scores]
        picked = [top_k(w, int(g.sum())) for w, g in zip(words, golds, strict=True)]
        found = summarise(
            [average_precision(w, g) for w, g in zip(words, golds, strict=True)], context.seed
        )
        ious = [overlap(p, g) for p, g in zip(picked, golds, strict=True)]
        f1 = mean_of([token_f1(p, g) for p, g in zip(picked, golds, strict=True)])
        rows.append(
            [
                method,
                found.mean,
                found.low,
                found.high,
                f1,
                mean_of(ious),
                mean_of([float(v >= MATCH) for v in ious]),
                found.n,
            ]
        )
    columns = ("method", "auprc", "ci_low", "ci_high", "token_f1", "iou", "iou_match", "n")
    form = Form(
        "bars",
        "method",
        "auprc",
        error=("ci_low", "ci_high"),
        title="Agreement with marked words (AUPRC)",
    )
    note = f"{left} of {len(every)} sentences left out: no word is marked." if left else ""
    caption = "agreement of the aggregated row, summed to words, with words that people marked"
    return context.table(
        "plausibility",
        columns,
        rows,
        caption,
        form=form,
        notes=(note, context.accuracy),
        sentences=len(scores),
    )


def word_map(ready: Ready, maps: torch.Tensor) -> torch.Tensor:
    """`[..., W, W]` from `[..., T, T]`: sources summed, targets averaged; words that were cut off are zero."""
    join = maps.new_zeros(len(ready.words), maps.shape[-1])
    for w, pieces in enumerate(ready.words):
        join[w, list(pieces)] = 1
    mean = join / join.sum(dim=-1, keepdim=True).clamp(min=1)
    return mean @ maps @ join.T


def hits(words: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """(targets whose strongest other word is one of their gold sources, targets) of a `[W, W]` map."""
    gold: dict[int, set[int]] = {}
    for target, source in pairs:
        gold.setdefault(target, set()).add(source)
    others = words.masked_fill(torch.eye(len(words), dtype=torch.bool), -torch.inf)
    return sum(int(others[target].argmax()) in sources for target, sources in gold.items()), len(
        gold
    )


@torch.no_grad()
def _batch(bench: Bench, ready: Sequence[Ready], methods: MethodSet) -> list[Result]:
    maps = bench.model(
        **bench.inputs_of(ready), output_context_mixing=list(methods.maps.values())
    ).context_mixing
    results: list[Result] = [{} for _ in ready]
    for name, made in maps.items():
        for b, item in enumerate(ready):
            n, pairs = len(item.ids), item.sample.pairs or ()
            layers = (
                []
                if made.layers is None
                else [hits(m, pairs) for m in word_map(item, made.layers[b, :, :n, :n])]
            )
            results[b][name] = {
                "layers": layers,
                "input": hits(word_map(item, made.input[b, -1, :n, :n]), pairs),
            }
    return results


@evaluation(
    "alignment_accuracy",
    "is a word's strongest other word the one it is aligned with?",
    "any gold alignment of token pairs",
)
def alignment_accuracy(context: Context) -> EvaluationTable:
    """One row per method and layer (`input`: aggregated): share of aligned target words whose
    argmax is a gold source.
    """
    ready = [item for item in context.ready if item.sample.pairs]
    if not ready:
        raise InputError(
            "No sentence has gold pairs: alignment_accuracy needs a column alignment, a list of "
            "[target word, source word]."
        )
    methods = MethodSet(context.method_set.maps, {})
    keys = [
        content_key(
            "alignment", r.sample.key, r.ids, context.bench.fingerprint, methods.described()
        )
        for r in ready
    ]

    def compute(batch: Sequence[int]) -> list[Result]:
        return _batch(context.bench, [ready[i] for i in batch], methods)

    found = context.store("alignment").run(
        keys, context.bench.batches(ready), compute, "alignments", context.progress
    )
    rows: list[list[Cell]] = []
    for name in methods.maps:
        columns = [
            [r[name]["layers"][k] for r in found] for k in range(len(found[0][name]["layers"]))
        ]
        for layer, counts in [*enumerate(columns, 1), ("input", [r[name]["input"] for r in found])]:
            total = sum(c[1] for c in counts)
            rows.append(
                [
                    name,
                    str(layer),
                    sum(c[0] for c in counts) / total if total else float("nan"),
                    total,
                ]
            )
    form = Form("heatmap", "method", "accuracy", "layer", title="Alignment accuracy")
    caption = "share of aligned words whose strongest other word is the gold one"
    return context.table(
        "alignment_accuracy",
        ("method", "layer", "accuracy", "n"),
        rows,
        caption,
        form=form,
        sentences=len(ready),
    )
