"""Static figures: what is drawn, not how it looks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.errors import InputError, OptionError, UnknownNameError
from ctxmix_hf.viz.figures import plot_methods
from ctxmix_hf.viz.signals import patch_grid
from tests.viz.conftest import tiny

pytest.importorskip("matplotlib", reason="the extra [plot] is not installed")


def drawn(figure: Any, panel: int = 0) -> Any:
    return np.asarray(figure.axes[panel].images[0].get_array())


def blank(size: int) -> cm.ContextMixingMap:
    return cm.ContextMixingMap(
        "alti", torch.rand(1, 1, size, size), torch.ones(1, size, dtype=torch.bool)
    )


def test_a_figure_shows_itself_in_a_notebook(small: Any) -> None:
    assert small.plot()._repr_png_().startswith(b"\x89PNG")


def test_plot_draws_the_words_of_the_last_layer(small: Any, tmp_path: Path) -> None:
    figure = small.plot()
    assert np.allclose(drawn(figure), small.words().input[0, -1].numpy())
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["[CLS]", "playing"]
    for name in ("m.svg", "m.pdf", "m.png"):
        assert small.save(tmp_path / name).stat().st_size > 1000


def test_layers_by_tokens_has_the_last_layer_on_top(small: Any) -> None:
    figure = small.plot_layers("[CLS]")
    assert np.allclose(drawn(figure), small.words().input[0, :, 0].numpy()[::-1])
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["2", "1"]


def test_views_are_the_graph_the_layers_rollout_and_flow() -> None:
    """Two tokens, two layers: what the panels hold is what can be computed of the map."""
    m = tiny([[[0.5, 0.5], [0.25, 0.75]], [[0.75, 0.25], [0.0, 1.0]]], ("a", "b"))
    figure = m.plot_views("b", residual=0.5)
    graph, *panels = figure.axes
    (lines,) = graph.collections
    mixed = m.aggregate("none", residual=0.5)[0]
    assert len(lines.get_segments()) == int((mixed > 0).sum()) == 7  # no edge where a weight is 0
    assert [p.get_title() for p in panels] == [
        "within the layer",
        "from the input, rollout",
        "from the input, flow",
    ]
    made = (m.layers, *(m.aggregate(how, residual=0.5) for how in ("rollout", "flow")))
    for panel, expected in zip(panels, made, strict=True):
        shown = np.asarray(panel.images[0].get_array())
        assert np.allclose(shown, expected[0, :, 1].numpy()[::-1])
    only_input = cm.ContextMixingMap(
        "hta", None, torch.ones(1, 2, dtype=torch.bool), given_input=torch.rand(1, 1, 2, 2)
    )
    with pytest.raises(OptionError, match="no graph"):
        only_input.plot_views()


def test_grid_has_a_panel_per_layer_on_one_scale(real: Any) -> None:
    figure = real.plot_grid()
    assert np.allclose(drawn(figure, 3), real.words().layers[0, 3].numpy())
    assert len({figure.axes[k].images[0].get_clim() for k in range(real.depth)}) == 1


def test_methods_on_one_sentence(box: Any, small: Any, real: Any) -> None:
    figure = plot_methods({"a": real, "b": real})
    assert drawn(figure, 1).max() == pytest.approx(1.0)
    with pytest.raises(InputError, match="different sentences"):
        plot_methods({"a": real, "b": small})


def test_difference_is_drawn_around_zero() -> None:
    gap = tiny([[[1.0, 0.0], [0.5, 0.5]]], ("a", "b")) - tiny(
        [[[0.5, 0.5], [0.25, 0.75]]], ("a", "b")
    )
    assert gap.plot().axes[0].images[0].get_clim() == (-0.5, 0.5)


def test_labels_are_thinned_and_never_overlap(tmp_path: Path) -> None:
    figure = blank(128).plot(words=False)
    figure.savefig(tmp_path / "m.png")
    labels = [t for t in figure.axes[0].get_yticklabels() if t.get_text()]
    boxes = sorted((b.y0, b.y1) for b in (t.get_window_extent() for t in labels))
    assert 40 < len(labels) <= 128
    assert all(low[1] <= high[0] + 0.5 for low, high in pairwise(boxes))
    edge = figure.bbox
    assert all(edge.x0 <= t.get_window_extent().x0 for t in labels)


def test_2000_tokens_are_thinned_and_said() -> None:
    figure = blank(2000).plot(words=False)
    assert "thinned: 2000 tokens" in figure.axes[0].get_title()
    assert drawn(figure).shape == (500, 500)


def test_thinning_is_the_mean() -> None:
    values = torch.arange(1024.0)[None, None, None].expand(1, 1, 1024, 1024)
    figure = cm.ContextMixingMap("alti", values, torch.ones(1, 1024, dtype=torch.bool)).plot(
        words=False, scope="layer"
    )
    assert drawn(figure)[0, :2].tolist() == [0.5, 2.5]


@pytest.mark.parametrize("piece", ["猫", "😀", "שלום", "$x^2$", "a_b", "\ue000"])
def test_any_script_draws_without_warning(piece: str, tmp_path: Path) -> None:
    tiny([[[0.5, 0.5], [0.5, 0.5]]], (piece, "b")).save(
        tmp_path / "m.png"
    )  # warnings are errors here


def test_a_glyph_no_font_has_is_named() -> None:
    figure = tiny([[[1.0]]], ("\ue000",)).plot()
    assert figure.axes[0].get_xticklabels()[0].get_text() == "<U+E000>"


def test_colour_maps(small: Any) -> None:
    assert small.plot(cmap="viridis").axes[0].images[0].get_cmap().name.endswith("viridis")
    assert small.plot(cmap="RdYlBu").axes[0].images[0].get_cmap().name == "RdYlBu"
    with pytest.raises(UnknownNameError, match=r"colour map 'viridus'. Did you mean 'viridis'"):
        small.plot(cmap="viridus")


def test_bars_of_an_attribution(small: Any) -> None:
    figure = small.token("play", scope="layer").plot(words=False)
    assert [bar.get_height() for bar in figure.axes[0].patches] == pytest.approx([0.1, 0.6, 0.3])


def test_patches_over_a_picture() -> None:
    assert patch_grid(197) == ((14, 14), 1)
    assert patch_grid(16) == ((4, 4), 0)
    assert patch_grid(9, (2, 4)) == ((2, 4), 1)
    with pytest.raises(InputError, match="grid="):
        patch_grid(35)
    made = blank(5)
    figure = made.plot_image(torch.rand(3, 8, 8), target=0)
    assert np.allclose(drawn_on_top(figure), made.input[0, -1, 0, 1:].numpy().reshape(2, 2))


def drawn_on_top(figure: Any) -> Any:
    return np.asarray(figure.axes[1].images[1].get_array())


def test_frames_under_a_spectrogram() -> None:
    made = blank(20)
    figure = made.plot_speech(np.sin(np.arange(16000) * 0.3), 16000, target=3)
    assert np.allclose(
        np.asarray(figure.axes[1].images[0].get_array())[0], made.input[0, -1, 3].numpy()
    )
    assert figure.axes[1].get_xlim() == (0.0, 1.0)
