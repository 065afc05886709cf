"""Effective attention: the weights minus their null space (Brunner et al. 2020, section 3; METHODS.md 8)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.algebra.nullspace import project_on_range
from ctxmix_hf.errors import UnsupportedMethodError
from ctxmix_hf.methods.base import METHODS, About, LayerMethod
from ctxmix_hf.records import LayerRecord


@METHODS.register("effective_attention")
@dataclass(frozen=True)
class EffectiveAttention(LayerMethod):
    """`A_eff[h] = A[h] - A[h] N N^T`, N an orthonormal basis of the values' left null space; mean over heads.

    The part of attention that can reach the output: `A_eff V = A V`. Rows do not sum to 1, entries may be negative;
    nothing is clipped. Taken on the real tokens of each sentence, because padded values would change the null space.
    `value_bias=False` leaves the value bias out, as Brunner's formula does.
    """

    value_bias: bool = True
    per_head: bool = False

    about = About(
        "attention minus the part that cannot change the output", "Brunner et al. 2020", "A - A N N^T",
        "one thin SVD per head", "values", "attention weights that reach the values", "residual, norms, feed-forward",
    )  # fmt: skip

    def layer_map(self, layer: LayerRecord, budget: Budget) -> Tensor:
        return self._heads(layer).mean(dim=1)

    def head_maps(self, layer: LayerRecord, budget: Budget) -> Tensor | None:
        return self._heads(layer) if self.per_head else None

    def _heads(self, layer: LayerRecord) -> Tensor:
        return layer.once(("effective", self.value_bias), lambda: self._compute(layer))  # type: ignore[no-any-return]

    def _compute(self, layer: LayerRecord) -> Tensor:
        values = layer.values if self.value_bias else self._without_bias(layer)
        if bool(layer.mask.all()):
            return project_on_range(layer.attention, values)
        effective = torch.zeros_like(layer.attention)
        for b, real in enumerate(layer.mask):
            index = real.nonzero().squeeze(-1)
            block = layer.attention[b][:, index[:, None], index]
            effective[b][:, index[:, None], index] = project_on_range(block, values[b][:, index])
        return effective

    def _without_bias(self, layer: LayerRecord) -> Tensor:
        inputs = layer.attention_inputs
        if inputs is None or inputs.value[1] is None:
            raise UnsupportedMethodError(
                f"effective_attention(value_bias=False): the value projection of layer {layer.index} was not found or has "
                "no bias; use value_bias=True."
            )
        return layer.values - inputs.value[1].view(1, layer.values.shape[1], 1, -1)
