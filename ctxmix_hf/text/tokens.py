"""The tokens of a map: printable pieces, and the words they belong to."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ctxmix_hf.errors import InputError, UnknownTokensWarning
from ctxmix_hf.text.kinds import Tokenizer

WORD_MARKS = ("▁", "Ġ")  # SentencePiece and byte-level BPE mark the start of a word
MASKS = ("[MASK]", "<mask>")
CLASS_TOKENS = (
    "[CLS]",
    "<cls>",
    "<s>",
)  # the last one only where it stands first: elsewhere it is a separator
UNKNOWN = "[UNK]"
_UNKNOWNS = (UNKNOWN, "<unk>")
NOTICEABLE = 0.25  # share of unknown pieces from which a map says little about the text
# Scripts written without spaces (Thai to Myanmar, Khmer, kana, Han): their pieces are words of their own.
_UNSPACED = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3000, 0x30FF),
    (0x3400, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF00, 0xFFEF),
    (0x20000, 0x3FFFF),
)


@dataclass(frozen=True, eq=False)
class Tokens:
    """The pieces of one sequence, padding included; `words[t]` is the word a piece belongs to (None: special)."""

    pieces: tuple[str, ...]
    words: tuple[int | None, ...] | None = None
    special: tuple[bool, ...] | None = None
    text: str | None = None
    spans: tuple[tuple[int, int] | None, ...] | None = None  # characters of `text`
    ids: tuple[int, ...] | None = None
    # pieces that are not in the vocabulary: the model saw [UNK] there
    unknown: tuple[bool, ...] | None = None
    # after `merged`: the pieces each word was made of
    parts: tuple[tuple[str, ...], ...] | None = None

    def __len__(self) -> int:
        return len(self.pieces)

    def __eq__(self, other: object) -> bool:
        """Equal to another sequence of the same pieces."""
        if isinstance(other, Tokens | list | tuple):
            return list(self.pieces) == list(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.pieces)

    def __iter__(self) -> Any:
        return iter(self.pieces)

    def __getitem__(self, index: int) -> str:
        return self.pieces[index]

    def shown(self) -> list[str]:
        """Pieces as people read them: word marks and line breaks made visible, unknown words marked."""
        return [_readable(piece) for piece in self.marked()]

    def marked(self) -> list[str]:
        """The pieces; a word the model could not read says so: `[UNK] zebra`."""
        unknown = self.unknowns()
        seen = [
            piece if self.parts is None else "".join(self.parts[i])
            for i, piece in enumerate(self.pieces)
        ]
        return [
            f"{UNKNOWN} {piece}" if unknown[i] and piece != seen[i] else piece
            for i, piece in enumerate(self.pieces)
        ]

    def unknowns(self) -> list[bool]:
        """One flag per piece; by name where nobody wrote them down (stored maps)."""
        if self.unknown is not None:
            return list(self.unknown)
        return [any(part in _UNKNOWNS for part in self._pieces([i])) for i in range(len(self))]

    def take(self, keep: Sequence[int]) -> Tokens:
        """Only these positions."""
        held: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name != "text"
        }
        cut: dict[str, Any] = {
            name: None if items is None else tuple(items[i] for i in keep)
            for name, items in held.items()
        }
        return replace(self, **cut)

    # ---- names ------------------------------------------------------------------------------------------------
    def find(self, token: str) -> list[int]:
        """The positions a name stands for: a word (`"bleaching"`, however many pieces it has), a
        piece (`"##ing"`), `"[MASK]"`.

        `"word#2"` is its second occurrence. A name that occurs several times must say which.
        """
        name, nth = split_occurrence(token)
        places = self._named(name)
        if not places:
            known = [
                *dict.fromkeys(
                    piece
                    for piece, special in zip(self.merged().shown(), self._specials())
                    if not special
                )
            ]
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(f"No token {name!r} in: {' '.join(self.shown())}.{hint}")
        if nth is not None:
            if not 1 <= nth <= len(places):
                raise InputError(
                    f"{name!r} occurs {len(places)} time(s), so there is no occurrence {nth}."
                )
            return places[nth - 1]
        if len(places) > 1:
            at = [place[0] for place in places]
            raise InputError(
                f"{name!r} occurs {len(places)} times (positions {at}): choose one with "
                f"{name + '#1'!r} ... or its position."
            )
        return places[0]

    def _named(self, name: str) -> list[list[int]]:
        """Every occurrence of a name, each with its positions: words, or where there is none the
        pieces inside words.
        """
        if name in MASKS:
            return [[i] for i, piece in enumerate(self.pieces) if piece in MASKS]
        words = [group for group in self.groups() if name in self._spellings(group)]
        return words or [
            [i] for i, shown in enumerate(self.shown()) if name in (self.pieces[i], shown)
        ]

    def _spellings(self, group: list[int]) -> set[str]:
        """A word as it was typed and as the model's pieces spell it."""
        alone = [self.pieces[group[0]], self.shown()[group[0]]] if len(group) == 1 else []
        return {self._word(group), _joined(self._pieces(group)), *alone}

    def class_token(self) -> int | None:
        """Where [CLS], or whatever the tokenizer calls it, stands; None where there is none."""
        for name in CLASS_TOKENS[:2]:
            if name in self.pieces:
                return self.pieces.index(name)
        return 0 if self.pieces[:1] == CLASS_TOKENS[2:] else None

    def _specials(self) -> list[bool]:
        """One flag per word."""
        return [
            bool(self.special[group[0]]) if self.special is not None else False
            for group in self.groups()
        ]

    # ---- words ------------------------------------------------------------------------------------------------
    def groups(self) -> list[list[int]]:
        """Positions grouped to words; a special token is a word of its own."""
        words = self.words if self.words is not None else self._guessed_words()
        groups: list[list[int]] = []
        previous: int | None = None
        for i, word in enumerate(words):
            if word is not None and word == previous and groups:
                groups[-1].append(i)
            else:
                groups.append([i])
            previous = word
        return groups

    def _guessed_words(self) -> list[int | None]:
        """From the pieces alone: ## continues a word, a mark starts one."""
        marked = any(piece.startswith(WORD_MARKS) for piece in self.pieces)
        words: list[int | None] = []
        for i, piece in enumerate(self.pieces):
            special = (
                self.special[i]
                if self.special
                else piece.startswith(("[", "<")) and piece.endswith(("]", ">"))
            )
            joined = (
                not piece.startswith(WORD_MARKS) and not _unspaced(self.pieces[i - 1], piece)
                if marked
                else piece.startswith("##")
            )
            if special:
                words.append(None)
            elif joined and words and words[-1] is not None:
                words.append(words[-1])
            else:
                words.append(i)
        return words

    def sizes(self) -> list[int]:
        """How many pieces each token stands for: 1, or the pieces of a word."""
        return [1] * len(self) if self.parts is None else [max(1, len(part)) for part in self.parts]

    def merged(self, groups: list[list[int]] | None = None) -> Tokens:
        """One piece per word (or per group of positions), with the original text of each (also of
        unknown words) where it is known.
        """
        groups, unknown = self.groups() if groups is None else groups, self.unknowns()
        return Tokens(
            tuple(self._word(group) for group in groups),
            tuple(range(len(groups))),
            text=self.text,
            special=None if self.special is None else tuple(self.special[g[0]] for g in groups),
            unknown=tuple(any(unknown[i] for i in group) for group in groups),
            parts=tuple(tuple(self._pieces(group)) for group in groups),
        )

    def _pieces(self, group: list[int]) -> list[str]:
        return [
            piece
            for i in group
            for piece in (self.parts[i] if self.parts is not None else (self.pieces[i],))
        ]

    def _word(self, group: list[int]) -> str:
        spans = (
            [self.spans[i] for i in group]
            if self.spans is not None and self.text is not None
            else []
        )
        known = [span for span in spans if span is not None and span[1] > span[0]]
        if known and self.text is not None:
            return (
                self.text[min(s for s, _ in known) : max(e for _, e in known)].strip()
                or self.pieces[group[0]]
            )
        return _joined([self.pieces[i] for i in group])

    def with_length(self, length: int) -> Tokens:
        missing = length - len(self)
        return (
            self
            if missing <= 0
            else replace(
                self,
                pieces=self.pieces + ("",) * missing,
                words=None if self.words is None else self.words + (None,) * missing,
                special=None if self.special is None else self.special + (True,) * missing,
                spans=None if self.spans is None else self.spans + (None,) * missing,
                ids=None if self.ids is None else self.ids + (0,) * missing,
                unknown=None if self.unknown is None else self.unknown + (False,) * missing,
                parts=None if self.parts is None else self.parts + ((),) * missing,
            )
        )


def split_occurrence(token: str) -> tuple[str, int | None]:
    """`"word#2"` as `("word", 2)`; a piece such as `"##ing"` is a name like any other."""
    name, sign, number = token.rpartition("#")
    return (name, int(number)) if sign and name and number.isdigit() else (token, None)


def _joined(pieces: Sequence[str]) -> str:
    """The pieces of a word without the marks that say how they belong together."""
    return "".join(
        piece.removeprefix("##").lstrip("".join(WORD_MARKS)) for piece in pieces
    ) or "".join(pieces)


def _unspaced(before: str, after: str) -> bool:
    """Whether a piece follows another in a script that puts no spaces between words."""
    ends = (before[-1:], after.lstrip("".join(WORD_MARKS))[:1])
    return any(low <= ord(c) <= high for c in ends if c for low, high in _UNSPACED)


def _readable(piece: str) -> str:
    for mark in WORD_MARKS:
        piece = piece.replace(mark, " ").strip() or piece
    return piece.replace("Ċ", "\\n").replace("\n", "\\n")


def numbered(count: int, what: str = "", first: Sequence[str] = ()) -> Tokens:
    """Tokens without names: patches, frames, or ids without a tokenizer; `first` names those that stand before them."""
    return Tokens((*first, *(f"{what}{i}" for i in range(len(first), count))))


def read_tokens(ids: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[Tokens]:
    """Pieces from ids alone; words are guessed from the pieces."""
    special, unknown = set(getattr(tokenizer, "all_special_ids", ())), unknown_id(tokenizer)
    return [
        Tokens(
            tuple(map(str, tokenizer.convert_ids_to_tokens(list(row)))),
            special=tuple(int(i) in special for i in row),
            ids=tuple(int(i) for i in row),
            unknown=tuple(int(i) == unknown for i in row),
        )
        for row in ids
    ]


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """The id of the unknown token; None where it has another meaning too (GPT-2's is its end of text)."""
    others = [
        getattr(tokenizer, f"{name}_token_id", None)
        for name in ("bos", "eos", "pad", "mask", "cls", "sep")
    ]
    found = getattr(tokenizer, "unk_token_id", None)
    return None if found in others else found


def _warn_of_unknown(tokens: Sequence[Tokens]) -> None:
    """A map of [UNK]s says nothing about the words that were typed: said where they are many."""
    flags = [
        flag
        for t in tokens
        for flag, special in zip(t.unknown or (), t.special or ())
        if flag or not special
    ]
    if flags and sum(flags) >= NOTICEABLE * len(flags):
        warnings.warn(
            f"{sum(flags)} of {len(flags)} tokens are unknown to the tokenizer: the model saw "
            f"{UNKNOWN} in their place, so the result says "
            "nothing about those words. Is it the model's own tokenizer? Pass tokenizer=... if it is not.",
            UnknownTokensWarning,
            stacklevel=3,
        )


def read_encoding(encoding: Any, tokenizer: Tokenizer, texts: Sequence[Any]) -> list[Tokens]:
    """Pieces, words and character spans from a tokenizer's encoding (fast tokenizers know words and spans).

    `texts` are what was encoded: a text, a pair, or None where it is not known.
    """
    rows = encoding["input_ids"]
    rows = rows.tolist() if hasattr(rows, "tolist") else rows
    rows = (
        [rows] if rows and isinstance(rows[0], int) else rows
    )  # one text, encoded without a batch
    tokens = read_tokens(rows, tokenizer)
    _warn_of_unknown(tokens)
    if not getattr(encoding, "is_fast", False):
        return tokens
    read = []
    for i, item in enumerate(tokens):
        sequences, words = encoding.sequence_ids(i), encoding.word_ids(i)
        offsets = encoding.encodings[i].offsets
        both = (texts[i], "") if isinstance(texts[i], str) else texts[i]
        numbers = [
            None if w is None else (s or 0, w) for w, s in zip(words, sequences, strict=True)
        ]
        spans = tuple(
            None if w is None else (int(a), int(b))
            for w, (a, b) in zip(words, offsets, strict=True)
        )
        text = texts[i] if isinstance(texts[i], str) else None
        read.append(
            replace(
                item,
                words=_words(item.pieces, numbers, spans, both),
                spans=spans if text is not None else None,
                text=text,
            )
        )
    return read


def _words(
    pieces: Sequence[str],
    numbers: Sequence[tuple[int, int] | None],
    spans: Sequence[tuple[int, int] | None],
    texts: Any,
) -> tuple[int | None, ...]:
    """One number per word. A tokenizer's own "word" is whatever its pre-tokenizer leaves whole, for
    Llama and Gemma the entire sentence: it is cut where the text has a space (or the piece a mark),
    and between the pieces of a script without spaces."""
    found: list[int | None] = []
    for i, number in enumerate(numbers):
        if number is None:
            found.append(None)
        elif (
            i
            and numbers[i - 1] == number
            and not _starts(pieces[i - 1 : i + 1], spans[i - 1 : i + 1], texts and texts[number[0]])
        ):
            found.append(found[-1])
        else:
            found.append(i)
    return tuple(found)


def _starts(
    pieces: Sequence[str], spans: Sequence[tuple[int, int] | None], text: str | None
) -> bool:
    """Whether the second of two neighbouring pieces of one pre-token starts a word."""
    (begin, end), (start, stop) = spans[0] or (0, 0), spans[1] or (0, 0)
    if pieces[1].startswith("##") or start < end:  # bytes of one character share its place
        return False
    if (pieces[0] if text is None else text[begin:end]).strip(
        "".join(WORD_MARKS) + " "
    ) == "" and not pieces[1].startswith(WORD_MARKS):
        return False  # a space that is a piece of its own belongs to the word behind it
    if text is None:
        return pieces[1].startswith(WORD_MARKS) or _unspaced(*pieces)
    own = text[start:stop]
    return (
        own[:1].isspace()
        or text[max(0, start - 1) : start].isspace()
        or (stop > start and _unspaced(text[:start], own))
    )


def checked_tokens(
    pieces: Any,
    words: Any = None,
    special: Any = None,
    text: Any = None,
    spans: Any = None,
    ids: Any = None,
    unknown: Any = None,
    parts: Any = None,
) -> Tokens:
    """Tokens from a file: every part is of its kind and as long as the pieces, or an InputError."""
    number = lambda value: type(value) is int and value >= 0
    span = lambda value: (
        isinstance(value, list)
        and len(value) == 2
        and all(map(number, value))
        and value[0] <= value[1]
    )
    kinds: dict[str, tuple[Any, Any]] = {
        "pieces": (pieces, lambda value: isinstance(value, str)),
        "words": (words, lambda value: value is None or number(value)),
        "special": (special, lambda value: isinstance(value, bool)),
        "spans": (spans, lambda value: value is None or span(value)),
        "ids": (ids, number),
        "unknown": (unknown, lambda value: isinstance(value, bool)),
        "parts": (
            parts,
            lambda value: (
                isinstance(value, list) and all(isinstance(piece, str) for piece in value)
            ),
        ),
    }
    if not isinstance(pieces, list) or not (text is None or isinstance(text, str)):
        raise InputError(
            "The tokens do not fit together: pieces must be a list of strings, and text a string or null."
        )
    for name, (items, fits) in kinds.items():
        if items is not None and not (
            isinstance(items, list) and len(items) == len(pieces) and all(map(fits, items))
        ):
            raise InputError(
                f"The tokens do not fit together: {name} is not a list of {len(pieces)} of its kind."
            )
    places = (
        None
        if spans is None
        else tuple(None if item is None else (item[0], item[1]) for item in spans)
    )
    held = [None if items is None else tuple(items) for items in (words, special, ids, unknown)]
    made_of = None if parts is None else tuple(map(tuple, parts))
    return Tokens(tuple(pieces), held[0], held[1], text, places, held[2], held[3], made_of)
