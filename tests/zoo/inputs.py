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


def udop(config: Any) -> Inputs:
    """Text with boxes in the unit square, sorted."""
    return text(config) | {"bbox": draw(2, 7, 4).sigmoid().sort(-1).values}


def bros(config: Any) -> Inputs:
    """Text with boxes in the unit square."""
    return text(config) | {"bbox": draw(2, 7, 4).sigmoid()}


def tapas(config: Any) -> Inputs:
    """Text with the seven token types of a table."""
    return text(config) | {"token_type_ids": ids(2, 7, 7, low=0, high=2, seed=2)}


def pixels(config: Any) -> Inputs:
    """Two square images as large as the config says, else of 16 x 16 pixels."""
    size = getattr(config, "image_size", None) or 16
    side = size if isinstance(size, int) else size[0]
    return {"pixel_values": draw(2, 3, side, side)}


def tokens(config: Any) -> Inputs:
    """Token ids without padding."""
    return {"input_ids": ids(2, 7)}


def long_tokens(config: Any) -> Inputs:
    """Enough token ids for sparse attention to be sparse."""
    return {"input_ids": ids(2, 40)}


def perceiver(config: Any) -> Inputs:
    """Embedded inputs for the latents to read."""
    return {"inputs": draw(2, 7, 32)}


def lxmert(config: Any) -> Inputs:
    """Text beside the features and boxes of image regions."""
    regions = {"visual_feats": draw(2, 5, 16), "visual_pos": draw(2, 5, 4, seed=2).sigmoid()}
    return text(config) | regions


def vilt(config: Any) -> Inputs:
    """Unpadded text beside image patches (from pixels, ViLT draws an order of its patches at random)."""
    return tokens(config) | {"image_embeds": draw(2, 9, 32), "pixel_mask": torch.ones(2, 9).long()}


def noisy(config: Any) -> Inputs:
    """Images with the noise that orders the patches of a masked autoencoder."""
    return pixels(config) | {"noise": draw(2, 16, seed=2).sigmoid()}


def video(count: int = 2, name: str = "pixel_values"):
    """A maker of two films of `count` images."""
    return lambda config: {name: draw(2, count, 3, 16, 16)}


def flat_patches(config: Any) -> Inputs:
    """Two images as 4 x 4 patches of 48 numbers, none of them padding."""
    shapes = torch.full((2, 2), 4)
    return {
        "pixel_values": draw(2, 16, 48),
        "pixel_attention_mask": torch.ones(2, 16).long(),
        "spatial_shapes": shapes,
    }


def pix2struct(config: Any) -> Inputs:
    """Two images as patches that begin with their row and column."""
    places = torch.cartesian_prod(torch.arange(1.0, 5), torch.arange(1.0, 5)).expand(2, 16, 2)
    return {
        "flattened_patches": torch.cat([places, draw(2, 16, 48)], -1),
        "attention_mask": torch.ones(2, 16),
    }


def spoken(*shape: int, frames: int = 24, mask: str = "attention_mask"):
    """A maker of two spectrograms with the mask that some encoders insist on."""
    return lambda config: {"input_features": draw(2, *shape), mask: torch.ones(2, frames).long()}


def clap(config: Any) -> Inputs:
    """Two spectrograms as images of one channel."""
    return {"input_features": draw(2, 1, 16, 16)}


def wave(config: Any) -> Inputs:
    """Two waveforms of 240 samples: 13 tokens after the zoo's convolutions."""
    return {"input_values": draw(2, 240)}


def samples(length: int):
    """A maker of two waveforms of `length` samples."""
    return lambda config: {"input_values": draw(2, length)}


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
