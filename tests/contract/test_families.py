"""Every family of the zoo: ordinary outputs unchanged, every layer recorded, parts add up; the rest
is refused with a reason.
"""

from __future__ import annotations

import warnings

import pytest
import torch
import transformers
from packaging.version import Version

import ctxmix_hf as cm
from ctxmix_hf.errors import UnsupportedMethodError, UnsupportedModelError
from ctxmix_hf.methods import METHODS
from ctxmix_hf.recipes import RECIPES, Recipe
from tests import zoo
from tests.contract.families import (
    APPROXIMATE,
    LEVEL_1,
    MIXING_LEVEL_1,
    NO_MODULE,
    UNREADABLE,
    describe,
    limit,
    marked,
    record,
)

READABLE = sorted(set(zoo.FAMILIES) - UNREADABLE)


@pytest.mark.parametrize("name", READABLE)
def test_family_is_exact(name: str) -> None:
    made, unchanged = record(name)
    assert unchanged, "recording changed the model's own output"
    row = describe(name, made)
    assert row.level == (1 if name in LEVEL_1 or name in APPROXIMATE else 2), row.reason
    assert bool(made.approximate("attention")) == (name in APPROXIMATE or name in MIXING_LEVEL_1)
    assert APPROXIMATE.get(name, "") in row.reason
    if Version(transformers.__version__) >= Version("5.22"):  # the one the table was made with
        table = cm.supported_architectures()[name]
        told = [(x.norm, x.feed_forward, x.order, x.attention) for x in (row, table)]
        assert told[0] == told[1], "run python -m tests.contract.coverage"
    for layer in made:
        assert layer.attention.shape[-1] == layer.attention.shape[-2] == made.mask.shape[1]
        if layer.level2 is not None:
            for stage in ("attention", "residual", "norm1", "norm2"):
                assert layer.reconstruction_error(stage) <= limit(made), (layer.index, stage)


@pytest.mark.parametrize("name", sorted(UNREADABLE & set(zoo.FAMILIES)))
def test_unreadable_family_says_why(name: str) -> None:
    if name == "diffllama" and Version(transformers.__version__) < Version(
        "5"
    ):  # one sdpa product there: seen, not decomposed
        made, _ = record(name)
        assert all(layer.level2 is None and layer.why_not for layer in made)
        return
    with pytest.raises(UnsupportedModelError, match=r"layer|attention"):
        record(name)


@pytest.mark.parametrize("name", sorted(zoo.REFUSED))
def test_refused_family_says_why(name: str) -> None:
    """Refused at once, or at the first recorded call; never a map of zeros."""
    build, _ = zoo.REFUSED[name]
    model, inputs = build()
    plain_hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    with pytest.raises(UnsupportedModelError) as caught, torch.no_grad():
        cm.instrument(model)
        model(**inputs, output_decomposition=True)
    assert len(str(caught.value)) > 40
    cm.uninstrument(model)
    assert (
        sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
        == plain_hooks
    )


def test_mandatory_families_are_exact() -> None:
    missing = [
        name
        for name in zoo.MANDATORY
        if name not in zoo.MISSING and (name in LEVEL_1 or name not in READABLE)
    ]
    assert not missing


def test_at_least_130_families() -> None:
    if zoo.MISSING and len(zoo.FAMILIES) < 250:
        pytest.skip("an older transformers has fewer families")
    assert len([n for n in READABLE if n not in LEVEL_1 and n not in APPROXIMATE]) >= 130


def test_published_table_is_what_is_measured() -> None:
    """`architectures.json` promises no more than the zoo shows; `test_family_is_exact` compares every row."""
    table = cm.supported_architectures(level=2)
    assert len(table) >= 130
    assert not set(table) & (set(LEVEL_1) | set(APPROXIMATE))


@pytest.mark.parametrize("break_it", ["bias", "heads", "residual"])
def test_negative_controls(break_it: str) -> None:
    """The check can fail: a dropped bias, swapped heads or a dropped residual is noticed."""
    made, _ = record("bert")
    layer = made[0]
    block = layer.level2
    assert block is not None
    if break_it == "bias":
        object.__setattr__(block, "projection_bias", None)
    elif break_it == "heads":
        object.__setattr__(block, "projection", block.projection.flip(0))
    else:
        object.__setattr__(block, "residual", torch.zeros_like(block.residual))
    layer.release()
    assert layer.reconstruction_error("norm1") > 1e-2


def spec(method: str, family: str) -> Recipe:
    """Jacobians sketched, for they need hundreds of passes; where a layer has no module to run
    again there is only the closed form.
    """
    return cm.method(
        method,
        **(
            {"sketch": 2}
            if method == "hta" or (method == "hta_x_input" and family not in NO_MODULE)
            else {}
        ),
    )


@pytest.mark.parametrize("name", marked(READABLE, share=2))
def test_verify_and_the_maps_agree(name: str) -> None:
    """What `verify` calls exact is made without a word, what it calls approximate says so, the rest
    is refused: by every method.
    """
    model, inputs = zoo.build(
        name, dtype=torch.float32 if name in zoo.FLOAT32_ONLY else torch.float64
    )
    checked = cm.verify(model, inputs)
    cm.instrument(model)
    maps = {*METHODS.names(), *RECIPES.names()} - {"attention_flow"}
    specs = {row.method: spec(row.method, name) for row in checked.methods if row.method in maps}
    status = {row.method: row.status for row in checked.methods}
    gradients = (
        name != "hrm_text"
    )  # refused by its first cycles, which run without: a matter of the model's code, not of its layers
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for method, recipe in specs.items():
            if status[method] == "not applicable":
                with pytest.raises(UnsupportedMethodError):
                    model(**inputs, output_context_mixing=[recipe])
        asked = [
            method
            for method in specs
            if status[method] != "not applicable" and (gradients or not method.startswith("hta"))
        ]
        made = model(
            **inputs, output_context_mixing=[specs[method] for method in asked]
        ).context_mixing
    for method, result in zip(asked, made.values(), strict=True):
        assert bool(result.meta.get("approximate")) == (status[method] == "approximate"), method
