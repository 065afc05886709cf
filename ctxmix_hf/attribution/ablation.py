"""Attributions that look at the answer only: blank-out (Abnar & Zuidema 2020, section 4), and
random scores to compare with.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ctxmix_hf.attribution.base import ATTRIBUTIONS, AbstractAttribution, Case
from ctxmix_hf.errors import OptionError, UnsupportedMethodError
from ctxmix_hf.methods.base import About


@ATTRIBUTIONS.register("blank_out")
@dataclass(frozen=True)
class BlankOut(AbstractAttribution):
    """`f(text) - f(text with token j replaced)`: every position once, special tokens included.

    One is left: the end token that an encoder-decoder classifier (BART, T5) looks for to read its
    answer off. It scores 0.
    `replace_with` is `"unk"` (Abnar & Zuidema; Mohebbi), `"mask"` (Ferrando) or a token id. Signed
    by default (Mohebbi);
    `absolute=True` for Abnar's and Ferrando's.
    """

    replace_with: str | int = "unk"
    absolute: bool = False

    about = About(
        "drop of the score when a token is blanked",
        "Abnar & Zuidema 2020; Mohebbi et al. 2023",
        "f(x) - f(x with x_j replaced)",
        "T forward passes, batched",
        "model",
        "the whole model, exactly",
        "what tokens do only together",
    )

    def __post_init__(self) -> None:
        if self.replace_with not in ("unk", "mask") and not isinstance(self.replace_with, int):
            raise OptionError(
                f"blank_out: replace_with={self.replace_with!r} must be 'unk', 'mask' or a token id."
            )

    @torch.no_grad()
    def scores(self, case: Case) -> Tensor:
        ids = case.record.input_ids
        if ids is None:
            raise UnsupportedMethodError(
                "blank_out replaces tokens: it needs a model that reads one token id per place."
            )
        blank = (
            self.replace_with
            if isinstance(self.replace_with, int)
            else case.token(self.replace_with)
        )
        batch, tokens = ids.shape
        before = case.question.score(case.logits)
        drops = torch.zeros(batch, tokens, dtype=before.dtype, device=before.device)
        width = case.hidden.shape[-1]
        each = 30 * batch * tokens * (width + tokens) * case.hidden.element_size()
        for chunk in case.budget.chunks(tokens, each, limit=max(1, 4096 // (batch * tokens))):
            places = torch.arange(chunk.start, chunk.stop, device=ids.device)
            changed = ids.repeat(len(places), 1, 1)
            changed[torch.arange(len(places)), :, places] = blank
            if case.read_off is not None:
                changed = torch.where(ids == case.read_off, ids, changed)
            answer = case.record.replay.run(input_ids=changed.flatten(0, 1)).output.logits
            after = case.question.score(answer).unflatten(0, (len(places), batch))
            drops[:, chunk] = (before[None] - after).mT
        drops = drops * case.record.mask
        return drops.abs() if self.absolute else drops


@ATTRIBUTIONS.register("random")
@dataclass(frozen=True)
class Random(AbstractAttribution):
    """Uniform random scores: what every method has to beat."""

    seed: int = 0

    about = About(
        "uniform random scores", "-", "U(0, 1)", "none", "attention", "nothing", "everything"
    )

    def scores(self, case: Case) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return (
            torch.rand(case.record.mask.shape, generator=generator).to(case.hidden)
            * case.record.mask
        )
