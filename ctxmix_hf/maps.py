"""Results: a `ContextMixingMap` knows its tokens, how it was made, and how to be aggregated, sliced and merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ctxmix_hf.aggregation.flow import flow
from ctxmix_hf.aggregation.rollout import rollout, with_residual
from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.errors import InputError, OptionError
from ctxmix_hf.tokens import Tokens, numbered
from ctxmix_hf.views import AttributionViews, MapViews

Target = int | str | Sequence[int] | Literal["mean_pool"]
AGGREGATIONS = ("rollout", "flow", "none")


@dataclass(frozen=True, repr=False)
class Attribution(AttributionViews):
    """One score per source token: a row of a map, or the importance for a class. `[B, T]`, zero on padding."""

    scores: Tensor
    tokens: list[Tokens]
    mask: Tensor
    method: str
    target: str
    meta: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.scores.shape[0]

    def __repr__(self) -> str:
        return f"Attribution({self.method}, target {self.target}, {len(self)} x {self.scores.shape[1]} tokens)"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """`np.asarray(attribution)` is its scores."""
        array = self.scores.detach().cpu().numpy()
        return array if dtype is None else array.astype(dtype)

    def __getattr__(self, name: str) -> Any:
        """Behaves as its scores where a tensor is expected: `.shape`, `.sum()`, `.numpy()`, ..."""
        if name.startswith("_") or name == "scores" or not hasattr(Tensor, name):
            raise AttributeError(f"Attribution has no attribute {name!r}")
        return getattr(self.scores, name)

    def __getitem__(self, example: int) -> Attribution:
        """One example, still a batch of one, without its padding."""
        keep = self.mask[example].nonzero().squeeze(-1)
        return replace(
            self,
            scores=self.scores[example : example + 1, keep] if example >= 0 else self.scores[example][None, keep],
            tokens=[self.tokens[example].take(keep.tolist())],
            mask=torch.ones(1, len(keep), dtype=torch.bool),
        )


@dataclass(frozen=True, repr=False)
class ContextMixingMap(MapViews):
    """Contributions of source tokens (columns) to target tokens (rows), per layer and from the input.

    `layers` `[B, L, T, T]` is None for methods that start at the input; `input` `[B, L, T, T]` maps layer l's tokens to
    the model's input. Padded rows and columns are zero.
    """

    method: str
    layers: Tensor | None
    mask: Tensor  # [B, T]
    tokens: list[Tokens] = field(default_factory=list)
    aggregation: str = "rollout"
    residual: float | None = None
    heads: Tensor | None = None  # [B, L, H, T, T]
    meta: dict[str, Any] = field(default_factory=dict)
    given_input: Tensor | None = None  # for methods that start at the input, and for stored maps

    def __post_init__(self) -> None:
        if self.layers is None and self.given_input is None:
            raise OptionError("A map needs per-layer maps or input maps.")
        if not self.tokens:
            object.__setattr__(self, "tokens", [numbered(self.size) for _ in range(len(self.mask))])

    @property
    def size(self) -> int:
        return int(self.mask.shape[1])

    @property
    def depth(self) -> int:
        values = self.layers if self.layers is not None else self.given_input
        assert values is not None
        return int(values.shape[1])

    def __len__(self) -> int:
        return len(self.mask)

    def __repr__(self) -> str:
        return f"ContextMixingMap({self.method}, {len(self)} x {self.depth} layers x {self.size} tokens)"

    @property
    def input(self) -> Tensor:
        """The map of every layer to the input, by the method's own aggregation."""
        if self.given_input is None:
            object.__setattr__(self, "given_input", self.aggregate(self.aggregation, residual=self.residual))
        assert self.given_input is not None
        return self.given_input

    def aggregate(
        self, aggregation: str = "rollout", *, residual: float | None = None, row_shares: bool = True,
        receptive_field: bool = False, targets: Sequence[int] | None = None,
    ) -> Tensor:  # fmt: skip
        """`[B, L, T, T]` from the layer maps: `rollout`, `flow` or `none` (the layer maps themselves).

        `residual` mixes the identity in first (0.5 is Abnar & Zuidema's). `receptive_field=True` divides column j by the
        number of tokens that can see it and renormalises rows, which Abnar & Zuidema ask for on causal models.
        """
        if aggregation not in AGGREGATIONS:
            raise OptionError(f"aggregation={aggregation!r} does not exist. Choose one of {', '.join(map(repr, AGGREGATIONS))}.")
        if self.layers is None:
            if aggregation == "none" and self.given_input is not None:
                return self.given_input
            raise OptionError(
                f"{self.method} starts at the input, so each of its layers is an aggregate already: rolling it out makes no sense."
            )
        maps = self.layers if residual is None else with_residual(self.layers, residual, self.mask)
        if receptive_field:
            maps = _by_receptive_field(maps, self.mask)
        if aggregation == "rollout":
            return rollout(to_shares(maps) if self.meta.get("rolls_out_shares") else maps)
        return flow(maps, self.mask, row_shares=row_shares, targets=targets) if aggregation == "flow" else maps

    def head_rollout(self, layer: int, head: int) -> Tensor:
        """Abnar's single-head rollout: one head of `layer` on top of the head-averaged maps below, `[B, T, T]`."""
        if self.heads is None or self.layers is None:
            raise OptionError("head_rollout needs per-head maps: ask for the method with per_head=True.")
        layer = layer % self.depth
        top = self.heads[:, layer, head]
        return top if layer == 0 else top @ rollout(self.layers[:, :layer])[:, -1]

    # ---- choosing ---------------------------------------------------------------------------------------------
    def __getitem__(self, example: int) -> ContextMixingMap:
        """One example as a batch of one, without its padding."""
        keep = self.mask[example].nonzero().squeeze(-1)
        cut = lambda t: None if t is None else t[example][..., keep[:, None], keep][None]  # noqa: E731
        return replace(
            self,
            layers=cut(self.layers),
            heads=cut(self.heads),
            given_input=cut(self.given_input),
            tokens=[self.tokens[example].take(keep.tolist())],
            mask=torch.ones(1, len(keep), dtype=torch.bool),
            meta={**self.meta, "notes": {}},
        )

    def position(self, target: Target, example: int = 0) -> list[int]:
        """The rows a target names: a position, a piece (`"[MASK]"`, `"word#2"`), several of them, or `"mean_pool"`."""
        real = self.mask[example].nonzero().squeeze(-1).tolist()
        if isinstance(target, str):
            if target == "mean_pool":
                return real
            return [self._class_token(example) if target == "[CLS]" else self.tokens[example].find(target)]
        if isinstance(target, int):
            return [self._real(target, real)]
        return [place for item in target for place in self.position(item, example)]

    def _class_token(self, example: int) -> int:
        """[CLS], or whatever the tokenizer calls it, stands first among the real tokens."""
        pieces = self.tokens[example].pieces
        for name in ("[CLS]", "<s>", "<cls>"):
            if name in pieces:
                return pieces.index(name)
        return int(self.mask[example].nonzero()[0])

    def _real(self, target: int, real: list[int]) -> int:
        if not -len(real) <= target < len(real):
            raise InputError(f"Token {target} does not exist: the sentence has {len(real)} tokens.")
        return real[target]

    def attribution(self, target: Target = "[CLS]", layer: int = -1, scope: Literal["input", "layer"] = "input") -> Attribution:
        """One row: the contributions to `target` in `layer`, from the input (`scope="input"`) or within the layer.

        Several rows (a word, a span, `"mean_pool"`) are averaged: the mean of vectors is made from the mean of rows.
        """
        maps = self.input if scope == "input" else self.layers
        if maps is None:
            raise OptionError(f"{self.method} has no per-layer maps: use scope='input'.")
        if not -self.depth <= layer < self.depth:
            raise InputError(f"Layer {layer} does not exist: the model has {self.depth} layers.")
        rows = [maps[b, layer, self.position(target, b)].mean(dim=0) for b in range(len(self))]
        named = target if isinstance(target, str) else str(target)
        return Attribution(torch.stack(rows), self.tokens, self.mask, self.method, named, {**self.meta, "layer": layer})

    def words(self) -> ContextMixingMap:
        """Sub-words merged to words on both axes, all layers: sources are summed, targets averaged."""
        groups = [tokens.take(self.mask[b].nonzero().squeeze(-1).tolist()).groups() for b, tokens in enumerate(self.tokens)]
        size = max(len(group) for group in groups)
        kind = self.layers if self.layers is not None else self.input
        join = kind.new_zeros(len(self), size, self.size)  # 1 where a piece belongs to a word
        mask = torch.zeros(len(self), size, dtype=torch.bool)
        for b, group in enumerate(groups):
            real = self.mask[b].nonzero().squeeze(-1)
            for w, pieces in enumerate(group):
                join[b, w, real[pieces]] = 1
                mask[b, w] = True
        mean = join / join.sum(dim=-1, keepdim=True).clamp(min=1)
        merge = lambda t, axes: None if t is None else (  # noqa: E731
            mean.view(len(self), *(1,) * axes, *mean.shape[1:]) @ t @ join.mT.view(len(self), *(1,) * axes, self.size, size)
        )  # fmt: skip
        tokens = [t.take(self.mask[b].nonzero().squeeze(-1).tolist()).merged().with_length(size) for b, t in enumerate(self.tokens)]
        return replace(
            self, layers=merge(self.layers, 1), heads=merge(self.heads, 2), given_input=merge(self.input, 1),
            tokens=tokens, mask=mask, meta={**self.meta, "unit": "word"},
        )  # fmt: skip


def _by_receptive_field(maps: Tensor, mask: Tensor) -> Tensor:
    """Each column divided by how many real tokens can see it, rows back to shares."""
    seen = ((maps > 0) & mask[:, None, :, None]).sum(dim=-2, keepdim=True).clamp(min=1)
    return to_shares(maps / seen)
