"""One real map of the bundled model, and small hand-made ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.text.tokens import Tokens

TEXT = "The keys to the cabinet [MASK] on the table."


@pytest.fixture(scope="session")
def box() -> Any:
    return cm.load_default()


@pytest.fixture(scope="session")
def real(box: Any) -> Any:
    return cm.explain(box[0], TEXT, "alti", tokenizer=box[1])


def tiny(values: Any, pieces: tuple[str, ...], **kwargs: Any) -> cm.ContextMixingMap:
    """A map from layer matrices written out in a test."""
    layers = torch.tensor(values, dtype=torch.float32)[None]
    mask = torch.ones(1, len(pieces), dtype=torch.bool)
    return cm.ContextMixingMap("alti", layers, mask, [Tokens(pieces)], **kwargs)


@pytest.fixture
def small() -> cm.ContextMixingMap:
    """Two layers, three tokens: [CLS], play, ##ing."""
    return tiny(
        [
            [[1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.0, 0.5, 0.5]],
            [[0.2, 0.4, 0.4], [0.1, 0.6, 0.3], [0.0, 0.0, 1.0]],
        ],
        ("[CLS]", "play", "##ing"),
    )
