"""Parts of results: a layer, some tokens, words of an attribution."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ctxmix_hf.algebra.ranks import spearman
from ctxmix_hf.errors import InputError
from ctxmix_hf.maps import Attribution, ContextMixingMap
from ctxmix_hf.tokens import Tokens


def one_layer(m: ContextMixingMap, layer: int) -> ContextMixingMap:
    """Only this layer: its own map, and its map to the input."""
    if not -m.depth <= layer < m.depth:
        raise InputError(f"Layer {layer} does not exist: the map has {m.depth} layers (0 to {m.depth - 1}).")
    at = slice(layer % m.depth, layer % m.depth + 1)
    return replace(
        m, layers=None if m.layers is None else m.layers[:, at], heads=None if m.heads is None else m.heads[:, at],
        given_input=m.input[:, at], meta={**m.meta, "layer": layer % m.depth},
    )  # fmt: skip


def some_tokens(m: ContextMixingMap, keep: list[int]) -> ContextMixingMap:
    """Only these positions on both axes; values stay as they are."""
    if len(m) != 1:
        raise InputError(f"This map holds {len(m)} examples: choose one first, m[0].")
    index = torch.tensor(keep)

    def cut(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[..., index[:, None], index]

    return replace(
        m, layers=cut(m.layers), heads=cut(m.heads), given_input=cut(m.input), tokens=[m.tokens[0].take(keep)], mask=m.mask[:, index]
    )


def attribution_words(a: Attribution) -> Attribution:
    """Sub-words merged to words: scores are summed."""
    made = [a[b] for b in range(len(a))]
    groups = [one.tokens[0].groups() for one in made]
    size = max((len(group) for group in groups), default=0)
    scores, mask = a.scores.new_zeros(len(a), size), torch.zeros(len(a), size, dtype=torch.bool)
    tokens: list[Tokens] = []
    for b, (one, group) in enumerate(zip(made, groups, strict=True)):
        for w, pieces in enumerate(group):
            scores[b, w] = one.scores[0, pieces].sum()
        mask[b, : len(group)] = True
        tokens.append(one.tokens[0].merged().with_length(size))
    return replace(a, scores=scores, tokens=tokens, mask=mask, meta={**a.meta, "unit": "word"})


def top(a: Attribution, k: int, example: int = 0) -> list[tuple[str, float]]:
    """The k tokens with the largest scores, with their scores."""
    one = a[example]
    order = one.scores[0].abs().argsort(descending=True, stable=True)[:k].tolist()
    return [(one.tokens[0].shown()[i], float(one.scores[0, i])) for i in order]


def rank_correlation(a: Attribution, b: Attribution) -> float:
    """Spearman's correlation of two attributions of the same tokens."""
    first, second = a[0], b[0]
    if first.scores.shape != second.scores.shape:
        raise InputError(f"The attributions have {first.scores.shape[1]} and {second.scores.shape[1]} tokens: compare the same sentence.")
    return float(spearman(first.scores[0].detach().cpu(), second.scores[0].detach().cpu()))
