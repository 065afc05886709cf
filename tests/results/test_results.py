"""Results as values: equal by content, usable as keys, and an attribution is not a tensor."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.recipes import method
from ctxmix_hf.text.tokens import Tokens

TEXT = "The keys to the cabinet [MASK] on the table."


@pytest.fixture(scope="module")
def real(box: Any) -> cm.ContextMixingMap:
    return cm.explain(box[0], TEXT, "attention", tokenizer=box[1])  # type: ignore[no-any-return]


def again(box: Any, spec: Any = "attention", text: Any = TEXT) -> Any:
    return cm.explain(box[0], text, spec, tokenizer=box[1])


def test_the_same_map_twice_is_equal_and_one_key(real: Any, box: Any) -> None:
    other = again(box)
    assert other is not real and other == real
    assert len({real, other}) == 1 and {real: 1}[other] == 1
    assert real in [again(box, text="Girls sleep."), other]


def test_a_map_stays_itself_when_its_input_map_is_made(box: Any) -> None:
    """`input` is computed when first asked for: neither equality nor the hash may notice."""
    seen, fresh = again(box), again(box)
    before = hash(seen)
    assert seen.input is not None
    assert hash(seen) == before and seen == fresh and fresh == seen


@pytest.mark.parametrize("suffix", [".json", ".npz", ".safetensors"])
def test_a_file_gives_an_equal_map_and_row(
    real: Any, tmp_path: Path, suffix: str, box: Any
) -> None:
    back = cm.ContextMixingMap.load(real.save(tmp_path / f"m{suffix}"))
    assert back == real and hash(back) == hash(real)
    row = real.attribution("[MASK]")
    back = cm.Attribution.load(row.save(tmp_path / f"a{suffix}"))
    assert back == row and hash(back) == hash(row)
    chosen = again(
        box, method("value_zeroing", targets=(1, 2)), "Girls sleep."
    )  # a tuple in the options, a list in the file
    assert cm.ContextMixingMap.load(chosen.save(tmp_path / f"c{suffix}")) == chosen


def test_copies_are_equal(real: Any) -> None:
    row = real.attribution("[MASK]")
    for made in (real, row, real - real):
        assert pickle.loads(pickle.dumps(made)) == made and copy.deepcopy(made) == made
        assert hash(copy.deepcopy(made)) == hash(made)


CHANGES = {
    "method": lambda m: replace(m, method="alti"),
    "numbers": lambda m: replace(m, layers=m.layers + 1e-6),
    "precision": lambda m: replace(m, layers=m.layers.double()),
    "mask": lambda m: replace(m, mask=~m.mask),
    "tokens": lambda m: replace(m, tokens=[Tokens(("?",) * m.size)]),
    "aggregation": lambda m: replace(m, aggregation="flow"),
    "residual": lambda m: replace(m, residual=0.5),
    "heads": lambda m: replace(m, heads=m.layers[:, :, None]),
    "input": lambda m: replace(m, given_input=m.input + 1),
    "options": lambda m: replace(m, meta={**m.meta, "options": {"norm": 2}}),
    "layers": lambda m: m.layer(-1),
    "words": lambda m: m.words(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_content_is_another_map(real: Any, what: str) -> None:
    other = CHANGES[what](real)
    assert other != real and real != other


def test_where_the_model_lies_is_not_content(real: Any) -> None:
    moved = replace(
        real,
        meta={**real.meta, "origin": {"model": "/elsewhere"}, "notes": {"error": torch.zeros(2)}},
    )
    assert moved == real and hash(moved) == hash(real)


def test_other_things_are_never_equal(real: Any) -> None:
    row = real.attribution("[MASK]")
    for made in (real, row, real - real):
        assert made != None and made != "attention" and made != 3  # noqa: E711
    assert real != row


def test_nan_is_equal_to_itself(real: Any) -> None:
    layers = real.layers.clone()
    layers[0, 0, 0, 0] = float("nan")
    assert replace(real, layers=layers) == replace(real, layers=layers.clone())


def test_rows_differ_by_layer_scope_and_target(real: Any) -> None:
    rows = [
        real.attribution("[MASK]"),
        real.attribution("[MASK]", 5),
        real.attribution("[MASK]", scope="layer"),
        real.attribution(1),
    ]
    assert len(set(rows)) == 4
    one = cm.ContextMixingMap(
        "alti", torch.eye(2).expand(1, 3, 2, 2), torch.ones(1, 2, dtype=torch.bool)
    )
    assert one.attribution(0, 1).scores.equal(one.attribution(0, 2).scores)
    assert one.attribution(0, 1) != one.attribution(0, 2)  # the same numbers, another layer


def test_differences_compare(real: Any, box: Any) -> None:
    other = again(box, text=TEXT.replace("keys", "key"))
    assert real - other == real - other and real - other != other - real
    assert len({real - other, real - other}) == 1


# ---- an attribution is not a tensor ---------------------------------------------------------------------------
def test_what_an_attribution_gives_of_its_scores(real: Any) -> None:
    row = real.attribution("[MASK]")
    assert row.shape == row.scores.shape == (1, real.size)
    assert torch.equal(row.sum(), row.scores.sum()) and torch.equal(
        row.sum(dim=-1), row.scores.sum(dim=-1)
    )
    assert np.array_equal(row.numpy(), row.scores.numpy()) and row.tolist() == row.scores.tolist()
    assert (
        np.array_equal(np.asarray(row), row.scores.numpy())
        and np.asarray(row, dtype=np.float64).dtype == np.float64
    )
    assert len(row) == 1 and isinstance(row[0], cm.Attribution)
    half = replace(row, scores=row.scores.bfloat16())
    assert np.allclose(np.asarray(half), row.numpy(), atol=1e-2)
    learned = replace(row, scores=row.scores.clone().requires_grad_())
    assert np.array_equal(learned.numpy(), row.numpy()) and np.array_equal(
        np.asarray(learned), row.numpy()
    )


def test_nothing_else_is_forwarded(real: Any) -> None:
    row = real.attribution("[MASK]")
    own = {name for cls in type(row).__mro__ for name in vars(cls)} | set(vars(row))
    forwarded = [
        name
        for name in dir(torch.Tensor)
        if not name.startswith("__") and name not in own and hasattr(row, name)
    ]
    assert not forwarded
    for name in ("backward", "max", "argmax", "device", "dtype", "to", "T", "requires_grad"):
        assert not hasattr(row, name), name
    with pytest.raises(AttributeError, match="backward"):
        row.backward()
