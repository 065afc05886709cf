"""A writer that is killed, at any moment: what was added is there, and going on gives the bytes of
a run that was never killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ctxmix_hf.hub.folders import INDEX
from ctxmix_hf.hub.store import MapStore
from tests.alone import alone

from .conftest import ROOT
from .synthetic import add_number, contents, manifest, some_maps

BATCHES = 9


def write(path: Path, acknowledge: Callable[[int], None] = lambda number: None) -> None:
    """Write a store, or go on with one: batches that are there already are left out."""
    store = (
        MapStore.open(path, append=True)
        if (path / "ctxmix.json").exists()
        else MapStore.from_manifest(path, manifest())
    )
    with store:
        for number in range(BATCHES):
            if f"{number}a" not in store:
                add_number(store, number)
            acknowledge(number)
            if number == 4:  # close and go on in the middle of a run
                store.close()
                store = MapStore.open(path, append=True)
    store.close()


def check(path: Path, acknowledged: int) -> None:
    """Everything that was acknowledged is readable and right; nothing is there by half."""
    store = MapStore.open(path)
    for number in range(BATCHES):
        there = [f"{number}{letter}" in store for letter in "ab"]
        assert there in ([True, True], [False, False]) and (all(there) or number >= acknowledged)
        if all(there):
            fresh = some_maps(number)
            for key in store.methods:
                assert torch.equal(store[f"{number}b", key].layers, fresh[key][1].layers)


class Kill:
    """Counts what touches the disk and ends the process, without any tidying up, at the n-th."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.lock = (
            threading.RLock()
        )  # one step after another, also where threads write side by side

    def stop(self) -> None:
        os._exit(9)

    def wrap(self, function: Callable[..., Any], torn: bool = False) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.lock:
                self.left -= 1
                if self.left == 0:
                    if torn:  # half of the bytes reach the file
                        function(args[0], memoryview(args[1])[: len(args[1]) // 2])
                    self.stop()
                return function(*args, **kwargs)

        return wrapped


def killed_run(path: Path, at: int, log: Path) -> bool:
    """A forked writer that dies at its `at`-th step on the disk; False if it lived to the end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            kill = Kill(at)
            os.write = kill.wrap(os.write, torn=True)  # type: ignore[assignment]
            os.truncate = kill.wrap(os.truncate)  # type: ignore[assignment]
            Path.replace = kill.wrap(Path.replace)  # type: ignore[method-assign]
            Path.unlink = kill.wrap(Path.unlink)  # type: ignore[method-assign]
            write(path, lambda number: log.write_text(str(number + 1)) and None)
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="needs fork; the test below kills a real process everywhere"
)
def test_killed_at_every_step(tmp_path: Path) -> None:
    alone(killed_at_every_step, tmp_path)


def killed_at_every_step(tmp_path: Path) -> None:
    write(tmp_path / "whole")
    expected, at, points = contents(tmp_path / "whole"), 1, 0
    while True:
        path, log = tmp_path / f"killed{at}", tmp_path / "log"
        log.write_text("0")
        if not killed_run(path, at, log):
            break
        if (path / "ctxmix.json").exists():
            check(path, int(log.read_text()))
        write(path)
        assert contents(path) == expected, f"killed at step {at}"
        points, at = points + 1, at + (1 if at < 8 or at > 28 else 5)
    assert points > 40


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="needs fork; the test below kills a real process everywhere"
)
def test_killed_again_and_again(tmp_path: Path) -> None:
    alone(killed_again_and_again, tmp_path)


def killed_again_and_again(tmp_path: Path) -> None:
    write(tmp_path / "whole")
    path, log = tmp_path / "killed", tmp_path / "log"
    log.write_text("0")
    at, kills = 11, 0
    while killed_run(path, at, log):
        check(path, int(log.read_text()))
        at, kills = at + 2, kills + 1
    assert kills > 3 and contents(path) == contents(tmp_path / "whole")


def test_sigkill_of_a_real_process(tmp_path: Path) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.hub.synthetic import add_number, manifest
from ctxmix_hf.hub.store import MapStore
store = MapStore.from_manifest(Path({str(tmp_path / "m")!r}), manifest())
for number in range(100_000):
    add_number(store, number)
    print(number, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 30:
                break
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        last = max([30, *(int(line) for line in process.stdout.read().split())])
    store = MapStore.open(tmp_path / "m")
    assert len(store) >= 2 * last
    for number in range(last + 1):
        assert torch.equal(store[f"{number}a", "alti"].layers, some_maps(number)["alti"][0].layers)
    with MapStore.open(tmp_path / "m", append=True) as store:  # the dead writer's lock is free
        add_number(store, 200_000)
    MapStore.open(tmp_path / "m").verify()


def test_torn_last_line_and_lost_data_are_forgotten(tmp_path: Path) -> None:
    """After a power cut the index can be ahead of the data."""
    path = tmp_path / "m"
    with pytest.raises(KeyboardInterrupt), MapStore.from_manifest(path, manifest(1 << 20)) as store:
        for number in range(5):
            add_number(store, number)
        raise KeyboardInterrupt
    with (path / INDEX).open("ab") as file:
        file.write(b'[{"id":"torn","split')
    assert len(MapStore.open(path)) == 10
    pending = path / "pending/alti-00000.safetensors"
    os.truncate(pending, pending.stat().st_size - 10)
    with MapStore.open(path, append=True) as store:
        add_number(store, 7)
        assert store.ids() == [f"{n}{letter}" for n in (0, 1, 2, 3, 7) for letter in "ab"]
    MapStore.open(path).verify()


def test_an_error_in_the_middle_leaves_the_batches_before(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        MapStore.from_manifest(tmp_path / "m", manifest()) as store,
    ):
        add_number(store, 0)
        raise ZeroDivisionError
    with MapStore.open(tmp_path / "m", append=True) as store:
        assert store.ids() == ["0a", "0b"]
