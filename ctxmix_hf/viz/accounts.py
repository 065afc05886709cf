"""A ledger to look at: coloured sentence, waterfall down to the value, layers by tokens, and the
flow from input to output.

The pictures are SVG, the same in a notebook, in a file and on the page; a pointer over anything
drawn gives its number, as do a tap and the arrow keys (`js/marks.js`).
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from torch import Tensor

from ctxmix_hf.results.ledgers import Ledger
from ctxmix_hf.viz.canvas import aloud
from ctxmix_hf.viz.colours import NEGATIVE, NEUTRAL, POSITIVE, ground, ink, shade, tint
from ctxmix_hf.viz.figures import colour_map, drawable, fonts, label_axis, new_figure
from ctxmix_hf.viz.payload import finite, visible
from ctxmix_hf.viz.terminal import colour_wanted, fit, paint, width_of

SHOWN = 10  # bars of a waterfall before the rest is one bar
LINKS = 60  # lines of a flow graph
PATHS = 6  # as many paths from the input to the output fit always, however deep the model
TWO_WIDTHS = ".cmx-narrow{display:none}@media(max-width:560px){.cmx-broad{display:none}.cmx-narrow{display:block}}"
STYLE = (
    "<style>.cmx-ledger{font:14px/1.5 system-ui,sans-serif;max-width:980px}.cmx-ledger "
    "h2{margin:14px 0 4px;font-size:13px}"
    ".cmx-ledger .chip{padding:1px 5px;border-radius:4px}.cmx-ledger p{margin:4px 0}.cmx-ledger "
    "svg{display:block;height:auto}.cmx-wide{overflow-x:auto}"
    ".cmx-ledger svg text{font:11px system-ui,sans-serif;fill:currentColor}"
    f"{TWO_WIDTHS}</style>"
)


def framed(name: str, width: float, height: float, body: str) -> str:
    """A drawing at its own size; where there is less room it shrinks a little, and then scrolls: never too
    small to read, never larger than its letters were meant.
    """
    size = f"width:100%;max-width:{width:.0f}px;min-width:{0.85 * width:.0f}px"
    return (
        f"<div class='cmx-wide' tabindex='0' role='group' aria-label='{name}, arrow keys tell its numbers'>"
        f"<svg role='img' aria-label='{name}' viewBox='0 0 {width:.0f} {height:.0f}' style='{size}'>"
        f"{body}</svg></div>"
    )


def fitted(name: str, drawn: Callable[[bool], tuple[float, float, str]]) -> str:
    """A drawing for a page's width, and one for a phone's: the style shows the one that fits. `drawn` is
    asked whether it is to be narrow, and says width, height and what is in it.
    """
    broad, narrow = (framed(name, *drawn(is_narrow)) for is_narrow in (False, True))
    return f"<div class='cmx-broad'>{broad}</div><div class='cmx-narrow'>{narrow}</div>"


def two_sided(value: float, top: float) -> str:
    """A cell's fill: blue adds, orange takes away, and nothing is the page's own ground."""
    colour, alpha = tint(value, top)
    return f"fill='{colour}' fill-opacity='{alpha:.3f}'"


def legend(top: float, what: str = "") -> str:
    """From the largest that takes away, through nothing, to the largest that adds."""
    bar = (
        "display:inline-block;width:140px;height:9px;margin:0 6px;border:1px solid #8a8f98;"
        f"background:linear-gradient(90deg,{NEGATIVE},transparent,{POSITIVE})"
    )
    return (
        f"<p class='cmx-legend' style='font-size:12px'>{what}{-top:.2g}<span style='{bar}'></span>"
        f"{top:+.2g}</p>"
    )


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
        f"{STYLE}<div class='cmx-ledger'><p><b>{escape(headline(one))}</b></p>"
        f"<p>{escape(one.finding())}</p>{_sentence(one)}"
        f"<h2>From the tokens and biases to the output</h2>{_waterfall(one)}"
        f"<h2>Where the contributions stand after each layer</h2>{_layers(one)}{_flow(one)}"
        f"<p style='opacity:.75'>{escape(balance(one))}</p></div><script>{aloud()}</script>"
    )


def ledger_page(l: Ledger, example: int = 0, title: str = "") -> str:
    """One file that opens by double click."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
        "content='width=device-width,initial-scale=1'>"
        f"<title>{escape(title or 'ctxmix: ' + headline(l[example]))}</title>"
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
        edge = "outline:1px dashed #888;margin-left:8px;" if label == "biases" else ""
        chips.append(
            f"<span class='chip' title='{value:+.4g}' style='{edge}background:{ground(value, top)}'>"
            f"{escape(label)}</span>"
        )
    return (
        "<div class='cmx-words' tabindex='0' role='group' dir='auto' style='line-height:2.1' "
        f"aria-label='words and biases, arrow keys tell their numbers'>{' '.join(chips)}</div>"
    )


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
    names = [name if len(name) <= 28 else f"{name[:10]}…{name[-17:]}" for name, _ in bars]

    def drawn(narrow: bool) -> tuple[float, float, str]:
        """Names beside their bars; where that is too wide, name and number above each bar."""
        row, width = (34, 328.0) if narrow else (20, 460.0)
        left = 8.0 if narrow else 16 + 6.2 * max(map(width_of, [*names, "output"]))
        x = lambda v: left + width * (v - low) / ((high - low) or 1.0)
        parts, at = [], 0.0
        for k, (name, value) in enumerate([*bars, ("output", total)]):
            begin, end = (0.0, total) if k == len(bars) else (at, at + value)
            colour = NEUTRAL if k == len(bars) else POSITIVE if value >= 0 else NEGATIVE
            y = 4 + k * row
            from_, to = sorted((x(begin), x(end)))
            said = escape([*names, "output"][k])
            text = (
                f"<text x='{left:.1f}' y='{y + 11}'>{said}</text>"
                f"<text x='{left + width:.1f}' y='{y + 11}' text-anchor='end'>{value:+.3g}</text>"
                if narrow
                else f"<text x='{left - 8}' y='{y + 13}' text-anchor='end'>{said}</text>"
                f"<text x='{to + 5:.1f}' y='{y + 13}'>{value:+.3g}</text>"
            )
            parts.append(
                f"<g><title>{escape(name)}: {value:+.4g}</title>{text}"
                f"<rect x='{from_:.1f}' y='{y + (16 if narrow else 2)}' height='{row - 20 if narrow else row - 5}' "
                f"rx='2' width='{max(1.0, to - from_):.1f}' fill='{colour}'/></g>"
            )
            at = end
        height = 8 + row * (len(bars) + 1)
        zero = (
            f"<line x1='{x(0.0):.1f}' x2='{x(0.0):.1f}' y1='0' y2='{height}' stroke='currentColor' "
            "stroke-opacity='.35'/>"
        )
        return left + width + (8 if narrow else 70), height, zero + "".join(parts)

    return fitted("waterfall", drawn)


def _columns(labels: list[str], narrow: bool = False) -> tuple[float, float]:
    """(left margin, width of a token's column)."""
    if narrow:
        return 52.0, max(11.0, min(60.0, 284.0 / max(1, len(labels))))
    return 70.0, min(90.0, 860.0 / max(1, len(labels)))


def _layers(l: Ledger) -> str:
    rows, labels = finite(l.rows[0]), _labels(l)
    top = float(rows.abs().max()) or 1.0
    tall = 18
    height = 8 + tall * len(rows)

    def drawn(narrow: bool) -> tuple[float, float, str]:
        left, wide = _columns(labels, narrow)
        cells = []
        for k, row in enumerate(rows.tolist()):
            name = "input" if k == 0 else f"layer {k}"
            y = 4 + (len(rows) - 1 - k) * tall
            cells.append(f"<text x='{left - 6}' y='{y + 13}' text-anchor='end'>{name}</text>")
            cells += [
                f"<rect x='{left + j * wide:.1f}' y='{y}' width='{wide - 1:.1f}' height='{tall - 1}' "
                f"{two_sided(v, top)}>"
                f"<title>{escape(labels[j])} at {name}: {v:+.4g}</title></rect>"
                for j, v in enumerate(row)
            ]
        body = "".join(cells) + _under(labels, left, wide, height)
        return left + wide * len(labels) + 10, height + 60, body

    return fitted("layers by tokens", drawn) + legend(top)


def _under(labels: list[str], left: float, wide: float, y: float) -> str:
    every = max(1, round(13 / wide + 0.49)) if wide < 13 else 1
    return "".join(
        f"<text transform='translate({left + (j + 0.6) * wide:.1f} {y + 8}) rotate(-40)' "
        f"text-anchor='end'>{escape(name[:14])}</text>"
        for j, name in enumerate(labels)
        if j % every == 0
    )


BIASES, OUTPUT = -1, -2  # as source and as target of a link
Link = tuple[int, int, int, float]  # layer from 0, source, target, contribution


def flows(l: Ledger) -> list[Link]:
    """`(layer from 0, source, target, contribution)`, from the input to the output: attention between
    tokens by the edges, what stays in each token's own stream, what biases put in (source `BIASES`),
    and above the last layer what every token and the head's biases give to the output (target `OUTPUT`).

    What leaves a token of e^l is what the ledger counts there, and so is what arrives:
    `rows[l, j] = stays + sum of its edges to others`, `rows[l + 1, i] = stays + edges from others + biases`.
    """
    edges, rows = finite(l.edges[0]), finite(l.rows[0])
    depth = edges.shape[0]
    found = []
    for layer in range(depth):
        across = edges[layer].clone()
        across.fill_diagonal_(0)
        stays = rows[layer] - across.sum(dim=0)
        biases = rows[layer + 1] - stays - across.sum(dim=1)
        found += [(layer, j, j, float(stays[j])) for j in range(len(stays))]
        found += [(layer, j, i, float(across[i, j])) for i, j in across.nonzero().tolist()]
        found += [(layer, BIASES, i, float(biases[i])) for i in range(len(biases))]
    found += [(depth, j, OUTPUT, float(value)) for j, value in enumerate(rows[depth])]
    return [*found, (depth, BIASES, OUTPUT, float(l.value[0]) - float(rows[depth].sum()))]


def _widest(links: list[Link], inward: bool) -> dict[tuple[int, int], tuple[float, Link | None]]:
    """By point (its layer and token): how wide the widest way is that leads there from the input or a
    bias (from there to the output, unless `inward`), which is as wide as its narrowest link, and the
    link at this end of it.
    """
    found: dict[tuple[int, int], tuple[float, Link | None]] = {}
    for link in sorted(links, key=lambda f: f[0] if inward else -f[0]):
        layer, source, target, value = link
        below, above = (layer, source), (layer + 1, target)
        here, before = (above, below) if inward else (below, above)
        ends = (layer == 0 or source == BIASES) if inward else target == OUTPUT
        width = min(abs(value), float("inf") if ends else found.get(before, (0.0, None))[0])
        if width > found.get(here, (0.0, None))[0]:
            found[here] = (width, link)
    return found


def drawn_flows(l: Ledger) -> tuple[list[Link], str]:
    """Whole paths from the input (or a bias) to the output, the widest first, and how much of everything
    their links are. A path is as wide as its narrowest link. Half of the room is for those from the input.
    """
    every = flows(l)
    depth = max(f[0] for f in every)
    start, end = _widest(every, True), _widest(every, False)

    def path(link: Link) -> list[Link]:
        """The widest one through this link; nothing where the link leads nowhere."""
        whole, (layer, source, target, _) = [link], link
        while layer > 0 and source != BIASES:
            before = start.get((layer, source), (0.0, None))[1]
            if before is None:
                return []
            whole.insert(0, before)
            layer, source = before[:2]
        layer, *_ = link
        while target != OUTPUT:
            after = end.get((layer + 1, target), (0.0, None))[1]
            if after is None:
                return []
            whole.append(after)
            layer, _, target, _ = after
        return whole

    paths = [whole for link in every if link[3] and (whole := path(link))]
    paths.sort(key=lambda whole: -min(abs(f[3]) for f in whole))
    kept: dict[Link, None] = {}
    room = max(LINKS, PATHS * (depth + 1))
    from_input = [whole for whole in paths if whole[0][1] != BIASES]
    for some, most in ((from_input, room // 2), (paths, room)):
        for whole in some:
            more = [f for f in whole if f not in kept]
            if len(kept) + len(more) > most:
                break
            kept |= dict.fromkeys(more)
    share = sum(abs(f[3]) for f in kept) / (sum(abs(f[3]) for f in every) or 1.0)
    said = (
        f"Showing {share:.0%} of what flows to {float(l.value[0]):+.3g}: the widest whole paths from "
        f"input to output ({len(kept)} of {len(every)} links)."
    )
    return sorted(kept, key=lambda f: abs(f[3])), said


def _flow(l: Ledger) -> str:
    if l.edge_source is None:
        return ""
    (kept, said), labels = drawn_flows(l), _labels(l)
    depth, top = l.rows.shape[1] - 1, max((abs(f[3]) for f in kept), default=0.0) or 1.0
    tall = 44
    count, names = len(labels), {BIASES: "biases", OUTPUT: "the output"} | dict(enumerate(labels))
    column: dict[int, float] = {BIASES: count, OUTPUT: (count - 1) / 2}
    y = lambda k: 10 + (depth + 1 - k) * tall
    sides = ["input", *(f"layer {k}" for k in range(1, depth + 1)), "output"]
    height = 20 + (depth + 1) * tall

    def drawn(narrow: bool) -> tuple[float, float, str]:
        left, wide = _columns([*labels, "biases"], narrow)
        x = lambda j: left + (column.get(j, float(j)) + 0.5) * wide
        paths = []
        for layer, j, i, value in kept:
            what = f"stays in {names[j]}" if i == j else f"{names[j]} to {names[i]}"
            where = f"layer {layer + 1}, " if layer < depth else ""
            paths.append(
                f"<path fill='none' d='M{x(j):.1f} {y(layer)} C{x(j):.1f} {y(layer) - 18} "
                f"{x(i):.1f} {y(layer + 1) + 18} {x(i):.1f} {y(layer + 1)}' "
                f"stroke='{POSITIVE if value >= 0 else NEGATIVE}' stroke-opacity='.75' "
                f"stroke-width='{max(0.6, 9 * abs(value) / top):.1f}'>"
                f"<title>{where}{escape(what)}: {value:+.4g}</title></path>"
            )
        named = "".join(
            f"<text x='{left - 6}' y='{y(k) + 4}' text-anchor='end'>{name}</text>"
            for k, name in enumerate(sides)
        )
        dots = "".join(
            f"<circle cx='{x(j):.1f}' cy='{y(k)}' r='2' fill='currentColor' fill-opacity='.4'/>"
            for k in range(depth + 1)
            for j in (*range(count), BIASES)
        )
        out = f"<circle cx='{x(OUTPUT):.1f}' cy='{y(depth + 1)}' r='4' fill='{NEUTRAL}'/>"
        under = _under([*labels, "biases"], left, wide, height)
        return (
            left + wide * (count + 1) + 10,
            height + 60,
            "".join([*paths, dots, out, named, under]),
        )

    return (
        "<h2>The flow of contributions, from the input (below) to the output</h2>"
        f"{fitted('flow of contributions', drawn)}"
        f"<p>{said} Blue adds, orange takes away; what leaves a point is what arrives there.</p>"
    )


# ---- figure
# -----------------------------------------------------------------------------------------------------------
def plot_ledger(l: Ledger, example: int = 0, words: bool = True, top: int = SHOWN) -> Any:
    """The sentence, the waterfall, the layers by tokens, and the flow where the ledger has its edges."""
    one = l[example].words() if words else l[example]
    bars, depth = steps(one, top), one.rows.shape[1]
    chips = _lines_of_chips(one)
    heights = [0.2 + 0.24 * len(chips), 0.5 + 0.26 * (len(bars) + 1), 1.2 + 0.24 * depth]
    if one.edge_source is not None:
        heights.append(1.2 + 0.42 * depth)
    figure, axes = new_figure(8.0, sum(heights), len(heights), 1, heights=heights)
    _draw_sentence(axes[0][0], one, chips)
    _draw_waterfall(axes[1][0], one, bars)
    shown = _draw_layers(axes[2][0], one)
    figure.colorbar(shown, ax=axes[2][0], shrink=0.8)
    if one.edge_source is not None:
        _draw_flow(axes[3][0], one)
    return figure


def _lines_of_chips(l: Ledger, room: int = 64) -> list[list[tuple[str, float]]]:
    """The sentence and its biases, as many to a line as fit."""
    lines: list[list[tuple[str, float]]] = [[]]
    used = 0
    every = [*zip(_labels(l), finite(l.scores[0]).tolist(), strict=True)]
    for label, value in [*every, ("biases", float(l.bias[0]))]:
        name = drawable(label[:40])
        if used and used + width_of(name) + 2 > room:
            lines.append([])
            used = 0
        lines[-1].append((name, value))
        used += width_of(name) + 2
    return lines


def _draw_sentence(axes: Any, l: Ledger, lines: list[list[tuple[str, float]]]) -> None:
    top = max(abs(value) for line in lines for _, value in line) or 1.0
    axes.set_axis_off()
    axes.set_xlim(0, 66)
    axes.set_ylim(len(lines), -1)
    axes.set_title(drawable(headline(l)), fontsize=9)
    for k, line in enumerate(lines):
        at = 1.0
        for n, (name, value) in enumerate(line):
            colour = shade(0.5 + 0.5 * value / top, "signed")
            bias = k == len(lines) - 1 and n == len(line) - 1
            box = {
                "facecolor": [c / 255 for c in colour],
                "edgecolor": "0.5" if bias else "none",
                "linestyle": "--" if bias else "-",
                "linewidth": 0.7,
                "boxstyle": "round,pad=0.18",
            }
            axes.text(
                at,
                k,
                name,
                color=[c / 255 for c in ink(colour)],
                bbox=box,
                fontsize=7.5,
                fontfamily=fonts(),
                va="center",
            )
            at += width_of(name) + 1.6


def _draw_waterfall(axes: Any, l: Ledger, bars: list[tuple[str, float]]) -> None:
    at = 0.0
    for k, (_, value) in enumerate(bars):
        axes.barh(k, value, left=at, color=POSITIVE if value >= 0 else NEGATIVE)
        axes.text(max(at, at + value), k, f" {value:+.3g}", va="center", fontsize=7)
        at += value
    total = float(l.value[0])
    axes.barh(len(bars), total, color=NEUTRAL)
    axes.text(max(0.0, total), len(bars), f" {total:+.3g}", va="center", fontsize=7)
    axes.set_yticks(
        range(len(bars) + 1),
        [drawable(name[:40]) for name, _ in bars] + ["output"],
        fontsize=7.5,
        fontfamily=fonts(),
    )
    axes.invert_yaxis()
    axes.axvline(0.0, color="0.5", linewidth=0.8)
    axes.margins(x=0.12)


def _draw_layers(axes: Any, l: Ledger) -> Any:
    values: Tensor = finite(l.rows[0])
    size = float(values.abs().max()) or 1.0
    shown = axes.imshow(
        values.numpy(),
        aspect="auto",
        origin="lower",
        cmap=colour_map(None, signed=True),
        vmin=-size,
        vmax=size,
        interpolation="nearest",
    )
    axes.set_yticks(
        range(values.shape[0]),
        ["input", *(f"layer {k}" for k in range(1, values.shape[0]))],
        fontsize=7,
    )
    label_axis(axes.xaxis, _labels(l), 6.0, vertical=False)
    return shown


def _draw_flow(axes: Any, l: Ledger) -> None:
    (kept, said), labels = drawn_flows(l), [*_labels(l), "biases"]
    depth, count = l.rows.shape[1] - 1, len(labels) - 1
    top = max((abs(f[3]) for f in kept), default=0.0) or 1.0
    place = {BIASES: float(count), OUTPUT: (count - 1) / 2}
    for layer, j, i, value in kept:
        begin, end = place.get(j, float(j)), place.get(i, float(i))
        bend = [(begin, layer + 0.0), (begin, layer + 0.4), (end, layer + 0.6), (end, layer + 1.0)]
        axes.plot(
            *_curve(bend),
            color=POSITIVE if value >= 0 else NEGATIVE,
            alpha=0.75,
            linewidth=max(0.4, 6 * abs(value) / top),
            solid_capstyle="round",
        )
    axes.scatter([place[OUTPUT]], [depth + 1], s=18, color=NEUTRAL, zorder=3)
    axes.set_xlim(-0.6, count + 0.6)
    axes.set_yticks(
        range(depth + 2),
        ["input", *(f"layer {k}" for k in range(1, depth + 1)), "output"],
        fontsize=7,
    )
    label_axis(axes.xaxis, labels, 6.0, vertical=False)
    axes.set_title(drawable(said), fontsize=8)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)


def _curve(points: list[tuple[float, float]], steps: int = 16) -> tuple[list[float], list[float]]:
    """A Bézier curve of four points."""
    weights = [
        ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
        for t in (k / steps for k in range(steps + 1))
    ]
    return tuple(  # type: ignore[return-value]
        [sum(w * p[axis] for w, p in zip(row, points, strict=True)) for row in weights]
        for axis in (0, 1)
    )
