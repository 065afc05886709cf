"""Killed at any moment, run again: the bytes of a run that nothing interrupted, whichever engine made them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import environment
from tests.precompute.conftest import hashes

METHODS = ("alti", "norm_enc")
WAIT = 240


SHARED = """
import sys
from ctxmix_hf.cli import main
from ctxmix_hf.precompute import engines
engines.STARTING = -1e9  # so few sentences are not worth a second process
sys.exit(main())
"""


def start(corpus: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    """The real command; what it says goes to a file beside `out`. Several workers are started for certain."""
    command = [
        "precompute",
        "--dataset",
        str(corpus),
        "--methods",
        ",".join(METHODS),
        "--token-budget",
        "64",
        "--out",
        str(out),
        *options,
    ]
    with said(out).open("wb") as file:
        return subprocess.Popen(
            [
                sys.executable,
                *(["-c", SHARED] if "--workers" in options else ["-m", "ctxmix_hf"]),
                *command,
            ],
            env=environment(),
            stdout=file,
            stderr=file,
        )


def said(out: Path) -> Path:
    return out.with_suffix(".log")


def until(process: subprocess.Popen[bytes], out: Path, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not reached():
        assert process.poll() is None, said(out).read_text()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_sigkill_then_continue(corpus: Path, whole: Path, compute, tmp_path: Path) -> None:
    out = tmp_path / "maps"
    process = start(corpus, out)
    until(process, out, lambda: lines(out / "index.jsonl") >= 4)
    process.kill()
    process.wait()
    kept = lines(out / "index.jsonl")
    assert 4 <= kept < lines(whole / "index.jsonl")
    made = compute(dataset=str(corpus), methods=METHODS)
    assert 0 < made.computed < 150 and made.examples == 150
    assert hashes(out) == hashes(whole)


@pytest.mark.parametrize("moment", ["plan.json", "tasks/000000.json", "options.json"])
def test_killed_around_the_plan(
    moment: str, corpus: Path, whole: Path, compute, tmp_path: Path, monkeypatch
) -> None:
    """As if killed while (or right before) this file was written."""
    from ctxmix_hf.precompute import folder

    class Killed(BaseException): ...

    def stop(path: Path, text: str) -> None:
        if str(path).endswith(moment):
            raise Killed
        real(path, text)

    real = folder.write_atomic
    monkeypatch.setattr(folder, "write_atomic", stop)
    if moment.startswith("tasks"):
        monkeypatch.setattr(
            folder.Folder, "write_task", lambda *args: (_ for _ in ()).throw(Killed())
        )
    with pytest.raises(Killed):
        compute(dataset=str(corpus), methods=METHODS)
    monkeypatch.undo()
    compute(dataset=str(corpus), methods=METHODS)
    assert hashes(tmp_path / "maps") == hashes(whole)


@pytest.mark.slow
def test_processes_killed_one_and_all(corpus: Path, whole: Path, tmp_path: Path) -> None:
    """First the parent dies, then a worker of the next run."""
    out = tmp_path / "maps"
    process = start(corpus, out, "--workers", "2")
    until(process, out, lambda: any(lines(path) for path in out.glob("run/parts/*/index.jsonl")))
    process.kill()
    process.wait()
    process = start(corpus, out, "--workers", "2")
    victim = wait_for_worker(process, out)
    os.kill(victim, signal.SIGKILL)
    assert process.wait(WAIT) == 0, said(out).read_text()
    assert hashes(out) == hashes(whole)


@pytest.mark.slow
def test_ray_with_a_killed_worker(corpus: Path, whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    out = tmp_path / "maps"
    process = start(corpus, out, "--engine", "ray", "--workers", "2")
    victim = wait_for_worker(process, out)
    os.kill(victim, signal.SIGKILL)
    assert process.wait(WAIT) == 0, said(out).read_text()
    assert hashes(out) == hashes(whole)


@pytest.mark.slow
def test_ray_killed_then_continued(corpus: Path, whole: Path, compute, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    out = tmp_path / "maps"
    process = start(corpus, out, "--engine", "ray", "--workers", "2")
    wait_for_worker(process, out)
    process.kill()
    process.wait()
    time.sleep(2)  # Ray notices that its driver is gone
    compute(dataset=str(corpus), methods=METHODS)
    assert hashes(out) == hashes(whole)


def wait_for_worker(process: subprocess.Popen[bytes], out: Path) -> int:
    """The process of a worker that began a part in this run and is still alive."""
    born = time.time()
    found: list[int] = []

    def working() -> bool:
        for path in out.glob("run/parts/*.pid"):
            pid = int(
                path.read_text().split()[1]
                if path.stat().st_mtime > born - 1 and path.read_text().strip()
                else 0
            )
            part = path.with_suffix("")
            if (
                pid
                and lines(part / "index.jsonl")
                and (part / "pending").exists()
                and Path(f"/proc/{pid}").exists()
            ):
                found.append(pid)
                return True
        return False

    until(process, out, working)
    return found[0]
