"""Cue words of BLiMP's number-agreement sets, by rule from the published pairs (Mohebbi et al. 2023, table 1)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import InputError

# BLiMP's file -> Mohebbi et al.'s name
SETS = {
    "anaphor_number_agreement": "ana",
    "determiner_noun_agreement_2": "dna",
    "determiner_noun_agreement_with_adj_2": "dnaa",
    "distractor_agreement_relational_noun": "darn",
    "regular_plural_subject_verb_agreement_1": "rpsv",
}
DETERMINERS = frozenset(
    "a an the this that these those some many most all every each few several no any both".split()
)
PREPOSITIONS = ("of", "about", "to", "for", "with", "on", "at", "in", "from")
PLURAL = frozenset("themselves these those are were have do".split())


def expanded(sentence: str) -> list[str]:
    """Words, punctuation apart, with contractions written out: `doesn't` is `does not`."""
    sentence = re.sub(r"\bwon't\b", "will not", sentence)
    sentence = re.sub(r"\bcan't\b", "cannot", sentence)
    sentence = re.sub(r"n't\b", " not", sentence)
    return re.findall(r"[\w'’\-]+|[^\w\s]", sentence)


def cue_row(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """A pair of BLiMP with its target, foil and cue words; None where a rule does not apply.

    Args:
        row: `sentence_good`, `sentence_bad` and `UID`, as BLiMP has them.

    Returns:
        `words`, `target_index`, `cue_indices`, `good_word`, `bad_word`, `label` and `uid`.

    Example:
        >>> cue_row({"sentence_good": "Many women hate themselves.", "UID": "anaphor_number_agreement",
        ...          "sentence_bad": "Many women hate itself."})["cue_indices"]
        [1]
    """
    name = SETS.get(str(row.get("UID")), str(row.get("UID")))
    good, bad = expanded(str(row["sentence_good"])), expanded(str(row["sentence_bad"]))
    differ = [i for i, (a, b) in enumerate(zip(good, bad, strict=False)) if a != b]
    if name not in SETS.values() or len(good) != len(bad) or len(differ) != 1:
        return None
    target = differ[0]
    cue = _cue(name, good, target)
    if cue is None or cue == target:
        return None
    return {
        "uid": name,
        "words": good,
        "target_index": target,
        "cue_indices": [cue],
        "good_word": good[target],
        "bad_word": bad[target],
        "label": _number(good[target], bad[target]),
    }


def _cue(name: str, words: list[str], target: int) -> int | None:
    lower = [word.lower() for word in words]
    if name in ("dna", "dnaa"):  # the noun the determiner belongs to ends the sentence
        return max((i for i, word in enumerate(words) if word[0].isalnum()), default=None)
    if name == "rpsv":  # the subject stands right before its verb
        return target - 1 if target > 0 else None
    if name == "darn":  # the head noun stands before the first preposition
        before = [i for i, word in enumerate(lower[:target]) if word in PREPOSITIONS and i > 0]
        return before[0] - 1 if before else None
    if lower[:3] == ["a", "lot", "of"]:
        return 3
    return 1 if lower[0] in DETERMINERS else 0


def _number(good: str, bad: str) -> str:
    """`singular` or `plural`: by the word itself, or (a regular verb) by which form has the -s."""
    if good.lower() in PLURAL or bad.lower() in PLURAL:
        return "plural" if good.lower() in PLURAL else "singular"
    return "singular" if len(good) > len(bad) else "plural"


def blimp_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of the five sets in a folder of BLiMP's own files."""
    rows: list[dict[str, Any]] = []
    for name in SETS:
        path = folder / f"{name}.jsonl"
        if not path.is_file():
            raise InputError(
                f"{folder} has no {path.name}: give the folder with BLiMP's own files ({', '.join(SETS)})."
            )
        lines = path.read_text(encoding="utf-8").splitlines()
        made = (cue_row(json.loads(line)) for line in lines if line.strip())
        rows += [row for row in made if row is not None]
    return rows
