"""Running over sentences: a progress bar where somebody watches, and results kept so that a killed run goes on."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from ctxmix_hf.errors import StoreError

Item = TypeVar("Item")
Result = dict[str, Any]
VERSION = 1  # a change that moves numbers makes old partial results strangers


def watched(
    items: Iterable[Item], what: str, progress: bool | None, total: int | None = None
) -> Iterator[Item]:
    """The items, with a bar on stderr: always (True), never (False), or where stderr is a terminal (None)."""
    shown = sys.stderr.isatty() if progress is None else progress
    return iter(
        tqdm(items, desc=what, total=total, disable=not shown, file=sys.stderr, leave=False)
    )


def content_key(*parts: Any) -> str:
    return hashlib.sha256(
        json.dumps([VERSION, *parts], sort_keys=True, default=str).encode()
    ).hexdigest()[:24]


def rounded(values: Any) -> Any:
    """Nested lists of numbers with nine digits: what a float32 needs to come back from JSON as it was."""
    if isinstance(values, list | tuple):
        return [rounded(v) for v in values]
    return float(f"{float(values):.9g}")


class Store:
    """Results by key in `<folder>/<name>.jsonl`, one line each; without a folder, in memory only."""

    def __init__(self, folder: str | Path | None, name: str) -> None:
        self.path = None if folder is None else Path(folder) / f"{name}.jsonl"
        self.known: dict[str, Result] = {}
        if self.path is None:
            return
        if self.path.parent.exists() and not self.path.parent.is_dir():
            raise StoreError(f"resume={str(folder)!r} is a file; give a folder.")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_file():
            self._read(self.path)

    def _read(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8", errors="replace")
        whole = (
            text if text.endswith("\n") else text[: text.rfind("\n") + 1]
        )  # a killed run may leave half a line
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                entry = json.loads(line)
                self.known[entry["key"]] = entry["result"]
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise StoreError(
                    f"{path}, line {number} is not a kept result; move the file away to start anew."
                ) from error

    def keep(self, results: dict[str, Result]) -> None:
        self.known.update(results)
        if self.path is not None:
            lines = "".join(
                json.dumps({"key": key, "result": result}) + "\n" for key, result in results.items()
            )
            with self.path.open("a", encoding="utf-8") as file:
                file.write(lines)

    def run(
        self,
        keys: Sequence[str],
        batches: Sequence[Sequence[int]],
        compute: Callable[[Sequence[int]], list[Result]],
        what: str,
        progress: bool | None,
    ) -> list[Result]:
        """One result per key. A batch of which anything is missing is computed whole, so that batches never change."""
        missing = [batch for batch in batches if any(keys[i] not in self.known for i in batch)]
        for batch in watched(missing, what, progress):
            made = compute(batch)
            self.keep(
                {
                    keys[i]: json.loads(json.dumps(result))
                    for i, result in zip(batch, made, strict=True)
                }
            )
        return [self.known[key] for key in keys]
