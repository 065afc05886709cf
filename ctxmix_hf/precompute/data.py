"""Rows of a local file or a Hub dataset, one at a time; a row that cannot be read is a `Bad` one, never the end."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import CtxmixError, InputError, MissingDependencyError
from ctxmix_hf.hub.layout import check_id
from ctxmix_hf.precompute.job import Job

SUFFIXES = (".csv", ".tsv", ".jsonl", ".txt", ".parquet")


@dataclass(frozen=True)
class Row:
    """An example: text or pair; `problem` says why it is skipped."""

    id: str
    text: Any
    label: Any = None
    problem: str | None = None


def read_rows(job: Job) -> Iterator[Row]:
    """Every row of the data in its order, the first `limit` of them."""
    raw = _open(job)
    return (_row(job, number, item) for number, item in enumerate(islice(raw, job.limit)))


# ---- where rows come from ---------------------------------------------------------------------------------------------
def _open(job: Job) -> Iterator[dict[str, Any] | str]:
    """Dicts; a text instead says why a row is unreadable. The first row is looked at: columns are checked before a model loads."""
    path = Path(job.dataset).expanduser()
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise InputError(f"Cannot read {path.name!r}: data is {', '.join(SUFFIXES)}, or the id of a Hub dataset.")
        rows = _from_file(path)
    elif path.suffix in SUFFIXES:
        raise InputError(f"There is no file {job.dataset!r}.")
    else:
        rows = _from_hub(job)
    return _checked(rows, job)


def _checked(rows: Iterator[dict[str, Any] | str], job: Job) -> Iterator[dict[str, Any] | str]:
    """Unknown columns are an error at the first row that can be read."""
    ahead: list[dict[str, Any] | str] = []
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


def _from_file(path: Path) -> Iterator[dict[str, Any] | str]:
    try:
        reader = {".csv": _csv, ".tsv": _csv, ".jsonl": _jsonl, ".txt": _txt, ".parquet": _parquet}[path.suffix]
        yield from reader(path)
    except OSError as error:
        raise InputError(f"Could not read {path.name!r}: {error.strerror or error}.") from error


def _csv(path: Path) -> Iterator[dict[str, Any] | str]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    tabs: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.DictReader(file, **tabs)
        while True:
            try:
                yield next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield f"unreadable: {error}"


def _lines(path: Path) -> Iterator[str | None]:
    """Lines as text; None where one is not UTF-8."""
    with path.open("rb") as file:
        for line in file:
            try:
                yield line.decode("utf-8-sig").rstrip("\r\n")
            except UnicodeDecodeError:
                yield None


def _jsonl(path: Path) -> Iterator[dict[str, Any] | str]:
    for line in _lines(path):
        if line is not None and not line.strip():
            continue
        try:
            row = json.loads(line or "")
        except (json.JSONDecodeError, RecursionError):
            row = None
        yield row if isinstance(row, dict) else "not a JSON object" if line is not None else "not UTF-8"


def _txt(path: Path) -> Iterator[dict[str, Any] | str]:
    for line in _lines(path):
        yield {"text": line} if line is not None else "not UTF-8"


def _parquet(path: Path) -> Iterator[dict[str, Any] | str]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError.of("pyarrow", "data") from error
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(1024):
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise InputError(f"{path.name!r} is not readable as parquet: {error}.") from error


def _from_hub(job: Job) -> Iterator[dict[str, Any] | str]:
    """`name` or `name:config`, streamed; a folder of data files works too."""
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError.of("datasets", "data") from error
    name, _, config = job.dataset.partition(":")
    try:
        found: Iterable[Any] = datasets.load_dataset(name, config or None, split=job.split, streaming=True)
        yield from (dict(row) for row in found)
    except CtxmixError:
        raise
    except Exception as error:  # whatever the Hub's client raises: not found, offline, no such split, no permission
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise InputError(f"Could not read the dataset {job.dataset!r} (there is no such file either): {first}") from error


# ---- what a row is ----------------------------------------------------------------------------------------------------
def _row(job: Job, number: int, item: dict[str, Any] | str) -> Row:
    default = f"{job.split}-{number}"
    if isinstance(item, str):
        return Row(default, "", problem=item)
    name: Any = default if job.id_column is None else item.get(job.id_column)
    try:
        name = check_id(name)
    except CtxmixError:
        return Row(default, "", problem=f"not usable as an id: {name!r:.60}")
    parts = [item.get(column) for column in (job.text_column, job.pair_column) if column is not None]
    problem = next((found for found in map(_problem, parts) if found), None)
    text = "" if problem else parts[0] if len(parts) == 1 else tuple(parts)
    return Row(name, text, _label(item.get(job.label_column)) if job.label_column else None, problem)


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
