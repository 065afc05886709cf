"""Maps over what the tokens stand for: an image's patches, a spectrogram's frames (extra `plot`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ctxmix_hf.errors import InputError
from ctxmix_hf.results.maps import ContextMixingMap, heading
from ctxmix_hf.text.targets import Target as MapTarget
from ctxmix_hf.viz.figures import colour_map, new_figure, pyplot, side
from ctxmix_hf.viz.payload import check_not_empty


def patch_grid(tokens: int, grid: tuple[int, int] | None = None) -> tuple[tuple[int, int], int]:
    """((rows, columns) of patches, how many tokens stand before the first patch): a square grid after 0 to 5 others."""
    if grid is not None:
        if grid[0] * grid[1] > tokens:
            raise InputError(
                f"A grid of {grid[0]} x {grid[1]} needs {grid[0] * grid[1]} tokens, the map has {tokens}."
            )
        return grid, tokens - grid[0] * grid[1]
    for before in range(6):
        edge = math.isqrt(max(0, tokens - before))
        if edge > 0 and edge * edge == tokens - before:
            return (edge, edge), before
    raise InputError(f"{tokens} tokens do not form a square of patches: pass grid=(rows, columns).")


def pixels(image: Any) -> Any:
    """`[H, W, 3]` between 0 and 1, from a PIL image, an array or a `[3, H, W]` tensor."""
    array = (
        image.detach().cpu().float().numpy()
        if isinstance(image, torch.Tensor)
        else np.asarray(image)
    )
    array = array[0] if array.ndim == 4 else array
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[-1] not in (1, 3, 4):
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 2:
        array = array[..., None].repeat(3, axis=-1)
    if array.ndim != 3:
        raise InputError(f"An image has height, width and channels, not shape {array.shape}.")
    array = array[..., :3].astype(np.float64)
    if array.dtype != np.uint8 and (
        array.min() < 0 or (array.max() > 1 and array.max() <= 16)
    ):  # normalised by a processor
        array = (array - array.min()) / max(1e-12, array.max() - array.min())
    return array / 255 if array.max() > 1 else array


def plot_image(
    m: ContextMixingMap,
    image: Any,
    target: MapTarget = None,
    layer: int = -1,
    grid: tuple[int, int] | None = None,
    example: int = 0,
    cmap: Any = None,
    alpha: float = 0.6,
) -> Any:
    """The picture, and the picture under the contributions of its patches to the target."""
    pyplot()
    check_not_empty(m)
    one = m[example]
    (rows, cols), before = patch_grid(one.size, grid)
    scores = (
        one.attribution(target, layer)
        .scores[0, before:]
        .detach()
        .cpu()
        .double()
        .numpy()
        .reshape(rows, cols)
    )
    figure, axes = new_figure(7.2, 3.8, 1, 2)
    shown = pixels(image)
    for panel in axes.flat:
        panel.imshow(shown, extent=(0, cols, rows, 0))
        panel.set_axis_off()
    laid = axes[0, 1].imshow(
        scores, extent=(0, cols, rows, 0), cmap=colour_map(cmap), alpha=alpha, vmin=0
    )
    axes[0, 1].set_title(f"{heading(m)}, {m.where(layer)}", fontsize=9)
    figure.colorbar(laid, ax=axes[0, 1], fraction=0.045, pad=0.02).ax.tick_params(labelsize=7)
    return figure


def plot_speech(
    m: ContextMixingMap,
    waveform: Any,
    sampling_rate: int = 16000,
    target: MapTarget = None,
    layer: int = -1,
    example: int = 0,
    cmap: Any = None,
) -> Any:
    """Spectrogram, and below it on the same seconds the contribution of each frame to the target."""
    pyplot()
    check_not_empty(m)
    one = m[example]
    scores = one.attribution(target, layer).scores[0].detach().cpu().double().numpy()
    wave = torch.as_tensor(np.asarray(waveform), dtype=torch.float32).flatten()
    if len(wave) < 2 or sampling_rate <= 0:
        raise InputError(
            "A spectrogram needs a waveform of at least two samples and a sampling rate above 0."
        )
    size = min(400, len(wave))
    power = (
        torch.stft(
            wave,
            size,
            hop_length=max(1, size // 4),
            window=torch.hann_window(size),
            return_complex=True,
        )
        .abs()
        .square()
    )
    seconds = len(wave) / sampling_rate
    figure, axes = new_figure(side(len(scores), 5.0), 3.8, 2, 1)
    spectrum = 10 * torch.log10(power + 1e-10).numpy()
    axes[0, 0].imshow(
        spectrum,
        origin="lower",
        aspect="auto",
        extent=(0, seconds, 0, sampling_rate / 2000),
        cmap="magma",
    )
    axes[0, 0].set_ylabel("kHz", fontsize=8)
    axes[1, 0].imshow(
        scores[None], aspect="auto", extent=(0, seconds, 0, 1), cmap=colour_map(cmap), vmin=0
    )
    axes[1, 0].set_yticks([])
    axes[1, 0].set_xlabel("seconds", fontsize=8)
    axes[1, 0].set_ylabel("contribution", fontsize=8)
    axes[0, 0].set_title(f"{heading(m)}, {m.where(layer)}", fontsize=9)
    return figure
