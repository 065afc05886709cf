"""`ctxmix_hf.evaluate`: names, heads, resuming, files, and what it says about bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel

import ctxmix_hf as cm
from ctxmix_hf.errors import (
    InputError,
    OptionError,
    StoreError,
    UnknownNameError,
    UnsupportedMethodError,
)
from ctxmix_hf.evaluation import EVALUATIONS, SUITES, scores, sessions, suite
from ctxmix_hf.evaluation.bench import Bench, open_bench
from ctxmix_hf.evaluation.sessions import Store
from ctxmix_hf.instrumentation.session import instrumentation_of

FEW = ["attention", "alti", "random"]


def test_every_suite_names_registered_evaluations() -> None:
    assert not set(SUITES) & set(EVALUATIONS), "one name, one meaning"
    assert {name for names in SUITES.values() for name in names} <= set(EVALUATIONS)
    assert set(EVALUATIONS) - {name for names in SUITES.values() for name in names} == {
        "model_consistency",
        "alignment_accuracy",
        *suite.ALONE,
    }


def test_agreement_suite_runs_offline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = cm.evaluate("agreement", methods=FEW, limit=8, out=tmp_path, progress=False)
    assert tuple(report) == SUITES["agreement"]  # type: ignore[arg-type]
    for name in SUITES["agreement"]:
        assert (tmp_path / f"{name}.csv").is_file() and (tmp_path / f"{name}.json").is_file()
    assert (tmp_path / "cue_alignment.png").read_bytes().startswith(b"\x89PNG")
    assert {
        table["name"] for table in json.loads((tmp_path / "report.json").read_text())["tables"]
    } == set(SUITES["agreement"])
    assert "alti" in str(report["recommendation"])  # type: ignore[index]


def test_sentiment_suite(tmp_path: Path) -> None:
    report = cm.evaluate("sentiment", methods=FEW, limit=3, progress=False)
    assert "plausibility" in report and "cue_alignment" not in report  # type: ignore[operator]


def test_headless_suites() -> None:
    assert set(cm.evaluate("mixing", methods=["alti"], limit=4, progress=False)) == set(
        SUITES["mixing"]
    )
    table = cm.evaluate("identifiability_neighbours", limit=9, progress=False)
    assert isinstance(table, cm.EvaluationTable) and len(table) == 36


def test_one_evaluation_gives_one_table_the_same_every_time() -> None:
    first, second = (
        cm.evaluate("faithfulness", methods=FEW, limit=3, seed=4, progress=False) for _ in range(2)
    )
    assert isinstance(first, cm.EvaluationTable) and first == second
    assert any("3 of 40 usable sentences drawn at random (seed 4)" in note for note in first.notes)


def test_a_killed_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., str]
) -> None:
    """Killed after some batches, with half a line written: the rest is computed, and the table is the same."""
    monkeypatch.setattr("ctxmix_hf.evaluation.bench.BATCH_TOKENS", 24)
    options = {"methods": FEW, "limit": 8, "progress": False}
    whole = cm.evaluate("cue_alignment", **options)  # type: ignore[arg-type]
    original, calls = scores._batch_scores, []

    def dying(*args: object) -> object:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(scores, "_batch_scores", dying)
    with pytest.raises(KeyboardInterrupt):
        cm.evaluate("cue_alignment", resume=tmp_path / "r", **options)  # type: ignore[arg-type]
    kept = tmp_path / "r" / "scores.jsonl"
    done = len(kept.read_text().splitlines())
    assert 0 < done < 8
    with kept.open("a") as file:
        file.write('{"key": "half a li')
    counted: list[int] = []
    monkeypatch.setattr(
        scores, "_batch_scores", lambda *a: counted.append(len(a[1])) or original(*a)
    )  # type: ignore[func-returns-value]
    assert cm.evaluate("cue_alignment", resume=tmp_path / "r", **options) == whole  # type: ignore[arg-type]
    assert sum(counted) == 8 - done
    counted.clear()
    assert cm.evaluate("cue_alignment", resume=tmp_path / "r", **options) == whole and not counted  # type: ignore[arg-type]
    cm.evaluate("cue_alignment", resume=tmp_path / "r", **{**options, "seed": 1, "limit": 2})  # type: ignore[arg-type]
    assert sum(counted) == 2, "another seed has other random rows"


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("not json\n")
    with pytest.raises(StoreError, match="line 1"):
        Store(tmp_path, "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="give a folder"):
        Store(tmp_path / "file", "x")


def test_rounding_survives_json() -> None:
    values = torch.rand(50).tolist()
    assert torch.tensor(sessions.rounded(values)).tolist() == values
    assert json.loads(json.dumps(sessions.rounded(values))) == sessions.rounded(values)


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'faithfulness'"):
        cm.evaluate("faithfullness")
    with pytest.raises(UnknownNameError, match="Did you mean 'alti'"):
        cm.evaluate("faithfulness", methods=["alty"], limit=2)
    with pytest.raises(OptionError, match="limit=0"):
        cm.evaluate("faithfulness", limit=0)


def test_a_model_without_the_head_is_refused(tmp_path: Path, box: Bench) -> None:
    with pytest.raises(UnsupportedMethodError, match="without a ForMaskedLM head"):
        cm.evaluate("agreement", model="ctxmix/sentiment")
    with pytest.raises(UnsupportedMethodError, match="without a ForSequenceClassification head"):
        cm.evaluate("sentiment", model="ctxmix/agreement")
    bare = BertModel(
        BertConfig(
            vocab_size=len(box.tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )
    with pytest.raises(UnsupportedMethodError, match="has no ForMaskedLM head"):
        cm.evaluate("agreement", model=bare, tokenizer=box.tokenizer)
    with pytest.raises(InputError, match="No tokenizer"):
        cm.evaluate("agreement", model=bare)


def test_only_heldout_rows_for_the_box_model(write: Callable[..., str]) -> None:
    rows = [
        {
            "uid": "ana",
            "words": ["Susan", "revealed", "herself", "."],
            "target_index": 2,
            "cue_indices": [0],
            "bad_word": "themselves",
        },
        {
            "uid": "ana",
            "words": ["Renee", "has", "not", "hurt", "herself", "."],
            "target_index": 4,
            "cue_indices": [0],
            "bad_word": "themselves",
        },
        {
            "uid": "mine",
            "words": ["Renee", "has", "not", "hurt", "herself", "."],
            "target_index": 4,
            "cue_indices": [0],
            "bad_word": "themselves",
        },
    ]
    table = cm.evaluate("cue_alignment", data=write(rows), methods=["attention"], progress=False)
    assert isinstance(table, cm.EvaluationTable) and table.meta["sentences"] == 2
    assert any("1 of 3 rows left out: not in the held-out half" in note for note in table.notes)
    bench = open_bench("ctxmix/sentiment", None, "classifier", "", None)
    assert not bench.heldout_only


def test_one_sentence_is_a_corpus() -> None:
    table = cm.evaluate(
        "method_matrix",
        data=["The keys to the cabinet [MASK] on the table."],
        methods=FEW,
        progress=False,
    )
    assert isinstance(table, cm.EvaluationTable) and table.where(
        method="alti", **{"with": "alti"}
    ).column("mean") == pytest.approx([1.0])


def test_two_models() -> None:
    table = cm.evaluate(
        "model_consistency",
        model=("ctxmix/agreement", "ctxmix/agreement"),
        methods=FEW,
        limit=3,
        progress=False,
    )
    assert isinstance(table, cm.EvaluationTable) and table.where(method="alti").column(
        "mean"
    ) == pytest.approx([1.0])


def test_no_usable_sentence_says_why() -> None:
    with pytest.raises(InputError, match=r"0 usable sentences.*no target word to mask"):
        cm.evaluate("faithfulness", data=["no mask here"], methods=FEW)


def test_progress_bar_only_where_somebody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    list(sessions.watched([1, 2], "quiet", None))
    assert "quiet" not in capsys.readouterr().err
    list(sessions.watched([1, 2], "loud", True))
    assert "loud" in capsys.readouterr().err


def test_a_model_comes_and_goes_without_instrumentation(box: Bench) -> None:
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=len(box.tokenizer),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )
    for _ in range(2):
        cm.evaluate(
            "cue_alignment",
            model=model,
            tokenizer=box.tokenizer,
            methods=["attention"],
            limit=2,
            progress=False,
        )
        assert instrumentation_of(model) is None
