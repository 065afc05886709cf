"""Several files at a time: hashing and writing leave Python alone, so threads gain there."""

from __future__ import annotations

import time
from _thread import start_new_thread
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")
MOST = 4  # threads


def side_by_side(function: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
    """`[function(item) for item in items]`. When this returns or raises, none of it still runs.

    That holds for Ctrl-C too, which is why no executor does this: a `Future` and a `Thread` take
    locks in Python code, an interrupt just behind such a line leaves the lock taken, and then both
    the thread and whoever joins it wait for ever. A `SimpleQueue` cannot be split by an interrupt,
    and threads other than the first are never interrupted.
    """
    if len(items) < 2:
        return [function(item) for item in items]
    waiting, ended = SimpleQueue[int](), SimpleQueue[int]()
    made: dict[int, Made] = {}
    failed: dict[int, BaseException] = {}

    def work() -> None:
        with suppress(Empty):
            while True:
                i = waiting.get_nowait()
                try:
                    made[i] = function(items[i])
                except BaseException as error:
                    failed[i] = error
                ended.put(i)

    for i in range(len(items)):
        waiting.put(i)
    try:
        for _ in range(min(MOST, len(items))):
            start_new_thread(work, ())
        for _ in items:
            ended.get()
    except BaseException:
        unbegun = 0
        with suppress(Empty):
            while True:
                waiting.get_nowait()
                unbegun += 1
        while len(made) + len(failed) + unbegun < len(items):
            time.sleep(0.001)
        raise
    if failed:
        raise failed[min(failed)]
    return [made[i] for i in range(len(items))]
