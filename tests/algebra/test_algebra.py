"""The tensor mathematics against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ctxmix_hf.algebra import gram
from ctxmix_hf.algebra.budget import Budget, size_in_words
from ctxmix_hf.algebra.equality import same_numbers
from ctxmix_hf.algebra.gram import slices, summed_norms
from ctxmix_hf.algebra.nullspace import project_on_range
from ctxmix_hf.algebra.ranks import average_ranks, spearman
from ctxmix_hf.algebra.rows import row_blocks, shifted_identity
from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.errors import OptionError


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_shares_sum_to_one_and_leave_empty_rows_empty() -> None:
    rows = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    assert to_shares(rows).tolist() == [[0.25, 0.75], [0.0, 0.0]]


@pytest.mark.parametrize("at_once", [96, 250, 500, 1000, 1200, 1700, 10**6])
def test_lengths_of_summed_heads_without_the_vectors(at_once: int, monkeypatch) -> None:
    """However many of the sources fit into the cache: one, part of an example's, or those of several examples."""
    monkeypatch.setattr(gram, "AT_ONCE", at_once)
    attention, vectors = (
        random(3, 3, 5, 5).abs(),
        random(3, 5, 3, 4, seed=1),
    )  # [B,H,T,T], [B,S,H,D]
    (found,) = summed_norms(attention, [lambda sources: vectors.flatten(0, 1)[sources]])
    direct = torch.einsum("bhij,bjhd->bijd", attention, vectors).norm(dim=-1)
    assert torch.allclose(found, direct, atol=1e-10)


def test_heads_that_cancel_keep_their_digits() -> None:
    """Gram matrices lose small differences of large vectors; those pairs are made from the vectors."""
    vectors = torch.ones(1, 1, 2, 4, dtype=torch.float32)
    vectors[:, :, 1] = -1 + 1e-4
    attention = torch.ones(1, 2, 1, 1)
    (found,) = summed_norms(attention, [lambda sources: vectors.flatten(0, 1)[sources]])
    assert found.item() == pytest.approx(2e-4, rel=1e-3)


def test_the_null_space_is_removed_and_nothing_else() -> None:
    attention, values = random(1, 6, 6).softmax(-1), random(1, 6, 2, seed=2)
    effective = project_on_range(attention, values)
    assert torch.allclose(effective @ values, attention @ values, atol=1e-12)
    left, _, _ = np.linalg.svd(values[0].numpy())
    null = torch.from_numpy(left[:, 2:])
    assert torch.allclose(effective[0] @ null, torch.zeros(6, 4, dtype=torch.float64), atol=1e-12)


def test_ranks_share_ties() -> None:
    assert average_ranks(torch.tensor([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]
    a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 15.0])
    assert spearman(a, b).item() == pytest.approx(0.5)
    assert spearman(a, torch.ones(3)).isnan()


def test_blocks_cover_every_row_once() -> None:
    for count, each in ((1, 10), (7, 1 << 20), (100, 1 << 24)):
        assert [i for part in slices(count, each) for i in range(count)[part]] == list(range(count))
        assert [i for part in row_blocks(count, each) for i in range(count)[part]] == list(
            range(count)
        )
        parts = Budget(1 << 20).chunks(count, each)
        assert [i for part in parts for i in range(count)[part]] == list(range(count))


def test_an_identity_of_some_rows() -> None:
    found = shifted_identity(2, 4, 1, torch.zeros((), dtype=torch.float64))
    assert found.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]


def test_a_budget_reads_sizes_and_refuses_crumbs() -> None:
    assert Budget.of("2MB").bytes == 2 << 20 and Budget.of(3 << 20).bytes == 3 << 20
    assert size_in_words(3 * 2**30).startswith("3")
    for wrong in ("many", "1KB", -5):
        with pytest.raises(OptionError, match="at least 1MB"):
            Budget.of(wrong)


def test_equal_numbers_include_nan_and_shape() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert same_numbers(nan, nan.clone()) and not same_numbers(nan, nan[None])
    assert not same_numbers(nan, None) and same_numbers(None, None)
