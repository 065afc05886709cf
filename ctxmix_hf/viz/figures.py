"""Static figures with matplotlib (extra `plot`): vector output, labels thinned rather than clipped."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ctxmix_hf.counting import in_words, layer_index
from ctxmix_hf.errors import InputError, MissingDependencyError, OptionError, UnknownNameError
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.maps import ContextMixingMap, heading
from ctxmix_hf.text.targets import Target as MapTarget
from ctxmix_hf.viz.colours import CANVAS_MAPS, stops
from ctxmix_hf.viz.payload import check_not_empty, row_place, visible

if TYPE_CHECKING:
    from ctxmix_hf.results.differences import MapDifference

MAX_DRAWN = 512  # tokens per side; longer maps are averaged down and the title says so
_FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "WenQuanYi Zen Hei",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Emoji",
    "Symbola",
    "Unifont",
)


def pyplot() -> Any:
    """matplotlib's drawing half, without choosing a backend for the user."""
    try:
        from matplotlib import figure
    except ImportError as error:
        raise MissingDependencyError.of("matplotlib", "plot") from error
    return figure


def fonts() -> list[str]:
    """Fonts in order of preference, as far as they are installed: matplotlib falls back glyph by glyph."""
    from matplotlib import font_manager

    known = set(font_manager.get_font_names())
    return [name for name in _FONTS if name in known] or ["DejaVu Sans"]


def drawable(label: str) -> str:
    """Characters that no installed font has become `U+1F600`: visible, not an empty box."""
    from matplotlib import font_manager

    faces = [font_manager.get_font(font_manager.findfont(name)) for name in fonts()]

    def known(c: str) -> bool:
        return c.isspace() or any(face.get_char_index(ord(c)) for face in faces)

    return "".join(c if known(c) else f"<U+{ord(c):X}>" for c in label.replace("$", r"\$"))


def colour_map(name: Any, signed: bool = False) -> Any:
    """Ours by name, or any of matplotlib's."""
    import matplotlib
    from matplotlib.colors import Colormap, LinearSegmentedColormap

    if isinstance(name, Colormap):
        return name
    if name is None or name in CANVAS_MAPS:
        chosen = "signed" if signed else str(name or "blues")
        return LinearSegmentedColormap.from_list(
            f"ctxmix_{chosen}", [f"#{stop}" for stop in stops(chosen)]
        )
    if name in matplotlib.colormaps:
        return matplotlib.colormaps[name]
    raise UnknownNameError.among("colour map", name, [*CANVAS_MAPS, *matplotlib.colormaps])


@cache
def _notebook_figure() -> Any:
    """A figure that shows itself in a notebook also before `%matplotlib inline`."""
    base: Any = pyplot().Figure

    class Figure(base):  # type: ignore[misc]
        def _repr_png_(self) -> bytes:
            held = io.BytesIO()
            self.savefig(held, format="png")
            return held.getvalue()

    return Figure


def new_figure(
    width: float,
    height: float,
    rows: int = 1,
    cols: int = 1,
    heights: Sequence[float] | None = None,
) -> tuple[Any, Any]:
    figure = _notebook_figure()(figsize=(width, height), layout="constrained", dpi=150)
    return figure, figure.subplots(rows, cols, squeeze=False, height_ratios=heights)


def label_axis(axis: Any, labels: Sequence[str], inches: float, vertical: bool) -> None:
    """Every k-th label, so that neighbours never touch: about seven per inch."""
    room = max(1, int(inches * 7.5))
    every = max(1, -(-len(labels) // room))
    places = list(range(0, len(labels), every))
    size = 8 if len(labels) / max(inches, 0.1) < 6.5 else 6.5
    axis.set_ticks(places)
    turn: dict[str, Any] = (
        {} if vertical else {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    )
    names = [drawable(visible(labels[i])) for i in places]
    axis.set_ticklabels(
        [n if len(n) <= 24 else n[:23] + "…" for n in names],
        fontsize=size,
        fontfamily=fonts(),
        **turn,
    )


def thinned(values: Any, labels: Sequence[str]) -> tuple[Any, list[str], str]:
    """Maps of more than MAX_DRAWN tokens as means over blocks of neighbours, and a sentence that says so."""
    size = len(labels)
    if size <= MAX_DRAWN:
        return values, list(labels), ""
    step = -(-size // MAX_DRAWN)
    starts = list(range(0, size, step))
    counts = np.diff([*starts, size])
    for axis in range(
        values.ndim - 2 if values.shape[-2] == size else values.ndim - 1, values.ndim
    ):
        shape = [-1 if k == axis else 1 for k in range(values.ndim)]
        values = np.add.reduceat(values, starts, axis=axis) / counts.reshape(shape)
    return (
        values,
        [labels[i] for i in starts],
        f" (thinned: {size} tokens, each cell the mean of {step} × {step})",
    )


def side(count: int, least: float = 2.6, most: float = 11.0) -> float:
    return float(min(most, max(least, 0.24 * count + 1.0)))


def draw(
    axes: Any,
    values: Any,
    rows: Sequence[str],
    cols: Sequence[str],
    cmap: Any,
    top: float,
    low: float,
    inches: Any,
) -> Any:
    image = axes.imshow(
        values, cmap=cmap, vmin=low, vmax=top, aspect="auto", interpolation="nearest"
    )
    label_axis(axes.yaxis, rows, inches[1], True)
    label_axis(axes.xaxis, cols, inches[0], False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def _values(m: ContextMixingMap, scope: str) -> Any:
    return np.nan_to_num(m.of_scope(scope)[0].detach().cpu().double().numpy())


def _all_layers(m: ContextMixingMap, scope: str) -> str:
    return "from the input" if m.meant(scope) == "input" else "within the layer"


def prepared(m: ContextMixingMap, example: int, words: bool) -> ContextMixingMap:
    check_not_empty(m)
    one = m[example]
    return (
        one.words()
        if words and one.meta.get("unit") != "word" and not one.meta.get("notes", {}).get("grid")
        else one
    )


def titled(axes: Any, title: str, size: float = 10) -> None:
    axes.set_title(drawable(title), fontsize=size, fontfamily=fonts())


def plot_map(
    m: ContextMixingMap,
    layer: int = -1,
    scope: str = "input",
    example: int = 0,
    words: bool = True,
    cmap: Any = None,
    title: str | None = None,
    marked: Sequence[int] = (),
    diagonal: bool = True,
) -> Any:
    """Targets are rows, sources columns. `marked` rows are framed; without `diagonal` a token's own part
    is an outline and does not count for the colours, as in the widget.
    """
    pyplot()
    from matplotlib.patches import Rectangle

    one = prepared(m, example, words)
    held = _values(one, scope)
    if not diagonal:
        held[:, range(one.size), range(one.size)] = 0
    values, labels, said = thinned(held[layer_index(layer, m.layer_numbers)], one.tokens[0].shown())
    top = float(values.max() if diagonal else held.max()) or 1.0
    if not diagonal and not said:
        np.fill_diagonal(values, np.nan)  # no colour at all
    edge = side(len(labels))
    figure, axes = new_figure(edge + 1.6, edge + 0.9)
    image = draw(
        axes[0, 0],
        values,
        labels,
        labels,
        colour_map(cmap),
        top,
        0.0,
        (edge, edge),
    )
    box: dict[str, Any] = {"fill": False, "linewidth": 0.8, "edgecolor": "#7d8896"}
    for k in () if diagonal or said else range(len(labels)):
        axes[0, 0].add_patch(Rectangle((k - 0.42, k - 0.42), 0.84, 0.84, **box))
    for k in () if said else marked:
        frame = {**box, "linewidth": 1.6, "edgecolor": "#c2410c", "clip_on": False}
        axes[0, 0].add_patch(Rectangle((-0.5, k - 0.5), len(labels), 1, **frame))
    titled(axes[0, 0], (title or f"{heading(m)}\n{m.where(layer, scope)}") + said)
    axes[0, 0].set_xlabel("source", fontsize=8)
    axes[0, 0].set_ylabel("target", fontsize=8)
    figure.colorbar(image, ax=axes[0, 0], fraction=0.045, pad=0.02).ax.tick_params(labelsize=7)
    return figure


def plot_layers(
    m: ContextMixingMap,
    target: MapTarget = None,
    scope: str = "input",
    example: int = 0,
    words: bool = True,
    cmap: Any = None,
) -> Any:
    """Layers by tokens for one target, the last layer on top (as the papers' [CLS] figures)."""
    pyplot()
    one = prepared(m, example, words)
    rows = np.einsum("t,lts->ls", one.weights(target).numpy(), _values(one, scope))
    values, labels, said = thinned(rows, one.tokens[0].shown())
    wide, high = side(len(labels), 3.5), 0.32 * m.depth + 0.4
    figure, axes = new_figure(wide + 1.4, high + 1.3)
    names = [str(number) for number in m.layer_numbers]
    image = draw(
        axes[0, 0],
        values[::-1],
        names[::-1],
        labels,
        colour_map(cmap),
        float(values.max()) or 1.0,
        0.0,
        (wide, high),
    )
    titled(
        axes[0, 0],
        f"{heading(m)}: sources of {one.attribution(target).target}\n{_all_layers(m, scope)}{said}",
    )
    axes[0, 0].set_ylabel("layer", fontsize=8)
    figure.colorbar(image, ax=axes[0, 0], fraction=0.045, pad=0.02).ax.tick_params(labelsize=7)
    return figure


def plot_views(
    m: ContextMixingMap,
    target: MapTarget = None,
    residual: float | None = None,
    example: int = 0,
    cmap: Any = None,
) -> Any:
    """One token's sources as Abnar & Zuidema 2020 show them (figures 1 to 3): the graph of all layers, the rows within
    each layer, and those from the input by rollout and by flow.

    `residual` is mixed into graph, rollout and flow: 0.5 for `attention`, None for a map that has the residual in it.
    """
    pyplot()
    from matplotlib.collections import LineCollection

    one = m[example]
    if one.layers is None:
        raise OptionError(
            f"{m.method} has no maps within layers, so there is no graph: choose another method."
        )
    labels, names = one.tokens[0].shown(), [str(number) for number in m.layer_numbers]
    weights = one.weights(target)
    places = weights.nonzero().flatten().tolist()
    stacks = {
        "within the layer": one.layers,
        "from the input, rollout": one.aggregate("rollout", residual=residual),
        "from the input, flow": one.aggregate("flow", targets=places, residual=residual),
    }
    wide, high = side(len(labels), 3.5), max(0.32 * m.depth, 1.6)
    figure, axes = new_figure(2 * wide + 1.6, 2 * high + 2.6, 2, 2)
    graph, *others = axes.flat
    edges = one.aggregate("none", residual=residual)[0].detach().cpu().double().clamp(min=0).numpy()
    layers, starts, ends = np.nonzero(edges > 0.01 * edges.max())
    graph.add_collection(
        LineCollection(
            [((i, k + 1), (j, k)) for k, i, j in zip(layers, starts, ends, strict=True)],
            colors=[(0.1, 0.3, 0.6, float(a)) for a in edges[layers, starts, ends] / edges.max()],
            linewidths=1.2,
        )
    )
    graph.set_xlim(-0.5, len(labels) - 0.5)
    graph.set_ylim(-0.2, m.depth + 0.2)
    label_axis(graph.xaxis, labels, wide, False)
    label_axis(graph.yaxis, ["input", *names], high, True)
    titled(graph, "the graph", 9)
    for panel, (title, stack) in zip(others, stacks.items(), strict=True):
        rows = np.einsum("t,lts->ls", weights.numpy(), stack[0].detach().cpu().double().numpy())
        top = float(rows.max()) or 1.0
        draw(panel, rows[::-1], names[::-1], labels, colour_map(cmap), top, 0.0, (wide, high))
        titled(panel, title, 9)
    shown = one.attribution(target).target
    figure.suptitle(drawable(f"{m.method}: sources of {shown}, by layer"), fontsize=10)
    return figure


def plot_grid(
    m: ContextMixingMap, scope: str = "any", example: int = 0, words: bool = True, cmap: Any = None
) -> Any:
    """All layers on one scale: within each layer, or from the input for a method that has nothing
    else (the title says which).
    """
    pyplot()
    one = prepared(m, example, words)
    chosen = ("input" if one.layers is None else "layer") if scope == "any" else scope
    values, labels, said = thinned(_values(one, chosen), one.tokens[0].shown())
    title = f"{heading(m)}, {_all_layers(m, chosen)}{said}"
    return _panels(
        values,
        [f"layer {number}" for number in m.layer_numbers],
        labels,
        title,
        cmap,
        float(values.max()) or 1.0,
    )


def plot_methods(
    maps: Mapping[str, ContextMixingMap],
    layer: int = -1,
    example: int = 0,
    words: bool = True,
    cmap: Any = None,
) -> Any:
    """The same sentence under several methods, rows as shares of each method's own largest value.

    Args:
        maps: Name to map, as `explain(model, text, ["alti", ...])` returns them.
        layer: 1 to L; -1 is the last.
        example: The example of the batch, counted from 0.
        words: Merge sub-words.
        cmap: A colour map of ours or of matplotlib's.

    Returns:
        A matplotlib figure (extra `plot`).

    Raises:
        InputError: There are no maps, or they are of different sentences.
    """
    pyplot()
    if not maps:
        raise InputError(
            "There are no maps to compare: give a dict of name to map, as explain(model, text, [...]) returns."
        )
    shown = {name: prepared(m, example, words) for name, m in maps.items()}
    labels = next(iter(shown.values())).tokens[0].shown()
    if any(one.tokens[0].shown() != labels for one in shown.values()):
        raise InputError(
            "The maps are of different sentences: plot_methods compares methods on one sentence "
            "(difference() aligns two)."
        )
    stack = np.stack(
        [_values(one, "input")[layer_index(layer, one.layer_numbers)] for one in shown.values()]
    )
    numbers = {one.layer_numbers[layer_index(layer, one.layer_numbers)] for one in shown.values()}
    where = (
        in_words(numbers.pop(), "input")
        if len(numbers) == 1
        else f"layer {layer} of each (-1 is the last), from the input"
    )
    stack = stack / np.maximum(stack.max(axis=(1, 2), keepdims=True), 1e-30)
    values, labels, said = thinned(stack, labels)
    return _panels(
        values, list(shown), labels, f"{where}, each divided by its largest value{said}", cmap, 1.0
    )


def _panels(
    values: Any, names: Sequence[str], labels: Sequence[str], title: str, cmap: Any, top: float
) -> Any:
    cols = min(3 if len(labels) > 12 else 4, len(names))
    rows = -(-len(names) // cols)
    edge = side(len(labels), 2.2, 4.2)
    figure, axes = new_figure(cols * (edge + 0.4) + 0.8, rows * (edge + 0.7) + 0.5, rows, cols)
    image = None
    for k, panel in enumerate(axes.flat):
        if k >= len(names):
            panel.set_axis_off()
            continue
        left, below = (labels if k % cols == 0 else []), (labels if k >= len(names) - cols else [])
        image = draw(panel, values[k], left, below, colour_map(cmap), top, 0.0, (edge, edge))
        titled(panel, names[k], 9)
    figure.suptitle(drawable(title), fontsize=10, fontfamily=fonts())
    figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01).ax.tick_params(labelsize=7)
    return figure


def plot_difference(
    d: MapDifference, layer: int = -1, scope: str = "input", cmap: Any = None
) -> Any:
    """Signed: blue where the second map has more, orange where it has less."""
    pyplot()
    held = d.of_scope(scope)[layer_index(layer, d.layer_numbers)]
    values, labels, said = thinned(
        np.nan_to_num(held.detach().cpu().double().numpy()), d.tokens.shown()
    )
    edge, top = side(len(labels)), float(np.abs(values).max()) or 1.0
    figure, axes = new_figure(edge + 2.0, edge + 1.2)
    image = draw(
        axes[0, 0], values, labels, labels, colour_map(cmap, signed=True), top, -top, (edge, edge)
    )
    titled(axes[0, 0], f"{d.title}\n{d.where(layer, scope)}{said}")
    figure.colorbar(image, ax=axes[0, 0], fraction=0.045, pad=0.02).ax.tick_params(labelsize=7)
    return figure


def plot_attribution(a: Attribution, example: int = 0, words: bool = True, cmap: Any = None) -> Any:
    """One bar per token."""
    pyplot()
    one = a[example].words() if words else a[example]
    values = np.nan_to_num(one.scores[0].detach().cpu().double().numpy())
    if not len(values):
        raise InputError("This attribution is empty: there is nothing to draw.")
    values, labels, said = thinned(values, one.tokens[0].shown())
    wide = side(len(labels), 3.5)
    figure, axes = new_figure(wide + 0.8, 2.6)
    top = float(np.abs(values).max()) or 1.0
    shades = colour_map(cmap)(0.35 + 0.6 * np.abs(values) / top)
    axes[0, 0].bar(range(len(values)), values, color=shades)
    label_axis(axes[0, 0].xaxis, labels, wide, False)
    titled(axes[0, 0], f"{a.method}: {a.target}{row_place(a.meta)}{said}")
    axes[0, 0].tick_params(axis="y", labelsize=7)
    return figure
