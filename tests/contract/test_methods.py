"""Every method x every family: finite, right shape, rows that sum to 1, padding exact, precision, shortcut = re-run."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from functools import cache

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.algebra.shares import ZeroRowWarning
from ctxmix_hf.errors import UnsupportedMethodError
from ctxmix_hf.instrumentation.session import ApproximateWarning, require_instrumentation
from ctxmix_hf.methods import METHODS
from ctxmix_hf.recipes import RECIPES, method
from ctxmix_hf.records import LayerRecord
from tests import zoo
from tests.contract.families import (
    APPROXIMATE,
    LEVEL_1,
    MIXING_LEVEL_1,
    NO_MODULE,
    UNREADABLE,
    marked,
)

FAMILIES = sorted(set(zoo.FAMILIES) - UNREADABLE)
JACOBIANS = {
    "hta",
    "hta_x_input",
}  # exact ones need hundreds of backward passes: sketched here, exact in the slow test
FAST = [n for n in [*METHODS.names(), *RECIPES.names()] if n not in JACOBIANS]
MANDATORY = [name for name in FAMILIES if name in zoo.MANDATORY]


def names_for(family: str) -> list[str]:
    """What this family supports: level 1 families have no block methods, and some layers no
    feed-forward that is proved.
    """
    infos = {info.name: info for info in cm.list_methods()}
    names = [name for name in FAST if not (family in LEVEL_1 and infos[name].needs == "block")]
    return [
        name for name in names if infos[name].needs != "feed_forward" or not refusal(family, name)
    ]


@cache
def refusal(family: str, name: str) -> str:
    """Why a method that follows parts through the feed-forward refuses this family: it must name a
    layer and a way out.
    """
    try:
        maps(family, [name], torch.float32 if family in zoo.FLOAT32_ONLY else torch.float64)
    except UnsupportedMethodError as error:
        assert str(error).startswith("Layer ") and (
            "Use " in str(error) or "Methods that need none" in str(error)
        ), error
        return str(error)
    return ""


def numbers(result) -> dict[str, torch.Tensor]:
    """The maps of a result: methods that start at the input have none per layer."""
    return {
        kind: values
        for kind in ("layers", "input")
        if (values := getattr(result, kind)) is not None
    }


def maps(name: str, specs: list, dtype: torch.dtype, inputs: dict | None = None):
    model, batch = zoo.build(name, dtype=dtype)
    cm.instrument(model)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", ZeroRowWarning)
        if name in APPROXIMATE or name in MIXING_LEVEL_1:
            warnings.simplefilter("ignore", ApproximateWarning)
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
    sinks = any(
        bool((layer.attention.sum(dim=-1)[:, 0][real] - 1).abs().max() > 1e-3) for layer in record
    )  # rows of A below 1
    for key in keys:
        result = made[key]
        for values in numbers(result).values():
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
    rough = wide == torch.float32 or any(
        layer.level2 is not None and layer.level2.rounds for layer in record
    )
    assert (shortcut - rerun).abs().max() <= (2e-3 if rough else 1e-6), (
        "the shortcut and the re-run disagree"
    )


@pytest.mark.parametrize(
    "family", marked([name for name in FAMILIES if zoo.FAMILIES[name].padded], share=1)
)
def test_padded_batch_equals_single_sentences(family: str) -> None:
    wide = torch.float32 if family in zoo.FLOAT32_ONLY else torch.float64
    names = [name for name in names_for(family) if name != "attention_flow"]
    batched, record, batch = maps(family, names, wide)
    for b, single in enumerate(zoo.singles(batch)):
        alone, _, _ = maps(family, names, wide, single)
        keep = record.mask[b].nonzero().squeeze(-1)
        for name in names:
            for kind in numbers(batched[name]):
                whole, part = getattr(batched[name], kind)[b], getattr(alone[name], kind)[0]
                gap = (whole[:, keep[:, None], keep] - part).abs().max() / part.abs().max()
                assert gap <= (2e-3 if wide == torch.float32 else 1e-6), (name, kind)


@pytest.mark.parametrize("family", marked(FAMILIES, share=2))
def test_float32_agrees_with_float64(family: str) -> None:
    if family in zoo.FLOAT32_ONLY:
        pytest.skip("transformers itself cannot run this family in float64")
    names = [name for name in names_for(family) if name != "attention_flow"]
    raw = method("value_zeroing", row_shares=False)
    wide, exact, _ = maps(family, [*names, raw], torch.float64)
    narrow, rounded, _ = maps(family, names, torch.float32)
    for name in names:
        theirs, mine = (next(iter(numbers(made[name]).values())) for made in (wide, narrow))
        rows = theirs.abs().amax(dim=-1, keepdim=True)
        gap = (mine.double() - theirs).abs() / rows.clamp(min=1e-6 * rows.max())
        limit = torch.full_like(rows, 5e-5 if name == "effective_attention" else 1e-5)
        if name == "value_zeroing":
            limit = limit.maximum(own_rounding(wide[list(wide)[-1]].layers, exact, rounded))
        assert (gap <= limit).all(), (name, float(gap.max()))


def own_rounding(raw: torch.Tensor, exact: cm.ModelRecord, rounded: cm.ModelRecord) -> torch.Tensor:
    """What the model's own float32 leaves of Value Zeroing's shares, `[B, L, T, 1]` of the row's
    largest, at three deviations.

    A distance is c^2 / 2, c the chord between two outputs of the layer. The model's float32 output
    misses its float64 one by a measured share e of its length, in D directions of which the chord
    is one, so c is known to e sqrt(2 / D), and a share (a distance over the row's sum, both at
    worst c_max apart) to 2 sqrt(2) / c_max of that. This exceeds 1e-5 only where a whole row's
    outputs hardly move, as in hrm_text's first cycles (c_max = 2.5e-3).
    """
    largest = (2 * raw.amax(dim=-1, keepdim=True)).sqrt()
    errors = [
        ((b.output.double() - a.output).norm(dim=-1) / a.output.norm(dim=-1))[exact.mask]
        for a, b in zip(exact, rounded, strict=True)
    ]
    e = torch.stack([error.square().mean().sqrt() for error in errors])[None, :, None, None]
    width = exact[0].output.shape[-1]
    return (
        3 * (e * (2 / width) ** 0.5) * 2 * 2**0.5 / largest.clamp(min=torch.finfo(raw.dtype).tiny)
    )


HALVES = [name for name in FAMILIES if name not in NO_MODULE]


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        (name, dtype)
        for name in HALVES
        if name in MANDATORY
        for dtype in (torch.bfloat16, torch.float16)
    ]
    + [
        pytest.param(*case.values, torch.bfloat16, marks=case.marks)
        for case in marked(HALVES, share=0)
        if not isinstance(case, str)
    ],  # the coarser of the two
    ids=str,
)
def test_half_precision_is_as_good_as_its_capture(family: str, dtype: torch.dtype) -> None:
    """Each layer against float64 with the same rounded weights, from the input that the layer in
    half precision had. The limit is the capture's own error e, measured: a part is a weight times a
    value, 2 e, and Value Zeroing squares it, 4 e; the null space of the values turns with their
    condition."""
    if family in zoo.FLOAT32_ONLY:
        pytest.skip("transformers itself cannot run this family in float64")
    layerwise = {
        info.name for info in cm.list_methods() if info.kind == "layer"
    }  # the others need layers that follow each other
    names = [name for name in names_for(family) if name in METHODS.names() and name in layerwise]

    def run(model: torch.nn.Module, batch: dict) -> tuple[dict, cm.ModelRecord]:
        batch = {
            key: value.to(dtype).to(model.dtype) if value.is_floating_point() else value
            for key, value in batch.items()
        }
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = cm.instrument(model)(
                **batch, output_context_mixing=names, output_decomposition=True
            )
        return out.context_mixing, out.decomposition

    model, batch = zoo.build(family)
    half, rounded = run(model.to(dtype), batch)
    wide, _ = zoo.build(family)
    wide = wide.to(dtype).double()

    def start(layers: Iterator[LayerRecord], args: tuple, kwargs: dict) -> tuple | None:
        place = next((i for i, value in enumerate(args) if isinstance(value, torch.Tensor)), None)
        key = next((key for key in kwargs if key.startswith("hidden_state")), "")
        old = kwargs[key] if place is None else args[place]
        if old.shape[:2].numel() != real.numel() or any(
            torch.equal(old, x) for x in given
        ):  # a layer run again: it was given its input
            return None
        layer = next(layers)
        new = layer.replay.layout.unmoved(layer.layer_input.double(), old)
        given.append(new)
        return (
            (args, {**kwargs, key: new})
            if place is None
            else ((*args[:place], new, *args[place + 1 :]), kwargs)
        )

    real, given = rounded.mask, []
    root = next(
        name
        for name, module in model.named_modules()
        if module is require_instrumentation(model).root
    )
    for name in {layer.name for layer in rounded}:
        layers = itertools.cycle(
            [layer for layer in rounded if layer.name == name]
        )  # several where one module is called again (albert)
        module = wide.get_submodule(f"{root}.{name}".lstrip("."))
        module.register_forward_pre_hook(
            lambda _, args, kwargs, layers=layers: start(layers, args, kwargs), with_kwargs=True
        )
    exact, record = run(wide, batch)

    def error(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Of vectors `[B, T, D]`, as a share of their length."""
        return ((a.double() - b).norm(dim=-1) / b.norm(dim=-1).clamp(min=1e-30))[real].max()

    for l, (mine, theirs) in enumerate(zip(rounded, record, strict=True)):
        assert torch.equal(mine.layer_input.double(), theirs.layer_input), (
            "each layer starts where the other did"
        )
        largest = theirs.attention.amax(dim=-1, keepdim=True).clamp(min=1e-30)
        weights = (
            ((mine.attention.double() - theirs.attention).abs() / largest)
            .amax(dim=-1)
            .transpose(0, 1)[:, real]
            .max()
        )
        e = max(
            weights,
            error(mine.output, theirs.output),
            *map(error, mine.values.unbind(1), theirs.values.unbind(1)),
        )
        for name in names:
            a, b = half[name].layers[:, l], exact[name].layers[:, l]
            rows = b.abs().amax(dim=-1, keepdim=True)
            gap = ((a.double() - b).abs() / rows.clamp(min=1e-6 * rows.max())).max()
            limit = 4 * e
            if name == "effective_attention":
                turned = [
                    torch.linalg.svdvals(v[:, r]) for v, r in zip(theirs.values, real, strict=True)
                ]  # [H, rank]
                limit = limit * max((s[:, 0] / s[:, -1]).max() for s in turned)
            assert gap <= limit, (name, l + 1, float(gap), float(e))


COINCIDING = [
    name
    for name in FAMILIES
    if zoo.FAMILIES[name].modality in ("text", "decoder") and zoo.FAMILIES[name].padded
]


@pytest.mark.parametrize("family", marked([*COINCIDING, "wavlm"], share=2))
def test_sizes_that_coincide(family: str) -> None:
    """As many examples as tokens (and, for text, as heads): no axis can be told from another by its length."""
    wide = torch.float32 if family in zoo.FLOAT32_ONLY else torch.float64
    _, batch = zoo.build(family, dtype=wide)
    count = 14 if family == "wavlm" else 4
    draw = torch.Generator().manual_seed(3)

    def grown(value: torch.Tensor) -> torch.Tensor:
        if family == "wavlm":
            return torch.randn(count, *value.shape[1:], generator=draw, dtype=torch.float64)
        value = value[:1, :count].repeat(count, *(1,) * (value.dim() - 1))
        return (
            torch.randint(5, 95, value.shape, generator=draw)
            if value.dim() == 2 and bool((value > 1).any())
            else value
        )

    inputs = {key: grown(value) for key, value in batch.items()}
    names = [name for name in ("attention", "alti", "value_zeroing") if name in names_for(family)]
    made, record, _ = maps(family, names, wide, inputs)
    assert record.mask.shape == (count, count), "the sizes were meant to coincide"
    alone, single, _ = maps(family, names, wide, {key: value[1:2] for key, value in inputs.items()})
    rough = 1e-4 if wide == torch.float32 else 1e-6
    for one, other in zip(record.hidden_states, single.hidden_states, strict=True):
        assert (one[1] - other[0]).abs().max() <= rough * other.abs().max()
    for name in names:
        assert (made[name].layers[1] - alone[name].layers[0]).abs().max() <= rough * alone[
            name
        ].layers.abs().max(), name


@pytest.mark.parametrize("family", marked(FAMILIES, share=0))
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


@pytest.mark.parametrize("family", marked(FAMILIES, share=1))
def test_layer_by_layer_gives_the_same(family: str) -> None:
    """Maps made while the forward pass runs, against those made from the whole record."""
    wide = torch.float32 if family in zoo.FLOAT32_ONLY else torch.float64
    names = [
        name
        for name in names_for(family)
        if method(name).method.layer_by_layer and name != "attention_flow"
    ]
    model, batch = zoo.build(family, dtype=wide)
    cm.instrument(model)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", ZeroRowWarning)
        warnings.simplefilter("ignore", ApproximateWarning)
        whole = model(**batch, output_context_mixing=names, output_decomposition=True)
        streamed = model(**batch, output_context_mixing=names)
    assert whole.decomposition is not None and streamed.decomposition is None
    for name in names:
        assert torch.equal(
            whole.context_mixing[name].layers, streamed.context_mixing[name].layers
        ), name


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
        closed = (
            model(**inputs, output_context_mixing=["hta_x_input"])
            .context_mixing["hta_x_input"]
            .layers
        )
        auto = model(**inputs, output_context_mixing=specs).context_mixing["hta_x_input"].layers
    assert (closed - auto).abs().max() <= 1e-6 * auto.abs().max()
