"""The tokens of a map: printable pieces, and the words they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ctxmix_hf.errors import InputError

_MARKS = ("▁", "Ġ")  # SentencePiece and byte-level BPE mark the start of a word


@dataclass(frozen=True, eq=False)
class Tokens:
    """The pieces of one sequence, padding included; `words[t]` is the word a piece belongs to (None: special)."""

    pieces: tuple[str, ...]
    words: tuple[int | None, ...] | None = None
    special: tuple[bool, ...] | None = None
    text: str | None = None
    spans: tuple[tuple[int, int] | None, ...] | None = None  # characters of `text`
    ids: tuple[int, ...] | None = None

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
        """Pieces as people read them: word marks and line breaks made visible."""
        return [_readable(piece) for piece in self.pieces]

    def take(self, keep: Sequence[int]) -> Tokens:
        """Only these positions."""
        pick = lambda items: None if items is None else tuple(items[i] for i in keep)  # noqa: E731
        return Tokens(pick(self.pieces) or (), pick(self.words), pick(self.special), self.text, pick(self.spans), pick(self.ids))

    def find(self, token: str) -> int:
        """The position of a piece: `"[MASK]"`, `"word"`, or `"word#2"` for its second occurrence."""
        name, _, nth = token.rpartition("#") if token.rpartition("#")[2].isdigit() and "#" in token[1:] else (token, "", "")
        shown = self.shown()
        places = [i for i, piece in enumerate(self.pieces) if name in (piece, shown[i], shown[i].strip())]
        if not places:
            raise InputError(f"No token {name!r} in: {' '.join(shown)}.")
        if nth:
            if not 1 <= int(nth) <= len(places):
                raise InputError(f"{name!r} occurs {len(places)} time(s), so there is no occurrence {nth}.")
            return places[int(nth) - 1]
        if len(places) > 1:
            raise InputError(
                f"{name!r} occurs {len(places)} times (positions {places}): choose one with {name + '#1'!r} ... or its position."
            )
        return places[0]

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
        marked = any(piece.startswith(_MARKS) for piece in self.pieces)
        words: list[int | None] = []
        for i, piece in enumerate(self.pieces):
            special = self.special[i] if self.special else piece.startswith(("[", "<")) and piece.endswith(("]", ">"))
            joined = not piece.startswith(_MARKS) if marked else piece.startswith("##")
            if special:
                words.append(None)
            elif joined and words and words[-1] is not None:
                words.append(words[-1])
            else:
                words.append(i)
        return words

    def merged(self) -> Tokens:
        """One piece per word, with the original text of each (also of unknown words) where it is known."""
        groups = self.groups()
        special = None if self.special is None else tuple(self.special[g[0]] for g in groups)
        return Tokens(tuple(self._word(group) for group in groups), tuple(range(len(groups))), special, self.text)

    def _word(self, group: list[int]) -> str:
        spans = [self.spans[i] for i in group] if self.spans is not None and self.text is not None else []
        known = [span for span in spans if span is not None and span[1] > span[0]]
        if known and self.text is not None:
            return self.text[min(s for s, _ in known) : max(e for _, e in known)]
        return "".join(self.pieces[i].removeprefix("##").lstrip("".join(_MARKS)) for i in group)

    def with_length(self, length: int) -> Tokens:
        missing = length - len(self)
        return self if missing <= 0 else replace(
            self, pieces=self.pieces + ("",) * missing,
            words=None if self.words is None else self.words + (None,) * missing,
            special=None if self.special is None else self.special + (True,) * missing,
            spans=None if self.spans is None else self.spans + (None,) * missing,
            ids=None if self.ids is None else self.ids + (0,) * missing,
        )  # fmt: skip


def _readable(piece: str) -> str:
    for mark in _MARKS:
        piece = piece.replace(mark, " ").strip() or piece
    return piece.replace("Ċ", "\\n").replace("\n", "\\n")


def numbered(count: int, what: str = "") -> Tokens:
    """Tokens without names: patches, frames, or ids without a tokenizer."""
    return Tokens(tuple(f"{what}{i}" for i in range(count)))


def read_tokens(ids: Sequence[Sequence[int]], tokenizer: Any) -> list[Tokens]:
    """Pieces from ids alone; words are guessed from the pieces."""
    special = set(getattr(tokenizer, "all_special_ids", ()))
    return [
        Tokens(
            tuple(map(str, tokenizer.convert_ids_to_tokens(list(row)))),
            special=tuple(int(i) in special for i in row),
            ids=tuple(int(i) for i in row),
        )
        for row in ids
    ]


def read_encoding(encoding: Any, tokenizer: Any, texts: Sequence[Any]) -> list[Tokens]:
    """Pieces, words and character spans from a tokenizer's encoding (fast tokenizers know words and spans)."""
    rows = encoding["input_ids"]
    rows = rows.tolist() if hasattr(rows, "tolist") else rows
    tokens = read_tokens(rows, tokenizer)
    if not getattr(encoding, "is_fast", False):
        return tokens
    read = []
    for i, item in enumerate(tokens):
        sequences, words = encoding.sequence_ids(i), encoding.word_ids(i)
        offsets = encoding.encodings[i].offsets
        text = texts[i] if isinstance(texts[i], str) else None
        numbers = tuple(None if w is None else w + 100_000 * (s or 0) for w, s in zip(words, sequences, strict=True))
        spans = tuple(None if w is None else (int(a), int(b)) for w, (a, b) in zip(words, offsets, strict=True))
        read.append(replace(item, words=numbers, spans=spans if text is not None else None, text=text))
    return read
