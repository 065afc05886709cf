"""What happens when the tokens a method ranks first are taken away, or alone are kept? (DeYoung et
al. 2020, section 4.3)

Comprehensiveness is `f(x) - f(x without the top k)`, sufficiency `f(x) - f(only the top k)`; AOPC
is their mean over the fractions up to one half. AUPC is the area under f while tokens vanish, best
first. Tokens are replaced by the unknown token; special tokens and the masked one stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ctxmix_hf.evaluation.bench import Bench
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.metrics import Array, area, count_of, mean_of, summarise
from ctxmix_hf.evaluation.scores import Scores, question_of
from ctxmix_hf.evaluation.sessions import Result, content_key, rounded
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form
from ctxmix_hf.unwrapping import base_model

FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
AOPC_UP_TO = 0.5


def _erased(scores: Scores, row: Array, blank: int) -> list[list[int]]:
    """Ids without the top k for every fraction, then with the top k alone."""
    ids, special = np.array(scores.ready.ids), np.array(scores.ready.special)
    free = ~special
    if scores.ready.good is not None:
        free[scores.ready.position] = False
    order = [i for i in np.argsort(-row, kind="stable") if free[i]]
    made = []
    for without in (True, False):
        for fraction in FRACTIONS:
            chosen = order[: count_of(fraction, len(order))] if order else []
            gone = chosen if without else [i for i in order if i not in set(chosen)]
            changed = ids.copy()
            changed[gone] = blank
            made.append([int(i) for i in changed])
    return made


@torch.no_grad()
def _batch(
    bench: Bench, some: Sequence[Scores], methods: Sequence[str], blank: int
) -> list[Result]:
    results: list[Result] = [{"before": s.answer, "curves": {}} for s in some]
    ready = [s.ready for s in some]
    logits = bench.model(**bench.inputs_of(ready)).logits
    question = question_of(logits, ready, base_model(bench.model).config)
    for method in methods:
        changed = [_erased(s, s.final(method), blank) for s in some]
        rows = [
            sentence[k] for k in range(2 * len(FRACTIONS)) for sentence in changed
        ]  # copies of the batch
        answers = bench.model(
            **bench.inputs(rows, [r.types for r in ready] * (2 * len(FRACTIONS)))
        ).logits
        after = question.score(answers).view(2 * len(FRACTIONS), len(some)).T.tolist()
        for result, values in zip(results, after, strict=True):
            result["curves"][method] = rounded(values)
    return results


def erasures(context: Context) -> list[Result]:
    """Per sentence: the score before, and after each erasure by each method."""
    context.need_sentences()
    bench, scores, methods = context.bench, context.scores, context.method_set.names
    blank = (
        bench.tokenizer.unk_token_id
        if bench.tokenizer.unk_token_id is not None
        else bench.tokenizer.mask_token_id
    )
    described = [bench.fingerprint, context.method_set.described(), context.seed, FRACTIONS, blank]
    keys = [content_key("erasure", s.ready.sample.key, s.ready.ids, *described) for s in scores]
    batches = bench.batches([s.ready for s in scores], sentences=16)

    def compute(batch: Sequence[int]) -> list[Result]:
        return _batch(bench, [scores[i] for i in batch], methods, blank)

    return context.store("erasure").run(keys, batches, compute, "erasing tokens", context.progress)


def measures(before: float, curve: Sequence[float]) -> tuple[float, float, float]:
    """(comprehensiveness AOPC, sufficiency AOPC, AUPC) of one sentence."""
    count = sum(f <= AOPC_UP_TO for f in FRACTIONS)
    without, alone = curve[: len(FRACTIONS)], curve[len(FRACTIONS) :]
    drops = [float(np.mean([before - v for v in values[:count]])) for values in (without, alone)]
    return drops[0], drops[1], area([0.0, *FRACTIONS], [before, *without])


@evaluation(
    "erasure",
    "comprehensiveness, sufficiency and area under the perturbation curve",
    "DeYoung et al. 2020, section 4.3",
)
def erasure(context: Context) -> EvaluationTable:
    """One row per method. High comprehensiveness, low sufficiency and low AUPC are good."""
    found = erasures(context)
    rows: list[list[Cell]] = []
    for method in context.method_set.names:
        values = [measures(r["before"], r["curves"][method]) for r in found]
        wide = summarise([v[0] for v in values], context.seed)
        rows.append(
            [
                method,
                wide.mean,
                wide.low,
                wide.high,
                mean_of([v[1] for v in values]),
                mean_of([v[2] for v in values]),
                wide.n,
            ]
        )
    columns = ("method", "comprehensiveness", "ci_low", "ci_high", "sufficiency", "aupc", "n")
    form = Form(
        "bars",
        "method",
        "comprehensiveness",
        error=("ci_low", "ci_high"),
        title="Comprehensiveness (AOPC): higher is better",
    )
    caption = (
        "change of the score when the top tokens go (comprehensiveness) or alone stay "
        "(sufficiency), mean over fractions to 0.5"
    )
    return context.table("erasure", columns, rows, caption, form=form)


@evaluation(
    "erasure_curves",
    "the score while tokens vanish, best first",
    "DeYoung et al. 2020, section 4.3",
)
def erasure_curves(context: Context) -> EvaluationTable:
    found = erasures(context)
    rows: list[list[Cell]] = []
    for method in context.method_set.names:
        rows.append([method, 0.0, mean_of([r["before"] for r in found])])
        for k, fraction in enumerate(FRACTIONS):
            rows.append([method, fraction, mean_of([r["curves"][method][k] for r in found])])
    form = Form(
        "lines",
        "method",
        "score",
        "fraction",
        title="Score of the answer while the top tokens vanish",
    )
    return context.table(
        "erasure_curves",
        ("method", "fraction", "score"),
        rows,
        "mean score by fraction of tokens erased",
        form=form,
    )
