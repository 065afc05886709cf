"""Reads BLiMP and SST-2, and says which number-agreement pairs are held out of every training text."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CUE_FILE = "blimp_number_agreement_cues.jsonl"
DERIVED = "one-word pairs of the five BLiMP sets, sets in alphabetical order"
HUB_BLIMP, HUB_SST2 = "nyu-mll/blimp", "stanfordnlp/sst2"
# The five sets of Value Zeroing's table 1, under the short names that the cue file uses.
CUE_UIDS = {
    "anaphor_number_agreement": "ana",
    "determiner_noun_agreement_2": "dna",
    "determiner_noun_agreement_with_adj_2": "dnaa",
    "distractor_agreement_relational_noun": "darn",
    "regular_plural_subject_verb_agreement_1": "rpsv",
}
MASKED = "[mask]"
HELDOUT_RULE = (
    "Write the words in lower case, expand n't to 'not' (won't: 'will not', can't: 'cannot'), drop all "
    "tokens without a letter or digit, replace the target word by '[mask]', join with single spaces. "
    "The row is held out if the first byte of the SHA-256 of that UTF-8 text is even. No training stage "
    "sees a sentence that becomes one of the held-out texts when any single one of its words is "
    "replaced by '[mask]'."
)


@dataclass(frozen=True)
class Pair:
    """A sentence, the one word in which its ungrammatical partner differs, and the words that decide it."""

    uid: str
    words: tuple[str, ...]
    target_index: int
    good_word: str
    bad_word: str
    cue_indices: tuple[int, ...] = ()


@dataclass(frozen=True)
class MinimalPair:
    """One BLiMP row, with the name of its set."""

    uid: str
    good: str
    bad: str


@dataclass(frozen=True)
class BoxData:
    """Everything the stages read. `cues` are the number-agreement rows, in the order of `cue_source`."""

    blimp: tuple[MinimalPair, ...]
    cue_source: str
    cues: tuple[Pair, ...]
    sst_train: tuple[tuple[str, int], ...]
    sst_dev: tuple[tuple[str, int], ...]


def expand_negation(text: str) -> str:
    """`isn't` and SST-2's `is n't` become `is not`, the spelling of the cue file."""
    text = re.sub(r"\b([Ww])on't\b|\b([Ww])o n't\b", lambda m: (m[1] or m[2]) + "ill not", text)
    text = re.sub(r"\b([Cc])an't\b|\b([Cc])a n't\b", lambda m: (m[1] or m[2]) + "annot", text)
    return re.sub(r" ?n't\b", " not", text)


def split_words(text: str) -> tuple[str, ...]:
    """Words and punctuation marks of a sentence, negation expanded."""
    return tuple(re.findall(r"\w[\w\-]*(?:'s)?|[^\w\s]", expand_negation(text)))


def normalised(words: Iterable[str]) -> tuple[str, ...]:
    """Lower-case words without punctuation: two spellings of one sentence become equal."""
    return tuple(word.lower() for word in words if any(c.isalnum() for c in word))


def mask_key(words: tuple[str, ...], target_index: int) -> str:
    """The text that a sentence shares with its minimal-pair partner: the target word is gone."""
    before, after = normalised(words[:target_index]), normalised(words[target_index + 1 :])
    return " ".join((*before, MASKED, *after))


def is_heldout(pair: Pair) -> bool:
    """The hash rule of `HELDOUT_RULE`: it needs no random state, so anyone can repeat the split."""
    return hashlib.sha256(mask_key(pair.words, pair.target_index).encode()).digest()[0] % 2 == 0


def heldout_keys(cues: Iterable[Pair]) -> frozenset[str]:
    """The held-out sentences, written without their target word."""
    return frozenset(mask_key(pair.words, pair.target_index) for pair in cues if is_heldout(pair))


def leaks(text: str, keys: frozenset[str]) -> bool:
    """True if masking some word of `text` gives a held-out text (so also for its ungrammatical version)."""
    words = normalised(split_words(text))
    masked = (" ".join((*words[:i], MASKED, *words[i + 1 :])) for i in range(len(words)))
    return any(key in keys for key in masked)


def pair_of(row: MinimalPair) -> Pair | None:
    """The pair as one sentence with a target and a foil, or None where more than one word differs."""
    good, bad = split_words(row.good), split_words(row.bad)
    different = [i for i, (a, b) in enumerate(zip(good, bad, strict=False)) if a != b]
    if len(good) != len(bad) or len(different) != 1:
        return None
    index = different[0]
    return Pair(CUE_UIDS.get(row.uid, row.uid), good, index, good[index], bad[index])


def load(source: str) -> BoxData:
    """`source` is a folder (blimp/*.jsonl, sst2/*.tsv, maybe the cue file) or `BLIMP_ID,SST2_ID`."""
    folder = Path(source)
    if folder.is_dir():
        blimp, train, dev = _read_folder(folder)
        cue_file = folder / CUE_FILE
        known = cue_file.is_file()
        cues = tuple(_read_cues(cue_file)) if known else _derive_cues(blimp)
        cue_source = CUE_FILE if known else DERIVED
    else:
        blimp, train, dev = _read_hub(*_hub_ids(source))
        cues, cue_source = _derive_cues(blimp), DERIVED
    unseen = {" ".join(normalised(split_words(text))) for text, _ in dev}
    train = [(t, y) for t, y in train if " ".join(normalised(split_words(t))) not in unseen]
    return BoxData(tuple(blimp), cue_source, cues, tuple(train), tuple(dev))


def _hub_ids(source: str) -> tuple[str, str]:
    parts = [part.strip() for part in source.split(",")]
    if len(parts) != 2 or not all("/" in part for part in parts):
        raise SystemExit(
            f"--data {source!r} is no folder, and not two Hub ids such as {HUB_BLIMP},{HUB_SST2}"
        )
    return parts[0], parts[1]


def _read_folder(
    folder: Path,
) -> tuple[list[MinimalPair], list[tuple[str, int]], list[tuple[str, int]]]:
    files = sorted((folder / "blimp").glob("*.jsonl"))
    if not files:
        raise SystemExit(f"No BLiMP files: {folder / 'blimp'} holds no *.jsonl")
    rows = [
        json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()
    ]
    blimp = [MinimalPair(r["UID"], r["sentence_good"], r["sentence_bad"]) for r in rows]
    return blimp, _read_tsv(folder / "sst2" / "train.tsv"), _read_tsv(folder / "sst2" / "dev.tsv")


def _read_tsv(file: Path) -> list[tuple[str, int]]:
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["text"].strip(), int(row["label"])) for row in rows]


def _read_cues(file: Path) -> Iterator[Pair]:
    for line in file.read_text(encoding="utf-8").splitlines():
        r = json.loads(line)
        cues = tuple(r["cue_indices"])
        yield Pair(
            r["uid"], tuple(r["words"]), r["target_index"], r["good_word"], r["bad_word"], cues
        )


def _derive_cues(blimp: Iterable[MinimalPair]) -> tuple[Pair, ...]:
    """Without the cue file, the same five sets straight from BLiMP (cue positions are not needed)."""
    pairs = (pair_of(row) for row in blimp if row.uid in CUE_UIDS)
    return tuple(pair for pair in pairs if pair is not None)


def _read_hub(
    blimp_id: str, sst2_id: str
) -> tuple[list[MinimalPair], list[tuple[str, int]], list[tuple[str, int]]]:
    from datasets import get_dataset_config_names, load_dataset

    blimp = [
        MinimalPair(row["UID"], row["sentence_good"], row["sentence_bad"])
        for name in sorted(get_dataset_config_names(blimp_id))
        for row in load_dataset(blimp_id, name, split="train")
    ]
    sst2 = load_dataset(sst2_id)
    splits = [
        [(r["sentence"].strip(), int(r["label"])) for r in sst2[name]]
        for name in ("train", "validation")
    ]
    return blimp, splits[0], splits[1]
