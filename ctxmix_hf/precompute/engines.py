"""Who works off the tasks: this process, several processes, or Ray. All of them yield the numbers of finished tasks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from ctxmix_hf.errors import StoreError
from ctxmix_hf.precompute.job import Job
from ctxmix_hf.precompute.work import TaskWorker

Engine = Callable[[Job, Sequence[int]], Iterator[int]]
ATTEMPTS = 3
AHEAD = 2  # tasks waiting per worker
STARTING = 8.0  # seconds until new processes have imported what this one has, side by side


def worth_sharing(job: Job, tasks: int, seconds_left: float, loading: float) -> bool:
    """Would processes that begin now be done with the `tasks` that are left before this one, which needs `seconds_left`
    for them? `loading` is what a model takes to load.
    """
    cores = (os.cpu_count() or 1) if job.device == "cpu" else job.workers
    hands = min(job.workers, cores, tasks)
    return STARTING + loading + seconds_left / max(hands, 1) < seconds_left


def processes(job: Job, numbers: Sequence[int]) -> Iterator[int]:
    """Tasks in `job.workers` processes; those of a process that died are given out again."""
    left, tries = list(numbers), Counter[int]()
    others = set(multiprocessing.active_children())
    while left:
        with _pool(job, min(job.workers, len(left))) as pool:
            try:
                for number in _finished(pool, left, job.workers):
                    left.remove(number)
                    yield number
            except BrokenProcessPool:
                tries[left[0]] += 1
                if tries[left[0]] >= ATTEMPTS:
                    raise StoreError(
                        f"Workers died {ATTEMPTS} times near task {left[0]}: out of memory? Try a "
                        "smaller --token-budget."
                    ) from None
            except BaseException:  # Ctrl-C too: what is begun is continued by the next run
                pool.shutdown(wait=False, cancel_futures=True)
                for child in set(multiprocessing.active_children()) - others:
                    child.terminate()
                raise


def _pool(job: Job, count: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(
        count, context, initializer=_begin, initargs=(job, context.Value("i", 0), os.getpid())
    )


def _finished(pool: ProcessPoolExecutor, numbers: list[int], workers: int) -> Iterator[int]:
    queue = iter(list(numbers))
    running: set[Future[int]] = set()
    while True:
        for number in queue:
            running.add(pool.submit(_work, number))
            if len(running) >= workers * AHEAD:
                break
        if not running:
            return
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


_WORKER: TaskWorker | None = None


def _begin(job: Job, counter: Any, parent: int) -> None:
    """In a new process: load the model once, on a device of its own, and end when the parent does."""
    global _WORKER
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    with counter.get_lock():
        place = counter.value
        counter.value += 1
    _WORKER = TaskWorker.begin(job, device_of(job.device, place))


def _watch(parent: int) -> None:
    """A killed parent leaves no orphans."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def device_of(device: str, place: int) -> str:
    """`cuda` with several GPUs: one worker per GPU, in turn."""
    if device == "cuda" and torch.cuda.device_count() > 1:
        return f"cuda:{place % torch.cuda.device_count()}"
    return device


def _work(number: int) -> int:
    assert _WORKER is not None
    return _WORKER.make_part(number)
