"""Tables against the same numbers computed another way, and no evaluation without a test."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from ctxmix_hf.evaluation import EVALUATIONS
from ctxmix_hf.evaluation.context import Context
from ctxmix_hf.evaluation.table import EvaluationTable

Make = Callable[..., Context]


def run(name: str, context: Context) -> EvaluationTable:
    return EVALUATIONS.get(name).run(context)


def found(table: EvaluationTable, value: str, *by: str) -> dict[tuple[object, ...], float]:
    return dict(zip(zip(*map(table.column, by), strict=True), table.column(value), strict=True))


def test_every_evaluation_is_named_in_a_test() -> None:
    text = "".join(p.read_text(encoding="utf-8") for p in Path(__file__).parent.glob("test_*.py"))
    names = {name: (name, EVALUATIONS.get(name).run.__name__) for name in EVALUATIONS}
    missing = [
        name
        for name, called in names.items()
        if not any(re.search(rf'["\'.]{one}\b', text) for one in called)
    ]
    assert missing == [], "an evaluation without a test: write one"


def test_sets_average_to_the_whole(context: Make) -> None:
    """cue_alignment_sets, weighted by how many sentences a set has, is cue_alignment's row from the input."""
    made = context(24)
    sets, whole = run("cue_alignment_sets", made), run("cue_alignment", made)
    counts = found(sets, "n", "method", "set")
    assert len({name for _, name in counts}) > 1
    for value in ("dot_product", "average_precision", "probes_needed", "cue_first"):
        every = found(whole, value, "method", "layer")
        for method in ("attention", "alti", "random"):
            some = {k: v for k, v in found(sets, value, "method", "set").items() if k[0] == method}
            mean = np.average(list(some.values()), weights=[counts[k] for k in some])
            assert mean == pytest.approx(every[method, "input"])


def nearest(states: torch.Tensor, of: torch.Tensor, distance: str) -> list[bool]:
    """Token by token: is the nearest of `of` the token's own?"""
    hits = []
    for i, vector in enumerate(states):
        if distance == "cosine":
            gaps = [1 - float(torch.nn.functional.cosine_similarity(vector, o, dim=0)) for o in of]
        else:
            gaps = [float((vector - o).norm()) for o in of]
        hits.append(int(np.argmin(gaps)) == i)
    return hits


@pytest.mark.parametrize("distance", ["cosine", "l2"])
def test_naive_identification_by_brute_force(context: Make, distance: str) -> None:
    """identifiability_layers against e^0, identifiability_hidden against the layer below, one sentence at a time."""
    made = context(9, ["attention"])
    layers = found(run("identifiability_layers", made), "rate", "map", "layer")
    hidden = found(run("identifiability_hidden", made), "rate", "map", "layer")
    first: dict[int, list[bool]] = defaultdict(list)
    below: dict[int, list[bool]] = defaultdict(list)
    for item in made.ready:
        with torch.no_grad():
            record = made.bench.model(
                **made.bench.inputs_of([item]), output_decomposition=True
            ).decomposition
        states = [state[0] for state in record.hidden_states]
        for layer in range(1, 7):
            first[layer] += nearest(states[layer], states[0], distance)
            below[layer] += nearest(states[layer], states[layer - 1], distance)
    for layer in range(1, 7):
        assert layers[f"naive, {distance}", layer] == pytest.approx(np.mean(first[layer]))
        assert hidden[f"naive, {distance}", layer] == pytest.approx(np.mean(below[layer]))
    assert min(np.mean(v) for v in first.values()) < 1  # it can fail


def test_across_layers_the_diagonal_is_the_layer_itself(context: Make) -> None:
    made = context(9, ["attention"])
    across = found(run("identifiability_cross", made), "rate", "map", "trained_on", "tested_on")
    layers = found(run("identifiability_layers", made), "rate", "map", "layer")
    same = [across["linear, cosine", k, k] for k in range(1, 7)]
    assert same == pytest.approx([layers["linear, cosine", k] for k in range(1, 7)])
    assert across["linear, cosine", 1, 6] < across["linear, cosine", 1, 1]


def test_alignment_with_a_probe_is_scipys(context: Make) -> None:
    """mdl_alignment is Spearman, over layers, of cue_alignment's profile and mdl_probe's compression."""
    made = context(24)
    table = found(run("mdl_alignment", made), "spearman", "method")
    compression = run("mdl_probe", made).column("compression")[1:]
    profile = found(run("cue_alignment", made), "dot_product", "method", "layer")
    for method in ("attention", "alti", "random"):
        by_layer = [profile[method, str(k)] for k in range(1, 7)]
        assert table[(method,)] == pytest.approx(spearmanr(by_layer, compression).statistic)


def test_neighbours_and_places_are_shares(context: Make) -> None:
    """mixing_neighbours sums to 1 over layers, mixing_places over places; the first neighbours by hand."""
    made = context(4, ["alti"])
    groups = found(run("mixing_neighbours", made), "relative", "group", "side", "layer")
    for group, side in {(g, s) for g, s, _ in groups}:
        assert sum(groups[group, side, k] for k in range(1, 7)) == pytest.approx(1.0)
    places = found(run("mixing_places", made), "share", "layer", "place")
    for layer in range(1, 7):
        assert sum(v for (k, _), v in places.items() if k == layer) == pytest.approx(1.0)
    maps = [
        made.bench.model(**made.bench.inputs_of([i]), output_context_mixing="alti")
        .context_mixing["alti"]
        .input[0]
        for i in made.ready
    ]
    mean = [
        np.mean(
            [
                np.mean(
                    [
                        np.mean(
                            [
                                float(m[layer, i, j])
                                for j in (i - 1, i + 1)
                                if 0 <= j < len(m[layer])
                            ]
                        )
                        for i in range(len(m[layer]))
                    ]
                )
                for m in maps
            ]
        )
        for layer in range(6)
    ]
    assert [groups["1st", "both", k] for k in range(1, 7)] == pytest.approx(
        mean / np.sum(mean), rel=1e-4
    )
