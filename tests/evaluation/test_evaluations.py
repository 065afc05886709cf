"""The evaluations that read rows and maps, against values worked out from the library's own maps."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import rankdata, spearmanr

import ctxmix_hf as cm
from ctxmix_hf.attribution import ATTRIBUTIONS
from ctxmix_hf.errors import InputError
from ctxmix_hf.evaluation import (
    agreement,
    cue_alignment,
    erasure,
    faithfulness,
    mixing,
    plausibility,
    recommendation,
)
from ctxmix_hf.evaluation.bench import Bench, Ready
from ctxmix_hf.evaluation.context import Context
from ctxmix_hf.evaluation.data import read_data
from ctxmix_hf.evaluation.samples import Sample
from ctxmix_hf.evaluation.scores import MethodSet, Scores, collect
from ctxmix_hf.evaluation.sessions import Store


def test_rows_are_the_maps_own(context: Callable[..., Context]) -> None:
    """Batched and padded rows equal the public `explain` on the sentence alone; blank-out equals `attribute`."""
    made = context(3, ["alti", "attention_flow", "value_zeroing"])
    for s in made.scores:
        text = s.ready.sample.written("[MASK]")[0]
        maps = cm.explain(made.bench.model, text, ["alti", "attention_flow", "value_zeroing"])
        for name, single in maps.items():
            row = single.attribution("[MASK]").scores[0].numpy()
            assert s.final(name) == pytest.approx(row, abs=2e-5)
            assert s.layers[name][2] == pytest.approx(
                single.layers[0, 2, s.ready.position].numpy(), abs=2e-5
            )
        blank = cm.attribute(
            made.bench.model, text, "blank_out", class_index=s.ready.good, foil=s.ready.bad
        )
        assert s.final("blank_out") == pytest.approx(blank.scores[0].numpy(), abs=1e-5)


def test_random_rows_do_not_depend_on_the_batch(box: Bench) -> None:
    ready, _ = box.prepare(read_data("agreement").kept[:4])
    together = collect(box, ready, MethodSet.of("random"), Store(None, "x"), progress=False)
    alone = collect(box, ready[:1], MethodSet.of("random"), Store(None, "x"), progress=False)
    other = collect(
        box, ready[:1], MethodSet.of("random"), Store(None, "x"), seed=1, progress=False
    )
    assert np.array_equal(together[0].final("random"), alone[0].final("random"))
    assert not np.array_equal(alone[0].final("random"), other[0].final("random"))


def test_cue_alignment_by_hand(context: Callable[..., Context]) -> None:
    made = context()
    table = cue_alignment.cue_alignment(made)
    values = []
    for s in made.scores:
        (cue,) = s.ready.sample.cues
        row = s.final("alti")
        values.append(row[list(s.ready.words[cue])].sum() / row.sum())
    assert table.where(method="alti", layer="input").column("dot_product")[0] == pytest.approx(
        np.mean(values)
    )
    assert set(table.where(method="alti").column("layer")) == {
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
        "input",
    }


def test_sentences_without_a_cue_are_counted(context: Callable[..., Context], box: Bench) -> None:
    rows = [{"words": ["The", "keys", "are", "old"], "target_index": 2, "bad_word": "is"}]
    ready, _ = box.prepare([*read_data(rows).kept, *read_data("agreement").kept[:2]])
    table = cue_alignment.cue_alignment(Context(box, tuple(ready), (), ["attention"]))
    assert any("1 of 3 sentences left out: no cue annotated" in note for note in table.notes)
    with pytest.raises(InputError, match="No sentence has a cue"):
        cue_alignment.cue_alignment(Context(box, tuple(ready[:1]), (), ["attention"]))


def test_faithfulness_is_scipys(context: Callable[..., Context]) -> None:
    made = context()
    row = faithfulness.faithfulness(made).where(method="alti", reference="grad_l2")
    values = [spearmanr(s.final("alti"), s.final("grad_l2")).statistic for s in made.scores]
    assert row.column("mean")[0] == pytest.approx(np.mean(values)) and row.column("std")[
        0
    ] == pytest.approx(np.std(values, ddof=1))
    layers = faithfulness.faithfulness_layers(made).where(
        method="alti", scope="layer", reference="blank_out_abs", layer=2
    )
    values = [
        spearmanr(s.layers["alti"][1], np.abs(s.final("blank_out"))).statistic for s in made.scores
    ]
    assert layers.column("mean")[0] == pytest.approx(np.mean(values))


def _scores(**rows: list[float]) -> Scores:
    count = len(next(iter(rows.values())))
    sample = Sample(tuple("abcdefgh"[:count]), ("",) * count)
    ready = Ready(
        sample,
        tuple(range(count)),
        (False,) * count,
        tuple("abcdefgh"[:count]),
        tuple((i,) for i in range(count)),
        0,
    )
    return Scores(ready, {}, {k: np.array([v], dtype=float) for k, v in rows.items()}, 1.0, None, 0)


def _fake(context: Context, scores: list[Scores]) -> Context:
    made = Context(
        context.bench, tuple(s.ready for s in scores), (), ["attention", "alti"], progress=False
    )
    made.__dict__["scores"] = scores  # stands in for the cached property
    made.__dict__["method_set"] = MethodSet(MethodSet.of(["attention", "alti"]).maps, {})
    return made


def test_constant_rows_and_short_sentences_are_undefined(context: Callable[..., Context]) -> None:
    made = _fake(
        context(1),
        [
            _scores(attention=[1, 1, 1, 1], alti=[1, 2, 3, 4]),
            _scores(attention=[1, 2], alti=[2, 1]),
        ],
    )
    table = agreement.method_matrix(made)
    row = next(iter(table.where(method="attention", **{"with": "alti"})))
    assert math.isnan(row["mean"]) and row["n"] == 0 and row["undefined"] == 2  # type: ignore[arg-type]
    assert "undefined" in str(table) and any("fewer than 3 tokens" in note for note in table.notes)


def test_method_matrix_and_disagreement_are_scipys(context: Callable[..., Context]) -> None:
    made = context(3, ["attention", "alti", "norm_res", "random"])
    table = agreement.method_matrix(made)
    expected = np.mean(
        [spearmanr(s.final("attention"), s.final("alti")).statistic for s in made.scores]
    )
    assert table.where(method="attention", **{"with": "alti"}).column("mean")[0] == pytest.approx(
        expected
    )
    assert table.where(method="alti", **{"with": "alti"}).column("mean")[0] == pytest.approx(1)
    listed = agreement.disagreement(made)
    assert listed.column("mean") == sorted(listed.column("mean")) and "random" not in " ".join(
        listed.column("most_different")
    )
    assert len(agreement.method_layers(made)) == 3 * 6


def test_ranks_of_special_tokens(context: Callable[..., Context]) -> None:
    row = np.array([0.3, 0.1, 0.1, 0.5])
    assert agreement.descending_ranks(row) == pytest.approx(rankdata(-row))
    table = agreement.special_tokens(context())
    assert {"[CLS]", "[SEP]", "punctuation", "target", "word"} == set(table.column("kind"))
    assert all(0 <= v <= 1 for v in table.column("relative_rank"))


def test_two_equal_models_are_consistent(context: Callable[..., Context]) -> None:
    made = context()
    table = agreement.model_consistency(context(4, other=made))
    assert table.column("mean") == pytest.approx([1.0] * len(table))
    with pytest.raises(InputError, match="two models"):
        agreement.model_consistency(made)


def test_erasure_by_hand(context: Callable[..., Context]) -> None:
    before, without = 0.9, [0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]
    alone = [0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.9]
    comprehensiveness, sufficiency, aupc = erasure.measures(before, [*without, *alone])
    assert comprehensiveness == pytest.approx(0.3) and sufficiency == pytest.approx(0.2)
    assert aupc == pytest.approx(
        0.05 * (0.9 + 0.4) + 0.1 * (0.8 + 0.7 + 0.6 + 0.5) + 0.25 * 0.35 + 0.25 * 0.25
    )


def test_erased_ids_keep_special_tokens_and_the_mask(context: Callable[..., Context]) -> None:
    made = context(1)
    (s,) = made.scores
    made_ids = erasure._erased(s, s.final("alti"), blank=1)
    kept = [i for i, special in enumerate(s.ready.special) if special] + [s.ready.position]
    assert all(ids[i] == s.ready.ids[i] for ids in made_ids for i in kept)
    everything = made_ids[len(erasure.FRACTIONS) - 1]
    assert sum(i == 1 for i in everything) == len(everything) - len(kept)
    assert list(made_ids[-1]) == list(s.ready.ids), "keeping all words keeps the sentence"
    best = max(
        (i for i in range(len(s.ready.ids)) if i not in kept), key=lambda i: s.final("alti")[i]
    )
    assert [i for i, (a, b) in enumerate(zip(made_ids[0], s.ready.ids, strict=True)) if a != b] == [
        best
    ]


def test_erasure_table_and_curves(context: Callable[..., Context]) -> None:
    made = context()
    table, curves = erasure.erasure(made), erasure.erasure_curves(made)
    start = curves.where(method="alti", fraction=0.0).column("score")[0]
    assert start == pytest.approx(np.mean([s.answer for s in made.scores]))
    ends = {
        name: curves.where(method=name, fraction=1.0).column("score")[0]
        for name in table.column("method")
    }
    assert len({round(v, 6) for v in ends.values()}) == 1, (
        "without all words every method leaves the same sentence"
    )


def test_mixing_by_hand() -> None:
    maps = torch.tensor(
        [[[0.6, 0.3, 0.1], [0.5, 0.25, 0.25], [0.0, 0.2, 0.8]]], dtype=torch.float64
    )
    found = mixing.map_statistics(maps)
    assert found["own"] == [[0.6, 0.25, 0.8]] and found["away"][0] == pytest.approx(1 / 3)
    assert found["sums"][0][0] == pytest.approx(1.65 / 3) and found["sums"][0][1] == pytest.approx(
        (0.3 + 0.5 + 0.25 + 0.2) / 3
    )
    assert found["sums"][0][2] == pytest.approx(0.1 / 3) and found["pairs"][:3] == pytest.approx(
        [1, 4 / 3, 2 / 3]
    )


def test_mixing_tables(context: Callable[..., Context]) -> None:
    made = context(2, ["alti", "value_zeroing"])
    own = mixing.mixing_own(made)
    total = mixing.mixing_distance(made)
    for layer in (1, 6):
        rest = sum(
            v for v in total.where(method="alti", layer=layer).column("total") if math.isfinite(v)
        )
        assert own.where(method="alti", layer=layer).column("own_mean")[0] + rest == pytest.approx(
            1, abs=1e-5
        )
    ratios = mixing.mixing_ratios_table(made)
    assert len(ratios) == 4 * 6 and all(0 <= v <= 1 for v in ratios.column("ratio"))
    inputs = made.bench.inputs([made.ready[0].ids])
    with torch.no_grad():
        record = made.bench.model(**inputs, output_decomposition=True).decomposition
    first = mixing.mixing_ratios_table(Context(made.bench, made.ready[:1], (), progress=False))
    assert first.where(decomposition="norm_res", layer=3).column("ratio")[0] == pytest.approx(
        float(cm.mixing_ratios(record, "norm_res")[0, 2].mean())
    )


def test_effective_attention_is_attention_for_short_sentences(
    context: Callable[..., Context],
) -> None:
    table = mixing.effective_attention(context())
    assert max(table.column("tokens")) <= 16 and table.column("pearson") == pytest.approx(
        [1.0] * len(table), abs=1e-4
    )


def test_plausibility_by_hand(sentiment: Bench) -> None:
    rows = [
        {"text": "a truly wonderful film", "label": 1, "rationale_indices": [2]},
        {"text": "no gold here", "label": 0},
    ]
    ready, _ = sentiment.prepare(read_data(rows).kept)
    made = Context(sentiment, tuple(ready), (), ["attention"], progress=False)
    table = plausibility.plausibility(made)
    words = agreement.by_word(made.scores[0], "attention")
    place = int((words > words[2]).sum()) + 1
    assert table.where(method="attention").column("auprc")[0] == pytest.approx(1 / place)
    assert table.where(method="attention").column("token_f1")[0] == float(place == 1)
    assert any("1 of 2 sentences left out: no word is marked" in note for note in table.notes)


def test_alignment_by_hand() -> None:
    words = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.4, 0.1, 0.5]])
    assert plausibility.hits(words, [(0, 1), (1, 0), (2, 0)]) == (2, 3)
    assert plausibility.hits(words, [(1, 0), (1, 2)]) == (1, 1)
    ready = Ready(
        Sample(("ab", "c"), ("", " ")),
        (0, 1, 2, 3),
        (True, False, False, False),
        tuple("xabc"),
        ((1, 2), (3,)),
        0,
    )
    maps = torch.arange(16.0).view(1, 4, 4)
    assert plausibility.word_map(ready, maps)[0].tolist() == [[15.0, 9.0], [27.0, 15.0]]


def test_alignment_table(sentiment: Bench) -> None:
    ready, _ = sentiment.prepare(
        read_data([{"text": "a good film", "alignment": [[2, 1], [0, 2]]}]).kept
    )
    table = plausibility.alignment_accuracy(
        Context(sentiment, tuple(ready), (), ["attention"], progress=False)
    )
    assert len(table) == 7 and set(table.column("n")) == {2}
    with pytest.raises(InputError, match="alignment, a list of"):
        plausibility.alignment_accuracy(Context(sentiment, (), (), ["attention"]))


def test_recommendation_speaks_from_the_numbers() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(size=50)
    clear = {"a": base + 1, "b": base, "random": base - 1}
    verdict = recommendation.judge("blank-out", clear, 0)
    assert (
        verdict is not None and verdict.best == "a" and verdict.separated and verdict.beats_random
    )
    assert "measurably better than the next, b" in recommendation.in_words(verdict)
    close = {"a": rng.normal(size=50), "b": rng.normal(size=50), "random": rng.normal(size=50)}
    verdict = recommendation.judge("blank-out", close, 0)
    assert verdict is not None and not verdict.separated
    said = recommendation.in_words(verdict)
    assert "cannot be told apart" in said or "not measurably better than random" in said
    low, high = recommendation.paired_interval(clear["a"], clear["b"], 0)
    assert low == pytest.approx(1) and high == pytest.approx(1)
    assert "a has the best mean place (1.0 of 2" in recommendation.overall({"blank-out": clear})


def test_one_method_is_named_like_several() -> None:
    """By name, as an object, as a recipe or as an attribution: none has to stand in a list."""
    for one in ("alti", cm.method("alti"), cm.method("alti").method, ATTRIBUTIONS.get("ledger")()):
        assert MethodSet.of(one).names == MethodSet.of([one]).names
