"""Tables as the papers draw them: heatmaps of method by layer, bars with intervals, curves. matplotlib on first use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ctxmix_hf.errors import MissingDependencyError, OptionError
from ctxmix_hf.evaluation.table import EvaluationTable, Form


def draw(table: EvaluationTable, path: str | Path | None = None) -> Any:
    """A matplotlib figure, made without pyplot: no window, no global state."""
    if table.form is None:
        raise OptionError(f"Table {table.name!r} has no picture of its own.")
    if not table.rows:
        raise OptionError(f"Table {table.name!r} is empty: there is nothing to draw.")
    kinds: dict[str, Callable[[Any, EvaluationTable, Form], None]] = {
        "heatmap": _heatmap,
        "bars": _bars,
        "lines": _lines,
        "boxes": _boxes,
    }
    if table.form.kind not in kinds:
        raise OptionError.among("kind", table.form.kind, kinds)
    figure = _figure(*_size(table, table.form))
    axes = figure.add_subplot()
    axes.set_title(table.form.title or table.caption or table.name, fontsize=9, wrap=True)
    kinds[table.form.kind](axes, table, table.form)
    if path is not None:
        figure.savefig(path, dpi=110)
    return figure


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError.of("matplotlib", "plot") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _size(table: EvaluationTable, form: Form) -> tuple[float, float]:
    ys = len(set(table.column(form.y)))
    xs = len(set(table.column(form.x))) if form.x else 1
    if form.kind == "boxes":
        return min(20.0, 3.0 + 0.25 * ys), 1.2 + 2.2 * xs
    if form.kind == "heatmap":
        return min(16.0, 3.0 + 0.55 * xs), min(20.0, 1.4 + 0.32 * ys)
    return (6.0, min(20.0, 1.4 + 0.3 * ys)) if form.kind == "bars" else (6.4, 4.2)


def _heatmap(axes: Any, table: EvaluationTable, form: Form) -> None:
    assert form.x is not None
    wide = table.pivot(form.y, form.x, form.value)
    values = np.array(
        [[np.nan if v is None else float(v) for v in row[1:]] for row in wide.rows], dtype=float
    )
    image = axes.imshow(values, aspect="auto", cmap="viridis")
    axes.set_xticks(
        range(values.shape[1]),
        wide.columns[1:],
        fontsize=7,
        rotation=45 if len(str(wide.columns[-1])) > 4 else 0,
    )
    axes.set_yticks(range(values.shape[0]), [str(row[0]) for row in wide.rows], fontsize=7)
    middle = (
        np.nanmean([np.nanmin(values), np.nanmax(values)]) if np.isfinite(values).any() else 0.0
    )
    for y, x in np.ndindex(*values.shape):
        shown = "–" if np.isnan(values[y, x]) else f"{values[y, x]:.2f}"
        axes.text(
            x,
            y,
            shown,
            ha="center",
            va="center",
            fontsize=6,
            color="black" if values[y, x] > middle else "white",
        )
    axes.set_xlabel(form.x)
    axes.figure.colorbar(image, ax=axes, label=form.value.replace("_", " "))


def _bars(axes: Any, table: EvaluationTable, form: Form) -> None:
    rows = list(table)
    values = np.array([np.nan if r[form.value] is None else float(r[form.value]) for r in rows])  # type: ignore[arg-type]
    errors = None
    if form.error is not None:
        ends = np.array(
            [
                [np.nan if r[name] is None else float(r[name]) for name in form.error]  # type: ignore[arg-type]
                for r in rows
            ]
        ).T
        errors = np.abs(np.nan_to_num(np.stack([values - ends[0], ends[1] - values])))
    places = np.arange(len(rows))
    axes.barh(places, np.nan_to_num(values), xerr=errors, color="#4477aa", error_kw={"lw": 0.8})
    axes.set_yticks(places, [str(r[form.y]) for r in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(form.value.replace("_", " "))


def _lines(axes: Any, table: EvaluationTable, form: Form) -> None:
    assert form.x is not None
    for name in dict.fromkeys(table.column(form.y)):
        rows = [r for r in table if r[form.y] == name and r[form.value] is not None]
        axes.plot(
            [r[form.x] for r in rows],
            [r[form.value] for r in rows],
            marker="o",
            ms=3,
            lw=1.2,
            label=str(name),
        )
    axes.set_xlabel(form.x.replace("_", " "))
    axes.set_ylabel(form.value.replace("_", " "))
    axes.legend(fontsize=6)


def _boxes(axes: Any, table: EvaluationTable, form: Form) -> None:
    """A panel per x, a box per y: the median, the quartiles, and whiskers to the outer two of `form.error`."""
    assert form.x is not None and form.error is not None
    axes.axis("off")
    axes.figure.suptitle(axes.get_title(), fontsize=9)
    axes.set_title("")
    places = list(dict.fromkeys(table.column(form.x)))
    within = axes.get_subplotspec().subgridspec(len(places), 1)
    for panel, place in zip(range(len(places)), places, strict=True):
        one = axes.figure.add_subplot(within[panel])
        names = ("whislo", "q1", "q3", "whishi")
        boxes = [
            {
                "med": row[form.value],
                "label": str(row[form.y]),
                **{name: row[column] for name, column in zip(names, form.error, strict=True)},
            }
            for row in table
            if row[form.x] == place
        ]
        one.bxp(boxes, showfliers=False)
        one.tick_params(axis="x", labelsize=6, rotation=90)
        one.set_ylabel(f"{form.x} {place}", fontsize=7)
