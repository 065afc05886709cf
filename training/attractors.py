"""Puts other nouns between a subject and its verb, so that the cue decides and not the neighbour."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from corpus import MinimalPair, Pair, pair_of

NOUN_SETS = (
    "determiner_noun_agreement_1",
    "determiner_noun_agreement_with_adjective_1",
    "regular_plural_subject_verb_agreement_2",
)
VERB_SET = "regular_plural_subject_verb_agreement_1"
ONE = ("the", "a", "this", "that", "every", "its", "his")
MANY = ("the", "some", "these", "those", "many", "all", "two", "their")
PREPOSITIONS = [
    "of",
    "to",
    "in",
    "on",
    "with",
    "for",
    "from",
    "near",
    "by",
    "about",
    "behind",
    "at",
    "under",
    "over",
    "without",
    "against",
    "around",
]


@dataclass(frozen=True)
class Lexicon:
    """Nouns and transitive verbs in both numbers, and stems that -s makes plural whatever they mean."""

    nouns: tuple[tuple[str, str], ...]
    stems: tuple[str, ...]
    verbs: tuple[tuple[str, str], ...]


def lexicon(rows: Iterable[MinimalPair], sentences: Iterable[str]) -> Lexicon:
    """Nouns from BLiMP's noun pairs, and those of SST-2 that stand after determiners with and without -s."""
    nouns: set[tuple[str, str]] = set()
    verbs: set[tuple[str, str]] = set()
    for row in rows:
        pair = pair_of(row) if row.uid in (*NOUN_SETS, VERB_SET) else None
        if pair is not None:
            forms = sorted((pair.good_word.lower(), pair.bad_word.lower()), key=len)
            (verbs if row.uid == VERB_SET else nouns).add((forms[0], forms[1]))
    regular = {
        (base, other) for base, other in verbs if other.startswith(base) and other.endswith("s")
    }
    known = nouns | _review_nouns(sentences) - regular
    return Lexicon(tuple(sorted(known)), tuple(sorted(_stems(sentences))), tuple(sorted(regular)))


def _stems(sentences: Iterable[str]) -> set[str]:
    """Words of any kind, used as nonce nouns: rare nouns reach the model as a stem and `##s` too."""
    endings = ("s", "ed", "ing", "ly", "y", "x", "ch", "sh")
    words = {word for sentence in sentences for word in sentence.split()}
    return {
        word for word in words if len(word) > 2 and word.isalpha() and not word.endswith(endings)
    }


def _review_nouns(sentences: Iterable[str]) -> set[tuple[str, str]]:
    after_one, after_many = Counter[str](), Counter[str]()
    for sentence in sentences:
        words = sentence.split()
        for before, word in itertools.pairwise(words):
            after_one[word] += before in ("a", "an", "the", "this", "its", "his", "every")
            after_many[word] += before in (
                "the",
                "these",
                "those",
                "many",
                "some",
                "its",
                "his",
                "of",
                "their",
            )
    return {
        (w, w + "s")
        for w, n in after_one.items()
        if n and len(w) > 2 and w.isalpha() and after_many[w + "s"]
    }


def stretch(pairs: Sequence[Pair], words: Lexicon, seed: int) -> list[Pair]:
    """For each pair whose verb follows a noun, one with words in between; the verb's number stays right."""
    dice = random.Random(seed)
    number = {form: plural for forms in words.nouns for plural, form in enumerate(forms)}
    ready = [
        p for p in pairs if p.target_index > 1 and p.words[p.target_index - 1].lower() in number
    ]
    return [
        _stretched(pair, number[pair.words[pair.target_index - 1].lower()], words, dice)
        for pair in ready
    ]


def _stretched(pair: Pair, plural: int, words: Lexicon, dice: random.Random) -> Pair:
    subject = pair.words[pair.target_index - 1]
    if dice.random() < 0.5:
        subject = _noun(plural, words, dice)
    between = _between(words, dice)
    text = (
        *pair.words[: pair.target_index - 1],
        subject,
        *between,
        *pair.words[pair.target_index :],
    )
    return Pair(pair.uid, text, pair.target_index + len(between), pair.good_word, pair.bad_word)


def _between(words: Lexicon, dice: random.Random) -> list[str]:
    """`to the cabinets`, `near a cabinet of the kings`, or `that the guards like`."""
    kind = dice.random()
    if kind < 0.6:
        return _preposition(words, dice)
    if kind < 0.8:
        return _preposition(words, dice) + _preposition(words, dice)
    many = dice.randrange(2)
    base, with_s = dice.choice(words.verbs)
    return [
        dice.choice(("that", "who", "which")),
        *_noun_phrase(many, words, dice),
        base if many else with_s,
    ]


def _preposition(words: Lexicon, dice: random.Random) -> list[str]:
    return [dice.choice(PREPOSITIONS), *_noun_phrase(dice.randrange(2), words, dice)]


def _noun_phrase(plural: int, words: Lexicon, dice: random.Random) -> list[str]:
    return [dice.choice(MANY if plural else ONE), _noun(plural, words, dice)]


def _noun(plural: int, words: Lexicon, dice: random.Random) -> str:
    if dice.random() < 0.4:
        return dice.choice(words.stems) + "s" * plural
    return dice.choice(words.nouns)[plural]
