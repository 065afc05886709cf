"""The Jacobian of a layer in closed form: its blocks' Frobenius norms for HTA x input, and its product with
directions for HTA.

With `B_i` the Jacobian of the rest of the layer at token i, `C_ih = B_i Wo_h`, `kappa_ih = scaling Wk_h^T q_ih`
and `w_ijh = v_jh - ctx_ih`,

    J_ij = sum_h A_hij C_ih (Wv_h + w_ijh kappa_ih^T) N_j          (i != j; N_j the input norm's Jacobian, I without one)

so `||J_ij diag(x_j)||_F^2` is a quadratic form in A that needs `K_i = C_i^T C_i`, `Z_j = N_j
diag(x_j)^2 N_j^T` and inner products of them: O(T D^3 + T^2 H D^2), nothing of size T^2 D^2. The
diagonal, with residual and query terms, is built as T matrices.

HTA needs the Jacobian of all layers below, `J^l = J_l J^(l-1)`: T D directions are pushed through one layer after the
other, `10 T D^2` multiplications each, which gives every layer's map in one walk.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import linear

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.methods.rest import Rest
from ctxmix_hf.records import AttentionInputs, LayerRecord, NormState


def has_closed_form(layer: LayerRecord) -> bool:
    """Is the layer of a form that `layer_jacobian_norms` covers?"""
    rest = Rest.of(layer)
    if (
        rest is None
        or layer.attention_inputs is None
        or rest.feed_forward is None
        or layer.block.branch_norm is not None
    ):
        return False
    return rest.block.ffn_output_norm is None and torch.equal(
        layer.block.residual, layer.layer_input
    )


def layer_jacobian_norms(layer: LayerRecord, times_input: bool, budget: Budget) -> Tensor | None:
    """`||J_ij diag(x_j)||_F` `[B, T, T]`, or None where the layer is not of a form this covers."""
    rest, inputs = Rest.of(layer), layer.attention_inputs
    if rest is None or inputs is None or not has_closed_form(layer):
        return None
    with torch.no_grad():
        examples = [
            _Example(layer, rest, inputs, b, times_input).norms(budget)
            for b in range(len(layer.mask))
        ]
    return torch.stack(examples)


def norm_jacobian(norm: NormState, at: Tensor) -> Tensor:
    """`[N, D, D]`: d norm(v) / d v at each row of `at` `[N, D]`."""
    width = at.shape[-1]
    identity = torch.eye(width, dtype=at.dtype, device=at.device)
    weight = torch.ones_like(at[0]) if norm.weight is None else norm.weight.expand_as(at[0])
    if norm.kind == "affine":
        return torch.diag(weight).expand(len(at), -1, -1)
    centred = norm.centre(at)
    deviation = (centred.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt()
    unit = centred / deviation
    inner = identity - unit[:, :, None] * unit[:, None, :] / width
    if norm.kind == "layer":
        inner = inner - 1.0 / width
    return weight[:, None] * inner / deviation[..., None]


def _norm_product(norm: NormState, at: Tensor, x: Tensor) -> Tensor:
    """d norm(v) / d v at each `at` `[..., D]` times directions x, without the matrix."""
    weight = 1 if norm.weight is None else norm.weight
    if norm.kind == "affine":
        return weight * x
    centred = norm.centre(at)
    deviation = (centred.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt()
    unit = centred / deviation
    inner = x - unit * (unit * x).mean(dim=-1, keepdim=True)
    if norm.kind == "layer":
        inner = inner - x.mean(dim=-1, keepdim=True)
    return weight * inner / deviation


class Chain:
    """The Jacobians of all layers, one after the other, for one example's real tokens (n of them)."""

    def __init__(self, layers: Sequence[LayerRecord], b: int, budget: Budget) -> None:
        self.layers = []
        for layer in layers:
            rest, inputs = Rest.of(layer), layer.attention_inputs
            assert rest is not None and inputs is not None  # `chains` said so
            self.layers.append(_Example(layer, rest, inputs, b, False))
        n, width = self.layers[0].x.shape
        self.kept = len(layers) * n * width**2 * self.layers[0].x.element_size() <= budget.bytes

    def push(self, directions: Tensor) -> Iterator[Tensor]:
        """`[n, K, D]` at e^0 to `[n, K, D]` at e^1 ... e^L, one after the other."""
        for layer in self.layers:
            directions = layer.push(directions, self._after(layer))
            yield directions

    def pull(self, directions: Tensor, depth: int) -> Tensor:
        """The other way: `[n, K, D]` at e^depth to `[n, K, D]` at e^0, by the transposed Jacobians."""
        for layer in reversed(self.layers[:depth]):
            after = self._after(layer)
            with torch.enable_grad():
                leaf = torch.zeros_like(directions, requires_grad=True)
                (directions,) = torch.autograd.grad(layer.push(leaf, after), leaf, directions)
        return directions

    def _after(self, layer: _Example) -> Tensor:
        return layer.after if self.kept else layer._rest_jacobian()


def chains(layers: Sequence[LayerRecord]) -> bool:
    """Is every layer of a form that `Chain` covers, and nothing between them?"""
    return all(
        has_closed_form(layer) and not layer.mixing_before and not layer.mixing for layer in layers
    ) and all(torch.equal(above.layer_input, below.output) for below, above in pairwise(layers))


@dataclass
class _Example:
    layer: LayerRecord
    rest: Rest
    inputs: AttentionInputs
    b: int
    times_input: bool

    def __post_init__(self) -> None:
        layer, b = self.layer, self.b
        self.real = layer.mask[b].nonzero().squeeze(-1)
        self.x = layer.layer_input[b, self.real]  # [n, D]
        self.a = layer.attention[b][:, self.real[:, None], self.real]  # [H, n, n]
        self.v = layer.values[b][:, self.real]  # [H, n, E]
        self.heads = self.v.shape[0]
        norm = self.inputs.input_norm
        entered = self.x if norm is None else norm(self.x)
        self.q, self.k = (
            self._split(linear(entered, *w)) for w in (self.inputs.query, self.inputs.key)
        )
        self.into = None if norm is None else norm_jacobian(norm, self.x)  # N_j [n, D, D]
        self.wq, self.wk, self.wv = (
            w[0].unflatten(0, (self.heads, -1))
            for w in (self.inputs.query, self.inputs.key, self.inputs.value)
        )  # [H, E, D]

    @cached_property
    def after(self) -> Tensor:
        return self._rest_jacobian()

    def push(self, x: Tensor, after: Tensor) -> Tensor:
        """The layer's Jacobian times directions: `[n, K, D]` at its input to `[n, K, D]` at its output.

        `after` is B_i `[n, D, D]`.
        """
        norm, keys, values = self.inputs.input_norm, self.k[:, None], self.v[:, None]
        entered = x if norm is None else _norm_product(norm, self.x[:, None], x)
        dq, dk, dv = (
            (entered @ w.flatten(0, 1).mT).unflatten(-1, (self.heads, -1)).permute(2, 0, 1, 3)
            for w in (self.wq, self.wk, self.wv)
        )  # [H, n, K, E]
        scores = dq @ keys.mT + (dk @ self.q[:, None].mT).permute(
            0, 3, 2, 1
        )  # [H, target, K, source]
        weights = self.a[:, :, None]
        moved = weights * scores
        moved = self.inputs.scaling * (moved - weights * moved.sum(dim=-1, keepdim=True))
        context = moved @ values + (self.a @ dv.flatten(2)).unflatten(2, dv.shape[2:])
        added = context.permute(1, 2, 0, 3).flatten(2) @ self.layer.block.projection.flatten(0, 1)
        return (x + added) @ after.mT

    def _split(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.heads, -1)).transpose(0, 1)

    def norms(self, budget: Budget) -> Tensor:
        tokens = self.layer.attention.shape[-1]
        result = self.x.new_zeros(tokens, tokens)
        context = self.a @ self.v  # [H, n, E]
        kappa = self.inputs.scaling * torch.einsum("hne,hed->nhd", self.q, self.wk)  # [n, H, D]
        after = self._rest_jacobian()  # B_i [n, D, D]
        projected = after @ self.layer.block.projection.flatten(0, 1).mT  # C_i [n, D, H*E]
        squares = self._off_diagonal(projected, context, kappa, budget)
        own = self._diagonal(after, projected, context, kappa)
        squares.diagonal().copy_(own)
        result[self.real[:, None], self.real] = squares.clamp(min=0).sqrt().to(result.dtype)
        return result

    def _weighted(self) -> Tensor:
        """The squares of the factors diag(x_j), `[n, D]`."""
        return self.x.square() if self.times_input else torch.ones_like(self.x)

    def _z(self, vectors: Tensor, j: int) -> Tensor:
        """`vectors Z_j`, any `[..., D]`."""
        weights = self._weighted()[j]
        if self.into is None:
            return vectors * weights
        return ((vectors @ self.into[j]) * weights) @ self.into[j].mT

    def _off_diagonal(
        self, projected: Tensor, context: Tensor, kappa: Tensor, budget: Budget
    ) -> Tensor:
        n, heads, size = len(self.x), self.heads, self.v.shape[-1]
        gram = (
            (projected.mT @ projected).unflatten(1, (heads, size)).unflatten(3, (heads, size))
        )  # K_i [n,H,E,H,E]
        gram = gram.permute(1, 3, 0, 2, 4)  # [H, H', n, E, E']
        flat = gram.flatten(3)
        squares = self.x.new_zeros(n, n)
        wv = self.wv.flatten(0, 1)  # [H*E, D]
        for j in range(n):
            a = self.a[:, :, j].mT  # [n, H]
            zv = self._z(wv, j)  # Wv Z_j [H*E, D]
            s = (
                (zv @ wv.mT)
                .unflatten(0, (heads, size))
                .unflatten(2, (heads, size))
                .permute(0, 2, 1, 3)
            )  # [H,H',E,E']
            first = (flat @ s.flatten(2)[..., None]).squeeze(-1)  # <K_i[hh'], S_j[hh']> [H, H', n]
            w = self.v[:, j, None] - context  # [H, n, E]
            pushed = torch.einsum("hgnef,gnf->hgne", gram, w)  # K_i[hh'] w_h' [H, H', n, E]
            values = (
                (kappa.flatten(0, 1) @ zv.mT).unflatten(0, (n, heads)).unflatten(2, (heads, size))
            )  # [n, H', H, E]
            cross = torch.einsum("hgne,nghe->hgn", pushed, values)
            ww = torch.einsum("hne,hgne->hgn", w, pushed)
            kk = torch.einsum("nhd,ngd->hgn", self._z(kappa, j), kappa)
            squares[:, j] = torch.einsum("nh,ng,hgn->n", a, a, first + 2 * cross + ww * kk)
        return squares

    def _diagonal(self, after: Tensor, projected: Tensor, context: Tensor, kappa: Tensor) -> Tensor:
        """`||J_ii diag(x_i)||_F^2` from the matrices themselves: residual, value, key and query terms."""
        n, heads, size = len(self.x), self.heads, self.v.shape[-1]
        own = self.a.diagonal(dim1=1, dim2=2)  # [H, n]
        inner = torch.einsum("hn,hed->nhed", own, self.wv)
        w = (self.v - context) * own[..., None]  # [H, n, E]
        inner = inner + torch.einsum("hne,nhd->nhed", w, kappa)
        centred = torch.einsum("hik,hke,hkf->hief", self.a, self.v, self.k)  # sum_k A v k^T
        centred = centred - torch.einsum("hie,hif->hief", context, self.a @ self.k)
        inner = inner + self.inputs.scaling * torch.einsum("hief,hfd->ihed", centred, self.wq)
        jacobian = projected @ inner.reshape(n, heads * size, -1)
        jacobian = jacobian if self.into is None else jacobian @ self.into
        jacobian = jacobian + after
        return (jacobian.square() * self._weighted()[:, None]).sum(dim=(1, 2))

    def _rest_jacobian(self) -> Tensor:
        """B_i `[n, D, D]`, by the chain rule: second norm, feed-forward and residual, first norm."""
        block, rest = self.rest.block, self.rest
        u = block.before_norm[self.b, self.real]
        identity = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device).expand(len(u), -1, -1)
        enter = identity if rest.entry is None else norm_jacobian(rest.entry, u)
        entered = u if rest.entry is None else rest.entry(u)
        fed = self._feed_forward_jacobian(entered) @ enter
        total = fed + (enter if block.norm1 is not None else identity)
        for norm in block.tail:
            total = norm_jacobian(norm, norm.input[self.b, self.real]) @ total
        return total

    def _feed_forward_jacobian(self, x: Tensor) -> Tensor:
        ff = self.rest.feed_forward
        assert ff is not None
        inner = linear(x, *ff.inner)
        driving = inner if ff.gate is None else linear(x, *ff.gate)
        with torch.enable_grad():
            leaf = driving.detach().requires_grad_()
            active = ff.activation(leaf)
            (slope,) = torch.autograd.grad(active.sum(), leaf)
        weight = ff.outer[0] if ff.scale is None else (ff.outer[0].mT * ff.scale).mT
        if ff.gate is None:
            return (weight * slope[:, None]) @ ff.inner[0]
        through_gate = (weight * (slope * inner)[:, None]) @ ff.gate[0]
        return through_gate + (weight * active.detach()[:, None]) @ ff.inner[0]
