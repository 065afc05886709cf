"""Estimates: about what was measured, so that nothing is refused that would have been quick."""

from __future__ import annotations

import pytest

from ctxmix_hf.demo.limits import info_of, passes

# CPU seconds of the method over those of a plain forward pass: random BERTs of two layers, one thread
# (method, width, tokens, ratio)
MEASURED = [
    ("attention", 768, 48, 1.3),
    ("attention", 768, 226, 1.1),
    ("attention", 256, 48, 1.9),
    ("attention", 256, 226, 1.6),
    ("norm", 768, 48, 1.5),
    ("norm", 768, 226, 1.5),
    ("norm", 256, 48, 2.2),
    ("norm", 256, 226, 1.9),
    ("alti", 768, 48, 2.1),
    ("alti", 768, 226, 2.6),
    ("alti", 256, 48, 2.8),
    ("alti", 256, 226, 4.6),
    ("value_zeroing", 768, 48, 23.6),
    ("value_zeroing", 768, 226, 78.8),
    ("value_zeroing", 256, 48, 18.6),
    ("value_zeroing", 256, 226, 85.9),
    ("hta", 128, 11, 200),
    ("hta", 128, 48, 2478),
    ("hta", 256, 8, 370),
    ("hta", 256, 32, 3340),
    ("hta", 768, 8, 979),
    ("hta", 768, 16, 2940),
]


@pytest.mark.parametrize(("method", "width", "tokens", "ratio"), MEASURED)
def test_an_estimate_is_what_was_measured(
    method: str, width: int, tokens: int, ratio: float
) -> None:
    assert ratio / 1.5 < passes(info_of(method), tokens, width) < 2.5 * ratio
