"""The papers' equations by brute force, on a plain model: hooks that zero a value, explicit [T, T,
D] vectors, autograd.

Written from the papers (equation numbers are theirs) and importing nothing of `ctxmix_hf`: slow,
simple, and wrong in other ways than the library would be. One sentence at a time, `[T, D]`,
float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm


@dataclass(frozen=True)
class PostNormLayer:
    """One layer of BERT's kind, its modules named by the caller; everything else is read off them."""

    module: nn.Module
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    dense: nn.Linear
    norm1: nn.LayerNorm
    rest: Callable[
        [Tensor], Tensor
    ]  # attention block output a -> state before the second norm: FFN(a) + a
    norm2: nn.LayerNorm
    heads: int

    def values(self, x: Tensor) -> Tensor:
        """`[H, T, E]`."""
        return self.value(x).unflatten(-1, (self.heads, -1)).transpose(0, 1)

    def attention(self, x: Tensor) -> Tensor:
        """`[H, T, T]`."""
        q, k = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(0, 1)
            for layer in (self.query, self.key)
        )
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)

    def forward(
        self, x: Tensor, zeroed: int | None = None, attention: Tensor | None = None
    ) -> Tensor:
        """The layer's output; with the value vector of token `zeroed` at 0 (Mohebbi et al. 2023, eq. 9)."""
        v = self.values(x).clone()
        if zeroed is not None:
            v[:, zeroed] = 0
        a = self.attention(x) if attention is None else attention
        u = self.dense((a @ v).transpose(0, 1).flatten(1)) + x
        return self.norm2(self.rest(self.norm1(u)))


def parts(layer: PostNormLayer, x: Tensor) -> dict[str, Tensor]:
    """All vectors of the decomposition, `[T, T, D]`: Kobayashi et al. 2020 eq. 4, 2021; Modarressi
    et al. 2022 eq. 4-11.
    """
    a, v = layer.attention(x), layer.values(x)
    t, width = x.shape
    size = v.shape[-1]
    z = torch.zeros(t, t, width, dtype=x.dtype)
    for h in range(layer.heads):
        wo = layer.dense.weight[:, h * size : (h + 1) * size]  # [D, E]
        for i in range(t):
            for j in range(t):
                z[i, j] += a[h, i, j] * (wo @ v[h, j])
    zr = z.clone()
    for i in range(t):
        zr[i, i] += x[i]
    u = zr.sum(1) + layer.dense.bias
    block = layer_norm(u, (width,), layer.norm1.weight, layer.norm1.bias, layer.norm1.eps)
    w = layer.rest(block)

    def through(vectors: Tensor, norm: nn.LayerNorm, state: Tensor) -> Tensor:
        deviation = (state.var(-1, correction=0) + norm.eps).sqrt()
        return (vectors - vectors.mean(-1, keepdim=True)) / deviation[:, None, None] * norm.weight

    zt = through(zr, layer.norm1, u)
    return {
        "z": z,
        "zr": zr,
        "zt": zt,
        "xt": through(zt, layer.norm2, w),
        "u": u,
        "block": block,
        "attention": a,
    }


class RowByRow:
    """Rows of a layer's maps for inputs whose `[T, T, D]` vectors would not fit: `z[i, j]` of one i, then the next."""

    def __init__(self, layer: PostNormLayer, x: Tensor) -> None:
        self.layer, self.x = layer, x
        split = lambda linear: linear(x).unflatten(-1, (layer.heads, -1)).transpose(0, 1)
        self.query, self.key, values = split(layer.query), split(layer.key), layer.values(x)
        size = values.shape[-1]
        self.put = [  # what head h puts of each source, [T, D]
            values[h] @ layer.dense.weight[:, h * size : (h + 1) * size].T
            for h in range(layer.heads)
        ]

    def of(self, name: str, i: int) -> Tensor:
        """Row i `[T]`: Abnar & Zuidema 2020 (0.5 A + 0.5 I), Ferrando et al. 2022 (eq. 9-11), N_RESLN as shares."""
        scores = self.key @ self.query[:, i, :, None] / self.query.shape[-1] ** 0.5
        attention = scores[..., 0].softmax(-1)  # [H, T]
        if name == "attention_rollout":
            row = 0.5 * attention.mean(0)
            row[i] += 0.5
            return row
        z = sum(a[:, None] * put for a, put in zip(attention, self.put, strict=True))
        z[i] = z[i] + self.x[i]
        u, norm = z.sum(0) + self.layer.dense.bias, self.layer.norm1
        deviation = (u.var(correction=0) + norm.eps).sqrt()
        zt = (z - z.mean(-1, keepdim=True)) / deviation * norm.weight
        y = layer_norm(u, u.shape, norm.weight, norm.bias, norm.eps)
        if name == "norm_rollout":
            row = zt.norm(dim=-1)
        else:
            row = (y.abs().sum() - (y - zt).abs().sum(-1)).clamp(min=0)
        return row / row.sum()


def value_zeroing(layer: PostNormLayer, x: Tensor) -> Tensor:
    """Mohebbi et al. 2023, eq. 10: cosine distance of each token's output to itself with source j
    zeroed, rows to shares.
    """
    attention, out = layer.attention(x), layer.forward(x)
    raw = torch.stack(
        [
            1 - torch.cosine_similarity(layer.forward(x, j, attention), out, dim=-1)
            for j in range(len(x))
        ],
        dim=1,
    )
    return raw / raw.sum(-1, keepdim=True)


def alti(layer: PostNormLayer, x: Tensor) -> Tensor:
    """Ferrando et al. 2022, eq. 9-11."""
    made = parts(layer, x)
    y, zt = made["block"], made["zt"]
    distance = (y[:, None] - zt).abs().sum(-1)
    closeness = (y.abs().sum(-1)[:, None] - distance).clamp(min=0)
    return closeness / closeness.sum(-1, keepdim=True)


def norms(layer: PostNormLayer, x: Tensor) -> dict[str, Tensor]:
    """N, N_RES, N_RESLN, N_ENC (Modarressi et al. 2022, eq. 5, 7, 11)."""
    made = parts(layer, x)
    names = {"norm": "z", "norm_res": "zr", "norm_resln": "zt", "norm_enc": "xt"}
    return {name: made[stage].norm(dim=-1) for name, stage in names.items()}


def attention_true_residual(layer: PostNormLayer, x: Tensor) -> Tensor:
    """W_RES (Modarressi et al. 2022): off-diagonal attention with the layer's own mixing ratio."""
    made = parts(layer, x)
    weights, xt = made["attention"].mean(0), made["xt"]
    result = torch.zeros_like(weights)
    for i in range(len(x)):
        others = xt[i].sum(0) - xt[i, i]
        ratio = others.norm() / (others.norm() + xt[i, i].norm())
        result[i] = ratio * weights[i] / (weights[i].sum() - weights[i, i])
        result[i, i] = 1 - ratio
    return result


def effective_attention(layer: PostNormLayer, x: Tensor) -> Tensor:
    """Brunner et al. 2020, section 3: attention minus its projection on the left null space of the values."""
    a, v = layer.attention(x), layer.values(x)
    heads = []
    for h in range(layer.heads):
        u, s, _ = torch.linalg.svd(v[h], full_matrices=True)
        null = u[:, int((s > max(v[h].shape) * torch.finfo(s.dtype).eps * s[0]).sum()) :]
        heads.append(a[h] - a[h] @ null @ null.mT)
    return torch.stack(heads).mean(0)


def jacobian_norms(run: Callable[[Tensor], Tensor], x: Tensor, times_input: bool) -> Tensor:
    """`||d out_i / d x_j||_F`, times the input for HTA x input (Brunner et al. 2020, eq. 11;
    Modarressi et al. 2022).
    """
    full = torch.autograd.functional.jacobian(run, x)  # [T, D, T, D]
    full = full * x if times_input else full
    return full.square().sum(dim=(1, 3)).sqrt()


def rollout(maps: list[Tensor]) -> Tensor:
    """Abnar & Zuidema 2020, eq. 1."""
    rolled = maps[0]
    for layer in maps[1:]:
        rolled = layer @ rolled
    return rolled


def zero_value_by_hook(
    module: nn.Module,
    value: nn.Module,
    source: int,
    run: Callable[[], Tensor],
    column: slice | None = None,
) -> Tensor:
    """Any family: the output of `run` while the value projection's row `source` is zeroed by a hook."""

    def zero(_: nn.Module, __: object, output: Tensor) -> Tensor:
        output = output.clone()
        output[:, source, slice(None) if column is None else column] = 0
        return output

    handle = value.register_forward_hook(zero)
    try:
        return run()
    finally:
        handle.remove()
