"""Attention that is not the model's and gives the same output (Brunner et al. 2020, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctxmix_hf.counting import layer_index, layer_number
from ctxmix_hf.errors import InputError
from ctxmix_hf.evaluation.bench import Bench, Ready
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.metrics import mean_of
from ctxmix_hf.evaluation.sessions import Result, content_key, rounded
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form


@dataclass(frozen=True)
class Alternative:
    """Another attention of a head with the same output, `... [T target, T source]` in float64.

    attention  the farthest valid one along a random direction: rows are distributions (eq. 7a to 7c)
    minimal    that of the smallest norm: rows sum to 1, entries may be negative (the end of section 3.4)
    largest    lambda_max of each row, `[..., T]`; infinite where there is no direction to go
    dimension  of the left null space of [V, 1], `[...]`: 0 where attention is unique
    gap        the largest difference of the outputs, relative to the largest output, `[...]`
    """

    attention: Tensor
    minimal: Tensor
    largest: Tensor
    dimension: Tensor
    gap: Tensor


def alternatives(attention: Tensor, values: Tensor, seed: int = 0) -> Alternative:
    """Attention within the probability simplex that gives the same head output (Brunner et al. 2020, eq. 7).

    A random direction is projected on the left null space of `[V, 1]`, and each row goes along it as
    far as its entries stay above zero: `lambda_max = min over a~_i < 0 of -a_i / a~_i`. Of the two
    senses of the direction the one that moves more weight is taken.

    Args:
        attention: `[..., T, T]`, rows that sum to 1.
        values: `[..., T, E]`.
        seed: of the direction.

    Returns:
        The alternative; where the null space is empty it is the attention itself.

    Example:
        >>> made = alternatives(torch.full((3, 3), 1 / 3), torch.ones(3, 1))
        >>> bool((made.attention >= 0).all()), float(made.gap) < 1e-12
        (True, True)
    """
    weights, vectors = attention.double(), values.double()
    tokens = vectors.shape[-2]
    joined = torch.cat([vectors, torch.ones_like(vectors[..., :1])], dim=-1)
    left, singular, _ = torch.linalg.svd(joined, full_matrices=True)
    bound = max(joined.shape[-2:]) * torch.finfo(torch.float64).eps * singular[..., :1]
    rank = (singular > bound).sum(dim=-1)  # [...]
    free = torch.arange(tokens) >= rank.unsqueeze(-1)  # [..., T]
    null = left * free.unsqueeze(-2).to(left)  # columns that span LN([V, 1]), others zero
    draw = torch.Generator().manual_seed(seed)
    aimed = torch.randn(weights.shape, generator=draw, dtype=torch.float64).to(weights.device)
    direction = (aimed @ null) @ null.mT
    largest, moved = _farthest(weights, direction)
    back, moved_back = _farthest(weights, -direction)
    turn = moved_back > moved
    largest = torch.where(turn, back, largest)
    direction = torch.where(turn.unsqueeze(-1), -direction, direction)
    unique = (rank >= tokens)[..., None, None]
    step = torch.where(torch.isfinite(largest), largest, 0.0).unsqueeze(-1)
    made = torch.where(unique, weights, (weights + step * direction).clamp(min=0))
    minimal = torch.where(unique, weights, weights - (weights @ null) @ null.mT)
    plain = weights @ vectors
    scale = plain.abs().amax(dim=(-2, -1)).clamp(min=1e-300)
    gap = ((made @ vectors) - plain).abs().amax(dim=(-2, -1)) / scale
    return Alternative(made, minimal, largest, tokens - rank, gap)


def _farthest(weights: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """`(lambda_max, weight moved by it)` per row; rounding of a projection that is zero is no direction."""
    real = direction.abs() > 1e-12 * direction.abs().amax(dim=-1, keepdim=True).clamp(min=1e-300)
    falling = (direction < 0) & real
    each = torch.where(falling, -weights / torch.where(falling, direction, -1.0), torch.inf)
    largest = each.amin(dim=-1)
    step = torch.where(torch.isfinite(largest), largest, 0.0)
    return largest, 0.5 * step * direction.abs().sum(dim=-1)


def alternative_attention(
    record: Any, layer: int, head: int, example: int = 0, seed: int = 0
) -> Alternative:
    """A valid attention matrix of one head that is not the model's and gives the same output.

    Args:
        record: the decomposition of a call: `model(..., output_decomposition=True).decomposition`.
        layer: 1 to L, -1 the last.
        head: 0 to H - 1.
        example: which of the batch; its padding is left out.
        seed: of the direction.

    Returns:
        The alternative over the example's T real tokens.

    Raises:
        InputError: No such layer or head.
    """
    one = record[layer_index(layer, range(1, len(record) + 1))]
    count = one.attention.shape[1]
    if not -count <= head < count:
        raise InputError(f"There is no head {head}: the model has heads 0 to {count - 1}.")
    real = one.mask[example].nonzero().squeeze(-1)
    weights = one.attention[example, head][real[:, None], real].double()
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return alternatives(weights, one.values[example, head][real], seed)


@torch.no_grad()
def _batch(bench: Bench, ready: Sequence[Ready]) -> list[Result]:
    record = bench.model(**bench.inputs_of(ready), output_decomposition=True).decomposition
    results: list[Result] = []
    for b, item in enumerate(ready):
        n = len(item.ids)
        kept: dict[str, list[float]] = {"exists": [], "moved": [], "gap": [], "dimension": []}
        for layer in record:
            weights = layer.attention[b, :, :n, :n].double()
            weights = weights / weights.sum(dim=-1, keepdim=True)
            made = alternatives(weights, layer.values[b, :, :n])
            moved = 0.5 * (made.attention - weights).abs().sum(dim=-1)  # [H, T]
            kept["exists"].append(float((made.dimension > 0).double().mean()))
            kept["moved"].append(float(moved.mean()))
            kept["gap"].append(float(made.gap.max()))
            kept["dimension"].append(float(made.dimension.double().mean()))
        size = int(record[0].values.shape[-1])
        results.append({"length": n, "size": size, **{k: rounded(v) for k, v in kept.items()}})
    return results


def found_alternatives(context: Context) -> list[Result]:
    """Per sentence: its length, the head size, and per layer `exists` (share of heads), `moved`, `gap`, `dimension`."""
    context.need_sentences()
    keys = [
        content_key("alternatives", item.sample.key, item.ids, context.bench.fingerprint)
        for item in context.ready
    ]

    def compute(batch: Sequence[int]) -> list[Result]:
        return _batch(context.bench, [context.ready[i] for i in batch])

    order = context.bench.batches(context.ready)
    return context.store("alternatives").run(keys, order, compute, "alternatives", context.progress)


@evaluation(
    "alternative_attention",
    "attention within the simplex that is not the model's and gives the same output, by layer",
    "Brunner et al. 2020, section 3.3",
)
def alternative_table(context: Context) -> EvaluationTable:
    """One row per layer: the share of heads that have an alternative, how much of a row's weight it moves (total
    variation), and the largest difference of the outputs, relative to the largest output."""
    found = found_alternatives(context)
    rows: list[list[Cell]] = [
        [
            "alternative",
            layer_number(layer),
            mean_of([r["exists"][layer] for r in found]),
            mean_of([r["moved"][layer] for r in found]),
            max(r["gap"][layer] for r in found),
            mean_of([r["dimension"][layer] for r in found]),
            len(found),
        ]
        for layer in range(len(found[0]["exists"]))
    ]
    form = Form("lines", "attention", "moved", "layer", title="Weight that can move unnoticed")
    columns = ("attention", "layer", "exists", "moved", "gap", "dimension", "n")
    caption = "heads with another valid attention of the same output, and how far it is away"
    return context.table("alternative_attention", columns, rows, caption, form=form)
