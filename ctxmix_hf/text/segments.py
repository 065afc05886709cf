"""Stretches of a text as units of a map: sentences, paragraphs, or positions that somebody lists."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from ctxmix_hf.errors import InputError, OptionError
from ctxmix_hf.text.tokens import Tokens

Segments = str | Sequence[Sequence[int]]

LONGEST_NAME = 40  # characters of a segment's name
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s|$)|[。！？]+[」』”’]*|\n")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[\"“'‘])(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|cf|al|Fig|Eq|No|pp?|e\.g|i\.e|[A-Z])\.$"
)


def _cuts(text: str, ends: Sequence[int]) -> list[tuple[int, int]]:
    """The stretches between these places, without those that are blank."""
    edges = [0, *ends, len(text)]
    return [(a, b) for a, b in itertools.pairwise(edges) if text[a:b].strip()]


def sentences(text: str) -> list[tuple[int, int]]:
    """Where each sentence begins and ends, by its punctuation and by line breaks.

    A full stop after an abbreviation or an initial ends nothing, nor does one before a small letter.
    """
    ends = []
    for found in _SENTENCE_END.finditer(text):
        before, after = text[: found.end()], text[found.end() :].lstrip()
        full_stop = found.group().startswith(".")
        if full_stop and (_ABBREVIATION.search(before[-12:]) or after[:1].islower()):
            continue
        ends.append(found.end())
    return _cuts(text, ends)


def paragraphs(text: str) -> list[tuple[int, int]]:
    """Where each paragraph begins and ends: blank lines part them, or line breaks where there are none."""
    ends = [found.end() for found in re.finditer(r"\n\s*\n", text)]
    return _cuts(text, ends or [found.end() for found in re.finditer(r"\n", text)])


UNITS = {"sentences": sentences, "paragraphs": paragraphs}


def check_segments(by: Segments) -> None:
    """Raise where `by` is neither a unit nor a list of lists."""
    known = " or ".join(map(repr, UNITS))
    if isinstance(by, str):
        if by not in UNITS:
            raise OptionError(
                f"segments={by!r} is not a kind of segment: choose {known}, or list the positions of each segment, "
                "[range(1, 20), range(20, 45)]."
            )
        return
    if (
        not isinstance(by, Sequence)
        or not by
        or not all(isinstance(item, Sequence) and not isinstance(item, str) for item in by)
    ):
        raise OptionError(
            f"segments={by!r:.60} is not a list of segments: choose {known}, or list the positions of each, "
            "[range(1, 20), range(20, 45)]."
        )


def segment_groups(tokens: Tokens, by: Segments) -> list[list[int]]:
    """The positions of each segment among `tokens`, which hold no padding, in the text's order.

    Special tokens are segments of their own. Of a list, what it leaves out is gathered stretch by stretch.
    """
    check_segments(by)
    owner = _by_text(tokens, by) if isinstance(by, str) else _by_list(tokens, by)
    special = tokens.special or (False,) * len(tokens)
    groups: dict[tuple[str, int], list[int]] = {}
    gap = 0  # where the stretch that nobody claimed began
    for place, number in enumerate(owner):
        if number is not None:
            key = ("segment", number)
        elif special[place]:
            key = ("special", place)
        else:
            gap = gap if ("gap", gap) in groups and groups["gap", gap][-1] == place - 1 else place
            key = ("gap", gap)
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def _by_text(tokens: Tokens, unit: str) -> list[int | None]:
    if tokens.spans is None or tokens.text is None:
        raise InputError(
            f"segments={unit!r} needs the text and where its tokens stand in it, which this result does not know "
            "(it was made from ids, from a pair, or with a slow tokenizer): list the positions of each segment, "
            "segments=[range(1, 20), range(20, 45)]."
        )
    ends = [end for _, end in UNITS[unit](tokens.text)]
    return [None if span is None else bisect_right(ends, span[0]) for span in tokens.spans]


def _by_list(tokens: Tokens, listed: Sequence[Sequence[int]]) -> list[int | None]:
    owner: list[int | None] = [None] * len(tokens)
    for number, places in enumerate(listed, 1):
        if not len(places):
            raise InputError(f"Segment {number} of the list is empty.")
        for place in places:
            if not 0 <= place < len(tokens):
                raise InputError(
                    f"Segment {number} names token {place}: the text has {len(tokens)} tokens, 0 to {len(tokens) - 1}."
                )
            if owner[place] is not None:
                raise InputError(
                    f"Token {place} is in segments {owner[place]} and {number}: each token belongs to one."
                )
            owner[place] = number
    return owner


def segmented(tokens: Tokens, groups: Sequence[Sequence[int]]) -> Tokens:
    """One token per segment, named by how it begins."""
    merged = tokens.merged([list(group) for group in groups])
    in_text = tokens.spans is not None and tokens.text is not None
    names = tuple(
        _short(piece if in_text else " ".join(tokens.take(list(group)).merged().pieces))
        for piece, group in zip(merged.pieces, groups, strict=True)
    )
    return replace(merged, pieces=names, unknown=(False,) * len(names))


def _short(text: str) -> str:
    text = " ".join(text.split())
    if len(text) <= LONGEST_NAME:
        return text
    cut = text[:LONGEST_NAME]
    return (cut.rpartition(" ")[0] or cut) + " …"
