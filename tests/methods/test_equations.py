"""Every equation on the layer of `by_hand.py`, worked out on paper."""

from __future__ import annotations

from math import sqrt

import pytest
import torch

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.errors import OptionError
from ctxmix_hf.methods import LayerMethod, make_method
from tests.methods.by_hand import ATTENTION, layer

COS_00 = 6 / (sqrt(8) * sqrt(5))  # u_0 = [2, 2] against [1, 2]: the first source's value at zero
COS_01 = 4 / (sqrt(8) * 2)  # against [2, 0]
COS_10 = 16 / (sqrt(16.25) * 4)  # u_1 = [1/2, 4] against [0, 4]
COS_11 = (0.25 + 4) / (sqrt(16.25) * sqrt(1.25))  # against [1/2, 1]
ROWS = {
    "attention": ATTENTION,
    "attention_fixedres": [[0.75, 0.25], [0.125, 0.875]],
    "norm": [[1, 2], [0.5, 3]],
    "norm_res": [[2, 2], [0.5, 4]],
    "norm_resln": [[2, 2], [0.5, 4]],  # no norm follows the residual here
    "norm_enc": [[2, 2], [0.5, 4]],
    "norm_fixedres": [[1 / 6 + 0.5, 1 / 3], [1 / 14, 3 / 7 + 0.5]],
    "alti": [[0.5, 0.5], [1 / 9, 8 / 9]],
    "value_zeroing": [
        [(1 - COS_00) / (2 - COS_00 - COS_01), (1 - COS_01) / (2 - COS_00 - COS_01)],
        [(1 - COS_10) / (2 - COS_10 - COS_11), (1 - COS_11) / (2 - COS_10 - COS_11)],
    ],
}


@pytest.mark.parametrize("name", ROWS)
def test_on_paper(name: str) -> None:
    method = make_method(name)
    assert isinstance(method, LayerMethod)
    found = method.layer_map(layer(), Budget())
    assert torch.allclose(found, torch.tensor([ROWS[name]], dtype=torch.float64), atol=1e-12)


def test_euclidean_value_zeroing() -> None:
    """The distance is the length of what was taken away: z itself, as no norm and no feed-forward follows."""
    method = make_method("value_zeroing", distance="euclidean", row_shares=False)
    assert isinstance(method, LayerMethod)
    found = method.layer_map(layer(), Budget())
    assert torch.allclose(found, torch.tensor([[[1.0, 2.0], [0.5, 3.0]]], dtype=torch.float64))


def test_effective_attention() -> None:
    """Equal values: what tells the two sources apart is in the null space, so each row keeps its mean."""
    method = make_method("effective_attention")
    assert isinstance(method, LayerMethod)
    same = method.layer_map(layer([[1.0], [1.0]]), Budget())
    assert torch.allclose(same, torch.full((1, 2, 2), 0.5, dtype=torch.float64))
    unequal = method.layer_map(layer([[3.0], [4.0]]), Budget())  # a q q^T with q = [0.6, 0.8]
    expected = [[0.7 * 0.6, 0.7 * 0.8], [0.75 * 0.6, 0.75 * 0.8]]
    assert torch.allclose(unequal, torch.tensor([expected], dtype=torch.float64))
    independent = method.layer_map(layer([[2.0, 0.0], [0.0, 4.0]]), Budget())
    assert torch.equal(independent, torch.tensor([ATTENTION], dtype=torch.float64))


def test_null_attention() -> None:
    """What equal values cannot tell apart: each row minus its mean; one of two dimensions is free."""
    method = make_method("effective_attention", part="null")
    assert isinstance(method, LayerMethod)
    same = layer([[1.0], [1.0]])
    weights = torch.tensor([ATTENTION], dtype=torch.float64)
    assert torch.allclose(method.layer_map(same, Budget()), weights - 0.5)
    assert method.layer_notes(same, Budget())["null_dimension"].tolist() == [[1.0]]
    independent = layer([[2.0, 0.0], [0.0, 4.0]])
    assert not method.layer_map(independent, Budget()).any()
    assert method.layer_notes(independent, Budget())["null_dimension"].tolist() == [[0.0]]
    with pytest.raises(OptionError, match="'effective' or 'null'"):
        make_method("effective_attention", part="rest")


def test_true_residual() -> None:
    """r = ||others|| / (||others|| + ||own||) (eq. 14): row 0 takes 2 of 2 + 2, row 1 .5 of 4.5."""
    method = make_method("attention_res")
    assert isinstance(method, LayerMethod)
    found = method.layer_map(layer(), Budget())
    expected = [[0.5, 0.5], [1 / 9, 8 / 9]]
    assert torch.allclose(found, torch.tensor([expected], dtype=torch.float64), atol=1e-12)
