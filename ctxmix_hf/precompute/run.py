"""`precompute(job)`: plan, work off, assemble in the order of the plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import InputError, OptionError, StoreError
from ctxmix_hf.hub.computing import compute
from ctxmix_hf.hub.folders import MANIFEST
from ctxmix_hf.hub.manifest import stored_targets
from ctxmix_hf.hub.store import MapStore
from ctxmix_hf.instrumentation.awake import keeps_modes
from ctxmix_hf.precompute.engines import processes, worth_sharing
from ctxmix_hf.precompute.folder import Folder, Plan
from ctxmix_hf.precompute.job import ENGINES, Job
from ctxmix_hf.precompute.plan import Batch, Fingerprint, Planner, longest_of
from ctxmix_hf.precompute.rows import read_rows
from ctxmix_hf.precompute.work import TaskWorker, is_finished, is_sound, load_model, take_in
from ctxmix_hf.recipes import Wanted, resolve
from ctxmix_hf.text.kinds import Model, Tokenizer

Say = Callable[[str], None]


@dataclass(frozen=True)
class Summary:
    """What a run did. `examples` are in the store; `computed` of them in this run."""

    out: str
    examples: int
    computed: int
    tokens: int
    truncated: int
    skipped: int
    seconds: float
    methods: list[str]

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "sentences_per_second": self.computed / self.seconds if self.seconds else 0.0,
        }


@keeps_modes
def precompute(job: Job, say: Say = lambda text: None) -> Summary:
    """The store of a dataset's maps in `job.out`. The same job again continues, and gives the same bytes."""
    if job.engine not in ENGINES:
        raise OptionError.among("engine", job.engine, ENGINES)
    resolve(list(job.methods))
    if job.engine == "ray":
        from ctxmix_hf.precompute.ray_engine import connect

        connect()  # a missing ray is said before anything is read
    first = next(read_rows(job), None)
    if first is None:
        raise InputError(f"The dataset {job.dataset!r} is empty: there is nothing to compute.")
    say("loading the model")
    began = time.monotonic()
    model, tokenizer = load_model(job)
    loading = time.monotonic() - began
    folder = Folder(Path(job.out))
    with _store(job, folder, model, tokenizer, say) as store:
        plan = _planned(job, folder, store, model, tokenizer, say)
        worker = TaskWorker(job, model, tokenizer, store.manifest)
        started, before = time.monotonic(), len(store)
        _assemble(job, folder, plan, store, worker, say, loading)
        seconds = time.monotonic() - started
    left_out = [*((name, why) for name, why in plan.skipped), *folder.failures().items()]
    folder.write_skipped(left_out)
    folder.clear("tasks", "parts")
    return Summary(
        job.out,
        len(store),
        len(store) - before,
        plan.tokens,
        plan.truncated,
        len(left_out),
        seconds,
        store.methods,
    )


# ---- before
# -----------------------------------------------------------------------------------------------------------
def _store(job: Job, folder: Folder, model: Model, tokenizer: Tokenizer, say: Say) -> MapStore:
    """A new store, or the one of the run that was stopped, without what is damaged in it: that is computed again."""
    if not (folder.root / MANIFEST).exists():
        store = _create(job, folder, model, tokenizer)
    else:
        say("checking the store")
        store = MapStore.open(
            folder.root, append=True, repair=True, model=model, tokenizer=tokenizer
        )
    try:
        _same_methods(job, store)
        if not (folder.run / "options.json").exists() and len(store):
            raise StoreError(
                f"The store in {folder.root.name!r} was not made by `ctxmix precompute`: choose another --out."
            )
        folder.check_options(job.identity())
    except BaseException:
        store.__exit__(StoreError, None, None)
        raise
    return store


def _create(job: Job, folder: Folder, model: Model, tokenizer: Tokenizer) -> MapStore:
    """Only after the methods worked on a row: what a model cannot do is said before a folder is made."""
    store_methods = list(job.methods)
    with folder.errors():
        folder.root.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = {"segments": job.segments, "targets": job.targets, "top_k": job.top_k}
    recipes, wanted = resolve(store_methods), Wanted.asked(kept)
    if wanted is not None and wanted.targets:  # words are not in every text
        stored_targets(wanted.targets)
        wanted = Wanted(("mean_pool",))
    compute(model, tokenizer, recipes, ["A probe."], {}, wanted)
    return MapStore.create(
        folder.root,
        model=model,
        tokenizer=tokenizer,
        methods=store_methods,
        dtype=job.store_dtype,
        model_id=job.model if not Path(job.model).is_dir() else None,
        revision=job.revision,
        **kept,
    )


def _same_methods(job: Job, store: MapStore) -> None:
    assert store.model is not None, "it was opened or made with one"
    store.check(store.model, store.tokenizer, list(job.methods))
    asked = list(resolve(list(job.methods)))
    if asked != store.methods:
        raise StoreError(
            f"The store holds {', '.join(store.methods)}; now {', '.join(asked)} were asked for: choose another --out."
        )


def _planned(
    job: Job, folder: Folder, store: MapStore, model: Model, tokenizer: Tokenizer, say: Say
) -> Plan:
    """The plan of the first run, if the data is still the same; else a new one."""
    plan, seen = folder.load_plan(), Fingerprint()
    if plan is not None:
        say("comparing the data")
        for _ in seen.watch(read_rows(job)):
            pass
        if seen.digest != plan.digest:
            was = (
                f"{plan.rows} rows then, {seen.rows} now"
                if seen.rows != plan.rows
                else f"{plan.rows} rows, other ids, texts or labels"
            )
            raise StoreError(
                f"The data changed since {folder.root.name!r} was begun ({was}): use the same data, or another --out."
            )
        if _is_done(plan, folder, store) or (
            plan.checksum and folder.tasks_checksum(plan.tasks) == plan.checksum
        ):
            return plan
        seen = Fingerprint()  # the tasks are gone or damaged: the same data gives the same ones
    elif len(store):
        raise StoreError(
            f"The folder {folder.root.name!r} has maps but no plan of its run: choose another --out."
        )
    folder.clear("tasks", *(["parts"] if plan is None else []))
    planner, count = Planner(job, tokenizer, longest_of(model, tokenizer, job.max_length)), 0
    for count, batches in enumerate(planner.tasks(seen.watch(read_rows(job))), 1):
        folder.write_task(count - 1, batches)
        say(f"planning: {planner.examples} sentences")
    skipped = [[name, why] for name, why in planner.skipped]
    plan = Plan(
        seen.rows,
        seen.digest,
        count,
        planner.examples,
        planner.tokens,
        planner.truncated,
        skipped,
        folder.tasks_checksum(count),
    )
    folder.save_plan(plan)
    return plan


def _is_done(plan: Plan, folder: Folder, store: MapStore) -> bool:
    return store.manifest.complete and len(store) + len(folder.failures()) >= plan.examples


# ---- the work
# ---------------------------------------------------------------------------------------------------------
def _assemble(
    job: Job,
    folder: Folder,
    plan: Plan,
    store: MapStore,
    worker: TaskWorker,
    say: Say,
    loading: float,
) -> None:
    """Tasks finish in any order; their parts are taken into the store in the order of the plan."""
    if _is_done(plan, folder, store):
        return
    meter = Meter(plan, len(store), say)
    ready = {number for number in range(plan.tasks) if is_sound(folder, number)}
    if job.engine == "local" and job.workers == 1:
        finished: Iterator[int] = iter(range(plan.tasks))
    else:
        todo = [
            number
            for number in range(plan.tasks)
            if number not in ready and not _in_store(folder, number, store)
        ]
        finished = (
            _on_ray(job, todo)
            if job.engine == "ray"
            else _shared(job, folder, todo, store, worker, meter, loading)
        )
    following = 0
    for number in _each(ready, finished):
        ready.add(number)
        while following in ready or (
            following < plan.tasks and _in_store(folder, following, store)
        ):
            _finish(folder, following, store, worker, meter)
            following += 1


def _each(ready: set[int], finished: Iterator[int]) -> Iterator[int]:
    yield from sorted(ready)
    yield from finished


def _on_ray(job: Job, todo: list[int]) -> Iterator[int]:
    if todo:
        from ctxmix_hf.precompute.ray_engine import on_ray

        yield from on_ray(job, todo)


def _shared(
    job: Job,
    folder: Folder,
    todo: list[int],
    store: MapStore,
    worker: TaskWorker,
    meter: Meter,
    loading: float,
) -> Iterator[int]:
    """This process begins, and several go on where what is left is worth their start: one batch tells, and then
    every task, since sentences get longer. What is begun here and finished there is not taken in twice.
    """
    began, before, left = time.monotonic(), meter.tokens, list(todo)
    if left:
        new = [b for b in folder.read_task(left[0]) if not any(name in store for name, _, _ in b)]
        _fill(folder, new[:1], store, worker, meter)
    while left:
        spent, seen = time.monotonic() - began, meter.tokens - before
        rest = spent / seen * meter.tokens_left if seen else 0.0
        if worth_sharing(job, len(left), rest, loading):
            yield from processes(job, left)
            return
        began, before = time.monotonic(), meter.tokens
        yield left.pop(0)  # computed here, as it is taken in


def _in_store(folder: Folder, number: int, store: MapStore) -> bool:
    """Whether all batches of a task are there (or failed)."""
    failed = folder.failures()
    return all(
        any(name in store for name, _, _ in batch) or all(name in failed for name, _, _ in batch)
        for batch in folder.read_task(number)
    )


def _finish(folder: Folder, number: int, store: MapStore, worker: TaskWorker, meter: Meter) -> None:
    """A task into the store: from its part where there is one, else computed here."""
    path = folder.part(number)
    if is_finished(path):
        folder.add_failures(folder.read_failures(number).items())
        take_in(store, path)
        meter.add_task(folder.read_task(number), store)
        folder.clear(f"parts/{path.name}")
        return
    _fill(folder, folder.read_task(number), store, worker, meter)


def _fill(
    folder: Folder, batches: list[Batch], store: MapStore, worker: TaskWorker, meter: Meter
) -> None:
    worker.fill(store, batches, lambda lost: folder.add_failures(lost.items()), meter.add)


@dataclass
class Meter:
    """Sentences and tokens per second, and when it will be over."""

    plan: Plan
    done: int
    say: Say
    sentences: int = 0
    tokens: int = 0
    failures: int = 0

    def __post_init__(self) -> None:
        self.started = time.monotonic()

    @property
    def tokens_left(self) -> float:
        """About, where an earlier run left some in the store."""
        return self.plan.tokens * (1 - self.done / max(self.plan.examples, 1)) - self.tokens

    def add_task(self, batches: list[Any], store: MapStore) -> None:
        names = [name for batch in batches for name, _, _ in batch if name in store]
        self.add(len(names), sum(store.index.rows[name].size for name in names))

    def add(self, sentences: int, tokens: int) -> None:
        self.sentences, self.tokens = self.sentences + sentences, self.tokens + tokens
        spent = max(time.monotonic() - self.started, 1e-6)
        left = (self.plan.examples - self.done - self.sentences) * spent / max(self.sentences, 1)
        out = len(self.plan.skipped) + self.failures
        self.say(
            f"{self.done + self.sentences}/{self.plan.examples} sentences, {self.sentences / spent:.1f}/s, "
            f"{self.tokens / spent:.0f} tokens/s, {clock(left)} left, {out} skipped"
        )


def clock(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
