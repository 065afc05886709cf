"""Whose row? A target as people name it (a word, a position, `"mean_pool"`, nothing at all), as
positions of a sentence's tokens.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ctxmix_hf.errors import InputError, InputTypeError
from ctxmix_hf.text.tokens import MASKS, Tokens

Target = int | str | Sequence[int | str] | None
POOLED: dict[str, int | str] = {
    "mean": "mean_pool",
    "cls": 0,
    "last": -1,
}  # a model's pooling -> the target that is its vector


def places(
    target: Target, tokens: Tokens, causal: bool = False, pooling: str | None = None
) -> list[int]:
    """Positions among `tokens`, which hold no padding.

    The reserved names `"[CLS]"`, `"[MASK]"`, `"mean_pool"` and `"embedding"` win over a word of
    that spelling, which is `"embedding#1"`.
    """
    if target is None:
        target = default_target(tokens, causal)
    if isinstance(target, str):
        if target == "embedding":
            return places(pooled_target(pooling), tokens, causal)
        if target == "mean_pool":
            return list(range(len(tokens)))
        return [class_token(tokens, causal)] if target == "[CLS]" else tokens.find(target)
    if isinstance(target, Sequence):
        if not target:
            raise InputError("The list of targets is empty.")
        return [place for item in target for place in places(item, tokens, causal, pooling)]
    if _in_text(target):
        return _covered(target, tokens)
    try:
        place = operator.index(target)
    except TypeError as error:
        raise InputTypeError(
            f"A target is a position, a word or a list of these, not {type(target).__name__}."
        ) from error
    if not -len(tokens) <= place < len(tokens):
        raise InputError(
            f"There is no token {place}: the sentence has {len(tokens)} tokens, counted from 0."
        )
    return [place % len(tokens)]


def _in_text(target: object) -> bool:
    """A spaCy `Span` or `Token`: something that knows its place in a document's text."""
    return hasattr(target, "doc") and (hasattr(target, "start_char") or hasattr(target, "idx"))


def _covered(target: Any, tokens: Tokens) -> list[int]:
    """The tokens a stretch of the text falls on."""
    if tokens.spans is None or tokens.text is None:
        raise InputError(
            "This result does not know where its tokens stand in the text: name the word itself."
        )
    if target.doc.text != tokens.text:
        raise InputError(
            f"{str(target)!r:.80} belongs to another text than the one that was explained."
        )
    start = target.start_char if hasattr(target, "start_char") else target.idx
    end = target.end_char if hasattr(target, "end_char") else start + len(target.text)
    found = [
        place
        for place, span in enumerate(tokens.spans)
        if span is not None and span[0] < end and start < span[1]
    ]
    if not found:
        raise InputError(f"No token of the model falls on {str(target)!r:.80}.")
    return found


def default_target(tokens: Tokens, causal: bool) -> int | str:
    """The class token where there is one, the last token of a causal model, else the mean of all.

    A causal model's first token has read nothing but itself: whatever it is called, it stands for no sentence.
    """
    return -1 if causal else "mean_pool" if tokens.class_token() is None else "[CLS]"


def class_token(tokens: Tokens, causal: bool) -> int:
    place = None if causal else tokens.class_token()
    if place is None:
        more = ", or -1 for the last token, which has read all others" if causal else ""
        raise InputError(
            f"There is no class token here: choose a word, a position or 'mean_pool'{more}."
        )
    return place


def pooled_target(pooling: str | None) -> int | str:
    if pooling in POOLED:
        return POOLED[pooling]
    why = (
        "no file beside the model says how it pools its tokens"
        if pooling is None
        else f"no row of a map stands for {pooling} pooling"
    )
    raise InputError(
        f"The target 'embedding' cannot be used: {why}. Choose 'mean_pool', '[CLS]' or -1 (the last token)."
    )


def first_shown(tokens: Tokens, causal: bool) -> int:
    """The one token a picture starts with: the masked word, else the default target, else the first token."""
    masked = next((i for i, piece in enumerate(tokens.pieces) if piece in MASKS), None)
    return masked if masked is not None else places(None, tokens, causal)[0]


def named(target: Target, tokens: Sequence[Tokens], causal: bool) -> str:
    """What a result says of its target: the name, or the token at a position, or which default was taken."""
    if isinstance(target, str) or _in_text(target):
        return str(target)
    if isinstance(target, Sequence):
        return ", ".join(map(str, target))
    if target is None:
        chosen = list(dict.fromkeys(default_target(item, causal) for item in tokens))
        if chosen != [-1]:
            return " or ".join(map(str, chosen))
    if len(tokens) > 1:
        return "last token" if target is None else str(target)
    place = places(target, tokens[0], causal)[0]
    return f"{tokens[0].shown()[place]} ({'last token' if target is None else place})"
