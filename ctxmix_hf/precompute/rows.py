"""What `precompute` makes of a corpus' rows: texts or pairs with ids and labels; a row that cannot be used says why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ctxmix_hf.errors import CtxmixError, InputError
from ctxmix_hf.hub.folders import check_id
from ctxmix_hf.precompute.job import Job
from ctxmix_hf.text import datasets


@dataclass(frozen=True)
class DataRow:
    """An example: text or pair; `problem` says why it is skipped."""

    id: str
    text: Any
    label: Any = None
    problem: str | None = None


def read_rows(job: Job) -> Iterator[DataRow]:
    """Every row of the data in its order, the first `limit` of them."""
    raw = _open(job)
    return (_row(job, number, item) for number, item in enumerate(islice(raw, job.limit)))


# ---- where rows come from
# ---------------------------------------------------------------------------------------------
def _open(job: Job) -> Iterator[datasets.Row]:
    """Dicts; a text instead says why a row is unreadable. The first row is looked at: columns are
    checked before a model loads.
    """
    path = datasets.find_file(job.dataset)
    rows = (
        datasets.rows_of_file(path)
        if path is not None
        else datasets.rows_of_hub(job.dataset, job.split)
    )
    return _checked(rows, job)


def _checked(rows: Iterator[datasets.Row], job: Job) -> Iterator[datasets.Row]:
    """Unknown columns are an error at the first row that can be read."""
    ahead: list[datasets.Row] = []
    for row in rows:
        ahead.append(row)
        if isinstance(row, dict):
            wanted = (job.text_column, job.pair_column, job.id_column, job.label_column)
            missing = next((name for name in wanted if name is not None and name not in row), None)
            if missing is not None:
                known = ", ".join(str(key) for key in row if key is not None)
                raise InputError(f"The data has no column {missing!r}. Its columns: {known}.")
            break
    yield from ahead
    yield from rows


# ---- what a row is
# ----------------------------------------------------------------------------------------------------
def _row(job: Job, number: int, item: datasets.Row) -> DataRow:
    default = f"{job.split}-{number}"
    if isinstance(item, str):
        return DataRow(default, "", problem=item)
    name: Any = default if job.id_column is None else item.get(job.id_column)
    try:
        name = check_id(name)
    except CtxmixError:
        return DataRow(default, "", problem=f"not usable as an id: {name!r:.60}")
    parts = [
        item.get(column) for column in (job.text_column, job.pair_column) if column is not None
    ]
    problem = next((found for found in map(_problem, parts) if found), None)
    text = "" if problem else parts[0] if len(parts) == 1 else tuple(parts)
    return DataRow(
        name, text, _label(item.get(job.label_column)) if job.label_column else None, problem
    )


def _label(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _problem(text: Any) -> str | None:
    if not isinstance(text, str):
        return "not text" if text is not None else "no text"
    if not text.strip():
        return "empty"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "not UTF-8"
    return None
