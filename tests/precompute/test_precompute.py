"""What `precompute` reads, plans, leaves out and refuses."""

from __future__ import annotations

import builtins
import errno
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.cli import main
from ctxmix_hf.demo import stores
from ctxmix_hf.errors import (
    CtxmixError,
    InputError,
    MissingDependencyError,
    OptionError,
    RefusedError,
    StoreError,
)
from ctxmix_hf.hub import computing
from ctxmix_hf.precompute import compute as computation
from ctxmix_hf.precompute import engines, precompute, run
from ctxmix_hf.precompute.job import Job
from ctxmix_hf.precompute.plan import Planner
from ctxmix_hf.precompute.rows import read_rows
from ctxmix_hf.precompute.work import TaskWorker
from tests.precompute.conftest import hashes, sentences

METHODS = ("alti", "norm_enc")  # as in `whole`


def skipped(out: Path) -> dict[str, str]:
    return {
        row["id"]: row["why"]
        for row in map(json.loads, (out / "run" / "skipped.jsonl").read_text().splitlines())
    }


def test_store_holds_what_explain_gives(whole: Path, corpus: Path, box) -> None:
    store = cm.MapStore.open(whole)
    store.verify()
    assert len(store) == 150 and len(set(store.ids())) == 150
    assert skipped(whole) == {"train-10": "empty", "train-11": "empty", "train-12": "not UTF-8"}
    name = store.ids()[-1]
    expected = cm.explain(box[0], store.example(name)["text"], "alti", tokenizer=box[1])
    torch.testing.assert_close(store[name, "alti"].layers, expected.layers, atol=1e-5, rtol=1e-4)
    assert not (whole / "run" / "tasks").exists() and not (whole / "run" / "parts").exists()


def test_again_changes_nothing(whole: Path, corpus: Path, compute) -> None:
    before = hashes(whole)
    made = compute(dataset=str(corpus), out=str(whole), methods=("alti", "norm_enc"))
    assert made.computed == 0 and made.examples == 150 and hashes(whole) == before


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "txt", "parquet"])
def test_formats(suffix: str, tmp_path: Path) -> None:
    path, texts = tmp_path / f"data.{suffix}", ['A "fine" film.', "Two keys."]
    if suffix == "parquet":
        pa = pytest.importorskip("pyarrow", reason="the extra [data] is not installed")
        import pyarrow.parquet

        pyarrow.parquet.write_table(pa.table({"text": texts, "y": [0, 1]}), path)
    else:
        lines = {
            "csv": ["text,y", '"A ""fine"" film.",0', "Two keys.,1"],
            "tsv": ["text\ty", f"{texts[0]}\t0", "Two keys.\t1"],
            "jsonl": [json.dumps({"text": t, "y": i}) for i, t in enumerate(texts)],
            "txt": texts,
        }[suffix]
        path.write_text("\n".join(lines) + "\n")
    label = None if suffix == "txt" else "y"
    rows = list(read_rows(Job(str(path), "out", ("alti",), label_column=label)))
    assert [row.text for row in rows] == texts and [row.id for row in rows] == [
        "train-0",
        "train-1",
    ]
    if label:
        assert [int(row.label) for row in rows] == [0, 1]


def test_a_folder_through_datasets(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the extra [data] is not installed")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.csv").write_text("text\nA film.\nTwo keys.\n")
    rows = read_rows(Job(str(tmp_path / "set"), "out", ("alti",), limit=1))
    assert [row.text for row in rows] == ["A film."]


def test_bad_rows_are_named(tmp_path: Path, compute) -> None:
    rows: list[Any] = [
        {"id": "ok", "text": "A film."},
        {"id": "none", "text": None},
        {"id": "number", "text": 7},
        {"id": "ok", "text": "Twice."},
        {"id": "", "text": "No id."},
        [1],
        {"id": "long", "text": "key " * 3000},
        {"id": "last", "text": "Two keys."},
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join([*map(json.dumps, rows), "{broken"]))
    made = compute(dataset=str(path), id_column="id")
    found = skipped(Path(made.out))
    assert cm.MapStore.open(made.out).ids() == ["ok", "last"] and made.skipped == 7
    assert (
        found["none"] == "no text"
        and found["number"] == "not text"
        and found["long"].startswith("too long")
    )
    assert (
        found["ok"] == "the id was there before"
        and found["train-8"] == "not a JSON object"
        and "id" in found["train-4"]
    )


def test_max_length_cuts_and_counts(tmp_path: Path, compute) -> None:
    path = tmp_path / "data.txt"
    path.write_text("A film.\n" + "the keys " * 50 + "\n")
    made = compute(dataset=str(path), max_length=12)
    store = cm.MapStore.open(made.out)
    assert made.truncated == 1 and len(store.example("train-1")["tokens"]) <= 12
    assert ("the keys " * 50).startswith(store.example("train-1")["text"])


def test_batches_keep_the_budget_and_the_data(box) -> None:
    from ctxmix_hf.precompute.rows import DataRow

    rows = [DataRow(f"r{i}", text) for i, text in enumerate(sentences(300))]
    planner = Planner(Job("d", "o", ("alti",), token_budget=200), box[1], 512)
    batches = [batch for task in planner.tasks(rows) for batch in task]
    lengths = [[len(box[1](text)["input_ids"]) for _, text, _ in batch] for batch in batches]
    assert all(len(batch) * max(batch) <= 200 for batch in lengths) and max(map(len, lengths)) > 5
    assert sorted(name for batch in batches for name, _, _ in batch) == sorted(
        row.id for row in rows
    )


def test_out_of_memory_halves_and_gives_the_same(
    corpus: Path, whole: Path, compute, monkeypatch
) -> None:
    real, sizes = computing.compute, []

    def small(model: Any, tokenizer: Any, recipes: Any, given: Any, **more: Any) -> Any:
        sizes.append(len(given))
        if len(given) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(model, tokenizer, recipes, given, **more)

    monkeypatch.setattr(computation, "compute", small)
    made = compute(dataset=str(corpus), methods=("alti", "norm_enc"))
    assert made.examples == 150 and max(sizes) > 2
    mine, theirs = cm.MapStore.open(made.out), cm.MapStore.open(whole)
    assert mine.ids() == theirs.ids() and [names for _, names in mine.index.batches] == [
        names for _, names in theirs.index.batches
    ]
    for name in mine.ids()[::30]:
        torch.testing.assert_close(
            mine[name, "norm_enc"].layers, theirs[name, "norm_enc"].layers, atol=1e-5, rtol=1e-4
        )


def test_a_row_that_fails_in_the_model_is_left_out(corpus: Path, compute, monkeypatch) -> None:
    real = computing.compute

    def picky(model: Any, tokenizer: Any, recipes: Any, given: Any, **more: Any) -> Any:
        if any(text.startswith("keys") for text in given):
            raise RuntimeError("no keys")
        return real(model, tokenizer, recipes, given, **more)

    monkeypatch.setattr(computation, "compute", picky)
    made = compute(dataset=str(corpus))
    lost = [
        i for i, line in enumerate(corpus.read_bytes().split(b"\n")) if line.startswith(b"keys")
    ]
    assert lost and made.examples == 150 - len(lost)
    assert skipped(Path(made.out))[f"train-{lost[0]}"] == "RuntimeError: no keys"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"token_budget": 65}, "token_budget was 64, now 65"),
    ({"limit": 5}, "limit was None, now 5"),
    ({"methods": ("alti",)}, "holds alti, norm_enc; now alti"),
    ({"methods": ("alti", "globenc")}, "no maps of 'globenc'"),
    ({"model": "ctxmix/sentiment"}, "the weights differ"),
    ({"dtype": "float64"}, "float32, this one is in float64"),
]


@pytest.mark.parametrize(
    ("options", "words"), REFUSED, ids=[str(options) for options, _ in REFUSED]
)
def test_another_run_in_the_same_folder_is_refused(
    whole: Path, corpus: Path, compute, options: dict[str, Any], words: str
) -> None:
    before = hashes(whole)
    with pytest.raises(StoreError, match=words):
        compute(
            **{
                "dataset": str(corpus),
                "out": str(whole),
                "methods": ("alti", "norm_enc"),
                **options,
            }
        )
    assert hashes(whole) == before


def test_changed_data_is_refused(whole: Path, corpus: Path, compute, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    for text, words in (
        (corpus.read_bytes().replace(b"film", b"movie"), "other ids"),
        (corpus.read_bytes() + b"More.\n", "153 rows then, 154 now"),
    ):
        other.write_bytes(text)
        with pytest.raises(StoreError, match=words):
            compute(dataset=str(other), out=str(whole), methods=("alti", "norm_enc"))


def test_bad_input(tmp_path: Path, compute) -> None:
    (tmp_path / "data.csv").write_text("review,stars\nGood.,5\n")
    (tmp_path / "empty.csv").write_text("text\n")
    (tmp_path / "data.docx").write_text("x")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.csv").write_text("text\nA film.\n")
    for name, split, words in (
        ("data.csv", "train", "no column 'text'. Its columns: review, stars"),
        ("empty.csv", "train", "is empty"),
        ("data.docx", "train", "Cannot read"),
        ("none.csv", "train", "no file"),
        ("set", "nope", "Could not read the dataset"),
    ):
        with pytest.raises(InputError, match=words):
            compute(dataset=str(tmp_path / name), split=split)
    assert not (tmp_path / "maps").exists()
    with pytest.raises(CtxmixError, match="Did you mean 'alti'"):
        compute(dataset=str(tmp_path / "data.csv"), methods=("alty",))


def test_a_folder_that_is_not_ours(tmp_path: Path, corpus: Path, compute, box) -> None:
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps" / "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match="not empty"):
        compute(dataset=str(corpus))
    with cm.MapStore.create(
        tmp_path / "store", model=box[0], tokenizer=box[1], methods=["alti"]
    ) as store:
        store.add(["a"], ["A film."])
    with pytest.raises(StoreError, match="not made by"):
        compute(dataset=str(corpus), out=str(tmp_path / "store"))


def test_disk_errors_are_one_line(tmp_path: Path, corpus: Path, compute, monkeypatch) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"Not a directory|File exists"):
        compute(dataset=str(corpus), out=str(tmp_path / "file" / "maps"))

    def full(*args: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ctxmix_hf.hub.writing.put", full)
    with pytest.raises(StoreError, match="the disk is full"):
        compute(dataset=str(corpus))
    monkeypatch.undo()
    assert compute(dataset=str(corpus)).examples == 150  # and goes on when there is room again


def test_ray_missing_names_the_extra(corpus: Path, compute, monkeypatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "ray" or name.startswith("ray."):
            raise ImportError("No module named 'ray'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"ctxmix-hf\[ray\]"):
        compute(dataset=str(corpus), engine="ray")


def test_a_store_of_segments(tmp_path: Path) -> None:
    """The same numbers as `explain`, also after reading; no other kind of map gets in, and it is no cache."""
    texts = [
        "The keys are here. The cats sleep.",
        "The dog runs.",
        "A boy sees it. He likes it. So?",
    ]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    job = Job(
        dataset=str(tmp_path / "texts.jsonl"),
        out=str(tmp_path / "maps"),
        methods=("alti", "globenc"),
        segments="sentences",
    )
    precompute(job)
    store = cm.MapStore.open(tmp_path / "maps")
    store.verify()
    model, tokenizer = cm.load_default()
    for number, text in enumerate(texts):
        for method in ("alti", "globenc"):
            kept = store[f"train-{number}", method]
            fresh = cm.explain(model, text, method, segments="sentences")
            assert kept.tokens == fresh.tokens and kept.meta["unit"] == "sentence"
            assert torch.allclose(kept.input, fresh.input, rtol=1e-4)
            assert torch.allclose(kept.layers, fresh.layers, rtol=1e-4, atol=1e-7)
            assert torch.allclose(
                kept.attribution("mean_pool").scores,
                fresh.attribution("mean_pool").scores,
                rtol=1e-4,
            )
    with pytest.raises(StoreError, match=r"a cache needs maps of tokens.*read it by id"):
        model(
            **tokenizer(texts[0], return_tensors="pt"), output_context_mixing=["alti"], cache=store
        )
    with (
        pytest.raises(
            StoreError, match=r"one row and column per sentence, the map of alti has one per token"
        ),
        cm.MapStore.open(tmp_path / "maps", append=True, model=model, tokenizer=tokenizer) as open_,
    ):
        open_.add_maps(["x"], cm.explain(model, texts[:1], ["alti", "globenc"]))
    with cm.MapStore.create(
        tmp_path / "other",
        model=model,
        tokenizer=tokenizer,
        methods=["alti"],
        segments="paragraphs",
    ) as other:  # the advice
        other.add_maps(["x"], {"alti": cm.explain(model, texts[:1], "alti", segments="paragraphs")})
    with pytest.raises(OptionError, match="'sentences' or 'paragraphs'"):
        cm.MapStore.create(tmp_path / "n", model=model, methods=["alti"], segments="words")
    with pytest.raises(StoreError, match="another --out"):
        precompute(replace(job, segments=None))


LONG_TEXTS = [
    "The keys to the cabinet are here. The cats sleep.",
    "The dog runs.",
    "A boy sees it. He likes it. So?",
]


def kept_texts(tmp_path: Path, name: str, **options: Any) -> Job:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in LONG_TEXTS))
    methods = ("alti", "globenc", "value_zeroing", "hta")
    return Job(dataset=str(path), out=str(tmp_path / name), methods=methods, **options)


def test_a_store_of_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row each, `[N, T]`: the rows of `explain`, written by one batch, by halves or from a shell."""
    targets = ("mean_pool", 1, ["[CLS]", -1])
    job = kept_texts(tmp_path, "rows", targets=targets)
    precompute(job)
    precompute(job)  # again: nothing is left to do
    store = cm.MapStore.open(tmp_path / "rows")
    store.verify()
    model, tokenizer = cm.load_default()
    for number, text in enumerate(LONG_TEXTS):
        for method in job.methods:
            kept = store[f"train-{number}", method]
            fresh = cm.explain(model, text, method, targets=list(targets))
            assert kept.shape == (1, 3, len(kept.tokens[0])) and kept.tokens == fresh.tokens
            torch.testing.assert_close(kept.scores, fresh.scores, rtol=1e-4, atol=1e-7)
            for n in range(3):
                one, other = kept.attribution(n), fresh.attribution(n)
                assert (one.target, one.meta["layer"]) == (other.target, other.meta["layer"])
    size = sum(p.stat().st_size for p in (tmp_path / "rows").rglob("*.safetensors"))
    assert size < 4 * 4 * 3 * sum(len(store.example(n)["tokens"]) for n in store.ids()) + 8000
    with pytest.raises(
        StoreError, match=r"holds rows, a cache needs maps of tokens.*read it by id"
    ):
        model(
            **tokenizer(LONG_TEXTS[0], return_tensors="pt"),
            output_context_mixing=["alti"],
            cache=store,
        )
    assert store["train-0", "alti"].attribution(0).scores.dim() == 2  # the advice
    monkeypatch.setattr(stores, "open_store", lambda name: store)
    with pytest.raises(RefusedError, match="keeps rows, not maps"):
        stores.view("x", "train-0", "alti")
    with pytest.raises(StoreError, match=r"keeps rows or sparse maps: read them by id"):
        store.to_parquet(tmp_path / "p")
    with pytest.raises(StoreError, match="another --out"):
        precompute(replace(job, targets=None))
    words = [
        "precompute",
        "--dataset",
        job.dataset,
        "--out",
        str(tmp_path / "shell"),
        "--methods",
        "alti",
    ]
    assert main([*words, "--targets", "keys,1"]) == 0
    assert "2 rows were skipped" in capsys.readouterr().out  # the word is in the first text only
    found = cm.MapStore.open(tmp_path / "shell")
    assert found.ids() == ["train-0"] and found.manifest.targets == ("keys", 1)
    expected = cm.explain(model, LONG_TEXTS[0], "alti", target="keys").scores
    torch.testing.assert_close(
        found["train-0", "alti"].scores[:, 0], expected, rtol=1e-4, atol=1e-7
    )


def test_a_store_of_sparse_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest sources and the rest, as `explain(top_k=...)`; a short text has fewer sources than that."""
    job = kept_texts(tmp_path, "sparse", top_k=6)
    precompute(job)
    store = cm.MapStore.open(tmp_path / "sparse")
    store.verify()
    model, tokenizer = cm.load_default()
    for number, text in enumerate(LONG_TEXTS):
        for method in job.methods:
            kept = store[f"train-{number}", method]
            fresh = cm.explain(model, text, method, top_k=6)
            assert kept.top_k == fresh.top_k and kept.tokens == fresh.tokens
            for one, other in ((kept.input, fresh.input), (kept.layers, fresh.layers)):
                if other is None:
                    assert one is None
                    continue
                near = {"rtol": 1e-3, "atol": 1e-5 * float(other.values.abs().max())}
                torch.testing.assert_close(one.rest, other.rest, **near)
                torch.testing.assert_close(one.dense(), other.dense(), **near)
            assert kept.top(1)[-1][0] == "(rest)"
    monkeypatch.setattr(stores, "open_store", lambda name: store)
    assert stores.view("x", "train-0", "alti")["tokens"]  # drawn on the page
    with cm.MapStore.create(
        tmp_path / "other", model=model, tokenizer=tokenizer, methods=["alti"], top_k=3
    ) as other:
        with pytest.raises(StoreError, match=r"keeps top_k=3, the result of alti has None"):
            other.add_maps(["x"], {"alti": cm.explain(model, LONG_TEXTS[:1], "alti")})
        made = cm.explain(model, LONG_TEXTS[:1], "alti", top_k=3)  # the advice
        other.add_maps(["x"], {"alti": made})
        other.add(["y", "z"], LONG_TEXTS[1:])  # one padded batch
    fresh = cm.explain(model, LONG_TEXTS[1], "alti", top_k=3)
    torch.testing.assert_close(
        cm.MapStore.open(tmp_path / "other")["y", "alti"].input.values,
        fresh.input.values,
        rtol=1e-3,
        atol=1e-5,
    )


@pytest.mark.parametrize("asked", [{"targets": ("mean_pool", 2)}, {"top_k": 4}])
def test_halves_of_a_batch_are_joined(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory ends, halves give what the whole batch gives."""
    precompute(kept_texts(tmp_path, "whole", **asked))
    own = computation.compute

    def small(*args: Any, given: Any, **options: Any) -> Any:
        if len(given) > 1:
            raise MemoryError
        return own(*args, given=given, **options)

    monkeypatch.setattr(computation, "compute", small)
    precompute(kept_texts(tmp_path, "halves", **asked))
    whole, halves = (cm.MapStore.open(tmp_path / name) for name in ("whole", "halves"))
    for name in whole.ids():
        for method in ("alti", "value_zeroing"):
            one, other = whole[name, method], halves[name, method]
            read = lambda m: m.scores if "targets" in asked else m.input.dense()
            torch.testing.assert_close(read(one), read(other), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"targets": []}, "names no target"),
        ({"targets": "mean_pool"}, "give a list"),
        ({"targets": [None]}, "cannot be kept. Give positions, words"),
        ({"targets": [[]]}, "cannot be kept"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1"),
        ({"top_k": 3, "targets": [1]}, "are different answers"),
        ({"top_k": 3, "dtype": "float16"}, "store it with dtype='float32'"),
    ],
)
def test_what_a_store_of_rows_cannot_keep(asked: Any, said: str, tmp_path: Path) -> None:
    model, tokenizer = cm.load_default()
    with pytest.raises(OptionError, match=re.escape(said)):
        cm.MapStore.create(
            tmp_path / "s", model=model, tokenizer=tokenizer, methods=["alti"], **asked
        )
    assert not (tmp_path / "s").exists()
    cm.MapStore.create(  # the advice
        tmp_path / "k", model=model, methods=["alti"], top_k=3, dtype="float32"
    ).close()
    cm.MapStore.create(
        tmp_path / "s", model=model, methods=["alti"], targets=[1, "[CLS]"], dtype="float16"
    ).close()


# ---- several workers -----------------------------------------------------------------------------------------------
def test_a_small_job_is_not_shared(corpus: Path, whole: Path, tmp_path: Path, monkeypatch) -> None:
    """Two processes would still be importing when this one is done."""
    monkeypatch.setattr(run, "processes", lambda job, numbers: pytest.fail("started processes"))
    out = tmp_path / "maps"
    made = precompute(Job(str(corpus), str(out), METHODS, token_budget=64, workers=2))
    assert made.computed == 150
    assert hashes(out) == hashes(whole)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_job_shared_after_some_tasks_gives_the_same_bytes(
    after: int, corpus: Path, whole: Path, tmp_path: Path, monkeypatch
) -> None:
    """The first batch is computed here, and again in the part of whoever takes its task: it is stored once."""
    asked: list[tuple[int, float]] = []
    handed: list[int] = []

    def worth(job: Job, tasks: int, seconds: float, loading: float) -> bool:
        asked.append((tasks, seconds))
        return len(asked) > after

    def processes(job: Job, numbers: list[int]) -> Iterator[int]:
        worker = TaskWorker.begin(job)
        handed.extend(numbers)
        for number in reversed(numbers):  # they finish in any order
            yield worker.make_part(number)

    monkeypatch.setattr(run, "worth_sharing", worth)
    monkeypatch.setattr(run, "processes", processes)
    out = tmp_path / "maps"
    precompute(Job(str(corpus), str(out), METHODS, token_budget=64, workers=2))
    assert handed == list(range(after, asked[0][0])) and len(handed) > 1
    assert all(seconds > 0 for _, seconds in asked)
    assert hashes(out) == hashes(whole)


def test_processes_are_worth_their_start_only_for_long_jobs() -> None:
    job = Job(
        "data", "out", METHODS, workers=2, device="cuda"
    )  # whose workers are not bound by cores
    assert not engines.worth_sharing(job, 100, seconds_left=9.0, loading=1.0)
    assert not engines.worth_sharing(
        job, 1, seconds_left=900.0, loading=1.0
    )  # one task is one worker's
    assert engines.worth_sharing(job, 100, seconds_left=60.0, loading=1.0)
    assert not engines.worth_sharing(job, 100, seconds_left=60.0, loading=40.0)
    alone = Job("data", "out", METHODS, workers=1, device="cuda")
    assert not engines.worth_sharing(alone, 100, seconds_left=1e6, loading=1.0)
