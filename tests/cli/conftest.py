"""`shell` runs the real command in a process of its own; `run` calls `main` here, which spares the import of torch."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ctxmix_hf.cli import main

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def environment(**extra: str) -> dict[str, str]:
    kept = {
        key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")
    }
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **extra}


@pytest.fixture(scope="session")
def shell() -> Callable[..., Result]:
    def run(*args: str, stdin: str | None = None, cwd: Path | None = None, **env: str) -> Result:
        given: dict[str, Any] = (
            {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
        )
        done = subprocess.run(
            [sys.executable, "-m", "ctxmix_hf", *args],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=cwd,
            env=environment(**env),
            **given,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Result]]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))

    def call(*args: str) -> Result:
        capsys.readouterr()
        code = main(list(args))
        said = capsys.readouterr()
        return Result(code, said.out, said.err)

    with warnings.catch_warnings():
        yield call
