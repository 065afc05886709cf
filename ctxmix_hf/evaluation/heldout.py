"""Which sentences the agreement bundled model, or a model tuned by `tune`, has never seen: the rule in its
heldout.json, as code."""

from __future__ import annotations

import hashlib
import re

from ctxmix_hf.evaluation.samples import Sample

# The five sets of Mohebbi et al. 2023, table 1, by BLiMP's names and by theirs.
SPLIT_SETS = frozenset(
    {
        "anaphor_number_agreement",
        "determiner_noun_agreement_2",
        "determiner_noun_agreement_with_adj_2",
        "distractor_agreement_relational_noun",
        "regular_plural_subject_verb_agreement_1",
        "ana",
        "dna",
        "dnaa",
        "darn",
        "rpsv",
    }
)

EVERY_SET = "every"  # in a model's heldout.json: it may have learned from any set


def normalised(sample: Sample) -> str:
    """Lower case, negation expanded, punctuation dropped, the target as [mask], single spaces."""
    words = []
    for i, word in enumerate(sample.words):
        if i == sample.target:
            words.append("[mask]")
            continue
        words += [w for w in _expanded(word.lower()).split() if any(c.isalnum() for c in w)]
    return " ".join(words)


def is_heldout(sample: Sample) -> bool:
    """The first byte of the text's SHA-256 is even (ctxmix_hf/models/agreement/heldout.json)."""
    return hashlib.sha256(normalised(sample).encode()).digest()[0] % 2 == 0


def maybe_seen(sample: Sample, every_set: bool = False) -> bool:
    """A sentence of one of the sets the model learned from (BLiMP's five, or any) that is not in the held-out half."""
    known = every_set or sample.group in SPLIT_SETS
    return sample.target is not None and known and not is_heldout(sample)


def _expanded(word: str) -> str:
    word = re.sub(r"^won['’]t$", "will not", word)
    word = re.sub(r"^can['’]t$", "cannot", word)
    return re.sub(r"n['’]t$", " not", word)
