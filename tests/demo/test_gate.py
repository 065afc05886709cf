"""The gate: what overruns is stopped, what nobody waits for is not computed, nobody holds
everything, nothing of the server leaks.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ctxmix_hf.demo import gate, settings
from ctxmix_hf.demo.gate import Gate, Listeners, Task, Worker
from ctxmix_hf.errors import RefusedError, StoreError
from tests.demo import overruns

LIMITS = dataclasses.replace(
    settings.SETTINGS,
    kill=2,
    process_megabytes=3000,
    answer_megabytes=2,
    per_visitor=3,
    queue=6,
    concurrency=2,
)


@pytest.fixture(scope="module")
def two() -> Iterator[Gate]:
    """Two workers with small limits, as strangers meet them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "SETTINGS", LIMITS)
        patch.setenv(settings.HOST, "0.0.0.0")
        patch.setattr(gate, "GRACE", 1.0)
        made = Gate(2)
        made.start()
        ask(made, overruns.say, "hello")
        until = time.monotonic() + 120
        while not all(worker.ready for worker in made.workers) and time.monotonic() < until:
            time.sleep(0.1)
        yield made
        made.close()


def ask(
    made: Gate, function: Any, *args: Any, visitor: str = "somebody", keys: tuple[str, ...] = ()
) -> Any:
    return made.run(Task(visitor, keys), function, args, {})


def test_an_answer_comes_from_another_process(two: Gate) -> None:
    text, pid = ask(two, overruns.say, "hello")
    assert text == "hello" and pid in [
        worker.process.pid for worker in two.workers if worker.process
    ]


def test_what_overruns_is_stopped_and_the_worker_goes_on(two: Gate) -> None:
    before = ask(two, overruns.say, "a")[1]
    begun = time.monotonic()
    with pytest.raises(RefusedError, match="was stopped"):
        ask(two, overruns.spin, 60.0)
    assert time.monotonic() - begun < 30
    assert before in [
        worker.process.pid
        for worker in two.workers
        if worker.process and worker.process.poll() is None
    ]
    assert ask(two, overruns.say, "b")[0] == "b"


def test_what_does_not_stop_is_killed(two: Gate) -> None:
    before = {worker.process.pid for worker in two.workers if worker.process}
    with pytest.raises(RefusedError, match="was stopped"):
        ask(two, overruns.deaf, 300.0)
    after = {
        worker.process.pid
        for worker in two.workers
        if worker.process and worker.process.poll() is None
    }
    assert len(after) == 2 and len(after - before) == 1  # the killed one has a successor
    (killed,) = before - after
    assert not Path(f"/proc/{killed}").exists()
    assert ask(two, overruns.say, "b")[0] == "b"


@pytest.mark.parametrize("halfway", [overruns.imports, overruns.compiles])
def test_what_was_stopped_while_it_imported_or_compiled_is_started_anew(
    two: Gate, halfway: Any
) -> None:
    """A module or a compiled function that is there by half would fail every later request."""
    before = {worker.process.pid for worker in two.workers if worker.process}
    with pytest.raises(RefusedError, match="was stopped"):
        ask(two, halfway)
    assert len(before & {worker.process.pid for worker in two.workers if worker.process}) == 1


def test_memory_answers_and_deaths_are_limited_with_a_sentence(two: Gate) -> None:
    with pytest.raises(RefusedError, match="more memory than the server gives"):
        ask(two, overruns.eat, 8)
    with pytest.raises(RefusedError, match="would have 5 MB; this server sends at most 2"):
        ask(two, overruns.talk, 5)
    with pytest.raises(RefusedError, match="ended, probably for want of memory"):
        ask(two, overruns.die)
    assert ask(two, overruns.say, "still here")[0] == "still here"


def test_a_worker_that_dies_while_others_wait_is_replaced_once(
    two: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait start what has ended, at any moment: also just before the request that was
    there looks for its answer. That request must not take its successor's greeting for it.
    """
    real, before = Worker._wait, {worker.process.pid for worker in two.workers if worker.process}

    def overtaken(worker: Worker, *args: Any) -> str:
        why = real(worker, *args)
        with two._changed:
            two._hand_out()
        return why

    monkeypatch.setattr(Worker, "_wait", overtaken)
    with pytest.raises(RefusedError, match="ended, probably for want of memory"):
        ask(two, overruns.die)
    monkeypatch.undo()
    until = time.monotonic() + 60
    while not all(worker.ready for worker in two.workers) and time.monotonic() < until:
        time.sleep(0.05)
    after = {worker.process.pid for worker in two.workers if worker.process and worker.ready}
    assert len(after) == 2 and len(after & before) == 1
    assert ask(two, overruns.say, "x")[0] == "x"


def test_a_closed_gate_starts_nothing() -> None:
    """As a request does that sees its worker end while the server goes down."""
    made = Gate(1)
    made.close()
    made.start()
    assert made.workers[0].process is None


def test_errors_never_repeat_a_path_of_the_server(two: Gate) -> None:
    with pytest.raises(StoreError) as told:
        ask(two, overruns.tell)
    assert (
        str(told.value)
        == "The file (a path of the server) is damaged; see https://example.org/a/b and me/maps."
    )
    with pytest.raises(RefusedError, match="Something unexpected went wrong") as foreign:
        ask(two, overruns.stumble)
    assert "secrets" not in str(foreign.value)


def test_a_worker_for_strangers_stands_in_an_empty_folder(two: Gate) -> None:
    """So that no `a/b` is a relative path there."""
    assert ask(two, overruns.where) == []


@pytest.fixture
def listeners(monkeypatch: pytest.MonkeyPatch) -> Listeners:
    made = Listeners()
    made.told = True
    monkeypatch.setattr(gate, "LISTENERS", made)
    monkeypatch.setattr(gate, "PATIENCE", 1.0)
    monkeypatch.setattr(gate, "LOST", 0.3)
    return made


def test_what_nobody_waits_for_is_not_computed(
    two: Gate, listeners: Listeners, tmp_path: Path
) -> None:
    """Requests whose client never listens: refused without having run, and meanwhile others are served."""
    mark, said = tmp_path / "mark", []

    def abandoned(number: int) -> None:
        with pytest.raises(RefusedError) as error:
            ask(two, overruns.note, str(mark), visitor=f"v{number}", keys=(f"s{number}",))
        said.append(str(error.value))

    threads = [threading.Thread(target=abandoned, args=(k,)) for k in range(5)]
    for thread in threads:
        thread.start()
    listeners.come("me")
    assert ask(two, overruns.say, "x", visitor="me", keys=("me",))[0] == "x"
    for thread in threads:
        thread.join(20)
    assert not mark.exists()
    assert said == ["Nobody waited for the answer any more, so it was not computed."] * 5


def test_work_whose_client_leaves_is_stopped(two: Gate, listeners: Listeners) -> None:
    listeners.come("me")
    threading.Timer(0.5, listeners.go, ("me",)).start()
    begun = time.monotonic()
    with pytest.raises(RefusedError, match="Nobody waited"):
        ask(two, overruns.spin, 1.9, keys=("me",), visitor="leaves")  # within the time it may take
    assert time.monotonic() - begun < 10
    assert not two.running
    assert two.computed["leaves"] == two.stopped["leaves"] == 1
    assert two.spent("leaves") > gate.HEAVY  # the slow lane's, for a while


def test_each_visitor_has_a_few_requests_and_nobody_all_workers(two: Gate) -> None:
    """One who asks for much waits for itself; one who comes then is served at once."""
    refused: list[str] = []

    def greedy() -> None:
        try:
            ask(two, overruns.spin, 1.5, visitor="greedy")
        except RefusedError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=greedy) for _ in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    for n in range(4):
        assert ask(two, overruns.say, str(n), visitor="modest")[0] == str(n)
        assert sum(task.visitor == "greedy" for task in two.running) <= 1
    assert (
        sum(thread.is_alive() for thread in threads) >= 1
    )  # the greedy one's are not even through
    for thread in threads:
        thread.join(30)
    assert len(refused) == 3 and all(
        text.startswith("You have 3 requests under way") for text in refused
    )


def test_a_full_queue_says_so(two: Gate) -> None:
    refused: list[str] = []

    def come(number: int) -> None:
        try:
            ask(two, overruns.spin, 0.8, visitor=f"v{number}")
        except RefusedError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=come, args=(k,)) for k in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert refused and all("requests are waiting here already" in text for text in refused)


def test_heavy_visitors_leave_a_worker_to_the_others(
    two: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when they come from several addresses."""
    monkeypatch.setattr(gate, "HEAVY", 0.5)
    for who in ("h1", "h2"):
        ask(two, overruns.spin, 0.8, visitor=who)
    threads = [
        threading.Thread(target=ask, args=(two, overruns.spin, 1.5), kwargs={"visitor": who})
        for who in ("h1", "h2")
    ]
    until = time.monotonic() + 120
    while not all(worker.ready for worker in two.workers) and time.monotonic() < until:
        time.sleep(0.1)  # one that another test had killed may be starting
    for thread in threads:
        thread.start()
    while not two.running and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.2)
    assert len(two.running) == 1
    (lane,) = (task.worker for task in two.running)
    assert lane is not None and lane.slow and lane.process is not None
    assert os.getpriority(os.PRIO_PROCESS, lane.process.pid) == os.nice(0) + gate.NICE
    assert ask(two, overruns.say, "x", visitor="ordinary")[0] == "x"
    assert any(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join(30)


def test_who_is_alone_has_all_workers(two: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long answer, perhaps of a model that had to be loaded, makes nobody wait where nobody else is."""
    monkeypatch.setattr(two, "_spent", {})
    until = time.monotonic() + 120
    while not all(worker.ready for worker in two.workers) and time.monotonic() < until:
        time.sleep(0.1)
    ask(two, overruns.spin, 1.2, visitor="asks for long")
    assert two.spent("asks for long") > gate.HEAVY > 1.2
    assert handed_out(two) is two.workers[0]
    two._spent["somebody else"] = (0.1, time.monotonic())
    assert handed_out(two) is two.workers[1] and two.workers[1].slow
    monkeypatch.setattr(
        two.workers[0], "ready", False
    )  # starts: the other one is left to the others
    assert handed_out(two) is None


def handed_out(made: Gate) -> Any:
    """The worker that a visitor who asks for long would be given now."""
    task = gate.Task("asks for long")
    with gate.LISTENERS.changed:
        made.waiting.append(task)
        made._hand_out()
        for tasks in (made.waiting, made.running):
            if task in tasks:
                tasks.remove(task)
    return task.worker


def test_one_page_gets_its_answers_in_the_order_it_asked(
    two: Gate, listeners: Listeners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an older comparison could be drawn over a newer one."""
    monkeypatch.setenv("CTXMIX_DEMO_WORKERS_PER_VISITOR", "2")
    listeners.come("page")
    done: list[float] = []

    def come(seconds: float) -> None:
        ask(two, overruns.spin, seconds, keys=("page", f"event {seconds}"))
        done.append(seconds)

    threads = [threading.Thread(target=come, args=(seconds,)) for seconds in (1.0, 0.5, 0.1)]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join(30)
    assert done == [1.0, 0.5, 0.1]


def test_who_a_visitor_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header anybody can send counts only where a proxy of ours writes it, and then only what the proxy wrote."""
    assert gate.visitor_of("10.0.0.1", "1.2.3.4") == "10.0.0.1"
    monkeypatch.setattr(gate, "SETTINGS", dataclasses.replace(LIMITS, proxies=1))
    assert gate.visitor_of("10.0.0.1", "6.6.6.6, 1.2.3.4") == "1.2.3.4"
    assert gate.visitor_of("10.0.0.1", "") == "10.0.0.1"


def test_a_newer_request_for_the_same_part_of_a_page_replaces_the_older() -> None:
    made = gate.Gate(0)
    old, other, else_ = (
        gate.Task("v", ("page",), slot="main"),
        gate.Task("v", ("page",), slot="why"),
        gate.Task("v", ("another page",), slot="main"),
    )
    made.waiting += [old, other]
    made.running.append(else_)
    assert made.replace("main", ("page",)) == 1
    assert [task.gone() for task in (old, other, else_)] == [True, False, False]
    assert made.replace("", ("page",)) == made.replace("main", ()) == 0


def test_stopping_one_request_leaves_those_that_were_asked_after_it() -> None:
    """And one that comes after it was stopped is not begun, whichever part of the page asks again and again."""
    made = gate.Gate(0)
    new = gate.Task("v", ("page",), slot="main", order=3)
    made.running.append(new)
    assert made.replace("main", ("page",), order=2) == 0 and not new.replaced
    assert made.replace("main", ("page",), order=3) == 1 and new.replaced
    made.running.clear()
    for order, slot, page in ((3, "main", "page"), (4, "main", "page"), (3, "why", "page")):
        late = gate.Task("v", (page,), slot=slot, order=order)
        made.replace(slot, (page,), late)
        assert late.replaced == (order == 3 and slot == "main")


def test_requests_that_arrive_in_the_wrong_order() -> None:
    """The page numbers its requests: the last one it made stays, though an older one came after it."""
    made = gate.Gate(0)
    new = gate.Task("v", ("page",), slot="why", order=3)
    old = gate.Task("v", ("page",), slot="why", order=2)
    made.running.append(new)
    with pytest.raises(gate.Overtaken):
        made.run(old, len, ("",), {})
    assert not new.replaced and old.replaced


def test_stop_reaches_what_the_page_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The button is not queued, so its request has a session and no event."""
    from gradio.context import LocalContext

    made = Gate(0)
    task = Task("somebody", ("page", "event"), slot="main")
    made.running.append(task)
    monkeypatch.setattr(gate, "GATE", made)
    request = SimpleNamespace(
        session_hash="page", client=SimpleNamespace(host="1.2.3.4"), headers={}
    )
    given = LocalContext.request.set(request)  # type: ignore[arg-type]
    try:
        assert gate.cancel("main") == 1 and task.replaced
        assert gate.cancel("why") == 0
    finally:
        LocalContext.request.reset(given)
