"""What an item of a paper is: its number, the model and data it needs, how its rows are computed, what it claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from ctxmix_hf.evaluation.metrics import summarise
from ctxmix_hf.evaluation.papers.desk import Desk
from ctxmix_hf.evaluation.scores import Scores

Role = Literal["classifier", "masked_lm", "encoder", "before"]
# the name on the command line -> the name in results
PAPERS = {
    "abnar": "abnar2020",
    "brunner": "brunner2020",
    "globenc": "modarressi2022",
    "alti": "ferrando2022",
    "value_zeroing": "mohebbi2023",
}
TITLES = {
    "abnar2020": "Abnar & Zuidema 2020: attention rollout and flow",
    "brunner2020": "Brunner et al. 2020: effective attention and identifiability",
    "modarressi2022": "Modarressi et al. 2022: GlobEnc",
    "ferrando2022": "Ferrando et al. 2022: ALTI",
    "mohebbi2023": "Mohebbi et al. 2023: Value Zeroing",
}
DRAWS = 300  # resamples of sentences for a statistic that is not a mean
Unit = TypeVar("Unit")


@dataclass(frozen=True)
class ItemRow:
    """One number of an item: ours, its 95 % bootstrap interval over sentences, and the paper's where it gives one."""

    name: str
    ours: float
    low: float
    high: float
    paper: float | None = None

    def to_dict(self) -> dict[str, Any]:
        plain = lambda v: None if v is None or not math.isfinite(v) else round(float(v), 6)
        return {
            "name": self.name,
            "ours": plain(self.ours),
            "low": plain(self.low),
            "high": plain(self.high),
            "paper": self.paper,
        }


@dataclass(frozen=True)
class Found:
    """What computing an item gave: its rows and the number of sentences they rest on; `how` says what this run did
    otherwise than the item always does, and stands in its entry.
    """

    rows: Sequence[ItemRow]
    n: int
    how: str = ""


Ours = Mapping[str, float]  # a row's name to our number


@dataclass(frozen=True)
class Claim:
    """Something the paper says of an item in words, and the test of it on our rows; None where they cannot tell.
    A `steady` one is asked of both ends of the intervals too, and cannot be told where they answer otherwise.
    """

    said: str
    holds: Callable[[Ours], bool | None]
    steady: bool = False


@dataclass(frozen=True)
class Item:
    """A table or figure under the paper's own number."""

    paper: str
    number: str
    about: str
    role: Role
    data: str  # one of desk.DATA
    compute: Callable[[Desk], Found]
    claims: tuple[Claim, ...] = ()
    difference: str = ""  # how the set-up differs from the paper's, in a sentence
    compares: bool = False  # the model with itself before it was tuned
    learns: bool = False  # maps, by the run's Fitting

    @property
    def may_be_seen(self) -> bool:
        """Is it asked of a corpus that masked LMs are tuned on?"""
        return self.role in ("masked_lm", "before") and self.data in ("blimp", "linzen")

    @property
    def key(self) -> str:
        return "-".join(
            part.lower().replace(" ", "_") for part in (self.paper, self.number, self.data)
        )


ITEMS: dict[str, Item] = {}


def item(
    paper: str,
    number: str,
    about: str,
    role: Role,
    data: str,
    claims: Sequence[Claim] = (),
    difference: str = "",
    compares: bool = False,
    learns: bool = False,
) -> Callable[[Callable[[Desk], Found]], Callable[[Desk], Found]]:
    """Enter a function under a paper's number."""

    def add(compute: Callable[[Desk], Found]) -> Callable[[Desk], Found]:
        told = (tuple(claims), difference, compares, learns)
        made = Item(paper, number, about, role, data, compute, *told)
        ITEMS[made.key] = made
        return compute

    return add


def mean_row(name: str, values: Sequence[float], paper: float | None = None) -> ItemRow:
    """The mean over sentences."""
    found = summarise(values)
    return ItemRow(name, found.mean, found.low, found.high, paper)


def resampled(
    name: str,
    units: Sequence[Unit],
    statistic: Callable[[Sequence[Unit]], float],
    paper: float | None = None,
    draws: int = DRAWS,
) -> ItemRow:
    """Any statistic of sentences (or other units), with a percentile bootstrap over them."""
    whole = statistic(units)
    picks = np.random.default_rng(0).integers(0, len(units), size=(draws, len(units)))
    again = np.array([statistic([units[i] for i in some]) for some in picks], dtype=np.float64)
    known = again[np.isfinite(again)]
    low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (math.nan, math.nan)
    return ItemRow(name, whole, float(low), float(high), paper)


def layer_name(label: str, layer: int) -> str:
    """`layer` counts from 0; names count from 1, as people do."""
    return f"{label}, layer {layer + 1}"


def last_layer(ours: Ours, label: str) -> float:
    """The value of the last layer of a row that is given by layers."""
    found = [
        (int(name.rsplit(" ", 1)[1]), v) for name, v in ours.items() if by_layer(name) == label
    ]
    return max(found)[1] if found else math.nan


def first_layer(ours: Ours, label: str) -> float:
    found = [
        (int(name.rsplit(" ", 1)[1]), v) for name, v in ours.items() if by_layer(name) == label
    ]
    return min(found)[1] if found else math.nan


def by_layer(name: str) -> str | None:
    """`"raw"` of `"raw, layer 3"`; None for a row of another kind."""
    label, found, number = name.rpartition(", layer ")
    return label if found and number.isdigit() else None


RIGHT = "where the model is right"


def where_right(scores: Sequence[Scores]) -> list[Scores]:
    """The sentences whose answer the model gives rightly."""
    return [s for s in scores if s.right]


def told_accuracy(scores: Sequence[Scores]) -> str:
    """How often the model is right about the sentences that an item explains."""
    known = [s for s in scores if s.right is not None]
    count = len(where_right(known))
    share = count / max(1, len(known))
    return f"The model prefers the right verb in {count} of the {len(known)} sentences ({share:.3f}; chance is 0.5)."


def above(a: float, b: float) -> bool | None:
    """None where one of them is not known."""
    return None if not (math.isfinite(a) and math.isfinite(b)) else a > b


def spread(paper: Sequence[float] | None, depth: int, layer: int) -> float | None:
    """The paper's number of a layer, where the paper's model is as deep as this one."""
    return paper[layer] if paper is not None and len(paper) == depth else None
