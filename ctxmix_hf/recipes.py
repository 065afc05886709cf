"""From names to maps: methods, the papers' recipes (method + aggregation), and the one loop that computes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.errors import OptionError, UnknownNameError
from ctxmix_hf.maps import AGGREGATIONS, ContextMixingMap
from ctxmix_hf.methods import METHODS, About, AbstractMethod, InputMethod, LayerMethod, make_method
from ctxmix_hf.methods.attention import AttentionFixedResidual
from ctxmix_hf.methods.norms import NormEncoder, NormResidualNorm
from ctxmix_hf.records import LayerRecord, ModelRecord
from ctxmix_hf.registry import Registry


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
        AttentionFixedResidual(), "rollout",
        About("product of the layers' attention, half of each token kept", "Abnar & Zuidema 2020", "prod_l (0.5 W_l + 0.5 I)",
              "none beyond the forward pass", "attention", "attention weights, a fixed residual", "values, norms, feed-forward"),
    )
)  # fmt: skip
RECIPES.register("attention_flow")(
    Recipe(
        AttentionFixedResidual(), "flow",
        About("maximum flow through the attention graph", "Abnar & Zuidema 2020", "maxflow((l,i) -> (0,j)), capacities 0.5 W + 0.5 I",
              "one maximum flow per layer and pair", "attention", "attention weights, a fixed residual",
              "values, norms, feed-forward"),
    )
)  # fmt: skip
RECIPES.register("globenc")(
    Recipe(
        NormEncoder(), "rollout",
        About("product of the layers' N_ENC", "Modarressi et al. 2022", "prod_l N_ENC_l (unnormalised)",
              "O(T^2 H^2) per layer", "block", "attention, residuals and norms of all layers", "feed-forward"),
    )
)  # fmt: skip
RECIPES.register("norm_rollout")(
    Recipe(
        NormResidualNorm(row_normalised=True), "rollout",
        About("product of the layers' N_RESLN as shares", "Kobayashi et al. 2021; Ferrando et al. 2022",
              "prod_l N_RESLN_l / rowsum", "O(T^2 H^2) per layer", "block", "attention blocks of all layers", "feed-forward"),
    )
)  # fmt: skip


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


def method_infos() -> list[MethodInfo]:
    infos = [_info(name, METHODS.get(name)(), METHODS.get(name).kind, METHODS.get(name).about) for name in METHODS]
    return infos + [_info(name, r.method, "input", r.summary) for name, r in ((n, RECIPES.get(n)) for n in RECIPES)]


def _info(name: str, method: AbstractMethod, kind: str, about: About) -> MethodInfo:
    return MethodInfo(name=name, kind=kind, options=method.options(), **about.__dict__)


def map_names() -> list[str]:
    return [*METHODS.names(), *RECIPES.names()]


Spec = str | AbstractMethod | Recipe


def method(name: str, **options: Any) -> Recipe:
    """A method, recipe or `"<layer method>+rollout|flow"` by name, with options: `method("value_zeroing", distance="euclidean")`."""
    base, _, aggregation = (part.strip() for part in name.partition("+"))
    if base in RECIPES and not aggregation:
        recipe = RECIPES.get(base)
        _check_options(name, recipe.method, options)
        return replace(recipe, method=replace(recipe.method, **options), name=name)
    if base not in METHODS:
        raise UnknownNameError.among("method", name, map_names())
    made = make_method(base, **options)
    if aggregation and aggregation not in AGGREGATIONS:
        raise UnknownNameError.among("aggregation", aggregation, AGGREGATIONS)
    if aggregation and isinstance(made, InputMethod):
        raise OptionError(f"{base} starts at the input: it is never aggregated over layers, use {base!r} alone.")
    return Recipe(made, aggregation or ("none" if isinstance(made, InputMethod) else "rollout"), name=name)


def _check_options(name: str, made: AbstractMethod, options: dict[str, Any]) -> None:
    known = [field.name for field in fields(made)]
    for key in options:
        if key not in known:
            raise OptionError(f"Method {name!r} has no option {key!r}. Its options: {', '.join(known) or 'none'}.")


def resolve(specs: Spec | Iterable[Spec]) -> dict[str, Recipe]:
    """What a call asked for, keyed as it will find it again."""
    listed = [specs] if isinstance(specs, str | AbstractMethod | Recipe) else list(specs)
    resolved: dict[str, Recipe] = {}
    for spec in listed:
        recipe = _recipe(spec)
        key = recipe.name if recipe.name not in resolved else f"{recipe.name}({recipe.method.options()})"
        resolved[key] = recipe
    return resolved


def _recipe(spec: Any) -> Recipe:
    if isinstance(spec, Recipe):
        return spec
    if isinstance(spec, str):
        return method(spec)
    if isinstance(spec, AbstractMethod):
        name = next((n for n in METHODS if METHODS.get(n) is type(spec)), type(spec).__name__)
        return Recipe(spec, "none" if isinstance(spec, InputMethod) else "rollout", name=name)
    raise OptionError(f"A method is a name or a method object, not {type(spec).__name__}: {', '.join(map_names())}.")


class LayerMaps:
    """The maps of layer methods, gathered layer by layer: what methods share is computed once and then forgotten."""

    def __init__(self, recipes: dict[str, Recipe], budget: Budget) -> None:
        self.recipes, self.budget = recipes, budget
        self.maps: dict[str, list[Tensor]] = {key: [] for key in recipes}
        self.heads: dict[str, list[Tensor]] = {key: [] for key in recipes}
        self.notes: dict[str, dict[str, list[Tensor]]] = {key: {} for key in recipes}

    def add(self, layer: LayerRecord) -> None:
        layer.asked = tuple(recipe.method for recipe in self.recipes.values())
        for key, recipe in self.recipes.items():
            method, budget = recipe.method, self.budget
            assert isinstance(method, LayerMethod)
            self.maps[key].append(layer.once(method, partial(method.layer_map, layer, budget)))
            for note, value in method.layer_notes(layer).items():
                self.notes[key].setdefault(note, []).append(value)
            per_head = method.head_maps(layer, budget)
            if per_head is not None:
                self.heads[key].append(per_head)
        layer.release()

    def finish(self, record: ModelRecord) -> dict[str, ContextMixingMap]:
        stacked: dict[tuple[int, ...], Tensor] = {}  # methods that share their maps share the stack too
        made = {}
        for key, recipe in self.recipes.items():
            layers, heads = self.maps[key], self.heads[key]
            same = tuple(map(id, layers))
            if same not in stacked:
                stacked[same] = torch.stack(layers, dim=1)
            notes = {note: torch.stack(values, dim=1) for note, values in self.notes[key].items()}
            made[key] = _as_map(record, key, recipe, stacked[same], torch.stack(heads, dim=1) if heads else None, None, notes)
        return made


def compute_maps(record: ModelRecord, methods: Any, max_memory: Any = None) -> dict[str, ContextMixingMap]:
    """All methods of one call from one record."""
    recipes, budget = resolve(methods), Budget.of(max_memory)
    for key, recipe in recipes.items():
        if record[0].attention.requires_grad and not recipe.method.differentiable:
            raise OptionError(f"{key} cannot keep a graph (create_graph=True): it works in place or takes derivatives itself.")
    gathered = LayerMaps({key: recipe for key, recipe in recipes.items() if isinstance(recipe.method, LayerMethod)}, budget)
    for layer in record:
        gathered.add(layer)
    made = gathered.finish(record)
    for key, recipe in recipes.items():
        if isinstance(recipe.method, InputMethod):
            values, notes = recipe.method.input_maps(record, budget)
            made[key] = _as_map(record, key, recipe, None, None, values, notes)
    return {key: made[key] for key in recipes}


def _as_map(record: ModelRecord, key: str, recipe: Recipe, layers: Any, heads: Any, given: Any, notes: dict[str, Any]) -> ContextMixingMap:
    meta = {
        "options": recipe.method.options(),
        "rolls_out_shares": recipe.method.rolls_out_shares,
        "origin": record.origin,
        "causal": record.causal,
        "notes": notes,
    }
    return ContextMixingMap(
        method=key, layers=layers, mask=record.mask, tokens=list(record.tokens), heads=heads,
        aggregation="rollout" if recipe.aggregation == "none" else recipe.aggregation, meta=meta, given_input=given,
    )  # fmt: skip
