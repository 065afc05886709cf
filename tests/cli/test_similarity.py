"""`ctxmix similarity` and `ctxmix rank`: what the public functions give, printed, as JSON and as files."""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import ctxmix_hf as cm
from tests import small

A, B = "The cat sleeps.", "A dog sleeps here."
KNOWN = ("the keys to the cabinet are old .", "the keys is old")  # words of the tiny vocabulary
DOCUMENTS = ["A dog sleeps here.", "The film is dull.", "The cats sleep."]
PACKAGE = importlib.util.find_spec("sentence_transformers") is not None
needs_package = pytest.mark.skipif(not PACKAGE, reason="the extra 'embeddings' is not installed")


@pytest.fixture
def documents(tmp_path: Path) -> str:
    path = tmp_path / "docs.txt"
    path.write_text("\n\n".join(DOCUMENTS) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def sentence_folder(tmp_path_factory: Any) -> str:
    """A tiny sentence-transformers model on disk, with random weights."""
    st = pytest.importorskip("sentence_transformers", reason="the extra 'embeddings' is missing")
    folder, tokenizer = tmp_path_factory.mktemp("sentences"), small.wordpiece()
    small.saved(folder / "bert", small.build("BertModel", tokenizer, **small.BERT), tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        st.SentenceTransformer(str(folder / "bert"), device="cpu").save(str(folder / "st"))
    return str(folder / "st")


def test_similarity_is_the_public_function(run: Any, box: Any) -> None:
    model, tokenizer = box
    for options, pooling in (([], "mean"), (["--pooling", "cls"], "cls")):
        expected = cm.similarity(model, A, B, tokenizer=tokenizer, pooling=pooling)
        done = run("similarity", A, B, "--json", "--top", "2", *options)
        found = json.loads(done.out)
        assert found["cosine"] == pytest.approx(expected.cosine, abs=1e-6)
        assert found["pooling"] == pooling and found["model"] == "ctxmix/agreement"
        assert [(row["a"], row["b"]) for row in found["top"]] == [
            pair[:2] for pair in _content(expected)[:2]
        ]
        assert len(done.err.splitlines()) == 1 and "not trained for this" in done.err
    named = run(
        "similarity", A, B, "--model", "ctxmix/agreement", "--pooling", "mean", "--top", "1"
    )
    assert named.code == 0 and named.err == "" and named.out.count("█") > 5
    assert named.out.count(" - ") == 1 and "biases" in named.out


def _content(made: Any) -> list[tuple[str, str, float]]:
    kept = [pair for pair in made.words().top(1000) if "[" not in pair[0] + pair[1]]
    return sorted(kept, key=lambda pair: -abs(pair[2]))


@pytest.mark.parametrize("suffix", ["txt", "json", "npz", "safetensors", "csv", "html", "png"])
def test_similarity_writes_by_suffix(run: Any, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new" / f"pairs.{suffix}"
    done = run("similarity", A, B, "--model", "ctxmix/agreement", "--out", str(path))
    assert done.code == 0 and done.out == "" and done.err == "" and path.stat().st_size > 200
    if suffix in ("json", "npz", "safetensors"):
        again = cm.Similarity.load(path)
        assert again.total == pytest.approx(again.cosine, abs=1e-5)


def test_rank_is_the_public_function(run: Any, box: Any, documents: str, tmp_path: Path) -> None:
    model, tokenizer = box
    expected = cm.rank(model, A, DOCUMENTS, tokenizer=tokenizer, pooling="mean")
    found = json.loads(run("rank", "--query", A, documents, "--json", "--top", "2").out)
    assert [row["document"] - 1 for row in found["documents"]] == expected.order[:2]
    assert found["of"] == 3 and found["documents"][0]["text"] == DOCUMENTS[expected.order[0]]
    for row in found["documents"]:
        assert row["score"] == pytest.approx(float(expected.scores[row["document"] - 1]), abs=1e-6)
        assert len(row["top"]) == 5 and row["top"][0].keys() == {
            "query",
            "document",
            "contribution",
        }
    text = run("rank", "--query", A, documents, "--top", "1")
    assert text.out.count("[") == 1 and all(document in text.out for document in DOCUMENTS)
    page = tmp_path / "ranking.html"
    assert run("rank", "--query", A, documents, "--top", "2", "--out", str(page)).code == 0
    assert "and 1 more" in page.read_text() and A in page.read_text()


def test_rank_reads_stdin(shell: Any) -> None:
    options = ["rank", "--query", A, "-", "--model", "ctxmix/agreement", "--json"]
    done = shell(*options, stdin="\n".join(DOCUMENTS))
    assert done.code == 0 and json.loads(done.out)["of"] == 3, done.err


@needs_package
def test_sentence_transformers_folders(run: Any, sentence_folder: str, documents: str) -> None:
    import sentence_transformers

    model = sentence_transformers.SentenceTransformer(sentence_folder, device="cpu")
    a, b = model.encode([A, B], convert_to_tensor=True)
    own = float(model.similarity(a, b))
    found = json.loads(run("similarity", A, B, "--model", sentence_folder, "--json").out)
    assert found["cosine"] == pytest.approx(own, abs=1e-6)
    assert found["pooling"] == "the model's own pooling"
    first = json.loads(
        run("rank", "--query", A, documents, "--model", sentence_folder, "--json").out
    )
    scores = {row["text"]: row["score"] for row in first["documents"]}
    assert scores[B] == pytest.approx(own, abs=1e-6)
    bare = json.loads(
        run("similarity", A, B, "--model", sentence_folder, "--pooling", "cls", "--json").out
    )
    assert bare["pooling"] == "cls" and bare["cosine"] != pytest.approx(own, abs=1e-6)


@needs_package
def test_a_missing_package_is_named(
    run: Any, sentence_folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the package, files that name a plain pooling are enough; what needs more is refused
    with the extra's name.
    """
    with_package = json.loads(run("similarity", *KNOWN, "--model", sentence_folder, "--json").out)
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "ctxmix_hf.loading.importlib.util.find_spec",
        lambda name, *rest: None if name == "sentence_transformers" else there(name, *rest),
    )
    done = run("similarity", *KNOWN, "--model", sentence_folder, "--json")
    assert json.loads(done.out)["cosine"] == pytest.approx(with_package["cosine"], abs=1e-6)
    assert len(done.err.splitlines()) == 1 and "ctxmix-hf[embeddings]" in done.err
    (tmp_path / "config_sentence_transformers.json").write_text('{"model_type": "SparseEncoder"}')
    refused = run("similarity", *KNOWN, "--model", str(tmp_path))
    assert refused.code == 2 and "ctxmix-hf[embeddings]" in refused.err
    assert len(refused.err.splitlines()) == 1


@needs_package
def test_a_reranker_ranks_and_is_no_similarity(run: Any, tmp_path: Path, documents: str) -> None:
    tokenizer = small.wordpiece()
    model = small.build("BertForSequenceClassification", tokenizer, num_labels=1, **small.BERT)
    small.saved(tmp_path, model, tokenizer)
    done = run("rank", "--query", A, documents, "--model", str(tmp_path), "--json")
    rows = json.loads(done.out)["documents"]
    assert done.code == 0 and rows[0]["top"][0].keys() == {"word", "contribution"}
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    refused = run("similarity", A, B, "--model", str(tmp_path))
    assert refused.code == 2 and "CrossEncoder" in refused.err


ERRORS = [
    (["similarity", A], "required"),
    (["similarity", A, "  ", "--model", "ctxmix/agreement"], "empty"),
    (["similarity", A, B, "--pooling", "sum"], "invalid choice"),
    (["similarity", A, B, "--top", "0"], "at least 1"),
    (["similarity", A, B, "--out", "pairs.docx"], "suffix"),
    (["similarity", A, B, "--out", "pairs.png", "--json"], "contradict"),
    (["similarity", A, B, "--model", "/nowhere/at/all"], "Could not load"),
    (["similarity", A, B, "--model", "ctxmix/nothing"], "ctxmix/agreement"),
    (["rank", "docs.txt"], "--query"),
    (["rank", "--query", A, "/nowhere.txt"], "Could not read"),
    (["rank", "--query", A, "-"], "no text in stdin"),
    (["rank", "--query", A, "docs.txt", "--out", "ranking.png"], "suffix"),
]


@pytest.mark.parametrize(("args", "words"), ERRORS, ids=[" ".join(args)[:40] for args, _ in ERRORS])
def test_errors_are_one_line(run: Any, args: list[str], words: str) -> None:
    done = run(*args)
    assert done.code == 2 and done.out == ""
    assert len(done.err.splitlines()) == 1 and done.err.startswith("ctxmix: ") and words in done.err


def test_an_empty_query_is_refused(run: Any, documents: str) -> None:
    done = run("rank", "--query", " ", documents, "--model", "ctxmix/agreement")
    assert done.code == 2 and "empty" in done.err and len(done.err.splitlines()) == 1
