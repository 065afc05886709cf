"""What one forward pass left behind: a `ModelRecord` of `LayerRecord`s (the notation is that of docs/methods/index.md).

Letters: B batch, L layers, H heads, T tokens, E head size, D hidden size. Tensors are float32 or float64 (half
precision is widened), detached unless a graph was asked for, and always `[B, T, ...]` whatever the family's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, overload

import torch
from torch import Tensor

from ctxmix_hf.algebra.gram import head_vectors
from ctxmix_hf.algebra.rows import BlockAttention, shifted_identity
from ctxmix_hf.counting import layer_number
from ctxmix_hf.errors import UnsupportedMethodError
from ctxmix_hf.pieces import AttentionInputs, Block, FeedForward, NormState, Parts, Replay, ValueMap
from ctxmix_hf.text.tokens import Tokens, numbered
from ctxmix_hf.workspace import Workspace, computed_once

__all__ = [
    "STAGES",
    "AttentionInputs",
    "Block",
    "Check",
    "FeedForward",
    "LayerRecord",
    "ModelRecord",
    "NormState",
    "Parts",
    "Replay",
    "Stage",
    "ValueMap",
    "decompose",
]

Stage = Literal["attention", "residual", "norm1", "norm2"]
STAGES: tuple[Stage, ...] = ("attention", "residual", "norm1", "norm2")


@dataclass(frozen=True, eq=False)
class LayerRecord:
    """One layer of one forward pass. `block` is None where only the attention product is known (level 1)."""

    index: int
    name: str
    layer_input: Tensor  # x = e^(l-1) [B, T, D]
    attention: Tensor  # A [B, H, T, T]
    values: Tensor  # V [B, H, T, E]
    output: Tensor  # e^l [B, T, D]
    mask: Tensor  # [B, T] bool, True on real tokens
    path: str  # "sdpa" or "eager"
    replay: Replay | None = None
    level2: Block | None = None
    why_not: str = ""  # the reason where level2 is None
    # a decomposition was found and refuted: also a record without its numbers knows that
    refused: bool = False
    mixing: str = ""  # what moves information between tokens inside the layer, beside the attention
    mixing_before: str = ""  # the same of what stands between the layer below and this one
    attention_inputs: AttentionInputs | None = None
    # [H, 1, E]: what every value holds whatever its token; zeros without a bias, None: not found
    value_bias: Tensor | None = None
    value_map: ValueMap | None = None  # None: not found, or nobody asked
    # what the methods of the running call share
    workspace: Workspace = field(default_factory=Workspace, repr=False)
    deferred: BlockAttention | None = None  # makes rows of `attention`, which then holds no numbers
    whole: LayerRecord | None = field(default=None, repr=False)  # the layer these rows are of
    first_target: int = 0  # where the rows and columns of `attention` stand in the whole layer
    first_source: int = 0

    @property
    def number(self) -> int:
        """As people count: the first layer is 1."""
        return layer_number(self.index)

    @property
    def title(self) -> str:
        """As sentences name it: `Layer 3 (encoder.layer.2)`, counted from 1; `index` is its place
        in the record, from 0.
        """
        return f"Layer {self.number} ({self.name})"

    @property
    def block(self) -> Block:
        if self.level2 is None:
            raise self.no_block()
        return self.level2

    def no_block(self) -> UnsupportedMethodError:
        return UnsupportedMethodError(
            f"{self.title} has no exact decomposition: {self.why_not} "
            "Methods that need none: attention, attention_rollout, attention_flow, "
            "effective_attention, value_zeroing, hta."
        )

    def refuted(self, why: str) -> LayerRecord:
        """The same layer without the decomposition that was found and is none; nothing computed from it is kept."""
        return replace(self, level2=None, why_not=why, refused=True, workspace=Workspace())

    # ---- some rows of a layer ---------------------------------------------------------------------------------
    def rows(self, targets: slice, everywhere: bool = False) -> LayerRecord:
        """The same layer for some targets: attention `[B, H, targets, sources]`, sources those they can attend to
        (or, `everywhere`, all). What does not depend on the targets stays with the whole layer.
        """
        tokens = self.mask.shape[1]
        whole = slice(0, tokens)
        if self.deferred is None:
            sources, attention = whole, self.attention[:, :, targets]
        else:
            sources = whole if everywhere else self.deferred.reach(targets)
            attention = self.deferred.rows(targets, sources)
            if not bool(self.mask[:, targets].all()):
                attention.mul_(self.mask[:, None, targets, None])
        return replace(
            self,
            layer_input=self.layer_input[:, targets],
            attention=attention,
            values=self.values[:, :, sources],
            output=self.output[:, targets],
            mask=self.mask[:, targets],
            replay=None,
            level2=None if self.level2 is None else self.level2.rows(targets),
            workspace=self.workspace.empty(),
            deferred=None,
            whole=self,
            first_target=targets.start,
            first_source=sources.start,
        )

    @property
    def targets(self) -> slice:
        """Which tokens the rows of `attention` are."""
        return slice(self.first_target, self.first_target + self.attention.shape[-2])

    @property
    def sources(self) -> slice:
        """Which tokens the columns of `attention` are."""
        return slice(self.first_source, self.first_source + self.attention.shape[-1])

    @property
    def offset(self) -> int:
        """Column of the first row's own token."""
        return self.first_target - self.first_source

    @property
    def source_mask(self) -> Tensor:
        """`[B, sources]`."""
        return self.mask if self.whole is None else self.whole.mask[:, self.sources]

    @property
    def head_vectors(self) -> Tensor:
        """F `[B, H, sources, D]`: every value behind the output projection."""
        made = _head_vectors(self.whole or self)
        return made if self.whole is None else made[:, :, self.sources]

    def identity(self) -> Tensor:
        """`[targets, sources]`: 1 where a row meets its own token."""
        rows, columns = self.attention.shape[-2:]
        return shifted_identity(rows, columns, self.offset, self.attention)

    def slim(self, needs: str, totals: bool) -> LayerRecord:
        """What rows of methods with these needs are made from, and nothing else: linear in T."""
        kept = replace(
            self,
            replay=None,
            workspace=self.workspace.empty(),
            attention_inputs=None,
            value_map=None,
            values=_alone(self.values),
        )
        if needs == "block" and totals:
            return kept
        kept = replace(
            kept,
            layer_input=self.layer_input.to("meta"),
            output=self.output.to("meta"),
            level2=self.block.slim() if needs == "block" else None,
        )
        return replace(kept, values=self.values.to("meta")) if needs == "attention" else kept

    @property
    def context(self) -> Tensor:
        """`sum_j A[h,i,j] V[h,j]`, `[B, H, T, E]`."""
        return self.attention @ self.values

    def release(self) -> None:
        """Forget what the methods of a call shared."""
        self.workspace.clear()

    def parts(self, stage: Stage) -> Parts:
        """The decomposition at a stage, without any `[T, T, D]` tensor."""
        if self.level2 is None:
            raise self.no_block()
        return decompose(self, stage)

    def vectors(self, stage: Stage, targets: slice | Sequence[int] = slice(None)) -> Tensor:
        """z, zr, zt or xt of docs/methods/index.md, `[B, targets, T, D]`: built when asked for, so
        ask for few targets.
        """
        parts = self.parts(stage)
        chosen = torch.arange(self.attention.shape[2])[targets]
        built = torch.einsum("bhij,bhjd->bijd", self.attention[:, :, chosen], parts.heads)
        if parts.scale is not None:
            built = built * parts.scale[:, chosen, None]
        if parts.own is not None:
            built[:, torch.arange(len(chosen)), chosen] += parts.own[:, chosen]
        return built

    def reconstruction_error(self, stage: Stage = "norm1") -> float:
        """max |sum of parts + constant - captured| over real tokens, relative to max(1, max |captured|)."""
        layers = (self,) if self.deferred is None else map(self.rows, self.deferred.blocks())
        gaps, sizes = zip(
            *(layer._reconstruction(stage) for layer in layers if bool(layer.mask.any()))
        )
        return max(gaps) / max(1.0, *sizes)

    def _reconstruction(self, stage: Stage) -> tuple[float, float]:
        """(max |sum of parts + constant - captured|, max |captured|) over real tokens."""
        parts = self.parts(stage)
        rebuilt = (self.attention @ parts.heads).sum(dim=1)
        rebuilt = rebuilt if parts.scale is None else rebuilt * parts.scale
        rebuilt = rebuilt + parts.constant + (0 if parts.own is None else parts.own)
        gap = (rebuilt - parts.total)[self.mask].detach().abs().max()
        return float(gap), float(parts.total[self.mask].detach().abs().max())

    def outline(self) -> LayerRecord:
        """Name and shapes without the numbers, for a call that has taken what it wanted already."""
        empty = {
            name: getattr(self, name).to("meta")
            for name in ("layer_input", "attention", "values", "output")
        }
        return LayerRecord(
            self.index,
            self.name,
            **empty,
            mask=self.mask,
            path=self.path,
            why_not=self.why_not,
            refused=self.refused,
            mixing=self.mixing,
            mixing_before=self.mixing_before,
        )

    def __getstate__(self) -> dict[str, Any]:
        """A pickled record keeps its tensors, not the model behind its replay."""
        return {
            **self.__dict__,
            "replay": None,
            "workspace": Workspace(),
            "level2": _without_functions(self.level2),
        }


def _alone(values: Tensor) -> Tensor:
    """Values that were cut from queries and keys, without them."""
    held = values.untyped_storage().nbytes()
    return values.clone() if held > values.numel() * values.element_size() else values


def _without_functions(block: Block | None) -> Block | None:
    return block if block is None else Block(**{**block.__dict__, "feed_forward": None})


@computed_once
def _head_vectors(layer: LayerRecord) -> Tensor:
    return head_vectors(layer.values, layer.block.projection)


@computed_once
def decompose(record: LayerRecord, stage: Stage) -> Parts:
    """Heads, residual and norms as parts of one vector per target; each stage
    starts from the one before.
    """
    block = record.block
    if stage == "attention":
        bias = torch.zeros(()) if block.projection_bias is None else block.projection_bias
        total = block.before_norm - block.residual
        # not `record`: rows that their own workspace holds would outlive the walk
        layer, sources = record.whole or record, record.sources
        parts = Parts(
            lambda: layer.head_vectors[:, :, sources],
            _diagonal(record),
            total,
            lambda: bias.to(total).expand_as(total),
        )
        return (
            parts if block.branch_norm is None else _through_norm(parts, block.branch_norm, total)
        )
    parts = record.parts(STAGES[STAGES.index(stage) - 1])
    if stage == "residual":
        return replace(
            parts,
            diagonal=parts.diagonal + block.residual,
            total=block.before_norm,
            make_own=lambda: block.residual,
        )
    if stage == "norm1":
        return parts if block.norm1 is None else _through_norm(parts, block.norm1, block.output)
    for i, norm in enumerate(block.tail):
        parts = _with_the_rest(parts, norm.input)
        last = i + 1 == len(block.tail) and block.tail_complete
        parts = _through_norm(parts, norm, record.output if last else norm(norm.input))
    return _with_the_rest(parts, record.output) if not block.tail and block.tail_complete else parts


def _diagonal(record: LayerRecord) -> Tensor:
    """`sum_h A[h,i,i] F[h,i]`, `[B, T, D]`: the heads' own values, weighed before they are projected together."""
    weights = record.attention.diagonal(record.offset, dim1=-2, dim2=-1).unsqueeze(-1)
    values = record.values[:, :, record.offset : record.offset + weights.shape[2]]
    return (values * weights).transpose(1, 2).flatten(2) @ record.block.projection.flatten(0, 1)


def _with_the_rest(parts: Parts, total: Tensor) -> Parts:
    """What the layer adds that no source owns (the feed-forward) joins the constant."""
    return replace(parts, make_constant=lambda: parts.constant + total - parts.total, total=total)


def _through_norm(parts: Parts, norm: NormState, total: Tensor) -> Parts:
    inverse = norm.deviation.reciprocal()

    def through(vectors: Tensor) -> Tensor:
        return norm.direction(vectors) * inverse

    return Parts(
        make_heads=parts.make_heads,
        diagonal=through(parts.diagonal),
        total=total,
        make_constant=lambda: through(parts.constant) + (0 if norm.bias is None else norm.bias),
        make_own=lambda: None if parts.own is None else through(parts.own),
        scale=inverse if parts.scale is None else parts.scale * inverse,
        norms=(*parts.norms, norm),
    )


@dataclass(frozen=True)
class Check:
    """The proof a record carries."""

    worst_error: (
        float | None
    )  # relative reconstruction error over layers; None where nothing is decomposed
    precision: str  # dtype the statistics were taken in, and the model's own
    path: str  # sdpa, eager or mixed
    layers: int
    exact_layers: int
    padding: bool  # True where the batch holds padding

    def __str__(self) -> str:
        error = (
            "no decomposition"
            if self.worst_error is None
            else f"worst error {self.worst_error:.1e}"
        )
        padded = "padded batch" if self.padding else "no padding"
        return f"{error}; {self.precision}; {self.path}; {self.exact_layers}/{self.layers} layers decomposed; {padded}"


@dataclass(frozen=True, eq=False)
class ModelRecord(Sequence[LayerRecord]):
    """One `LayerRecord` per layer, in call order, with what the whole forward shares."""

    layers: tuple[LayerRecord, ...]
    mask: Tensor  # [B, T] bool
    input_ids: Tensor | None  # [B, T] where the model reads ids
    causal: bool
    model_dtype: torch.dtype
    # [B, T - 1]: which patch each token shows, where the model shuffled them
    patches: Tensor | None = None
    # what enters the embedding norm [B, T, D_emb]; None where there is none
    embedding_sum: Tensor | None = None
    replay: Any = field(default=None, repr=False)  # ModelReplay
    origin: dict[str, Any] = field(
        default_factory=dict
    )  # model name, revision, layout: for maps and the Hub
    read_tokens: Callable[[ModelRecord], list[Tokens]] | None = field(default=None, repr=False)
    # what the call was given with the tensors: names from the text itself, words included
    given_tokens: list[Tokens] | None = field(default=None, repr=False)

    @overload
    def __getitem__(self, index: int) -> LayerRecord: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LayerRecord, ...]: ...
    def __getitem__(self, index: int | slice) -> LayerRecord | tuple[LayerRecord, ...]:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[LayerRecord]:
        return iter(self.layers)

    @cached_property
    def tokens(self) -> list[Tokens]:
        """The pieces of each example, as the text has them where the call knew it; else numbers."""
        if self.given_tokens is not None:
            return self.given_tokens
        if self.read_tokens is None:
            return [numbered(self.mask.shape[1]) for _ in range(len(self.mask))]
        return self.read_tokens(self)

    @property
    def hidden_states(self) -> tuple[Tensor, ...]:
        """e^0 ... e^L: what enters each layer, and what leaves the last."""
        return (*(layer.layer_input for layer in self.layers), self.layers[-1].output)

    def approximate(self, needs: str) -> str:
        """Why maps of methods that need this are approximate: something beside the attention mixes tokens."""
        if needs == "model":  # the whole model is run again, whatever is in it
            return ""
        for layer in self.layers:
            if layer.mixing_before:
                return f"between layers {layer.number - 1} and {layer.number} {layer.mixing_before}"
            if layer.mixing and needs != "layer":
                return f"in layer {layer.number} {layer.mixing}"
        return ""

    @cached_property
    def check(self) -> Check:
        errors = [layer.reconstruction_error() for layer in self.layers if layer.level2 is not None]
        for layer in self.layers:
            layer.release()
        used = self.layers[0].attention.dtype
        own = (
            ""
            if used == self.model_dtype
            else f", model in {str(self.model_dtype).removeprefix('torch.')}"
        )
        paths = {layer.path for layer in self.layers}
        return Check(
            worst_error=max(errors) if errors else None,
            precision=str(used).removeprefix("torch.") + own,
            path=paths.pop() if len(paths) == 1 else "mixed",
            layers=len(self.layers),
            exact_layers=len(errors),
            padding=not bool(self.mask.all()),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "tokens": self.tokens, "replay": None, "read_tokens": None}
