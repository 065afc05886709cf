"""Datasets by Hub id, object, local file or list: always read to rows, then to samples; bad rows are counted, never lost."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import InputError, InputTypeError, MissingDependencyError
from ctxmix_hf.evaluation.samples import BadRow, Sample, read_sample

BUILT_IN = {"agreement": "examples.jsonl", "sentiment": "examples_sentiment.jsonl"}
TEXT_COLUMNS = ("text", "sentence", "sentence1", "review", "content")
SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Samples:
    """What can be evaluated on, and how many rows could not and why."""

    kept: tuple[Sample, ...]
    skipped: Counter[str] = field(default_factory=Counter)
    source: str = ""

    def notes(self) -> tuple[str, ...]:
        total = len(self.kept) + sum(self.skipped.values())
        return tuple(f"{count} of {total} rows left out: {reason}." for reason, count in sorted(self.skipped.items()))


def read_data(data: Any, columns: Mapping[str, str] | None = None) -> Samples:
    """Samples of a dataset; `columns` renames its columns to ours: `{"text": "review", "label": "stars"}`."""
    rows, source = _rows(data)
    if not rows:
        raise InputError(f"{source} holds no rows.")
    rows = _renamed(rows, columns or {}, source)
    kept: list[Sample] = []
    skipped: Counter[str] = Counter()
    for row in rows:
        try:
            kept.append(read_sample(row))
        except (BadRow, ValueError, TypeError) as error:
            skipped[str(error) if isinstance(error, BadRow) else "a value of the wrong type"] += 1
    return Samples(tuple(kept), skipped, source)


def _rows(data: Any) -> tuple[Rows, str]:
    if isinstance(data, str | Path):
        return _from_name(str(data))
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # a pandas frame
        return list(data.to_dict("records")), "the data frame"
    if isinstance(data, Mapping):  # a datasets.DatasetDict
        split = next((s for s in ("validation", "dev", "test", "train") if s in data), None)
        if split is None:
            raise InputTypeError("A mapping given as data must hold splits: validation, test or train.")
        return [dict(row) for row in data[split]], f"split {split!r}"
    if not isinstance(data, Iterable):
        raise InputTypeError(f"data is a Hub id, a file, a datasets object or a list of rows, not {type(data).__name__}.")
    rows = [{"text": row} if isinstance(row, str) else row for row in data]
    if any(not isinstance(row, Mapping) for row in rows):
        raise InputTypeError("data as a list holds texts or dicts with named columns.")
    return [dict(row) for row in rows], "the rows given"


def _from_name(name: str) -> tuple[Rows, str]:
    path = Path(name).expanduser()
    if name in BUILT_IN:
        return _read_file(Path(__file__).parent / BUILT_IN[name]), f"the built-in {name} sentences"
    if path.is_file():
        return _read_file(path), path.name
    if path.suffix in SUFFIXES or path.is_absolute() or name.startswith("."):
        raise InputError(f"There is no file {name!r}.")
    return _from_hub(name), name


def _read_file(path: Path) -> Rows:
    if path.suffix in (".csv", ".tsv"):
        with path.open(encoding="utf-8", newline="") as file:
            if path.suffix == ".tsv":
                return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
            return list(csv.DictReader(file))
    if path.suffix == ".parquet":
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise MissingDependencyError.of("pyarrow", "data") from error
        return list(pyarrow.parquet.read_table(path).to_pylist())
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".json":
            return list(json.loads(text))
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (json.JSONDecodeError, TypeError) as error:
        raise InputError(f"{path} is not readable as {path.suffix}: {error}.") from error


def _from_hub(name: str) -> Rows:
    """`"owner/name"`, or with configuration and split: `"nyu-mll/blimp:anaphor_number_agreement:train"`."""
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError.of("datasets", "data") from error
    repository, _, rest = name.partition(":")
    configuration, _, split = rest.partition(":")
    try:
        loaded = datasets.load_dataset(repository, configuration or None, split=split or None)
    except Exception as error:  # whatever the Hub client raises: not found, offline, no permission
        raise InputError(f"Could not load dataset {name!r} (no such file either): {error}") from error
    return _rows(loaded)[0]


def _renamed(rows: Rows, columns: Mapping[str, str], source: str) -> Rows:
    present = list(dict.fromkeys(key for row in rows for key in row))
    for ours, theirs in columns.items():
        if theirs not in present:
            raise InputError(f"{source} has no column {theirs!r} (wanted as {ours!r}). Its columns: {', '.join(map(str, present))}.")
    rows = [{**row, **{ours: row.get(theirs) for ours, theirs in columns.items()}} for row in rows]
    if not ({"words", "text", *columns} & {*present, *columns}) and not {"sentence_good", "sentence_bad"} <= set(present):
        text = next((c for c in TEXT_COLUMNS if c in present), None)
        if text is None:
            raise InputError(
                f"{source} has neither words, sentence_good and sentence_bad, nor text. Its columns: {', '.join(map(str, present))}. "
                'Name them with columns={"text": ...}.'
            )
        rows = [{**row, "text": row.get(text)} for row in rows]
    return [{"text": None, **row} for row in rows]
