"""A sentence to evaluate on: its words, the masked one, the annotated cues, the gold; read from a dataset's row."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

_WORD = re.compile(r"\w[\w\-]*(?:['’]\w+)?|[^\w\s]")
MASKS = ("[MASK]", "<mask>")
_MASKED = re.compile(
    r"\[MASK\]|<mask>|(?:(?!\[MASK\]|<mask>)\S)+"
)  # words between white space, a mask on its own
_TIGHT = re.compile(r"[.,;:?!%)\]]+")  # written without a space before it


class BadRow(Exception):
    """Why a row cannot be used; the text is the reason that is reported."""


@dataclass(frozen=True)
class Sample:
    """One sentence, or a pair whose second text starts at word `second`.

    `gaps[i]` is the white space before word i, so that the original texts can be written again.
    """

    words: tuple[str, ...]
    gaps: tuple[str, ...]
    target: int | None = None  # the word that is masked
    cues: tuple[int, ...] = ()
    good: str | None = None
    bad: str | None = None
    label: str | int | None = None
    gold: tuple[float, ...] | None = None  # per word
    pairs: tuple[tuple[int, int], ...] | None = None  # (target word, source word)
    group: str = ""
    second: int | None = None  # the first word of a pair's second text
    tags: tuple[str, ...] | None = None  # a part of speech per word

    @property
    def key(self) -> str:
        """A hash of the content: the identity under which results are kept. Tags change no result."""
        content = {
            name: value
            for name, value in asdict(self).items()
            if name != "tags" and (name != "second" or value is not None)
        }
        return hashlib.sha256(
            json.dumps(content, sort_keys=True, default=str).encode()
        ).hexdigest()[:24]

    def texts(self, mask: str | None) -> tuple[tuple[str, ...], list[tuple[int, int, int]]]:
        """The text, or both of a pair, with the target masked; and of each word its text and characters."""
        texts, spans = [""], []
        for i, (gap, word) in enumerate(zip(self.gaps, self.words, strict=True)):
            word = mask if i == self.target and mask is not None else word
            if i == self.second:
                texts.append("")
            texts[-1] += gap
            spans.append((len(texts) - 1, len(texts[-1]), len(texts[-1]) + len(word)))
            texts[-1] += word
        return tuple(texts), spans

    def written(self, mask: str | None) -> tuple[str, list[tuple[int, int]]]:
        """What `texts` gives as one text, a pair with a space between."""
        texts, spans = self.texts(mask)
        return " ".join(texts), [
            (a + by, b + by) for part, a, b in spans for by in [len(texts[0]) + 1 if part else 0]
        ]


def read_sample(row: Mapping[str, Any]) -> Sample:
    """Recognise a row by its columns: cue-annotated words, a minimal pair, or a text with label and gold; with
    `pos_tags`, one part of speech per word."""
    if row.get("words") is not None:
        sample = _from_words(row)
    elif row.get("sentence_good") is not None and row.get("sentence_bad") is not None:
        sample = _from_pair(row)
    else:
        sample = _from_text(row)
    if row.get("pos_tags") is None or _is_nan(row["pos_tags"]):
        return sample
    tags = tuple(str(tag) for tag in _listed(row["pos_tags"], "pos_tags"))
    if len(tags) != len(sample.words):
        raise BadRow("pos_tags and words have different lengths")
    return replace(sample, tags=tags)


def _listed(value: Any, what: str) -> list[Any]:
    """A list, or the text of one (CSV and TSV hold text only)."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
            value = value if isinstance(value, list) else [value]
        except json.JSONDecodeError:
            value = [int(v) if re.fullmatch(r"-?\d+", v) else v for v in value.split()]
    if not hasattr(value, "__iter__"):
        raise BadRow(f"{what} is not a list")
    return list(value)


def _present(value: Any) -> bool:
    return value is not None and value != "" and value == value  # NaN differs from itself


def _places(value: Any, count: int, what: str) -> tuple[int, ...]:
    places = tuple(int(v) for v in _listed(value, what))
    if any(not 0 <= p < count for p in places):
        raise BadRow(f"{what} outside the sentence")
    return places


def _from_words(row: Mapping[str, Any]) -> Sample:
    words = tuple(str(w) for w in _listed(row["words"], "words"))
    if not words or not all(words):
        raise BadRow("empty text")
    gaps = tuple("" if i == 0 or _TIGHT.fullmatch(w) else " " for i, w in enumerate(words))
    target = None
    if _present(row.get("target_index")):
        (target,) = _places([row["target_index"]], len(words), "target_index")
    cues = row.get("cue_indices")
    return Sample(
        words,
        gaps,
        target,
        _places(cues, len(words), "cue_indices") if cues is not None and not _is_nan(cues) else (),
        _string(
            row.get("good_word")
            if _present(row.get("good_word"))
            else (words[target] if target is not None else None)
        ),
        _string(row.get("bad_word")),
        _label(row),
        _gold(row, len(words)),
        _pairs(row, len(words)),
        _group(row),
    )


def _from_pair(row: Mapping[str, Any]) -> Sample:
    """BLiMP (Warstadt et al. 2020): the one word in which the two sentences differ is the target."""
    good, bad = _split(str(row["sentence_good"])), _split(str(row["sentence_bad"]))
    if len(good[0]) != len(bad[0]):
        raise BadRow("the pair differs in more than one word")
    differ = [i for i, (a, b) in enumerate(zip(good[0], bad[0], strict=True)) if a != b]
    if len(differ) != 1:
        raise BadRow(
            "the pair differs in more than one word"
            if differ
            else "the two sentences of the pair are the same"
        )
    cues = row.get("cue_indices")
    places = (
        _places(cues, len(good[0]), "cue_indices") if cues is not None and not _is_nan(cues) else ()
    )
    place = differ[0]
    return Sample(
        *good, place, places, good[0][place], bad[0][place], _label(row), group=_group(row)
    )


def _from_text(row: Mapping[str, Any]) -> Sample:
    words, gaps, second = *_by_space(row["text"]), None
    if _present(row.get("pair")):
        more, second = _by_space(row["pair"]), len(words)
        words, gaps = words + more[0], gaps + more[1]
    masked = [i for i, word in enumerate(words) if word in MASKS]
    if len(masked) > 1:
        raise BadRow("more than one [MASK]")
    target = masked[0] if masked else None
    gold = _gold(row, len(words))
    return Sample(
        words,
        gaps,
        target,
        label=_label(row),
        gold=gold,
        pairs=_pairs(row, len(words)),
        group=_group(row),
        second=second,
    )


def _by_space(value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    text = str(value).strip() if _present(value) else ""
    if not text:
        raise BadRow("empty text")
    found = list(_MASKED.finditer(text))
    return tuple(m.group() for m in found), tuple(
        text[a.end() if a else 0 : b.start()] for a, b in zip([None, *found], found)
    )


def _split(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    words, gaps, end = [], [], 0
    for found in _WORD.finditer(text):
        words.append(found.group())
        gaps.append(text[end : found.start()])
        end = found.end()
    if not words:
        raise BadRow("empty text")
    return tuple(words), tuple(gaps)


def _gold(row: Mapping[str, Any], count: int) -> tuple[float, ...] | None:
    """`rationale`: one number per word, or `rationale_indices`: the words it holds."""
    if row.get("rationale_indices") is not None and not _is_nan(row["rationale_indices"]):
        chosen = set(_places(row["rationale_indices"], count, "rationale_indices"))
        return tuple(float(i in chosen) for i in range(count))
    if row.get("rationale") is None or _is_nan(row["rationale"]):
        return None
    values = tuple(float(v) for v in _listed(row["rationale"], "rationale"))
    if len(values) != count:
        raise BadRow("rationale and words have different lengths")
    return values


def _pairs(row: Mapping[str, Any], count: int) -> tuple[tuple[int, int], ...] | None:
    """`alignment`: a list of [target word, source word]."""
    if row.get("alignment") is None or _is_nan(row["alignment"]):
        return None
    pairs = [_places(pair, count, "alignment") for pair in _listed(row["alignment"], "alignment")]
    if any(len(pair) != 2 for pair in pairs):
        raise BadRow("alignment is not a list of pairs")
    return tuple((pair[0], pair[1]) for pair in pairs)


def _label(row: Mapping[str, Any]) -> str | int | None:
    value = row.get("label")
    if not _present(value):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return int(value)
    return value if isinstance(value, str | int) else str(value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def _group(row: Mapping[str, Any]) -> str:
    return str(row.get("uid") or row.get("UID") or row.get("group") or "")


def _string(value: Any) -> str | None:
    return str(value) if _present(value) else None


def texts_as_rows(texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"text": text} for text in texts]
