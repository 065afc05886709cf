"""What a method is: one equation, from a `LayerRecord` to a `[B, target, source]` map."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.errors import OptionError
from ctxmix_hf.records import LayerRecord, ModelRecord
from ctxmix_hf.registry import Registry
from ctxmix_hf.workspace import computed_once

Needs = Literal["attention", "values", "block", "feed_forward", "replay", "model"]


@dataclass(frozen=True)
class About:
    """What people want to know of a method before they use it; feeds the CLI, the Space, the README and the docs."""

    summary: str
    paper: str
    equation: str
    cost: str
    needs: Needs
    covers: str
    leaves_out: str


@dataclass(frozen=True)
class AbstractMethod(ABC):
    """A frozen set of options; subclasses add theirs as fields."""

    kind: ClassVar[Literal["layer", "input"]] = "layer"
    about: ClassVar[About]
    rows_sum_to_one: ClassVar[bool] = False
    # what an option may be, where not any value of its kind will do; the page offers these
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    # keeps gradients when the call asks for create_graph=True
    differentiable: ClassVar[bool] = True
    # rows are divided by their sum before they are multiplied
    rolls_out_shares: ClassVar[bool] = False
    by_rows: ClassVar[bool] = False  # `layer_map` also takes `LayerRecord.rows(...)`
    reads_totals: ClassVar[bool] = False  # compares with what the model computed, not only lengths
    local: ClassVar[bool] = True  # a source that a row does not attend to gives it nothing
    # the layers of one shape may come as one batch: reads the attention, and not which layer it is
    joins_layers: ClassVar[bool] = False
    # of a whole record: how queries, keys and values come from the tokens, which is looked for only then
    reads_projections: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for option, known in self.choices.items():
            check_choice(_name(type(self)), option, getattr(self, option), known)

    @property
    def defers(self) -> bool:
        """Can its maps be made row by row, from attention that nobody kept?"""
        return self.by_rows and self.layer_by_layer and not getattr(self, "per_head", False)

    @property
    def reads_value_bias(self) -> bool:
        """Whether a record must hold the bias of the values: it is looked for only then."""
        return False

    @property
    def layer_by_layer(self) -> bool:
        """Can each layer's map be made as the layer ends, so that nothing else of it need be kept?"""
        return self.kind == "layer" and self.about.needs in ("attention", "values", "block")

    def work(self, tokens: int, width: int, inner: int) -> float:
        """Multiply-adds of one layer's map of one example, where every pair of tokens passes the feed-forward
        (`width` to `inner` and back): what takes longer than the forward pass by far.
        """
        return 0.0

    def check(self, record: ModelRecord) -> None:  # noqa: B027
        """Raise `UnsupportedMethodError` where this record has no such map, beyond what `about.needs` says."""

    def options(self) -> dict[str, Any]:
        """Every option with its value: part of a stored map's identity."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Reads:
    """What the methods of one call read of a layer, taken together: of what none of them does, nothing is made."""

    projections: bool = True  # how queries, keys and values come from the tokens
    value_bias: bool = True
    blocks: bool = True  # more of a layer than its attention product
    attention_alone: bool = False  # its probabilities, and nothing else
    rows: bool = False  # attention by blocks of rows, so that nobody keeps it
    layers_joined: bool = False  # the layers of one shape as one batch

    @classmethod
    def of(cls, methods: Collection[AbstractMethod]) -> Reads:
        """Of methods whose maps are made layer by layer."""
        needs, bias = {m.about.needs for m in methods}, any(m.reads_value_bias for m in methods)
        return cls(
            projections=False,
            value_bias=bias,
            blocks="block" in needs,
            attention_alone=needs == {"attention"} and not bias,
            rows=bool(methods) and all(m.defers for m in methods),
            layers_joined=all(m.joins_layers for m in methods),
        )


class LayerMethod(AbstractMethod):
    """One map per layer; the input map is the paper's aggregate, rollout."""

    @abstractmethod
    def layer_map(self, layer: LayerRecord, budget: Budget) -> Tensor:
        """`[B, T target, T source]`, rows of padding zero."""

    def layer_notes(self, layer: LayerRecord, budget: Budget) -> dict[str, Tensor]:
        """What else is known of this layer's map (the standard error of an estimate), stacked into `meta["notes"]`."""
        return {
            name: part / whole.clamp(min=1e-30)
            for name, (part, whole) in self.note_shares(layer, budget).items()
        }

    def note_shares(self, layer: LayerRecord, budget: Budget) -> dict[str, tuple[Tensor, Tensor]]:
        """Notes that are shares, as (part, whole): those of some rows can be added to those of the others."""
        return {}

    def head_maps(self, layer: LayerRecord, budget: Budget) -> Tensor | None:
        """`[B, H, T, T]` where the paper has a result per head and `per_head=True` was asked for."""
        return None


@computed_once
def layer_map_of(layer: LayerRecord, method: LayerMethod, budget: Budget) -> Tensor:
    """The method's map of a layer or of some of its rows; methods with the same options share it."""
    return method.layer_map(layer, budget)


class InputMethod(AbstractMethod):
    """Straight from the input: each layer's map is an aggregate already and is never rolled out."""

    kind: ClassVar[Literal["layer", "input"]] = "input"
    has_rows: ClassVar[bool] = False  # whether `input_rows` is cheaper than the maps

    def input_rows(
        self, record: ModelRecord, budget: Budget, targets: Sequence[int], every_layer: bool
    ) -> tuple[Tensor, dict[str, Any]]:
        """The maps' rows of some targets `[B, L, N, T]` (`[B, 1, N, T]`: of the last layer alone), and notes."""
        maps, notes = self.input_maps(record, budget)
        return maps[:, (None if every_layer else -1) :, list(targets)], notes

    @abstractmethod
    def input_maps(self, record: ModelRecord, budget: Budget) -> tuple[Tensor, dict[str, Any]]:
        """`[B, L, T, T]` and notes (for example the standard error of an estimate)."""


METHODS: Registry[type[AbstractMethod]] = Registry("method")


def _name(cls: type[AbstractMethod]) -> str:
    return next((name for name in METHODS if METHODS.get(name) is cls), cls.__name__)


def make_method(name: str, **options: Any) -> AbstractMethod:
    """A method by its registered name, with options checked against its fields."""
    cls = METHODS.get(name)
    known = [field.name for field in fields(cls)]
    wrong = [key for key in options if key not in known]
    if wrong:
        takes = ", ".join(known) or "none"
        raise OptionError(f"Method {name!r} has no option {wrong[0]!r}. Its options: {takes}.")
    return cls(**options)


def check_choice(method: str, option: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise OptionError.among(f"{method}: {option}", value, choices)
