"""From names to maps: methods, the papers' recipes (method + aggregation), and the one loop that computes them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from ctxmix_hf.aggregation.rollout import OverflowScaledWarning
from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.algebra.rows import BLOCK
from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.attribution import ATTRIBUTIONS
from ctxmix_hf.counting import layer_index
from ctxmix_hf.errors import AlikeRowsWarning, InputError, OptionError, StoreError, UnknownNameError
from ctxmix_hf.methods import METHODS, About, AbstractMethod, InputMethod, LayerMethod, make_method
from ctxmix_hf.methods.attention import AttentionFixedResidual
from ctxmix_hf.methods.base import Reads, layer_map_of
from ctxmix_hf.methods.hta import HtaTimesInput
from ctxmix_hf.methods.norms import NormEncoder, NormResidualNorm
from ctxmix_hf.records import LayerRecord, ModelRecord
from ctxmix_hf.registry import Registry
from ctxmix_hf.results.attributions import Attribution, joined_units, unit_name
from ctxmix_hf.results.maps import AGGREGATIONS, ContextMixingMap
from ctxmix_hf.text.segments import Segments, check_segments
from ctxmix_hf.text.targets import Target
from ctxmix_hf.text.tokens import Tokens


@dataclass(frozen=True)
class Recipe:
    """A method and the aggregation its paper gives it, under the paper's name."""

    method: AbstractMethod
    aggregation: str
    about: About | None = None
    name: str = ""

    @property
    def summary(self) -> About:
        return self.about or self.method.about


RECIPES: Registry[Recipe] = Registry("recipe")
RECIPES.register("attention_rollout")(
    Recipe(
        AttentionFixedResidual(),
        "rollout",
        About(
            "product of the layers' attention, half of each token kept",
            "Abnar & Zuidema 2020",
            "prod_l (0.5 W_l + 0.5 I)",
            "none beyond the forward pass",
            "attention",
            "attention weights, a fixed residual",
            "values, norms, feed-forward",
        ),
    )
)
RECIPES.register("attention_flow")(
    Recipe(
        AttentionFixedResidual(),
        "flow",
        About(
            "maximum flow through the attention graph",
            "Abnar & Zuidema 2020",
            "maxflow((l,i) -> (0,j)), capacities 0.5 W + 0.5 I",
            "one maximum flow per layer and pair",
            "attention",
            "attention weights, a fixed residual",
            "values, norms, feed-forward",
        ),
    )
)
RECIPES.register("globenc")(
    Recipe(
        NormEncoder(),
        "rollout",
        About(
            "product of the layers' N_ENC",
            "Modarressi et al. 2022",
            "prod_l N_ENC_l (unnormalised)",
            "O(T^2 H^2) per layer",
            "block",
            "attention, residuals and norms of all layers",
            "feed-forward",
        ),
    )
)
RECIPES.register("norm_rollout")(
    Recipe(
        NormResidualNorm(row_normalised=True),
        "rollout",
        About(
            "product of the layers' N_RESLN as shares",
            "Kobayashi et al. 2021; Ferrando et al. 2022",
            "prod_l N_RESLN_l / rowsum",
            "O(T^2 H^2) per layer",
            "block",
            "attention blocks of all layers",
            "feed-forward",
        ),
    )
)


@dataclass(frozen=True)
class MethodInfo:
    """A row of `list_methods()`."""

    name: str
    kind: str  # "layer", "input" or "attribution"
    summary: str
    paper: str
    equation: str
    cost: str
    needs: str
    covers: str
    leaves_out: str
    options: dict[str, Any]
    choices: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # what an option may be


def method_infos() -> list[MethodInfo]:
    infos = [
        _info(name, METHODS.get(name)(), METHODS.get(name).kind, METHODS.get(name).about)
        for name in METHODS
    ]
    return infos + [
        _info(name, r.method, "input", r.summary)
        for name, r in ((n, RECIPES.get(n)) for n in RECIPES)
    ]


def _info(name: str, method: AbstractMethod, kind: str, about: About) -> MethodInfo:
    return MethodInfo(
        name=name,
        kind=kind,
        options=method.options(),
        choices=dict(method.choices),
        **about.__dict__,
    )


def map_names() -> list[str]:
    return [*METHODS.names(), *RECIPES.names()]


Spec = str | AbstractMethod | Recipe
Specs = Spec | Iterable[Spec]


def method(name: str, **options: Any) -> Recipe:
    """A method, recipe or `"<layer method>+rollout|flow"` by name, with options:
    `method("value_zeroing", distance="euclidean")`.

    Args:
        name: A name of `list_methods()`, or a layer method's with `+rollout` or `+flow`.
        options: The method's own; `list_methods()` lists them.

    Returns:
        What `explain`, `output_context_mixing=` and `MapStore` take in place of a name.

    Raises:
        UnknownNameError: There is no such method; the message names the nearest one.
        OptionError: The method has no such option, or its value makes no sense.
    """
    base, _, aggregation = (part.strip() for part in name.partition("+"))
    if base in RECIPES and not aggregation:
        recipe = RECIPES.get(base)
        _check_options(name, recipe.method, options)
        return replace(recipe, method=replace(recipe.method, **options), name=name)
    if base in ATTRIBUTIONS:
        raise UnknownNameError(
            f"{base!r} scores tokens for a prediction and makes no map: use cm.attribute(model, text, {base!r})."
        )
    if base not in METHODS:
        raise UnknownNameError.among("method", name, map_names())
    made = make_method(base, **options)
    if aggregation and aggregation not in AGGREGATIONS:
        raise UnknownNameError.among("aggregation", aggregation, AGGREGATIONS)
    if aggregation and isinstance(made, InputMethod):
        raise OptionError(
            f"{base} starts at the input: it is never aggregated over layers, use {base!r} alone."
        )
    return Recipe(
        made, aggregation or ("none" if isinstance(made, InputMethod) else "rollout"), name=name
    )


def _check_options(name: str, made: AbstractMethod, options: dict[str, Any]) -> None:
    known = [field.name for field in fields(made)]
    for key in options:
        if key not in known:
            raise OptionError(
                f"Method {name!r} has no option {key!r}. Its options: {', '.join(known) or 'none'}."
            )


def resolve(specs: Specs) -> dict[str, Recipe]:
    """What a call asked for, keyed as it will find it again."""
    listed = [specs] if isinstance(specs, str | AbstractMethod | Recipe) else list(specs)
    resolved: dict[str, Recipe] = {}
    for spec in listed:
        recipe = _recipe(spec)
        key = (
            recipe.name
            if recipe.name not in resolved
            else f"{recipe.name}({recipe.method.options()})"
        )
        resolved[key] = recipe
    return resolved


def plain_name(key: str) -> str:
    """The name in a key that `resolve` made: `alti({'norm': 2})` is `alti`."""
    return key.partition("(")[0]


def _recipe(spec: Spec) -> Recipe:
    if isinstance(spec, Recipe):
        return spec
    if isinstance(spec, str):
        return method(spec)
    if isinstance(spec, AbstractMethod):
        name = next((n for n in METHODS if METHODS.get(n) is type(spec)), type(spec).__name__)
        return Recipe(spec, "none" if isinstance(spec, InputMethod) else "rollout", name=name)
    raise OptionError(
        f"A method is a name or a method object, not {type(spec).__name__}: {', '.join(map_names())}."
    )


class Gathered:
    """The maps `[B, T, T]` of one layer after the other. Where `expected` says how many will come, they are written
    where they will stand: large maps beside their stack would take the memory twice.
    """

    def __init__(self, expected: int | None) -> None:
        self.expected = expected
        self.each: list[Tensor] = []
        self.together: Tensor | None = None  # [B, L, T, T], whose layers `each` are

    def add(self, made: Tensor) -> None:
        place, room = len(self.each), self.together
        if not self.each and self.expected and made.nbytes >= TOGETHER and not made.requires_grad:
            room = made.new_empty(len(made), self.expected, *made.shape[1:])
            self.together = room
        if room is not None:
            fits = place < room.shape[1] and made.shape == room[:, 0].shape
            if fits and made.dtype == room.dtype:
                room[:, place] = made
                made = room[:, place]
            else:
                self.together = None
        self.each.append(made)

    def stacked(self, places: Sequence[int] | None) -> Tensor:
        """`[B, L, T, T]`, of all or of some."""
        count = len(self.each)
        picked = range(count) if places is None else [place for place in places if place < count]
        whole = self.together
        if whole is not None and whole.shape[1] == count and list(picked) == list(range(count)):
            return whole
        return torch.stack([self.each[place] for place in picked], dim=1)


TOGETHER = 2**20  # bytes of a layer's maps from which they are written where they will stand


class LayerMaps:
    """The maps of layer methods, gathered layer by layer: what methods share is computed once and then forgotten."""

    streams = True

    def __init__(
        self, recipes: dict[str, Recipe], budget: Budget, depth: int | None = None
    ) -> None:
        self.recipes, self.budget = recipes, budget
        self.reads = reads_of(recipes)
        methods = [
            recipe.method for recipe in recipes.values()
        ]  # of several recipes one may be the same
        self.maps: dict[AbstractMethod, Gathered] = {method: Gathered(depth) for method in methods}
        self.heads: dict[AbstractMethod, list[Tensor]] = {method: [] for method in methods}
        self.notes: dict[AbstractMethod, dict[str, list[Tensor]]] = {
            method: {} for method in methods
        }

    def add(self, layer: LayerRecord, layers: int = 1) -> None:
        """A layer, or several of one shape as one batch."""
        layer.workspace.methods = tuple(recipe.method for recipe in self.recipes.values())
        by_rows = all(recipe.method.by_rows for recipe in self.recipes.values())
        if layer.deferred is not None and by_rows:
            made, notes = whole_from_rows(layer, self.recipes, self.budget)
            for method in self.maps:
                self.maps[method].add(made.pop(method))
                for note, (share, whole) in notes[method].items():
                    value = share / whole.clamp(min=1e-30)
                    self.notes[method].setdefault(note, []).append(value)
            layer.release()
            return
        for method in self.maps:
            assert isinstance(method, LayerMethod)
            for one in layer_map_of(layer, method, self.budget).chunk(layers):
                self.maps[method].add(one)
            for note, value in method.layer_notes(layer, self.budget).items():
                self.notes[method].setdefault(note, []).extend(value.chunk(layers))
            per_head = method.head_maps(layer, self.budget)
            if per_head is not None:
                self.heads[method] += per_head.chunk(layers)
        layer.release()

    def finish(
        self, record: ModelRecord, places: Sequence[int] | None = None, output: Any = None
    ) -> dict[str, ContextMixingMap]:
        """The maps of a record's layers; `places` are theirs among those that were added (one tower of several)."""
        stacked: dict[AbstractMethod, Tensor] = {}
        made = {}
        pick = lambda items: (
            items if places is None else [items[place] for place in places if place < len(items)]
        )
        for key, recipe in self.recipes.items():
            check_not_refused(record, recipe)
            method = recipe.method
            if method not in stacked:
                stacked[method] = self.maps[method].stacked(places)
            heads = pick(self.heads[method])
            notes = {
                note: torch.stack(pick(values), dim=1)
                for note, values in self.notes[method].items()
            }
            made[key] = _as_map(
                record,
                key,
                recipe,
                stacked[method],
                torch.stack(heads, dim=1) if heads else None,
                None,
                notes,
            )
        return made


def reads_of(recipes: dict[str, Recipe]) -> Reads:
    return Reads.of([recipe.method for recipe in recipes.values()])


def check_not_refused(record: ModelRecord, recipe: Recipe) -> None:
    refused = next((layer for layer in record if layer.refused), None)
    if refused is not None and recipe.method.about.needs == "block":
        raise refused.no_block()


def _blocks(
    layer: LayerRecord, recipes: dict[str, Recipe], budget: Budget
) -> Iterator[LayerRecord]:
    """A layer whose attention nobody kept, some rows at a time."""
    assert layer.deferred is not None
    everywhere = not all(recipe.method.local for recipe in recipes.values())
    for targets in layer.deferred.blocks(min(BLOCK, budget.bytes // 4)):
        yield layer.rows(targets, everywhere)


def whole_from_rows(
    layer: LayerRecord, recipes: dict[str, Recipe], budget: Budget
) -> tuple[dict[Any, Tensor], dict[Any, dict[str, tuple[Tensor, Tensor]]]]:
    """The layer's map of every method, `[B, T, T]`, no more than a block of attention at a time; and notes."""
    batch, _, tokens, _ = layer.attention.shape
    made: dict[Any, Tensor] = {}
    notes: dict[Any, dict[str, tuple[Tensor, Tensor]]] = {}
    for part in _blocks(layer, recipes, budget):
        for method in dict.fromkeys(recipe.method for recipe in recipes.values()):
            assert isinstance(method, LayerMethod)
            rows = layer_map_of(part, method, budget)
            if method not in made:
                made[method] = rows.new_zeros(batch, tokens, tokens)
            made[method][:, part.targets, part.sources] = rows
            before = notes.setdefault(method, {})
            for note, (share, whole) in method.note_shares(part, budget).items():
                old = before.get(note, (0, 0))
                before[note] = (old[0] + share, old[1] + whole)
    return made, notes


# ---- rows only
# -------------------------------------------------------------------------------------------------------
def _as_it_is(made: ContextMixingMap, output: Any) -> ContextMixingMap:
    return made


def checked_top_k(value: Any) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"top_k must be a whole number of at least 1, got {value!r:.40}.")
    return value


@dataclass(frozen=True)
class Wanted:
    """Whose rows a call asked for. `named` gives a map what only the caller knows (words, pooling)."""

    targets: tuple[Target, ...]
    layers: bool = False
    # stretches of the text as units: the whole map of these, `[L, N, N]`, instead of rows
    segments: Segments | None = None
    # of every row the k largest sources, instead of rows
    top_k: int | None = None
    named: Callable[[ContextMixingMap, Any], ContextMixingMap] = _as_it_is

    @classmethod
    def of(cls, given: Any) -> Wanted:
        if isinstance(given, Wanted):
            return given
        if not isinstance(given, list | tuple):
            raise OptionError(
                f"targets={given!r}: give a list, one row is made for each of it "
                "(a position, a word, '[CLS]', 'mean_pool', 'embedding', or a list of these to average)."
            )
        if not given:
            raise OptionError("targets=[] names no target: give at least one.")
        return cls(tuple(given))

    @classmethod
    def asked(cls, options: dict[str, Any]) -> Wanted | None:
        """What a model call's options ask for instead of whole maps: `targets=` or `segments=`."""
        given = {name: options.get(name) for name in ("targets", "segments", "top_k")}
        asked = [name for name, value in given.items() if value is not None]
        if len(asked) > 1:
            raise OptionError(
                f"{asked[0]}=... and {asked[1]}=... are different answers: give one of the two."
            )
        if given["segments"] is not None:
            check_segments(given["segments"])
            return cls((), True, given["segments"])
        if given["top_k"] is not None:
            return cls((), True, None, checked_top_k(given["top_k"]))
        return None if given["targets"] is None else cls.of(given["targets"])

    def weights(self, outline: ContextMixingMap) -> tuple[Tensor, ContextMixingMap]:
        """`[B, N, T]`, how much of each row every target takes, and the map of units they belong to."""
        if self.segments is not None:
            like = torch.zeros((), dtype=torch.float64)
            join, mask, tokens = joined_units(
                outline.tokens, outline.mask.cpu(), like, self.segments
            )
            meta = {**outline.meta, "unit": unit_name(self.segments)}
            units = replace(outline, tokens=tokens, mask=mask.to(outline.mask.device), meta=meta)
            return join / join.sum(dim=-1, keepdim=True).clamp(min=1), units
        weights = [
            torch.stack([outline.weights(target, b) for target in self.targets])
            for b in range(len(outline))
        ]
        return torch.stack(weights), outline


class Outlined:
    """What is known of a result beside its numbers: those of the map it was made instead of."""

    outline: ContextMixingMap  # tokens, mask, method and meta; its numbers were never made

    @property
    def method(self) -> str:
        return self.outline.method

    @property
    def mask(self) -> Tensor:
        return self.outline.mask

    @property
    def tokens(self) -> list[Tokens]:
        return self.outline.tokens

    @property
    def meta(self) -> dict[str, Any]:
        return self.outline.meta

    def __len__(self) -> int:
        """Examples, as everywhere."""
        return len(self.mask)


@dataclass(frozen=True, eq=False)
class TargetRows(Outlined):
    """One row per target, from the input to the last layer: `scores` `[B, N, T]`.

    `attribution(n)` is the n-th row as an `Attribution`; with `layers` (`[B, L, N, T]`) also that of
    another layer (1 to L).
    """

    scores: Tensor
    targets: tuple[Target, ...]
    outline: ContextMixingMap
    layers: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        return self.scores.shape

    def __getitem__(self, example: int) -> TargetRows:
        """One example as a batch of one, without its padding."""
        keep = self.mask[example].nonzero().squeeze(-1)
        cut = lambda rows: rows[example][None][..., keep]
        held, size = self.outline, len(keep)
        outline = replace(
            held,
            layers=torch.empty(1, held.depth, size, size, device="meta"),
            tokens=[held.tokens[example].take(keep.tolist())],
            mask=torch.ones(1, size, dtype=torch.bool),
        )
        layers = None if self.layers is None else cut(self.layers)
        return replace(self, scores=cut(self.scores), outline=outline, layers=layers)

    def numpy(self) -> Any:
        return self.scores.detach().cpu().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def attribution(self, number: int = 0, layer: int = -1) -> Attribution:
        """The row of the n-th target (from 0), as `map.attribution(target, layer)` would give it."""
        if not -len(self.targets) <= number < len(self.targets):
            raise InputError(
                f"There is no row {number}: {len(self.targets)} targets were asked for, "
                f"0 to {len(self.targets) - 1}."
            )
        index = layer_index(layer, self.outline.layer_numbers)
        if index == self.outline.depth - 1:
            scores = self.scores[:, number]
        elif self.layers is None:
            raise OptionError("Only the last layer's rows were made: ask with layers=True.")
        else:
            scores = self.layers[:, index, number]
        return self.outline.row_of(scores, self.targets[number], index, "input")

    def by_layer(self, number: int = 0) -> list[Attribution]:
        """The row of every layer, 1 to L."""
        return [self.attribution(number, layer) for layer in self.outline.layer_numbers]


class LayerRows:
    """Rows of rollouts: of each layer only what is linear in T is kept, and from the last layer downwards the targets'
    weights are multiplied by blocks of its map's rows. A layer whose attention the model itself spelled out (eager),
    or a short one, gives its map at once.
    """

    streams = True

    def __init__(self, recipes: dict[str, Recipe], budget: Budget, wanted: Wanted) -> None:
        self.recipes, self.budget, self.wanted = recipes, budget, wanted
        self.reads = reads_of(recipes)
        self.layers: list[LayerRecord | dict[str, Tensor] | None] = []

    def add(self, layer: LayerRecord, layers: int = 1) -> None:
        """A layer, or several of one shape as one batch."""
        methods = tuple(recipe.method for recipe in self.recipes.values())
        layer.workspace.methods = methods
        if layer.deferred is not None:
            needs = {method.about.needs for method in methods}
            most = next(n for n in ("block", "values", "attention") if n in needs)
            self.layers.append(layer.slim(most, any(m.reads_totals for m in methods)))
            return
        made = {
            key: layer_map_of(layer, method, self.budget).chunk(layers)
            for (key, recipe) in self.recipes.items()
            if isinstance(method := recipe.method, LayerMethod)
        }
        self.layers += ({key: maps[i] for key, maps in made.items()} for i in range(layers))
        layer.release()

    def finish(
        self, record: ModelRecord, places: Sequence[int] | None = None, output: Any = None
    ) -> dict[str, TargetRows | ContextMixingMap]:
        for recipe in self.recipes.values():
            check_not_refused(record, recipe)
        places = range(len(self.layers)) if places is None else places
        outlines = {
            key: self.wanted.named(outline_of(record, key, recipe), output)
            for key, recipe in self.recipes.items()
        }
        weights = {key: self.wanted.weights(outline) for key, outline in outlines.items()}
        start = next(iter(weights.values()))[0].to(record.mask.device, record[0].attention.dtype)
        average = record.mask[:, None].to(start)
        average = average / average.sum(dim=-1, keepdim=True).clamp(min=1)
        walks = {
            key: _Walk(recipe, start, average, self.wanted) for key, recipe in self.recipes.items()
        }
        for place in reversed(places):
            kept, self.layers[place] = self.layers[place], None
            assert kept is not None
            for walk in walks.values():
                walk.enter()
            if isinstance(kept, dict):
                whole = slice(0, start.shape[-1])
                for key, walk in walks.items():
                    walk.take(kept[key], whole, whole)
            else:
                self._walk_rows(kept, walks)
            for walk in walks.values():
                walk.leave()
        return {key: walk.result(weights[key][1], record) for key, walk in walks.items()}

    def _walk_rows(self, layer: LayerRecord, walks: dict[str, _Walk]) -> None:
        needed = torch.stack([walk.reads() for walk in walks.values()]).any(dim=0)
        assert layer.deferred is not None
        everywhere = not all(recipe.method.local for recipe in self.recipes.values())
        for targets in layer.deferred.blocks(min(BLOCK, self.budget.bytes // 4)):
            if not bool(needed[targets].any()):
                continue  # rows nobody asked for
            part = layer.rows(targets, everywhere)
            for key, recipe in self.recipes.items():
                method = recipe.method
                assert isinstance(method, LayerMethod)
                made = layer_map_of(part, method, self.budget)
                walks[key].take(made, targets, part.sources)
        layer.release()


class _Walk:
    """One method's rows on the way down: `[B, K, T]`, K the targets (times the layers passed, if all are asked for)."""

    def __init__(self, recipe: Recipe, start: Tensor, whole: Tensor, wanted: Wanted) -> None:
        self.recipe, self.start, self.whole, self.wanted = recipe, start, whole, wanted
        # [B, 1, T], from the layer below the last: what the text as a whole is made from
        self.everybody: Tensor | None = None
        self.watched = wanted.segments is None and start.shape[-1] >= WATCHED_FROM
        self.layers = wanted.layers or wanted.segments is not None
        self.within: list[Tensor] = []  # of segments, from the last layer down: its own map's rows
        self.carried: Tensor | None = None
        self.next = start
        self.scale = torch.zeros(len(start), dtype=torch.float64, device=start.device)
        self.sums = recipe.method.rows_sum_to_one

    def enter(self) -> None:
        """A layer begins: it takes the rows from above, and the targets themselves where it starts rows of its own."""
        if self.carried is None:
            self.carried = self.start
        elif self.layers:
            scaled = self.start / self.scale.exp().to(self.start)[:, None, None]
            self.carried = torch.cat([self.carried, scaled], dim=1)
        if self.watched and self.carried is not self.start and self.everybody is None:
            self.everybody = self.whole
        self.next = torch.zeros_like(self.carried)
        self.next_of_everybody = torch.zeros_like(self.whole)
        if self.wanted.segments is not None:
            self.within.append(torch.zeros_like(self.start))

    def reads(self) -> Tensor:
        """`[T]` bool: the rows of this layer's map that count."""
        assert self.carried is not None
        return (self.carried != 0).flatten(0, 1).any(dim=0)

    def take(self, rows: Tensor, targets: slice, sources: slice) -> None:
        assert self.carried is not None
        self.sums = self.sums and _shares(rows, self.carried[:, :, targets])
        if self.within:
            self.within[-1][:, :, sources] += self.start[:, :, targets] @ rows.to(self.start.dtype)
        rows = to_shares(rows) if self.recipe.method.rolls_out_shares else rows
        self.next[:, :, sources] += self.carried[:, :, targets] @ rows.to(self.carried.dtype)
        if self.everybody is not None:
            self.next_of_everybody[:, :, sources] += self.everybody[:, :, targets] @ rows.to(
                self.everybody.dtype
            )

    def leave(self) -> None:
        self.carried = self.next
        if self.everybody is not None:
            self.everybody = to_shares(self.next_of_everybody)
        largest = self.carried.abs().amax(dim=(1, 2))
        if bool((largest > LARGE).any()):  # unnormalised maps grow with depth
            self.carried = self.carried / largest.clamp(min=1e-30)[:, None, None]
            self.scale += largest.double().clamp(min=1e-30).log()

    def result(
        self, outline: ContextMixingMap, record: ModelRecord
    ) -> TargetRows | ContextMixingMap:
        """Rows, or of segments the map of which they are the units."""
        dtype = record[0].attention.dtype
        assert self.carried is not None
        found = self.carried.double() * self.scale.exp()[:, None, None]
        if float(found.abs().max()) > torch.finfo(dtype).max:
            warnings.warn(
                "The unnormalised rollout is too large for its precision: each example's rows are divided "
                "by one scalar.",
                OverflowScaledWarning,
                stacklevel=2,
            )
            found = self.carried
        layers = found.unflatten(1, (-1, self.start.shape[1])).flip(1)
        layers = layers.to(dtype)
        outline = replace(outline, meta={**outline.meta, "rows_sum_to_one": bool(self.sums)})
        if self.wanted.segments is not None:
            join = (self.start > 0).to(layers).mT[:, None]  # [B, 1, T, N]
            own = torch.stack(self.within[::-1], dim=1).to(layers)
            return replace(outline, layers=own @ join, given_input=layers @ join)
        if self.everybody is not None:
            apart = (self.start - self.whole).abs().sum(dim=-1).amax(dim=0) / 2
            _warn_of_alike(layers[:, -1], self.everybody, apart, self.wanted, outline.method)
        return TargetRows(
            layers[:, -1],
            self.wanted.targets,
            outline,
            layers if self.layers else None,
        )


WATCHED_FROM = (
    512  # tokens: shorter texts are looked at as maps, where rows that are alike can be seen
)
ALIKE = 0.05  # of a row's mass that would have to move to make it everybody's row


def _warn_of_alike(
    rows: Tensor, everybody: Tensor, targets_apart: Tensor, wanted: Wanted, method: str
) -> None:
    """Rollouts converge with depth: a row that is that of the whole text says nothing of its target."""
    shares = lambda values: values / values.abs().sum(dim=-1, keepdim=True).clamp(min=1e-30)
    apart = (shares(rows) - shares(everybody)).abs().sum(dim=-1).amax(dim=0) / 2
    alike = [
        str(target)
        for target, close, other in zip(
            wanted.targets, apart < ALIKE, targets_apart > 0.25, strict=True
        )
        if close and other  # "mean_pool" is the whole text, and says so
    ]
    if alike:
        warnings.warn(
            f"{method}, rolled out to the input: the row of {', '.join(alike[:3])} is that of the whole text "
            f"to within {ALIKE:.0%}, so it says little about its target. Look at an earlier layer (layers=True).",
            AlikeRowsWarning,
            stacklevel=2,
        )


LARGE = 1e15  # far from the end of float32


def _shares(rows: Tensor, weights: Tensor) -> bool:
    """Do the rows that count sum to one?"""
    counts = (weights != 0).any(dim=1)
    return bool(((rows.sum(dim=-1) - 1).abs() <= 1e-3)[counts].all())


def outline_of(record: ModelRecord, key: str, recipe: Recipe) -> ContextMixingMap:
    """The map without its numbers."""
    batch, _, tokens, _ = record[0].attention.shape
    empty = torch.empty(batch, len(record), tokens, tokens, device="meta")
    return _as_map(record, key, recipe, empty, None, None, {}, sums=False)


def rows_of_maps(
    maps: dict[str, ContextMixingMap], wanted: Wanted, output: Any = None
) -> dict[str, TargetRows | ContextMixingMap]:
    """The same rows (or maps of segments) taken from whole maps, for methods that have no cheaper ones."""
    made: dict[str, TargetRows | ContextMixingMap] = {}
    for key, whole in maps.items():
        named = wanted.named(whole, output)
        if wanted.segments is not None:
            made[key] = named.segments(wanted.segments)
            continue
        values = named.input if wanted.layers else named.input[:, -1:]
        rows = wanted.weights(named)[0].to(values)[:, None] @ values
        made[key] = TargetRows(rows[:, -1], wanted.targets, named, rows if wanted.layers else None)
    return made


def rows_of_record(
    record: ModelRecord, methods: Specs, wanted: Wanted, max_memory: Any, output: Any
) -> dict[str, TargetRows | ContextMixingMap]:
    """Rows where some method needs the whole record: an input method that can computes these alone,
    of any other the whole map is made.
    """
    recipes, budget = resolve(methods), Budget.of(max_memory)
    alone = {
        key: recipe.method
        for key, recipe in recipes.items()
        if isinstance(recipe.method, InputMethod) and recipe.method.has_rows
    }
    others = {key: recipe for key, recipe in recipes.items() if key not in alone}
    maps = compute_maps(record, others.values(), max_memory) if others else {}
    made = rows_of_maps(dict(zip(others, maps.values(), strict=True)), wanted, output)
    for key, method in alone.items():
        outline = wanted.named(outline_of(record, key, recipes[key]), output)
        weights, _ = wanted.weights(outline)
        read = (weights != 0).flatten(0, 1).any(dim=0).nonzero().squeeze(-1)
        rows, notes = method.input_rows(record, budget, read.tolist(), wanted.layers)
        sums = rows.sum(dim=-1)
        shares = bool((((sums - 1).abs() <= 1e-3) | (sums == 0)).all())
        meta = {**outline.meta, "rows_sum_to_one": shares, "notes": notes}
        found = weights[..., read].to(rows)[:, None] @ rows
        made[key] = TargetRows(
            found[:, -1],
            wanted.targets,
            replace(outline, meta=meta),
            found if wanted.layers else None,
        )
    return {key: made[key] for key in recipes}


def compute_maps(
    record: ModelRecord, methods: Specs, max_memory: Any = None
) -> dict[str, ContextMixingMap]:
    """All methods of one call from one record."""
    recipes, budget = resolve(methods), Budget.of(max_memory)
    for key, recipe in recipes.items():
        if record[0].attention.requires_grad and not recipe.method.differentiable:
            raise OptionError(
                f"{key} cannot keep a graph (create_graph=True): it works in place or takes derivatives itself."
            )
    gathered = LayerMaps(
        {key: recipe for key, recipe in recipes.items() if isinstance(recipe.method, LayerMethod)},
        budget,
        len(record),
    )
    for layer in record:
        gathered.add(layer)
    made = gathered.finish(record)
    for key, recipe in recipes.items():
        if isinstance(recipe.method, InputMethod):
            values, notes = recipe.method.input_maps(record, budget)
            made[key] = _as_map(record, key, recipe, None, None, values, notes)
    return {key: made[key] for key in recipes}


def _sum_to_one(maps: Tensor, mask: Tensor) -> bool:
    """Do the rows of real tokens really? Attention sinks take some of each row away."""
    sums = maps.detach().sum(dim=-1)
    return bool((((sums - 1).abs() <= 1e-3) | ~mask[:, None]).all())


def _as_map(
    record: ModelRecord,
    key: str,
    recipe: Recipe,
    layers: Any,
    heads: Any,
    given: Any,
    notes: dict[str, Any],
    sums: bool = True,
) -> ContextMixingMap:
    meta = {
        "options": recipe.method.options(),
        "approximate": record.approximate(
            "layer" if isinstance(recipe.method, HtaTimesInput) else recipe.method.about.needs
        ),
        "rows_sum_to_one": sums
        and recipe.method.rows_sum_to_one
        and _sum_to_one(given if layers is None else layers, record.mask),
        "rolls_out_shares": recipe.method.rolls_out_shares,
        "origin": record.origin,
        "causal": record.causal,
        **({"part": record.origin["part"]} if "part" in record.origin else {}),
        "notes": notes,
    }
    return ContextMixingMap(
        method=key,
        layers=layers,
        mask=record.mask,
        tokens=list(record.tokens),
        heads=heads,
        aggregation="rollout" if recipe.aggregation == "none" else recipe.aggregation,
        meta=meta,
        given_input=given,
    )


# ---- as a config keeps them -----------------------------------------------------------------------------------
def methods_to_json(methods: Specs) -> list[Any]:
    """Methods as a config can keep them: names, or a name with all its options."""
    return (
        [] if methods is None else [_spec(key, recipe) for key, recipe in resolve(methods).items()]
    )


def _spec(key: str, recipe: Recipe) -> Any:
    name = plain_name(key)
    options = json.loads(json.dumps(recipe.method.options()))
    plain = json.loads(json.dumps(method(name).method.options()))
    return name if options == plain else {"name": name, "options": options}


def methods_from_json(saved: Any) -> list[Any] | None:
    """What `methods_to_json` wrote, as methods again; None where nothing was written."""
    if not isinstance(saved, list) or not saved:
        return None
    return [item if isinstance(item, str) else _method(item) for item in saved]


def _method(item: Any) -> Recipe:
    try:
        options = {
            key: tuple(v) if isinstance(v, list) else v for key, v in item["options"].items()
        }
        return replace(method(str(item["name"]), **options), name=str(item["name"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{item!r:.80} is not a method: expected a name, or a name and options."
        ) from error
