"""HTML around the one canvas heatmap: notebook output, standalone page, coloured text. Nothing is fetched."""

from __future__ import annotations

import itertools
import json
import os
import re
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.text.targets import first_shown
from ctxmix_hf.viz.colours import css, ground, ink, signed_shades
from ctxmix_hf.viz.names import people_name
from ctxmix_hf.viz.payload import finite, payload, row_place, visible

_numbers = itertools.count()
_IMPORT = re.compile(r'^import\s*\{[^}]*\}\s*from\s*"\./([\w.]+)";\n', re.MULTILINE)
_ASIDE = re.compile(r"(?<=[;,{}()\]]) // [^\n\"'`]*$", re.MULTILINE)  # a comment beside code
_OPEN = re.compile(r"(?<=[,(\[{])\n")  # a line that goes on
_UNREAD = re.compile(r"^[ \t]*(?:/\*.*?\*/|//[^\n]*)?[ \t]*\n|^[ \t]+", re.MULTILINE | re.DOTALL)


@cache
def asset(name: str) -> str:
    return (resources.files("ctxmix_hf") / "viz" / name).read_text(encoding="utf-8")


def bundle(folder: Any, entry: str, unless: str) -> str:
    """ES modules as one script, each after those it imports: files to read, lint and test, one script where
    nothing may be fetched. Comments, indentation and breaks within a statement stay behind.

    Modules share one scope here: they import names in braces, without renaming, and no two of them
    declare the same name (node refuses the script if they do: `tests/viz/test_scripts.py`).
    """
    done: dict[str, str] = {}

    def add(name: str) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        done[name] = ""
        for other in _IMPORT.findall(text):
            if other not in done:
                add(other)
        made = re.sub(r"^export ", "", _IMPORT.sub("", text), flags=re.MULTILINE)
        done[name] = done.pop(name) + _OPEN.sub("", _UNREAD.sub("", _ASIDE.sub("", made)))

    add(entry)
    return f"(() => {{\nif ({unless}) return;\n{''.join(done.values())}}})();"


@cache
def script() -> str:
    """The widget: defines `window.ctxmix` unless a page has it already, at least as new."""
    newer = "window.ctxmix && window.ctxmix.version >= 3"
    return bundle(resources.files("ctxmix_hf") / "viz" / "js", "main.js", newer)


@cache
def aloud() -> str:
    """What tells the numbers of drawings that are no widget to a finger and to the keyboard."""
    return bundle(resources.files("ctxmix_hf") / "viz" / "js", "alone.js", "window.ctxmixMarks")


def style() -> str:
    return asset("canvas.css")


def as_json(value: Any) -> str:
    """JSON that can stand inside a <script> element, whatever the text says."""
    made = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return made.translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def fragment(data: dict[str, Any], fallback: str = "") -> str:
    """A self-contained piece of HTML: style, a place, the values, the script."""
    name = f"ctxmix-{os.getpid()}-{next(_numbers)}"
    return (
        f"<style>{style()}</style><div id='{name}' class='cmx'>{fallback}</div>"
        f"<script>{script()}\nctxmix.mount(document.getElementById('{name}'),{as_json(data)});</script>"
    )


def page(data: dict[str, Any], title: str) -> str:
    """One file that opens by double click."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
        "content='width=device-width,initial-scale=1'>"
        f"<title>{escape(title)}</title>"
        "<style>:root{color-scheme:light dark}body{margin:16px;max-width:1100px}</style></head>"
        f"<body>{fragment(data)}</body></html>"
    )


def map_fragment(m: ContextMixingMap, example: int = 0, **state: Any) -> str:
    return fragment(payload(m, example, **state), _fallback(m, example))


def map_page(m: ContextMixingMap, example: int = 0, **state: Any) -> str:
    data = payload(m, example, **state)
    where = m.where(data["state"].get("layer", -1), data["state"].get("scope", "input"))
    return page(data, f"ctxmix: {data['title']}, {where}")


def _fallback(m: ContextMixingMap, example: int) -> str:
    """Where scripts do not run (a rendered notebook on GitHub): the default target's row as coloured text."""
    one = m[example]
    place = first_shown(one.tokens[0], bool(one.meta.get("causal")))
    return coloured_text(
        one.attribution(place),
        f"{m.method}: sources of {visible(one.tokens[0].shown()[place])}, {m.where()}",
    )


def attribution_fragment(a: Attribution, cmap: str = "blues") -> str:
    """Coloured text, one line per example."""
    lines = [coloured_text(a[b], row_title(a) if b == 0 else "", cmap) for b in range(len(a))]
    return f"<div class='ctxmix-attribution'>{''.join(lines)}</div>"


def row_title(a: Attribution) -> str:
    return f"{people_name(a.method)}: {a.target}{row_place(a.meta)}"


def attribution_page(a: Attribution, cmap: str = "blues") -> str:
    return (
        "<!doctype html><html lang='en'><head><meta "
        f"charset='utf-8'><title>{escape('ctxmix: ' + row_title(a))}</title></head>"
        f"<body style='margin:16px;max-width:1000px'>{attribution_fragment(a, cmap)}</body></html>"
    )


def coloured_text(
    a: Attribution, title: str, cmap: str = "blues", styles: list[str] | None = None
) -> str:
    """Each piece on the colour of its score; the number is the tooltip. `styles` adds to each piece's own."""
    values = finite(a.scores[0]).tolist()
    tokens = a.tokens[0]
    joined = {place for group in tokens.groups() for place in group[1:]}
    spans = []
    top = max(map(abs, values), default=0.0)
    for i, (value, colour) in enumerate(zip(values, signed_shades(values, cmap), strict=True)):
        own = cmap == "blues"  # then nothing is the page's own ground, whatever its theme
        look = (
            f"background:{ground(value, top)}"
            if own
            else f"background:{css(colour)};color:{css(ink(colour))}"
        )
        gap = "" if i in joined or i == 0 else " "
        label = visible(tokens.shown()[i])
        label = label.removeprefix("##") if i in joined else label
        spans.append(
            f"{gap}<span class='cmx-w' title='{value:.4g}' style='{styles[i] if styles else ''}"
            f"{look};padding:1px 3px;border-radius:3px'>{escape(label)}</span>"
        )
    head = f"<div style='font-weight:600;margin-bottom:4px'>{escape(title)}</div>" if title else ""
    label = "words, arrow keys tell their numbers"
    return (
        f"<div style='margin:4px 0'>{head}<div class='cmx-words' tabindex='0' role='group' "
        f"aria-label='{label}' dir='auto' style='line-height:1.9'>{''.join(spans)}</div></div>"
    )


def write(text: str, path: Any) -> Path:
    target = Path(path)
    target.write_text(text, encoding="utf-8")
    return target
