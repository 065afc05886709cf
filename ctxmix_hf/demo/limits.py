"""What a request would cost, so that one that is too long is refused before it starts."""

from __future__ import annotations

from typing import Any

import ctxmix_hf as cm
from ctxmix_hf.demo import pairs
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.demo.shelf import Held
from ctxmix_hf.errors import InputError
from ctxmix_hf.text.batch import encode_one
from ctxmix_hf.text.inputs import longest_input


def check_text(text: Any, most: int = SETTINGS.characters) -> str:
    """The text as it will be read, or why not."""
    if not isinstance(text, str) or not text.strip():
        raise InputError("Type a sentence first: the text is empty.")
    if len(text) > most:
        raise InputError(
            f"The text has {len(text):,} characters; this page takes at most {most:,}. Shorten it."
        )
    return text.strip()


def info_of(method: str) -> Any:
    """The registry's row of a method; `a+rollout` is looked up as `a`."""
    base = str(method).partition("+")[0].strip()
    rows = {row.name: row for row in cm.list_methods()}
    cm.method(str(method)) if base not in rows else None
    return rows[base]


def passes(info: Any, tokens: int, width: int) -> float:
    """About how many forward passes a method costs (from what it needs; two methods need far more than the rest)."""
    if (
        info.name == "hta"
    ):  # by the chain rule; without closed forms it takes more, and the watchdog ends it
        return tokens * width * (0.13 + tokens / 160)
    if info.name == "hta_x_input":
        return 10.0 + tokens * width / 200
    if info.needs == "feed_forward":  # every part through the feed-forward
        return 3.0 + 2 * tokens
    # measured on BERTs of width 256 and 768 with 48 and 226 tokens (tests/demo/test_limits.py)
    return {
        "attention": 1.5,
        "values": 2.0,
        "block": 2.0 + 3 * tokens / width,
        "replay": 8.0 + tokens / 3,
        "model": 2.0 + 2 * tokens,
    }[info.needs]


def estimate(held: Held, method: str, tokens: int) -> float:
    """Seconds on this machine."""
    config = held.model.config
    width, depth = getattr(config, "hidden_size", 768), getattr(config, "num_hidden_layers", 12)
    forward = (2 * held.weights * tokens + 4 * depth * tokens**2 * width) / held.rate
    flow = 2e-6 * depth * tokens**4 / 64 if "flow" in method else 0.0
    return float(forward * passes(info_of(method), tokens, width) + flow)


def count_tokens(held: Held, text: str, pair: str = "") -> int:
    return len(encode_one(held.tokenizer, text, pair or None, verbose=False)["input_ids"])


def check_cost(
    held: Held, method: str, text: str, pair: str = "", most: int = SETTINGS.tokens
) -> float:
    """Seconds this request will take, or an error that says why it is refused and what to do."""
    if held.tokenizer is None:
        raise InputError(f"{held.name} reads no text: use the Image tab.")
    if pair:
        pairs.check_takes_pairs(
            held.name, held.tokenizer, getattr(held.model.config, "type_vocab_size", None)
        )
    tokens = count_tokens(held, text, pair)
    room = min(most, longest_input(held.model, held.tokenizer) or most)
    if tokens > room:
        raise InputError(
            f"The text has {tokens} tokens; with this model the page takes at most {room}. Shorten it."
        )
    return check_seconds(held, method, tokens)


def check_seconds(held: Held, method: str, tokens: int) -> float:
    """The same for an input of that many tokens, whatever it is."""
    seconds = estimate(held, method, tokens)
    if seconds > SETTINGS.seconds:
        raise InputError(
            f"{method} on {tokens} tokens would take about {seconds:.0f} s here (cost: "
            f"{info_of(method).cost}); the limit is "
            f"{SETTINGS.seconds} s. Choose another method or a shorter {'text' if held.tokenizer else 'input'}."
        )
    return seconds
