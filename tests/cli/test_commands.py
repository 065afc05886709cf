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
    start = {"html": b"<!doctype html", "png": b"\x89PNG", "svg": b"<?xml", "json": b'{"schema"', "txt": b"attention"}[suffix]
    assert path.read_bytes().lower().startswith(start.lower())


def test_explain_layers_and_targets(run, box) -> None:
    model, tokenizer = box
    m = cm.explain(model, KEYS, "alti", tokenizer=tokenizer)
    for layer, aggregate, expected in ((2, None, m.input[0, 2, 1]), (-1, "none", m.layers[0, -1, 1]), (0, "none", m.layers[0, 0, 1])):
        extra = ["--aggregate", aggregate] if aggregate else []
        done = run("explain", KEYS, "--method", "alti", "--target", "1", "--layer", str(layer), "--json", *extra)
        assert json.loads(done.out)["attribution"]["scores"][0] == pytest.approx(expected.tolist(), abs=1e-6)
    word = json.loads(run("explain", KEYS, "--method", "alti", "--target", "cabinet", "--json").out)["attribution"]
    assert word["scores"][0] == pytest.approx(m.words().attribution("cabinet").scores[0].tolist(), abs=1e-6)


def test_explain_flow_options_and_attributions(run) -> None:
    assert run("explain", "A film.", "--method", "alti", "--aggregate", "flow").code == 0
    done = run("explain", "A film.", "--method", "value_zeroing", "--option", "distance=euclidean", "--json")
    assert json.loads(done.out)["meta"]["options"]["distance"] == "euclidean"
    done = run("explain", "A fine film.", "--model", "ctxmix/sentiment", "--method", "integrated_gradients")
    assert done.code == 0 and "integrated_gradients" in done.out and "film" in done.out


def test_no_color(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in run("explain", "A film.").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run("explain", "A film.").out


def test_compare_two_sentences_and_two_models(run, tmp_path: Path) -> None:
    done = run("compare", "The key [MASK] here.", "The keys [MASK] here.", "--method", "alti")
    assert done.code == 0 and "difference" in done.out
    path = tmp_path / "difference.html"
    assert run("compare", "A film.", "--other-model", "ctxmix/agreement", "--out", str(path)).code == 0 and path.stat().st_size > 1000


ERRORS = [
    (["explain", "A film.", "--method", "alty"], "Did you mean 'alti'"),
    (["explain", "A film.", "--model", "ctxmix/nothing"], "ctxmix/agreement"),
    (["explain", "A film.", "--model", "/nowhere/at/all"], "Could not load"),
    (["explain", "  "], "empty"),
    (["explain", "A film.", "--target", "dog"], "No token 'dog'"),
    (["explain", "A film.", "--layer", "17"], "does not exist"),
    (["explain", "A film.", "--file", "x"], "not both"),
    (["explain", "--file", "/nowhere.txt"], "Could not read"),
    (["explain", "A film.", "--option", "distance"], "KEY=VALUE"),
    (["explain", "A film.", "--method", "globenc", "--aggregate", "flow"], "already"),
    (["explain", "A film.", "--format", "png", "--json"], "contradict"),
    (["explain", "A film.", "--out", "map.docx"], "suffix"),
    (["compare", "a", "b", "c"], "one sentence or two"),
    (["methods", "alty"], "Did you mean 'alti'"),
    (["models", "xyzzy"], "Unknown family"),
    (["evaluate", "--suite", "agreemen"], "Did you mean 'agreement'"),
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
    assert done.code == 2 and "Traceback" in done.err and done.err.splitlines()[-1].startswith("ctxmix: ")


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
