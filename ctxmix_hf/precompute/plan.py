"""Which sentences go through the model together: decided from the data alone, before anything is computed.

Rows are taken in windows, sorted by length within a window (rows of one length stay in their
order), and cut into batches whose padded size keeps to the token budget. The same data gives the
same batches, on every machine and after every stop.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ctxmix_hf.precompute.job import TASK_BATCHES, WINDOW, Job
from ctxmix_hf.precompute.rows import DataRow
from ctxmix_hf.text.batch import encode, encode_one
from ctxmix_hf.text.inputs import UNLIMITED, longest_input
from ctxmix_hf.text.kinds import Model, Tokenizer

Example = tuple[str, Any, Any]  # id, text or pair, label
Batch = list[Example]


@dataclass
class Fingerprint:
    """sha256 over ids, texts and labels as they pass by."""

    rows: int = 0
    _made: Any = field(default_factory=hashlib.sha256)

    def watch(self, rows: Iterable[DataRow]) -> Iterator[DataRow]:
        for row in rows:
            self.rows += 1
            self._made.update(
                json.dumps([row.id, row.text, row.problem, row.label], default=str).encode() + b"\n"
            )
            yield row

    @property
    def digest(self) -> str:
        return str(self._made.hexdigest())


@dataclass
class Planner:
    """From rows to tasks; counts what it leaves out."""

    job: Job
    tokenizer: Tokenizer
    longest: int
    truncated: int = 0
    tokens: int = 0
    examples: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)

    def tasks(self, rows: Iterable[DataRow]) -> Iterator[list[Batch]]:
        """Groups of batches, in the order of the store."""
        stream = iter(rows)
        while window := list(islice(stream, WINDOW)):
            batches = list(self._batches(window))
            for start in range(0, len(batches), TASK_BATCHES):
                yield batches[start : start + TASK_BATCHES]

    def _batches(self, window: list[DataRow]) -> Iterator[Batch]:
        good = [row for row in window if self._usable(row)]
        sized = sorted(self._measured(good), key=lambda item: item[0])  # stable
        batch: Batch = []
        for length, example in sized:
            if batch and (len(batch) + 1) * length > self.job.token_budget:
                yield batch
                batch = []
            batch.append(example)
        if batch:
            yield batch

    def _usable(self, row: DataRow) -> bool:
        problem = row.problem or ("the id was there before" if row.id in self._ids else None)
        if problem:
            self.skipped.append((row.id, problem))
        else:
            self._ids.add(row.id)
        return problem is None

    def _measured(self, rows: list[DataRow]) -> Iterator[tuple[int, Example]]:
        for row, length in zip(rows, self._lengths([row.text for row in rows]), strict=True):
            text = row.text
            if length > self.longest:
                if self.job.max_length is None or not isinstance(text, str):
                    self.skipped.append(
                        (row.id, f"too long: {length} tokens, at most {self.longest}")
                    )
                    continue
                text, length = self._cut(text)
                self.truncated += 1
            self.tokens += length
            self.examples += 1
            yield length, (row.id, text, row.label)

    def _lengths(self, texts: list[Any]) -> list[int]:
        if not texts:
            return []
        return [len(ids) for ids in encode(self.tokenizer, texts, verbose=False)["input_ids"]]

    def _cut(self, text: str) -> tuple[str, int]:
        """The longest beginning of a text that fits: what the model sees is what the store says it saw."""
        room = self.longest
        while room > 0:
            short = self._beginning(text, room)
            length = self._lengths([short])[0]
            if length <= self.longest:
                return short, length
            room -= 1
        return text[:1], self._lengths([text[:1]])[0]

    def _beginning(self, text: str, room: int) -> str:
        if getattr(self.tokenizer, "is_fast", False):
            spans = encode_one(
                self.tokenizer, text, truncation=True, max_length=room, return_offsets_mapping=True
            )["offset_mapping"]
            return text[: max((end for _, end in spans), default=1)]
        ids = encode_one(self.tokenizer, text, truncation=True, max_length=room)["input_ids"]
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def longest_of(model: Model, tokenizer: Tokenizer, asked: int | None) -> int:
    """Tokens that fit: what was asked for, and not more than the model has positions."""
    known = [n for n in (longest_input(model, tokenizer), asked) if n is not None]
    return min(known, default=UNLIMITED)
