"""Tables export what they hold, and say "undefined" where there is no number."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from ctxmix_hf.errors import MissingDependencyError, OptionError
from ctxmix_hf.evaluation.table import EvaluationReport, EvaluationTable, Form

TABLE = EvaluationTable(
    "small",
    ("method", "layer", "value"),
    (("a_b", 1, 0.5), ("a_b", 2, math.nan), ("c", 1, 2.0), ("c", 2, -1.0)),
    "a caption",
    ("1 of 5 rows left out: no cue.",),
    Form("heatmap", "method", "value", "layer"),
)


def test_text_says_undefined() -> None:
    assert "undefined" in str(TABLE) and "0.500" in str(TABLE) and "left out" in str(TABLE)
    assert "undefined" in TABLE.to_markdown() and TABLE.to_markdown().startswith(
        "| method | layer | value |\n| --- |"
    )
    assert "undefined" in TABLE._repr_html_() and "<table>" in TABLE._repr_html_()


def test_exports(tmp_path: Path) -> None:
    assert TABLE.to_csv(tmp_path / "t.csv").splitlines() == [
        "method,layer,value",
        "a_b,1,0.5",
        "a_b,2,",
        "c,1,2.0",
        "c,2,-1.0",
    ]
    assert json.loads(TABLE.to_json(tmp_path / "t.json"))["rows"][1] == {
        "method": "a_b",
        "layer": 2,
        "value": None,
    }
    frame = TABLE.to_pandas()
    assert list(frame.columns) == ["method", "layer", "value"] and frame["value"].isna().sum() == 1
    latex = TABLE.to_latex()
    assert r"a\_b & 1 & 0.500 \\" in latex and r"\begin{tabular}{lrr}" in latex
    assert (tmp_path / "t.csv").is_file() and (tmp_path / "t.json").is_file()


def test_where_pivot_and_column() -> None:
    assert TABLE.where(method="c").column("value") == [2.0, -1.0]
    wide = TABLE.pivot("method", "layer", "value")
    assert wide.columns == ("method", "1", "2") and wide.rows[1] == ("c", 2.0, -1.0)
    with pytest.raises(OptionError, match="no column 'nothing'"):
        TABLE.where(nothing=1)


def test_rows_must_fit() -> None:
    with pytest.raises(OptionError, match="2 cells for 1 columns"):
        EvaluationTable("x", ("a",), ((1, 2),))


@pytest.mark.parametrize(
    "form",
    [
        Form("heatmap", "method", "value", "layer"),
        Form("bars", "method", "value"),
        Form("lines", "method", "value", "layer"),
    ],
)
def test_pictures(form: Form, tmp_path: Path) -> None:
    EvaluationTable("p", TABLE.columns, TABLE.rows, form=form).plot(tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_boxes_are_those_of_the_columns(tmp_path: Path) -> None:
    """A panel per layer and a box per tag, drawn from quantiles."""
    ends = ("q05", "q25", "q75", "q95")
    rows = tuple(
        (tag, layer, middle, 0.0, middle - 0.1, middle + 0.1, 1.0)
        for layer in (1, 2)
        for tag, middle in (("NN", 0.5), ("DT", 0.3))
    )
    table = EvaluationTable(
        "b",
        ("tag", "layer", "middle", *ends),
        rows,
        form=Form("boxes", "tag", "middle", "layer", ends),
    )
    figure = table.plot(tmp_path / "b.png")
    first, second = figure.axes[1:]
    assert [t.get_text() for t in first.get_xticklabels()] == ["NN", "DT"]
    assert second.get_ylabel() == "layer 2" and figure.get_suptitle() == "b"
    drawn = sorted({round(float(y), 6) for line in first.lines for y in line.get_ydata()})
    assert drawn == [0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 1.0]


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"ctxmix-hf\[plot\]"):
        TABLE.plot()


def test_report_is_a_mapping(tmp_path: Path) -> None:
    report = EvaluationReport("suite", (TABLE,))
    assert list(report) == ["small"] and report["small"] is TABLE and len(report) == 1
    names: Any = {path.name for path in report.save(tmp_path / "out")}
    assert names == {"small.csv", "small.json", "small.png", "report.json", "report.md"}
    with pytest.raises(KeyError):
        report["other"]
