"""Quantities of a layer are computed once for all methods of a call, and forgotten with it."""

from __future__ import annotations

import dataclasses

import pytest

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
