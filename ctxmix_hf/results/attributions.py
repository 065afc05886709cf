"""One score per source token: a row of a map, or the importance of every token for a class."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ctxmix_hf.algebra.equality import same_numbers
from ctxmix_hf.algebra.ranks import spearman
from ctxmix_hf.errors import InputError
from ctxmix_hf.results.base import Result
from ctxmix_hf.text.segments import Segments, segment_groups, segmented
from ctxmix_hf.text.tokens import Tokens


@dataclass(frozen=True, repr=False, eq=False)
class Attribution(Result):
    """One score per source token: a row of a map, or the importance for a class. `[B, T]`, zero on padding.

    `meta` says which row: `layer` (1 to L) and `scope` for a row of a map, the class for scores of
    a class. It is not a tensor:
    `shape`, `sum()`, `numpy()`, `tolist()` and `np.asarray` give its scores, anything else is asked of `.scores`.

    Two attributions are equal (`==`) if their method, target, tokens, mask, scores, layer, scope
    and options are, whatever computed them; the hash is made of the parts of that which cannot
    change in place, so equal attributions have equal hashes.
    """

    kind: ClassVar[str] = "attribution"

    scores: Tensor
    tokens: list[Tokens]
    mask: Tensor
    method: str
    target: str
    meta: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.scores.shape[0]

    def __repr__(self) -> str:
        return f"Attribution({self.method}, target {self.target}, {len(self)} x {self.scores.shape[1]} tokens)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Attribution):
            return NotImplemented
        same = [(x.method, x.target, x.tokens, told(x.meta)) for x in (self, other)]
        return (
            same[0] == same[1]
            and same_numbers(self.mask, other.mask)
            and same_numbers(self.scores, other.scores)
        )

    def __hash__(self) -> int:
        return hash((self.method, self.target, tuple(self.tokens), self.shape))

    # ---- the scores where numbers are expected ----------------------------------------------------------------
    @property
    def shape(self) -> torch.Size:
        """`[B, T]`."""
        return self.scores.shape

    def sum(self, *dims: Any, **options: Any) -> Tensor:
        """The scores' sum.

        Args:
            dims: What `Tensor.sum` takes.
            options: The same, by name.
        """
        return self.scores.sum(*dims, **options)

    def numpy(self) -> Any:
        scores = self.scores.detach().cpu()
        return (
            scores.float() if scores.dtype == torch.bfloat16 else scores
        ).numpy()  # numpy has no bfloat16

    def tolist(self) -> list[list[float]]:
        return self.scores.tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """`np.asarray(attribution)` is its scores."""
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __getitem__(self, example: int) -> Attribution:
        """One example, still a batch of one, without its padding."""
        keep = self.mask[example].nonzero().squeeze(-1)
        return replace(
            self,
            scores=self.scores[example : example + 1, keep]
            if example >= 0
            else self.scores[example][None, keep],
            tokens=[self.tokens[example].take(keep.tolist())],
            mask=torch.ones(1, len(keep), dtype=torch.bool),
        )

    def words(self) -> Attribution:
        """Sub-words merged to words: scores are summed."""
        return self._merged(None)

    def segments(self, by: Segments = "sentences") -> Attribution:
        """Tokens merged to sentences, paragraphs, or listed positions: scores are summed.

        Args:
            by: `"sentences"`, `"paragraphs"`, or a list of the positions of each segment.
        """
        return self._merged(by)

    def _merged(self, by: Segments | None) -> Attribution:
        made = [self[b] for b in range(len(self))]
        units = [units_of(one.tokens[0], by) for one in made]
        groups = [group for group, _ in units]
        size = max((len(group) for group in groups), default=0)
        scores = self.scores.new_zeros(len(self), size)
        mask = torch.zeros(len(self), size, dtype=torch.bool)
        tokens: list[Tokens] = []
        for b, (one, group) in enumerate(zip(made, groups, strict=True)):
            for w, pieces in enumerate(group):
                scores[b, w] = one.scores[0, pieces].sum()
            mask[b, : len(group)] = True
            tokens.append(units[b][1].with_length(size))
        meta = {**self.meta, "unit": unit_name(by)}
        return replace(self, scores=scores, tokens=tokens, mask=mask, meta=meta)

    def top(self, k: int = 5, example: int = 0) -> list[tuple[str, float]]:
        """The k tokens with the largest scores (by size), with their scores.

        Args:
            k: At most so many.
            example: The example of the batch, counted from 0.
        """
        one = self[example]
        order = one.scores[0].abs().argsort(descending=True, stable=True)[:k].tolist()
        return [(one.tokens[0].shown()[i], float(one.scores[0, i])) for i in order]

    def effective_sources(self) -> Tensor:
        """`[B]`: over how many tokens the scores are spread, the exponential of their entropy (by
        size, as shares): 1 if one token has all, T if all have the same.
        """
        sizes = self.scores.detach().double().abs()
        shares = sizes / sizes.sum(dim=-1, keepdim=True).clamp(min=1e-300)
        return torch.special.entr(shares).sum(dim=-1).exp()

    def rank_correlation(self, other: Attribution) -> float:
        """Spearman's correlation with another attribution of the same tokens (first example); NaN
        if one is constant.
        """
        first, second = self[0], other[0]
        if first.scores.shape != second.scores.shape:
            raise InputError(
                f"The attributions have {first.scores.shape[1]} and {second.scores.shape[1]} tokens: "
                "compare the same sentence."
            )
        return float(spearman(first.scores[0].detach().cpu(), second.scores[0].detach().cpu()))

    def to_shap(self, example: int = 0, base_value: float = 0.0) -> Any:
        """`shap.plots.text(a.to_shap())` (extra `interop`).

        Args:
            example: The example of the batch, counted from 0.
            base_value: What the scores are added to.
        """
        return self.view("shap", example, base_value)

    def to_captum(self, example: int = 0) -> Any:
        """`captum.attr.visualization.visualize_text([a.to_captum()])` (extra `interop`)."""
        return self.view("captum", example)

    def to_latex(self, example: int = 0, cmap: str = "blues") -> str:
        """Coloured text for papers (needs xcolor).

        Args:
            example: The example of the batch, counted from 0.
            cmap: The name of a colour map.
        """
        return self.view("latex", example, cmap)  # type: ignore[no-any-return]


def told(meta: Mapping[str, Any]) -> str:
    """What `meta` says of the numbers themselves (not where the model lies, nor notes), the same
    before and after a file.
    """
    kept = ("options", "unit", "layer", "scope", "rolls_out_shares", "class_index", "of", "pair")
    return json.dumps({key: meta[key] for key in kept if key in meta}, sort_keys=True, default=str)


def units_of(tokens: Tokens, by: Segments | None) -> tuple[list[list[int]], Tokens]:
    """The positions of each word (None) or segment, and their names."""
    if by is None:
        return tokens.groups(), tokens.merged()
    groups = segment_groups(tokens, by)
    return groups, segmented(tokens, groups)


def unit_name(by: Segments | None) -> str:
    """As `meta["unit"]` says it."""
    return "word" if by is None else by.removesuffix("s") if isinstance(by, str) else "segment"


def joined_units(
    tokens: list[Tokens], mask: Tensor, like: Tensor, by: Segments | None = None
) -> tuple[Tensor, Tensor, list[Tokens]]:
    """`(join [B, W, T], mask [B, W], tokens)`: 1 where a piece belongs to a word (or segment), which
    are real, and their names.
    """
    real = [row.nonzero().squeeze(-1) for row in mask]
    kept = [item.take(places.tolist()) for item, places in zip(tokens, real, strict=True)]
    units = [units_of(item, by) for item in kept]
    groups = [group for group, _ in units]
    size = max((len(group) for group in groups), default=0)
    join = like.new_zeros(len(mask), size, mask.shape[1])
    words = torch.zeros(len(mask), size, dtype=torch.bool)
    for b, group in enumerate(groups):
        for w, pieces in enumerate(group):
            join[b, w, real[b][pieces]] = 1
            words[b, w] = True
    return join, words, [named.with_length(size) for _, named in units]
