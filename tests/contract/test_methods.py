"""Every method x every family: finite, right shape, rows that sum to 1, padding exact, precision, shortcut = re-run."""

from __future__ import annotations

import warnings

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.algebra.shares import ZeroRowWarning
from ctxmix_hf.errors import UnsupportedMethodError
from ctxmix_hf.methods import METHODS
from ctxmix_hf.recipes import RECIPES, method
from tests import zoo
from tests.contract.families import LEVEL_1, NO_MODULE, UNREADABLE

FAMILIES = sorted(set(zoo.FAMILIES) - UNREADABLE)
JACOBIANS = {"hta", "hta_x_input"}  # exact ones need hundreds of backward passes: sketched here, exact in the slow test
FAST = [n for n in [*METHODS.names(), *RECIPES.names()] if n not in JACOBIANS]
MANDATORY = [name for name in FAMILIES if name in zoo.MANDATORY]


def marked(families: list[str]) -> list:
    """The mandatory families in every run, the others in the long one (CI's)."""
    return [name if name in MANDATORY else pytest.param(name, marks=pytest.mark.slow) for name in families]


def names_for(family: str) -> list[str]:
    """What this family supports: level 1 families have no block methods."""
    infos = {info.name: info for info in cm.list_methods()}
    return [name for name in FAST if not (family in LEVEL_1 and infos[name].needs == "block")]


def maps(name: str, specs: list, dtype: torch.dtype, inputs: dict | None = None):
    model, batch = zoo.build(name, dtype=dtype)
    cm.instrument(model)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", ZeroRowWarning)
        out = model(**(inputs or batch), output_context_mixing=specs, output_decomposition=True)
    return out.context_mixing, out.decomposition, batch


@pytest.mark.parametrize("family", marked(FAMILIES))
def test_maps(family: str) -> None:
    wide = torch.float32 if family in zoo.FLOAT32_ONLY else torch.float64
    specs = names_for(family)
    specs += [] if family in NO_MODULE else [method("value_zeroing", shortcut=False)]
    made, record, batch = maps(family, specs, wide)
    keys = list(made)
    real = record.mask
    sinks = any(bool((layer.attention.sum(dim=-1)[:, 0][real] - 1).abs().max() > 1e-3) for layer in record)  # rows of A below 1
    for key in keys:
        result = made[key]
        both = [result.input] if result.layers is None else [result.layers, result.input]
        for values in both:
            assert values.shape == (len(real), len(record), real.shape[1], real.shape[1]), key
            assert torch.isfinite(values).all(), key
            padded = ~(real[:, None, :, None] & real[:, None, None, :]).expand_as(values)
            assert not values[padded].any(), key
        recipe = method(key.partition("(")[0])
        if recipe.method.rows_sum_to_one and not sinks and result.layers is not None:
            sums = result.layers.sum(dim=-1).transpose(0, 1)[:, real]
            empty = sums == 0  # a row without contributions is zero, with a warning
            assert torch.allclose(sums[~empty], torch.ones_like(sums[~empty]), atol=1e-6), key
        if record.causal and result.layers is not None and key != "effective_attention":
            assert not result.layers.triu(1).abs().max() > 1e-12, key
    if family in NO_MODULE:
        return
    shortcut, rerun = made["value_zeroing"].layers, made[keys[-1]].layers
    rough = wide == torch.float32 or any(layer.level2 is not None and layer.level2.rounds for layer in record)
    assert (shortcut - rerun).abs().max() <= (2e-3 if rough else 1e-6), "the shortcut and the re-run disagree"


@pytest.mark.parametrize("family", marked([name for name in FAMILIES if zoo.FAMILIES[name].padded]))
def test_padded_batch_equals_single_sentences(family: str) -> None:
    wide = torch.float32 if family in zoo.FLOAT32_ONLY else torch.float64
    names = [name for name in names_for(family) if name != "attention_flow"]
    batched, record, batch = maps(family, names, wide)
    for b, single in enumerate(zoo.singles(batch)):
        alone, _, _ = maps(family, names, wide, single)
        keep = record.mask[b].nonzero().squeeze(-1)
        for name in names:
            for kind in ("layers", "input"):
                whole, part = getattr(batched[name], kind)[b], getattr(alone[name], kind)[0]
                gap = (whole[:, keep[:, None], keep] - part).abs().max() / part.abs().max()
                assert gap <= (2e-3 if wide == torch.float32 else 1e-6), (name, kind)


@pytest.mark.parametrize("family", marked(FAMILIES))
def test_float32_agrees_with_float64(family: str) -> None:
    if family in zoo.FLOAT32_ONLY:
        pytest.skip("transformers itself cannot run this family in float64")
    names = [name for name in names_for(family) if name != "attention_flow"]
    wide, _, _ = maps(family, names, torch.float64)
    narrow, _, _ = maps(family, names, torch.float32)
    for name in names:
        gap = (narrow[name].layers.double() - wide[name].layers).abs().max() / wide[name].layers.abs().max()
        assert gap <= 2e-3, name


@pytest.mark.parametrize("family", marked(FAMILIES))
def test_sketched_jacobians(family: str) -> None:
    if family in zoo.FLOAT32_ONLY:
        pytest.skip("transformers itself cannot run this family in float64")
    specs = [method("hta", sketch=2)]
    if family == "hrm_text":  # runs its first cycles under no_grad
        with pytest.raises(UnsupportedMethodError, match="without gradients"):
            maps(family, specs, torch.float64)
        return
    made, record, _ = maps(family, specs, torch.float64)
    hta = made["hta"]
    assert hta.layers is None and torch.isfinite(hta.input).all()
    sums = hta.input.sum(dim=-1).transpose(0, 1)[:, record.mask]
    assert torch.allclose(sums, torch.ones_like(sums))
    assert hta.meta["notes"]["standard_error"].shape == hta.input.shape


@pytest.mark.parametrize("family", marked(FAMILIES))
def test_layer_by_layer_gives_the_same(family: str) -> None:
    """Maps made while the forward pass runs, against those made from the whole record."""
    wide = torch.float32 if family in zoo.FLOAT32_ONLY else torch.float64
    names = [name for name in names_for(family) if method(name).method.layer_by_layer and name != "attention_flow"]
    model, batch = zoo.build(family, dtype=wide)
    cm.instrument(model)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", ZeroRowWarning)
        whole = model(**batch, output_context_mixing=names, output_decomposition=True)
        streamed = model(**batch, output_context_mixing=names)
    assert whole.decomposition is not None and streamed.decomposition is None
    for name in names:
        assert torch.equal(whole.context_mixing[name].layers, streamed.context_mixing[name].layers), name


@pytest.mark.slow
@pytest.mark.parametrize("family", [n for n in MANDATORY if n not in zoo.FLOAT32_ONLY])
def test_exact_jacobians_closed_form_equals_autograd(family: str) -> None:
    model, inputs = zoo.build(family, dtype=torch.float64)
    cm.instrument(model)
    specs = [method("hta_x_input", closed_form=False)]
    with torch.no_grad():
        if family in NO_MODULE:
            with pytest.raises(UnsupportedMethodError, match="no module of its own"):
                model(**inputs, output_context_mixing=specs)
            return
        closed = model(**inputs, output_context_mixing=["hta_x_input"]).context_mixing["hta_x_input"].layers
        auto = model(**inputs, output_context_mixing=specs).context_mixing["hta_x_input"].layers
    assert (closed - auto).abs().max() <= 1e-6 * auto.abs().max()
