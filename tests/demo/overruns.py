"""What a hostile request might do inside a worker process."""

from __future__ import annotations

import importlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import StoreError


def say(text: str) -> tuple[str, int]:
    return text, os.getpid()


def spin(seconds: float) -> str:
    """Busy, but Python: it can be told to stop."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    return "done"


def imports() -> str:
    """Stopped in the middle of an import."""
    importlib.import_module("tests.demo.slow_import")

    return "done"


def compiles() -> str:
    """Stopped in the middle of a compilation, as numba's frames show it."""
    exec(compile("spin(60)", "/site/numba/core/dispatcher.py", "exec"), {"spin": spin})
    return "done"


def deaf(seconds: float) -> str:
    """As a call that never comes back to Python: it must be killed."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a mask is one thread's: another would hear it
    return spin(seconds)


def eat(gigabytes: int) -> int:
    return len(bytearray(gigabytes << 30))


def die() -> None:
    os._exit(1)


def talk(megabytes: int) -> str:
    return "x" * (megabytes * 1_000_000)


def tell() -> None:
    raise StoreError(
        "The file /home/owner/secrets/maps.json is damaged; see https://example.org/a/b and me/maps."
    )


def stumble() -> None:
    raise KeyError("/home/owner/secrets")


def where() -> Any:
    return [str(path) for path in Path.cwd().iterdir()]


def note(path: str, seconds: float = 0.0) -> str:
    """Leaves a mark, so that a test sees whether it was computed."""
    with Path(path).open("a") as file:
        file.write("x")
    return spin(seconds)
