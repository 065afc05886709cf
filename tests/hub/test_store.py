"""A store in a folder: what goes in comes out, without a model, and the same additions give the same bytes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

import ctxmix_hf as cm
from ctxmix_hf.errors import InputError, OptionError, StoreError, UnknownNameError
from ctxmix_hf.hub.store import MapStore

from .conftest import ROOT
from .samples import METHODS, TEXTS, filled, fresh_model, model, tokenizer
from .synthetic import add_number, contents, manifest, some_maps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store nobody changes."""
    path = tmp_path_factory.mktemp("stores") / "maps"
    filled(path)
    return path


def test_maps_come_back_with_tokens(folder: Path) -> None:
    store = MapStore.open(folder)
    assert store.ids() == [f"validation-{i}" for i in range(len(TEXTS))] and len(store) == len(
        TEXTS
    )
    assert store.methods == METHODS and "validation-2" in store and "x" not in store
    for name in METHODS:
        fresh = cm.explain(model(), TEXTS, name, tokenizer=tokenizer())
        for i in range(len(TEXTS)):
            stored = store[f"validation-{i}", name]
            assert torch.equal(stored.layers, fresh[i].layers) and torch.equal(
                stored.input, fresh[i].input
            )
            assert (
                stored.tokens[0] == fresh[i].tokens[0]
                and stored.tokens[0].words == fresh[i].tokens[0].words
            )
            assert (
                stored.tokens[0].text == TEXTS[i] and stored.words().size == fresh[i].words().size
            )
            assert (
                stored.meta["options"] == fresh.meta["options"]
                and stored.aggregation == fresh.aggregation
            )
    store.verify()


def test_iter_follows_the_shards(folder: Path) -> None:
    store = MapStore.open(folder)
    assert [m.meta["id"] for m in store.iter("alti")] == store.ids()
    assert list(store.iter("alti", split="train")) == [] and store.ids("validation") == store.ids()


def test_examples_are_plain_json_lines(folder: Path) -> None:
    rows = [
        json.loads(line) for line in (folder / "examples/validation.jsonl").read_text().splitlines()
    ]
    assert [row["text"] for row in rows] == TEXTS and [row["label"] for row in rows] == [
        0,
        1,
        0,
        1,
        0,
        1,
    ]
    assert all(
        row["prediction"] in (0, 1) and len(row["tokens"]) == len(row["input_ids"]) for row in rows
    )
    assert MapStore.open(folder).example("validation-1") == rows[1]


def test_shards_are_ordinary_safetensors(folder: Path) -> None:
    with safe_open(folder / "matrices/alti/shard-00000.safetensors", "pt") as file:
        assert sorted(file.keys()) == sorted(MapStore.open(folder).ids())
        assert torch.equal(
            file.get_tensor("validation-3"), MapStore.open(folder)["validation-3", "alti"].layers[0]
        )
        assert list(file.metadata()) == ["ctxmix"]


def test_opens_without_transformers(folder: Path) -> None:
    script = f"""
import sys, ctxmix_hf as cm
store = cm.MapStore.open({str(folder)!r})
print(store["validation-0", "alti"].attribution("[CLS]").scores.shape, any(m.startswith("transformers.models") for m in sys.modules))
"""  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "torch.Size([1, 6]) False"


def test_unknown_names_are_named(folder: Path) -> None:
    store = MapStore.open(folder)
    with pytest.raises(UnknownNameError, match="validation-1"):
        store["validation1", "alti"]
    with pytest.raises(UnknownNameError, match="Available: alti, value_zeroing"):
        store["validation-1", "hta"]
    with pytest.raises(InputError, match="example and a method"):
        store["validation-1"]  # type: ignore[index]
    with pytest.raises(StoreError, match="norm is 1 in the store, 2 was asked for"):
        store["validation-1", cm.method("alti", norm=2)]
    assert store["validation-1", cm.method("alti", norm=1)].method == "alti"


def test_reading_stores_do_not_write(folder: Path) -> None:
    with pytest.raises(StoreError, match="open for reading"):
        MapStore.open(folder, model=model(), tokenizer=tokenizer()).add(["x"], ["good"])
    with pytest.raises(StoreError, match="without a model"):
        MapStore.open(folder).add(["x"], ["good"])
    with pytest.raises(StoreError, match="already"):
        MapStore.create(folder, model=model(), methods=["alti"])
    with pytest.raises(StoreError, match="No map store"):
        MapStore.open(folder / "examples")


def test_methods_from_the_input_and_by_flow(tmp_path: Path) -> None:
    store = filled(
        tmp_path / "m",
        TEXTS[:2],
        [
            "hta",
            "attention_flow",
            "attention+flow",
            cm.method("value_zeroing", distance="euclidean"),
        ],
    )
    fresh = cm.explain(
        model(), TEXTS[:2], ["hta", "attention_flow", "attention+flow"], tokenizer=tokenizer()
    )
    store = MapStore.open(tmp_path / "m")
    for name, made in fresh.items():
        assert torch.equal(store["validation-1", name].input, made[1].input)
    assert (
        store["validation-1", "hta"].layers is None
        and store["validation-1", "attention_flow"].layers is not None
    )
    assert store["validation-0", "value_zeroing"].meta["options"]["distance"] == "euclidean"
    store.verify()


def test_half_precision_is_half_as_large(tmp_path: Path) -> None:
    full, half = (
        filled(tmp_path / "a", methods=["alti"]),
        filled(tmp_path / "b", methods=["alti"], dtype="float16"),
    )
    gap = (full["validation-3", "alti"].layers - half["validation-3", "alti"].layers).abs().max()
    assert 0 < gap < 1e-3 and half["validation-3", "alti"].layers.dtype == torch.float32
    size, place = half.index.rows["validation-3"].size, half.index.rows["validation-3"].places[0]
    assert place.end - place.begin == 2 * size * size * 2
    half.verify()
    with pytest.raises(OptionError, match="float16"):
        MapStore.create(tmp_path / "c", model=model(), methods=["alti"], dtype="int8")
    big = some_maps(0)
    big["alti"].layers.mul_(1e6)
    with (
        MapStore.from_manifest(tmp_path / "d", manifest(dtype="float16")) as store,
        pytest.raises(StoreError, match="fit in float16"),
    ):
        store.add_maps(["a", "b"], big)


def test_pairs_tensors_and_missing_tokenizers(tmp_path: Path) -> None:
    with MapStore.create(
        tmp_path / "m", model=model(), tokenizer=tokenizer(), methods=["alti"]
    ) as store:
        store.add(["pair", "other"], [("good film", "bad"), ("a", "b")])
        store.add(["tensor"], tokenizer()("good film", return_tensors="pt"))
        with pytest.raises(InputError, match="2 ids need"):
            store.add(["x", "y"], ["one"])
        with pytest.raises(InputError, match="empty"):
            store.add(["x"], [" "])
        with pytest.raises(InputError, match="labels"):
            store.add(["x"], ["good"], labels=[])
    assert store.example("pair")["text_pair"] == "bad" and store.example("tensor")["text"] is None
    assert list(store["tensor", "alti"].tokens[0]) == ["[CLS]", "good", "film", "[SEP]"]
    with (
        MapStore.create(tmp_path / "n", model=model(), methods=["alti"]) as store,
        pytest.raises(InputError, match="tokenizer"),
    ):
        store.add(["x"], ["good"])


def test_matches_names_what_differs(folder: Path) -> None:
    store = MapStore.open(folder)
    assert store.matches(model(), tokenizer(), METHODS) and store.matches(model().bert)
    tokenizer()("good film", truncation=True, max_length=3, padding="max_length")
    assert store.matches(model(), tokenizer())  # settings of a call are not the tokenizer
    other = fresh_model(1)
    assert not store.matches(other)
    with pytest.raises(
        StoreError,
        match="the weights differ: the store is of BertForSequenceClassification at revision unknown",
    ):
        store.check(other)
    assert store.differences(fresh_model().double()) == [
        "the model ran in float32, this one is in float64"
    ]
    altered = json.loads(tokenizer().backend_tokenizer.to_str())
    altered["model"]["vocab"]["new"] = len(altered["model"]["vocab"])
    changed = type(tokenizer())(tokenizer_object=Tokenizer.from_str(json.dumps(altered)))
    assert store.differences(model(), changed) == ["the tokenizer is another one"]
    asked = ["hta", cm.method("alti", norm=2)]
    assert store.differences(model(), None, asked) == [
        "the store has no maps of 'hta'",
        "alti: norm is 1 in the store, 2 was asked for",
    ]
    with pytest.raises(StoreError, match="does not belong"):
        MapStore.open(folder, append=True, model=other)
    MapStore.open(folder, append=True, model=model()).close()  # the lock was freed


def test_parquet_export(folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    store = MapStore.open(folder)
    (path,) = store.to_parquet(tmp_path, ["alti"])
    rows = parquet.read_table(path).to_pylist()
    assert [row["id"] for row in rows] == store.ids()
    assert torch.equal(torch.tensor(rows[3]["map"]), store["validation-3", "alti"].layers[0])


# ---- the same additions, the same bytes


def test_shards_are_bounded_and_bytes_depend_on_additions_only(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with MapStore.from_manifest(tmp_path / name, manifest()) as store:
            for number in range(40):
                add_number(store, number)
    once = contents(tmp_path / "one")
    assert once == contents(tmp_path / "two")
    shards = list((tmp_path / "one").glob("matrices/*/*.safetensors"))
    assert len(shards) > 4 and all(path.stat().st_size <= 1 << 14 for path in shards)
    for path in shards:
        with safe_open(path, "pt") as file:
            assert file.keys()
    assert not (tmp_path / "one/pending").exists()
    store.verify()


@pytest.mark.parametrize("stop", [1, 7, 20])
def test_closing_in_between_changes_nothing(tmp_path: Path, stop: int) -> None:
    with MapStore.from_manifest(tmp_path / "one", manifest()) as store:
        for number in range(24):
            add_number(store, number)
    with MapStore.from_manifest(tmp_path / "two", manifest()) as store:
        for number in range(stop):
            add_number(store, number)
    with MapStore.open(tmp_path / "two", append=True) as store:
        for number in range(stop, 24):
            add_number(store, number)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    before = contents(tmp_path / "two")
    MapStore.open(tmp_path / "two", append=True).close()
    assert contents(tmp_path / "two") == before


def test_large_shards_are_moved_not_copied(tmp_path: Path) -> None:
    for name, stops in (("one", [6]), ("two", [2, 6])):
        done = 0
        for stop in stops:
            path = tmp_path / name
            with (
                MapStore.open(path, append=True)
                if path.exists()
                else MapStore.from_manifest(path, manifest(1 << 20)) as store
            ):
                for number in range(done, stop):
                    store.add_maps([f"{number}a", f"{number}b"], some_maps(number, layers=250))
            done = stop
    store.verify()
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert any(shard.data == 8192 for part in store.manifest.parts for shard in part.shards)


def test_parts_of_several_workers_merge_to_the_same_bytes(tmp_path: Path) -> None:
    with MapStore.from_manifest(tmp_path / "one", manifest()) as store:
        for number in range(20):
            add_number(store, number)
    for worker in range(3):
        with MapStore.from_manifest(tmp_path / f"part{worker}", manifest()) as store:
            for number in range(worker * 7, min(20, worker * 7 + 7)):
                add_number(store, number)
    merged = MapStore.merge(
        tmp_path / "merged", [tmp_path / f"part{worker}" for worker in range(3)]
    )
    assert contents(tmp_path / "merged") == contents(tmp_path / "one") and len(merged) == 40
    with pytest.raises(StoreError, match="in two parts"):
        MapStore.merge(tmp_path / "twice", [tmp_path / "part0", tmp_path / "part0"])
    other = MapStore.from_manifest(tmp_path / "other", manifest(methods=["alti"]))
    other.close()
    with pytest.raises(StoreError, match="fingerprints"):
        MapStore.merge(tmp_path / "mixed", [tmp_path / "part0", other])


def test_stores_travel_to_other_processes(folder: Path) -> None:
    store = MapStore.open(folder, model=model(), tokenizer=tokenizer())
    again = pickle.loads(pickle.dumps(store))
    assert again.model is None and torch.equal(
        again["validation-0", "alti"].layers, store["validation-0", "alti"].layers
    )
    assert repr(again) == "MapStore(maps, 6 examples, methods: alti, value_zeroing)"


def test_an_empty_store_is_a_store(tmp_path: Path) -> None:
    MapStore.from_manifest(tmp_path / "m", manifest()).close()
    store = MapStore.open(tmp_path / "m")
    store.verify()
    assert len(store) == 0 and store.ids() == []
