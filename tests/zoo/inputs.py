"""The batches of two that the zoo's models are called with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Inputs = dict[str, Tensor]
LENGTHS = (7, 5)


def draw(*shape: int, seed: int = 1) -> Tensor:
    """Standard normal numbers that do not depend on the global seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids(*shape: int, low: int = 5, high: int = 95, seed: int = 1) -> Tensor:
    """Whole numbers in [low, high) that do not depend on the global seed."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def text(config: Any) -> Inputs:
    """Token ids of lengths 7 and 5, the second row padded at the right."""
    mask = torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]
    pad = next(
        p
        for p in (getattr(config, "pad_token_id", None), getattr(config, "pad_index", None), 1)
        if p is not None
    )
    tokens = ids(2, max(LENGTHS)).masked_fill(~mask, pad)
    return {"input_ids": tokens, "attention_mask": mask.long()}


def boxed(config: Any) -> Inputs:
    """Text with one layout box (left, top, right, bottom) per token."""
    corner, size = ids(2, 7, 2, low=0, high=40, seed=2), ids(2, 7, 2, low=1, high=20, seed=3)
    return text(config) | {"bbox": torch.cat([corner, corner + size], -1)}


def bros(config: Any) -> Inputs:
    """Text with boxes in the unit square."""
    return text(config) | {"bbox": draw(2, 7, 4).sigmoid()}


def tapas(config: Any) -> Inputs:
    """Text with the seven token types of a table."""
    return text(config) | {"token_type_ids": ids(2, 7, 7, low=0, high=2, seed=2)}


def pixels(config: Any) -> Inputs:
    """Two images of 16 x 16 pixels."""
    return {"pixel_values": draw(2, 3, 16, 16)}


def noisy(config: Any) -> Inputs:
    """Images with the noise that orders the patches of a masked autoencoder."""
    return pixels(config) | {"noise": draw(2, 16, seed=2).sigmoid()}


def wave(config: Any) -> Inputs:
    """Two waveforms of 240 samples: 13 tokens after the zoo's convolutions."""
    return {"input_values": draw(2, 240)}


def frames(length: int, bins: int = 16, name: str = "input_features", bins_first: bool = True):
    """A maker of two spectrograms of `length` frames."""
    shape = (2, bins, length) if bins_first else (2, length, bins)
    return lambda config: {name: draw(*shape)}


def singles(inputs: Inputs) -> list[Inputs]:
    """The batch as unpadded single examples: every tensor with a token axis is cut at the row's length."""
    mask = inputs["attention_mask"]
    rows = []
    for i, length in enumerate(mask.sum(-1).tolist()):
        rows.append({k: _cut(v[i : i + 1], mask.shape[1], length) for k, v in inputs.items()})
    return rows


def _cut(row: Tensor, width: int, length: int) -> Tensor:
    return row[:, :length] if row.dim() > 1 and row.shape[1] == width else row
