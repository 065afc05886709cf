"""Measures the stored models on text that no training stage saw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

from corpus import BoxData, Pair, is_heldout
from examples import Question, ask, encode, pad
from vocabulary import LONGEST

Measures = dict[str, Any]


def evaluate_agreement(folder: Path, data: BoxData) -> Measures:
    """Share of held-out pairs in which the right word has the larger logit at [MASK], in all and per set.

    `without_cue` is the same with the cue words made unknown: what is left is guessing from the rest.
    """
    heldout = [pair for pair in data.cues if is_heldout(pair)]
    blinded = [_without_cue(pair) for pair in heldout if pair.cue_indices]
    measured = _compare(folder, heldout, [pair.uid for pair in heldout])
    if blinded:
        measured["without_cue"] = _compare(folder, blinded, [pair.uid for pair in blinded])[
            "accuracy"
        ]
    return measured


def _without_cue(pair: Pair) -> Pair:
    words = tuple("[UNK]" if i in pair.cue_indices else word for i, word in enumerate(pair.words))
    return replace(pair, words=words)


def evaluate_linzen(folder: Path, linzen: Path) -> Measures:
    """The same on Wikipedia sentences, by number of attractors. Never for training: see the licence."""
    if not (linzen / "subj_agr_filtered.text").is_file():
        return {}
    texts = (linzen / "subj_agr_filtered.text").read_text(encoding="utf-8").splitlines()
    golds = (linzen / "subj_agr_filtered.gold").read_text(encoding="utf-8").splitlines()
    pairs, attractors = [], []
    for text, gold in zip(texts, golds, strict=True):
        index, good, bad, count = gold.split("\t")
        words = text.removesuffix(" <eos>").split(" ")
        pairs.append(Pair("linzen", tuple(words), int(index), good, bad))
        attractors.append(f"{count} attractors")
    return _compare(folder, pairs, attractors)


def evaluate_sentiment(folder: Path, data: BoxData) -> Measures:
    """Accuracy on SST-2's development set."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    sequences = encode(tokenizer, [text for text, _ in data.sst_dev])
    right = 0
    for start in range(0, len(sequences), 64):
        ids, mask = pad(sequences[start : start + 64], tokenizer.pad_token_id)
        with torch.no_grad():
            guess = model(input_ids=ids, attention_mask=mask).logits.argmax(dim=1).tolist()
        right += sum(
            g == y for g, (_, y) in zip(guess, data.sst_dev[start : start + 64], strict=True)
        )
    return {"accuracy": round(right / len(sequences), 4), "sentences": len(sequences)}


def _compare(folder: Path, pairs: Sequence[Pair], groups: Sequence[str]) -> Measures:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    asked = [
        (question, group)
        for pair, group in zip(pairs, groups, strict=True)
        if (question := ask(tokenizer, pair))
    ]
    asked = [(q, g) for q, g in asked if len(tokenizer.tokenize(q.text)) <= LONGEST - 2]
    won: dict[str, list[bool]] = defaultdict(list)
    for start in range(0, len(asked), 64):
        some = asked[start : start + 64]
        for (_, group), gap in zip(
            some, _gaps(model, tokenizer, [q for q, _ in some]).tolist(), strict=True
        ):
            won[group].append(gap > 0)
    every = [result for results in won.values() for result in results]
    return {
        "accuracy": round(sum(every) / len(every), 4),
        "pairs": len(every),
        "left_out": len(pairs) - len(every),
        "per_group": {g: [round(sum(r) / len(r), 4), len(r)] for g, r in sorted(won.items())},
    }


@torch.no_grad()
def _gaps(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, questions: Sequence[Question]
) -> Tensor:
    """Logit of the right word minus that of the wrong one, [B]."""
    ids, mask = pad(encode(tokenizer, [q.text for q in questions]), tokenizer.pad_token_id)
    logits = model(input_ids=ids, attention_mask=mask).logits[ids == tokenizer.mask_token_id]
    good, bad = torch.tensor([q.good for q in questions]), torch.tensor([q.bad for q in questions])
    return (logits.gather(1, good[:, None]) - logits.gather(1, bad[:, None]))[:, 0]
