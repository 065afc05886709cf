"""Turns the corpora into training examples: masked-LM texts, agreement questions, and padded batches."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from attractors import lexicon, stretch
from corpus import (
    BoxData,
    MinimalPair,
    Pair,
    expand_negation,
    heldout_keys,
    leaks,
    pair_of,
    split_words,
)
from vocabulary import LONGEST, as_single_piece

IGNORED = -100
# Words whose number some other word decides wherever they stand in a grammatical sentence.
AUXILIARIES = {"is": "are", "was": "were", "has": "have", "does": "do"}
ANAPHORS = {
    "himself": "themselves",
    "herself": "themselves",
    "itself": "themselves",
    "themselves": "himself",
}
VERB_SETS = ("distractor_agreement_relational_noun", "regular_plural_subject_verb_agreement_1")
# Sets whose two sentences differ in one word that another word of the sentence decides.
AGREEMENT_PREFIXES = (
    "anaphor",
    "determiner_noun",
    "distractor_agreement",
    "regular_plural",
    "principle_A_c",
    "principle_A_domain_2",
)


@dataclass(frozen=True)
class Question:
    """A sentence with one [MASK], the piece that belongs there and the one of the other number."""

    text: str
    good: int
    bad: int


@dataclass(frozen=True)
class TrainingText:
    """What may be learned from: BLiMP without the held-out half, and the sentences behind SST-2's phrases."""

    rows: tuple[MinimalPair, ...]
    sentences: tuple[str, ...]
    heldout: frozenset[str]


def training_text(data: BoxData) -> TrainingText:
    """A BLiMP row goes if either of its sentences is a held-out one."""
    keys = heldout_keys(data.cues)
    rows = tuple(row for row in data.blimp if not (leaks(row.good, keys) or leaks(row.bad, keys)))
    return TrainingText(rows, tuple(whole_sentences([text for text, _ in data.sst_train])), keys)


def whole_sentences(texts: Sequence[str]) -> list[str]:
    """SST-2's phrases are cut from sentences: only those that stand in no longer one, each once."""
    frequency = Counter(word for text in texts for word in text.split())
    kept: list[str] = []
    holding: dict[str, list[str]] = defaultdict(list)
    for text in sorted(set(texts), key=lambda t: (-len(t), t)):
        words = text.split()
        rarest = min(words, key=frequency.__getitem__)
        if len(words) < 3 or any(f" {text} " in longer for longer in holding[rarest]):
            continue
        kept.append(text)
        for word in set(words):
            holding[word].append(f" {text} ")
    return kept


def spellings(text: str) -> list[str]:
    """SST-2 writes `is n't`; users write `isn't` or `is not`. All three are taught."""
    if " n't" not in text:
        return [text]
    return [text, text.replace(" n't", "n't"), expand_negation(text)]


def language_texts(text: TrainingText) -> list[str]:
    """Texts for the masked LM: every fourth negated BLiMP sentence keeps its contraction."""
    blimp = [
        row.good if i % 4 == 0 else expand_negation(row.good) for i, row in enumerate(text.rows)
    ]
    return blimp + [spelling for sentence in text.sentences for spelling in spellings(sentence)] * 2


def number_foils(rows: Sequence[MinimalPair]) -> dict[str, str]:
    """Verb and anaphor forms with their other number, collected from the training pairs."""
    foils = {**AUXILIARIES, **{b: a for a, b in AUXILIARIES.items()}, **ANAPHORS}
    for pair in (pair_of(row) for row in rows if row.uid in VERB_SETS):
        if pair is not None:
            foils.setdefault(pair.good_word.lower(), pair.bad_word.lower())
            foils.setdefault(pair.bad_word.lower(), pair.good_word.lower())
    return foils


def ask(tokenizer: PreTrainedTokenizerBase, pair: Pair) -> Question | None:
    """The question that a pair poses, or None where a word is not a single piece."""
    good, bad = (
        as_single_piece(tokenizer, pair.good_word),
        as_single_piece(tokenizer, pair.bad_word),
    )
    if good is None or bad is None:
        return None
    words = [
        *pair.words[: pair.target_index],
        tokenizer.mask_token,
        *pair.words[pair.target_index + 1 :],
    ]
    return Question(re.sub(r" ([.,?!])", r"\1", " ".join(words)), good, bad)


def agreement_pairs(text: TrainingText, seed: int) -> list[Pair]:
    """BLiMP's own agreement pairs, every number word of BLiMP, auxiliaries of SST-2; and these stretched."""
    own = [pair_of(row) for row in text.rows if row.uid.startswith(AGREEMENT_PREFIXES)]
    foils = number_foils(text.rows)
    general = [pair for row in text.rows for pair in _pairs_in(row.good, foils, row.uid)]
    auxiliaries = {a: b for a, b in foils.items() if a in AUXILIARIES or a in AUXILIARIES.values()}
    sst2 = [
        pair for sentence in text.sentences for pair in _pairs_in(sentence, auxiliaries, "sst2")
    ]
    words = lexicon(text.rows, text.sentences)
    far = stretch(general, words, seed) + [
        p for again in range(3) for p in stretch(sst2, words, seed + again)
    ]
    far = [pair for pair in far if not leaks(" ".join(pair.words), text.heldout)]
    return [pair for pair in own if pair is not None] * 2 + general + sst2 * 3 + far * 2


def _pairs_in(text: str, foils: dict[str, str], uid: str) -> list[Pair]:
    words = split_words(text)
    # A phrase that begins with the verb (`is a mess`) has lost its subject: there is nothing to agree with.
    found = [(i, w) for i, w in enumerate(words) if i > 0 and w.lower() in foils]
    return [Pair(uid, words, i, w, foils[w.lower()]) for i, w in found]


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    return tokenizer(list(texts), truncation=True, max_length=LONGEST)["input_ids"] if texts else []


def pad(sequences: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:
    """Ids and attention mask, both [B, T]."""
    width = max(map(len, sequences))
    ids = torch.tensor([[*s, *[padding] * (width - len(s))] for s in sequences])
    lengths = torch.tensor([len(s) for s in sequences])
    return ids, (torch.arange(width)[None] < lengths[:, None]).long()


def hide(
    ids: Tensor, mask: Tensor, tokenizer: PreTrainedTokenizerBase, share: float
) -> tuple[Tensor, Tensor]:
    """BERT's masking: of `share` of the pieces 80 % become [MASK], 10 % another piece, 10 % stay."""
    special = torch.tensor(sorted(tokenizer.all_special_ids))
    chosen = (torch.rand(ids.shape) < share) & mask.bool() & ~torch.isin(ids, special)
    dice = torch.rand(ids.shape)
    other = torch.randint(len(special), len(tokenizer), ids.shape)
    hidden = torch.where(chosen & (dice < 0.8), tokenizer.mask_token_id, ids)
    hidden = torch.where(chosen & (dice >= 0.9), other, hidden)
    return hidden, torch.where(chosen, ids, IGNORED)


class PluralSplitter:
    """Now and then cuts `senators` into `senator ##s`, so that the ending of rare plurals has a meaning."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, share: float = 0.1) -> None:
        vocabulary = tokenizer.get_vocab()
        ending = vocabulary["##s"]
        self.share = share
        self.cut = {
            i: (vocabulary[w[:-1]], ending)
            for w, i in vocabulary.items()
            if self._plural(w, vocabulary)
        }

    @staticmethod
    def _plural(word: str, vocabulary: dict[str, int]) -> bool:
        return (
            len(word) > 4
            and word.endswith("s")
            and not word.startswith("##")
            and word[:-1] in vocabulary
        )

    def __call__(self, ids: Sequence[int]) -> list[int]:
        draws = torch.rand(len(ids)).tolist()
        parts = [
            self.cut.get(i, (i,)) if d < self.share else (i,)
            for i, d in zip(ids, draws, strict=True)
        ]
        return [piece for part in parts for piece in part]
