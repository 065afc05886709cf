"""Maps of long texts by their largest entries: of each row the k sources with most, and what the rest has together."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ctxmix_hf.aggregation.rollout import OverflowScaledWarning
from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.counting import layer_index
from ctxmix_hf.errors import OptionError
from ctxmix_hf.methods import LayerMethod
from ctxmix_hf.methods.base import layer_map_of
from ctxmix_hf.recipes import (
    LARGE,
    Outlined,
    Recipe,
    Wanted,
    check_not_refused,
    outline_of,
    reads_of,
    whole_from_rows,
)
from ctxmix_hf.records import LayerRecord, ModelRecord
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.text.targets import Target


class Tops(NamedTuple):
    """The largest entries of some maps' rows."""

    sources: Tensor  # [B, L, T, K]: columns, largest first
    values: Tensor  # [B, L, T, K]
    rest: Tensor  # [B, L, T]: the sum of all other columns

    def dense(self) -> Tensor:
        """`[B, L, T, T]` with zeros where nothing was kept."""
        shape = (*self.sources.shape[:3], self.sources.shape[2])
        return self.values.new_zeros(shape).scatter(-1, self.sources, self.values)


def tops_of(maps: Tensor, k: int, mask: Tensor) -> Tops:
    """Of `[B, L, T, T]`. Sources are chosen by size, so a negative part counts as its amount; padding comes last."""
    k = min(k, maps.shape[-1])
    sizes = maps.abs().masked_fill_(~mask[:, None, None], -1)
    sources = sizes.topk(k, dim=-1).indices
    values = maps.gather(-1, sources)
    return Tops(sources, values, maps.sum(dim=-1) - values.sum(dim=-1))


@dataclass(frozen=True, eq=False)
class SparseMap(Outlined):
    """The k largest sources of every token, per layer and from the input, and what all others add.

    `input` and `layers` are `Tops`: `sources` `[B, L, T, K]`, `values` `[B, L, T, K]`, `rest` `[B, L, T]`;
    `layers` is None for methods that start at the input. Layers count from 1 to L in calls.
    """

    input: Tops
    layers: Tops | None
    outline: ContextMixingMap

    @property
    def top_k(self) -> int:
        return int(self.input.sources.shape[-1])

    @property
    def depth(self) -> int:
        return int(self.input.sources.shape[1])

    @property
    def size(self) -> int:
        return int(self.mask.shape[1])

    def __repr__(self) -> str:
        return f"SparseMap({self.method}, {len(self)} x {self.depth} layers x {self.size} tokens, top {self.top_k})"

    def top(
        self, target: Target = None, layer: int = -1, example: int = 0
    ) -> list[tuple[str, float]]:
        """The kept sources of a target with their values, largest first, and last `("(rest)", value)`."""
        row = self.attribution(target, layer)
        kept = int((row.scores[example] != 0).sum())
        return [*row.top(kept, example), ("(rest)", row.meta["rest"][example])]

    def attribution(self, target: Target = None, layer: int = -1) -> Attribution:
        """The row of a target with zeros where nothing was kept; `meta["rest"]` `[B]` is what the others had together.

        Several tokens (the pieces of a word, `"mean_pool"`) are averaged: a source that only some of
        them kept has its other shares in the rest, so that scores and rest still sum to the row's sum.
        """
        index, scores, rest = layer_index(layer, self.outline.layer_numbers), [], []
        for b in range(len(self)):
            weights = self.outline.weights(target, b).to(self.input.values)
            places = weights.nonzero().squeeze(-1)
            weights = weights[places]
            values = self.input.values[b, index, places] * weights[:, None]
            row = values.new_zeros(self.size)
            row.index_add_(0, self.input.sources[b, index, places].flatten(), values.flatten())
            scores.append(row)
            rest.append(float(self.input.rest[b, index, places] @ weights))
        made = self.outline.row_of(torch.stack(scores), target, index, "input")
        return replace(made, meta={**made.meta, "top_k": self.top_k, "rest": rest})

    def to_map(self) -> ContextMixingMap:
        """A whole map with zeros where nothing was kept: for short texts, to draw or to compare."""
        meta = {**self.meta, "top_k": self.top_k, "rows_sum_to_one": False}
        layers = None if self.layers is None else self.layers.dense()
        return replace(self.outline, layers=layers, given_input=self.input.dense(), meta=meta)


def sparse(made: ContextMixingMap, k: int) -> SparseMap:
    """The largest entries of a map that is there."""
    layers = None if made.layers is None else tops_of(made.layers, k, made.mask)
    batch, size = made.mask.shape
    empty = torch.empty(batch, made.depth, size, size, device="meta")
    outline = replace(made, layers=empty, heads=None, given_input=None)
    return SparseMap(tops_of(made.input, k, made.mask), layers, outline)


class LayerTops:
    """Sparse maps, gathered layer by layer: of each layer one map and one product are there at a time."""

    streams = True

    def __init__(self, recipes: dict[str, Recipe], budget: Budget, wanted: Wanted) -> None:
        assert wanted.top_k is not None
        # one product at a time: layers are not joined
        self.reads = replace(reads_of(recipes), layers_joined=False)
        self.recipes, self.budget, self.wanted, self.k = recipes, budget, wanted, wanted.top_k
        self.carried: dict[str, Tensor] = {}
        self.scales: dict[str, Tensor] = {}  # [B]: the logarithm of what `carried` was divided by
        self.within: dict[str, list[Tops]] = {key: [] for key in recipes}
        self.rolled: dict[str, list[Tops]] = {key: [] for key in recipes}

    def add(self, layer: LayerRecord, layers: int = 1) -> None:
        assert layers == 1
        layer.workspace.methods = tuple(recipe.method for recipe in self.recipes.values())
        made: dict[Any, Tensor] = {}
        if layer.deferred is not None:
            made, _ = whole_from_rows(layer, self.recipes, self.budget)
        for key, recipe in self.recipes.items():
            method = recipe.method
            assert isinstance(method, LayerMethod)
            own = made.get(method)
            if own is None:
                own = layer_map_of(layer, method, self.budget)
            shares = to_shares(own) if method.rolls_out_shares else own
            self.within[key].append(tops_of(own[:, None], self.k, layer.mask))
            self.rolled[key].append(self._roll(key, shares, layer.mask))
        layer.release()

    def _roll(self, key: str, own: Tensor, mask: Tensor) -> Tops:
        """The next product; unnormalised maps grow with depth, so what is carried on is kept in range."""
        before = self.carried.get(key)
        if before is not None and before.shape != own.shape:  # another tower: `finish` says so
            before = None
            del self.scales[key]
        product = own if before is None else own @ before
        tops = tops_of(product[:, None], self.k, mask)
        scale = self.scales.get(key, torch.zeros(len(own), dtype=torch.float64, device=own.device))
        if bool((scale > 0).any()):
            larger = lambda t: (t.double() * scale.exp().view(-1, *(1,) * (t.dim() - 1))).to(
                t.dtype
            )
            grown = Tops(tops.sources, larger(tops.values), larger(tops.rest))
            if bool(torch.isfinite(grown.values).all()):
                tops = grown
            else:
                warnings.warn(
                    "The unnormalised rollout is too large for its precision: each example's rows are divided "
                    "by one scalar.",
                    OverflowScaledWarning,
                    stacklevel=2,
                )
        largest = product.abs().amax(dim=(1, 2))
        if bool((largest > LARGE).any()):
            product = product / largest.clamp(min=1e-30)[:, None, None]
            scale = scale + largest.double().clamp(min=1e-30).log()
        self.carried[key], self.scales[key] = product, scale
        return tops

    def finish(
        self, record: ModelRecord, places: Sequence[int] | None = None, output: Any = None
    ) -> dict[str, SparseMap]:
        made = {}
        for key, recipe in self.recipes.items():
            check_not_refused(record, recipe)
            if places is not None and len(places) != len(self.within[key]):
                raise OptionError(
                    "top_k=... is made while the layers run, one stack of them: this model has several towers. Ask for "
                    "target=... instead, or load one tower."
                )
            join = lambda tops: Tops(*(torch.cat(parts, dim=1) for parts in zip(*tops)))
            outline = self.wanted.named(outline_of(record, key, recipe), output)
            made[key] = SparseMap(join(self.rolled[key]), join(self.within[key]), outline)
        return made
