"""Every metric against a value worked out by hand, by scipy or by scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import auc, average_precision_score, f1_score, jaccard_score

from ctxmix_hf.evaluation import metrics as m

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_is_scipys(ties: bool) -> None:
    for _ in range(20):
        a, b = RNG.random(9), RNG.random(9)
        if ties:
            a, b = np.round(a * 3), np.round(b * 3)
        assert m.rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


def test_rank_correlation_is_undefined_not_zero() -> None:
    assert math.isnan(m.rank_correlation([1, 1, 1, 1], [1, 2, 3, 4]))
    assert math.isnan(m.rank_correlation([1, 2], [1, 2])), "two tokens always correlate perfectly"
    assert math.isnan(m.rank_correlation([1, 2, math.inf], [1, 2, 3]))


def test_dense_ranks_are_not_used() -> None:
    """METHODS-NOTES Q31: dense ranks would give 0.54 here."""
    assert m.rank_correlation([0.1, 0.1, 0.2, 0.3, 0.3, 0.3], [1, 2, 3, 4, 5, 6]) == pytest.approx(
        0.93, abs=0.005
    )


def test_pearson_is_scipys() -> None:
    a, b = RNG.random(30), RNG.random(30)
    assert m.pearson(a, b) == pytest.approx(pearsonr(a, b).statistic)
    assert math.isnan(m.pearson([1, 1, 1], [1, 2, 3]))


def test_dot_product_by_hand() -> None:
    assert m.dot_product([1, 2, 5, 2], [0, 1, 0, 1]) == pytest.approx(0.4)
    assert m.dot_product([0, 0], [1, 0]) == 0


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_is_scikit_learns(ties: bool) -> None:
    for _ in range(30):
        scores, gold = RNG.random(8), (RNG.random(8) < 0.4).astype(int)
        gold[3] = 1
        scores = np.round(scores * 3) if ties else scores
        assert m.average_precision(scores, gold) == pytest.approx(
            average_precision_score(gold, scores), abs=1e-12
        )
    assert math.isnan(m.average_precision([1, 2], [0, 0]))


def test_probes_needed_by_hand() -> None:
    assert m.probes_needed([5, 4, 3], [1, 0, 0]) == 1
    assert m.probes_needed([5, 4, 3], [0, 0, 1]) == 3
    assert m.probes_needed([5, 4, 3, 1], [0, 0, 1, 1]) == 3
    # one better word, then two equal ones of which one is the cue: 2 or 3 probes, 2.5 on average
    assert m.probes_needed([9, 4, 4, 1], [0, 1, 0, 0]) == 2.5
    assert math.isnan(m.probes_needed([1, 2], [0, 0]))


def test_token_f1_and_overlap_are_scikit_learns() -> None:
    for _ in range(20):
        picked, gold = RNG.random(10) < 0.5, RNG.random(10) < 0.5
        picked[0] = gold[1] = True
        assert m.token_f1(picked, gold) == pytest.approx(f1_score(gold, picked))
        assert m.overlap(picked, gold) == pytest.approx(jaccard_score(gold, picked))
    assert math.isnan(m.token_f1([0, 0], [0, 0])) and math.isnan(m.overlap([0, 0], [0, 0]))


def test_top_k_and_counts() -> None:
    assert m.top_k([0.1, 0.9, 0.9, 0.2], 2).tolist() == [False, True, True, False]
    assert [m.count_of(f, 10) for f in (0.01, 0.1, 0.25, 1.0)] == [1, 1, 3, 10]
    assert m.count_of(0.3, 10) == 3, "0.3 * 10 is a little more than 3 in floating point"


def test_area_is_scikit_learns() -> None:
    x, y = [0, 0.1, 0.5, 1.0], [0.9, 0.5, 0.4, 0.1]
    assert m.area(x, y) == pytest.approx(auc(x, y))
    assert m.area([0, 1], [1, 0]) == pytest.approx(0.5)


def test_summary_by_hand() -> None:
    found = m.summarise([1.0, 2.0, 3.0, math.nan], seed=0)
    assert (found.mean, found.std, found.n, found.undefined) == (2.0, 1.0, 3, 1)
    assert 1 <= found.low <= 2 <= found.high <= 3
    assert found == m.summarise([1.0, 2.0, 3.0, math.nan], seed=0)
    assert m.summarise([math.nan]).n == 0 and math.isnan(m.summarise([math.nan]).mean)


def test_bootstrap_interval_covers_like_the_normal_one() -> None:
    values = RNG.normal(size=400)
    found = m.summarise(list(values), draws=4000)
    half = 1.96 * values.std(ddof=1) / 20
    assert found.low == pytest.approx(values.mean() - half, abs=0.015)
    assert found.high == pytest.approx(values.mean() + half, abs=0.015)
