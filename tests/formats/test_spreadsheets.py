"""Tables that a spreadsheet opens, and prints that a terminal survives: no text in them is a
formula, and none takes for ever.
"""

from __future__ import annotations

import csv
import io
import unicodedata
from pathlib import Path

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.evaluation.table import EvaluationTable
from ctxmix_hf.text.tokens import Tokens
from ctxmix_hf.viz import terminal
from tests.viz.conftest import tiny

FORMULAS = ("=HYPERLINK(1)", "+1", "-2", "@SUM", "\t=1", "\r=1", "＝1")


@pytest.mark.parametrize("piece", FORMULAS)
def test_no_token_is_a_formula(piece: str, tmp_path: Path) -> None:
    made = tiny([[[-1.0, 0.5], [0.25, 1e-9]]], (piece, "plain"))
    for result in (made, made.attribution(0)):
        rows = list(csv.DictReader(io.StringIO(result.to_csv(), newline="")))
        texts = {row.get("target") or row.get("token") for row in rows} | {
            row.get("source", "plain") for row in rows
        }
        assert texts == {"'" + piece, "plain"}
        raw = list(csv.DictReader(io.StringIO(result.to_csv(raw=True), newline="")))
        assert {row.get("source") or row.get("token") for row in raw} == {piece, "plain"}
        numbers = [row.get("value") or row.get("score") for row in rows]
        assert "-1.0" in numbers and numbers == [
            row.get("value") or row.get("score") for row in raw
        ]  # a number stays a number


def test_tables_of_evaluations_too() -> None:
    table = EvaluationTable("t", ("=name", "score"), (("=cmd()", -1.5), ("alti", 2)))
    rows = list(csv.reader(io.StringIO(table.to_csv())))
    assert rows == [["'=name", "score"], ["'=cmd()", "-1.5"], ["alti", "2"]]
    assert list(csv.reader(io.StringIO(table.to_csv(raw=True))))[1] == ["=cmd()", "-1.5"]


def test_a_very_long_token_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters are looked at a few times each, not once for every other one."""
    looked = 0
    real = unicodedata.combining

    def counted(character: str) -> int:
        nonlocal looked
        looked += 1
        assert looked < 1_000_000, "quadratic"
        return real(character)

    monkeypatch.setattr(terminal.unicodedata, "combining", counted)
    for piece in ("x" * 100_000, "字" * 100_000, "a" + "\u0301" * 100_000):
        made = tiny([[[1.0, 0.0], [0.5, 0.5]]], (piece, "short"))
        assert len(str(made)) < 10_000 and "…" in str(made)
        lines = str(made.attribution(0)).splitlines()
        assert max(len(line) for line in lines[2:]) < 1000
        assert torch.equal(made.layers, made.layers)


def test_print_of_largest_numbers() -> None:
    scores = torch.tensor([[1.7e308, 1.0]], dtype=torch.float64)
    row = cm.Attribution(scores, [Tokens(("a", "b"))], torch.ones(1, 2).bool(), "m", "t")
    assert "1.7e+308" in str(row)
