"""Random shapes, masks with holes, left padding, one to five tokens, mixed precision: what must
hold whatever the input.
"""

from __future__ import annotations

import functools
import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import ctxmix_hf as cm
from ctxmix_hf.recipes import method
from tests import zoo

FAMILIES = [
    "bert",
    "modernbert",
    "distilbert",
    "deberta-v2",
    "roberta-prelayernorm",
    "gpt2",
    "llama",
    "albert",
]
NAMES = [
    "attention",
    "attention_res",
    "alti",
    "norm_enc",
    "norm_resln",
    "value_zeroing",
    "effective_attention",
    "attention_rollout",
    "globenc",
]


@functools.cache
def model(family: str, dtype: torch.dtype, wide_norms: bool = False):
    made, _ = zoo.build(family)
    made = made.to(dtype)
    for module in made.modules():
        if wide_norms and isinstance(module, torch.nn.LayerNorm):
            module.float()
    return cm.instrument(made)


def maps(
    family: str, dtype: torch.dtype, ids: torch.Tensor, mask: torch.Tensor, wide_norms: bool = False
):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model(family, dtype, wide_norms)(
            input_ids=ids, attention_mask=mask, output_context_mixing=NAMES
        ).context_mixing


@st.composite
def batches(draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and a mask: padding on the right, on the left, or holes in the middle; every example keeps a token."""
    batch, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 5) | st.integers(6, 12))
    ids = torch.tensor(
        draw(
            st.lists(
                st.lists(st.integers(5, 40), min_size=tokens, max_size=tokens),
                min_size=batch,
                max_size=batch,
            )
        )
    )
    mask = torch.ones_like(ids)
    for row in mask:
        kind, count = (
            draw(st.sampled_from(["none", "right", "left", "holes"])),
            draw(st.integers(0, tokens - 1)),
        )
        if kind == "right":
            row[tokens - count :] = 0
        elif kind == "left":
            row[:count] = 0
        elif kind == "holes":
            row[torch.tensor(draw(st.permutations(range(tokens)))[:count], dtype=torch.long)] = 0
    return ids, mask


SLOW = settings(
    max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("family", FAMILIES)
@SLOW
@given(batches())
def test_rows_padding_and_order_of_the_batch(family: str, given_batch) -> None:
    ids, mask = given_batch
    made = maps(family, torch.float64, ids, mask)
    real = mask.bool()
    turned = maps(family, torch.float64, ids.flip(0), mask.flip(0))
    for name, result in made.items():
        for values in (result.layers, result.input):
            assert torch.isfinite(values).all(), name
            outside = ~(real[:, None, :, None] & real[:, None, None, :]).expand_as(values)
            assert not values[outside].any(), name
        scale = result.layers.abs().max().clamp(min=1e-30)
        assert (result.layers - turned[name].layers.flip(0)).abs().max() <= 1e-9 * scale, name
        if method(name).method.rows_sum_to_one:
            sums = result.layers.sum(dim=-1).transpose(0, 1)[:, real]
            assert bool((((sums - 1).abs() < 1e-6) | (sums == 0)).all()), name


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert", "albert"])
@SLOW
@given(batches())
def test_a_batch_equals_its_sentences(family: str, given_batch) -> None:
    """Padded on the right: the other kinds of padding move positions, which is the model's own business."""
    ids, mask = given_batch
    mask = mask.sort(dim=1, descending=True).values
    made = maps(family, torch.float64, ids, mask)
    for b in range(len(ids)):
        n = int(mask[b].sum())
        alone = maps(family, torch.float64, ids[b : b + 1, :n], mask[b : b + 1, :n])
        for name, result in made.items():
            whole, part = result.layers[b, :, :n, :n], alone[name].layers[0]
            assert (whole - part).abs().max() <= 1e-8 * part.abs().max().clamp(min=1e-30), name


@pytest.mark.parametrize("wide_norms", [False, True], ids=["half", "norms in float32"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "llama"])
@SLOW
@given(batches())
def test_half_precision_is_finite_and_near(family: str, wide_norms: bool, given_batch) -> None:
    """Near what float32 makes of it; how near is the contract's business, which knows the error of the capture."""
    ids, mask = given_batch
    real = mask.bool()
    whole = maps(family, torch.float32, ids, mask)
    for dtype in (torch.bfloat16, torch.float16):
        made = maps(family, dtype, ids, mask, wide_norms)
        for name, result in made.items():
            assert torch.isfinite(result.layers).all(), (name, dtype)
            outside = ~(real[:, None, :, None] & real[:, None, None, :]).expand_as(result.layers)
            assert not result.layers[outside].any(), (name, dtype)
            if method(name).method.rows_sum_to_one:
                sums = result.layers.sum(dim=-1).transpose(0, 1)[:, real]
                assert bool((((sums - 1).abs() < 1e-2) | (sums == 0)).all()), (name, dtype)
            near = (result.layers - whole[name].layers).norm() / whole[name].layers.norm()
            assert near < 0.1, (name, dtype, float(near))
