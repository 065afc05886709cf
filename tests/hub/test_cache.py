"""`cache=store` in a model call: hits are read, misses computed, and a store of something else is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.errors import OptionError, StoreError
from ctxmix_hf.hub.store import MapStore
from ctxmix_hf.methods import METHODS

from .samples import TEXTS, filled, fresh_model, model, tokenizer


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MapStore:
    return filled(
        tmp_path_factory.mktemp("cache") / "maps",
        methods=["alti", "value_zeroing", "hta", "attention_flow"],
    )


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many examples ALTI was computed for, one entry per layer."""
    seen: list[int] = []
    real = METHODS.get("alti").layer_map  # type: ignore[attr-defined]

    def counted(self: Any, layer: Any, budget: Any) -> Any:
        seen.append(len(layer.attention))
        return real(self, layer, budget)

    monkeypatch.setattr(METHODS.get("alti"), "layer_map", counted)
    return seen


def encode(texts: list[str], **options: Any) -> Any:
    return tokenizer()(texts, return_tensors="pt", padding=True, **options)


def test_hits_are_not_computed(store: MapStore, computed: list[int]) -> None:
    inputs = encode(TEXTS[:4])
    plain = model()(**inputs, output_context_mixing=["alti", "hta"])
    computed.clear()
    out = model()(**inputs, output_context_mixing=["alti", "hta", "attention_flow"], cache=store)
    assert computed == [] and torch.equal(out.logits, plain.logits)
    for key in ("alti", "hta"):
        torch.testing.assert_close(out.context_mixing[key].input, plain.context_mixing[key].input)
        assert torch.equal(out.context_mixing[key].mask, plain.context_mixing[key].mask)
    assert out.context_mixing["hta"].layers is None and list(out.context_mixing) == [
        "alti",
        "hta",
        "attention_flow",
    ]
    assert out.context_mixing["alti"].meta["notes"]["from_store"] == [
        f"validation-{i}" for i in range(4)
    ]
    assert (
        cm.explain(model(), TEXTS[0], "alti", tokenizer=tokenizer(), cache=store).tokens[0].text
        == TEXTS[0]
    )


def test_only_misses_are_computed(store: MapStore, computed: list[int]) -> None:
    inputs = encode([TEXTS[0], "the story is new", TEXTS[3], "a new film"])
    plain = model()(**inputs, output_context_mixing=["alti", "attention_flow", "attention"])
    computed.clear()
    asked = ["alti", "attention_flow", "attention"]
    out = model()(
        inputs["input_ids"],
        **{k: v for k, v in inputs.items() if k != "input_ids"},
        output_context_mixing=asked,
        cache=store,
    )
    assert computed == [2, 2]  # two layers, two examples
    for key in asked:
        torch.testing.assert_close(out.context_mixing[key].layers, plain.context_mixing[key].layers)
        torch.testing.assert_close(out.context_mixing[key].input, plain.context_mixing[key].input)
    computed.clear()
    model()(**encode(["new"]), output_context_mixing=["alti"], cache=store)
    assert computed == [1, 1]


def test_segments_positions_and_left_padding_are_other_inputs(
    store: MapStore, computed: list[int]
) -> None:
    inputs = encode(TEXTS[:1])
    for changed in (
        {"token_type_ids": torch.ones_like(inputs["input_ids"])},
        {"position_ids": torch.arange(inputs["input_ids"].shape[1])[None] + 1},
    ):
        computed.clear()
        model()(**{**inputs, **changed}, output_context_mixing=["alti"], cache=store)
        assert computed == [1, 1]
    left = {key: torch.nn.functional.pad(value, (2, 0)) for key, value in inputs.items()}
    computed.clear()
    model()(**left, output_context_mixing=["alti"], cache=store)
    assert computed == [1, 1]
    computed.clear()
    model()(inputs["input_ids"], output_context_mixing=["alti"], cache=store)
    assert computed == []


def test_other_models_and_options_are_refused(store: MapStore) -> None:
    inputs = encode(TEXTS[:1])
    other = cm.instrument(fresh_model(1))
    with pytest.raises(
        StoreError, match="This cache does not belong to this model: the weights differ"
    ):
        other(**inputs, output_context_mixing=["alti"], cache=store)
    with pytest.raises(StoreError, match="norm is 1 in the store, 2 was asked for"):
        model()(**inputs, output_context_mixing=[cm.method("alti", norm=2)], cache=store)
    with pytest.raises(OptionError, match="no graph"):
        model()(**inputs, output_context_mixing=["alti"], cache=store, create_graph=True)


@pytest.mark.parametrize("hidden", [False, True])
def test_training_is_noticed(store: MapStore, hidden: bool) -> None:
    trained = cm.instrument(fresh_model())
    inputs = encode(TEXTS[:1])
    trained(**inputs, output_context_mixing=["alti"], cache=store)
    weight = trained.bert.encoder.layer[0].attention.self.query.weight
    with torch.no_grad():
        (weight.data if hidden else weight).mul_(1.01)  # .data moves no version counter
    with pytest.raises(StoreError, match="weights differ"):
        trained(**inputs, output_context_mixing=["alti"], cache=store)


def test_the_same_model_under_another_head(store: MapStore, computed: list[int]) -> None:
    bare = cm.instrument(fresh_model().bert)
    bare(**encode(TEXTS[:2]), output_context_mixing=["alti"], cache=store)
    assert computed == [] and store.matches(bare)


def test_after_reopening(store: MapStore, computed: list[int]) -> None:
    assert store.root is not None
    again = MapStore.open(Path(store.root))
    model()(**encode(TEXTS), output_context_mixing=["alti"], cache=again)
    assert computed == []
