"""Maps and attributions in a terminal: small heatmaps in 24-bit colour, or in shades of characters without colour."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Callable

from torch import Tensor

from ctxmix_hf.counting import layer_index
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.maps import ContextMixingMap, heading
from ctxmix_hf.viz.colours import RGB, ink, shade, signed_shades
from ctxmix_hf.viz.payload import estimate_note, finite, row_place, visible

LABEL = 12
_BLOCKS = " .:-=+*#%@"


def colour_wanted() -> bool:
    """NO_COLOR switches colours off, FORCE_COLOR on; otherwise a terminal (or a notebook) decides."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty() or "ipykernel" in sys.modules


def width_of(text: str) -> int:
    """Columns a text takes: wide East Asian characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def fit(text: str, width: int) -> str:
    text, cut = (
        visible(text[: 8 * width]),
        len(text) > 8 * width,
    )  # more characters never fit, and are never looked at
    if cut or width_of(text) > width:
        while width_of(text) > width - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (width - width_of(text))


def paint(text: str, colour: RGB) -> str:
    r, g, b = ink(colour)
    return f"\x1b[48;2;{colour[0]};{colour[1]};{colour[2]}m\x1b[38;2;{r};{g};{b}m{text}\x1b[0m"


def map_text(
    m: ContextMixingMap,
    colour: bool | None = None,
    *,
    layer: int = -1,
    scope: str = "input",
    unit: str = "word",
) -> str:
    """One heatmap per example: targets are rows, sources columns; words, from the input to the last layer."""
    if len(m) == 0 or m.size == 0 or m.depth == 0 or not bool(m.mask.any()):
        return f"ContextMixingMap({m.method}, empty)"
    colour = colour_wanted() if colour is None else colour
    index = layer_index(layer, m.layer_numbers)
    shown = [m[b].words() if unit == "word" else m[b] for b in range(min(len(m), 3))]
    examples = [
        "\n".join(
            filter(
                None, [_one(one, one.of_scope(scope)[0, index], colour), estimate_note(m.meta, b)]
            )
        )
        for b, one in enumerate(shown)
    ]
    more = f"\n... and {len(m) - 3} more examples" if len(m) > 3 else ""
    where = m.where(layer, scope, m.meta.get("depth", m.depth))
    about = f"{heading(m)} · {where} · rows: targets, columns: sources"
    return about + "\n" + "\n\n".join(examples) + more


def _one(m: ContextMixingMap, matrix: Tensor, colour: bool) -> str:
    values = finite(matrix)
    room = max(8, (shutil.get_terminal_size((100, 24)).columns - LABEL - 1) // 3)
    kept = min(m.size, room, 40)
    top = float(values[:kept, :kept].max()) or 1.0
    labels = m.tokens[0].shown()
    lines = [" " * (LABEL + 1) + "".join(f"{j % 100:>3}" for j in range(kept))]
    for i in range(kept):
        cells = "".join(_cell(float(values[i, j]), top, colour) for j in range(kept))
        lines.append(f"{fit(labels[i], LABEL - 3)}{i:>3} {cells}")
    if kept < m.size:
        lines.append(f"... the first {kept} of {m.size} tokens (m.show() or m.plot() for all)")
    return "\n".join([*lines, f"{'':{LABEL + 1}}0 {scale_bar(colour)} {top:.3g}"])


def _cell(value: float, top: float, colour: bool) -> str:
    share = value / top
    if colour:
        return paint(f"{min(99, round(100 * share)):>3}" if share >= 0.005 else "   ", shade(share))
    return 2 * _BLOCKS[min(9, int(10 * max(0.0, share)))] + " "


def scale_bar(colour: bool) -> str:
    return "".join(paint(" ", shade(k / 19)) for k in range(20)) if colour else _BLOCKS


def attribution_text(a: Attribution, colour: bool | None = None) -> str:
    """Coloured tokens, and below them the strongest ones in numbers."""
    colour = colour_wanted() if colour is None else colour
    parts = []
    for b in range(min(len(a), 3)):
        one = a[b]
        values, labels = (
            finite(one.scores[0]).tolist(),
            [visible(piece) for piece in one.tokens[0].shown()],
        )
        if not values:
            parts.append("(no tokens)")
            continue
        line = _coloured(labels, values) if colour else " ".join(labels)
        order = sorted(range(len(values)), key=lambda i: -abs(values[i]))[:8]
        width = min(40, max(width_of(labels[i][:41]) for i in order))
        bars = [
            _bar(fit(labels[i], width), i, values[i], abs(values[order[0]]) or 1.0) for i in order
        ]
        parts.append("\n".join(filter(None, [line, *bars, estimate_note(a.meta, b)])))
    more = f"\n... and {len(a) - 3} more examples" if len(a) > 3 else ""
    return f"{a.method} · target {a.target}{row_place(a.meta, ' · ')}\n" + "\n\n".join(parts) + more


def _coloured(labels: list[str], values: list[float]) -> str:
    colours: Callable[[list[float]], list[RGB]] = signed_shades
    return " ".join(
        paint(label, shade_) for label, shade_ in zip(labels, colours(values), strict=True)
    )


def _bar(label: str, place: int, value: float, top: float) -> str:
    number = f"{value:.4f}" if abs(value) < 1e5 else f"{value:.4g}"
    return f"  {label} {place:>4} {number:>10} {'█' * round(24 * (abs(value) / top))}"
