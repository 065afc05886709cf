"""A test's body in a process, or a loop, of its own.

Where a test forks, the process it forks must have one thread: in a test worker, the threads of
earlier tests may hold a lock, and the child would wait for it for ever.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCRIPT = """
import importlib, sys, torch
from pathlib import Path
torch.set_num_threads(1)
body = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
body(*(Path(value) if kind == "path" else int(value) for kind, value in zip(sys.argv[3::2], sys.argv[4::2])))
"""


def alone(body: Callable[..., Any], *arguments: Path | int, seconds: int = 300) -> None:
    """Call `body`, a function of a module, in a fresh interpreter; what it raises fails the test."""
    words = [
        word
        for value in arguments
        for word in (("path" if isinstance(value, Path) else "int"), str(value))
    ]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, body.__module__, body.__name__, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def awaited(task: Coroutine[Any, Any, Any]) -> None:
    """Run it in a thread of its own: where a browser test ran before, this one has playwright's loop."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, task).result()
