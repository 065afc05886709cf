"""HTA by the chain rule: the same Jacobians as by backward passes, whole or for some rows, and never another's."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.methods import hta
from ctxmix_hf.viz.payload import payload
from tests import zoo

CHAINED = ["bert", "roberta", "gpt2", "electra", "albert", "distilbert", "vit", "wav2vec2"]
OTHERS = ["llama", "t5", "modernbert"]  # rotary positions and the like: by backward passes


def maps(model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    with torch.no_grad():
        asked = [cm.method("hta", **options)]
        return model(**inputs, output_context_mixing=asked).context_mixing["hta"]


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call went by the chain rule."""
    made: list[bool] = []
    chained = hta.chained_norms

    def watched(*args: Any, **options: Any) -> Any:
        found = chained(*args, **options)
        made.append(found is not None)
        return found

    monkeypatch.setattr(hta, "chained_norms", watched)
    return made


@pytest.mark.parametrize("start", ["embedding_sum", "e0"])
@pytest.mark.parametrize("family", CHAINED)
def test_the_chain_rule_gives_the_jacobians_of_the_model(
    family: str, start: str, walked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = zoo.build(family, dtype=torch.float64)
    cm.instrument(model)
    options = {"row_shares": False, "with_respect_to": start}
    ours = maps(model, inputs, **options).input
    assert walked == [True]
    monkeypatch.setattr(hta, "chained_norms", lambda *args, **options: None)
    plain = maps(model, inputs, **options).input
    assert torch.allclose(ours, plain, rtol=1e-10, atol=1e-12 * float(plain.max()))


def test_padding_and_small_budgets_change_nothing(walked: list[bool]) -> None:
    model, _ = zoo.build("bert", dtype=torch.float64)
    cm.instrument(model)
    ids = torch.tensor([[7, 11, 23, 5, 9], [4, 8, 3, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with torch.no_grad():
        both = model(
            input_ids=ids, attention_mask=mask, output_context_mixing=["hta"], max_memory="1MB"
        ).context_mixing["hta"]
        single = model(input_ids=ids[1:, :3], output_context_mixing=["hta"]).context_mixing["hta"]
    assert torch.allclose(both.input[1, :, :3, :3], single.input[0], atol=1e-12)
    assert (
        float(both.input[1, :, 3:].abs().max()) == 0 == float(both.input[1, :, :, 3:].abs().max())
    )
    assert walked == [True, True]


@pytest.mark.parametrize("family", [*CHAINED[:3], *OTHERS[:1]])
def test_rows_alone_are_those_of_the_map(family: str) -> None:
    model, inputs = zoo.build(family, dtype=torch.float64)
    cm.instrument(model)
    whole = maps(model, inputs)
    with torch.no_grad():
        rows = model(
            **inputs, output_context_mixing=["hta"], targets=[1, "mean_pool", [0, 2]]
        ).context_mixing["hta"]
    for number, target in enumerate((1, "mean_pool", [0, 2])):
        expected = whole.attribution(target)
        assert torch.allclose(rows.attribution(number).scores, expected.scores, atol=1e-12)
        assert rows.attribution(number).target == expected.target
    every = cm.explain(model, inputs, "hta", target=1, layers=True)
    for layer, row in enumerate(every, 1):
        assert torch.allclose(row.scores, whole.attribution(1, layer).scores, atol=1e-12)


def test_one_row_pulls_its_own_coordinates_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work counts: D directions from the last layer, where the map takes T D."""
    model, inputs = zoo.build("bert", dtype=torch.float64)
    cm.instrument(model)
    pushed: list[int] = []
    own = hta.Chain.pull
    monkeypatch.setattr(
        hta.Chain, "pull", lambda self, d, depth: pushed.append(d.shape[1]) or own(self, d, depth)
    )
    cm.explain(model, {"input_ids": torch.tensor([[5, 6, 7, 8, 9]])}, "hta", target=2)
    assert sum(pushed) == model.config.hidden_size


def test_a_chain_that_is_not_the_models_own_is_not_used(
    walked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer whose closed form is wrong (here: its scaling) is noticed, and backward passes are taken."""
    model, inputs = zoo.build("bert", dtype=torch.float64)
    cm.instrument(model)
    plain = maps(model, inputs).input
    push = hta.Chain.push

    def wrong(self: Any, directions: Any) -> Any:
        return (made * 1.001 for made in push(self, directions))

    monkeypatch.setattr(hta.Chain, "push", wrong)
    assert torch.allclose(maps(model, inputs).input, plain, atol=1e-12)
    assert walked == [True, False]


def test_half_precision_is_near_float32() -> None:
    model, inputs = zoo.build("bert")
    cm.instrument(model)
    exact = maps(model, inputs).input
    model.to(torch.bfloat16)
    assert torch.allclose(maps(model, inputs).input.float(), exact, atol=0.05)


def test_a_sketch_is_within_its_standard_error(walked: list[bool]) -> None:
    model, inputs = zoo.build("bert", dtype=torch.float64)
    cm.instrument(model)
    exact = maps(model, inputs, row_shares=False).input
    made = maps(model, inputs, row_shares=False, sketch=64)
    error = made.meta["notes"]["standard_error"]
    assert walked == [True, True] and bool((error > 0).any())
    apart = ((made.input - exact).abs() / error.clamp(min=1e-30))[exact > 0]
    assert 0.3 < float(apart.square().mean().sqrt()) < 2.0
    rows = cm.explain(model, inputs, cm.method("hta", row_shares=False, sketch=64), target=1)
    assert torch.allclose(rows.scores, made.attribution(1).scores)


def test_an_estimate_says_how_far_it_may_be_off(box: Any) -> None:
    """In the terminal, on the page and of a row alone; of exact values nothing is said."""
    model, tokenizer = box
    ask = {"tokenizer": tokenizer}
    text, errors = "The cats sleep here.", []
    for probes in (4, 64):
        m = cm.explain(model, text, cm.method("hta", sketch=probes), **ask)
        (said,) = payload(m)["notes"]
        found = re.fullmatch(
            rf"Values are an estimate from {probes} random probes: "
            r"standard error (\S+) on average, (\S+) at most\.",
            said,
        )
        assert found is not None and said in str(m)
        error = m.meta["notes"]["standard_error"]
        assert float(found[2]) == pytest.approx(float(error.max()), rel=0.05)
        errors.append(float(found[1]))
        row = cm.explain(model, text, cm.method("hta", sketch=probes), target="cats", **ask)
        assert "random probes: standard error" in str(row)
        own = row.meta["notes"]["standard_error"][0, -1, 0]
        torch.testing.assert_close(own, error[0, -1, 2], rtol=1e-4, atol=1e-6)
    assert errors[1] < 0.5 * errors[0]
    exact = cm.explain(model, text, "hta", **ask)
    assert payload(exact)["notes"] == [] and "estimate" not in str(exact)
