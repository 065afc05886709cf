"""Value Zeroing: how much a token's new vector changes when a source's value is taken away (Mohebbi et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.algebra.ranks import average_ranks
from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.errors import InputError, OptionError, UnsupportedMethodError
from ctxmix_hf.methods.base import METHODS, About, LayerMethod
from ctxmix_hf.methods.rest import ZeroedValues
from ctxmix_hf.records import LayerRecord

PAIRS_AT_ONCE = 1024  # enough for full-size matrix products, few enough to stay in the caches


@METHODS.register("value_zeroing")
@dataclass(frozen=True)
class ValueZeroing(LayerMethod):
    """`C[i,j] = distance(out_i^(-j), out_i)` as shares of the row (Mohebbi et al. 2023, eq. 10).

    `out^(-j)` is the layer's output with the value vectors of j at zero in all heads, attention unchanged. The cosine
    distance is taken as half the squared chord: `1 - cos` in float32 is rounding noise below 1e-6. Covers the whole
    layer, feed-forward included; each layer starts from its recorded input.

    Exact wherever a layer can be run again; where the decomposition is known, `out^(-j) = rest(u - z_j)` is used
    (`shortcut=False` forces the re-run). `targets` (positions) restricts the rows that are computed, the
    others are zero: for each target and layer T pairs instead of T^2. `normalised` (with
    `distance="euclidean"` only) brings vectors to length 1 before they are compared.
    """

    distance: str = "cosine"
    normalised: bool = False
    row_shares: bool = True
    per_head: bool = False
    shortcut: bool = True
    targets: tuple[int, ...] | None = None

    choices = {"distance": ("cosine", "euclidean", "spearman")}
    rows_sum_to_one = True
    differentiable = False
    reads_projections = False
    about = About(
        "change of each token's output when a source's value is zeroed",
        "Mohebbi et al. 2023",
        "1 - cos(out_i^(-j), out_i), row shares",
        "about a third of T forward passes",
        "replay",
        "the whole layer, feed-forward included",
        "nothing inside the layer (attention weights stay as they are)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalised and self.distance != "euclidean":
            raise OptionError(
                "value_zeroing: normalised=True belongs to distance='euclidean' (vectors are "
                "brought to length 1 first); "
                f"{self.distance} does not depend on lengths, so leave it out."
            )

    @property
    def defers(self) -> bool:
        """Some targets need their own rows of attention only."""
        return self.targets is not None and not self.per_head

    def work(self, tokens: int, width: int, inner: int) -> float:
        rows = tokens if self.targets is None else len(self.targets)
        return float(rows * tokens * width * inner)

    def layer_map(self, layer: LayerRecord, budget: Budget) -> Tensor:
        return self._made(layer, budget, None)

    def head_maps(self, layer: LayerRecord, budget: Budget) -> Tensor | None:
        if not self.per_head:
            return None
        heads = range(layer.attention.shape[1])
        return torch.stack([self._made(layer, budget, head) for head in heads], dim=1)

    def _made(self, layer: LayerRecord, budget: Budget, head: int | None) -> Tensor:
        chosen = None if self.targets is None else _places(self.targets, layer.mask.shape[1])
        few = None if chosen is None else len(chosen)
        zeroed = ZeroedValues.of(layer, few) if self.shortcut else None
        rows = layer.attention if chosen is None else _rows(layer, chosen)
        if zeroed is None:
            raw = self._by_replay(layer, budget, head)
            raw = raw if chosen is None else raw[:, chosen]
        elif chosen is None:
            raw = self._by_shortcut(layer, zeroed, budget, head)
        else:
            raw = self._chosen_by_shortcut(layer, zeroed, budget, head, rows, chosen)
        seen = rows.amax(dim=1) > 0  # a source nobody attends to contributes exactly nothing
        real = layer.mask if chosen is None else layer.mask[:, chosen]
        raw = raw * (seen & real[:, :, None] & layer.mask[:, None, :])
        if self.row_shares:
            raw = to_shares(raw, layer.mask if chosen is None else None)
        if chosen is None:
            return raw
        made = raw.new_zeros(len(raw), layer.mask.shape[1], layer.mask.shape[1])
        made[:, chosen] = raw
        return made

    def _by_shortcut(
        self, layer: LayerRecord, zeroed: ZeroedValues, budget: Budget, head: int | None
    ) -> Tensor:
        batch, tokens, _ = layer.output.shape
        raw = layer.output.new_zeros(batch, tokens, tokens)
        each = tokens * _bytes_of_pair(zeroed, layer.output)
        causal = bool((layer.attention.triu(1) == 0).all())
        for b in range(batch):
            last = int(layer.mask[b].nonzero().max()) + 1
            compared = self._prepare(zeroed.output[b])
            for sources in budget.chunks(last, each, limit=max(1, PAIRS_AT_ONCE // tokens)):
                first = sources.start if causal else 0  # nobody before a source sees it
                targets = slice(first, last)
                out = zeroed.outputs(b, sources, targets, head)
                raw[b, targets, sources] = self._distance(out, compared[targets]).mT
        return raw

    def _chosen_by_shortcut(
        self,
        layer: LayerRecord,
        zeroed: ZeroedValues,
        budget: Budget,
        head: int | None,
        rows: Tensor,
        chosen: list[int],
    ) -> Tensor:
        """`[B, chosen, T]`."""
        batch, tokens, _ = layer.output.shape
        raw = layer.output.new_zeros(batch, len(chosen), tokens)
        each = len(chosen) * _bytes_of_pair(zeroed, layer.output)
        targets = torch.tensor(chosen, device=layer.output.device)
        for b in range(batch):
            last = int(layer.mask[b].nonzero().max()) + 1
            compared = self._prepare(zeroed.output[b, targets])
            attended = (rows[b].amax(dim=(0, 1)) > 0).nonzero()  # a window, where the layer has one
            begin, end = int(attended.min()), min(last, int(attended.max()) + 1)
            most = max(1, PAIRS_AT_ONCE // len(chosen))
            for some in budget.chunks(end - begin, each, limit=most):
                sources = slice(begin + some.start, begin + some.stop)
                out = zeroed.outputs(b, sources, targets, head, rows)
                raw[b, :, sources] = self._distance(out, compared).mT
        return raw

    def _by_replay(self, layer: LayerRecord, budget: Budget, head: int | None) -> Tensor:
        replay = layer.replay
        if replay is None or not getattr(replay, "callable", True):
            raise UnsupportedMethodError(
                f"value_zeroing: {layer.title} can neither be decomposed nor run again"
                + (
                    " (the record was loaded from a file)."
                    if replay is None
                    else f": {layer.why_not}"
                )
            )
        batch, tokens, width = layer.output.shape
        raw = layer.output.new_zeros(batch, tokens, tokens)
        compared = self._prepare(
            replay.rerun() if getattr(replay, "narrow", False) else layer.output
        )
        each = (
            16
            * batch
            * tokens
            * (width + layer.attention.shape[1] * tokens)
            * layer.output.element_size()
        )
        for sources in budget.chunks(
            tokens, each, limit=max(1, 4 * PAIRS_AT_ONCE // (batch * tokens))
        ):
            out = replay.zeroed(range(sources.start, sources.stop), head)  # [S, B, T, D]
            raw[:, :, sources] = self._distance(out.to(raw.dtype), compared).permute(1, 2, 0)
        return raw

    def _prepare(self, vectors: Tensor) -> Tensor:
        """What the distance compares: unit vectors, rank vectors or the vectors themselves."""
        if self.distance == "spearman":
            ranks = average_ranks(vectors)
            vectors = ranks - ranks.mean(dim=-1, keepdim=True)
        if self.distance != "euclidean" or self.normalised:
            return torch.nn.functional.normalize(vectors, dim=-1)
        return vectors

    def _distance(self, altered: Tensor, compared: Tensor) -> Tensor:
        """`altered` is used up."""
        gap = self._prepare(altered).sub_(compared).norm(dim=-1)
        return gap if self.distance == "euclidean" else gap.square_().mul_(0.5)


def _bytes_of_pair(zeroed: ZeroedValues, like: Tensor) -> int:
    """What one target and source need on their way through the rest of the layer."""
    width = like.shape[-1]
    wide = width if zeroed.inner is None else 2 * zeroed.inner[2].numel() + 6 * width
    return wide * like.element_size()


def _places(targets: tuple[int, ...], tokens: int) -> list[int]:
    """Positions from the start."""
    for target in targets:
        if not -tokens <= target < tokens:
            raise InputError(
                f"value_zeroing: there is no token {target}: the input has {tokens}, 0 to {tokens - 1}."
            )
    return [target % tokens for target in targets]


def _rows(layer: LayerRecord, chosen: list[int]) -> Tensor:
    """The chosen targets' attention `[B, H, chosen, T]`."""
    if layer.deferred is None:
        return layer.attention[:, :, chosen]
    everything = slice(0, layer.mask.shape[1])
    rows = [layer.deferred.rows(slice(i, i + 1), everything) for i in chosen]
    return torch.cat(rows, dim=2) * layer.mask[:, None, chosen, None]
