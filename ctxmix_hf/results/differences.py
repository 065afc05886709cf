"""The difference of two maps: minimal pairs, base against fine-tuned, one method against another."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ctxmix_hf.algebra.equality import same_numbers
from ctxmix_hf.counting import check_scope, layer_index
from ctxmix_hf.errors import InputError, OptionError
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.base import Result
from ctxmix_hf.results.maps import ContextMixingMap, heading
from ctxmix_hf.text.tokens import Tokens


@dataclass(frozen=True, repr=False, eq=False)
class MapDifference(Result):
    """`second - first` on the tokens both have, `[L, T, T]`; positive where the second map has more.

    Equal (`==`) if both maps, the alignment and the numbers are.
    """

    kind: ClassVar[str] = "difference"

    first: ContextMixingMap
    second: ContextMixingMap
    pairs: list[tuple[int, int]]  # aligned positions
    layers: Tensor | None
    input: Tensor
    tokens: Tokens  # "is/are" where the two differ
    left_out: tuple[list[str], list[str]]

    def __repr__(self) -> str:
        return f"MapDifference({self.second!r} - {self.first!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MapDifference):
            return NotImplemented
        same = (self.first, self.second, self.pairs) == (other.first, other.second, other.pairs)
        return (
            same
            and same_numbers(self.input, other.input)
            and same_numbers(self.layers, other.layers)
        )

    def __hash__(self) -> int:
        return hash((self.first, self.second))

    @property
    def title(self) -> str:
        a, b = heading(self.first), heading(self.second)
        return f"difference: second − first ({a})" if a == b else f"difference: {b} − {a}"

    def to_view(self, **state: Any) -> dict[str, Any]:
        """What the browser widget draws, as JSON can hold it."""
        return self.view("payload", **state)  # type: ignore[no-any-return]

    @property
    def depth(self) -> int:
        return int(self.input.shape[0])

    @property
    def layer_numbers(self) -> range:
        """1 to L, or the one layer that was subtracted (the second map's, where the two are of different ones)."""
        return self.second.layer_numbers

    def of_scope(self, scope: str) -> Tensor:
        """`[L, T, T]`: from the input or within the layers."""
        held = self.input if check_scope(scope) == "input" else self.layers
        if held is None:
            raise OptionError("One of the two methods has no per-layer maps: use scope='input'.")
        return held

    def where(self, layer: int = -1, scope: str = "input") -> str:
        """`layer 3, from the input`; both sides where they are not of the same layer.

        Args:
            layer: 1 to L; -1 is the last.
            scope: `"input"`: from the input up to the layer; `"layer"`: within the layer.
        """
        index = layer_index(layer, self.layer_numbers)
        first, second = self.first.layer_numbers[index], self.second.layer_numbers[index]
        said = self.second.where(second, scope)
        return said if first == second else f"{said} − {self.first.where(first, scope)}"

    def attribution(self, target: int | str, layer: int = -1) -> Attribution:
        """One signed row, from the input to a layer (1 to L, -1 the last).

        Args:
            target: What `position` takes: a position, a word, a reserved name, or several.
            layer: 1 to L; -1 is the last.
        """
        places = [target] if isinstance(target, int) else self.tokens.find(target)
        index = layer_index(layer, self.layer_numbers)
        mask = torch.ones(1, len(self.tokens), dtype=torch.bool)
        meta = {"layer": self.layer_numbers[index], "scope": "input"}
        named = f"{self.second.method} - {self.first.method}"
        return Attribution(
            self.input[index, places].mean(dim=0, keepdim=True),
            [self.tokens],
            mask,
            named,
            str(target),
            meta,
        )


def subtracted(
    second: ContextMixingMap, first: ContextMixingMap, example: int = 0, *, row_shares: bool = False
) -> MapDifference:
    """Align the tokens of two maps and subtract: `second - first`.

    Maps of the same pieces are compared piece by piece; otherwise both are merged to words first. Words that stand for
    each other in the two sentences (a minimal pair) are one row; words that have no counterpart are left out, and said.
    `row_shares` divides rows by their sums first, for methods with different units.
    """
    a, b = first[example], second[example]
    if a.tokens[0] != b.tokens[0]:
        a, b = (m if m.meta.get("unit") == "word" else m.words() for m in (a, b))
    if a.depth != b.depth:
        raise InputError(
            f"The maps have {a.depth} and {b.depth} layers: compare models of the same depth, or "
            "take m.layer(...) of both."
        )
    pairs = align(a.tokens[0].shown(), b.tokens[0].shown())
    if not pairs:
        raise InputError(
            "The two sentences have no token in common, so there is nothing to subtract."
        )
    left, right = [i for i, _ in pairs], [j for _, j in pairs]
    input_map = _taken(b.input[0], right, row_shares) - _taken(a.input[0], left, row_shares)
    layers = None
    if a.layers is not None and b.layers is not None:
        layers = _taken(b.layers[0], right, row_shares) - _taken(a.layers[0], left, row_shares)
    out = (_others(a.tokens[0], left), _others(b.tokens[0], right))
    return MapDifference(
        a, b, pairs, layers, input_map, _joined(a.tokens[0], b.tokens[0], pairs), out
    )


def align(first: list[str], second: list[str]) -> list[tuple[int, int]]:
    """Positions that stand for each other: equal tokens, and replaced stretches of the same length."""
    pairs: list[tuple[int, int]] = []
    for tag, i0, i1, j0, j1 in difflib.SequenceMatcher(
        None, first, second, autojunk=False
    ).get_opcodes():
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
    left, right = a.marked(), b.marked()
    names = [left[i] if left[i] == right[j] else f"{left[i]}/{right[j]}" for i, j in pairs]
    special = None if a.special is None else tuple(a.special[i] for i, _ in pairs)
    words = None if a.words is None else tuple(a.words[i] for i, _ in pairs)
    return Tokens(tuple(names), words, special)
