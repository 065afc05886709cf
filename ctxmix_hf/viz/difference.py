"""The difference of two maps: minimal pairs, base against fine-tuned, one method against another."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctxmix_hf.errors import InputError
from ctxmix_hf.maps import Attribution, ContextMixingMap
from ctxmix_hf.tokens import Tokens
from ctxmix_hf.viz.canvas import fragment, page, write
from ctxmix_hf.viz.payload import block, check_state, default_target, heading, token_fields


@dataclass(frozen=True)
class MapDifference:
    """`second - first` on the tokens both have, `[L, T, T]`; positive where the second map has more."""

    first: ContextMixingMap
    second: ContextMixingMap
    pairs: list[tuple[int, int]]  # aligned positions
    layers: Tensor | None
    input: Tensor
    tokens: Tokens  # "is/are" where the two differ
    left_out: tuple[list[str], list[str]]

    @property
    def depth(self) -> int:
        return int(self.input.shape[0])

    def attribution(self, target: int | str, layer: int = -1) -> Attribution:
        """One signed row."""
        place = target if isinstance(target, int) else self.tokens.find(target)
        row = self.input[layer, place][None]
        mask = torch.ones(1, len(self.tokens), dtype=torch.bool)
        return Attribution(row, [self.tokens], mask, f"{self.second.method} - {self.first.method}", str(target), {"layer": layer})

    def payload(self, **state: Any) -> dict[str, Any]:
        maps = {"input": {**block(self.input), "label": "from the input"}}
        if self.layers is not None:
            maps["layer"] = block(self.layers)
        notes = [f"Left out of the difference: {', '.join(side)}." for side in self.left_out if side]
        return {
            "version": 1, "method": "difference", "aggregation": self.second.aggregation, "depth": self.depth, "maps": maps,
            "signed": True, "title": self.title, "pin": str(default_target(self.tokens)), "notes": notes, "legend": "second − first",
            "state": check_state(state), **token_fields(self.tokens),
        }  # fmt: skip

    @property
    def title(self) -> str:
        a, b = heading(self.first), heading(self.second)
        return f"difference: second − first ({a})" if a == b else f"difference: {b} − {a}"

    def _repr_html_(self) -> str:
        return fragment(self.payload())

    def to_html(self, path: Any = None, **state: Any) -> Any:
        text = page(self.payload(**state), self.title)
        return text if path is None else write(text, path)

    def __str__(self) -> str:
        values = self.input[-1]
        order = values.abs().flatten().argsort(descending=True)[:8].tolist()
        names, n = self.tokens.shown(), len(self.tokens)
        rows = [f"  {values[k // n, k % n]:+.4f}  {names[k % n]} → {names[k // n]}" for k in order]
        return "\n".join([f"{self.title} · largest changes in layer {self.depth}, from the input", *rows])

    def plot(self, layer: int = -1, **options: Any) -> Any:
        from ctxmix_hf.viz.figures import plot_difference

        return plot_difference(self, layer=layer, **options)


def difference(first: ContextMixingMap, second: ContextMixingMap, example: int = 0, *, row_shares: bool = False) -> MapDifference:
    """Align the tokens of two maps and subtract: `second - first`.

    Maps of the same pieces are compared piece by piece; otherwise both are merged to words first. Words that stand for
    each other in the two sentences (a minimal pair) are one row; words that have no counterpart are left out, and said.
    `row_shares` divides rows by their sums first, for methods with different units.
    """
    a, b = first[example], second[example]
    if a.tokens[0] != b.tokens[0]:
        a, b = (m if m.meta.get("unit") == "word" else m.words() for m in (a, b))
    if a.depth != b.depth:
        raise InputError(f"The maps have {a.depth} and {b.depth} layers: compare models of the same depth, or take m.layer(...) of both.")
    pairs = align(a.tokens[0].shown(), b.tokens[0].shown())
    if not pairs:
        raise InputError("The two sentences have no token in common, so there is nothing to subtract.")
    left, right = [i for i, _ in pairs], [j for _, j in pairs]
    input_map = _taken(b.input[0], right, row_shares) - _taken(a.input[0], left, row_shares)
    layers = None
    if a.layers is not None and b.layers is not None:
        layers = _taken(b.layers[0], right, row_shares) - _taken(a.layers[0], left, row_shares)
    out = (_others(a.tokens[0], left), _others(b.tokens[0], right))
    return MapDifference(a, b, pairs, layers, input_map, _joined(a.tokens[0], b.tokens[0], pairs), out)


def align(first: list[str], second: list[str]) -> list[tuple[int, int]]:
    """Positions that stand for each other: equal tokens, and replaced stretches of the same length."""
    pairs: list[tuple[int, int]] = []
    for tag, i0, i1, j0, j1 in difflib.SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        if tag == "equal" or (tag == "replace" and i1 - i0 == j1 - j0):
            pairs.extend(zip(range(i0, i1), range(j0, j1), strict=True))
    return pairs


def _taken(values: Tensor, keep: list[int], row_shares: bool) -> Tensor:
    if row_shares:
        values = values / values.sum(dim=-1, keepdim=True).clamp(min=1e-30)
    index = torch.tensor(keep)
    return values[:, index[:, None], index]


def _others(tokens: Tokens, kept: list[int]) -> list[str]:
    return [piece for i, piece in enumerate(tokens.shown()) if i not in set(kept)]


def _joined(a: Tokens, b: Tokens, pairs: list[tuple[int, int]]) -> Tokens:
    names = [a.pieces[i] if a.pieces[i] == b.pieces[j] else f"{a.pieces[i]}/{b.pieces[j]}" for i, j in pairs]
    special = None if a.special is None else tuple(a.special[i] for i, _ in pairs)
    words = None if a.words is None else tuple(a.words[i] for i, _ in pairs)
    return Tokens(tuple(names), words, special)
