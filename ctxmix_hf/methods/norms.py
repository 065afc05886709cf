"""The norm family: N, N_RES, N_RESLN, N_ENC and N_FIXEDRES, one implementation.

A layer's output is a sum of one vector per source token; each method is the length of those vectors at a later
stage: after the heads are summed, after the residual, after the first norm, after the second. On pre-LN layers no norm
follows the residual, so `norm_resln` and `norm_enc` equal `norm_res`; a sandwich's norm on the branch is part of
`norm` already. The sum-of-parts identity holds at every stage on every family (`LayerRecord.reconstruction_error`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ctxmix_hf.aggregation.rollout import with_residual
from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.algebra.gram import Vectors, gram_rows, slices, summed_norms
from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.methods.base import METHODS, About, LayerMethod
from ctxmix_hf.records import LayerRecord, NormState, Stage
from ctxmix_hf.workspace import computed_once

COST = "O(T^2 H^2) per layer: no [T, T, D] tensor"
KOBAYASHI = "Kobayashi et al. 2021"


@dataclass(frozen=True)
class NormMethod(LayerMethod):
    """`||t[i,j]||` at a stage of the decomposition; `row_normalised=True` divides each row by its sum."""

    row_normalised: bool = False

    by_rows = True
    stage: ClassVar[Stage]

    def layer_map(self, layer: LayerRecord, budget: Budget) -> Tensor:
        norms = stage_norms(layer, self.stage)
        return to_shares(norms, layer.mask) if self.row_normalised else norms


@computed_once
def stage_norms(layer: LayerRecord, stage: Stage) -> Tensor:
    """`[B, T, T]`: off the diagonal by Gram matrices, on it by the vectors themselves (the residual may cancel)."""
    parts = layer.parts(stage)
    norms = _between_tokens(layer, stage).clone()
    norms.diagonal(layer.offset, dim1=-2, dim2=-1).copy_(parts.diagonal.norm(dim=-1))
    return norms * layer.mask[..., None]


@computed_once
def _known_lengths(layer: LayerRecord) -> dict[int, Tensor]:
    """Number of norms behind -> lengths before the division; filled by `_between_tokens`."""
    return {}


def _between_tokens(layer: LayerRecord, stage: Stage) -> Tensor:
    """`||part_ij||` for i != j: stages behind the same norms share it, and all the call asks for
    are made in one walk.
    """
    parts = layer.parts(stage)
    known = _known_lengths(layer)
    if len(parts.norms) not in known:
        asked = [
            layer.parts(method.stage)
            for method in layer.workspace.methods
            if isinstance(method, NormMethod | NormFixedResidual)
        ]
        chains = {
            len(p.norms): p.norms for p in (parts, *asked)
        }  # each chain is the beginning of the next
        depths = sorted(depth for depth in chains if depth not in known)

        vectors, kept = _vectors(layer, chains[depths[-1]], depths), None
        if layer.whole is not None:  # Gram matrices belong to sources: made once for all rows
            grams = _known_grams(layer.whole)
            if tuple(depths) not in grams:
                grams[tuple(depths)] = _grams(layer.whole, chains[depths[-1]], depths)
            kept = grams[tuple(depths)][:, layer.sources].flatten(0, 1)
        known.update(zip(depths, summed_norms(layer.attention, vectors, kept)))
    norms = known[len(parts.norms)]
    return norms if parts.scale is None else norms * parts.scale.abs()


@computed_once
def _known_grams(layer: LayerRecord) -> dict[tuple[int, ...], Tensor]:
    """What `_grams` made for these depths; filled by `_between_tokens`."""
    return {}


def _vectors(layer: LayerRecord, chain: tuple[NormState, ...], depths: list[int]) -> list[Vectors]:
    """What `summed_norms` asks for: head vectors behind the first norms of a chain, so many as each of `depths` says.

    A norm's linear part acts on coordinates, so it is the projection that goes through it, not every vector.
    """
    values = layer.values.transpose(0, 1).flatten(1, 2)  # [H, N, E]
    behind = [layer.block.projection]
    for norm in chain:
        behind.append(norm.direction(behind[-1]))

    def vectors(projection: Tensor) -> Vectors:
        return lambda chunk: torch.bmm(values[:, chunk], projection).transpose(0, 1)

    return [vectors(behind[depth]) for depth in depths]


def _grams(layer: LayerRecord, chain: tuple[NormState, ...], depths: list[int]) -> Tensor:
    """What `summed_norms` makes of each source's vectors, for all sources of a layer, `[B, T, K (H + 1), H]`."""
    vectors, shape = _vectors(layer, chain, depths), layer.mask.shape
    width = layer.block.projection[:, 0].numel() * layer.values.element_size()
    made = [gram_rows(vectors, chunk) for chunk in slices(shape.numel(), width)]
    return torch.cat(made).unflatten(0, shape)


@METHODS.register("norm")
@dataclass(frozen=True)
class Norm(NormMethod):
    """`N[i,j] = ||sum_h A[h,i,j] F[h,j]||`, heads summed before the norm (Kobayashi et al. 2020;
    Modarressi et al. 2022, eq. 4).
    """

    per_head: bool = False

    stage = "attention"
    about = About(
        "length of each source's value after the output projection",
        "Kobayashi et al. 2020",
        "N[i,j] = ||z[i,j]||",
        COST,
        "block",
        "attention, values, output projection",
        "residual, norms, feed-forward",
    )

    def head_maps(self, layer: LayerRecord, budget: Budget) -> Tensor | None:
        """`||A[h,i,j] F[h,j]||`."""
        if not self.per_head:
            return None
        parts = layer.parts("attention")
        heads = layer.attention * parts.heads.norm(dim=-1)[:, :, None]
        return heads if parts.scale is None else heads * parts.scale.abs()[:, None]


@METHODS.register("norm_fixedres")
@dataclass(frozen=True)
class NormFixedResidual(LayerMethod):
    """`0.5 N[i,j] / sum_k N[i,k] + 0.5 (i=j)`: N with Abnar & Zuidema's fixed residual (N_FIXEDRES); rows sum to 1."""

    residual: float = 0.5

    by_rows = True
    stage: ClassVar[Stage] = "attention"
    rows_sum_to_one = True
    about = About(
        "N as shares, with half of each token kept",
        "Modarressi et al. 2022",
        "0.5 N / rowsum(N) + 0.5 I",
        COST,
        "block",
        "attention, values, a fixed residual",
        "true residual, norms, feed-forward",
    )

    def layer_map(self, layer: LayerRecord, budget: Budget) -> Tensor:
        shares = to_shares(stage_norms(layer, self.stage), layer.mask)
        return with_residual(shares, self.residual, layer.mask, layer.offset)


@METHODS.register("norm_res")
@dataclass(frozen=True)
class NormResidual(NormMethod):
    """`N_RES[i,j] = ||z[i,j] + (i=j) x_i||`: the residual belongs to the token itself (Kobayashi et al. 2021)."""

    stage = "residual"
    about = About(
        "N with the residual connection",
        KOBAYASHI,
        "||z[i,j] + (i=j) x_i||",
        COST,
        "block",
        "attention, values, residual 1",
        "norms, feed-forward",
    )


@METHODS.register("norm_resln")
@dataclass(frozen=True)
class NormResidualNorm(NormMethod):
    """`N_RESLN[i,j] = ||LN1's linear part of (z[i,j] + (i=j) x_i)||` (Kobayashi et al. 2021;
    Modarressi et al. 2022, eq. 7).

    Pre-LN layers have no norm after the attention block's residual: there it equals `norm_res`.
    """

    stage = "norm1"
    about = About(
        "N with residual and first norm",
        KOBAYASHI,
        "||zt[i,j]||",
        COST,
        "block",
        "the whole attention block",
        "feed-forward",
    )


@METHODS.register("norm_enc")
@dataclass(frozen=True)
class NormEncoder(NormMethod):
    """`N_ENC[i,j] = ||xt[i,j]||`: through both residuals and norms (Modarressi et al. 2022, eq. 11).

    The feed-forward enters only through the second norm's deviation. On pre-LN layers the second residual adds
    nothing a source owns, so it equals `norm_res`; where a norm ends the layer (conformers), that norm is applied.
    """

    stage = "norm2"
    about = About(
        "N through the whole layer (GlobEnc's per-layer map)",
        "Modarressi et al. 2022",
        "||xt[i,j]||",
        COST,
        "block",
        "attention, both residuals, both norms",
        "feed-forward (only its effect on the second norm)",
    )
