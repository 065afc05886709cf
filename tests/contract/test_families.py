"""Every family of the zoo: ordinary outputs unchanged, every layer recorded, parts add up; the rest is refused with a reason."""

from __future__ import annotations

import pytest
import torch
import transformers
from packaging.version import Version

import ctxmix_hf as cm
from ctxmix_hf.errors import UnsupportedModelError
from tests import zoo
from tests.contract.families import LEVEL_1, UNREADABLE, describe, limit, record

READABLE = sorted(set(zoo.FAMILIES) - UNREADABLE)


@pytest.mark.parametrize("name", READABLE)
def test_family_is_exact(name: str) -> None:
    made, unchanged = record(name)
    assert unchanged, "recording changed the model's own output"
    row = describe(name, made)
    assert row.level == (1 if name in LEVEL_1 else 2), row.reason
    for layer in made:
        assert layer.attention.shape[-1] == layer.attention.shape[-2] == made.mask.shape[1]
        if layer.level2 is not None:
            for stage in ("attention", "residual", "norm1", "norm2"):
                assert layer.reconstruction_error(stage) <= limit(made), (layer.index, stage)


@pytest.mark.parametrize("name", sorted(UNREADABLE & set(zoo.FAMILIES)))
def test_unreadable_family_says_why(name: str) -> None:
    if name == "diffllama" and Version(transformers.__version__) < Version("5"):  # one sdpa product there: seen, not decomposed
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
    assert sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()) == plain_hooks


def test_mandatory_families_are_exact() -> None:
    missing = [name for name in zoo.MANDATORY if name not in zoo.MISSING and (name in LEVEL_1 or name not in READABLE)]
    assert not missing


def test_at_least_130_families() -> None:
    if zoo.MISSING and len(zoo.FAMILIES) < 250:
        pytest.skip("an older transformers has fewer families")
    assert len([n for n in READABLE if n not in LEVEL_1]) >= 130


def test_published_table_is_what_is_measured() -> None:
    """`architectures.json` is generated: it may not promise more than the zoo shows."""
    table = cm.supported_architectures(level=2)
    assert len(table) >= 130
    assert not set(table) & set(LEVEL_1)
    for name in ("bert", "modernbert", "vit", "wav2vec2", "llama"):
        row = describe(name, record(name)[0])
        assert (row.order, row.norm, row.feed_forward) == (table[name].order, table[name].norm, table[name].feed_forward)


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
