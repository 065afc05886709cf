"""The result of `ledger`: signed contributions of tokens and named lines that add up to the model's own number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from ctxmix_hf.errors import UnsupportedMethodError
from ctxmix_hf.results.attributions import Attribution, joined_units
from ctxmix_hf.results.base import Result, show_html
from ctxmix_hf.text.tokens import Tokens

COMPONENTS = ("attention", "feed-forward", "residual")


@dataclass(frozen=True, repr=False, eq=False)
class Ledger(Result):
    """An account of one output number per example that balances: `value = scores.sum(-1) + all lines`.

    Attributes:
        scores: `[B, T]`, signed contributions of the input tokens, zero on padding.
        lines: name -> `[B]` (biases per layer and component, other constants), or `[B, T]` for position and token-type
            embeddings with `start="embeddings"`.
        value: `[B]`, the model's own number.
        total: `[B]`, the sum of the scores and all lines.
        gap: `[B]`, `|total - value|` relative to the larger of `|value|` and the sum of all parts'
            sizes (absolute where both are zero): the proof of the account.
        layers: `[B, L + 1, T]`, contributions counted at e^0 ... e^L; row l and `above[:, l]` sum to the value.
        above: `[B, L + 1]`, the sum of the lines that enter above e^l.
        edges: `[B, L, T, T]`, the signed contribution of source j (column) through token i's
            attention (row), computed on first use: `sum_h A[h, i, j] <dy/dcontext[h, i], V[h, j]>`.
        components: `[B, L, 3, T]`, `<dy/dv_i, v_i>` for v the attention's output, the
            feed-forward's output (both without their own bias, which is a line) and the residual
            that enters token i's attention block.
        target: what was explained, in words.
    """

    kind: ClassVar[str] = "ledger"

    value: Tensor
    scores: Tensor
    lines: dict[str, Tensor]
    mask: Tensor
    tokens: list[Tokens]
    target: str
    rows: Tensor
    above: Tensor
    components: Tensor
    edge_source: Callable[[], Tensor] | Tensor | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    method: str = "ledger"

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        values = ", ".join(f"{v:+.4g}" for v in self.value.tolist()[:4])
        return f"Ledger({self.target} = {values}, {len(self)} x {self.scores.shape[1]} tokens)"

    # ---- the account ------------------------------------------------------------------------------------------
    @property
    def total(self) -> Tensor:
        """`[B]`: the scores and all lines together."""
        return self.scores.sum(dim=-1) + self.bias

    @property
    def bias(self) -> Tensor:
        """`[B]`: all lines together."""
        return sum((_summed(line) for line in self.lines.values()), torch.zeros_like(self.value))

    @property
    def gap(self) -> Tensor:
        """`[B]`: how far the total is from the value."""
        size = self.scores.abs().sum(dim=-1) + sum(
            (_summed(line.abs()) for line in self.lines.values()), torch.zeros_like(self.value)
        )
        scale, off = torch.maximum(self.value.abs(), size), (self.total - self.value).abs()
        return torch.where(scale > 0, off / scale.clamp(min=torch.finfo(scale.dtype).tiny), off)

    @property
    def layers(self) -> Tensor:
        """`[B, L + 1, T]`: contributions counted at e^0 ... e^L."""
        off = (self.rows.sum(dim=-1) + self.above - self.value[:, None]).abs()
        size = torch.maximum(self.rows.abs().sum(dim=-1), self.value.abs()[:, None]).clamp(
            min=1e-30
        )
        if bool((off > 1e-2 * size).any()):
            raise UnsupportedMethodError(
                "Something reaches the later layers past the residual stream of this model, so "
                "contributions can only be counted at "
                "the input: use .scores."
            )
        return self.rows

    @cached_property
    def edges(self) -> Tensor:
        """`[B, L, T, T]`: rows are target tokens, columns source tokens."""
        if self.edge_source is None:
            raise UnsupportedMethodError(
                "This ledger was stored without its edges: draw it up again with cm.ledger(...)."
            )
        return self.edge_source if isinstance(self.edge_source, Tensor) else self.edge_source()

    def spread(self) -> Ledger:
        """The lines shared out over the tokens in proportion to the size of their scores: nothing is left over."""
        size = self.scores.abs()
        shares = torch.where(
            size.sum(dim=-1, keepdim=True) > 0,
            size / size.sum(dim=-1, keepdim=True).clamp(min=1e-30),
            self.mask / self.mask.sum(dim=-1, keepdim=True),
        )
        return replace(
            self,
            scores=self.scores + shares * self.bias[:, None],
            lines={},
            meta={**self.meta, "biases": "spread"},
        )

    # ---- choosing ---------------------------------------------------------------------------------------------
    def __getitem__(self, example: int) -> Ledger:
        """One example as a batch of one, without its padding."""
        if not -len(self) <= example < len(self):
            raise IndexError(f"There are {len(self)} examples, no number {example}.")
        keep = self.mask[example].nonzero().squeeze(-1)

        def source() -> Tensor:
            return self.edges[example][None, :, keep[:, None], keep]

        return replace(
            self,
            value=self.value[example][None],
            scores=self.scores[example][None, keep],
            lines={
                name: line[example][None, keep] if line.dim() > 1 else line[example][None]
                for name, line in self.lines.items()
            },
            mask=torch.ones(1, len(keep), dtype=torch.bool, device=self.mask.device),
            tokens=[self.tokens[example].take(keep.tolist())],
            rows=self.rows[example][None, :, keep],
            above=self.above[example][None],
            components=self.components[example][None, ..., keep],
            edge_source=None if self.edge_source is None else source,
        )

    def words(self) -> Ledger:
        """Pieces merged to words: contributions are summed, edges on both sides."""
        join, mask, tokens = joined_units(self.tokens, self.mask, self.scores)

        def source() -> Tensor:
            return join[:, None] @ self.edges @ join[:, None].mT

        return replace(
            self,
            scores=(self.scores[:, None] @ join.mT)[:, 0],
            lines={
                name: (line[:, None] @ join.mT)[:, 0] if line.dim() > 1 else line
                for name, line in self.lines.items()
            },
            mask=mask,
            tokens=tokens,
            rows=self.rows @ join.mT,
            components=self.components @ join.mT[:, None],
            edge_source=None if self.edge_source is None else source,
            meta={**self.meta, "unit": "word"},
        )

    @property
    def attribution(self) -> Attribution:
        """The scores as an `Attribution`."""
        return Attribution(self.scores, self.tokens, self.mask, self.method, self.target, self.meta)

    def top(self, k: int = 5, example: int = 0) -> list[tuple[str, float]]:
        """The k tokens with the largest contributions (by size), with their sign.

        Args:
            k: At most so many.
            example: The example of the batch, counted from 0.
        """
        return self.attribution.top(k, example)

    def top_lines(self, k: int = 5, example: int = 0) -> list[tuple[str, float]]:
        """The k largest lines (by size), with their sign.

        Args:
            k: At most so many.
            example: The example of the batch, counted from 0.
        """
        found = [(name, float(_summed(line)[example])) for name, line in self.lines.items()]
        return sorted(found, key=lambda item: -abs(item[1]))[:k]

    def finding(self, example: int = 0, k: int = 3) -> str:
        """The account in one sentence: the largest contributions of words, the largest of those against
        the value where none of them is, and all biases together.

        Args:
            example: The example of the batch, counted from 0.
            k: How many words are named.
        """
        one = self[example].words()
        value = float(one.value[0])
        ordered = one.top(one.scores.shape[1])
        opposes = lambda score: score * value < 0 and abs(score) >= 0.005
        named = ordered[:k]
        if not any(opposes(score) for _, score in named):
            named += [item for item in ordered[k:] if opposes(item[1])][:1]
        parts = [f"{name} {score:+.2f}" for name, score in named]
        held = ", ".join([f"{parts[0]} of {value:+.2f}", *parts[1:]]) if parts else f"{value:+.2f}"
        return f"{held}, biases {float(one.bias[0]):+.2f}"

    def to_shap(self, example: int = 0) -> Any:
        """`shap.plots.waterfall(l.words().to_shap())`: the biases are its base value (extra `interop`)."""
        return self.view("shap", example)

    def show(self, example: int = 0, **display: Any) -> None:
        """The picture in a notebook, the text elsewhere.

        Args:
            example: The example of the batch, counted from 0.
            display: Options of the page.
        """
        show_html(self[example].view("fragment", **display), str(self[example]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger):
            return NotImplemented
        if (self.method, self.target, self.tokens, list(self.lines)) != (
            other.method,
            other.target,
            other.tokens,
            list(other.lines),
        ):
            return False
        mine, theirs = (
            [x.mask, x.value, x.scores, x.rows, *x.lines.values()] for x in (self, other)
        )
        return all(
            a.shape == b.shape and bool(torch.equal(a, b))
            for a, b in zip(mine, theirs, strict=True)
        )

    def __hash__(self) -> int:
        return hash((self.method, self.target, tuple(self.tokens), tuple(self.scores.shape)))


def _summed(line: Tensor) -> Tensor:
    """`[B]` of a line `[B]` or `[B, T]`."""
    return line.flatten(1).sum(dim=1) if line.dim() > 1 else line
