"""Rollout and flow on graphs that can be followed with a finger."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.aggregation import maxflow
from ctxmix_hf.aggregation.flow import flow
from ctxmix_hf.aggregation.rollout import OverflowScaledWarning, rollout, with_residual
from ctxmix_hf.errors import OptionError
from tests import zoo

LOWER = [[0.5, 0.5], [0.25, 0.75]]
UPPER = [[0.8, 0.2], [0.0, 1.0]]


def stack(*maps: list[list[float]]) -> torch.Tensor:
    return torch.tensor([maps], dtype=torch.float64)


def test_rollout_is_the_product_from_the_top_down() -> None:
    rolled = rollout(stack(LOWER, UPPER))
    assert torch.equal(rolled[:, 0], stack(LOWER)[:, 0])
    expected = [[0.8 * 0.5 + 0.2 * 0.25, 0.8 * 0.5 + 0.2 * 0.75], [0.25, 0.75]]
    assert torch.allclose(rolled[:, 1], stack(expected)[:, 0])


def test_a_product_that_overflows_is_scaled_and_says_so() -> None:
    large = torch.full((1, 3, 2, 2), 1e20)
    with pytest.warns(OverflowScaledWarning):
        rolled = rollout(large)
    assert torch.isfinite(rolled).all()
    assert torch.allclose(rolled[0, -1] / rolled[0, -1].sum(-1, keepdim=True), torch.tensor(0.5))


def test_the_residual_keeps_a_share_of_real_tokens_only() -> None:
    mask = torch.tensor([[True, False]])
    kept = with_residual(stack([[1.0, 0.0], [0.0, 0.0]])[:, 0], 0.5, mask)
    assert kept.tolist() == [[[1.0, 0.0], [0.0, 0.0]]]


def test_flow_through_two_layers_is_the_sum_of_the_narrowest_edges() -> None:
    """Two layers leave one way through each middle token, as wide as its narrower edge."""
    raw = flow(stack(LOWER, UPPER), row_shares=False)[0, 1]
    expected = [
        [min(0.8, 0.5) + min(0.2, 0.25), min(0.8, 0.5) + min(0.2, 0.75)],
        [0.25, 0.75],
    ]
    assert torch.allclose(raw, torch.tensor(expected, dtype=torch.float64))
    shares = flow(stack(LOWER, UPPER))[0, 1]
    assert torch.allclose(shares, raw / raw.sum(-1, keepdim=True))


def test_flow_of_some_targets_leaves_the_others_out() -> None:
    some = flow(stack(LOWER, UPPER), targets=[1], layers=[-1])
    whole = flow(stack(LOWER, UPPER))
    assert torch.equal(some[0, 1, 1], whole[0, 1, 1]) and not some[0, 1, 0].any()
    assert not some[0, 0].any()


def test_flow_leaves_torch_its_threads() -> None:
    """The compiled solver shares OpenMP with torch: when it started its threads were torch's from then on, and
    slowed all that followed.
    """
    code = "import torch; from ctxmix_hf.aggregation.flow import flow; torch.set_num_threads(1); "
    code += "flow(torch.eye(3).expand(1, 2, 3, 3)); print(torch.get_num_threads())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_a_long_flow_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled solver answers to no signal, so it is given a few rows at a time: as few when its own start
    makes torch report more threads than were asked for.
    """
    maps = torch.rand(1, 2, 30, 30, dtype=torch.float64).softmax(dim=-1)
    sizes, own = [], maxflow.flows_from

    def seen(graph: Any, reach: Any, layer: int, starts: Any) -> Any:
        sizes.append(len(starts))
        return own(graph, reach, layer, starts)

    def started(graph: Any) -> Any:
        torch.set_num_threads(2)
        return reached(graph)

    reached = maxflow.deliverable_to_all
    monkeypatch.setattr(maxflow, "deliverable_to_all", started)
    monkeypatch.setattr(maxflow, "flows_from", seen)
    whole = flow(maps)
    assert max(sizes) <= 8 and sum(sizes) == 2 * 30
    assert torch.equal(flow(maps, targets=[5, 20])[0, :, [5, 20]], whole[0, :, [5, 20]])


def test_negative_maps_are_no_capacities() -> None:
    maps = stack([[0.7, -0.1], [0.0, 1.0]])
    with pytest.raises(OptionError, match="negative='clamp'"):
        flow(maps)
    # the advice: one layer's flow is its edges
    raw = {how: flow(maps, row_shares=False, negative=how)[0, 0] for how in ("clamp", "absolute")}
    assert raw["clamp"].tolist() == [[0.7, 0.0], [0.0, 1.0]]
    assert raw["absolute"].tolist() == [[0.7, 0.1], [0.0, 1.0]]
    with pytest.raises(OptionError, match="'clamp' or 'absolute', got 'drop'"):
        flow(maps, negative="drop")


def test_effective_attention_flows_by_a_named_choice() -> None:
    model, _ = zoo.build("bert", dtype=torch.float64)
    ids = torch.arange(5, 25)[None]  # longer than the head size, so some weights are negative
    made = cm.explain(cm.instrument(model), {"input_ids": ids}, "effective_attention+flow")
    assert made.layers is not None and bool((made.layers < 0).any())
    with pytest.raises(OptionError, match="negative='absolute'"):
        made.aggregate("flow")
    for how, edges in (("clamp", made.layers.clamp(min=0)), ("absolute", made.layers.abs())):
        assert torch.equal(
            made.aggregate("flow", targets=[3], negative=how), flow(edges, targets=[3])
        )
    with pytest.raises(OptionError, match="rollout keeps every sign"):
        made.aggregate("rollout", negative="clamp")
    assert torch.isfinite(made.aggregate("rollout")).all()  # the advice: without it
