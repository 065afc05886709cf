"""Results: a `ContextMixingMap` knows its tokens, how it was made, and how to be aggregated, sliced and merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ctxmix_hf.aggregation.flow import flow
from ctxmix_hf.aggregation.rollout import rollout, with_residual
from ctxmix_hf.algebra.equality import same_numbers
from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.counting import check_scope, in_words, layer_index
from ctxmix_hf.errors import InputError, OptionError
from ctxmix_hf.results.attributions import Attribution, joined_units, told, unit_name
from ctxmix_hf.results.base import Result, show_html
from ctxmix_hf.text.segments import Segments
from ctxmix_hf.text.targets import Target, named, places
from ctxmix_hf.text.tokens import Tokens, numbered

AGGREGATIONS = ("rollout", "flow", "none")


@dataclass(frozen=True, repr=False, eq=False)
class ContextMixingMap(Result):
    """Contributions of source tokens (columns) to target tokens (rows), per layer and from the input.

    `layers` `[B, L, T, T]` is None for methods that start at the input; `input` `[B, L, T, T]` maps layer l's tokens to
    the model's input. Padded rows and columns are zero. In calls layers count from 1 to L and -1 is the last
    (`layer_numbers`); the tensors' axes count from 0.

    Two maps are equal (`==`) if their method, tokens, mask, numbers, aggregation and options are,
    whichever model, file or Hub they came from. The hash is made of the parts of that which cannot
    change in place (method, aggregation, tokens, shape): equal maps have equal hashes, so maps can
    be keys and members of sets, and no tensor is read for it.
    """

    kind: ClassVar[str] = "map"

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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContextMixingMap):
            return NotImplemented
        if self is other:
            return True
        same = [
            (x.method, x.aggregation, x.residual, x.tokens, told(x.meta)) for x in (self, other)
        ]
        if same[0] != same[1] or not all(
            same_numbers(getattr(self, n), getattr(other, n)) for n in ("mask", "layers", "heads")
        ):
            return False
        if self.given_input is None and other.given_input is None:
            return True  # both will be made of the same layers in the same way
        return same_numbers(self.input, other.input)

    def __hash__(self) -> int:
        return hash(
            (
                self.method,
                self.aggregation,
                self.residual,
                tuple(self.tokens),
                len(self),
                self.depth,
                self.size,
            )
        )

    @property
    def layer_numbers(self) -> range:
        """The layers it holds as calls, files and titles count them: 1 to L, or the one that `layer(...)` took."""
        first = self.meta.get("layer", 1) if self.depth == 1 else 1
        return range(first, first + self.depth)

    def of_scope(self, scope: str) -> Tensor:
        """`[B, L, T, T]`: from the input (`"input"`) or within the layers (`"layer"`)."""
        maps = self.input if check_scope(scope) == "input" else self.layers
        if maps is None:
            raise OptionError(f"{self.method} has no per-layer maps: use scope='input'.")
        return maps

    def where(self, layer: int = -1, scope: str = "input", total: int | None = None) -> str:
        """As headers and titles say it: `layer 3, from the input`.

        Args:
            layer: 1 to L; -1 is the last.
            scope: `"input"`: from the input up to the layer; `"layer"`: within the layer.
            total: The number of layers, to be said too.
        """
        return in_words(
            self.layer_numbers[layer_index(layer, self.layer_numbers)], self.meant(scope), total
        )

    def meant(self, scope: str) -> str:
        """Maps that were not joined over the layers (`aggregation="none"`) are within the layer,
        whatever they are asked for.
        """
        return (
            "layer"
            if self.aggregation == "none" and self.layers is not None
            else check_scope(scope)
        )

    @cached_property
    def input(self) -> Tensor:
        """`[B, L, T, T]`: the map of every layer to the input, by the method's own aggregation."""
        if self.given_input is not None:
            return self.given_input
        return self.aggregate(self.aggregation, residual=self.residual)

    def aggregate(
        self,
        aggregation: str = "rollout",
        *,
        residual: float | None = None,
        row_shares: bool = True,
        receptive_field: bool = False,
        targets: Sequence[int] | None = None,
        negative: str | None = None,
    ) -> Tensor:
        """`[B, L, T, T]` from the layer maps: `rollout`, `flow` or `none` (the layer maps themselves).

        `residual` mixes the identity in first (0.5 is Abnar & Zuidema's). `receptive_field=True`
        divides column j by the number of tokens that can see it and renormalises rows, which Abnar
        & Zuidema ask for on causal models.

        Args:
            aggregation: `"rollout"`, `"flow"` or `"none"`.
            residual: The share of the identity that is mixed into every layer's map first; None: none.
            row_shares: Divide the rows of flows by their sum, as the authors' code does.
            receptive_field: Divide by the number of tokens that see a column.
            targets: Compute flows for these rows only; the others are zero.
            negative: What a negative entry counts as in a flow: `"clamp"` (0) or `"absolute"`; None refuses it.

        Returns:
            `[B, L, T, T]`.

        Raises:
            OptionError: The aggregation is not known, the method starts at the input, or a flow has negative entries.
        """
        if aggregation not in AGGREGATIONS:
            raise OptionError.among("aggregation", aggregation, AGGREGATIONS)
        if negative is not None and aggregation != "flow":
            raise OptionError(
                f"negative={negative!r} is for aggregation='flow'; {aggregation} keeps every sign."
            )
        if self.layers is None:
            if aggregation == "none" and self.given_input is not None:
                return self.given_input
            raise OptionError(
                f"{self.method} starts at the input, so each of its layers is an aggregate "
                "already: rolling it out makes no sense."
            )
        maps = self.layers if residual is None else with_residual(self.layers, residual, self.mask)
        if receptive_field:
            maps = _by_receptive_field(maps, self.mask)
        if aggregation == "rollout":
            return rollout(to_shares(maps) if self.meta.get("rolls_out_shares") else maps)
        return (
            flow(maps, self.mask, row_shares=row_shares, targets=targets, negative=negative)
            if aggregation == "flow"
            else maps
        )

    def head_rollout(self, layer: int, head: int) -> Tensor:
        """Abnar's single head: one head of `layer` (1 to L) on top of the head-averaged maps below, `[B, T, T]`.

        Joined as the map itself is: the product for a rollout, maximum flows for a flow, with the same `residual`.

        Args:
            layer: The layer of the head, 1 to L; -1 is the last.
            head: The head, counted from 0.

        Returns:
            `[B, T, T]`.
        """
        if self.heads is None or self.layers is None:
            raise OptionError(
                "head_rollout needs per-head maps: ask for the method with per_head=True."
            )
        if self.aggregation not in ("rollout", "flow"):
            raise OptionError(
                f"head_rollout joins layers by rollout or flow, this map has aggregation={self.aggregation!r}."
            )
        index, count = layer_index(layer, self.layer_numbers), self.heads.shape[2]
        if not -count <= head < count:
            raise InputError(
                f"There is no head {head}: the model has {count} heads, 0 to {count - 1}."
            )
        if self.layer_numbers[0] != 1:
            raise OptionError(
                f"This map holds only layer {layer}, head_rollout needs those below it: call it on the whole map."
            )
        stack = torch.cat([self.layers[:, :index], self.heads[:, index, head][:, None]], dim=1)
        if self.aggregation == "rollout":
            return replace(self, layers=stack, heads=None, given_input=None).input[:, -1]
        return flow(
            stack if self.residual is None else with_residual(stack, self.residual, self.mask),
            self.mask,
            layers=[-1],
        )[:, -1]

    # ---- choosing ---------------------------------------------------------------------------------------------
    def __getitem__(self, example: int) -> ContextMixingMap:
        """One example as a batch of one, without its padding."""
        keep = self.mask[example].nonzero().squeeze(-1)
        cut = lambda t: None if t is None else t[example][..., keep[:, None], keep][None]
        one = replace(
            self,
            layers=cut(self.layers),
            heads=cut(self.heads),
            given_input=cut(self.given_input),
            tokens=[self.tokens[example].take(keep.tolist())],
            mask=torch.ones(1, len(keep), dtype=torch.bool),
            meta={**self.meta, "notes": {}}
            | self._weights_meta(lambda w: w[example : example + 1, keep]),
        )
        if "input" in self.__dict__:  # made already: not made again (a flow takes its time)
            one.__dict__["input"] = cut(self.input)
        return one

    def _weights_meta(self, changed: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """The weights of the model's own pooling for other tokens, where it has any."""
        held = self.meta.get("embedding_weights")
        return (
            {}
            if held is None
            else {"embedding_weights": changed(torch.tensor(held, dtype=torch.float64)).tolist()}
        )

    # ---- targets ----------------------------------------------------------------------------------------------
    def position(self, target: Target = None, example: int = 0) -> list[int]:
        """The rows a target names.

        A position counts real tokens, from either end. A name is a word or a piece of one
        (`"word#2"`: its second occurrence), or one of the reserved names, which win over a word of
        that spelling (reach that as `"embedding#1"`): `"[CLS]"`,
        `"[MASK]"`, `"mean_pool"` (all tokens) and `"embedding"` (what the model's own pooling
        takes). Several are joined. None is the class token where the model has one, the last token
        of a causal model, else `"mean_pool"`.

        Args:
            target: A position, a word, a reserved name, a list of these, or None.
            example: The example of the batch, counted from 0.

        Returns:
            Positions in the batch's rows, counted from 0.

        Raises:
            InputError: No token is called that, or several are; the message says which.
        """
        real = self.mask[example].nonzero().squeeze(-1).tolist()
        found = places(
            target,
            self.tokens[example].take(real),
            bool(self.meta.get("causal")),
            self.meta.get("pooling"),
        )
        return [real[place] for place in found]

    def weights(self, target: Target = None, example: int = 0) -> Tensor:
        """`[T]`, summing to 1: how much of each row a target takes. Every piece of the text counts
        the same, also inside words.

        Args:
            target: What `position` takes: a position, a word, a reserved name, or several.
            example: The example of the batch, counted from 0.
        """
        if (
            target == "embedding" and "embedding_weights" in self.meta
        ):  # a pooling that no rows stand for: max, weighted mean
            return torch.tensor(self.meta["embedding_weights"][example], dtype=torch.float64)
        sizes, row = self.tokens[example].sizes(), [0.0] * self.size
        for place in self.position(target, example):
            row[place] += sizes[place]
        made = torch.tensor(row, dtype=torch.float64)
        return made / made.sum()

    def attribution(
        self, target: Target = None, layer: int = -1, scope: Literal["input", "layer"] = "input"
    ) -> Attribution:
        """One row: the contributions to `target` in `layer` (1 to L, -1 the last), from the input
        (`scope="input"`) or within the layer (`scope="layer"`).

        `target` is what `position` takes; None is the class token, the last token of a causal
        model, or `"mean_pool"`, and the result's `target` says which. Several rows (the pieces of a
        word, a span, `"mean_pool"`) are averaged: the mean of vectors is made from the mean of
        rows. `m.words().attribution(t)` equals `m.attribution(t).words()`.

        Args:
            target: What `position` takes: a position, a word, a reserved name, or several.
            layer: 1 to L; -1 is the last.
            scope: `"input"`: from the input up to the layer; `"layer"`: within the layer.

        Returns:
            One row per example, with its tokens.

        Raises:
            InputError: There is no such token or layer.

        Example:
            >>> m.attribution("[MASK]").top(3)
        """
        maps, index = self.of_scope(scope), layer_index(layer, self.layer_numbers)
        rows = [self.weights(target, b).to(maps) @ maps[b, index] for b in range(len(self))]
        return self.row_of(torch.stack(rows), target, index, scope)

    def row_of(self, scores: Tensor, target: Target, index: int, scope: str) -> Attribution:
        """Scores `[B, T]` that were computed for a target of a layer (from 0), as what they are of this map.

        Args:
            scores: `[B, T]`.
            target: What they were computed for.
            index: The layer, counted from 0.
            scope: `"input"`: from the input up to the layer; `"layer"`: within the layer.
        """
        meta = {**self.meta, "layer": self.layer_numbers[index], "scope": self.meant(scope)}
        real = [
            self.tokens[b].take(self.mask[b].nonzero().squeeze(-1).tolist())
            for b in range(len(self))
        ]
        said = named(target, real, bool(self.meta.get("causal")))
        return Attribution(scores, self.tokens, self.mask, self.method, said, meta)

    def words(self) -> ContextMixingMap:
        """Sub-words merged to words on both axes, all layers: sources are summed, targets averaged."""
        return self._merged(None)

    def segments(self, by: Segments = "sentences") -> ContextMixingMap:
        """Sentences, paragraphs or listed positions as the units of both axes, all layers: sources
        are summed, targets averaged.

        Special tokens stay units of their own. `explain(model, text, method, segments=by)` gives the
        same without making the map of the tokens.

        Args:
            by: `"sentences"`, `"paragraphs"`, or a list of the positions of each segment,
                `[range(1, 20), range(20, 45)]`; what the list leaves out is gathered stretch by stretch.

        Raises:
            InputError: The text is not known, or the list names a token twice or one that does not exist.
            OptionError: `by` is something else.
        """
        return self._merged(by)

    def _merged(self, by: Segments | None) -> ContextMixingMap:
        join, mask, tokens = joined_units(
            self.tokens, self.mask, self.layers if self.layers is not None else self.input, by
        )
        size = join.shape[1]
        mean = join / join.sum(dim=-1, keepdim=True).clamp(min=1)
        merge = lambda t, axes: (
            None
            if t is None
            else (
                mean.view(len(self), *(1,) * axes, *mean.shape[1:])
                @ t
                @ join.mT.view(len(self), *(1,) * axes, self.size, size)
            )
        )
        return replace(
            self,
            layers=merge(self.layers, 1),
            heads=merge(self.heads, 2),
            given_input=merge(self.input, 1),
            tokens=tokens,
            mask=mask,
            meta={**self.meta, "unit": unit_name(by)}
            | self._weights_meta(lambda w: (join.double() @ w[..., None])[..., 0]),
        )

    # ---- parts and differences --------------------------------------------------------------------------------
    def layer(self, layer: int) -> ContextMixingMap:
        """The map of one layer (1 is the first, -1 the last) and its map to the input; it keeps its number."""
        index = layer_index(layer, self.layer_numbers)
        at = slice(index, index + 1)
        kept = {"layer": self.layer_numbers[index], "depth": self.meta.get("depth", self.depth)}
        return replace(
            self,
            layers=None if self.layers is None else self.layers[:, at],
            heads=None if self.heads is None else self.heads[:, at],
            given_input=self.input[:, at],
            meta={**self.meta, **kept},
        )

    def token(self, target: Any, layer: int = -1, scope: Any = "input") -> Attribution:
        """The row of a token: the same as `attribution(target, layer, scope)`.

        Args:
            target: What `position` takes: a position, a word, a reserved name, or several.
            layer: 1 to L; -1 is the last.
            scope: `"input"`: from the input up to the layer; `"layer"`: within the layer.
        """
        return self.attribution(target, layer, scope)

    def word(self, word: str, layer: int = -1, scope: Any = "input") -> Attribution:
        """The row of a whole word, over words.

        Args:
            word: The word, as the text has it.
            layer: 1 to L; -1 is the last.
            scope: `"input"`: from the input up to the layer; `"layer"`: within the layer.
        """
        return self.words().attribution(word, layer, scope)

    def select(self, *tokens: Any) -> ContextMixingMap:
        """Only these tokens (positions or pieces) on both axes; values stay as they are."""
        keep = self.position(list(tokens))
        if len(self) != 1:
            raise InputError(f"This map holds {len(self)} examples: choose one first, m[0].")
        index = torch.tensor(keep)
        cut = lambda t: None if t is None else t[..., index[:, None], index]
        return replace(
            self,
            layers=cut(self.layers),
            heads=cut(self.heads),
            given_input=cut(self.input),
            tokens=[self.tokens[0].take(keep)],
            mask=self.mask[:, index],
        )

    def difference(
        self, other: ContextMixingMap, example: int = 0, *, row_shares: bool = False
    ) -> Any:
        """`self - other` with aligned tokens, a `MapDifference`: minimal pairs, base against fine-tuned.

        Args:
            other: A map of the same model or another; of the same words, or of a minimal pair.
            example: The example of the batch, counted from 0.
            row_shares: Compare rows as shares of their sum.
        """
        return self.view("difference", other, example, row_shares=row_shares)

    def __sub__(self, other: Any) -> Any:
        return self.difference(other) if isinstance(other, ContextMixingMap) else NotImplemented

    # ---- to look at, to hand on (the rest is every result's: `Result`) ------------------------------------------
    def show(self, example: int = 0, **display: Any) -> None:
        """The heatmap of one example; `display` are the widget's options (`layer=2`,
        `unit="piece"`, `cmap="viridis"`, ...).

        Args:
            example: The example of the batch, counted from 0.
            display: Options of the widget: `layer=2`, `scope="layer"`, `unit="piece"`, `cmap="viridis"`, ...
        """
        seen = {key: display[key] for key in ("layer", "scope", "unit") if key in display}
        show_html(
            self.view("fragment", example, **display),
            self[example].view("text", **seen),
            self.view("bundle", example, **display),
        )

    def widget(self, example: int = 0, **display: Any) -> Any:
        """The heatmap as a live widget of a notebook (extra `notebook`): its `target` is what is clicked.

        Args:
            example: The example of the batch, counted from 0.
            display: Options of the widget: `layer=2`, `scope="layer"`, `unit="piece"`, `cmap="viridis"`, ...
        """
        return self.view("widget", example, **display)

    @property
    def target(self) -> Any:
        """What is clicked in this map's latest widget, for `m.attribution(m.target)`; None where nothing is."""
        return self.view("target")

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return self.view("bundle")  # type: ignore[no-any-return]

    def to_view(self, example: int = 0, **display: Any) -> dict[str, Any]:
        """What the browser widget draws, as JSON can hold it.

        Args:
            example: The example of the batch, counted from 0.
            display: Options of the widget: `layer=2`, `scope="layer"`, `unit="piece"`, `cmap="viridis"`, ...
        """
        return self.view("payload", example, **display)  # type: ignore[no-any-return]

    def plot_layers(self, target: Any = None, **options: Any) -> Any:
        """Layers by tokens for one target, as a matplotlib figure (extra `plot`).

        Args:
            target: What `position` takes: a position, a word, a reserved name, or several.
            options: `example=`, `words=`, `scope=`, `cmap=`.
        """
        return self.view("plot_layers", target, **options)

    def plot_views(self, target: Any = None, **options: Any) -> Any:
        """The graph of all layers, and one target's rows within layers, by rollout and by flow (extra `plot`).

        Args:
            target: What `position` takes: a position, a word, a reserved name, or several.
            options: `residual=` (0.5 for `attention`), `example=`, `cmap=`.
        """
        return self.view("plot_views", target, **options)

    def plot_grid(self, **options: Any) -> Any:
        """All layers side by side on one scale."""
        return self.view("plot_grid", **options)

    def plot_image(self, image: Any, target: Any = None, **options: Any) -> Any:
        """A vision model's map laid over the picture's patches.

        Args:
            image: The picture, as PIL or an array.
            target: A patch, or None for the class token.
            options: `layer=`, `scope=`, `grid=(rows, columns)`, `cmap=`.
        """
        return self.view("plot_image", image, target, **options)

    def plot_speech(self, waveform: Any, sampling_rate: int = 16000, **options: Any) -> Any:
        """A speech model's map under the spectrogram.

        Args:
            waveform: The samples.
            sampling_rate: Samples per second.
            options: `target=`, `layer=`, `scope=`, `cmap=`.
        """
        return self.view("plot_speech", waveform, sampling_rate, **options)

    def to_latex(self, target: Any = None, layer: int = -1, **options: Any) -> str:
        """The sources of a target as coloured text (needs xcolor).

        Args:
            target: What `position` takes: a position, a word, a reserved name, or several.
            layer: 1 to L; -1 is the last.
            options: `example=`, `cmap=`.
        """
        return self.view("latex", target, layer, **options)  # type: ignore[no-any-return]

    def to_xarray(self, example: int = 0) -> Any:
        """An xarray Dataset of `input` and `layers` with tokens as coordinates (extra `data`)."""
        return self.view("xarray", example)

    def to_bertviz(self, example: int = 0) -> dict[str, Any]:
        """`bertviz.head_view(**m.to_bertviz())`."""
        return self.view("bertviz", example)  # type: ignore[no-any-return]

    def to_inseq(self, layer: int = -1, example: int = 0) -> Any:
        """`m.to_inseq().show()`.

        Args:
            layer: 1 to L; -1 is the last.
            example: The example of the batch, counted from 0.
        """
        return self.view("inseq", layer, example)


def _by_receptive_field(maps: Tensor, mask: Tensor) -> Tensor:
    """Each column divided by how many real tokens can see it, rows back to shares."""
    seen = ((maps > 0) & mask[:, None, :, None]).sum(dim=-2, keepdim=True).clamp(min=1)
    return to_shares(maps / seen)


def heading(m: ContextMixingMap) -> str:
    """`value_zeroing · agreement`; of which part of the model where it is not the whole, `alti ·
    t5-small (encoder)`; and what makes the map approximate."""
    part, why = m.meta.get("part"), m.meta.get("approximate")
    named = " ".join(filter(None, [model_name(m.meta), part and f"({part})"]))
    return " · ".join(filter(None, [m.method, named, why and f"approximate: {why}"]))


def model_name(meta: Mapping[str, Any]) -> str:
    name = str((meta.get("origin") or {}).get("model") or "")
    return (
        name.rstrip("/").rsplit("/", 1)[-1]
        if name.startswith(("/", ".")) or name.count("/") > 1
        else name
    )
