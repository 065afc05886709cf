"""Quantities of a layer are computed once for all methods of a call, and forgotten with it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf import recipes
from ctxmix_hf.records import LayerRecord
from ctxmix_hf.workspace import computed_once
from tests.methods.by_hand import layer

CALLS: list[tuple[int, int]] = []


@computed_once
def doubled(one: LayerRecord, number: int, more: int = 0) -> int:
    CALLS.append((number, more))
    return 2 * number + more


def test_computed_once_per_layer_and_arguments() -> None:
    CALLS.clear()
    first, second = layer(), layer()
    assert [doubled(first, 3), doubled(first, 3), doubled(first, 3, more=1)] == [6, 6, 7]
    assert doubled(second, 3) == 6
    assert CALLS == [(3, 0), (3, 1), (3, 0)]
    first.release()
    doubled(first, 3)
    assert CALLS[-1] == (3, 0) and len(CALLS) == 4


def test_rows_of_a_layer_have_a_workspace_of_their_own_for_the_same_methods() -> None:
    CALLS.clear()
    whole = layer()
    whole.workspace.methods = ("asked",)
    doubled(whole, 1)
    part = whole.rows(slice(0, 1))
    assert part.workspace.methods == ("asked",)
    doubled(part, 1)
    assert CALLS == [(1, 0), (1, 0)]


def test_a_refuted_layer_keeps_nothing_that_was_computed_from_its_block() -> None:
    found = layer()
    found.parts("attention")
    refuted = found.refuted("it does not add up.")
    assert refuted.refused and refuted.level2 is None and not refuted.workspace.made
    assert found.level2 is not None, "the record itself is as it was"
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.level2 = None  # type: ignore[misc]


@pytest.mark.parametrize("expected", [None, 3, 2, 5])
@pytest.mark.parametrize("together", [0, 2**20])
def test_maps_are_gathered_as_they_come(expected, together, monkeypatch) -> None:
    """Where the depth is known beforehand they stand in one tensor from the start; a wrong guess changes nothing."""
    monkeypatch.setattr(recipes, "TOGETHER", together)
    layers = [torch.rand(2, 4, 4) for _ in range(3)]
    held = recipes.Gathered(expected)
    for made in layers:
        held.add(made)
    assert torch.equal(held.stacked(None), torch.stack(layers, dim=1))
    assert torch.equal(held.stacked([0, 1, 2]), torch.stack(layers, dim=1))
    assert torch.equal(held.stacked([2, 0, 7]), torch.stack([layers[2], layers[0]], dim=1))
    one = expected == 3 and together == 0
    assert (held.stacked(None).data_ptr() == held.each[0].data_ptr()) == one


def test_maps_that_keep_a_graph_are_not_copied(monkeypatch) -> None:
    monkeypatch.setattr(recipes, "TOGETHER", 0)
    held, leaf = recipes.Gathered(1), torch.rand(1, 2, 2, requires_grad=True)
    held.add(leaf)
    held.stacked(None).sum().backward()
    assert torch.equal(leaf.grad, torch.ones(1, 2, 2))


def test_one_method_in_two_recipes_is_kept_once(monkeypatch) -> None:
    monkeypatch.setattr(recipes, "TOGETHER", 0)
    model, tokenizer = cm.load_default()
    inputs = tokenizer("The cats sleep.", return_tensors="pt")
    for _ in range(2):  # the second call hears the attention alone
        names = ["attention_rollout", "attention_flow", "attention_fixedres+rollout"]
        made = model(**inputs, output_context_mixing=names).context_mixing
        assert len({m.layers.data_ptr() for m in made.values()}) == 1
