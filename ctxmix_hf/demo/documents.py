"""Texts too long for a map of words: their paragraphs (or sentences) as units, and one of them word by word."""

from __future__ import annotations

from typing import Any

from ctxmix_hf.demo.limits import count_tokens
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.demo.shelf import SHELF, Held
from ctxmix_hf.errors import InputError
from ctxmix_hf.text.batch import read
from ctxmix_hf.text.segments import UNITS, segment_groups


def is_long(held: Held, text: str) -> bool:
    return held.tokenizer is not None and count_tokens(held, text) > SETTINGS.tokens


def unit_of(text: str) -> str:
    """What `explain` takes as `segments`: paragraphs where there are some, else sentences."""
    for unit in ("paragraphs", "sentences"):
        if len(UNITS[unit](text)) > 1:
            return unit
    raise InputError(
        "The text is one long sentence: this page shows long texts by their paragraphs or sentences. "
        "Put a blank line where a new paragraph begins."
    )


def segments(held: Held, text: str, part: str = "") -> Any:
    """What `explain` takes as `segments`: the unit; or with a part the words of that one, each for
    itself, between the others as they are.
    """
    unit = unit_of(text)
    if not part.strip():
        return unit
    tokens = (read(held.model, text, lambda: held.tokenizer).tokens or [])[0]
    groups = segment_groups(tokens, unit)
    special = tokens.special or (False,) * len(tokens)
    parts = [group for group in groups if not all(special[place] for place in group)]
    number = int(part) if part.strip().isdecimal() else 0
    if not 1 <= number <= len(parts):
        raise InputError(
            f"There is no {unit.removesuffix('s')} {part!r:.20}: the text has {len(parts)}, counted from 1."
        )
    chosen = set(parts[number - 1])
    words = [word for word in tokens.groups() if chosen.issuperset(word)]
    return [*parts[: number - 1], *words, *parts[number:]]


def code(model: str, text: str, part: str = "") -> str:
    """The same as an argument of `explain` in Python; nothing for a text that is not long."""
    held = SHELF.get(model)
    if not is_long(held, text.strip()):
        return ""
    found = segments(held, text.strip(), part)
    if isinstance(found, str):
        return f", segments={found!r}"
    return f", segments=[{', '.join(f'range({group[0]}, {group[-1] + 1})' for group in found)}]"


def said(made: Any, part: str = "") -> dict[str, Any]:
    """For the widget: what its rows are, which of them is shown by its words, and the others by number."""
    if made.meta.get("unit") not in ("paragraph", "sentence", "segment"):
        return {}
    tokens = made.tokens[0]
    unit = unit_of(tokens.text)
    rows = [place for place, special in enumerate(tokens.special) if not special]
    count, shown = len(UNITS[unit](tokens.text)), int(part or 0)
    numbers = [number for number in range(1, count + 1) if number != shown]
    before = sum(number < shown for number in numbers) if shown else count
    places = [*rows[:before], *rows[len(rows) - (count - before - bool(shown)) :]]
    labels = list(tokens.shown())
    for place, number in zip(places, numbers, strict=True):
        labels[place] = f"{number}. {labels[place]}"
    return {
        "part": {"unit": unit.removesuffix("s"), "shown": part.strip()},
        "tokens": labels,
        "words": labels,
    }
