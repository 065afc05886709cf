"""What an evaluation returns: a small frozen table that prints, exports and draws itself."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import MissingDependencyError, OptionError
from ctxmix_hf.formats.latex import escape
from ctxmix_hf.formats.tables import csv_text
from ctxmix_hf.registry import VIEWS
from ctxmix_hf.text.columns import aligned

Cell = str | int | float | None
UNDEFINED = "undefined"
WIDE = 30  # rows beyond which a heatmap's table is printed as a matrix


@dataclass(frozen=True)
class Form:
    """How a table is drawn: `"heatmap"` (y by x), `"bars"` (one per y), `"lines"` (one per y along x) or `"boxes"`
    (one per y, a panel per x) of `value`.
    """

    kind: str
    y: str
    value: str
    x: str | None = None
    # columns with the lower and the upper end of an interval; of boxes whisker, quartile, quartile, whisker
    error: tuple[str, ...] | None = None
    title: str = ""


def _text(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return UNDEFINED
    if isinstance(cell, float):
        return f"{cell:.3f}" if abs(cell) < 1000 else f"{cell:.0f}"
    return str(cell)


def _plain(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


@dataclass(frozen=True, repr=False)
class EvaluationTable:
    """Columns and rows, what was left out (`notes`), and the picture the paper draws of it (`form`).

    An undefined value is NaN in `rows` and pandas, null in JSON, empty in CSV, and the word
    "undefined" where people read.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    notes: tuple[str, ...] = ()
    form: Form | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise OptionError(
                    f"A row of table {self.name!r} has {len(row)} cells for {len(self.columns)} columns."
                )

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Cell]]:
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)

    def column(self, name: str) -> list[Any]:
        if name not in self.columns:
            raise OptionError(
                f"Table {self.name!r} has no column {name!r}: {', '.join(self.columns)}."
            )
        place = self.columns.index(name)
        return [row[place] for row in self.rows]

    def where(self, **values: Cell) -> EvaluationTable:
        """Only the rows with these values: `table.where(scope="input", method="alti")`."""
        for name in values:
            self.column(name)
        kept = [
            row
            for row, named in zip(self.rows, self, strict=True)
            if all(named[k] == v for k, v in values.items())
        ]
        return replace(self, rows=tuple(kept))

    def pivot(self, y: str, x: str, value: str) -> EvaluationTable:
        """One row per `y`, one column per `x`.

        Args:
            y: The column whose values become rows.
            x: The column whose values become columns.
            value: The column whose values fill the cells.
        """
        ys, xs = list(dict.fromkeys(self.column(y))), list(dict.fromkeys(self.column(x)))
        cells = {(row[y], row[x]): row[value] for row in self}
        rows = tuple((a, *(cells.get((a, b)) for b in xs)) for a in ys)
        return replace(self, columns=(y, *map(str, xs)), rows=rows, form=None)

    # ---- export ---------------------------------------------------------------------------------------------------
    def to_pandas(self) -> Any:
        try:
            import pandas
        except ImportError as error:
            raise MissingDependencyError.of("pandas", "data") from error
        return pandas.DataFrame.from_records(list(self.rows), columns=list(self.columns))

    def to_csv(self, path: str | Path | None = None, raw: bool = False) -> str:
        """Texts that look like a formula to a spreadsheet are quoted, unless `raw`.

        Args:
            path: Where to write; None only returns the text.
            raw: Leave cells that begin like a formula as they are.
        """
        rows = [["" if _plain(c) is None else c for c in row] for row in self.rows]
        return _kept(csv_text(self.columns, rows, raw), path)

    def to_dict(self) -> dict[str, Any]:
        rows = [dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows]
        return {
            "name": self.name,
            "caption": self.caption,
            "notes": list(self.notes),
            "meta": dict(self.meta),
            "rows": rows,
        }

    def to_json(self, path: str | Path | None = None) -> str:
        return _kept(json.dumps(self.to_dict(), indent=1, ensure_ascii=False), path)

    def to_markdown(self, path: str | Path | None = None) -> str:
        lines = [_row(self.columns), _row(["---"] * len(self.columns))]
        lines += [_row([_text(c).replace("|", "\\|") for c in row]) for row in self.rows]
        lines += [f"\n{note}" for note in self.notes]
        return _kept("\n".join(lines) + "\n", path)

    def to_latex(self, path: str | Path | None = None) -> str:
        """A booktabs tabular."""
        kinds = "".join(
            "r" if all(not isinstance(v, str) for v in self.column(name)) else "l"
            for name in self.columns
        )
        lines = [
            f"\\begin{{tabular}}{{{kinds}}}",
            "\\toprule",
            _latex_row(self.columns),
            "\\midrule",
        ]
        lines += [_latex_row([_text(c) for c in row]) for row in self.rows]
        return _kept("\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n", path)

    def __repr__(self) -> str:
        return f"EvaluationTable({self.name}, {len(self.rows)} rows: {', '.join(self.columns)})"

    def __str__(self) -> str:
        """As text; a long table with a heatmap is shown as that: its first value, by the other two."""
        if (
            self.form is not None
            and self.form.kind == "heatmap"
            and self.form.x
            and len(self.rows) > WIDE
        ):
            wide = self.pivot(self.form.y, self.form.x, self.form.value)
            also = ", ".join(
                c for c in self.columns if c not in (self.form.x, self.form.y, self.form.value)
            )
            return str(
                replace(
                    wide,
                    caption=f"{self.caption}\n{self.form.value} by {self.form.y} and {self.form.x} (also: {also})",
                )
            )
        cells = [list(self.columns), *([_text(c) for c in row] for row in self.rows)]
        left = [any(isinstance(v, str) for v in self.column(name)) for name in self.columns]
        head = [f"{self.name}: {self.caption}"] if self.caption else [self.name]
        return "\n".join([*head, *aligned(cells, left=left, rule=1000), *self.notes])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_text(c))}</td>" for c in row) + "</tr>"
            for row in self.rows
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"

    def plot(self, path: str | Path | None = None) -> Any:
        """The paper's picture of this table; saved where `path` says. Returns the matplotlib figure."""
        return VIEWS.get("evaluation.plot")(self, path)


@dataclass(frozen=True, repr=False)
class EvaluationReport(Mapping[str, EvaluationTable]):
    """The tables of a suite by name, in the order they were made; exports and draws all of them."""

    suite: str
    tables: tuple[EvaluationTable, ...]

    def __getitem__(self, name: str) -> EvaluationTable:
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (table.name for table in self.tables)

    def __len__(self) -> int:
        return len(self.tables)

    def __repr__(self) -> str:
        return f"EvaluationReport({self.suite}: {', '.join(self)})"

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables))

    def _repr_html_(self) -> str:
        return "".join(
            f"<h3>{html.escape(table.name)}</h3>{table._repr_html_()}" for table in self.tables
        )

    def to_json(self, path: str | Path | None = None) -> str:
        made = {"suite": self.suite, "tables": [table.to_dict() for table in self.tables]}
        return _kept(json.dumps(made, indent=1, ensure_ascii=False), path)

    def to_markdown(self, path: str | Path | None = None) -> str:
        return _kept(
            "\n".join(
                f"## {table.name}\n{table.caption}\n\n{table.to_markdown()}"
                for table in self.tables
            ),
            path,
        )

    def save(self, folder: str | Path, *, pictures: bool = True) -> list[Path]:
        """`<name>.csv` and `.png` of every table, `report.json` and `report.md`."""
        return save_tables(self.tables, folder, pictures=pictures, report=self)


def save_tables(
    tables: tuple[EvaluationTable, ...],
    folder: str | Path,
    *,
    pictures: bool = True,
    report: EvaluationReport | None = None,
) -> list[Path]:
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    written = []
    for table in tables:
        written += [place / f"{table.name}.csv", place / f"{table.name}.json"]
        table.to_csv(written[-2])
        table.to_json(written[-1])
        if pictures and table.form is not None and table.rows:
            written.append(place / f"{table.name}.png")
            table.plot(written[-1])
    if report is not None:
        written += [place / "report.json", place / "report.md"]
        report.to_json(written[-2])
        report.to_markdown(written[-1])
    return written


def _row(cells: Any) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _latex_row(cells: Any) -> str:
    return " & ".join(escape(str(cell)) for cell in cells) + r" \\"


def _kept(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
