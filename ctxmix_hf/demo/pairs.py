"""A second sentence: passed as the tokenizer's second segment, and shown as written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.errors import InputError
from ctxmix_hf.text.batch import encode_one
from ctxmix_hf.text.kinds import Tokenizer


def check_pair(pair: Any) -> str:
    """The second sentence as it will be read; empty where there is none."""
    given = pair.strip() if isinstance(pair, str) else ""
    if len(given) > SETTINGS.characters:
        raise InputError(
            f"The second sentence has {len(given):,} characters; this page takes at most "
            f"{SETTINGS.characters:,}. Shorten it."
        )
    return given


def both(text: str, pair: str) -> Any:
    """What `explain` and `attribute` take."""
    return (text, pair) if pair else text


def check_takes_pairs(name: str, tokenizer: Tokenizer, kinds: int | None) -> None:
    """A tokenizer that puts nothing between two segments would only glue them together; `kinds`
    segments have an embedding.
    """
    types = encode_one(tokenizer, "a", "b").get("token_type_ids") or [0]
    if tokenizer.num_special_tokens_to_add(pair=True) <= tokenizer.num_special_tokens_to_add(
        pair=False
    ) or max(types) >= (kinds or 2):
        raise InputError(
            f"{name} reads one text at a time: it marks no second sentence. Leave the second box empty."
        )


def named(made: Any, tokenizer: Tokenizer, text: str, pair: str) -> Any:
    """The map of a pair with both texts in it: words as they were typed, and the pair in its JSON."""
    if not pair:
        return made
    tokens = made.tokens[0]
    if getattr(tokenizer, "is_fast", False):
        encoding = encode_one(tokenizer, text, pair, return_offsets_mapping=True)
        shift = [len(text) + 1 if part else 0 for part in encoding.sequence_ids()]
        known = zip(tokens.words, encoding["offset_mapping"], shift, strict=True)
        spans = tuple(None if word is None else (a + by, b + by) for word, (a, b), by in known)
        tokens = replace(tokens, text=f"{text}\n{pair}", spans=spans)
    return replace(made, tokens=[tokens], meta={**made.meta, "pair": [text, pair]})


def second_starts(made: Any) -> int | None:
    """The position of the second sentence's first token."""
    return made.meta.get("pair") and next(
        (
            i
            for i, span in enumerate(made.tokens[0].spans or ())
            if span and span[0] > len(made.meta["pair"][0])
        ),
        None,
    )
