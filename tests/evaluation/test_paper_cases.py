"""Analyses of the papers on cases worked out by hand: pronouns, alternative attention, neighbours, parts of speech."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import ctxmix_hf as cm
from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.attribution import ATTRIBUTIONS, Case
from ctxmix_hf.attribution.deeplift import DeepLift
from ctxmix_hf.auto import model_path
from ctxmix_hf.errors import InputError, MissingDependencyError, OptionError
from ctxmix_hf.evaluation import (
    alternative_attention,
    hanta,
    identifiability,
    mixing,
    pronouns,
    tagging,
)
from ctxmix_hf.evaluation.alternatives import alternatives
from ctxmix_hf.evaluation.bench import Bench
from ctxmix_hf.evaluation.context import Context
from ctxmix_hf.evaluation.data import read_data, tagged
from ctxmix_hf.evaluation.fitting import Fitting
from ctxmix_hf.evaluation.identifiability import RecoveryTask, counts, fraction_counts, used
from ctxmix_hf.evaluation.papers import brunner, reproduce
from ctxmix_hf.evaluation.papers.desk import Desk, cola_rows
from ctxmix_hf.evaluation.scores import Scores, question_of


# ---- Abnar & Zuidema 2020, figure 4 ---------------------------------------------------------------------------------
def test_candidates_of_a_pronoun_by_hand(box: Bench) -> None:
    (item,), _ = box.prepare(read_data(pronouns.sentences()[:1]).kept)
    (her,), (his,) = (item.words[w] for w in item.sample.cues)
    rows = np.zeros((3, len(item.ids)))
    rows[0, [her, his]] = 0.3, 0.1  # three quarters of both go to her
    rows[1, [her, his]] = 0.1, 0.3
    made = Scores(item, {}, {}, answer=0.8, right=None, predicted=0)  # the model means her
    leans = pronouns.lean(made, rows)
    assert leans[:2] == pytest.approx([0.75, 0.25]) and np.isnan(leans[2])
    agree = pronouns.consistent(made, rows)
    assert agree[:3] == [1.0, 0.0, 0.5]  # where neither gets anything, chance
    assert pronouns.consistent(replace(made, answer=0.2), rows)[:2] == [0.0, 1.0]


def test_pronouns_runs_offline_and_says_what_it_needs() -> None:
    table = cm.evaluate("pronouns", methods=["attention", "alti"], limit=3, progress=False)
    assert set(table.column("scope")) == {"layer", "input"} and len(table) == 2 * 2 * 6
    assert all(0 <= v <= 1 for v in table.column("first"))
    with pytest.raises(InputError, match="cue_indices=") as error:
        cm.evaluate("pronouns", data=["The key [MASK] old."], methods=["alti"], progress=False)
    assert "good_word" in str(error.value)
    rows = pronouns.sentences()[:2]  # the advice: such rows
    assert len(cm.evaluate("pronouns", data=rows, methods=["alti"], progress=False)) == 2 * 6


# ---- Mohebbi et al. 2023, section 4.3 -------------------------------------------------------------------------------
def test_layerwise_deeplift_is_gradient_times_change(box: Bench) -> None:
    """No activation module of a GELU encoder is rewritten, so DeepLift from zero is gradient times input at every
    layer: summed over coordinates it is `g . e`, and its length is GradXinput (captum 0.9.0 gives the same)."""
    (item,), _ = box.prepare(read_data("agreement").kept[:1])
    place = model_path("ctxmix/agreement")
    model = transformers.AutoModelForMaskedLM.from_pretrained(place, dtype=torch.float64).eval()
    with torch.no_grad():
        out = cm.instrument(model)(**box.inputs_of([item]), output_decomposition=True)
    asked = question_of(out.logits, [item], model.config)
    for layer in range(len(out.decomposition)):
        case = Case(out.decomposition, asked, out.logits, {}, Budget.of(None), layer)
        hidden = case.hidden.clone().requires_grad_()
        rest = out.decomposition.replay.run(hidden, at=layer).output.logits[0, item.position]
        two = torch.stack([rest[item.good], rest[item.bad]]).softmax(dim=-1)[0]
        (gradient,) = torch.autograd.grad(two, hidden)
        product = gradient * hidden.detach()
        torch.testing.assert_close(DeepLift().scores(case), product.sum(dim=-1))
        by_length = DeepLift(reduce="l2", signed=False, shares=False).scores(case)
        torch.testing.assert_close(by_length, product.norm(dim=-1))
        other = ATTRIBUTIONS.get("grad_x_input")().scores(case)
        torch.testing.assert_close(by_length, other)


# ---- Brunner et al. 2020, section 5 ---------------------------------------------------------------------------------
def test_hidden_tokens_exact_first_then_with_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": "Keys fit.", "pair": "Yes."}, {"text": "It is.", "pair": "No."}]
    desk = Desk(data={"mrpc": rows}, progress=False)
    monkeypatch.setattr(brunner, "EXACT", 1)
    name, found = brunner._mixing(desk)
    context = desk.context("mrpc", brunner.HTA)
    probes = mixing.statistics(context)
    exact = mixing.statistics(replace(context, methods=["hta"]))
    first = np.array(found[0][name]["own"])
    assert first == pytest.approx(np.array(exact[0]["hta"]["own"]), abs=1e-5)
    assert first != pytest.approx(np.array(probes[0][name]["own"]), abs=1e-3)
    assert found[1] == probes[1]
    gap = np.abs(np.subtract(exact[0]["hta"]["own"], probes[0][name]["own"])).mean(axis=1)
    made = brunner.sketch_errors(desk)
    assert [r.ours for r in made] == pytest.approx(gap.tolist(), abs=1e-5) and 0 < gap.max() < 0.2
    # a wide encoder costs the square of its width: exact on the shortest few, and the entry says so
    assert "the first 1 inputs" in brunner.exact_on_some(desk, "mrpc", 2)
    monkeypatch.setattr(brunner, "WIDE", 127)
    monkeypatch.setattr(brunner, "EXACT_WIDE", 1)
    assert "the shortest 1 inputs" in brunner.exact_on_some(desk, "mrpc", 2)
    shortest = min((0, 1), key=lambda i: len(context.ready[i].ids))
    exact_one = brunner._exact(desk, "mrpc")
    assert list(exact_one) == [shortest]
    assert brunner._mixing(desk)[1][shortest][name] == exact_one[shortest]
    assert brunner._mixing(desk)[1][1 - shortest] == probes[1 - shortest]


def test_tags_of_a_few_tokens_have_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": "Keys fit and are old", "pair": "so are they"}]
    desk = Desk(data={"mrpc": rows}, progress=False, pos_tags=capitals)
    named = lambda: {r.name.partition(",")[0] for r in brunner.figure_26(desk).rows}
    assert named() == {"NN", "DT", "[CLS]", "[SEP]"}
    monkeypatch.setattr(brunner, "RARE", 0.2)  # of eleven tokens one is a noun, seven are not
    assert named() == {"DT"}


# ---- Brunner et al. 2020, section 3.3 -------------------------------------------------------------------------------
def test_alternative_attention_by_hand() -> None:
    """Three tokens with values 0, 1, 2: only (1, -2, 1) changes neither the sum nor the output."""
    values = torch.tensor([[0.0], [1.0], [2.0]])
    attention = torch.tensor([[0.2, 0.6, 0.2], [0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    made = alternatives(attention, values)
    assert int(made.dimension) == 1 and float(made.gap) < 1e-14
    moved = (made.attention - attention.double())[:2]
    assert moved[:, 1] == pytest.approx(-2 * moved[:, 0]) and moved[:, 2] == pytest.approx(
        moved[:, 0]
    )
    # row 1: up by 0.3 to (.5, 0, .5), or down by 0.2 to (0, 1, 0): the first moves more
    assert made.attention[0].tolist() == pytest.approx([0.5, 0.0, 0.5])
    # row 2: up by 0.125 to (.625, 0, .375), or down by 0.25 to (.25, .75, 0): the second
    assert made.attention[1].tolist() == pytest.approx([0.25, 0.75, 0.0])
    assert made.attention[2].tolist() == pytest.approx([1.0, 0.0, 0.0])  # one-hot: nowhere to go
    third = torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64)
    assert (made.minimal @ third).tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)
    assert made.minimal.sum(dim=-1).tolist() == pytest.approx([1.0, 1.0, 1.0])
    same = alternatives(attention[:2, :2], torch.tensor([[0.0], [1.0]]))
    assert int(same.dimension) == 0 and torch.equal(same.attention, attention[:2, :2].double())


def test_alternative_attention_of_a_model_is_valid_and_unnoticed(box: Bench) -> None:
    text = {"text": " ".join(["The old keys to the cabinet"] * 4) + " [MASK] here."}
    ready, _ = box.prepare(read_data([text]).kept)
    with torch.no_grad():
        record = box.model(**box.inputs_of(ready), output_decomposition=True).decomposition
    made = alternative_attention(record, -1, 3)
    n, size = len(ready[0].ids), record[0].values.shape[-1]
    assert n - size > 1 and int(made.dimension) >= n - size - 1
    assert bool((made.attention >= 0).all()) and float(made.gap) < 1e-12
    assert made.attention.sum(dim=-1) == pytest.approx(torch.ones(n, dtype=torch.float64))
    weights = record[-1].attention[0, 3].double()
    assert float((made.attention - weights).abs().sum(dim=-1).min()) > 1e-3
    for wrong, said in (((9, 0), "no layer 9"), ((1, 99), "no head 99")):
        with pytest.raises(InputError, match=said):
            alternative_attention(record, *wrong)


def test_alternative_table(context: Callable[..., Context]) -> None:
    table = cm.evaluation.alternatives.alternative_table(context(3))
    assert table.column("layer") == [1, 2, 3, 4, 5, 6] and max(table.column("gap")) < 1e-9


# ---- Brunner et al. 2020, B.2 and B.4 -------------------------------------------------------------------------------
def test_a_map_is_tested_on_what_it_saw(context: Callable[..., Context]) -> None:
    how = Fitting(folds=2, epochs=1)
    some = replace(context(6), fitting=how, stores={})
    seen, other = counts(
        some, [RecoveryTask("linear", "l2", 1, seen=True), RecoveryTask("linear", "l2", 1)]
    )
    cut = list(identifiability.folds(6, some.seed, 2))
    lengths = [len(item.ids) for item in some.ready]
    for f, fold in enumerate(cut):
        assert [t for _, t in seen[f]] == [lengths[i] for i in fold[0]]
        assert [t for _, t in other[f]] == [lengths[i] for i in fold[2]]
        assert used(fold, replace(how, fraction=0.5)) == fold[0][: round(len(fold[0]) / 2)]
    parts = fraction_counts(some, RecoveryTask("linear", "cosine", 1), (0.5, 1.0))
    assert [len(v) for v in parts.values()] == [6, 6]


def test_gap_and_fractions_are_tables(context: Callable[..., Context]) -> None:
    some = replace(context(4), fitting=Fitting(folds=2, epochs=1, hidden=4), stores={})
    table = identifiability.identifiability_gap(some)
    assert set(table.column("map")) == {"linear, train", "linear, test", "mlp, train", "mlp, test"}
    parts = identifiability.identifiability_fractions(some)
    assert parts.column("fraction") == [0.5, 0.8, 0.9, 1.0] and set(parts.column("layer")) == {5}


def test_before_and_after_tuning(context: Callable[..., Context]) -> None:
    some = replace(context(6), stores={})
    with pytest.raises(InputError, match="before, after"):
        identifiability.identifiability_tuned(some)
    table = identifiability.identifiability_tuned(replace(some, other=some))  # the advice
    first, second = (
        [r["rate"] for r in table if r["line"].startswith(which)] for which in ("first", "second")
    )
    assert first == second and len(first) == 12, "a model differs in nothing from itself"


# ---- Brunner et al. 2020, C.2, C.3 and C.5 --------------------------------------------------------------------------
def test_neighbours_left_and_right_by_hand() -> None:
    maps = torch.zeros(1, 3, 3)
    maps[0, 1, 0], maps[0, 1, 2], maps[0, 0, 2] = 0.6, 0.2, 0.4
    assert mixing.neighbour_groups(maps, "left")["1st"] == pytest.approx([0.3])  # (0.6 + 0) / 2
    assert mixing.neighbour_groups(maps, "right")["1st"] == pytest.approx([0.1])  # (0 + 0.2) / 2
    assert mixing.neighbour_groups(maps, "right")["2nd"] == pytest.approx([0.4])
    with pytest.raises(OptionError, match="'both', 'left', 'right'"):
        mixing.neighbour_groups(maps, "up")
    places = mixing.by_place(maps)[0]
    at = {d: places[i] for i, d in enumerate(mixing.PLACES)}
    assert (at[-1], at[1], at[2]) == pytest.approx((0.6, 0.2, 0.4))
    shares = mixing.place_shares([{"m": {"places": [places]}}], "m", 0)
    assert sum(shares) == pytest.approx(1) and shares[mixing.PLACES.index(-1)] == pytest.approx(0.5)


def capitals(words: list[str]) -> list[str]:
    return ["NN" if word[0].isupper() else "DT" for word in words]


def test_own_contribution_by_part_of_speech(box: Bench) -> None:
    samples = tagged(read_data([{"words": ["Keys", "are", "Old"], "target_index": 1}]), capitals)
    ready, _ = box.prepare(samples.kept)
    own = [[0.1 * i for i in range(len(ready[0].ids))]]
    kept = mixing.own_by_tag([{"m": {"own": own}}], ready, "m")
    first = [own[0][word[0]] for word in ready[0].words]
    assert kept["NN"] == [[first[0], first[2]]] and kept["DT"] == [[first[1]]]
    assert kept["[CLS]"] == [[0.0]] and set(kept) == {"NN", "DT", "[CLS]", "[SEP]"}


def test_parts_of_speech_come_from_a_function_or_a_column() -> None:
    # the advice: a column of tags, or a function
    rows = [{"text": "Keys are old", "pos_tags": ["NNS", "VBP", "JJ"]}]
    table = cm.evaluate("mixing_pos", data=rows, methods=["alti"], progress=False)
    assert set(table.column("tag")) == {"NNS", "VBP", "JJ", "[CLS]", "[SEP]"} and len(table) == 30
    again = cm.evaluate(
        "mixing_pos", data=["Keys are old"], methods=["alti"], progress=False, pos_tags=capitals
    )
    assert {"NN", "DT"} < set(again.column("tag"))
    with pytest.raises(InputError, match="pos_tags=, a function"):
        cm.evaluate("mixing_pos", data=["Keys are old"], methods=["alti"], progress=False)
    with pytest.raises(InputError, match="2 tags for 3 words"):
        cm.evaluate("mixing_pos", data=["Keys are old"], pos_tags=lambda words: ["A", "B"])
    plain = read_data(["Keys are old"]).kept[0]
    assert plain.key == replace(plain, tags=("A", "B", "C")).key, "tags change no result"


NEEDS_HANTA = pytest.mark.skipif(
    not tagging.has_hanta(), reason="HanTa is not installed: pip install 'ctxmix-hf[pos]'"
)


@NEEDS_HANTA
def test_a_real_tagger() -> None:
    """HanTa's small English model; its tags are BNC's."""
    asked: dict[str, Any] = {"methods": ["alti"], "progress": False, "pos_tags": hanta()}
    table = cm.evaluate("mixing_pos", data=["The keys are old ."], **asked)
    assert {"NN2", "AJ0", "AT0", "[CLS]", "[SEP]"} <= set(table.column("tag"))


PAIR = {"text": "The keys are old.", "pair": "They fit."}


@NEEDS_HANTA
def test_parts_of_speech_of_the_papers_by_a_real_tagger(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"items": ["Figure 26 to 37"], "progress": False}
    (made,) = reproduce(tmp_path, "brunner", data={"mrpc": [PAIR]}, **asked).entries
    assert {"NN2", "AJ0", "[SEP]"} <= {row["name"].partition(",")[0] for row in made["rows"]}


def test_without_a_tagger_its_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tagging.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"HanTa.*ctxmix-hf\[pos\]"):
        hanta()
    asked: dict[str, Any] = {"items": ["Figure 26 to 37"], "progress": False}
    without = reproduce(tmp_path, "brunner", data={"mrpc": [PAIR]}, **asked)
    assert "ctxmix-hf[pos]" in without.left_out["brunner2020, Figure 26 to 37 (mrpc)"]
    # the advice: a function
    (made,) = reproduce(
        tmp_path, "brunner", data={"mrpc": [PAIR]}, pos_tags=capitals, **asked
    ).entries
    by_layer = {r["name"]: r["ours"] for r in made["rows"]}
    assert {name.partition(",")[0] for name in by_layer} == {"NN", "DT", "[CLS]", "[SEP]"}
    assert by_layer["NN, layer 1"] > by_layer["NN, layer 6"] > 0


def test_kinds_of_tags() -> None:
    content, function = (
        ("NNS", "VBP", "JJ", "PROPN", "NN2", "AJ0"),
        ("DT", "IN", "DET", "AT0", "PRF"),
    )
    assert all(map(brunner.is_content, content)) and not any(map(brunner.is_function, content))
    assert all(map(brunner.is_function, function)) and not any(map(brunner.is_content, function))
    assert not brunner.is_content("[SEP]") and not brunner.is_function("PUN")


# ---- corpora --------------------------------------------------------------------------------------------------------
def test_cola_is_read_in_its_own_form(tmp_path: Path) -> None:
    (tmp_path / "in_domain_dev.tsv").write_text("gj04\t1\t\tThe sailors rode the breeze.\n")
    (tmp_path / "out_of_domain_dev.tsv").write_text('clc95\t0\t*\tIn "which\n')
    rows = cola_rows(tmp_path)
    assert rows == [
        {"text": "The sailors rode the breeze.", "label": "1"},
        {"text": 'In "which', "label": "0"},
    ]
    desk = Desk(data={"cola": tmp_path})
    assert len(desk.samples("cola").kept) == 2 and desk.data_name("cola").startswith("cola: ")
    (tmp_path / "x.tsv").write_text("a\tb\n")
    with pytest.raises(InputError, match="not one of CoLA's files"):
        cola_rows(tmp_path / "x.tsv")


def test_items_that_compare_name_both_models(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"items": ["Figure 12"], "limit": 6, "progress": False}
    without = reproduce(tmp_path, "brunner", **asked)
    assert "--before" in without.left_out["brunner2020, Figure 12 (mrpc)"]
    # the advice: the model before it was tuned
    (made,) = reproduce(tmp_path, "brunner", before="ctxmix/agreement", **asked).entries
    assert made["model"] == "ctxmix/agreement (before: ctxmix/agreement)" and made["n"] == 6
    by_name = {row["name"]: row["ours"] for row in made["rows"]}
    assert by_name["before, l2, layer 6"] == by_name["after, l2, layer 6"]


def test_a_folder_is_called_by_its_name_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    desk = Desk({"masked_lm": str(tmp_path / "mine")})
    assert desk.model_name("masked_lm") == "mine" and desk.model_name("before") == "none"
