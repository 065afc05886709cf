"""Does an explanation depend on the model at all, and does it add up?

Randomisation (Adebayo et al. 2018, section 3.1): the entries of every weight are shuffled, first in
the head, then also in the last layer, then also in the one before it, and so on; the explanation of
the same answer should be another one. A rank correlation that stays near 1 means that the method
shows the sentence and not what this model does with it.

Completeness (Sundararajan et al. 2017, section 3): a method that claims that its scores add up to
something is held to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.attribution import ATTRIBUTIONS, AbstractAttribution, Case, Question
from ctxmix_hf.errors import CtxmixError, InputError
from ctxmix_hf.evaluation.bench import Bench, Ready
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.metrics import rank_correlation, summarise
from ctxmix_hf.evaluation.scores import (
    RANDOM,
    MethodSet,
    _batch_scores,
    listed_methods,
    question_of,
)
from ctxmix_hf.evaluation.sessions import Result, content_key, rounded, watched
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form
from ctxmix_hf.recipes import map_names
from ctxmix_hf.unwrapping import base_model

SLOW = ("hta", "hta_x_input")  # seconds per sentence and stage: tried where they are named
WHOLE = "nothing"  # the stage at which the model is still itself


# ---- randomisation
# ----------------------------------------------------------------------------------------------------
def stages(bench: Bench) -> list[tuple[str, list[torch.nn.Parameter]]]:
    """What is shuffled, in order: the head, then the layers from the last to the first; a weight
    belongs to its first place.

    The head is every weight that comes after the layers; weights before them (embeddings, and an
    output matrix tied to them) are left alone.
    """
    with torch.no_grad():
        record = bench.model(
            **bench.inputs([[bench.tokenizer.unk_token_id or 0] * 2]), output_decomposition=True
        ).decomposition
    layers = tuple(dict.fromkeys(record.replay.names))
    groups: dict[str, list[torch.nn.Parameter]] = {name: [] for name in layers}
    head: list[torch.nn.Parameter] = []
    begun = False
    for name, parameter in base_model(bench.model).named_parameters():
        inside = next((layer for layer in layers if name.startswith(f"{layer}.")), None)
        begun = begun or inside is not None
        if inside is not None:
            groups[inside].append(parameter)
        elif begun:
            head.append(parameter)
    named = [(f"layer {number}", groups[layer]) for number, layer in enumerate(layers, 1)]
    return [("head", head), *reversed(named)] if head else list(reversed(named))


@contextmanager
def shuffled(parameters: Sequence[torch.nn.Parameter], seed: int) -> Iterator[None]:
    """The entries of each weight in another order, its distribution unchanged; put back afterwards,
    also after an error.
    """
    generator = torch.Generator().manual_seed(seed)
    kept = [parameter.detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for parameter in parameters:
                order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
                parameter.copy_(parameter.flatten()[order].view_as(parameter))
        yield
    finally:
        with torch.no_grad():
            for parameter, before in zip(parameters, kept, strict=True):
                parameter.copy_(before)


def usable(context: Context, wanted: Sequence[Any]) -> tuple[MethodSet, list[str]]:
    """The methods that this model can be asked for, and a note on each of the others."""
    kept, notes = [], []
    for spec in wanted:
        chosen = MethodSet.of([spec])
        if context.bench.head == "any" and chosen.attributions:
            continue
        try:
            _batch_scores(context.bench, context.ready[:1], chosen, context.seed, False)
        except CtxmixError as error:
            notes.append(f"{chosen.names[0]} left out: {error}")
        else:
            kept.append(spec)
    if not kept:
        raise InputError(f"No method can be tried on this model. {' '.join(notes)}".strip())
    return MethodSet.of(kept), notes


def rows_by_stage(context: Context, methods: MethodSet) -> tuple[list[str], list[Result]]:
    """(stages, per sentence and method one row per stage); what is explained stays the whole model's answer."""
    bench, ready, made = context.bench, context.ready, stages(context.bench)
    names = [WHOLE, *(name for name, _ in made)]
    store, batches = context.store("sanity"), bench.batches(ready)
    described = [bench.fingerprint, methods.described(), context.seed]
    keys = [content_key("sanity", item.sample.key, item.ids, *described) for item in ready]
    missing = [batch for batch in batches if any(keys[i] not in store.known for i in batch)]
    asked: dict[int, Question | None] = {}
    rows: dict[int, list[dict[str, Any]]] = {i: [] for batch in missing for i in batch}
    for stage in range(len(names)):
        gone = [parameter for _, group in made[:stage] for parameter in group]
        with shuffled(gone, context.seed + stage):
            for number, batch in enumerate(
                watched(missing, f"shuffled: {names[stage]}", context.progress)
            ):
                some = [ready[i] for i in batch]
                if not stage:
                    asked[number] = _question(bench, some)
                found = _batch_scores(bench, some, methods, context.seed, False, asked[number])
                for i, result in zip(batch, found, strict=True):
                    rows[i].append(result["input"])
    for i, per_stage in rows.items():
        by_method = {
            name: rounded([_finite(row[name][-1]) for row in per_stage]) for name in methods.names
        }
        store.keep({keys[i]: by_method})
    return names, [store.known[key] for key in keys]


def _finite(row: Sequence[float]) -> list[float]:
    """A shuffled model may overflow: such a row has no order."""
    return list(row) if np.isfinite(row).all() else [0.0] * len(row)


@torch.no_grad()
def _question(bench: Bench, ready: Sequence[Ready]) -> Question | None:
    if bench.head == "any":
        return None
    logits = bench.model(**bench.inputs_of(ready)).logits
    return question_of(logits, ready, base_model(bench.model).config)


def _every_method(context: Context) -> list[Any]:
    if context.methods is None:
        maps = [name for name in map_names() if name not in SLOW]
        return [*maps, *(name for name in ATTRIBUTIONS if name != RANDOM), RANDOM]
    return listed_methods(context.methods)


@evaluation(
    "randomisation",
    "how much of an explanation is left when the layers are shuffled, from the top down",
    "Adebayo et al. 2018, section 3.1",
)
def randomisation(context: Context) -> EvaluationTable:
    """One row per method and stage: Spearman with the whole model's explanation, as it is and of absolute scores.

    `down_to` is the lowest part that is shuffled, with all above it. `random` depends on the
    sentence alone and stays at 1; maps say what a representation was made from and do not see the
    head.
    """
    context.need_sentences()
    methods, notes = usable(context, _every_method(context))
    if context.methods is None:
        notes.append(
            f"{', '.join(SLOW)} left out: they take long; name them in methods to try them."
        )
    names, found = rows_by_stage(context, methods)
    rows: list[list[Cell]] = []
    for method in methods.names:
        for stage, name in enumerate(names[1:], 1):
            pairs = [(np.asarray(r[method][stage]), np.asarray(r[method][0])) for r in found]
            made = summarise([rank_correlation(a, b) for a, b in pairs], context.seed)
            sizes = summarise([rank_correlation(np.abs(a), np.abs(b)) for a, b in pairs])
            rows.append(
                [method, name, made.mean, made.low, made.high, sizes.mean, made.n, made.undefined]
            )
    columns = ("method", "down_to", "mean", "ci_low", "ci_high", "absolute", "n", "undefined")
    title = "Spearman correlation with the whole model's explanation, shuffled down to"
    form = Form("heatmap", "method", "mean", "down_to", title=title)
    caption = "rank correlation with the explanation of the whole model while head and layers are shuffled, top down"
    return context.table("randomisation", columns, rows, caption, form=form, notes=notes)


# ---- completeness
# -----------------------------------------------------------------------------------------------------
def missed(attribution: AbstractAttribution, case: Case) -> Tensor | None:
    """`[B]`: how far the signed scores are from what they claim to add up to, relative to the
    larger of the claim and their sizes.
    """
    if "signed" in {f.name for f in fields(attribution)}:
        attribution = replace(attribution, signed=True, shares=None)  # type: ignore[call-arg]
    owed = attribution.owed(case)
    if owed is None:
        return None
    scores = attribution.scores(case).to(owed)
    scale = torch.maximum(owed.abs(), scores.abs().sum(dim=-1))
    return (scores.sum(dim=-1) - owed).abs() / scale.clamp(min=torch.finfo(owed.dtype).tiny)


@evaluation(
    "completeness",
    "how far scores are from adding up, where a method claims that they do",
    "Sundararajan et al. 2017, section 3",
)
def completeness(context: Context) -> EvaluationTable:
    """One row per method that claims it: the difference between the sum of the scores and what it
    should be, 0 is exact.

    The ledger's scores and lines should be the logit, those of integrated gradients and DeepLift
    the change from the baseline. Differences are relative to the larger of the claim and the sum of
    the scores' sizes.
    """
    context.need_sentences()
    bench = context.bench
    if bench.head == "any":
        raise InputError("Completeness is about scores of an answer: give a model with a head.")
    chosen, notes = usable(
        context,
        [spec for spec in _every_method(context) if MethodSet.of([spec]).attributions] or [RANDOM],
    )
    values: dict[str, list[float]] = {name: [] for name in chosen.attributions}
    special = {"mask": bench.tokenizer.mask_token_id, "unk": bench.tokenizer.unk_token_id}
    for batch in watched(bench.batches(context.ready), "adding up", context.progress):
        some = [context.ready[i] for i in batch]
        with torch.no_grad():
            out = bench.model(**bench.inputs_of(some), output_decomposition=True)
        question = question_of(out.logits, some, base_model(bench.model).config)
        case = Case(out.decomposition, question, out.logits, special, Budget.of(None))
        for name, attribution in chosen.attributions.items():
            off = missed(attribution, case)
            if off is not None:
                values[name] += off.tolist()
    rows: list[list[Cell]] = []
    for name, found in values.items():
        if found:
            made = summarise(found, context.seed)
            largest = float(np.max(found))
            rows.append([name, made.mean, made.low, made.high, largest, made.n])
    silent = [name for name, found in values.items() if not found]
    notes += [f"No claim to add up: {', '.join(silent)}."] if silent else []
    columns = ("method", "missing", "ci_low", "ci_high", "largest", "n")
    form = Form(
        "bars",
        "method",
        "missing",
        error=("ci_low", "ci_high"),
        title="What is missing from the sum",
    )
    caption = "difference between the sum of the scores and what they claim to add up to, relative"
    return context.table("completeness", columns, rows, caption, form=form, notes=notes)
