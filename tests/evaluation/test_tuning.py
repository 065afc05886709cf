"""Prompt tuning: half is learned from, a stopped run ends at the same weights, evaluations take the other half."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ctxmix_hf.auto import model_path
from ctxmix_hf.cli import main
from ctxmix_hf.errors import InputError, OptionError, StoreError
from ctxmix_hf.evaluation.bench import Bench, open_bench
from ctxmix_hf.evaluation.data import read_data
from ctxmix_hf.evaluation.heldout import is_heldout
from ctxmix_hf.evaluation.papers import tune, tuning
from ctxmix_hf.evaluation.papers.value_zeroing import Standard, zeroing_distances

WORDS = ("keys", "cups", "books", "boys", "girls", "cars", "dogs", "cats", "trees", "chairs")
ROWS = [
    {
        "words": ["this" if one else "these", word, "of", "the", other, "is" if one else "are"],
        "target_index": 5,
        "good_word": "is" if one else "are",
        "bad_word": "are" if one else "is",
        "cue_indices": [0],
        "uid": "ours",
    }
    for word in WORDS
    for other in ("king", "queen")
    for one in (True, False)
]


@pytest.fixture(scope="module")
def tiny(box: Bench) -> tuple[Any, Any]:
    """A random BERT of two layers with the bundled tokenizer."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(box.tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    model = transformers.BertForMaskedLM(config).eval()
    model.config._name_or_path = "tiny"
    return model, box.tokenizer


def weights(folder: Path) -> dict[str, torch.Tensor]:
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    return dict(model.state_dict())


def test_only_two_logits_are_trained_and_only_half_is_seen(
    tiny: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    real = tuning.two_logits

    def spy(bench: Bench, own: Any, some: Any) -> torch.Tensor:
        if own.training:
            seen.extend(r.sample for r in some)
        return real(bench, own, some)

    monkeypatch.setattr(tuning, "two_logits", spy)
    before = {k: v.clone() for k, v in tiny[0].state_dict().items()}
    made = tune(tiny, tmp_path, ROWS, epochs=12, rate=5e-3, batch=8, progress=False)
    assert seen and not any(is_heldout(sample) for sample in seen)
    assert made.learned + made.held_out == len(ROWS) and len(made.accuracy) == 13
    assert made.accuracy[0].mean < 0.8 < made.accuracy[-1].mean, "this and these tell the number"
    assert all(torch.equal(v, before[k]) for k, v in tiny[0].state_dict().items()), "given stays"
    # the target against its foil: the loss of logits (2, 1) is log(1 + e^-1)
    pair = torch.tensor([[2.0, 1.0]])
    loss = torch.nn.functional.cross_entropy(pair, torch.zeros(1, dtype=torch.long))
    assert float(loss) == pytest.approx(float(torch.log1p(torch.exp(torch.tensor(-1.0)))))
    bench = open_bench(str(made.folder), None, "masked_lm", "")
    ready, skipped = bench.prepare(read_data(ROWS).kept)
    assert len(ready) == made.held_out and sum(skipped.values()) == made.learned
    assert "the model may have seen it" in next(iter(skipped))


def test_a_stopped_tuning_goes_on_to_the_same_weights(
    tiny: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"epochs": 3, "rate": 1e-3, "batch": 8, "progress": False}
    whole = tune(tiny, tmp_path / "whole", ROWS, **asked)
    real, count = tuning._learn, [0]

    def dies(*args: Any) -> None:
        count[0] += 1
        if count[0] == 3:
            raise KeyboardInterrupt
        real(*args)

    monkeypatch.setattr(tuning, "_learn", dies)
    with pytest.raises(KeyboardInterrupt):
        tune(tiny, tmp_path / "part", ROWS, **asked)
    assert not (tmp_path / "part" / "model").exists()
    monkeypatch.setattr(tuning, "_learn", real)
    again = tune(tiny, tmp_path / "part", ROWS, **asked)
    assert again.accuracy == whole.accuracy
    first, second = weights(whole.folder), weights(again.folder)
    assert all(torch.equal(v, second[k]) for k, v in first.items())
    assert tune(tiny, tmp_path / "part", ROWS, **asked).accuracy == whole.accuracy  # nothing to do
    with pytest.raises(StoreError, match="another folder"):
        tune(tiny, tmp_path / "part", ROWS, **{**asked, "rate": 1e-4})
    with pytest.raises(StoreError, match="holds 3 epochs"):
        tune(tiny, tmp_path / "part", ROWS, **{**asked, "epochs": 2})
    (tmp_path / "part" / "tuning.json").write_text("[")
    with pytest.raises(StoreError, match="move it away"):
        tune(tiny, tmp_path / "part", ROWS, **asked)


def test_the_encoder_stays_where_only_the_head_is_tuned(
    tiny: tuple[Any, Any], tmp_path: Path
) -> None:
    made = tune(tiny, tmp_path, ROWS, epochs=1, rate=1e-2, only_head=True, limit=8, progress=False)
    after, before = weights(made.folder), tiny[0].state_dict()
    moved = {k for k, v in after.items() if not torch.equal(v, before[k])}
    assert moved and all(name.startswith("cls.") for name in moved) and made.learned == 8


def test_wrong_tunings_are_refused(tiny: tuple[Any, Any], tmp_path: Path) -> None:
    for wrong in ({"epochs": 0}, {"batch": 0}, {"limit": 0}, {"rate": 0.0}):
        with pytest.raises(OptionError, match="must be"):
            tune(tiny, tmp_path, ROWS, **wrong)
    with pytest.raises(InputError, match="good_word and bad_word"):
        tune(tiny, tmp_path, ["The key [MASK] here."], progress=False)


def test_the_command_tunes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = ["tune", "--data", str(rows), "--out", str(tmp_path / "out"), "--epochs", "1"]
    assert main([*words, "--limit", "4", "--rate", "1e-5"]) == 0
    assert "after epoch 1" in capsys.readouterr().out
    assert (tmp_path / "out" / "model" / "heldout.json").is_file()
    assert model_path("ctxmix/agreement") != str(tmp_path / "out" / "model")


# ---- Mohebbi et al. 2023, A.1 ---------------------------------------------------------------------------------------
def test_standardised_dimensions_by_hand() -> None:
    """Two dimensions over three tokens: (0, 0), (2, 20), (4, 40) become the same column."""
    states = [torch.tensor([[[9.0, 9.0]] * 3, [[0.0, 0.0], [2.0, 20.0], [4.0, 40.0]]])]
    how = Standard.of(states, 1)
    assert how.mean.tolist() == [2.0, 20.0] and how.deviation.tolist() == [2.0, 20.0]
    assert how(torch.tensor([4.0, 0.0])).tolist() == [1.0, -1.0]


def test_standardised_distances_are_those_of_rerun_layers(box: Bench) -> None:
    """With mean 0 and deviation 1 they are Value Zeroing's own; with others, those of the altered outputs."""
    ready, _ = box.prepare(read_data("agreement").kept[:1])
    asked = {"output_context_mixing": ["value_zeroing"], "output_decomposition": True}
    with torch.no_grad():
        out = box.model(**box.inputs_of(ready), **asked)
    layer, place = out.decomposition[3], ready[0].position
    width = layer.output.shape[-1]
    plain = Standard(torch.zeros(width), torch.ones(width))
    row = zeroing_distances(layer, 0, place, plain)
    theirs = out.context_mixing["value_zeroing"].layers[0, 3, place].double()
    assert row / row.sum() == pytest.approx(theirs, abs=1e-6)
    how = Standard(torch.full((width,), 0.3), torch.linspace(0.5, 2, width))
    altered = layer.replay.zeroed(range(len(ready[0].ids)), None)[:, 0, place]  # [S, D]
    by_hand = 1 - torch.nn.functional.cosine_similarity(
        how(altered), how(layer.output[0, place])[None], dim=-1
    )
    assert zeroing_distances(layer, 0, place, how) == pytest.approx(by_hand, abs=1e-6)
