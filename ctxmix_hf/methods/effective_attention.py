"""Effective attention: the weights minus their null space (Brunner et al. 2020, eq. 9)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.algebra.nullspace import (
    on_range,
    project_on_visible_range,
    range_basis,
)
from ctxmix_hf.errors import UnsupportedMethodError
from ctxmix_hf.methods.base import METHODS, About, LayerMethod
from ctxmix_hf.records import LayerRecord
from ctxmix_hf.workspace import computed_once


@METHODS.register("effective_attention")
@dataclass(frozen=True)
class EffectiveAttention(LayerMethod):
    """`A_eff[h] = A[h] - A[h] N N^T`, N an orthonormal basis of the values' left null space; mean over heads.

    The part of attention that can reach the output: `A_eff V = A V`. Rows do not sum to 1, entries may be negative;
    nothing is clipped. Taken on the real tokens of each sentence, because padded values would change the null space.
    `value_bias=False` leaves the value bias out, as Brunner's formula does. The null space is that
    of all tokens, so where rows see only some of them (causal models, windows) and T exceeds the
    head size, part of the map lies on tokens the row cannot see: `meta["notes"]["unseen_mass"]`
    says how much. `visible_only=True` takes each row's own null space instead.
    `part="null"` gives what is taken away, `A[h] N N^T`, which no output shows (their figure 6). The null space of all
    tokens has `meta["notes"]["null_dimension"]` `[B, L, H]` dimensions, at least T - E (their eq. 4-6).
    """

    value_bias: bool = True
    per_head: bool = False
    visible_only: bool = False
    part: str = "effective"

    choices = {"part": ("effective", "null")}
    by_rows = True
    local = False  # what is taken away lies on any token
    about = About(
        "attention minus the part that cannot change the output",
        "Brunner et al. 2020",
        "A - A N N^T",
        "one thin SVD per head",
        "values",
        "attention weights that reach the values",
        "residual, norms, feed-forward",
    )

    @property
    def reads_value_bias(self) -> bool:
        return not self.value_bias

    @property
    def defers(self) -> bool:
        return super().defers and not self.visible_only

    def layer_map(self, layer: LayerRecord, budget: Budget) -> Tensor:
        return self._heads(layer, budget).mean(dim=1)

    def head_maps(self, layer: LayerRecord, budget: Budget) -> Tensor | None:
        return self._heads(layer, budget) if self.per_head else None

    def note_shares(self, layer: LayerRecord, budget: Budget) -> dict[str, tuple[Tensor, Tensor]]:
        """`unseen_mass` `[B]`: the share of the map that lies on tokens the row does not attend to in any head;
        `null_dimension` `[B, H]`: tokens minus the rank of the values."""
        effective = self._heads(layer, budget).abs()
        unseen = (effective * ~_visible(layer)).sum(dim=(1, 2, 3))
        bases = _bases(layer.whole or layer, self._plain)
        free = torch.stack([basis.shape[-2] - _rank(basis) for basis, _ in bases]).to(effective)
        return {
            "unseen_mass": (unseen, effective.sum(dim=(1, 2, 3))),
            "null_dimension": (free, torch.ones_like(free)),  # the same of every block of rows
        }

    def _heads(self, layer: LayerRecord, budget: Budget) -> Tensor:
        """Every head's, whether or not `per_head` was asked for."""
        effective = _effective(layer, self._plain, budget)
        return effective if self.part == "effective" else layer.attention - effective

    @property
    def _plain(self) -> EffectiveAttention:
        """The same null space."""
        return replace(self, per_head=False, part="effective")

    def compute(self, layer: LayerRecord, budget: Budget) -> Tensor:
        if layer.whole is not None:
            return self._rows(layer, layer.whole)
        values = layer.values if self.value_bias else self._without_bias(layer)
        bases = _bases(layer, self)
        whole = bool(layer.mask.all())
        effective = torch.zeros_like(layer.attention)
        for b, real in enumerate(layer.mask):
            index = slice(None) if whole else real.nonzero().squeeze(-1)
            grid = (slice(None), *((index, index) if whole else (index[:, None], index)))  # type: ignore[index]
            block, vectors = layer.attention[b][grid], values[b][:, index]
            seen = _visible(layer)[b, 0][grid[1:]]
            if self.visible_only and not bool(seen.all()):
                effective[b][grid] = project_on_visible_range(block, vectors, seen, budget)
            else:
                effective[b][grid] = on_range(block, *bases[b])
        return effective

    def _rows(self, layer: LayerRecord, whole: LayerRecord) -> Tensor:
        """The same for some rows: the null space belongs to the whole layer and is found once."""
        bases = _bases(whole, self)
        effective = torch.zeros_like(layer.attention)
        for b, (basis, full) in enumerate(bases):
            real = layer.source_mask[b].nonzero().squeeze(-1)
            effective[b][..., real] = on_range(layer.attention[b][..., real], basis, full)
        return effective

    def bases(self, whole: LayerRecord) -> list[tuple[Tensor, Tensor]]:
        values = whole.values if self.value_bias else self._without_bias(whole)
        return [range_basis(values[b][:, real]) for b, real in enumerate(whole.mask)]

    def _without_bias(self, layer: LayerRecord) -> Tensor:
        if layer.value_bias is None:
            raise UnsupportedMethodError(
                f"effective_attention(value_bias=False): the value projection of {layer.title} was not "
                "found, so its bias is unknown; use value_bias=True."
            )
        return layer.values - layer.value_bias


@computed_once
def _effective(layer: LayerRecord, method: EffectiveAttention, budget: Budget) -> Tensor:
    return method.compute(layer, budget)


@computed_once
def _bases(whole: LayerRecord, method: EffectiveAttention) -> list[tuple[Tensor, Tensor]]:
    return method.bases(whole)


def _rank(basis: Tensor) -> Tensor:
    """`[H]`: columns of `range_basis` beyond the rank are zero."""
    return (basis != 0).any(dim=-2).sum(dim=-1)


@computed_once
def _visible(layer: LayerRecord) -> Tensor:
    """`[B, 1, T, T]`: which sources a row attends to in some head."""
    return (layer.attention > 0).any(dim=1, keepdim=True)
