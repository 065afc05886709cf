"""The papers' items: numbers of hand-made cases, a run that goes on where it was, and a page that its numbers write."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import ctxmix_hf as cm
from ctxmix_hf.auto import model_path
from ctxmix_hf.cli import main
from ctxmix_hf.errors import InputError, OptionError, StoreError, UnknownNameError
from ctxmix_hf.evaluation import attention_types, geometry, mixing
from ctxmix_hf.evaluation.bench import Bench
from ctxmix_hf.evaluation.context import Context
from ctxmix_hf.evaluation.data import read_data
from ctxmix_hf.evaluation.fitting import FOUR, PAPER, Fitting
from ctxmix_hf.evaluation.identifiability import fit, hidden_tasks
from ctxmix_hf.evaluation.mdl_probe import online_code
from ctxmix_hf.evaluation.papers import ITEMS, PAPERS, brunner, page, reproduce, running
from ctxmix_hf.evaluation.papers.cues import SETS, blimp_rows, cue_row
from ctxmix_hf.evaluation.papers.desk import Desk, linzen_rows, mrpc_rows
from ctxmix_hf.evaluation.papers.items import mean_row, resampled
from ctxmix_hf.evaluation.scores import Asked, question_of

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
SCHEMA = {"paper", "item", "model", "data", "n", "rows", "version", "commit", "seconds"}


def schema(entry: dict[str, Any]) -> set[str]:
    """An item that learns maps says how, one of hidden token attribution on which inputs it is exact, one of verbs how
    many the model knows, and one of a corpus that models are tuned on whether the model may have seen it."""
    item = page._item(entry)
    told = {"fitting"} if item.learns else set()
    told |= {"seen"} if item.may_be_seen else set()
    return (
        SCHEMA
        | told
        | ({"how"} if "random probes" in item.difference or item.data == "linzen" else set())
    )


# ---- hand-made cases ------------------------------------------------------------------------------------------------
def test_attention_to_types_by_hand() -> None:
    """Three tokens, one head: the first row looks at [SEP] alone, the others half and half."""
    maps = torch.tensor([[[[0.0, 0.0, 1.0], [0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]]])
    found = attention_types.attention_to_types(maps, ["[CLS]", "other", "[SEP]"])
    assert found["any", "[SEP]"] == pytest.approx([0.5])
    assert found["[CLS]", "[SEP]"] == [1.0] and found["other", "[SEP]"] == [0.0]
    assert sum(found["any", end][0] for end in ("[CLS]", "other", "[SEP]")) == pytest.approx(1)


def test_null_dimension_is_what_the_rank_leaves() -> None:
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]])  # 4 tokens, head of 2
    assert int(attention_types.null_dimension(values)) == 2
    assert int(attention_types.null_dimension(values[[0, 3]])) == 1  # twice the same direction


def test_null_attention_is_the_rest_and_reaches_no_output(context: Callable[..., Context]) -> None:
    table = attention_types.attention_types(context(3))
    rows = {(r["part"], r["from"], r["to"], r["layer"]): r["attention"] for r in table}
    for (part, start, end, layer), value in rows.items():
        if part == "raw":
            rest = rows["effective", start, end, layer] + rows["null", start, end, layer]
            assert value == pytest.approx(rest, abs=1e-6)
    assert all(r["dimension"] >= r["at_least"] for r in attention_types.null_space(context(3)))


def test_mean_cosine_of_different_sentences_by_hand() -> None:
    """Sums of unit vectors: sentence a has (1,0) twice, b has (0,1), c has (1,0)."""
    made = geometry.Directions(
        np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([2.0, 1, 1])
    )
    # pairs: a-b 2 x 0, a-c 2 x 1, b-c 1 x 0
    assert made.mean_cosine() == pytest.approx(2 / 5)
    assert np.isnan(made.mean_cosine(np.array([1, 1])))  # a sentence is no pair with itself


def test_transformed_vectors_add_up_to_the_block(box: Bench) -> None:
    ready, _ = box.prepare(read_data("agreement").kept[:1])
    with torch.no_grad():
        record = box.model(**box.inputs_of(ready), output_decomposition=True).decomposition
    layer, n = record[2], len(ready[0].ids)
    targets = torch.full((n,), 3)
    total = geometry.transformed(layer, targets, torch.arange(n), 0).sum(dim=0)
    whole = total + layer.parts("norm1").constant[0, 3]
    assert whole == pytest.approx(layer.block.output[0, 3], abs=1e-4)


def test_anisotropy_tells_outputs_from_transformed(context: Callable[..., Context]) -> None:
    table = geometry.anisotropy(context(6))
    assert set(table.column("vectors")) == {"outputs", "transformed"} and len(table) == 12
    assert all(-1 <= v <= 1 for v in table.column("cosine"))


def test_outlier_weights_by_hand() -> None:
    first, second = np.ones(100), np.ones(100)
    first[[3, 7, 9]], second[[3, 7, 9]] = (9.0, 8.0, 9.5), (-9.0, -8.0, -9.5)
    assert geometry.outliers(first).tolist() == [3, 7, 9]
    assert geometry.outliers(np.ones(5)).tolist() == []
    made = geometry.NormWeights(first, second, geometry.outliers(first))
    assert made.correlation == pytest.approx(-1)


def test_norm_outliers_needs_no_data(context: Callable[..., Context]) -> None:
    table = geometry.norm_outliers(context(1))
    assert table.column("layer") == [1, 2, 3, 4, 5, 6] and set(table.column("n")) == {128}


def test_neighbour_groups_by_hand() -> None:
    maps = torch.zeros(2, 4, 4)
    maps[0, 0, 1] = 0.6  # the first token from its right neighbour, layer 1
    maps[1, 0, 3] = 0.3  # and from three places away, layer 2
    found = mixing.neighbour_groups(maps)
    # 1st: the outer tokens have one neighbour, the inner two: (0.6 + 0 + 0 + 0) / 4
    assert found["1st"] == pytest.approx([0.15, 0.0])
    assert found["3rd"] == pytest.approx([0.0, 0.15]) and "4th-5th" not in found
    relative = mixing.relative_groups([{"m": {"groups": {"1st": [0.1, 0.3]}}}], "m")
    assert relative["1st"] == pytest.approx([0.25, 0.75]), "each group sums to 1 over layers"


def test_context_of_cls_needs_pairs(box: Bench) -> None:
    single, _ = box.prepare(read_data("agreement").kept[:2])
    with pytest.raises(InputError, match="no row is a pair"):
        mixing.cls_context(Context(box, tuple(single), (), ["alti"], progress=False))
    # the advice: data with two sentences in a row
    encoder = cm.evaluation.bench.open_bench("ctxmix/agreement", None, "any", "", False)
    pairs, _ = encoder.prepare(read_data([{"text": "The key is old.", "pair": "It is here."}]).kept)
    table = mixing.cls_context(Context(encoder, tuple(pairs), (), ["alti"], progress=False))
    by_sep = table.where(centre="[SEP]")
    assert by_sep.column("place") == [-3, -2, -1, 0, 1, 2, 3] * 6
    row = mixing.statistics(Context(encoder, tuple(pairs), (), ["alti"], progress=False))[0]["alti"]
    border = pairs[0].pieces.index("[SEP]")
    assert by_sep.column("share")[3] == pytest.approx(row["row"][0][border])
    whole = table.where(centre="[CLS]", layer=6)  # from [CLS] itself to the end of the input
    assert whole.column("place") == list(range(len(pairs[0].ids)))
    assert whole.column("share") == pytest.approx(row["row"][5])


def test_code_lengths_of_labels_add_up() -> None:
    x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 2
    code = online_code(x, y, 2)
    assert sum(code.each) == pytest.approx(code.bits) and len(code.each) == 40


# ---- what is explained ----------------------------------------------------------------------------------------------
def test_the_true_class_and_its_logit(sentiment: Bench) -> None:
    rows = [{"text": "A dull film.", "label": 1}, {"text": "A fine film.", "label": 1}]
    ready, _ = sentiment.prepare(read_data(rows).kept)
    config = sentiment.model.config
    logits = torch.tensor([[2.0, -1.0], [-1.0, 3.0]])
    true = question_of(logits, ready, config, Asked("true", "logit"))
    assert true.class_index.tolist() == [1, 1] and true.score(logits).tolist() == [-1.0, 3.0]
    assert question_of(logits, ready, config).class_index.tolist() == [0, 1]
    made = Context(sentiment, tuple(ready), (), ["alti"], progress=False, asked=Asked("true"))
    assert [s.right for s in made.scores] == [s.predicted == 1 for s in made.scores]
    unlabelled, _ = sentiment.prepare(read_data(["A film."]).kept)
    with pytest.raises(InputError, match="answer='predicted'"):
        question_of(logits[:1], unlabelled, config, Asked("true"))
    assert question_of(logits[:1], unlabelled, config, Asked("predicted")).class_index.tolist() == [
        0
    ]  # the advice


@pytest.mark.parametrize("wrong", [{"answer": "best"}, {"of": "score"}])
def test_wrong_answers_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="must be"):
        cm.evaluate("faithfulness", limit=1, **wrong)  # type: ignore[arg-type]


# ---- learning maps --------------------------------------------------------------------------------------------------
def test_the_papers_fitting_is_appendix_b1() -> None:
    assert (PAPER.folds, PAPER.bias, PAPER.hidden, PAPER.rate) == (10, False, 1000, 1e-4)
    assert (PAPER.batch, PAPER.patience, PAPER.start, PAPER.maps) == (256, 20, "glorot", FOUR)
    for wrong in ({"start": "zero"}, {"folds": 1}, {"fraction": 0.0}, {"maps": (("cubic", "l2"),)}):
        with pytest.raises(OptionError, match="got"):
            Fitting(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", ["ridge", "glorot"])
def test_a_linear_map_is_found_without_bias(start: str) -> None:
    draw = torch.Generator().manual_seed(0)
    x, turn = torch.randn(200, 4, generator=draw), torch.randn(4, 4, generator=draw)
    how = Fitting(bias=False, start=start, rate=1e-2, epochs=400, patience=20)
    made = fit("linear", "l2", x, x @ turn, (x, x @ turn), 0, how)
    assert [name for name, _ in made.named_parameters()] == ["weight"]
    assert made(x).detach() == pytest.approx(x @ turn, abs=0.15)


def test_hidden_tokens_are_recovered_layer_by_layer(context: Callable[..., Context]) -> None:
    tasks = hidden_tasks(context(4))
    assert {t.source - t.target for t in tasks} == {1}, (
        "e^(l-1) from e^l (Brunner et al. 2020, B.4)"
    )
    assert {(t.kind, t.distance) for t in tasks} == {
        ("naive", "cosine"),
        ("naive", "l2"),
        ("linear", "cosine"),
    }


# ---- corpora in their authors' form ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("uid", "good", "bad", "cue", "number"),
    [
        ("ana", "Many women hate themselves.", "Many women hate itself.", "women", "plural"),
        ("ana", "Jo hasn't hurt herself.", "Jo hasn't hurt themselves.", "Jo", "singular"),
        ("dna", "Jo sees these art halls.", "Jo sees this art halls.", "halls", "plural"),
        ("dnaa", "Jo hires this sad cook.", "Jo hires these sad cook.", "cook", "singular"),
        ("darn", "A son of men hasn't left.", "A son of men haven't left.", "son", "singular"),
        ("rpsv", "Most cats like Jo.", "Most cats likes Jo.", "cats", "plural"),
    ],
)
def test_cues_by_rule(uid: str, good: str, bad: str, cue: str, number: str) -> None:
    uid = next(long for long, short in SETS.items() if short == uid)
    row = cue_row({"UID": uid, "sentence_good": good, "sentence_bad": bad})
    assert row is not None and [row["words"][i] for i in row["cue_indices"]] == [cue]
    assert row["label"] == number and row["words"][row["target_index"]] == row["good_word"]
    assert cue_row({"UID": "passive_1", "sentence_good": good, "sentence_bad": bad}) is None


@pytest.mark.skipif(not SHARED.is_dir(), reason="the corpora are not beside this checkout")
def test_cues_are_those_of_the_annotated_file() -> None:
    text = (SHARED / "blimp_number_agreement_cues.jsonl").read_text(encoding="utf-8")
    theirs = [json.loads(line) for line in text.splitlines()]
    ours = {(r["uid"], *r["words"]): r for r in blimp_rows(SHARED / "blimp")}
    for row in theirs:
        made = ours[(row["uid"], *row["words"])]
        assert (made["cue_indices"], made["label"]) == (row["cue_indices"], row["label"])


def test_published_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.text").write_text("the old keys are here . <eos>\n")
    with pytest.raises(InputError, match="two files"):
        linzen_rows(tmp_path / "a.text")
    (tmp_path / "a.gold").write_text("3\tare\tis\t0\n")
    (row,) = linzen_rows(tmp_path / "a.text")
    assert (
        row["words"][row["target_index"]] == row["good_word"] == "are" and row["bad_word"] == "is"
    )
    pair = '1\t2\t3\tHe said "no.\tHe said no.\n'
    (tmp_path / "m.txt").write_text(f"﻿Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n{pair}")
    assert mrpc_rows(tmp_path / "m.txt") == [
        {"text": 'He said "no.', "pair": "He said no.", "label": "1"}
    ]
    with pytest.raises(InputError, match="BLiMP's own files"):
        blimp_rows(tmp_path)
    assert Desk(data={"mrpc": tmp_path / "m.txt"}).samples("mrpc").kept[0].second is not None


# ---- intervals ------------------------------------------------------------------------------------------------------
def test_intervals_hold_the_mean_and_shrink() -> None:
    few, many = mean_row("a", [0.0, 1.0] * 5), mean_row("a", [0.0, 1.0] * 500)
    assert few.low < few.ours == 0.5 < few.high and many.high - many.low < few.high - few.low
    middle = resampled("m", [1.0, 2.0, 9.0], lambda some: float(np.median(some)))
    assert middle.ours == 2.0 and middle.low <= 2.0 <= middle.high
    assert mean_row("nan", [float("nan")]).to_dict()["ours"] is None


# ---- the run --------------------------------------------------------------------------------------------------------
def test_a_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"papers": "globenc", "limit": 4, "progress": False}
    first = reproduce(tmp_path, items=["Table 1"], **asked)
    (entry,) = first.entries
    assert set(entry) == SCHEMA and entry["n"] == 4 and entry["model"] == "ctxmix/sentiment"
    assert entry["rows"][0]["name"] == "W" and entry["rows"][0]["paper"] == -0.11
    assert all(row["low"] <= row["ours"] <= row["high"] for row in entry["rows"])
    assert json.loads((tmp_path / "papers.json").read_text()) == [entry]

    def never(desk: Desk) -> None:
        raise AssertionError("computed again")

    key = "modarressi2022-table_1-sst2"
    monkeypatch.setitem(running.ITEMS, key, replaced(key, never))
    assert reproduce(tmp_path, items=["Table 1"], **asked).entries == (entry,)
    with pytest.raises(AssertionError, match="again"):
        reproduce(tmp_path, items=["Table 1"], **{**asked, "limit": 5})
    next(tmp_path.glob("modarressi*")).write_text("[")
    with pytest.raises(StoreError, match="move it away"):
        reproduce(tmp_path, items=["Table 1"], **asked)


def test_what_is_learned_says_how(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"papers": "brunner", "items": ["Figure 2a"], "limit": 8}
    how = Fitting(folds=4, epochs=1, hidden=7)
    report = reproduce(tmp_path, **asked, fitting=how, progress=False)
    (made,) = report.entries
    assert set(made) == schema(made) and made["fitting"] == str(how)
    assert "4 folds by sentence, a bias, Adam at 0.001" in str(report) and "7 wide" in str(report)
    assert str(PAPER).startswith("10 folds by sentence, no bias, Adam at 0.0001 from Glorot")
    assert "50 % of the data" in str(Fitting(fraction=0.5))


def test_speed_is_a_ratio_of_what_was_measured(tmp_path: Path) -> None:
    report = reproduce(tmp_path, "globenc", items=["Section 4.3.2"], limit=2, progress=False)
    (made,) = report.entries
    slow, fast, ratio = (row["ours"] for row in made["rows"])
    assert made["n"] == 2 and ratio == pytest.approx(slow / fast, rel=0.05) and ratio > 1
    assert made["rows"][2]["paper"] == 1440


def test_layers_without_outliers_have_no_row(tmp_path: Path) -> None:
    """Fewer than three outlying dimensions have no correlation: no row without a number."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path("ctxmix/sentiment"))
    size = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=len(tokenizer), num_hidden_layers=2, **size)
    model = transformers.BertForSequenceClassification(config).eval()  # all weights of norms are 1
    data = {"sst2": [{"text": "film", "label": 1}]}
    asked: dict[str, Any] = {"items": ["Figure 5"], "data": data, "progress": False}
    report = reproduce(tmp_path, "globenc", classifier=(model, tokenizer), **asked)
    assert not report.entries and "three outlying" in "".join(report.left_out.values())


def replaced(key: str, compute: Any) -> Any:
    from dataclasses import replace

    return replace(ITEMS[key], compute=compute)


def test_what_cannot_be_had_is_said_and_the_rest_is_made(tmp_path: Path) -> None:
    asked = ["Figure 3", "Figure 5", "Figure 7"]
    report = reproduce(tmp_path, ["globenc", "alti"], items=asked, limit=2, progress=False)
    assert {e["item"] for e in report.entries} == {"Figure 3"}
    outliers = report.left_out[
        "modarressi2022, Figure 5 (sst2)"
    ]  # the bundled classifier has too few
    assert "three outlying dimensions" in outliers
    assert "--classifier" in report.left_out["ferrando2022, Figure 7 (sst2)"]
    assert "Left out" in str(report)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"papers": "glob"}, UnknownNameError, "globenc"),
        ({"items": ["Table 9"]}, UnknownNameError, "Table 1"),
        ({"limit": 0}, OptionError, "at least 1"),
        ({"data": {"imdb": "x.tsv"}}, OptionError, "sst2, blimp, linzen, mrpc, cola"),
    ],
)
def test_wrong_requests(tmp_path: Path, options: Any, error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        reproduce(tmp_path / "out", **options)


def test_the_command_reads_data_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dev.tsv").write_text("text\tlabel\nA fine film .\t1\nA dull , empty film .\t0\n")
    out = str(tmp_path / "out")
    words = ["papers", "--paper", "globenc", "--item", "Table 1", "--out", out, "--json", "--data"]
    assert main([*words, str(tmp_path / "dev.tsv")]) == 2
    assert "sst2=dev.tsv" in capsys.readouterr().err
    assert main([*words, f"sst2={tmp_path / 'dev.tsv'}"]) == 0  # the advice
    (made,) = json.loads(capsys.readouterr().out)
    assert (made["data"], made["n"]) == ("sst2: dev.tsv", 2)


def test_two_classifiers_are_compared(tmp_path: Path, sentiment: Bench) -> None:
    """The same weights under another name: what they agree on they explain alike."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        model_path("ctxmix/sentiment")
    ).eval()
    model.config._name_or_path = "another"
    given = (model, sentiment.tokenizer)
    report = reproduce(
        tmp_path, "alti", items=["Figure 7"], classifier=given, limit=3, progress=False
    )
    (made,) = report.entries  # the advice was followed: a classifier was given
    assert made["n"] == 3 and [r["ours"] for r in made["rows"]] == pytest.approx([1.0] * 6)


def test_every_paper_has_items_under_its_own_numbers() -> None:
    assert {one.paper for one in ITEMS.values()} == set(PAPERS.values())
    for one in ITEMS.values():
        assert one.number.split()[0] in ("Table", "Figure", "Section") and one.about


# one HTA pass for all of them, or many fits; the second needs a model or tags that the first test does not give
SLOWEST = {"Figure 3a", "Figure 3b", "Figure 4a", "Figure 4b", "Figure 18a", "Figure 18b"}
OTHERS = {f"Figure {n}{part}" for n in (40, 41, 42, 43) for part in "ab"}
FITS = {"Figure 15", "Figure 16"}
GIVEN = {"Figure 1a", "Figure 1b", "Table 2, PT", "Table 3, PT"}
GIVEN |= {"Figure 7", "Figure 12", "Figure 13", "Figure 26 to 37"}
GIVEN |= {
    "Figure 5"
}  # a model with three outlying dimensions in a norm: the bundled classifier has fewer


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_every_item_runs_offline_on_the_bundled_models(paper: str, tmp_path: Path) -> None:
    items = [
        o.number
        for o in ITEMS.values()
        if o.paper == PAPERS[paper] and o.number not in SLOWEST | OTHERS | FITS
    ]
    report = reproduce(tmp_path, paper, items=items, limit=6, progress=False)
    assert {e["item"] for e in report.entries} | GIVEN >= set(items)
    for entry in report.entries:
        assert entry["rows"] and set(entry) == schema(entry)
        assert all(set(row) == {"name", "ours", "low", "high", "paper"} for row in entry["rows"])
        assert page.section(entry)


@pytest.mark.slow
def test_hidden_token_attribution_items(tmp_path: Path) -> None:
    rows = [
        {"text": "The key is old.", "pair": "It is."},
        {"text": "Keys fit.", "pair": "They do."},
    ]
    items = sorted(SLOWEST)
    report = reproduce(tmp_path, "brunner", items=items, data={"mrpc": rows}, progress=False)
    made = {e["item"]: e for e in report.entries}
    assert set(made) == set(items) and made["Figure 18b"]["n"] == 2
    by_group: dict[str, float] = {}
    for row in made["Figure 4a"]["rows"]:
        group = row["name"].rpartition(", layer ")[0]
        by_group[group] = by_group.get(group, 0.0) + row["ours"]
    assert list(by_group.values()) == pytest.approx([1.0] * len(by_group), abs=1e-3)
    places = [r["ours"] for r in made["Figure 4b"]["rows"] if r["name"].startswith("last layer")]
    assert sum(places) == pytest.approx(1.0, abs=5e-3)


# ---- the page -------------------------------------------------------------------------------------------------------
def entry(**changed: Any) -> dict[str, Any]:
    numbers = {"Attn Rollout": (0.1, 0.23), "Norm Rollout": (0.2, 0.29), "ALTI": (0.5, 0.54)}
    rows = [
        {"name": n, "ours": ours, "low": ours - 0.1, "high": ours + 0.1, "paper": paper}
        for n, (ours, paper) in numbers.items()
    ]
    made = {"paper": "ferrando2022", "item": "Table 2", "model": "m", "data": "sst2: x", "n": 9}
    return {**made, "rows": rows, "version": "0", "commit": None, "seconds": 1.0, **changed}


def test_agreement_is_computed_from_the_numbers() -> None:
    assert page.compared(entry()) == (2, 3, pytest.approx(1.0))
    said = " ".join(page.judged(entry()))
    assert "2 of 3 within 0.10" in said and "Spearman 1.00 over 3 rows, which agrees" in said
    assert "most faithful of the three. **Holds.**" in said
    turned = entry()
    turned["rows"][2]["ours"] = -0.4
    said = " ".join(page.judged(turned))
    assert "does not agree" in said and "**Does not hold.**" in said
    assert page.disagrees(turned) and not page.disagrees(entry())
    assert "- Why: not known." in page.section(turned, {})
    key = (turned["paper"], turned["item"])
    assert "- Why: a reason." in page.section(turned, {key: "a reason."})
    assert "Why" not in page.section(turned) and "Why" not in page.section(entry(), {})
    lost = entry(rows=turned["rows"][:1])
    assert "**Cannot be told here.**" in " ".join(page.judged(lost))
    assert "| ALTI | 0.50 | [0.40, 0.60] | 0.54 |" in page.section(entry())


def test_one_number_of_two_corpora_is_told_apart() -> None:
    assert "sentiment" in page._item(entry()).about
    assert "agreement" in page._item(entry(data="linzen: y")).about


def test_layers_stand_side_by_side() -> None:
    rows = [
        {"name": f"raw, layer {i}", "ours": i / 10, "low": None, "high": None, "paper": 0.69}
        for i in (1, 2)
    ]
    made = page.section(entry(paper="abnar2020", item="Table 1", data="linzen: x", rows=rows))
    assert "| layer | 1 | 2 |" in made and "| *raw, paper* | 0.69 | 0.69 |" in made


def script() -> Any:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import papers
    finally:
        sys.path.pop(0)
    return papers


def test_the_committed_page_is_written_by_its_numbers() -> None:
    papers = script()
    assert papers.PAGE.read_text(encoding="utf-8") == papers.text(), "run python scripts/papers.py"


def test_no_item_is_silently_absent() -> None:
    """Every item has a committed entry or a line that says why not."""
    papers = script()
    held = json.loads(papers.RESULTS.read_text(encoding="utf-8"))
    made = {(e["paper"], e["item"]) for e in held}
    known = {(o.paper, o.number) for o in ITEMS.values()}
    assert known == made | set(papers.ABSENT) and set(papers.WHY) <= known
    text = papers.text()
    for paper, number in known - made:
        assert f"- {paper}, {number}: " in text
    for paper, number in made:
        assert f"- {paper}, {number}: " not in text


def test_the_committed_results_are_whole() -> None:
    held = json.loads((ROOT / "benchmarks/results/papers.json").read_text(encoding="utf-8"))
    assert {e["paper"] for e in held} == set(PAPERS.values())
    for made in held:
        assert set(made) == schema(made), (made["item"], made["model"])
        assert isinstance(made["n"], int) and made["n"] > 0
        assert page._item(made).about
        assert "not recorded" not in made.get("fitting", "")
        for row in made["rows"]:
            assert None not in (row["ours"], row["low"], row["high"]), (made["item"], row)
    identified = [e for e in held if (e["paper"], e["item"]) == ("brunner2020", "Figure 2a")]
    largest = max(identified, key=lambda made: made["n"])
    assert largest["n"] >= 400 and largest["fitting"].startswith("10 folds"), "the paper's way"
    verbs = [e for e in held if e["data"].startswith("linzen")]
    assert verbs and all(e["n"] >= 500 for e in verbs), "the sample of the issue"


def test_rows_that_are_promised_are_there() -> None:
    """What an entry says of the probes' error points at rows of the same model and corpus."""
    held = json.loads((ROOT / "benchmarks/results/papers.json").read_text(encoding="utf-8"))
    for made in held:
        named = re.search(r'rows "(.+)" of (Figure \w+) ', made.get("how", ""))
        if named is None:
            continue
        (told,) = (
            e
            for e in held
            if (e["paper"], e["item"]) == (made["paper"], named[2])
            and (e["model"], e["data"]) == (made["model"], made["data"])
        )
        assert any(row["name"].startswith(named[1]) for row in told["rows"]), made["item"]


def commits(name: str) -> set[str]:
    held = json.loads((ROOT / "benchmarks/results" / name).read_text(encoding="utf-8"))
    if name == "papers.json":
        return {made["commit"] for made in held}
    if name == "identifiability.json":
        return {made["commit"] for made in held.values()}
    return {table["commit"] for tables in held.values() for table in tables.values()}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout: there is no history")
@pytest.mark.parametrize("name", ["papers.json", "ledger_evidence.json", "identifiability.json"])
def test_the_committed_numbers_were_made_by_code_that_is_here(name: str) -> None:
    """Whoever doubts a number can check out what made it."""
    git = ["git", "-C", str(ROOT)]
    words = [*git, "rev-parse", "--is-shallow-repository"]
    if subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == "true":
        pytest.skip("a shallow clone: its history is not here")
    for commit in commits(name):
        known = subprocess.run([*git, "merge-base", "--is-ancestor", commit, "HEAD"], check=False)
        assert known.returncode == 0, f"{commit} is not in this history"


def test_a_steady_claim_holds_at_both_ends() -> None:
    """Norms that are opposite in the mean of five wide intervals are not shown to be opposite."""
    name = {"paper": "modarressi2022", "item": "Figure 5"}
    wide = [{"name": "LN1, LN2, layer 1", "ours": -0.8, "low": -1.0, "high": 1.0, "paper": None}]
    near = [{**wide[0], "high": -0.6}]
    assert [word for _, word in page.claims(entry(**name, rows=wide))] == ["Cannot be told here."]
    assert [word for _, word in page.claims(entry(**name, rows=near))] == ["Holds."]


def test_small_numbers_keep_three_digits() -> None:
    assert [page._number(v) for v in (0.01234, -0.0567, 0.0, 0.5, 0.00012)] == [
        "0.0123",
        "-0.0567",
        "0.00",
        "0.50",
        "0.00012",
    ]


def test_layers_of_another_depth_stand_beside_the_same_relative_depth() -> None:
    own = brunner.OWN
    assert brunner._numbers(own, 6) == [0.306, None, 0.144, None, None, 0.107]
    assert brunner._numbers(brunner.NOT_MAIN, 6) == [0.0, None, 0.18, None, None, 0.30]
    assert brunner._numbers(own, 12)[5] == 0.144 and brunner._numbers(own, 1) == [None]


VERBS = [
    {
        "words": f"The {noun} {word} here .".split(),
        "target_index": 2,
        "good_word": word,
        "bad_word": "is",
    }
    for noun, word in zip("keys dogs cats women men boys girls cars".split(), ["are"] * 8)
]


def test_verbs_say_how_many_the_model_knows(tmp_path: Path) -> None:
    """All sentences, then those whose verb the model knows, under names of their own."""
    asked: dict[str, Any] = {"data": {"linzen": VERBS}, "progress": False}
    (made,) = reproduce(tmp_path, "alti", items=["Table 2 (linzen)"], **asked).entries
    count = re.match(r"The model prefers the right verb in (\d) of the 8 sentences", made["how"])
    assert count is not None and set(made) == schema(made)
    names = [row["name"] for row in made["rows"]]
    assert names[:3] == ["Attn Rollout", "Norm Rollout", "ALTI"]
    if int(count[1]):
        assert names[3:] == [f"{name}, where the model is right" for name in names[:3]]


def test_whether_the_sentences_were_seen_is_said(tmp_path: Path) -> None:
    """A folder with a heldout.json is asked about its held-out half, one without may have seen everything."""
    place = tmp_path / "tuned"
    shutil.copytree(model_path("ctxmix/agreement"), place)
    asked: dict[str, Any] = {"items": ["Table 3"], "limit": 2, "progress": False}
    rows = {"blimp": [{**row, "uid": "rpsv"} for row in VERBS]}
    held = lambda out: reproduce(
        tmp_path / out, "value_zeroing", masked_lm=str(place), data=rows, **asked
    ).entries[0]["seen"]
    assert "held-out half" in held("a")
    (place / "heldout.json").unlink()
    assert "may have seen" in held("b")
