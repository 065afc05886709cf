"""Can a hidden token still be told apart? (Brunner et al. 2020, section 4)

A map g is learned from hidden tokens to input tokens (e^0, the tensor that enters layer 1). A token
is identified when the input nearest to g(e_i^l), among the tokens of its own sentence, is its own.
Folds are cut by sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from ctxmix_hf.errors import InputError
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.features import hidden_states
from ctxmix_hf.evaluation.fitting import QUICK, Fitting
from ctxmix_hf.evaluation.sessions import Store, content_key, watched
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form

Fold = tuple[list[int], list[int], list[int]]  # training, validation and test sentences
Distance = Literal["cosine", "l2"]
NEIGHBOURS = (-3, -2, -1, 1, 2, 3)


@dataclass(frozen=True)
class RecoveryTask:
    """Which map, by which distance, from e^source (plus `offset` places) to e^target, tested on e^tested; `seen`
    tests it on the sentences it was learned from."""

    kind: Literal["naive", "linear", "mlp"]
    distance: Distance
    source: int
    target: int = 0
    tested: int = -1
    offset: int = 0
    seen: bool = False


def distances(predicted: Tensor, candidates: Tensor, distance: Distance) -> Tensor:
    """`[T, T']`."""
    if distance == "l2":
        return torch.cdist(predicted, candidates)
    return (
        1
        - torch.nn.functional.normalize(predicted, dim=-1)
        @ torch.nn.functional.normalize(candidates, dim=-1).T
    )


def identified(predicted: Tensor, candidates: Tensor, wanted: Tensor, distance: Distance) -> Tensor:
    """True where the nearest candidate is the wanted one; `[T]`."""
    return distances(predicted, candidates, distance).argmin(dim=-1) == wanted


def _make(kind: str, x: Tensor, y: Tensor, how: Fitting) -> nn.Module:
    """A linear map may start at the ridge solution, so that few sentences are enough; an MLP starts at random."""
    if kind != "linear":
        width = how.hidden or x.shape[1]
        made: nn.Module = nn.Sequential(
            nn.Linear(x.shape[1], width, bias=how.bias),
            nn.GELU(),
            nn.Linear(width, y.shape[1], bias=how.bias),
        )
    else:
        made = nn.Linear(x.shape[1], y.shape[1], bias=how.bias)
    if how.start == "glorot":
        for parameter in made.parameters():
            if parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)
    if kind != "linear" or how.start == "glorot":
        return made
    layer = made
    assert isinstance(layer, nn.Linear)
    middle = (x.mean(dim=0), y.mean(dim=0)) if how.bias else (x[0] * 0, y[0] * 0)
    centred, wanted = (x - middle[0]).double(), (y - middle[1]).double()
    gram = centred.T @ centred
    ridge = 1e-2 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    solution = torch.linalg.solve(gram + ridge, centred.T @ wanted).float()
    with torch.no_grad():
        layer.weight.copy_(solution.T)
        if how.bias:
            layer.bias.copy_(middle[1] - middle[0] @ solution)
    return layer


def _loss(predicted: Tensor, wanted: Tensor, distance: Distance) -> Tensor:
    if distance == "l2":
        return (predicted - wanted).square().sum(dim=-1).mean()
    return (1 - torch.nn.functional.cosine_similarity(predicted, wanted, dim=-1)).mean()


def fit(
    kind: str,
    distance: Distance,
    x: Tensor,
    y: Tensor,
    valid: tuple[Tensor, Tensor],
    seed: int,
    how: Fitting = QUICK,
) -> nn.Module:
    """Adam on the distance itself, stopped when the validation sentences no longer improve; the best state is kept."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        model = _make(kind, x, y, how)
        optimiser = torch.optim.Adam(model.parameters(), lr=how.rate)
        best, waited, kept = float("inf"), 0, {k: v.clone() for k, v in model.state_dict().items()}
        for _ in range(how.epochs):
            for rows in torch.split(torch.randperm(len(x)), how.batch):
                optimiser.zero_grad()
                _loss(model(x[rows]), y[rows], distance).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            with torch.no_grad():
                now = float(_loss(model(valid[0]), valid[1], distance))
            waited = 0 if now < best - 1e-5 else waited + 1
            if now < best:
                best, kept = now, {k: v.clone() for k, v in model.state_dict().items()}
            if waited >= how.patience:
                break
        model.load_state_dict(kept)
    return model.eval()


def _pairs(state: Tensor, task: RecoveryTask, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """(hidden tokens, what they should become, its place in the sentence) of one sentence."""
    places = torch.arange(state.shape[1])
    inside = (places + task.offset >= 0) & (places + task.offset < state.shape[1])
    wanted = places[inside] + task.offset
    return state[layer, inside], state[task.target, wanted], wanted


def _joined(
    states: Sequence[Tensor], task: RecoveryTask, sentences: Sequence[int]
) -> tuple[Tensor, Tensor]:
    made = [_pairs(states[i], task, task.source) for i in sentences]
    return torch.cat([m[0] for m in made]), torch.cat([m[1] for m in made])


def folds(count: int, seed: int, number: int = 3) -> Iterator[Fold]:
    """(training, validation, test) sentences; every sentence is tested once."""
    order = np.random.default_rng(seed).permutation(count)
    for test in np.array_split(order, number):
        rest = [int(i) for i in order if i not in set(test.tolist())]
        cut = max(1, len(rest) // 6)
        yield rest[cut:], rest[:cut], [int(i) for i in test]


def used(fold: Fold, how: Fitting) -> list[int]:
    """The training sentences that a map is learned from: `fraction` of the fold's."""
    return fold[0][: max(1, round(how.fraction * len(fold[0])))]


def learn(
    states: Sequence[Tensor], task: RecoveryTask, fold: Fold, seed: int, how: Fitting = QUICK
) -> nn.Module | None:
    """The fold's map; None for the naive one."""
    if task.kind == "naive":
        return None
    x, y = _joined(states, task, used(fold, how))
    return fit(task.kind, task.distance, x, y, _joined(states, task, fold[1]), seed, how)


@torch.no_grad()
def rate(
    states: Sequence[Tensor], task: RecoveryTask, test: Sequence[int], model: nn.Module | None
) -> tuple[int, int]:
    """(identified, all) tokens of the test sentences."""
    counts = counted(states, task, test, model)
    return sum(c[0] for c in counts), sum(c[1] for c in counts)


@torch.no_grad()
def counted(
    states: Sequence[Tensor], task: RecoveryTask, test: Sequence[int], model: nn.Module | None
) -> list[tuple[int, int]]:
    """(identified, all) tokens of each test sentence."""
    counts = []
    for i in test:
        hidden, _, wanted = _pairs(states[i], task, task.source if task.tested < 0 else task.tested)
        predicted = hidden if model is None else model(hidden)
        right = int(identified(predicted, states[i][task.target], wanted, task.distance).sum())
        counts.append((right, len(wanted)))
    return counts


def counts(context: Context, tasks: Sequence[RecoveryTask]) -> list[list[list[tuple[int, int]]]]:
    """Of every task and fold, (identified, all) tokens of each test sentence; finished folds are kept for resuming."""
    how = context.fitting
    context.need_sentences(2 * how.folds)
    store = context.store("identifiability")
    described = [
        context.bench.fingerprint,
        [[r.sample.key, r.ids] for r in context.ready],
        context.seed,
        repr(replace(how, maps=())),
    ]
    keys = {
        (t, f): content_key("identified", t.__dict__, f, *described)
        for t in tasks
        for f in range(how.folds)
    }
    missing = [pair for pair, key in keys.items() if key not in store.known]
    if missing:
        _measure(context, store, missing, keys)
    return [
        [[(r, t) for r, t in store.known[keys[task, f]]["counts"]] for f in range(how.folds)]
        for task in tasks
    ]


def rates(context: Context, tasks: Sequence[RecoveryTask]) -> list[tuple[float, float, int]]:
    """(rate, standard deviation over folds, tokens) of every task."""
    results = []
    for by_fold in counts(context, tasks):
        sums = [(sum(c[0] for c in fold), sum(c[1] for c in fold)) for fold in by_fold]
        each = [right / total for right, total in sums if total]
        total = sum(t for _, t in sums)
        results.append((sum(r for r, _ in sums) / total, float(np.std(each)), total))
    return results


def _measure(
    context: Context,
    store: Store,
    missing: Sequence[tuple[RecoveryTask, int]],
    keys: dict[tuple[RecoveryTask, int], str],
) -> None:
    states = hidden_states(context.bench, context.ready, context.progress)
    cut = list(folds(len(states), context.seed, context.fitting.folds))
    learned: dict[
        tuple[RecoveryTask, int], nn.Module | None
    ] = {}  # a map is fitted once for all layers it is tested on
    for task, f in watched(missing, "fitting maps", context.progress):
        fitted = (replace(task, tested=-1, seen=False), f)
        if fitted not in learned:
            learned[fitted] = learn(states, task, cut[f], context.seed, context.fitting)
        asked = used(cut[f], context.fitting) if task.seen else cut[f][2]
        found = counted(states, task, asked, learned[fitted])
        store.keep({keys[task, f]: {"counts": found}})


COLUMNS = ("rate", "std", "n")


@evaluation(
    "identifiability_layers",
    "share of hidden tokens whose own input is the nearest, by layer and map",
    "Brunner et al. 2020, figure 2a",
)
def identifiability_layers(context: Context) -> EvaluationTable:
    """Same layer for training and test; `naive` compares the hidden token itself."""
    depth = context.bench.depth
    kinds: list[tuple[Literal["naive", "linear", "mlp"], Distance]] = [
        ("naive", "cosine"),
        ("naive", "l2"),
        ("linear", "cosine"),
        ("linear", "l2"),
        ("mlp", "cosine"),
        ("mlp", "l2"),
    ]
    tasks = [
        RecoveryTask(kind, distance, layer)
        for kind, distance in kinds
        for layer in range(1, depth + 1)
    ]
    found = rates(context, tasks)
    rows: list[list[Cell]] = [
        [f"{t.kind}, {t.distance}", t.kind, t.distance, t.source, *r]
        for t, r in zip(tasks, found, strict=True)
    ]
    form = Form("lines", "map", "rate", "layer", title="Token identifiability by layer")
    caption = f"share of hidden tokens identified, {context.fitting.folds}-fold by sentence"
    return context.table(
        "identifiability_layers",
        ("map", "kind", "distance", "layer", *COLUMNS),
        rows,
        caption,
        form=form,
    )


@evaluation(
    "identifiability_cross",
    "a map learned on one layer, tested on all",
    "Brunner et al. 2020, figure 2b",
)
def identifiability_cross(context: Context) -> EvaluationTable:
    """One row per map, layer it was learned on and layer it is tested on; `Fitting.maps` says which maps."""
    layers = range(1, context.bench.depth + 1)
    tasks = [
        RecoveryTask(kind, distance, source, tested=tested)  # type: ignore[arg-type]
        for kind, distance in context.fitting.maps
        for source in layers
        for tested in layers
    ]
    rows: list[list[Cell]] = [
        [f"{t.kind}, {t.distance}", t.source, t.tested, *r]
        for t, r in zip(tasks, rates(context, tasks), strict=True)
    ]
    form = Form(
        "heatmap",
        "trained_on",
        "rate",
        "tested_on",
        title="Trained on one layer, tested on another",
    )
    return context.table(
        "identifiability_cross",
        ("map", "trained_on", "tested_on", *COLUMNS),
        rows,
        "cross-layer identifiability",
        form=form,
    )


def hidden_tasks(context: Context) -> list[RecoveryTask]:
    """(e^l, e^(l-1)) for every layer: naive by both distances, and the maps of `Fitting.maps`."""
    kinds = [("naive", "cosine"), ("naive", "l2"), *context.fitting.maps]
    return [
        RecoveryTask(kind, distance, layer, layer - 1)  # type: ignore[arg-type]
        for kind, distance in kinds
        for layer in range(1, context.bench.depth + 1)
    ]


@evaluation(
    "identifiability_hidden",
    "hidden tokens recovered across single layers: e^(l-1) from e^l",
    "Brunner et al. 2020, figure 11",
)
def identifiability_hidden(context: Context) -> EvaluationTable:
    """One row per map and layer: is the nearest e^(l-1) of the sentence the token's own?"""
    tasks = hidden_tasks(context)
    rows: list[list[Cell]] = [
        [f"{t.kind}, {t.distance}", t.source, *r]
        for t, r in zip(tasks, rates(context, tasks), strict=True)
    ]
    form = Form("lines", "map", "rate", "layer", title="Recovering e^(l-1) from e^l")
    return context.table(
        "identifiability_hidden",
        ("map", "layer", *COLUMNS),
        rows,
        "hidden-to-hidden identifiability across single layers",
        form=form,
    )


def gap_tasks(context: Context, distance: Distance = "l2") -> list[RecoveryTask]:
    """Linear map and MLP of every layer, on the sentences they saw and on others (Brunner et al. 2020, B.2)."""
    kinds: tuple[Literal["linear", "mlp"], ...] = ("linear", "mlp")
    return [
        RecoveryTask(kind, distance, layer, seen=seen)
        for kind in kinds
        for seen in (True, False)
        for layer in range(1, context.bench.depth + 1)
    ]


@evaluation(
    "identifiability_gap",
    "tokens identified in sentences the map was learned from, and in others",
    "Brunner et al. 2020, figure 7",
)
def identifiability_gap(context: Context) -> EvaluationTable:
    """One row per map (by L2, as the figure), kind of sentence and layer."""
    tasks = gap_tasks(context)
    rows: list[list[Cell]] = [
        [f"{t.kind}, {'train' if t.seen else 'test'}", t.kind, t.source, *r]
        for t, r in zip(tasks, rates(context, tasks), strict=True)
    ]
    form = Form("lines", "map", "rate", "layer", title="Identified in training and test sentences")
    caption = "share of hidden tokens identified in training and test sentences, by L2"
    return context.table(
        "identifiability_gap", ("map", "kind", "layer", *COLUMNS), rows, caption, form=form
    )


FRACTIONS = (0.5, 0.8, 0.9, 1.0)


def fraction_counts(
    context: Context, task: RecoveryTask, fractions: Sequence[float] = FRACTIONS
) -> dict[float, list[tuple[int, int]]]:
    """(identified, all) tokens of each test sentence, by the part of the training sentences that was used."""
    made = {}
    for fraction in fractions:
        some = replace(context, fitting=replace(context.fitting, fraction=fraction))
        made[fraction] = [pair for fold in counts(some, [task])[0] for pair in fold]
    return made


@evaluation(
    "identifiability_fractions",
    "tokens identified by an MLP learned from a part of the training sentences",
    "Brunner et al. 2020, appendix B.2",
)
def identifiability_fractions(context: Context) -> EvaluationTable:
    """One row per fraction: the MLP (L2) of the last layer but one, as in the paper."""
    task = RecoveryTask("mlp", "l2", max(1, context.bench.depth - 1))
    rows: list[list[Cell]] = []
    for fraction, each in fraction_counts(context, task).items():
        total = sum(t for _, t in each)
        rows.append(["mlp, l2", task.source, fraction, sum(r for r, _ in each) / total, total])
    form = Form("lines", "map", "rate", "fraction", title="Identified by part of the data used")
    caption = f"share of hidden tokens identified after layer {task.source}, by part of the training sentences"
    return context.table(
        "identifiability_fractions",
        ("map", "layer", "fraction", "rate", "n"),
        rows,
        caption,
        form=form,
    )


@evaluation(
    "identifiability_tuned",
    "two models, such as one before and after fine-tuning: naive identification across single layers",
    "Brunner et al. 2020, figures 12 and 13",
)
def identifiability_tuned(context: Context) -> EvaluationTable:
    """One row per model, distance and layer: is the nearest e^(l-1) of the sentence the token's own, as it is?"""
    if context.other is None:
        raise InputError("identifiability_tuned compares two models: give model=(before, after).")
    rows: list[list[Cell]] = []
    for which, one in (("first", context), ("second", context.other)):
        tasks = naive_tasks(one)
        rows += [
            [f"{which}, {t.distance}", one.bench.name, t.distance, t.source, *r]
            for t, r in zip(tasks, rates(one, tasks), strict=True)
        ]
    form = Form("lines", "line", "rate", "layer", title="Across single layers, two models")
    caption = "hidden tokens identified across single layers by the naive baselines, for two models"
    return context.table(
        "identifiability_tuned",
        ("line", "model", "distance", "layer", *COLUMNS),
        rows,
        caption,
        form=form,
    )


def naive_tasks(context: Context) -> list[RecoveryTask]:
    """(e^l, e^(l-1)) without a map, by both distances: the baselines of figures 12 and 13."""
    return [t for t in hidden_tasks(context) if t.kind == "naive"]


@evaluation(
    "identifiability_neighbours",
    "can a neighbour's input be recovered from a hidden token?",
    "Brunner et al. 2020, figures 14-17",
)
def identifiability_neighbours(context: Context) -> EvaluationTable:
    """One row per map, layer and offset; `Fitting.maps` says which maps."""
    layers = range(1, context.bench.depth + 1)
    tasks = [
        RecoveryTask(kind, distance, layer, offset=offset)  # type: ignore[arg-type]
        for kind, distance in context.fitting.maps
        for layer in layers
        for offset in NEIGHBOURS
    ]
    rows: list[list[Cell]] = [
        [f"{t.kind}, {t.distance}", f"layer {t.source}", t.offset, *r]
        for t, r in zip(tasks, rates(context, tasks), strict=True)
    ]
    form = Form("lines", "layer", "rate", "offset", title="Recovering the input of a neighbour")
    return context.table(
        "identifiability_neighbours",
        ("map", "layer", "offset", *COLUMNS),
        rows,
        "neighbour recovery",
        form=form,
    )
