"""What an evaluation is given to work with, and the registry of evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ctxmix_hf.attribution import ATTRIBUTIONS
from ctxmix_hf.errors import InputError
from ctxmix_hf.evaluation.bench import Bench, Ready
from ctxmix_hf.evaluation.fitting import QUICK, Fitting
from ctxmix_hf.evaluation.scores import (
    DEFAULT_METHODS,
    RANDOM,
    REFERENCES,
    USUAL,
    Asked,
    Judged,
    MethodSet,
    Scores,
    collect,
)
from ctxmix_hf.evaluation.sessions import Store
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form
from ctxmix_hf.registry import Registry


@dataclass(frozen=True)
class EvaluationConfig:
    """What is compared, on how many sentences, and how: everything of a run but its model and its data."""

    methods: Judged | Iterable[Judged] | None = None
    limit: int | None = None
    seed: int = 0
    resume: str | Path | None = None
    progress: bool | None = None
    asked: Asked = USUAL
    references: tuple[Any, ...] = REFERENCES
    fitting: Fitting = QUICK
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Context:
    """A bench, sentences made ready, what is compared, and how: shared by the evaluations of one run."""

    bench: Bench
    ready: tuple[Ready, ...]
    left_out: tuple[str, ...]  # sentences about rows that were not used
    methods: Judged | Iterable[Judged] | None = None
    seed: int = 0
    resume: str | Path | None = None
    progress: bool | None = None
    other: Context | None = None  # the second model, for comparisons between models
    stores: dict[str, Store] = field(default_factory=dict, repr=False)
    made: dict[str, EvaluationTable] = field(
        default_factory=dict
    )  # tables of this run, for those that build on them
    asked: Asked = USUAL  # which answer is explained
    references: tuple[Any, ...] = REFERENCES  # what faithfulness compares with
    fitting: Fitting = QUICK  # how the maps of identifiability are learned

    @property
    def _wanted(self) -> Any:
        """The methods asked for; without a head only maps have something to say."""
        if self.methods is not None:
            return self.methods
        return [
            name
            for name in DEFAULT_METHODS
            if self.bench.head != "any" or name not in ATTRIBUTIONS or name == RANDOM
        ]

    @cached_property
    def method_set(self) -> MethodSet:
        return MethodSet.of(self._wanted, self.references if self.bench.head != "any" else ())

    @cached_property
    def scores(self) -> list[Scores]:
        """Every method's rows for every sentence: computed once for all evaluations of a run."""
        return collect(
            self.bench,
            self.ready,
            self.method_set,
            self.store("scores"),
            seed=self.seed,
            progress=self.progress,
            asked=self.asked,
        )

    @property
    def compared(self) -> list[str]:
        """The methods asked for, without the references that were added."""
        named = MethodSet.of(self._wanted).names
        return [name for name in self.method_set.names if name in named]

    def store(self, name: str) -> Store:
        """Results by key: what one evaluation of a run computed the next one finds."""
        if name not in self.stores:
            self.stores[name] = Store(self.resume, name)
        return self.stores[name]

    @property
    def accuracy(self) -> str:
        """How often the model itself is right, as a note."""
        known = [s.right for s in self.scores if s.right is not None]
        return (
            f"{self.bench.name} is right on {sum(known)} of {len(known)} sentences."
            if known
            else ""
        )

    def table(
        self,
        name: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Cell]],
        caption: str,
        *,
        form: Form | None = None,
        notes: Sequence[str] = (),
        sentences: int | None = None,
    ) -> EvaluationTable:
        """A table that carries its notes and its origin."""
        meta = {
            "model": self.bench.name,
            "sentences": len(self.ready) if sentences is None else sentences,
            "seed": self.seed,
        }
        every = tuple(note for note in (*notes, *self.left_out) if note)
        return EvaluationTable(
            name, tuple(columns), tuple(tuple(r) for r in rows), caption, every, form, meta
        )

    def need_sentences(self, count: int = 1) -> None:
        if len(self.ready) < count:
            why = " ".join(self.left_out)
            raise InputError(
                f"{len(self.ready)} usable sentences, at least {count} needed. {why}".strip()
            )


Run = Callable[[Context], EvaluationTable]


@dataclass(frozen=True)
class Evaluation:
    """One kind of evidence."""

    name: str
    summary: str
    paper: str
    run: Run


EVALUATIONS: Registry[Evaluation] = Registry("evaluation")


def evaluation(
    name: str, summary: str, paper: str
) -> Callable[[Callable[[Context], EvaluationTable]], Callable[[Context], EvaluationTable]]:
    """Register a function of a context as an evaluation."""

    def add(run: Callable[[Context], EvaluationTable]) -> Callable[[Context], EvaluationTable]:
        EVALUATIONS.register(name)(Evaluation(name, summary, paper, run))
        return run

    return add
