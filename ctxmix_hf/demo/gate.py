"""The gate in front of every function of the page: who may go in, in what order, and who is stopped.

A visitor's request is computed in a worker process (`worker.py`), never in the server. Before that
it waits for its turn: visitors who have used little time lately go first, none holds all the
workers, each may have a few requests at a time. Where there are several visitors, who has used much,
or asked for something long, is computed in the slow lane for a while, a worker that leaves the
processor to everybody else; so is who left in the middle of an answer, for stopping it may cost the
worker. A request nobody listens to any more is not computed; one that overruns its time is stopped,
and killed if it does not stop.
"""

from __future__ import annotations

import atexit
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ctxmix_hf import errors
from ctxmix_hf.demo.settings import READY, SETTINGS, hide_paths
from ctxmix_hf.demo.zero import lent
from ctxmix_hf.errors import RefusedError

PATIENCE = 10.0  # seconds a request may wait for its client to listen
LOST = 2.0  # seconds a client that listened may be away
GRACE = 2.0  # seconds a stopped request has to end by itself
HEAVY = 10.0  # seconds of computing lately, from which on a visitor leaves a worker to the others
LONG = 1.0  # seconds of one answer, from which on a visitor does so too
HALF = 30.0  # seconds after which half of it is forgotten
NICE = 10  # by how much the slow lane yields: a tenth of the processor where others want it
START = 120.0  # seconds a worker may take to start
WAIT = 180.0  # seconds a request may wait for its turn


class Overtaken(RefusedError):
    """No answer: a newer request for the same part of the page took this one's place."""


class Listeners:
    """Which sessions have a connection open through which an answer would reach them; told by `door.Door`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.told = False  # without the door nobody is known to listen, so nobody is taken for gone
        self._open, self._last = Counter[str](), dict[str, float]()

    def come(self, key: str) -> None:
        with self.changed:
            self._open[key] += 1
            self.changed.notify_all()

    def go(self, key: str) -> None:
        with self.changed:
            self._open[key] -= 1
            if self._open[key] <= 0:
                del self._open[key]
                now = time.monotonic()
                self._last = {k: at for k, at in self._last.items() if now - at < 60} | {key: now}

    def here(self, keys: tuple[str, ...]) -> bool:
        return not self.told or not keys or any(key in self._open for key in keys)

    def last(self, keys: tuple[str, ...]) -> float:
        return max((self._last.get(key, 0.0) for key in keys), default=0.0)


LISTENERS = Listeners()


def named(args: tuple[Any, ...]) -> frozenset[str]:
    return frozenset(given for given in args if isinstance(given, str) and len(given) < 200)


@dataclass(eq=False)
class Task:
    """One request: whose it is, and under which names its client would listen."""

    visitor: str
    keys: tuple[str, ...] = ()  # the session first
    names: frozenset[str] = (
        frozenset()
    )  # what it names: a worker that was asked about the same holds it already
    slot: str = ""  # the part of the page it is for: a newer request for the same part replaces it
    order: int = 0  # the page's own count of its requests: they may arrive in another order
    replaced: bool = False
    asked: float = field(default_factory=time.monotonic)
    begun: float = 0.0
    worker: Worker | None = None

    def gone(self) -> bool:
        if self.replaced:
            return True
        if LISTENERS.here(self.keys):
            return False
        now, last = time.monotonic(), LISTENERS.last(self.keys)
        return now - last > LOST if last > self.asked else now - self.asked > PATIENCE


class Worker:
    """A worker process, started when it is first needed and again after it was killed; on ZeroGPU a turn to borrow one.

    Requests, greetings and whoever hands out turns do that from several threads: one at a time.
    """

    def __init__(self, slow: bool = False) -> None:
        self.slow = slow  # yields the processor to whatever else runs here
        self.process: subprocess.Popen[bytes] | None = None
        self.lent = lent()
        self.folder: str | None = None
        self.closed = False
        self._changing = threading.RLock()
        self.ready, self.names = (
            False,
            set[str](),
        )  # names it was asked about: models and stores it probably holds

    def start(self) -> None:
        with self._changing:
            if self.closed or (self.process is not None and self.process.poll() is None):
                return
            if self.lent is not None:
                self.ready = True
                return
            self._discard()
            ours, theirs = socket.socketpair()
            source = str(Path(errors.__file__).parents[1])
            env = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))),
            }
            cores = max(1, (os.cpu_count() or 1) // SETTINGS.concurrency)
            numbers = (
                theirs.fileno(),
                SETTINGS.process_megabytes,
                SETTINGS.answer_megabytes * 1_000_000,
                cores,
                NICE if self.slow else 0,
            )
            # where paths are not allowed it stands in an empty folder, so that no name is a relative path there
            self.folder = folder = (
                None if SETTINGS.local_paths else tempfile.mkdtemp(prefix="ctxmix-worker-")
            )
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "ctxmix_hf.demo.worker", *map(str, numbers)],
                    pass_fds=[theirs.fileno()],
                    env=env,
                    cwd=folder,
                )
            self.connection, self.ready, self.names = Connection(ours.detach()), False, set()
            threading.Thread(
                target=self._greet, args=(self.process, self.connection), daemon=True
            ).start()

    def _greet(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        """Nobody is sent to a worker that is still starting."""
        try:
            ready = connection.poll(START) and connection.recv_bytes() == READY
        except (EOFError, OSError):
            ready = False
        with self._changing:
            if self.process is process:  # not a successor, who has a greeting of its own
                self.ready = ready
                if not ready:
                    self._discard()
        with LISTENERS.changed:
            LISTENERS.changed.notify_all()

    def kill(self) -> None:
        with self._changing:
            self._discard()

    def close(self) -> None:
        """For good."""
        with self._changing:
            self.closed = True
            self._discard()

    def _discard(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.connection.close()
            self.process, self.ready = None, False
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)

    def ask(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        gone: Callable[[], bool],
    ) -> Any:
        """The function's value, computed there; an error of ours is raised here as it was there."""
        self.names |= named(args)
        asked, why = pickle.dumps((function.__module__, function.__qualname__, args, kwargs)), ""
        try:
            if self.lent is not None:
                made = self.lent(asked, SETTINGS.answer_megabytes * 1_000_000)
            else:
                connection = self.connection  # this process's: a successor has another
                connection.send_bytes(asked)
                why = self._wait(connection, gone)
                made = connection.recv_bytes()
            kind, *rest = pickle.loads(made)
        except (EOFError, OSError) as error:
            self.kill()
            self.start()
            raise RefusedError(
                "The process that computed this ended, probably for want of memory. Choose a "
                "smaller model or a shorter text."
            ) from error
        except RefusedError:
            self.kill()
            self.start()
            raise
        if kind == "stopped":
            if rest[0]:
                self.kill()
                self.start()
            raise RefusedError(why or OVERRUN)
        if kind == "error":
            raise getattr(errors, rest[0])(hide_paths(rest[1]))
        return rest[0]

    def _wait(self, connection: Connection, gone: Callable[[], bool]) -> str:
        """Until there is an answer. What overruns or has no listener any more is told to stop, then killed."""
        until, why = time.monotonic() + SETTINGS.kill, ""
        while not connection.poll(0.1):
            why = (
                OVERRUN
                if time.monotonic() > until
                else "Nobody waited for the answer any more."
                if gone()
                else ""
            )
            if why:
                with self._changing:
                    if self.process is not None:
                        self.process.send_signal(signal.SIGUSR1)
                if not connection.poll(GRACE):
                    raise RefusedError(why)
                break
        return why


OVERRUN = (
    f"This took longer than {SETTINGS.kill} s and was stopped. Choose a quicker method, a "
    "smaller model or a shorter text."
)


class Gate:
    """Turns and workers. Per visitor `computed` counts what was begun, and `stopped` what of it nobody listened to any
    more; `dropped` is what was not even begun.
    """

    def __init__(self, size: int) -> None:
        self.workers = [Worker(slow=0 < number == size - 1) for number in range(size)]
        self.waiting: list[Task] = []
        self.running: list[Task] = []
        self.computed, self.stopped, self.dropped = Counter[str](), Counter[str](), 0
        self._spent: dict[str, tuple[float, float]] = {}  # visitor -> (seconds, when that was)
        self._ended: dict[tuple[str, str], int] = {}  # (page, part of it) -> last request stopped
        self._changed = LISTENERS.changed
        atexit.register(self.close)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    def run(
        self,
        task: Task,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        try:
            with self._turn(task) as worker:
                return worker.ask(function, args, kwargs, task.gone)
        except RefusedError as error:
            if task.replaced:
                raise Overtaken(str(error)) from error
            if task.begun and task.gone():
                with self._changed:
                    self.stopped[task.visitor] += 1
            raise

    def replace(
        self, slot: str, keys: tuple[str, ...], by: Task | None = None, order: int | None = None
    ) -> int:
        """What this page still computes for that part of it is not wanted any more; how much that was.
        Of two requests the one the page asked last stays, whichever came first. With `order` it is what
        was asked up to that number, also where it is yet to come.
        """
        with self._changed:
            page = (slot, keys[0] if keys else "")
            if by is None and order and keys:
                last = max(order, self._ended.pop(page, 0))
                self._ended = dict([*self._ended.items(), (page, last)][-1000:])
            same = [
                task
                for task in (*self.waiting, *self.running)
                if slot and task.slot == slot and task.keys[:1] == keys[:1] and keys
            ]
            until = order if by is None else by.order
            old = [task for task in same if until is None or task.order <= until]
            for task in old:
                task.replaced = True
            if by is not None and (
                len(old) < len(same) or 0 < by.order <= self._ended.get(page, 0)
            ):
                by.replaced = True
            self._changed.notify_all()
        return len(old)

    @contextmanager
    def _turn(self, task: Task) -> Iterator[Worker]:
        self.replace(task.slot, task.keys, task)
        with self._changed:
            mine = sum(other.visitor == task.visitor for other in (*self.waiting, *self.running))
            if mine >= SETTINGS.per_visitor:
                raise RefusedError(
                    f"You have {mine} requests under way here already. Wait for one of them, then ask again."
                )
            if len(self.waiting) >= SETTINGS.queue:
                raise RefusedError(
                    f"{len(self.waiting)} requests are waiting here already. Try again in a minute."
                )
            self.waiting.append(task)
            try:
                while task.worker is None:
                    self._hand_out()
                    if task.worker is None:
                        if task.gone():
                            self.dropped += 1
                            raise RefusedError(
                                "Nobody waited for the answer any more, so it was not computed."
                            )
                        if time.monotonic() - task.asked > WAIT:
                            raise RefusedError(
                                "The server has been too busy for this request. Try again in a minute."
                            )
                        self._changed.wait(0.25)
            finally:
                if task in self.waiting:
                    self.waiting.remove(task)
        try:
            yield task.worker
        finally:
            with self._changed:
                self.running.remove(task)
                now = time.monotonic()
                seconds = now - task.begun
                left = task.gone() and not task.replaced
                if left or seconds > (4 * LONG if task.worker.slow else LONG):
                    seconds += HEAVY
                self._spent[task.visitor] = (self.spent(task.visitor) + seconds, now)
                self._spent = {
                    who: row
                    for who, row in self._spent.items()
                    if time.monotonic() - row[1] < 20 * HALF
                }
                self.computed, self.stopped = (
                    Counter({who: count for who, count in counts.items() if who in self._spent})
                    for counts in (self.computed, self.stopped)
                )
                self._changed.notify_all()

    def spent(self, visitor: str) -> float:
        """Seconds computed for this visitor lately, what is running included."""
        now = time.monotonic()
        seconds, when = self._spent.get(visitor, (0.0, now))
        return seconds * 0.5 ** ((now - when) / HALF) + sum(
            now - task.begun for task in self.running if task.visitor == visitor
        )

    def _hand_out(self) -> None:
        """Give free workers to those whose turn it is; called with the lock held."""
        most = SETTINGS.workers_per_visitor  # and for all the heavy ones together
        busy = {id(task.worker) for task in self.running}
        for worker in self.workers:
            if id(worker) not in busy:  # its request sees itself when it ends
                worker.start()  # those that never ran, or ended
        while True:
            busy = {id(task.worker) for task in self.running}
            free = [worker for worker in self.workers if id(worker) not in busy and worker.ready]
            runs = Counter(task.visitor for task in self.running)
            here = {task.visitor for task in (*self.waiting, *self.running)}
            now = time.monotonic()
            crowd = here | {who for who, (_, when) in self._spent.items() if now - when < HALF}
            heavy = {who for who in here if len(crowd) > 1 and self.spent(who) > HEAVY}
            ready_workers = sum(worker.ready for worker in self.workers)
            full = (
                sum(task.visitor in heavy for task in self.running) >= most
                or ready_workers == 1 < len(self.workers)  # the last one, while another starts
            )
            lane = [worker for worker in free if worker.slow or most >= len(self.workers)]
            begun = {
                key for task in self.running for key in task.keys[:1]
            }  # one page gets its answers in the order it asked
            first = {key: task for task in reversed(self.waiting) for key in task.keys[:1]}
            ready = [
                task
                for task in self.waiting
                if LISTENERS.here(task.keys)
                and runs[task.visitor] < most
                and not (task.visitor in heavy and (full or not lane))
                and not begun.intersection(task.keys[:1])
                and all(first[key] is task for key in task.keys[:1])
            ]
            if not free or not ready:
                return
            task = min(
                ready,
                key=lambda task: (
                    task.visitor in heavy,
                    runs[task.visitor],
                    self.spent(task.visitor),
                    task.asked,
                ),
            )
            task.worker = max(
                lane if task.visitor in heavy else free,
                key=lambda worker: (len(worker.names & task.names), not worker.slow),
            )
            task.begun = time.monotonic()
            self.waiting.remove(task)
            self.running.append(task)
            self.computed[task.visitor] += 1
            self._changed.notify_all()


# made by `start.launch`; without it, as in a worker, functions are simply called
GATE: Gate | None = None


def open_gate() -> Gate:
    global GATE
    GATE = GATE or Gate(SETTINGS.concurrency)
    return GATE


def visitor_of(host: str, forwarded: str) -> str:
    """Who asks: the address, or where proxies of ours stand in between, the one the outermost of them saw."""
    hops = [hop.strip() for hop in forwarded.split(",") if hop.strip()]
    return hops[-SETTINGS.proxies] if 0 < SETTINGS.proxies <= len(hops) else host


def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)` behind the gate, for the visitor whose request this thread is answering."""
    return _run("", function, args, kwargs)


def latest(slot: str, function: Callable[..., Any], *args: Any, order: Any = "") -> Any:
    """The same for one part of the page: what was asked for it before is stopped, its answer would come
    too late (`Overtaken`). `order` is the number the page gave this request.
    """
    return _run(slot, function, args, {}, _number(order))


def _number(order: Any) -> int:
    return int(order) if str(order).isascii() and str(order).isdecimal() else 0


def cancel(slot: str, order: Any = "") -> int:
    """Stop what this visitor's page computes for that part of it and asked up to that number."""
    from gradio.context import LocalContext

    request = LocalContext.request.get(None)  # without an event of its own: this is not queued
    session = None if request is None else request.session_hash
    if GATE is None or not session:
        return 0
    return GATE.replace(slot, (session,), order=_number(order))


def _visitor() -> tuple[str, tuple[str, ...]]:
    """Whose request this thread is answering, and under which names its client listens."""
    from gradio.context import LocalContext

    request, event = LocalContext.request.get(None), LocalContext.event_id.get(None)
    if request is None:
        return "the server itself", ()
    visitor = visitor_of(
        getattr(request.client, "host", ""), request.headers.get("x-forwarded-for", "")
    )
    return visitor, tuple(filter(None, (request.session_hash, event))) if event else ()


def _run(
    slot: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    order: int = 0,
) -> Any:
    if GATE is None or os.name != "posix":
        try:
            return function(*args, **kwargs)
        except errors.CtxmixError as error:
            raise type(error)(hide_paths(str(error))) from error
    visitor, keys = _visitor()
    return GATE.run(Task(visitor, keys, named(args), slot, order), function, args, kwargs)
