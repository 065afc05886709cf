"""Trained evaluations: the probe is scikit-learn's, the code length is added up by hand, tokens are identified."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors

from ctxmix_hf.errors import InputError
from ctxmix_hf.evaluation.context import Context
from ctxmix_hf.evaluation.data import read_data
from ctxmix_hf.evaluation.fitting import Fitting
from ctxmix_hf.evaluation.identifiability import (
    RecoveryTask,
    distances,
    fit,
    folds,
    identified,
    learn,
    rate,
)
from ctxmix_hf.evaluation.mdl_probe import block_ends, fit_probe, mdl_probe, online_code

RNG = np.random.default_rng(3)


def _labelled(n: int = 60, width: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    x = RNG.normal(size=(n, width))
    y = (x[:, 0] + 0.5 * RNG.normal(size=n) > 0).astype(int)
    return torch.from_numpy(x), torch.from_numpy(y)


def test_probe_is_scikit_learns() -> None:
    x, y = _labelled()
    weight, bias = fit_probe(x, y, 2, penalty=1.0)
    ours = torch.softmax(x @ weight + bias, dim=-1)[:, 1].numpy()
    # two softmax columns w and -w: |w|^2 + |w|^2 against one column of 2w, so half the penalty
    theirs = (
        LogisticRegression(C=2.0, tol=1e-10, max_iter=1000)
        .fit(x.numpy(), y.numpy())
        .predict_proba(x.numpy())[:, 1]
    )
    assert ours == pytest.approx(theirs, abs=1e-4)


def test_blocks() -> None:
    assert block_ends(1000, 2) == [2, 4, 8, 16, 32, 63, 125, 250, 500, 1000]
    assert block_ends(10, 2, (0.1, 0.5, 1.0)) == [2, 5, 10]


def test_online_code_by_hand() -> None:
    """Voita & Titov 2020, section 3.2, added up with scikit-learn's probabilities."""
    x, y = _labelled(40)
    code = online_code(x, y, 2, fractions=(0.25, 0.5, 1.0))
    bits = 10 * math.log2(2)
    for start, end in ((10, 20), (20, 40)):
        mean = x[:start].mean(dim=0)
        scale = (x[:start] - mean).square().mean().sqrt()
        probe = LogisticRegression(C=2.0, tol=1e-10, max_iter=1000).fit(
            ((x[:start] - mean) / scale).numpy(), y[:start].numpy()
        )
        p = probe.predict_proba(((x[start:end] - mean) / scale).numpy())[
            np.arange(end - start), y[start:end].numpy()
        ]
        bits -= np.log2(p).sum()
    assert code.bits == pytest.approx(bits, rel=1e-4)
    assert code.uniform == 40 and code.compression == pytest.approx(40 / bits, rel=1e-4)


def test_noise_does_not_compress_and_a_copy_does() -> None:
    y = torch.from_numpy(RNG.integers(0, 2, size=300))
    noise = torch.from_numpy(RNG.normal(size=(300, 3)))
    copy = torch.cat([noise, 4.0 * y[:, None].double()], dim=1)
    assert online_code(noise, y, 2).compression < 1.05 < 3 < online_code(copy, y, 2).compression


def test_mdl_table(context: Callable[..., Context]) -> None:
    table = mdl_probe(context(16))
    assert table.column("layer") == list(range(7)) and all(
        v > 0 for v in table.column("compression")
    )


def test_probe_without_labels_is_refused(box: object, context: Callable[..., Context]) -> None:
    made = context(4)
    ready, _ = made.bench.prepare(read_data(["The keys [MASK] old.", "The key [MASK] old."]).kept)
    with pytest.raises(InputError, match="labels of at least two kinds"):
        mdl_probe(Context(made.bench, tuple(ready), ()))


# ---- identifiability ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("distance", ["cosine", "l2"])
def test_nearest_is_scikit_learns(distance: str) -> None:
    predicted, candidates = torch.randn(7, 4), torch.randn(9, 4)
    metric = "cosine" if distance == "cosine" else "euclidean"
    theirs = (
        NearestNeighbors(n_neighbors=1, metric=metric)
        .fit(candidates.numpy())
        .kneighbors(predicted.numpy())
    )
    assert (
        distances(predicted, candidates, distance).argmin(dim=-1).tolist()
        == theirs[1][:, 0].tolist()
    )  # type: ignore[arg-type]
    assert identified(predicted, candidates, torch.from_numpy(theirs[1][:, 0]), distance).all()  # type: ignore[arg-type]


def test_folds_test_every_sentence_once_and_never_train_on_it() -> None:
    made = list(folds(11, seed=1))
    assert sorted(i for fold in made for i in fold[2]) == list(range(11))
    for train, valid, test in made:
        assert (
            not set(train) & set(valid)
            and not set(train) & set(test)
            and not set(valid) & set(test)
        )


def test_a_rotation_is_undone_by_a_linear_map_but_not_naively() -> None:
    torch.manual_seed(0)
    turn = torch.linalg.qr(torch.randn(8, 8)).Q
    states = []
    for _ in range(30):
        x = torch.randn(12, 8)
        states.append(torch.stack([x, x @ turn]))
    fold = (list(range(20)), list(range(20, 24)), list(range(24, 30)))
    naive = RecoveryTask("naive", "cosine", 1)
    assert rate(states, naive, fold[2], learn(states, naive, fold, 0)) == (
        rate(states, naive, fold[2], None)[0],
        72,
    )
    assert rate(states, naive, fold[2], None)[0] < 36
    for distance in ("cosine", "l2"):
        task = RecoveryTask("linear", distance, 1)  # type: ignore[arg-type]
        right, total = rate(states, task, fold[2], learn(states, task, fold, 0))
        assert total == 72 and right > 60


def test_neighbours_leave_the_edges_out() -> None:
    states = [torch.randn(2, 5, 3) for _ in range(3)]
    assert rate(states, RecoveryTask("naive", "l2", 0, offset=2), [0, 1, 2], None)[1] == 9
    # the naive map of e^0 to e^0 finds the token itself, so never the neighbour
    assert rate(states, RecoveryTask("naive", "l2", 0, offset=2), [0, 1, 2], None)[0] == 0
    assert rate(states, RecoveryTask("naive", "l2", 0), [0, 1, 2], None) == (15, 15)


def test_fit_is_seeded_and_leaves_the_global_generator_alone() -> None:
    x, y = torch.randn(40, 4), torch.randn(40, 4)
    before = torch.get_rng_state()
    a, b = (fit("mlp", "l2", x, y, (x, y), 3, Fitting(epochs=3))(x) for _ in range(2))
    assert torch.equal(a, b) and torch.equal(before, torch.get_rng_state())
