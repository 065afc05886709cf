"""Every bad input named in the issues gets one clear sentence, in an error that is also the builtin one expects."""

from __future__ import annotations

import warnings

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf import errors
from ctxmix_hf.aggregation.rollout import OverflowScaledWarning, rollout
from ctxmix_hf.algebra.shares import ZeroRowWarning, to_shares
from tests import zoo


@pytest.fixture(scope="module")
def bert():
    model, inputs = zoo.build("bert")
    return cm.instrument(model), inputs


def test_every_error_is_a_ctxmix_error_and_a_builtin() -> None:
    for cls in vars(errors).values():
        if (
            isinstance(cls, type)
            and issubclass(cls, errors.CtxmixError)
            and cls is not errors.CtxmixError
        ):
            assert any(
                base.__module__ == "builtins" and base not in (Exception, object, BaseException)
                for base in cls.__mro__
            ), cls


def test_not_a_transformers_model() -> None:
    with pytest.raises(TypeError, match="Hugging Face transformers model"):
        cm.instrument(torch.nn.Linear(2, 2))


def test_a_text_where_tensors_are_expected(bert) -> None:
    with pytest.raises(errors.InputTypeError, match="tokenizer"):
        bert[0]("a text", output_decomposition=True)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.zeros(0, 5, dtype=torch.long), "batch is empty"),
        (torch.zeros(1, 0, dtype=torch.long), "sequence is empty"),
    ],
)
def test_empty(bert, ids, words) -> None:
    with pytest.raises(ValueError, match=words):
        bert[0](input_ids=ids, output_decomposition=True)


def test_longer_than_the_positions(bert) -> None:
    limit = bert[0].config.max_position_embeddings
    with pytest.raises(errors.InputError, match=f"{limit} positions"):
        bert[0](input_ids=torch.full((1, limit + 1), 7), output_decomposition=True)


def test_padding_without_a_mask(bert) -> None:
    model, inputs = bert
    with pytest.raises(errors.InputError, match="attention_mask"):
        model(input_ids=inputs["input_ids"], output_decomposition=True)


@pytest.mark.parametrize(
    "asked",
    [{"output_decomposition": True}, {"output_context_mixing": ["effective_attention"]}],
    ids=str,
)
@pytest.mark.parametrize("family", ["bert", "ibert"])  # decomposed; attention only
@pytest.mark.parametrize("before", [False, True], ids=["first call", "later call"])
def test_nan_weights(family: str, before: bool, asked: dict) -> None:
    model, inputs = zoo.build(family)
    cm.instrument(model)
    with torch.no_grad():
        if before:  # proofs are done, so later calls check less
            model(**inputs, output_context_mixing=["attention"])
        next(p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)[
            0, 0
        ] = torch.nan
        with pytest.raises(errors.InputError, match="not finite"):
            model(**inputs, **asked)


def test_not_instrumented() -> None:
    model, inputs = zoo.build("bert")
    with pytest.raises(errors.NotInstrumentedError, match="instrument"):
        cm.attribute(model, inputs, "grad_l2")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cm.method("alty"), "Did you mean 'alti'"),
        (lambda: cm.method("alti", foo=1), "no option 'foo'"),
        (lambda: cm.method("value_zeroing", distance="cosin"), "'cosine'"),
        (lambda: cm.method("hta+rollout"), "never aggregated"),
        (lambda: cm.method("alti+rolout"), "aggregation"),
        (lambda: cm.method("hta", sketch=1), "probes"),
    ],
)
def test_unknown_names_and_options(call, words) -> None:
    with pytest.raises(errors.CtxmixError, match=words):
        call()


def test_attribution_questions(box) -> None:
    model, tok = box
    inputs = tok("the cats [MASK] .", return_tensors="pt")
    for arguments, words in [
        ({"class_index": 10**6}, "out of range"),
        ({"of": "odds"}, "'prob' or 'logit'"),
        ({"foil": -1}, "out of range"),
        ({"layer": 99}, "e\\^0"),
        ({"class_index": "are", "foil": "are"}, "every score would be 0"),
        ({"max_memroy": "1MB"}, "Did you mean 'max_memory'"),
        ({"sharse": True}, "Did you mean 'shares'"),
    ]:
        with pytest.raises(errors.CtxmixError, match=words):
            cm.attribute(model, inputs, "grad_l2", **arguments)
    with pytest.raises(errors.InputError, match=r"\[MASK\]"):
        cm.attribute(model, "no mask here", "grad_l2")
    with pytest.raises(errors.UnknownNameError, match="blank_out"):
        cm.attribute(model, inputs, "blankout")


def test_blank_out_without_an_unknown_token() -> None:
    model, inputs = zoo.build("bert")
    with pytest.raises(errors.UnsupportedMethodError, match="no head"):
        cm.attribute(cm.instrument(model), inputs, "blank_out")


def test_single_token() -> None:
    model, _ = zoo.build("bert")
    cm.instrument(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ZeroRowWarning)
        maps = model(
            input_ids=torch.tensor([[7]]),
            output_context_mixing=[
                "attention_res",
                "alti",
                "value_zeroing",
                "globenc",
                "attention_flow",
            ],
        ).context_mixing
    assert maps["attention_res"].layers.flatten().tolist() == [1.0, 1.0]
    assert all(torch.isfinite(m.input).all() for m in maps.values())


def test_zero_row_is_zero_with_a_warning() -> None:
    rows = torch.tensor([[[0.0, 0.0], [1.0, 3.0]]])
    with pytest.warns(ZeroRowWarning):
        shares = to_shares(rows, torch.ones(1, 2, dtype=torch.bool))
    assert shares.tolist() == [[[0.0, 0.0], [0.25, 0.75]]]


def test_overflowing_rollout_is_scaled_and_says_so() -> None:
    maps = torch.full((1, 4, 3, 3), 1e20)
    maps[..., 0] *= 3
    with pytest.warns(OverflowScaledWarning):
        rolled = rollout(maps)
    assert torch.isfinite(rolled).all()
    exact = rollout(maps.double())
    assert torch.allclose(to_shares(rolled).double(), to_shares(exact))


def test_targets(box) -> None:
    m = cm.explain(box[0], "the cats see the dogs .", "attention")
    for target, words in [
        ("zebra", "No token"),
        ("the", "occurs 2 times"),
        (99, "outside|no token"),
        ("the#5", "no occurrence 5"),
    ]:
        with pytest.raises(errors.InputError, match=words):
            m.attribution(target)
    assert m.attribution("the#2").scores.shape == m.attribution(4).scores.shape
    assert torch.equal(m.attribution("the#2").scores, m.attribution(4).scores)
    with pytest.raises(errors.InputError, match="layers count from 1 to 6"):
        m.attribution(layer=9)
