"""What commands do with their options, and how they fail: in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ctxmix_hf as cm
from ctxmix_hf.cli.parser import COMMANDS, build_parser

KEYS = "The keys to the cabinet [MASK] on the table."


@pytest.mark.parametrize("name", [name for name, *_ in COMMANDS])
def test_every_help_has_examples_that_parse(run, name: str) -> None:
    done = run(name, "--help")
    assert done.code == 0 and "examples:" in done.out and "--json" in done.out


@pytest.mark.parametrize("suffix", ["html", "png", "svg", "json", "txt"])
def test_explain_writes_by_suffix(run, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new" / f"map.{suffix}"
    done = run("explain", KEYS, "--method", "attention", "--out", str(path))
    assert done.code == 0 and done.out == "" and done.err == ""
    start = {
        "html": b"<!doctype html",
        "png": b"\x89PNG",
        "svg": b"<?xml",
        "json": b'{"schema"',
        "txt": b"attention",
    }[suffix]
    assert path.read_bytes().lower().startswith(start.lower())


def test_explain_layers_and_targets(run, box) -> None:
    model, tokenizer = box
    m = cm.explain(model, KEYS, "alti", tokenizer=tokenizer)
    for layer, aggregate, expected in (
        (3, None, m.input[0, 2, 1]),
        (-1, "none", m.layers[0, -1, 1]),
        (1, "none", m.layers[0, 0, 1]),
    ):
        extra = ["--aggregate", aggregate] if aggregate else []
        done = run(
            "explain",
            KEYS,
            "--method",
            "alti",
            "--target",
            "1",
            "--layer",
            str(layer),
            "--json",
            *extra,
        )
        assert json.loads(done.out)["attribution"]["scores"][0] == pytest.approx(
            expected.tolist(), abs=1e-6
        )
    word = json.loads(
        run("explain", KEYS, "--method", "alti", "--target", "cabinet", "--json").out
    )["attribution"]
    assert word["scores"][0] == pytest.approx(
        m.words().attribution("cabinet").scores[0].tolist(), abs=1e-6
    )


def test_explain_flow_options_and_attributions(run) -> None:
    assert run("explain", "A film.", "--method", "alti", "--aggregate", "flow").code == 0
    done = run(
        "explain",
        "A film.",
        "--method",
        "value_zeroing",
        "--option",
        "distance=euclidean",
        "--json",
    )
    assert json.loads(done.out)["meta"]["options"]["distance"] == "euclidean"
    done = run(
        "explain", "A fine film.", "--model", "ctxmix/sentiment", "--method", "integrated_gradients"
    )
    assert done.code == 0 and "integrated_gradients" in done.out and "film" in done.out


def test_ledger_is_the_public_functions(run, box) -> None:
    model, tokenizer = box
    for words, asked in (
        (["--class", "are", "--foil", "is"], {"class_index": "are", "foil": "is"}),
        (
            ["--class", "are", "--biases", "spread", "--rule", "through"],
            {"class_index": "are", "biases": "spread", "rule": "through"},
        ),
        (
            ["--position", "-3", "--gates", "frozen", "--start", "embeddings"],
            {"position": -3, "gates": "frozen", "start": "embeddings"},
        ),
        (["--class", "7"], {"class_index": 7}),
    ):
        expected = cm.ledger(model, KEYS, tokenizer=tokenizer, **asked)
        found = json.loads(run("ledger", KEYS, "--json", *words).out)
        assert found["scores"][0] == pytest.approx(expected.scores[0].tolist(), abs=1e-5)
        assert (
            found["value"] == pytest.approx(expected.value.tolist(), abs=1e-5)
            and found["target"] == expected.target
        )
        flat = [float(line[0]) for line in expected.lines.values() if line.dim() == 1]
        assert found["text"] == KEYS and (found["lines"] or [[]])[0] == pytest.approx(
            flat, abs=1e-5
        )


def test_ledger_of_the_example_and_of_several_sentences(run, tmp_path: Path) -> None:
    done = run("ledger")
    assert (
        done.code == 0 and "all biases" in done.out and "cabinet" in done.out and "make" in done.out
    )
    done = run("ledger", "--model", "ctxmix/sentiment", "A fine film.", "A dull film.", "--json")
    first, second = (json.loads(line) for line in done.out.splitlines())
    assert first["text"] == "A fine film." and first["target"] != second["target"]
    path = tmp_path / "sentences.txt"
    path.write_text("A fine film.\nA dull film.\n")
    done = run("ledger", "--model", "ctxmix/sentiment", "--file", str(path))
    assert done.out.count("all biases") == 2


@pytest.mark.parametrize(
    "suffix", ["txt", "json", "npz", "safetensors", "csv", "html", "png", "svg", "pdf"]
)
def test_ledger_writes_by_suffix(run, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new" / f"account.{suffix}"
    done = run("ledger", KEYS, "--class", "are", "--foil", "is", "--out", str(path))
    assert done.code == 0 and done.out == "" and done.err == "" and path.stat().st_size > 500
    if suffix in ("json", "npz", "safetensors"):
        assert cm.Ledger.load(path).target == "are minus is (logits) at [MASK]"


def test_explain_gives_the_ledgers_scores(run, box) -> None:
    model, tokenizer = box
    expected = cm.ledger(model, KEYS, "are", foil="is", tokenizer=tokenizer)
    done = run(
        "explain",
        KEYS,
        "--method",
        "ledger",
        "--option",
        "class_index=are",
        "--option",
        "foil=is",
        "--json",
    )
    assert json.loads(done.out)["scores"][0] == pytest.approx(expected.scores[0].tolist(), abs=1e-5)
    assert "keys" in run("explain", KEYS, "--method", "ledger").out


def test_no_color(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in run("explain", "A film.").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run("explain", "A film.").out


def test_compare_two_sentences_and_two_models(run, tmp_path: Path) -> None:
    done = run("compare", "The key [MASK] here.", "The keys [MASK] here.", "--method", "alti")
    assert done.code == 0 and "difference" in done.out
    path = tmp_path / "difference.html"
    assert (
        run("compare", "A film.", "--other-model", "ctxmix/agreement", "--out", str(path)).code == 0
        and path.stat().st_size > 1000
    )


ERRORS = [
    (["explain", "A film.", "--method", "alty"], "Did you mean 'alti'"),
    (["explain", "A film.", "--model", "ctxmix/nothing"], "ctxmix/agreement"),
    (["explain", "A film.", "--model", "/nowhere/at/all"], "Could not load"),
    (["explain", "  "], "empty"),
    (["explain", "A film.", "--target", "dog"], "No token 'dog'"),
    (["explain", "A film.", "--layer", "17"], "There is no layer 17"),
    (["explain", "A film.", "--layer", "0"], "layers count from 1 to 6"),
    (["explain", "A film.", "--file", "x"], "not both"),
    (["explain", "--file", "/nowhere.txt"], "Could not read"),
    (["explain", "A film.", "--option", "distance"], "KEY=VALUE"),
    (["explain", "A film.", "--method", "globenc", "--aggregate", "flow"], "already"),
    (["explain", "A film.", "--format", "png", "--json"], "contradict"),
    (["explain", "A film.", "--out", "map.docx"], "suffix"),
    (["explain", "A film.", "--method", "ledger", "--option", "of=prob"], "logit"),
    (["ledger", KEYS, "--class", "keyss"], "vocabulary"),
    (["ledger", KEYS, "--class", "are", "--foil", "are"], "foil is the class"),
    (["ledger", "A film.", "--model", "ctxmix/sentiment", "--class", "postive"], "Did you mean"),
    (["ledger", KEYS, "--rule", "thruogh"], "invalid choice"),
    (["ledger", KEYS, "--position", "99"], "99"),
    (["ledger", KEYS, "--out", "account.docx"], "suffix"),
    (["ledger", KEYS, "--out", "account.png", "--json"], "contradict"),
    (
        ["ledger", "A film.", "A key.", "--model", "ctxmix/sentiment", "--out", "account.html"],
        "one sentence",
    ),
    (["ledger", "  "], "empty"),
    (["compare", "a", "b", "c"], "one sentence or two"),
    (["methods", "alty"], "Did you mean 'alti'"),
    (["models", "xyzzy"], "Unknown family"),
    (["evaluate", "--suite", "agreemen"], "Did you mean 'agreement'"),
    (["papers", "--out", "x", "--item", "Table 11"], "Table 1"),
    (["papers", "--out", "x", "--data", "dev.tsv"], "sst2=dev.tsv"),
    (["papers", "--out", "x", "--data", "imdb=a.tsv"], "sst2, blimp, linzen, mrpc, cola, mnli"),
    (["tune", "--out", "x", "--rate", "0"], "rate must be above 0"),
    (["bench", "--methods", "alty"], "Did you mean"),
    (["bench", "--tokens", "100000"], "more than"),
    (["push", "/nowhere", "me/maps"], ""),
]


@pytest.mark.parametrize(("args", "words"), ERRORS, ids=[" ".join(args)[:40] for args, _ in ERRORS])
def test_errors_are_one_line(run, args: list[str], words: str) -> None:
    done = run(*args)
    assert done.code == 2 and done.out == ""
    assert len(done.err.splitlines()) == 1 and done.err.startswith("ctxmix: ") and words in done.err


def test_debug_shows_the_traceback(run) -> None:
    done = run("methods", "alty", "--debug")
    assert (
        done.code == 2
        and "Traceback" in done.err
        and done.err.splitlines()[-1].startswith("ctxmix: ")
    )


def test_unexpected_errors_exit_1(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctxmix_hf.cli.commands.methods.list_methods", lambda kind: 1 / 0)
    done = run("methods")
    assert done.code == 1 and "ZeroDivisionError" in done.err and len(done.err.splitlines()) == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_option(run, shell: str) -> None:
    script = run("completion", shell).out
    parser = build_parser()
    assert all(name in script for name, *_ in COMMANDS) and "value_zeroing" in script
    assert parser.prog == "ctxmix" and "token-budget" in script
