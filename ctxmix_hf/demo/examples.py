"""Sentences that show something, with their maps: the page is useful before, and without, any model.

`python -m ctxmix_hf.demo.making_examples` computes examples.json again from the bundled models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import ctxmix_hf as cm

FILE = "examples.json"
METHODS = (cm.DEFAULT_METHOD, "value_zeroing", "attention_rollout")
SENTENCES = (  # title, model, text, second sentence; words of the first are single pieces: none wins by having more
    ("Agreement", "ctxmix/agreement", "The books about the boy [MASK] old.", ""),
    (
        "Across a clause",
        "ctxmix/agreement",
        "The boys that like the girl [MASK] tired.",
        "",
    ),
    ("Anaphora", "ctxmix/agreement", "Many girls insulted [MASK].", ""),
    (
        "Keys and cabinet",
        "ctxmix/agreement",
        "The keys to the cabinet [MASK] on the table.",
        "",
    ),
    ("Negation", "ctxmix/sentiment", "The film is not good.", ""),
    ("A pair", "ctxmix/agreement", "The girl is old.", "The boys [MASK] tired."),
)

# What "Why this output?" asks of them: a word or class, and another one that it is set against. (Why "are" at all is
# mostly "old"; why "are" and not "is" is the plural noun.)
REASONS = {
    (model, text): ("negative", "positive")
    if model == "ctxmix/sentiment"
    else ("themselves", "herself")
    if "girls" in text and "insulted" in text
    else ("are", "is")
    for _, model, text, _ in SENTENCES
}


def reason(asked: Mapping[str, str], model: str, text: str) -> tuple[str, str]:
    """The word and the foil that an address means: those it names, an example's where it names none;
    `plain` says that there is to be neither.
    """
    if {"word", "foil", "plain"} & set(asked):
        return asked.get("word", ""), asked.get("foil", "")
    return REASONS.get((model, text), ("", ""))


@cache
def read() -> dict[str, Any]:
    path = resources.files("ctxmix_hf") / "demo" / FILE
    return (
        json.loads(path.read_text(encoding="utf-8"))
        if path.is_file()
        else {"maps": [], "predictions": []}
    )  # type: ignore[no-any-return]


def find(model: str, method: str, text: str, pair: str = "") -> Any:
    """The stored map of exactly this request, or None."""
    found = _entry(model, method, text, pair)
    return found and cm.ContextMixingMap.from_json(json.dumps(found["map"]))


def holds(model: str, method: str, text: str, pair: str = "") -> bool:
    return _entry(model, method, text, pair) is not None


def _entry(*asked: str) -> dict[str, Any] | None:
    return next(
        (e for e in read()["maps"] if (e["model"], e["method"], e["text"], e["pair"]) == asked),
        None,
    )


def find_prediction(model: str, text: str, pair: str = "") -> dict[str, Any] | None:
    found = [
        entry
        for entry in read()["predictions"]
        if (entry["model"], entry["text"], entry["pair"]) == (model, text, pair)
    ]
    return found[0]["prediction"] if found else None
