"""What fused attention functions never show: the probabilities, computed again from their arguments."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ctxmix_hf.algebra.rows import BlockAttention, scale_of


def widened(dtype: torch.dtype) -> torch.dtype:
    """Half precision is for storage: statistics are taken in float32."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def repeat_heads(x: Tensor, query: Tensor) -> Tensor:
    """Grouped-query attention: one key/value head per query head."""
    return (
        x
        if x.dim() < 4 or x.shape[-3] == query.shape[-3]
        else x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3)
    )


def named_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Of a call of `scaled_dot_product_attention`."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def sdpa_probabilities(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> Tensor:
    """softmax(q k^T * scale + mask)."""
    return probabilities_of_scores(sdpa_scores(query, key, scale), attn_mask, is_causal)


def sdpa_scores(query: Tensor, key: Tensor, scale: float | None) -> Tensor:
    """q k^T * scale, `[..., T, T]`."""
    key = repeat_heads(key, query)
    wide = widened(query.dtype)
    return (query.to(wide) * scale_of(query, scale)) @ key.to(wide).mT


def probabilities_of_scores(scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    """softmax(scores + mask), zero in a row without any source. Without a graph it takes the place of the scores."""
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~allowed, -torch.inf)
    if attn_mask is not None:
        scores = _masked(scores, attn_mask)
    made = torch.softmax(scores, dim=-1, out=None if scores.requires_grad else scores)
    if attn_mask is not None and bool(made[..., 0].isnan().any()):  # rows without any source
        made = made.nan_to_num(0.0)
    return made


def blocks_of_sdpa(call: dict[str, Any], fewest: int = 1) -> BlockAttention | None:
    """The same probabilities some rows at a time; None below `fewest` tokens, and where queries and
    keys are not of the same tokens.
    """
    query, key = call["query"], call["key"]
    if query.dim() != 4 or not fewest <= query.shape[2] == key.shape[2]:
        return None
    return BlockAttention(
        query.detach(),
        key.detach(),
        call.get("attn_mask"),
        bool(call.get("is_causal")),
        scale_of(query, call.get("scale")),
        widened(query.dtype),
    )


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    return (
        scores.masked_fill(~mask, -torch.inf)
        if mask.dtype == torch.bool
        else scores + mask.to(scores.dtype)
    )


@dataclass(frozen=True)
class MultiHeadParts:
    probabilities: Tensor  # [B, H, T, T]
    values: Tensor  # [B, H, T, E]
    projection: Tensor  # [D, H*E]
    projection_bias: Tensor | None
    value_weight: Tensor  # [H*E, D]
    value_bias: Tensor | None = None


def multi_head_parts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    **_: Any,
) -> MultiHeadParts:
    """The arguments of `F.multi_head_attention_forward` ([T, B, D] layout) as probabilities and values."""
    if use_separate_proj_weight:
        weights = [q_proj_weight, k_proj_weight, v_proj_weight]
    else:
        assert in_proj_weight is not None
        weights = list(in_proj_weight.chunk(3))
    biases = [None] * 3 if in_proj_bias is None else list(in_proj_bias.chunk(3))

    def heads(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        assert weight is not None
        projected = linear(x, weight, bias)  # [T, B, D]
        return projected.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)

    q, k, v = (heads(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if attn_mask is not None:
        scores = _masked(
            scores,
            attn_mask.view(-1, num_heads, *attn_mask.shape[-2:])
            if attn_mask.dim() == 3
            else attn_mask,
        )
    if key_padding_mask is not None:
        padding = key_padding_mask[:, None, None, :]
        scores = (
            scores.masked_fill(padding, -torch.inf)
            if padding.dtype == torch.bool
            else scores + padding
        )
    assert weights[2] is not None
    return MultiHeadParts(
        scores.softmax(dim=-1), v, out_proj_weight, out_proj_bias, weights[2], biases[2]
    )
