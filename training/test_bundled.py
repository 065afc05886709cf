"""Checks that need no data: the held-out rule, the Hub reader, and a training killed in the middle."""

from __future__ import annotations

import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch

from corpus import (
    MinimalPair,
    Pair,
    expand_negation,
    heldout_keys,
    is_heldout,
    leaks,
    load,
    pair_of,
)
from examples import spellings, whole_sentences

HERE = Path(__file__).resolve().parent
TOY = """
import sys, time, torch
from pathlib import Path
from loop import Log, Plan, train
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
def loss_at(step):
    time.sleep(float(sys.argv[2]))
    return (model(torch.randn(16, 4)) - 1).square().mean()
plan = Plan("toy", steps=60, learning_rate=1e-2, warmup=5, seed=3, ema_decay=0.9, checkpoint_every=7)
work = Path(sys.argv[1])
train(model, plan, lambda: loss_at, work, Log(work / "log.jsonl"))
"""


def _toy(work: Path, pause: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", TOY, str(work), str(pause)], cwd=HERE)


def test_a_killed_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert _toy(whole, 0).wait() == 0
    victim = _toy(cut, 0.05)
    deadline = time.monotonic() + 60
    while not (cut / "toy.checkpoint.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)
    victim.kill()
    assert victim.wait() != 0
    assert not (cut / "toy.done.pt").exists()
    assert _toy(cut, 0).wait() == 0
    assert '"event": "resume"' in (cut / "log.jsonl").read_text()
    first, second = (
        torch.load(whole / "toy.done.pt")["model"],
        torch.load(cut / "toy.done.pt")["model"],
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_both_sentences_of_a_pair_share_their_half() -> None:
    row = MinimalPair(
        "determiner_noun_agreement_2", "Bill can't see this dog.", "Bill can't see these dog."
    )
    pair = pair_of(row)
    assert pair == Pair("dna", ("Bill", "cannot", "see", "this", "dog", "."), 3, "this", "these")
    partner = Pair(pair.uid, (*pair.words[:3], "these", *pair.words[4:]), 3, "these", "this")
    assert is_heldout(pair) == is_heldout(partner)


def test_a_heldout_sentence_leaks_in_every_spelling() -> None:
    pairs = [
        Pair("ana", (name, "cannot", "help", "herself", "."), 3, "herself", "themselves")
        for name in "ABCDEFGH"
    ]
    keys = heldout_keys(pairs)
    assert 0 < len(keys) < len(pairs)
    for pair in pairs:
        for verb in ("cannot", "can't", "CAN'T".lower()):
            for word in ("herself", "themselves"):
                assert leaks(f"{pair.words[0].lower()} {verb} help {word}", keys) == is_heldout(
                    pair
                )


def test_negation_spellings() -> None:
    assert expand_negation("It won't, it isn't, it ca n't") == "It will not, it is not, it cannot"
    assert spellings("it is n't bad") == ["it is n't bad", "it isn't bad", "it is not bad"]


def test_phrases_inside_a_sentence_are_dropped() -> None:
    assert whole_sentences(
        ["a good film", "not a good film at all", "good film", "a fine one ."]
    ) == [
        "not a good film at all",
        "a fine one .",
    ]


def test_two_hub_ids_are_read_with_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {
        "UID": "anaphor_number_agreement",
        "sentence_good": "Al hurt himself.",
        "sentence_bad": "Al hurt themselves.",
    }
    sst2 = {
        "train": [{"sentence": "good ", "label": 1}],
        "validation": [{"sentence": "bad", "label": 0}],
    }
    fake = types.SimpleNamespace(
        get_dataset_config_names=lambda name: ["anaphor_number_agreement"],
        load_dataset=lambda name, *rest, **split: [row] if name == "nyu-mll/blimp" else sst2,
    )
    monkeypatch.setitem(sys.modules, "datasets", fake)
    data = load("nyu-mll/blimp,stanfordnlp/sst2")
    assert data.sst_train == (("good", 1),)
    assert [pair.good_word for pair in data.cues] == ["himself"]


def test_a_wrong_data_argument_is_refused() -> None:
    with pytest.raises(SystemExit, match="is no folder"):
        load("nowhere")
