"""Datasets by Hub id, object, local file or list: always read to rows, then to samples; bad rows
are counted, never lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import InputError, InputTypeError
from ctxmix_hf.evaluation.samples import BadRow, Sample, read_sample
from ctxmix_hf.text import datasets

BUILT_IN = {"agreement": "examples.jsonl", "sentiment": "examples_sentiment.jsonl"}
TEXT_COLUMNS = ("text", "sentence", "sentence1", "review", "content")
# Two texts that are read together; each pair under the names that datasets give it.
PAIR_COLUMNS = (
    ("text", "pair"),
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence_A", "sentence_B"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("query", "passage"),
    ("#1 String", "#2 String"),
)
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Samples:
    """What can be evaluated on, and how many rows could not and why."""

    kept: tuple[Sample, ...]
    skipped: Counter[str] = field(default_factory=Counter)
    source: str = ""

    def notes(self) -> tuple[str, ...]:
        total = len(self.kept) + sum(self.skipped.values())
        left = tuple(
            f"{count} of {total} rows left out: {reason}."
            for reason, count in sorted(self.skipped.items())
        )
        pairs = sum(sample.second is not None for sample in self.kept)
        return (
            (
                *left,
                f"{pairs} of {len(self.kept)} rows are pairs: both texts were read, as the model's two segments.",
            )
            if pairs
            else left
        )


def read_data(data: Any, columns: Mapping[str, str] | None = None) -> Samples:
    """Samples of a dataset; `columns` renames its columns to ours: `{"text": "question", "pair":
    "answer", "label": "stars"}`.
    """
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


def tagged(samples: Samples, tagger: Callable[[list[str]], Sequence[str]] | None) -> Samples:
    """The samples with the tags that `tagger` gives their words; those that came with tags keep them."""
    if tagger is None:
        return samples
    kept = []
    for sample in samples.kept:
        tags = sample.tags or tuple(str(tag) for tag in tagger(list(sample.words)))
        if len(tags) != len(sample.words):
            raise InputError(
                f"pos_tags gave {len(tags)} tags for {len(sample.words)} words: give a function that returns one "
                "tag per word of the list it is called with."
            )
        kept.append(replace(sample, tags=tags))
    return replace(samples, kept=tuple(kept))


def _rows(data: Any) -> tuple[Rows, str]:
    if isinstance(data, str | Path):
        return _from_name(str(data))
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # a pandas frame
        return list(data.to_dict("records")), "the data frame"
    if isinstance(data, Mapping):  # a datasets.DatasetDict
        split = next((s for s in ("validation", "dev", "test", "train") if s in data), None)
        if split is None:
            raise InputTypeError(
                "A mapping given as data must hold splits: validation, test or train."
            )
        return [dict(row) for row in data[split]], f"split {split!r}"
    if not isinstance(data, Iterable):
        raise InputTypeError(
            f"data is a Hub id, a file, a datasets object or a list of rows, not {type(data).__name__}."
        )
    rows = [{"text": row} if isinstance(row, str) else row for row in data]
    if any(not isinstance(row, Mapping) for row in rows):
        raise InputTypeError("data as a list holds texts or dicts with named columns.")
    return [dict(row) for row in rows], "the rows given"


def _from_name(name: str) -> tuple[Rows, str]:
    if name in BUILT_IN:
        return _read_file(Path(__file__).parent / BUILT_IN[name]), f"the built-in {name} sentences"
    path = datasets.find_file(name)
    if path is not None:
        return _read_file(path), path.name
    return _rows(datasets.dataset_of_hub(name))[0], name


def _read_file(path: Path) -> Rows:
    """A file that cannot be read to its end is refused: a number of half of it would be wrong."""
    rows: Rows = []
    for number, row in enumerate(datasets.rows_of_file(path), 1):
        problem = row if isinstance(row, str) else _not_text(row)
        if problem:
            raise InputError(
                f"{path.name!r} cannot be read as {path.suffix}: row {number} is {problem}."
            )
        assert isinstance(row, dict)
        rows.append(row)
    return rows


def _not_text(row: dict[str, Any]) -> str | None:
    try:
        for value in row.values():
            if isinstance(value, str):
                value.encode()
    except UnicodeEncodeError:
        return "not UTF-8"
    return None


def _renamed(rows: Rows, columns: Mapping[str, str], source: str) -> Rows:
    present = list(dict.fromkeys(key for row in rows for key in row))
    for ours, theirs in columns.items():
        if theirs not in present:
            raise InputError(
                f"{source} has no column {theirs!r} (wanted as {ours!r}). Its columns: {', '.join(map(str, present))}."
            )
    rows = [{**row, **{ours: row.get(theirs) for ours, theirs in columns.items()}} for row in rows]
    if not ({"words", "text", *columns} & {*present, *columns}) and not {
        "sentence_good",
        "sentence_bad",
    } <= set(present):
        text, second = next((p for p in PAIR_COLUMNS if set(p) <= set(present)), (None, None))
        text = text or next((c for c in TEXT_COLUMNS if c in present), None)
        if text is None:
            raise InputError(
                f"{source} has neither words, sentence_good and sentence_bad, nor text. Its "
                f"columns: {', '.join(map(str, present))}. "
                'Name them with columns={"text": ...}.'
            )
        rows = [
            {**row, "text": row.get(text), **({} if second is None else {"pair": row.get(second)})}
            for row in rows
        ]
    elif "text_pair" in present and "pair" not in {*present, *columns}:
        rows = [{**row, "pair": row["text_pair"]} for row in rows]
    return [{"text": None, **row} for row in rows]
