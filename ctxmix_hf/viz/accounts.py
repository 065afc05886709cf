"""A ledger to look at: coloured sentence, waterfall down to the value, layers by tokens, and the
flow from input to output.

The pictures are SVG without scripts, so that a notebook, a file and the page show the same; a
pointer over anything drawn gives its number.
"""

from __future__ import annotations

from html import escape
from typing import Any

from torch import Tensor

from ctxmix_hf.results.ledgers import Ledger
from ctxmix_hf.viz.colours import css, ink, shade
from ctxmix_hf.viz.figures import colour_map, drawable, fonts, label_axis, new_figure
from ctxmix_hf.viz.payload import finite, visible
from ctxmix_hf.viz.terminal import colour_wanted, fit, paint, width_of

POSITIVE, NEGATIVE, NEUTRAL = "#2f7fbc", "#d9781e", "#8a8f98"
SHOWN = 10  # bars of a waterfall before the rest is one bar
LINKS = 60  # lines of a flow graph
STYLE = (
    "<style>.cmx-ledger{font:14px/1.5 system-ui,sans-serif;max-width:980px}.cmx-ledger "
    "h2{margin:14px 0 4px;font-size:13px}"
    ".cmx-ledger .chip{padding:1px 5px;border-radius:4px}.cmx-ledger p{margin:4px 0}.cmx-ledger "
    "svg{max-width:100%;height:auto}"
    ".cmx-ledger svg text{font:11px system-ui,sans-serif;fill:currentColor}</style>"
)


def two_sided(value: float, top: float) -> str:
    return css(shade(0.5 + 0.5 * value / (top or 1.0), "signed"))


def headline(l: Ledger) -> str:
    return f"ledger · {l.target} = {float(l.value[0]):+.4g}"


def balance(l: Ledger) -> str:
    parts = f"tokens {float(l.scores.sum()):+.4g} and biases {float(l.bias[0]):+.4g}"
    return f"{parts} make {float(l.total[0]):+.4g} (off by {float(l.gap[0]):.0e})"


# ---- text
# -------------------------------------------------------------------------------------------------------------
def ledger_text(l: Ledger, colour: bool | None = None) -> str:
    """The sentence, the largest contributions, the largest lines, and the balance; words, first three examples."""
    colour = colour_wanted() if colour is None else colour
    parts = []
    for b in range(min(len(l), 3)):
        one = l[b].words()
        labels, values = (
            [visible(piece) for piece in one.tokens[0].shown()],
            finite(one.scores[0]).tolist(),
        )
        top = max((abs(v) for v in values), default=0.0) or 1.0
        line = (
            " ".join(
                paint(t, shade(0.5 + 0.5 * v / top, "signed"))
                for t, v in zip(labels, values, strict=True)
            )
            if colour
            else " ".join(labels)
        )
        order = sorted(range(len(values)), key=lambda i: -abs(values[i]))[:8]
        biggest = [(labels[i], values[i]) for i in order]
        lines = [*one.top_lines(4), ("all biases", float(one.bias[0]))] if one.lines else []
        width = min(44, max((width_of(name) for name, _ in [*biggest, *lines]), default=1))
        shown = [
            f"  {fit(name, width)} {value:>+10.4f} {'█' * round(24 * abs(value) / top)}"
            for name, value in biggest
        ]
        shown += (
            [
                "  " + "-" * (width + 11),
                *(f"  {fit(name, width)} {value:>+10.4f}" for name, value in lines),
            ]
            if lines
            else []
        )
        parts.append("\n".join([headline(one), line, *shown, f"  {balance(one)}"]))
    more = f"\n... and {len(l) - 3} more examples" if len(l) > 3 else ""
    return "\n\n".join(parts) + more


# ---- HTML
# -------------------------------------------------------------------------------------------------------------
def ledger_fragment(l: Ledger, example: int = 0) -> str:
    """All four pictures of one example."""
    one = l[example].words()
    return (
        f"{STYLE}<div class='cmx-ledger'><p><b>{escape(headline(one))}</b></p><p>{escape(one.finding())}</p>{_sentence(one)}"  # noqa: E501
        f"<h2>From the tokens and biases to the output</h2>{_waterfall(one)}"
        f"<h2>Where the contributions stand after each layer</h2>{_layers(one)}{_flow(one)}"
        f"<p style='opacity:.75'>{escape(balance(one))}</p></div>"
    )


def ledger_page(l: Ledger, example: int = 0) -> str:
    """One file that opens by double click."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
        "content='width=device-width,initial-scale=1'>"
        f"<title>{escape('ctxmix: ' + headline(l[example]))}</title>"
        "<style>:root{color-scheme:light dark}body{margin:16px}</style></head>"
        f"<body>{ledger_fragment(l, example)}</body></html>"
    )


def _labels(l: Ledger) -> list[str]:
    return [visible(piece) for piece in l.tokens[0].shown()]


def _sentence(l: Ledger) -> str:
    values = finite(l.scores[0]).tolist()
    top = max([abs(v) for v in values] + [abs(float(l.bias[0]))]) or 1.0
    chips = []
    for label, value in [*zip(_labels(l), values, strict=True), ("biases", float(l.bias[0]))]:
        colour = shade(0.5 + 0.5 * value / top, "signed")
        edge = "outline:1px dashed #888;margin-left:8px;" if label == "biases" else ""
        chips.append(
            f"<span class='chip' title='{value:+.4g}' style='{edge}background:{css(colour)};"
            f"color:{css(ink(colour))}'>{escape(label)}</span>"
        )
    return f"<p dir='auto' style='line-height:2.1'>{' '.join(chips)}</p>"


def steps(l: Ledger, most: int = SHOWN) -> list[tuple[str, float]]:
    """The largest tokens and lines in falling order, and the rest of each kind as one step: they sum to the value."""
    tokens = list(zip(_labels(l), finite(l.scores[0]).tolist(), strict=True))
    lines = l.top_lines(len(l.lines))
    every = sorted(
        [(name, value, "tokens") for name, value in tokens]
        + [(name, value, "biases") for name, value in lines],
        key=lambda s: -abs(s[1]),
    )
    kept = every[:most]
    rest = [
        (
            f"{sum(kind == k for _, _, k in every[most:])} other {kind}",
            sum(v for _, v, k in every[most:] if k == kind),
        )
        for kind in ("tokens", "biases")
    ]
    return [(name, value) for name, value, _ in kept] + [
        (name, value) for name, value in rest if not name.startswith("0 ")
    ]


def _waterfall(l: Ledger) -> str:
    bars = steps(l)
    total, at, points = float(l.value[0]), 0.0, [0.0]
    for _, value in bars:
        at += value
        points.append(at)
    low, high = min([*points, total, 0.0]), max([*points, total, 0.0])
    left, width, row = 290, 580, 20
    x = lambda v: left + width * (v - low) / ((high - low) or 1.0)
    drawn, at = [], 0.0
    for k, (name, value) in enumerate([*bars, ("output", total)]):
        begin, end = (0.0, total) if name == "output" and k == len(bars) else (at, at + value)
        colour = NEUTRAL if k == len(bars) else POSITIVE if value >= 0 else NEGATIVE
        y = 4 + k * row
        drawn.append(
            f"<g><title>{escape(name)}: {value:+.4g}</title><text x='{left - 8}' y='{y + 13}' "
            f"text-anchor='end'>{escape(name if len(name) <= 44 else name[:43] + '…')}</text>"
            f"<rect x='{min(x(begin), x(end)):.1f}' y='{y + 2}' height='{row - 5}' rx='2' "
            f"width='{max(1.0, abs(x(end) - x(begin))):.1f}' fill='{colour}'/>"
            f"<text x='{max(x(begin), x(end)) + 5:.1f}' y='{y + 13}'>{value:+.3g}</text></g>"
        )
        at = end
    height = 8 + row * (len(bars) + 1)
    zero = (
        f"<line x1='{x(0.0):.1f}' x2='{x(0.0):.1f}' y1='0' y2='{height}' stroke='currentColor' "
        "stroke-opacity='.35'/>"
    )
    return (
        f"<svg role='img' aria-label='waterfall' viewBox='0 0 {left + width + 70} "
        f"{height}'>{zero}{''.join(drawn)}</svg>"
    )


def _columns(labels: list[str]) -> tuple[float, float]:
    """(left margin, width of a token's column)."""
    return 70.0, min(90.0, 860.0 / max(1, len(labels)))


def _layers(l: Ledger) -> str:
    rows, labels = finite(l.rows[0]), _labels(l)
    top = float(rows.abs().max()) or 1.0
    left, wide = _columns(labels)
    tall, cells = 18, []
    for k, row in enumerate(rows.tolist()):
        name = "input" if k == 0 else f"layer {k}"
        y = 4 + (len(rows) - 1 - k) * tall
        cells.append(f"<text x='{left - 6}' y='{y + 13}' text-anchor='end'>{name}</text>")
        cells += [
            f"<rect x='{left + j * wide:.1f}' y='{y}' width='{wide - 1:.1f}' height='{tall - 1}' "
            f"fill='{two_sided(v, top)}'>"
            f"<title>{escape(labels[j])} at {name}: {v:+.4g}</title></rect>"
            for j, v in enumerate(row)
        ]
    height = 8 + tall * len(rows)
    box = f"0 0 {left + wide * len(labels) + 10:.0f} {height + 60}"
    drawn = "".join(cells) + _under(labels, left, wide, height)
    return f"<svg role='img' aria-label='layers by tokens' viewBox='{box}'>{drawn}</svg>"


def _under(labels: list[str], left: float, wide: float, y: float) -> str:
    every = max(1, round(13 / wide + 0.49)) if wide < 13 else 1
    return "".join(
        f"<text transform='translate({left + (j + 0.6) * wide:.1f} {y + 8}) rotate(-40)' "
        f"text-anchor='end'>{escape(name[:14])}</text>"
        for j, name in enumerate(labels)
        if j % every == 0
    )


def flows(l: Ledger) -> list[tuple[int, int, int, float]]:
    """`(layer from 0, source, target, contribution)`: attention between tokens by the edges, and
    what stays in each token's own stream.

    What leaves a token of e^l is what the ledger counts there: `rows[l, j] = stays + sum of its edges to others`.
    """
    edges, rows = finite(l.edges[0]), finite(l.rows[0])
    found = []
    for layer in range(edges.shape[0]):
        across = edges[layer].clone()
        across.fill_diagonal_(0)
        stays = rows[layer] - across.sum(dim=0)
        found += [(layer, j, j, float(stays[j])) for j in range(len(stays))]
        found += [(layer, j, i, float(across[i, j])) for i, j in across.nonzero().tolist()]
    return found


def _flow(l: Ledger) -> str:
    if l.edge_source is None:
        return ""
    every, labels = flows(l), _labels(l)
    kept = sorted(every, key=lambda f: -abs(f[3]))[:LINKS]
    depth, top = l.rows.shape[1] - 1, max((abs(f[3]) for f in kept), default=0.0) or 1.0
    share = sum(abs(f[3]) for f in kept) / (sum(abs(f[3]) for f in every) or 1.0)
    left, wide = _columns(labels)
    tall = 44
    x, y = (lambda j: left + (j + 0.5) * wide), (lambda k: 10 + (depth - k) * tall)
    paths = []
    for layer, j, i, value in sorted(kept, key=lambda f: abs(f[3])):
        what = f"stays in {labels[j]}" if i == j else f"{labels[j]} to {labels[i]}"
        paths.append(
            f"<path fill='none' d='M{x(j):.1f} {y(layer)} C{x(j):.1f} {y(layer) - 18} "
            f"{x(i):.1f} {y(layer + 1) + 18} {x(i):.1f} {y(layer + 1)}' "
            f"stroke='{POSITIVE if value >= 0 else NEGATIVE}' stroke-opacity='.75' "
            f"stroke-width='{max(0.6, 9 * abs(value) / top):.1f}'>"
            f"<title>layer {layer + 1}, {escape(what)}: {value:+.4g}</title></path>"
        )
    names = "".join(
        f"<text x='{left - 6}' y='{y(k) + 4}' text-anchor='end'>{'input' if k == 0 else f'layer {k}'}</text>"
        for k in range(depth + 1)
    )
    dots = "".join(
        f"<circle cx='{x(j):.1f}' cy='{y(k)}' r='2' fill='currentColor' fill-opacity='.4'/>"
        for j in range(len(labels))
        for k in range(depth + 1)
    )
    height = 20 + depth * tall
    return (
        f"<h2>The flow of contributions, from the input (below) to the output</h2>"
        "<svg role='img' aria-label='flow of contributions' viewBox='0 0 "
        f"{left + wide * len(labels) + 10:.0f} {height + 60}'>"
        f"{''.join(paths)}{dots}{names}{_under(labels, left, wide, height)}</svg>"
        f"<p>Showing {share:.0%} of what flows to {float(l.value[0]):+.3g} "
        f"({len(kept)} of {len(every)} links). Blue adds, orange takes away.</p>"
    )


# ---- figure
# -----------------------------------------------------------------------------------------------------------
def plot_ledger(l: Ledger, example: int = 0, words: bool = True, top: int = SHOWN) -> Any:
    """The waterfall and the layers by tokens."""
    one = l[example].words() if words else l[example]
    bars, labels = steps(one, top), _labels(one)
    figure, axes = new_figure(
        8.0, 1.2 + 0.26 * (len(bars) + 1) + 0.24 * one.rows.shape[1] + 1.2, 2, 1
    )
    fall, heat = axes[0][0], axes[1][0]
    at = 0.0
    for k, (_, value) in enumerate(bars):
        fall.barh(k, value, left=at, color=POSITIVE if value >= 0 else NEGATIVE)
        fall.text(max(at, at + value), k, f" {value:+.3g}", va="center", fontsize=7)
        at += value
    fall.barh(len(bars), float(one.value[0]), color=NEUTRAL)
    fall.text(
        max(0.0, float(one.value[0])),
        len(bars),
        f" {float(one.value[0]):+.3g}",
        va="center",
        fontsize=7,
    )
    fall.set_yticks(
        range(len(bars) + 1),
        [drawable(name[:40]) for name, _ in bars] + ["output"],
        fontsize=7.5,
        fontfamily=fonts(),
    )
    fall.invert_yaxis()
    fall.axvline(0.0, color="0.5", linewidth=0.8)
    fall.margins(x=0.12)
    fall.set_title(drawable(headline(one)), fontsize=9)
    values: Tensor = finite(one.rows[0])
    size = float(values.abs().max()) or 1.0
    shown = heat.imshow(
        values.numpy(),
        aspect="auto",
        origin="lower",
        cmap=colour_map(None, signed=True),
        vmin=-size,
        vmax=size,
        interpolation="nearest",
    )
    heat.set_yticks(
        range(values.shape[0]),
        ["input", *(f"layer {k}" for k in range(1, values.shape[0]))],
        fontsize=7,
    )
    label_axis(heat.xaxis, labels, 6.0, vertical=False)
    figure.colorbar(shown, ax=heat, shrink=0.8)
    return figure
