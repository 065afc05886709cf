"""What an output folder knows of its run, in `run/` beside the store's own files.

options.json    what decides the bytes                    plan.json      rows, digest of the data, tasks: written last
tasks/000000.json   batches of ids and texts              parts/000000/  a worker's store of one task, until it is taken in
failed.jsonl    rows that failed in the model             skipped.jsonl  every row left out, with its id and why
"""  # noqa: E501

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import StoreError
from ctxmix_hf.hub.folders import canonical, digest, disk_errors, file_digest, write_atomic
from ctxmix_hf.precompute.plan import Batch


@dataclass(frozen=True)
class Plan:
    """The result of planning."""

    rows: int
    digest: str
    tasks: int
    examples: int
    tokens: int
    truncated: int
    skipped: list[list[str]]
    checksum: str = ""  # of the tasks


@dataclass(frozen=True)
class Folder:
    """Paths and small files of a run."""

    root: Path

    @property
    def run(self) -> Path:
        return self.root / "run"

    @contextmanager
    def errors(self) -> Iterator[None]:
        """No space, no permission: one line."""
        with disk_errors(self.root):
            yield

    # ---- options and plan ----------------------------------------------------------------------------------------
    def check_options(self, identity: dict[str, Any]) -> None:
        """The options of the first run are the options of every run."""
        path = self.run / "options.json"
        now = json.loads(canonical(identity))
        if not path.exists():
            with self.errors():
                write_atomic(path, canonical(now))
            return
        then = _read_object(path)
        gaps = [
            f"{key} was {then.get(key)!r}, now {now.get(key)!r}"
            for key in {**then, **now}
            if then.get(key) != now.get(key)
        ]
        if gaps:
            raise StoreError(
                f"The folder {self.root.name!r} was begun with other options: {'; '.join(gaps)}. "
                "Use them again, or another --out."
            )

    def load_plan(self) -> Plan | None:
        path = self.run / "plan.json"
        if not path.exists():
            return None
        numbers = ("rows", "tasks", "examples", "tokens", "truncated")
        kinds = {**dict.fromkeys(numbers, int), "digest": str, "skipped": list, "checksum": str}
        body = {"checksum": "", **_read_object(path)}
        if set(body) != set(kinds) or any(
            type(body[name]) is not kind for name, kind in kinds.items()
        ):
            raise _damaged(path)
        return Plan(**body)

    def save_plan(self, plan: Plan) -> None:
        with self.errors():
            write_atomic(self.run / "plan.json", canonical(asdict(plan)))

    # ---- tasks and parts -----------------------------------------------------------------------------------------
    def task_file(self, number: int) -> Path:
        return self.run / "tasks" / f"{number:06d}.json"

    def part(self, number: int) -> Path:
        return self.run / "parts" / f"{number:06d}"

    def pid_file(self, number: int) -> Path:
        """Who works on a task: host and process."""
        return self.run / "parts" / f"{number:06d}.pid"

    def failures_file(self, number: int) -> Path:
        return self.run / "parts" / f"{number:06d}.failed.json"

    def write_task(self, number: int, batches: list[Batch]) -> None:
        with self.errors():
            write_atomic(
                self.task_file(number), json.dumps(batches, ensure_ascii=False, default=str)
            )

    def read_task(self, number: int) -> list[Batch]:
        path = self.task_file(number)
        try:
            return [
                [
                    (name, tuple(text) if isinstance(text, list) else text, label)
                    for name, text, label in batch
                ]
                for batch in _read(path)
            ]
        except (TypeError, ValueError) as error:
            raise _damaged(path) from error

    def tasks_checksum(self, count: int) -> str:
        """One hash of all tasks; empty where one is missing."""
        paths = [self.task_file(number) for number in range(count)]
        return (
            digest([file_digest(path) for path in paths])
            if all(path.is_file() for path in paths)
            else ""
        )

    def read_failures(self, number: int) -> dict[str, str]:
        """Rows of a worker's task that failed in the model."""
        path = self.failures_file(number)
        return _read_object(path) if path.exists() else {}

    def clear(self, *what: str) -> None:
        for name in what:
            shutil.rmtree(self.run / name, ignore_errors=True)

    # ---- rows that were left out ---------------------------------------------------------------------------------
    def failures(self) -> dict[str, str]:
        path = self.run / "failed.jsonl"
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        found = (_maybe(line) for line in lines if line)
        return {
            str(row["id"]): str(row["why"])
            for row in found
            if isinstance(row, dict) and {"id", "why"} <= set(row)
        }

    def add_failures(self, found: Iterable[tuple[str, str]]) -> None:
        lines = "".join(_line(name, why) for name, why in found)
        if lines:
            with self.errors(), (self.run / "failed.jsonl").open("ab") as file:
                file.write(
                    b"\n" + lines.encode()
                )  # a new line first: a kill may have left half of one

    def write_skipped(self, found: Iterable[tuple[str, str]]) -> Path:
        path = self.run / "skipped.jsonl"
        with self.errors():
            write_atomic(path, "".join(_line(name, why) for name, why in found))
        return path


def _line(name: str, why: str) -> str:
    return json.dumps({"id": name, "why": why}, ensure_ascii=False) + "\n"


def _maybe(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # a kill or a bad disk may have left half of a line
        return None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path) from error


def _read_object(path: Path) -> dict[str, Any]:
    body = _read(path)
    if not isinstance(body, dict):
        raise _damaged(path)
    return body


def _damaged(path: Path) -> StoreError:
    return StoreError(
        f"{path.name} of the run in {path.parent.parent.name!r} is damaged: delete the folder and begin again."
    )
