"""Every option of every method, ALONE: in a first call, in a later one and beside others it gives
the same numbers (or the same refusal). A call that asks for everything at once hides what one
method leaves behind for another."""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import Any

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.errors import CtxmixError, OptionError
from ctxmix_hf.methods import METHODS
from ctxmix_hf.recipes import method
from tests import zoo

FAMILIES = {  # when float32 and bfloat16 are tried
    "bert": ([], [pytest.mark.slow]),
    "llama": ([], [pytest.mark.exhaustive]),
    "vit": ([], [pytest.mark.exhaustive]),
    "modernbert": ([pytest.mark.slow], [pytest.mark.slow]),
    "t5": ([pytest.mark.slow], [pytest.mark.exhaustive]),
    "gpt2": ([pytest.mark.slow], [pytest.mark.exhaustive]),
    "wav2vec2": ([pytest.mark.slow], [pytest.mark.exhaustive]),
}
JACOBIANS = {"hta", "hta_x_input"}  # exact ones need hundreds of backward passes: sketched here


def other_values(name: str, field: dataclasses.Field) -> list[Any]:
    """Values of an option that are not its default, found by asking: a wrong one is refused with
    the list of right ones.
    """
    if isinstance(field.default, bool):
        return [not field.default]
    if field.default is None:  # targets
        return [(0, 2)]
    if isinstance(field.default, float):
        return [0.3]
    try:
        method(name, **{field.name: "no such value" if isinstance(field.default, str) else -7})
    except OptionError as error:
        right = re.search(r" must be (.*), got ", str(error))
        listed = re.findall(r"'([^']+)'|\b(\d+)\b", right[1]) if right else []
        values = [text or int(number) for text, number in listed]
        return [value for value in values if value != field.default] or (
            [2] if isinstance(field.default, int) else []
        )
    return [field.default + 1]  # seeds


def cases() -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for name in METHODS.names():
        base = {"sketch": 2} if name in JACOBIANS else {}
        found.append((name, base))
        for field in dataclasses.fields(METHODS.get(name)):
            for value in other_values(name, field):
                found.append((name, {**base, field.name: value}))
    return found


CASES = cases()


def test_options_are_found_by_asking() -> None:
    options = {(name, key) for name, chosen in CASES for key in chosen}
    assert {
        ("alti", "norm"),
        ("alti", "through"),
        ("value_zeroing", "distance"),
        ("hta", "with_respect_to"),
    } <= options
    assert len(CASES) > 30


def numbers(model, inputs, specs, key: str):
    """Layers, heads and input maps, or the refusal."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = model(**inputs, output_context_mixing=specs).context_mixing[key]
        except CtxmixError as error:
            return str(error)
    return [t for t in (made.layers, made.heads, made.input) if t is not None]


def same(a, b) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        pytest.param(family, dtype, marks=marks, id=f"{family}-{str(dtype)[6:]}")
        for family, when in FAMILIES.items()
        for dtype, marks in zip((torch.float32, torch.bfloat16), when, strict=True)
    ],
)
def test_alone_first_later_and_beside_others(family: str, dtype: torch.dtype) -> None:
    model, inputs = zoo.build(family)
    model = model.to(dtype)
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    wrong = []
    for name, chosen in CASES:
        try:
            spec = method(name, **chosen)
        except OptionError:
            continue  # two options that exclude each other
        cm.instrument(cm.uninstrument(model))  # nothing is known of the model
        first = numbers(model, inputs, [spec], name)
        later = numbers(model, inputs, [spec], name)
        beside = numbers(
            model,
            inputs,
            ["attention_fixedres" if name == "attention" else "attention", spec],
            name,
        )
        if not same(first, later) or not same(first, beside):
            wrong.append((name, chosen))
        if not isinstance(first, str):
            assert all(bool(torch.isfinite(t).all()) for t in first), (name, chosen)
    assert not wrong
