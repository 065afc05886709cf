"""Ctrl-C at every line of the store's own code: nothing waits for ever, nothing is lost, the next run goes on."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ctxmix_hf.hub import threads
from ctxmix_hf.hub.store import MapStore
from ctxmix_hf.hub.threads import side_by_side
from tests.alone import alone

from .synthetic import add_number, contents, manifest

HUB = str(Path(threads.__file__).parent)
BATCHES = 6  # enough for shards that fill up: they are finished on several threads


class Strike:
    """Raises at the `at`-th moment: a line of the store's code, or a lock of Python's just taken,
    before the `with` that would free it knows.
    """

    def __init__(self, at: int, lines: bool = True) -> None:
        self.left, self.lines = at, lines

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename == threading.__file__:
            return self._return if frame.f_code.co_name == "__enter__" else None
        return self._line if self.lines and frame.f_code.co_filename.startswith(HUB) else None

    def _line(self, _: FrameType, event: str, __: object) -> Any:
        self._count(event == "line")
        return self._line

    def _return(self, _: FrameType, event: str, __: object) -> Any:
        self._count(event == "return")
        return self._return

    def _count(self, moment: bool) -> None:
        self.left -= moment
        if moment and not self.left:
            sys.settrace(None)
            raise KeyboardInterrupt

    def during(self, call: Callable[[], object]) -> bool:
        """Whether it struck."""
        sys.settrace(self)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False


def write(path: Path) -> None:
    there = (path / "ctxmix.json").exists()
    opened = MapStore.open(path, append=True) if there else MapStore.from_manifest(path, manifest())
    with opened as store:
        for number in range(BATCHES):
            if f"{number}a" not in store:
                add_number(store, number)


def strike_everywhere(step: int) -> None:
    """Every `step`-th moment of a run, and the run again: the same files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "whole")
        whole, at = contents(folder / "whole"), 1
        while Strike(at).during(lambda: write(folder / str(at))):
            write(folder / str(at))
            assert contents(folder / str(at)) == whole, f"after a strike at moment {at}"
            at += step
        assert at > 5 * step, "it hardly ever struck"
        # no thread that waits for a lock nobody frees is left behind, and none to hold up the exit
        assert threading.active_count() == 1


def strike_at_locks() -> None:
    """With an executor, the second of these held up the program for ever."""
    with tempfile.TemporaryDirectory() as name:
        at = 1
        while Strike(at, lines=False).during(lambda: write(Path(name) / str(at))):
            write(Path(name) / str(at))
            at += 1
        MapStore.open(Path(name) / str(at)).verify()
        assert threading.active_count() == 1


def strike_while_reading(step: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        write(Path(name) / "maps")
        at = 1
        while Strike(at).during(lambda: MapStore.open(Path(name) / "maps").verify()):
            at += step
        MapStore.open(Path(name) / "maps").verify()
        assert at > 5 * step and threading.active_count() == 1


def test_an_interrupt_beside_a_lock_does_not_hang() -> None:
    alone(strike_at_locks, seconds=60)


@pytest.mark.parametrize("step", [401, pytest.param(61, marks=pytest.mark.slow)])
def test_a_writer_can_be_interrupted_at_every_line(step: int) -> None:
    alone(strike_everywhere, step, seconds=240)


@pytest.mark.slow
def test_verifying_can_be_interrupted_at_every_line() -> None:
    alone(strike_while_reading, 101, seconds=120)


def test_all_is_done_or_over_when_it_returns() -> None:
    assert side_by_side(str, range(9)) == [str(i) for i in range(9)]
    assert side_by_side(str, []) == [] and side_by_side(str, [3]) == ["3"]
    running: list[int] = []

    def fail(item: int) -> None:
        running.append(item)
        time.sleep(0.01)
        running.remove(item)
        if item in (2, 5):
            raise ValueError(item)

    with pytest.raises(ValueError, match="2"):
        side_by_side(fail, range(8))
    assert not running
