"""`logit_lens`: what would the model say if it stopped after layer l? Each hidden state through the
model's own head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctxmix_hf.calling import call, read_batch
from ctxmix_hf.errors import OptionError, UnsupportedMethodError
from ctxmix_hf.explaining import _Classes, _logits, _one_record, _place, _warn_of_random
from ctxmix_hf.heads import Link, link_of
from ctxmix_hf.instrumentation.awake import keeps_modes
from ctxmix_hf.instrumentation.session import require_instrumentation
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.text.tokens import Tokens
from ctxmix_hf.unwrapping import base_model


@dataclass(frozen=True)
class LogitLens:
    """The head's answer to every layer's hidden state; the last row is the model's own. Printing it gives a table."""

    logits: Tensor  # [B, L + 1, C], of e^0 ... e^L
    top: Tensor  # [B, L + 1, K] classes or word ids, the largest logit first
    words: tuple[tuple[tuple[str, ...], ...], ...]  # their names, as `top`
    position: (
        Tensor | None
    )  # [B] places of the tokens read; None for heads with one answer per example
    tokens: tuple[Tokens, ...]
    link: Link

    @property
    def scores(self) -> Tensor:
        """`[B, L + 1, C]`: probabilities, or the numbers themselves where the head gives such."""
        if self.link == "identity":
            return self.logits
        return self.logits.sigmoid() if self.link == "sigmoid" else self.logits.softmax(dim=-1)

    def __str__(self) -> str:
        scores = self.scores.gather(-1, self.top)
        tables = []
        for b, rows in enumerate(self.words):
            head = "logit lens"
            if self.position is not None:
                place = int(self.position[b])
                head += f" at {self.tokens[b].shown()[place]} ({place})"
            cells = [
                [
                    f"{word} {float(score):.3f}"
                    for word, score in zip(row, scores[b, layer], strict=True)
                ]
                for layer, row in enumerate(rows)
            ]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            named = ["input", *(f"layer {layer}" for layer in range(1, len(cells)))]
            side = max(map(len, named))
            lines = [
                f"{name:<{side}}  "
                + "  ".join(
                    f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)
                ).rstrip()
                for name, row in zip(named, cells, strict=True)
            ]
            tables.append("\n".join([head, *lines]))
        return "\n\n".join(tables)


@keeps_modes
def logit_lens(
    model: Model,
    text: Any,
    position: Any = None,
    *,
    top: int = 5,
    tokenizer: Tokenizer | None = None,
    processor: Any = None,
) -> LogitLens:
    """What each layer's hidden state says when the model's own head reads it (nostalgebraist 2020, "the logit lens").

    `head(e^l)` for l = 0 ... L: the hidden state takes the place of the last layer's output, and
    everything behind it (final norm, pooler, transform, unembedding) runs as it is. So the last row
    equals the model's own logits, which is checked; rows below it ask the head to read a vector it
    was not trained on. Costs L + 2 forward passes.

    Args:
        model: An instrumented model with a head.
        text: What `explain` takes: a text, a pair, a list of these, tensors, an image, a waveform.
        position: The token of a per-token head, counting real tokens from either end. None: the
            masked word, or what follows the last token of a causal model.
        top: How many words or classes to name per layer.
        tokenizer: Where none lies beside the model.
        processor: An image processor or feature extractor, where none lies beside the model.

    Returns:
        A `LogitLens`: `.logits`, `.scores` `[B, L + 1, C]`, `.top`, `.words`; `print` shows a table.

    Raises:
        OptionError: `top` is not a positive whole number.
        UnsupportedMethodError: The model has no head, an encoder and a decoder, or a head that
            reads something else than the last layer's output.
        InputError: There is no such position.

    Example:
        >>> print(cm.logit_lens(model, "The keys to the cabinet [MASK] on the table."))
    """
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise OptionError(f"top={top!r} must be a whole number, at least 1.")
    owner, base = require_instrumentation(model), base_model(model)
    if getattr(base.config, "is_encoder_decoder", False):
        raise UnsupportedMethodError(
            f"{type(base).__name__} has an encoder and a decoder: its head reads the decoder, "
            "whose layers are not recorded. "
            "Use a model with one stack."
        )
    batch = read_batch(model, text, tokenizer, processor)
    _warn_of_random(model, head=True)
    tokenizer = tokenizer or owner.load_tokenizer()
    out = call(model, batch, output_decomposition=True)
    record = _one_record(base, out.decomposition)
    own = _logits(base, out, record)
    place = _place(base, own, record, batch, position, getattr(tokenizer, "mask_token_id", None))

    def read(logits: Tensor) -> Tensor:
        return (
            logits if place is None else logits[torch.arange(len(logits)), place.to(logits.device)]
        )

    states = record.hidden_states
    strange = next((state for state in states if state.shape != states[-1].shape), None)
    if strange is not None:
        raise UnsupportedMethodError(
            f"{type(base).__name__}: hidden states of {strange.shape[-1]} and of "
            f"{states[-1].shape[-1]} numbers cannot be read by one head."
        )
    with torch.no_grad():
        rows = [read(record.replay.run(state, at=len(record)).output.logits) for state in states]
    asked = read(own).detach()
    if not torch.allclose(rows[-1], asked, rtol=1e-4, atol=1e-5):
        raise UnsupportedMethodError(
            f"{type(base).__name__}: its head does not read the last layer's output alone, so no "
            "layer can be put in its place."
        )
    logits = torch.stack(rows, dim=1).detach()
    classes = _Classes(base.config, logits.shape[-1], tokenizer)
    chosen = logits.topk(min(top, logits.shape[-1]), dim=-1).indices
    words = tuple(
        tuple(tuple(classes.named(one) for one in row) for row in example)
        for example in chosen.cpu()
    )
    fits = batch.tokens is not None and len(batch.tokens[0]) == record.mask.shape[1]
    tokens = batch.tokens if fits and batch.tokens is not None else record.tokens
    return LogitLens(
        logits, chosen, words, place, tuple(tokens), link_of(base.config, tuple(own.shape))
    )
