"""The sanity suite against methods made by hand: one that sees nothing, one that sees the head, one
that sees the first layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

import ctxmix_hf as cm
from ctxmix_hf.attribution import AbstractAttribution, Case, IntegratedGradients, LedgerScores
from ctxmix_hf.errors import OptionError, UnsupportedMethodError
from ctxmix_hf.evaluation import as_published, sanity, signed
from ctxmix_hf.evaluation.bench import Bench
from ctxmix_hf.evaluation.context import Context
from ctxmix_hf.evaluation.data import read_data
from ctxmix_hf.evaluation.metrics import cue_first
from ctxmix_hf.evaluation.scores import MethodSet
from ctxmix_hf.unwrapping import base_model

STAGES = ["head", *(f"layer {k}" for k in range(6, 0, -1))]


@dataclass(frozen=True)
class FromState(AbstractAttribution):
    """The first coordinates of e^number: what the layers up to that one made, and nothing above them."""

    number: int = 1

    def scores(self, case: Case) -> Tensor:
        return case.record.hidden_states[self.number][..., 0]


@dataclass(frozen=True)
class FromHead(AbstractAttribution):
    """The logits of the masked place at as many words as there are tokens."""

    def scores(self, case: Case) -> Tensor:
        assert case.question.position is not None
        rows = torch.arange(len(case.logits))
        return case.logits[rows, case.question.position][:, 100 : 100 + case.record.mask.shape[1]]


@dataclass(frozen=True)
class Refusing(AbstractAttribution):
    def scores(self, case: Case) -> Tensor:
        raise UnsupportedMethodError("Not on this model.")


@dataclass(frozen=True)
class Wrong(LedgerScores):
    """A ledger that gives the second token too much."""

    def scores(self, case: Case) -> Tensor:
        made = super().scores(case).clone()
        made[:, 1] += 1.0
        return made


def by_stage(table: cm.EvaluationTable, method: str) -> dict[str, float]:
    found = table.where(method=method)
    return dict(zip(found.column("down_to"), found.column("mean"), strict=True))


def test_each_method_moves_when_what_it_sees_is_shuffled(context: Callable[..., Context]) -> None:
    for attribution, first in (
        (FromState(1), "layer 1"),
        (FromState(6), "layer 6"),
        (FromHead(), "head"),
    ):
        name = type(attribution).__name__
        found = by_stage(sanity.randomisation(context(3, [attribution, "random"])), name)
        assert list(found) == STAGES
        before = STAGES[: STAGES.index(first)]
        assert all(found[stage] == pytest.approx(1) for stage in before), (name, found)
        assert found[first] < 0.95, (name, found)


def test_a_method_that_sees_no_model_stays_at_one(context: Callable[..., Context]) -> None:
    table = sanity.randomisation(context(3, ["random", "ledger", "alti"]))
    assert all(value == pytest.approx(1) for value in by_stage(table, "random").values())
    ledger, alti = by_stage(table, "ledger"), by_stage(table, "alti")
    assert ledger["head"] < 0.95 and ledger["layer 1"] < 0.9
    assert (
        alti["head"] == pytest.approx(1) and alti["layer 1"] < 0.95
    )  # a map does not see the head


def test_correlations_are_those_of_a_model_shuffled_by_hand(box: Bench) -> None:
    ready, _ = box.prepare(read_data("agreement").kept[:1])
    item, base = ready[0], base_model(box.model)
    made = Context(box, tuple(ready), (), ["ledger"], progress=False)
    table = sanity.randomisation(made)
    text = item.sample.written("[MASK]")[0]
    asked = {"class_index": item.good, "foil": item.bad}
    whole = cm.ledger(box.model, text, **asked).scores[0]
    named = dict(base.named_parameters())
    head = [p for n, p in named.items() if n.startswith("cls.")]
    last = [p for n, p in named.items() if ".layer.5." in n]
    kept = [p.detach().clone() for p in (*head, *last)]
    generator = torch.Generator().manual_seed(2)  # the second stage
    try:
        with torch.no_grad():
            for p in (*head, *last):
                p.copy_(p.flatten()[torch.randperm(p.numel(), generator=generator)].view_as(p))
        other = cm.ledger(box.model, text, **asked).scores[0]
    finally:
        with torch.no_grad():
            for p, old in zip((*head, *last), kept, strict=True):
                p.copy_(old)
    expected = spearmanr(whole.numpy(), other.numpy()).statistic
    assert by_stage(table, "ledger")["layer 6"] == pytest.approx(expected, abs=1e-6)


def test_the_model_is_put_back_also_after_an_error(box: Bench) -> None:
    base = base_model(box.model)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    parts = [p for _, group in sanity.stages(box) for p in group]
    with pytest.raises(RuntimeError, match="stop"), sanity.shuffled(parts, 0):
        assert any(not torch.equal(v, before[n]) for n, v in base.state_dict().items())
        raise RuntimeError("stop")
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())


def test_embeddings_and_tied_weights_are_left_alone(box: Bench) -> None:
    groups = dict(sanity.stages(box))
    assert list(groups) == STAGES
    chosen = {id(p) for group in groups.values() for p in group}
    left = {name for name, p in base_model(box.model).named_parameters() if id(p) not in chosen}
    assert left and all("embeddings" in name for name in left)
    assert sum(map(len, groups.values())) == len(chosen), "no weight twice"


def test_a_method_the_model_refuses_is_left_out_with_a_note(
    context: Callable[..., Context],
) -> None:
    table = sanity.randomisation(context(3, [Refusing(), "random"]))
    assert set(table.column("method")) == {"random"}
    assert any("Refusing left out: Not on this model." in note for note in table.notes)


def test_scores_that_add_up_and_scores_that_do_not(context: Callable[..., Context]) -> None:
    few = IntegratedGradients(steps=2, rule="riemann", signed=True)
    many = IntegratedGradients(steps=40, rule="gauss_legendre", signed=True)
    found = {}
    for name, method in {"few": few, "many": many, "ledger": "ledger", "wrong": Wrong()}.items():
        table = sanity.completeness(context(4, [method, "grad_l2"]))
        assert any("No claim to add up: grad_l2" in note for note in table.notes)
        found[name] = table.column("largest")[0]
    assert found["ledger"] < 1e-4 and found["many"] < 1e-3
    assert found["few"] > 0.02 and found["wrong"] > 0.02, found


def test_signs_are_put_back_before_the_sum(context: Callable[..., Context]) -> None:
    """By name integrated gradients are compared by absolute shares; their claim is about signed scores."""
    table = sanity.completeness(context(4, ["integrated_gradients"]))
    assert table.where(method="integrated_gradients").column("largest")[0] < 0.02


def test_the_suite_is_found_by_name() -> None:
    report = cm.evaluate("sanity", methods=["ledger", "alti", "random"], limit=2, progress=False)
    assert list(report) == ["randomisation", "completeness"]
    classes = cm.evaluate(
        "randomisation", "ctxmix/sentiment", methods="ledger", limit=2, progress=False
    )
    assert classes.column("down_to")[0] == "head"


def test_cue_first_by_hand() -> None:
    assert cue_first([0.1, 0.7, 0.2], [0, 1, 0]) == 1 and cue_first([0.8, 0.7, 0.2], [0, 1, 0]) == 0
    assert cue_first([0.7, 0.7, 0.2], [0, 1, 0]) == 0.5
    assert cue_first([-3.0, -0.1, -0.2], [0, 1, 0]) == 1  # signed: the least against
    assert cue_first([1.0], [0]) != cue_first([1.0], [0])  # undefined without a cue


def test_evaluations_ask_the_signed_ledger(context: Callable[..., Context]) -> None:
    made = context(3, ["ledger"])
    for s in made.scores:
        text = s.ready.sample.written("[MASK]")[0]
        l = cm.ledger(made.bench.model, text, s.ready.good, foil=s.ready.bad)
        assert s.final("ledger") == pytest.approx(l.scores[0].numpy(), abs=1e-4)
    assert min(s.final("ledger").min() for s in made.scores) < 0


def test_of_two_classes_the_other_is_the_foil(sentiment: Bench) -> None:
    ready, _ = sentiment.prepare(read_data("sentiment").kept[:2])
    made = Context(sentiment, tuple(ready), (), ["ledger"], progress=False)
    for s in made.scores:
        text = s.ready.sample.written(None)[0]
        l = cm.ledger(sentiment.model, text, s.predicted, foil=1 - s.predicted)
        assert s.final("ledger") == pytest.approx(l.scores[0].numpy(), abs=1e-4)
        with torch.no_grad():
            logits = sentiment.model(**sentiment.inputs_of([s.ready])).logits[0]
        assert s.answer == pytest.approx(float(logits.softmax(-1)[s.predicted]), abs=1e-6)


def test_signed_attributions_keep_what_the_papers_use() -> None:
    assert signed("integrated_gradients") == IntegratedGradients(20, "gauss_legendre", signed=True)
    with pytest.raises(OptionError, match="grad_l2 has no sign"):
        signed("grad_l2")


def test_two_settings_of_one_attribution_are_two_methods() -> None:
    through = as_published("ledger", rule="through")
    assert through == LedgerScores(rule="through")
    made = MethodSet.of(
        ["ledger", through, signed("integrated_gradients")], ["integrated_gradients"]
    )
    assert made.names == ["ledger", "ledger (rule='through')", "integrated_gradients"]
    assert made.attributions["ledger (rule='through')"] == through
    assert made.attributions["integrated_gradients"] == signed("integrated_gradients")
    assert MethodSet.of([through, through]).names == ["ledger"]
    with pytest.raises(OptionError, match=r"ledger has no option rules\. It has .*rule"):
        as_published("ledger", rules="through")
