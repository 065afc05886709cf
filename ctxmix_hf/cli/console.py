"""What a command says and where: results on stdout, progress and errors on stderr, progress only on a terminal."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import CtxmixError
from ctxmix_hf.text.columns import aligned


@dataclass
class Console:
    """Where a command prints."""

    debug: bool = False
    as_json: bool = False
    _drawn: float = field(default=0.0, repr=False)

    def say(self, text: str) -> None:
        print(text)

    def data(self, value: Any) -> None:
        """A result for machines."""
        print(json.dumps(value, ensure_ascii=False, indent=1, default=str))

    def note(self, text: str) -> None:
        """For people who watch: only on a terminal."""
        if sys.stderr.isatty():
            print(text, file=sys.stderr)

    def progress(self, text: str, last: bool = False) -> None:
        """One line that is redrawn at most ten times a second."""
        if sys.stderr.isatty() and (last or time.monotonic() - self._drawn > 0.1):
            self._drawn = time.monotonic()
            print(f"\r\x1b[2K{text}", end="\n" if last else "", file=sys.stderr, flush=True)

    def error(self, text: str) -> None:
        print(f"ctxmix: {one_line(text)}", file=sys.stderr)

    def failed(self, text: str, error: BaseException, code: int) -> int:
        """One line; with --debug the whole traceback before it."""
        if self.debug:
            traceback.print_exception(error)
        self.error(
            text
            if self.debug or isinstance(error, CtxmixError)
            else f"{text} (--debug shows where)"
        )
        return code


def one_line(text: str) -> str:
    return " ".join(text.split())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be; the last one runs free."""
    return "\n".join(aligned([head, *rows], rule=60))


def write_out(path: str, content: str | bytes) -> None:
    """A result file, with its folder."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        target.write_bytes(content)
    else:
        target.write_text(content, encoding="utf-8")
