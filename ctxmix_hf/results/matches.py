"""Results of `similarity` and `rank`: pairs of tokens that sum to a similarity, documents with what
put them in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import index
from typing import Any, ClassVar

import torch
from torch import Tensor

from ctxmix_hf.errors import InputTypeError, UnsupportedMethodError
from ctxmix_hf.results.attributions import Attribution, joined_units
from ctxmix_hf.results.base import Result
from ctxmix_hf.results.ledgers import Ledger
from ctxmix_hf.text.tokens import Tokens

BIAS_ROW, BIAS_COLUMN, BIASES = "bias row", "bias column", "bias x bias"
OWN_A, OWN_B = "a x a", "b x b"


@dataclass(frozen=True)
class Pairs:
    """`matrix.sum() + all lines = the similarity`; `rows` are the tokens of the first text that were asked for."""

    matrix: Tensor  # [Ta, Tb], zero in rows that were not asked for
    lines: dict[str, Tensor]  # bias row [Tb], bias column [Ta], bias x bias []
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, repr=False, eq=False)
class Similarity(Result):
    """Two texts' similarity, shared out over pairs of their tokens.

    Attributes:
        cosine: The model's own similarity, through its own pooling, further modules, normalisation and prompts (`score`
            says which one it is: cosine, dot, euclidean, maxsim, or share where `method` was given).
        pairs: `[Ta, Tb]`, contributions of token j of the first and token k of the second text, computed on first use;
            with the `lines` they sum to the similarity.
        lines: `bias row` `[Tb]` (what the first text's biases and each token of the second give), `bias column` `[Ta]`,
            `bias x bias` `[]`; for the Euclidean distance also `a x a` and `b x b`.
        a, b: `Attribution` of each text: `a.scores[j] = <P_j, q> / (|p| |q|)`, row j of `pairs`
            plus its entry in the bias column.
        gap: How far the account of both sides is from the similarity (relative): the proof.
        pooling: How tokens became a vector, and `assumed` whether nobody said so.
    """

    kind: ClassVar[str] = "similarity"

    cosine: float
    a: Attribution
    b: Attribution
    pooling: str = "mean"
    assumed: bool = False
    score: str = "cosine"
    gap: float | None = None
    source: Callable[[], Pairs] | Pairs | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def _pairs(self) -> Pairs:
        if self.source is None:
            raise UnsupportedMethodError(
                "Shares of a context-mixing map have no pairs: leave method=... out for the exact account."
            )
        return self.source if isinstance(self.source, Pairs) else self.source()

    @property
    def pairs(self) -> Tensor:
        """`[Ta, Tb]`."""
        return self._pairs.matrix

    @property
    def lines(self) -> dict[str, Tensor]:
        """What is left of the similarity beside the pairs."""
        return self._pairs.lines

    @property
    def total(self) -> float:
        """`pairs.sum()` and all lines: the similarity, to rounding."""
        return float(self.pairs.sum() + sum(line.sum() for line in self.lines.values()))

    def __repr__(self) -> str:
        shape = f"{self.a.scores.shape[1]} x {self.b.scores.shape[1]} tokens"
        return f"Similarity({self.score} {self.cosine:.4f}, {shape})"

    def words(self) -> Similarity:
        """Pieces merged to words on both sides: contributions are summed."""
        ja, _, _ = joined_units(self.a.tokens, self.a.mask, self.a.scores)
        jb, _, _ = joined_units(self.b.tokens, self.b.mask, self.b.scores)

        def merged() -> Pairs:
            own = self._pairs
            lines = dict(own.lines)
            if BIAS_ROW in lines:
                lines |= {
                    BIAS_ROW: lines[BIAS_ROW] @ jb[0].mT,
                    BIAS_COLUMN: lines[BIAS_COLUMN] @ ja[0].mT,
                }
            return Pairs(ja[0] @ own.matrix @ jb[0].mT, lines)

        return replace(
            self,
            a=self.a.words(),
            b=self.b.words(),
            source=None if self.source is None else merged,
            meta={**self.meta, "unit": "word"},
        )

    def top(self, k: int = 5) -> list[tuple[str, str, float]]:
        """The k pairs with the largest contributions (by size): token of the first text, of the
        second, contribution.
        """
        flat = self.pairs.flatten()
        width = self.pairs.shape[1]
        names_a, names_b = self.a.tokens[0].shown(), self.b.tokens[0].shown()
        order = flat.abs().argsort(descending=True, stable=True)[:k].tolist()
        return [(names_a[i // width], names_b[i % width], float(flat[i])) for i in order]

    def finding(self) -> str:
        """The strongest pair of words, and what does not lie between words, in one sentence."""
        words = self if self.meta.get("unit") == "word" else self.words()
        pairs = content_pairs(words)
        first, second, value = pairs[0]
        said = f"{first}-{second} alone gives {value:.2f} of {self.cosine:.2f}"
        biases = float(sum(line.sum() for line in self.lines.values()))
        if len(pairs) == words.pairs.numel():  # no special tokens, or nothing else
            return f"{said}; biases {round(biases, 2) + 0.0:.2f}"
        special = float(words.pairs.sum()) - sum(value for *_, value in pairs)
        special, biases = round(special, 2) + 0.0, round(biases, 2) + 0.0  # never -0.00
        return f"{said}; pairs with special tokens give {special:.2f}, biases {biases:.2f}"


def content_pairs(words: Similarity) -> list[tuple[str, str, float]]:
    """Pairs of words in falling order; special tokens only where there is nothing else."""
    special_a, special_b = (side.tokens[0].special or () for side in (words.a, words.b))
    keep_a = [i for i in range(words.pairs.shape[0]) if not (i < len(special_a) and special_a[i])]
    keep_b = [i for i in range(words.pairs.shape[1]) if not (i < len(special_b) and special_b[i])]
    if not keep_a or not keep_b:
        return words.top(words.pairs.numel())
    names_a, names_b = words.a.tokens[0].shown(), words.b.tokens[0].shown()
    found = [(names_a[i], names_b[j], float(words.pairs[i, j])) for i in keep_a for j in keep_b]
    return sorted(found, key=lambda item: -abs(item[2]))


@dataclass(frozen=True, repr=False)
class Ranking(Result):
    """Documents in the model's own order; `r[i]` is the account of document i (as given), drawn up
    when it is asked for.

    Attributes:
        query: The query.
        documents: As given.
        scores: `[N]`, the model's own scores.
        order: Document numbers, best first.
    """

    kind: ClassVar[str] = "ranking"

    query: str
    documents: tuple[str, ...]
    scores: Tensor
    account: Callable[[int], Similarity | Ledger]
    _kept: dict[int, Similarity | Ledger] = field(default_factory=dict)

    @property
    def order(self) -> list[int]:
        return self.scores.argsort(descending=True, stable=True).tolist()

    def __len__(self) -> int:
        return len(self.documents)

    def __repr__(self) -> str:
        return f"Ranking({self.query!r:.60}, {len(self)} documents)"

    def __getitem__(self, document: int) -> Similarity | Ledger:
        """The words that put document i where it is."""
        try:
            document = index(document)
        except TypeError:
            raise InputTypeError(
                f"A document is asked for by its number, got {type(document).__name__}."
            ) from None
        if not -len(self) <= document < len(self):
            raise IndexError(f"There are {len(self)} documents, no number {document}.")
        document %= len(self)
        if document not in self._kept:
            self._kept[document] = self.account(document)
        return self._kept[document]

    def compare(self, i: int, j: int) -> Attribution:
        """What made document i beat document j: per token of the query, its contribution to i's
        score minus that to j's.

        Args:
            i: The document that ranked higher, counted from 0.
            j: The other one.
        """
        first, second = self[i], self[j]
        sides = [
            made.a if isinstance(made, Similarity) else _query_side(made)
            for made in (first, second)
        ]
        gap = sides[0].scores - sides[1].scores
        target = f"document {i % len(self)} over document {j % len(self)}"
        left = float(self.scores[i] - self.scores[j]) - float(gap.sum())
        return replace(sides[0], scores=gap, target=target, meta={"rest": left})


def _query_side(made: Ledger) -> Attribution:
    """The tokens of a reranker's first text."""
    tokens: Tokens = made.tokens[0]
    special = tokens.special or (False,) * len(tokens)
    ends = [i for i, flag in enumerate(special) if flag and i > 0]
    keep = list(range(ends[0] if ends else len(tokens)))
    row = made.scores[:1, keep]
    return Attribution(
        row, [tokens.take(keep)], torch.ones_like(row, dtype=torch.bool), "ledger", made.target
    )
