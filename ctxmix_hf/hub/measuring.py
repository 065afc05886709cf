"""The measured half of a card: what the methods of a store cost, and how far their numbers move
when they should not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ctxmix_hf.hub.computing import compute


def measure(store: Any, most: int = 4) -> dict[str, dict[str, float]]:
    """Per method: seconds per example, times the plain forward, and the largest change on a repeat
    and in a padded batch.
    """
    texts = [
        body["text"]
        for body in map(store.example, store.ids()[:most])
        if body.get("text") and not body.get("text_pair")
    ]
    if not texts or store.tokenizer is None:
        return {}
    plain = _seconds(lambda: [_forward(store, text) for text in texts]) / len(texts)
    return {key: _measured(store, key, texts, plain) for key in store.methods}


def _measured(store: Any, key: str, texts: list[str], plain: float) -> dict[str, float]:
    alone = [_values(store, key, [text])[0] for text in texts]
    seconds = _seconds(lambda: [_values(store, key, [text]) for text in texts]) / len(texts)
    again = [_values(store, key, [text])[0] for text in texts]
    padded = _values(store, key, texts)
    return {
        "seconds": seconds,
        "forwards": seconds / plain,
        "repeat": _gap(alone, again),
        "padded": _gap(alone, padded),
    }


def _values(store: Any, key: str, texts: list[str]) -> list[Tensor]:
    """`[L, T, T]` of each text, computed as one batch."""
    recipe = {key: store.manifest.recipes()[key]}
    made = compute(store.model, store.tokenizer, recipe, texts, {})[0][key]
    return [
        one.layers[0] if one.layers is not None else one.input[0]
        for one in (made[b] for b in range(len(texts)))
    ]


def _gap(a: list[Tensor], b: list[Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


def _forward(store: Any, text: str) -> Any:
    from ctxmix_hf.calling import call, read_batch  # a store opens without transformers

    return call(store.model, read_batch(store.model, text, store.tokenizer))


def _seconds(call: Callable[[], Any]) -> float:
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
