"""Maps of heads and scores of tokens in a store: they come back as they were, and stores without them are as before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import ctxmix_hf as cm
from ctxmix_hf.attribution.ablation import BlankOut
from ctxmix_hf.errors import InputError, StoreError, UnknownNameError
from ctxmix_hf.hub.manifest import attribution_options
from ctxmix_hf.hub.store import MapStore
from ctxmix_hf.unwrapping import base_model

from .samples import TEXTS, filled, model, tokenizer

SCORED = ["ledger", "grad_x_input", BlankOut(replace_with="mask")]


def classifier() -> object:
    return cm.AutoContextMixingModelForSequenceClassification.from_pretrained("ctxmix/sentiment")


def test_maps_of_heads_come_back(tmp_path: Path) -> None:
    heads = cm.method("attention", per_head=True)
    with MapStore.create(
        tmp_path / "maps", model=model(), tokenizer=tokenizer(), methods=[heads, "alti"]
    ) as made:
        made.add(list(range(len(TEXTS))), TEXTS)  # one batch, as below: the same sums
    store = MapStore.open(tmp_path / "maps")
    store.verify()
    fresh = cm.explain(model(), TEXTS, heads, tokenizer=tokenizer())
    for i in range(len(TEXTS)):
        held = store[str(i), "attention"]
        assert torch.equal(held.heads, fresh[i].heads) and torch.equal(held.layers, fresh[i].layers)
        assert torch.equal(held.head_rollout(2, 1), fresh[i].head_rollout(2, 1))
        assert store[str(i), "alti"].heads is None
    inputs = tokenizer()(TEXTS, padding=True, return_tensors="pt")
    out = model()(**inputs, output_context_mixing=[heads], cache=store)
    cached = out.context_mixing["attention"]
    assert cached.meta["notes"]["from_store"] == [str(i) for i in range(len(TEXTS))]
    assert torch.equal(cached.heads, fresh.heads)
    merged = MapStore.merge(tmp_path / "both", [tmp_path / "maps"])
    assert torch.equal(merged["0", "attention"].heads, fresh[0].heads)


def test_heads_need_layers(tmp_path: Path) -> None:
    heads = cm.method("attention", per_head=True)
    asked = {"model": model(), "tokenizer": tokenizer(), "methods": [heads]}
    with pytest.raises(StoreError, match="no maps per head"):
        MapStore.create(tmp_path / "s", segments="sentences", **asked)
    with MapStore.create(tmp_path / "maps", **asked) as made:
        made.add(["a"], TEXTS[:1])
    path = tmp_path / "maps" / "ctxmix.json"
    body = json.loads(path.read_text())
    body["methods"]["attention"]["parts"].pop("layers")
    path.write_text(json.dumps(body))
    with pytest.raises(StoreError, match="damaged"):
        MapStore.open(tmp_path / "maps")


def test_scores_come_back_as_attribute_gives_them(tmp_path: Path) -> None:
    own = classifier()
    words = AutoTokenizer.from_pretrained(cm.auto.model_path("ctxmix/sentiment"))
    texts = ["A fine film.", "A dull and empty film."]
    asked = {"model": own, "tokenizer": words}
    with MapStore.create(
        tmp_path / "maps", methods=["alti"], attributions=SCORED, dtype="float16", **asked
    ) as made:
        made.add(["a", "b"], texts)
    store = MapStore.open(tmp_path / "maps")
    store.verify()
    assert store.attributions == ["blank_out", "grad_x_input", "ledger"]
    for name, text in zip("ab", texts, strict=True):
        for method in SCORED:
            fresh = cm.attribute(own, text, method, tokenizer=words)
            held = store.attribution(name, fresh.method)
            assert torch.equal(held.scores, fresh.scores.float()), "kept in float32"
            assert (held.target, held.tokens[0].pieces) == (fresh.target, fresh.tokens[0].pieces)
            assert held.meta["class_index"] == fresh.meta["class_index"]
    with pytest.raises(UnknownNameError, match="Available: blank_out, grad_x_input, ledger"):
        store.attribution("a", "deeplift")
    with MapStore.open(
        tmp_path / "maps", append=True, **asked
    ) as again:  # goes on with the same scores
        again.add(["c"], texts[:1])
    assert MapStore.open(tmp_path / "maps").attribution("c", "ledger") == store.attribution(
        "a", "ledger"
    )
    maps = {"alti": cm.explain(own, texts[0], "alti", tokenizer=words)}
    again = MapStore.open(tmp_path / "maps", append=True, **asked)
    with pytest.raises(InputError, match="use add"):
        again.add_maps(["d"], maps)
    again.close()
    merged = MapStore.merge(tmp_path / "both", [tmp_path / "maps"])
    assert merged.attribution("b", "ledger") == store.attribution("b", "ledger")
    assert base_model(own).training is False


def test_damaged_scores_are_said(tmp_path: Path) -> None:
    from ctxmix_hf.hub.reading import attribution_of

    body = {"id": "a", "tokens": ["x", "y"], "attributions": {"ledger": {"scores": [1.0]}}}
    for wrong in (body, {**body, "attributions": {}}, {**body, "attributions": None}):
        with pytest.raises(StoreError, match="no scores of ledger"):
            attribution_of(wrong, "ledger", {})


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(StoreError, match="twice"):
        attribution_options(["ledger", "ledger"])
    with pytest.raises(StoreError, match="segments"):
        attribution_options(["ledger"], "sentences")
    with pytest.raises(UnknownNameError, match="ledger"):
        attribution_options(["ledgr"])
    assert attribution_options("blank_out")["blank_out"]["replace_with"]


def test_stores_without_them_are_written_as_before(tmp_path: Path) -> None:
    filled(tmp_path / "maps")
    body = json.loads((tmp_path / "maps" / "ctxmix.json").read_text())
    assert "attributions" not in body
    line = (tmp_path / "maps" / "examples" / "validation.jsonl").read_text().splitlines()[0]
    assert "attributions" not in json.loads(line)
