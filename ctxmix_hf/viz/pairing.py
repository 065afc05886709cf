"""Two texts and what matches between them: links between words, the matrix of pairs, documents in their order.

Everything is SVG and HTML; a pointer over anything drawn gives its number, as do a tap and the arrow keys.
"""

from __future__ import annotations

import itertools
import os
from html import escape
from typing import Any

from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.ledgers import Ledger
from ctxmix_hf.results.matches import Ranking, Similarity, content_pairs
from ctxmix_hf.viz.accounts import TWO_WIDTHS, fitted, legend, two_sided
from ctxmix_hf.viz.canvas import aloud, coloured_text
from ctxmix_hf.viz.colours import NEGATIVE, POSITIVE, shade
from ctxmix_hf.viz.figures import colour_map, draw, drawable, fonts, new_figure, side
from ctxmix_hf.viz.payload import finite, visible
from ctxmix_hf.viz.terminal import colour_wanted, fit, paint, width_of

LINKS = 14
STYLE = (
    "<style>.cmx-pairs{font:14px/1.5 system-ui,sans-serif;max-width:980px}.cmx-pairs "
    "h2{margin:14px 0 4px;font-size:13px}"
    ".cmx-pairs p{margin:4px 0}.cmx-pairs svg{display:block;height:auto}.cmx-wide{overflow-x:auto}"
    ".cmx-pairs svg text{font:12px system-ui,sans-serif;fill:currentColor}"
    f"{TWO_WIDTHS}</style>"
)


def headline(s: Similarity) -> str:
    assumed = (
        ", assumed: no file beside the model says how it pools its tokens" if s.assumed else ""
    )
    how = f"{s.pooling} pooling" if s.pooling in ("mean", "cls", "last", "max") else s.pooling
    return f"{s.score} {s.cosine:.4f} ({how}{assumed})"


def balance(s: Similarity) -> str:
    """The account in one line."""
    lines = float(sum(line.sum() for line in s.lines.values()))
    return f"pairs {float(s.pairs.sum()):+.4f} and biases {lines:+.4f} make {s.total:.4f}"


def similarity_text(s: Similarity, colour: bool | None = None, most: int = 8) -> str:
    """Both sentences, the strongest pairs of words, and the balance."""
    colour = colour_wanted() if colour is None else colour
    if s.source is None:
        return f"{headline(s)}\n{s.a}\n\n{s.b}"
    words = s if s.meta.get("unit") == "word" else s.words()
    sentences = [_sentence(side, colour) for side in (words.a, words.b)]
    best = content_pairs(words)[:most]
    width = min(40, max(width_of(f"{a} - {b}") for a, b, _ in best))
    top = abs(best[0][2]) or 1.0
    bars = [
        f"  {fit(f'{a} - {b}', width)} {value:>+9.4f} {'█' * round(24 * abs(value) / top)}"
        for a, b, value in best
    ]
    return "\n".join([headline(s), *sentences, *bars, f"  {balance(s)}"])


def _sentence(a: Attribution, colour: bool) -> str:
    labels, values = [visible(t) for t in a.tokens[0].shown()], finite(a.scores[0]).tolist()
    if not colour:
        return " ".join(labels)
    top = max((abs(v) for v in values), default=0.0) or 1.0
    return " ".join(
        paint(t, shade(0.5 + 0.5 * v / top, "signed")) for t, v in zip(labels, values, strict=True)
    )


# ---- HTML
# -------------------------------------------------------------------------------------------------------------
def similarity_fragment(s: Similarity) -> str:
    """Links between words, and the matrix beside them."""
    if s.source is None:
        sides = coloured_text(s.a, s.a.target) + coloured_text(s.b, s.b.target)
        return _whole(f"<p><b>{escape(headline(s))}</b></p>{sides}")
    words = s if s.meta.get("unit") == "word" else s.words()
    return _whole(
        f"<p><b>{escape(headline(s))}</b></p><p>{escape(s.finding())}</p>"
        f"{_links(words)}<h2>Every pair of words</h2>{_matrix(words)}"
        f"<p style='opacity:.75'>{escape(balance(s))}</p>"
    )


def _whole(body: str, name: str = "") -> str:
    """With what it looks like, and what tells its numbers."""
    called = f" id='{name}'" if name else ""
    return f"{STYLE}<div class='cmx-pairs'{called}>{body}</div><script>{aloud()}</script>"


def _page(title: str, body: str) -> str:
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>{escape(title)}</title>"
        "<style>:root{color-scheme:light dark}body{margin:16px}</style></head>"
        f"<body>{body}</body></html>"
    )


def similarity_page(s: Similarity, title: str = "") -> str:
    """One file that opens by double click."""
    return _page(title or "ctxmix: " + headline(s), similarity_fragment(s))


def _places(labels: list[str], width: float) -> list[float]:
    """Where the middle of each word stands, words as wide as their letters."""
    sizes = [7.2 * max(2, width_of(label)) + 14 for label in labels]
    scale = min(1.0, width / (sum(sizes) or 1.0))
    found, at = [], 10.0
    for size in sizes:
        found.append(at + scale * size / 2)
        at += scale * size
    return found


def _special(a: Attribution) -> list[bool]:
    flags = a.tokens[0].special
    return list(flags) if flags is not None else [False] * a.scores.shape[1]


def _links(s: Similarity) -> str:
    names = [[visible(t)[:18] for t in side.tokens[0].shown()] for side in (s.a, s.b)]
    special = [_special(side) for side in (s.a, s.b)]
    xs = [_places(labels, 940.0) for labels in names]
    values = s.pairs
    every = [
        (i, j, float(values[i, j]))
        for i in range(len(names[0]))
        for j in range(len(names[1]))
        if not special[0][i] and not special[1][j]
    ]
    kept = sorted(every, key=lambda item: -abs(item[2]))[:LINKS]
    top = max((abs(v) for _, _, v in kept), default=0.0) or 1.0
    share = sum(v for _, _, v in kept)

    def drawn(narrow: bool) -> tuple[float, float, str]:
        """One text over the other; where that is too wide, beside it."""
        steps = [[24.0 + 20 * k for k in range(len(labels))] for labels in names]
        at = lambda row, k: (
            (120.0 if row == 0 else 226.0, steps[row][k]) if narrow else (xs[row][k], 34 + 92 * row)
        )
        links = []
        for i, j, v in reversed(kept):
            (x, y), (u, w) = at(0, i), at(1, j)
            bend = f"C173 {y:.0f} 173 {w:.0f}" if narrow else f"C{x:.0f} 80 {u:.0f} 80"
            links.append(
                f"<path fill='none' d='M{x:.0f} {y:.0f} {bend} {u:.0f} {w:.0f}' "
                f"stroke='{POSITIVE if v >= 0 else NEGATIVE}' stroke-opacity='.7' "
                f"stroke-width='{max(0.7, 9 * abs(v) / top):.1f}'>"
                f"<title>{escape(names[0][i])} - {escape(names[1][j])}: {v:+.4f}</title></path>"
            )
        text = []
        for row, one in ((0, s.a), (1, s.b)):
            anchor = ("end", "start")[row] if narrow else "middle"
            for k, score in enumerate(one.scores[0].tolist()):
                x, y = at(row, k)
                x, y = (x - 8 + 16 * row, y + 4) if narrow else (x, 24.0 + 120 * row)
                name, faint = escape(names[row][k]), 0.45 if special[row][k] else 1
                text.append(
                    f"<text x='{x:.0f}' y='{y:.0f}' text-anchor='{anchor}' fill-opacity='{faint}'>{name}"
                    f"<title>{name}: {score:+.4f}</title></text>"
                )
        body = "".join([*links, *text])
        if narrow:
            return 346, 24 + 20 * max(map(len, names)), body
        return max(max(xs[0], default=0), max(xs[1], default=0)) + 40, 156, body

    return (
        f"{fitted('links between words', drawn)}"
        f"<p>These {len(kept)} links give {share:+.2f} of {s.cosine:.2f}.</p>"
    )


def _matrix(s: Similarity) -> str:
    rows, cols = ([visible(t)[:16] for t in side.tokens[0].shown()] for side in (s.a, s.b))
    values = finite(s.pairs)
    top = float(values.abs().max()) or 1.0

    def drawn(narrow: bool) -> tuple[float, float, str]:
        left, tall = (84, 17) if narrow else (120, 17)
        wide = min(60.0, 780.0 / max(1, len(cols)))
        if narrow:
            wide = max(11.0, min(wide, 246.0 / max(1, len(cols))))
        cells = [
            f"<rect x='{left + j * wide:.1f}' y='{i * tall}' width='{wide - 1:.1f}' height='{tall - 1}' "
            f"{two_sided(float(values[i, j]), top)}>"
            f"<title>{escape(rows[i])} - {escape(cols[j])}: {float(values[i, j]):+.4f}</title></rect>"
            for i in range(len(rows))
            for j in range(len(cols))
        ]
        names = [
            f"<text x='{left - 6}' y='{i * tall + 13}' text-anchor='end'>"
            f"{escape(name[:11] if narrow else name)}</text>"
            for i, name in enumerate(rows)
        ]
        under = [
            f"<text transform='translate({left + (j + 0.6) * wide:.1f} {len(rows) * tall + 12}) rotate(-40)' "
            f"text-anchor='end'>{escape(name)}</text>"
            for j, name in enumerate(cols)
        ]
        height = len(rows) * tall + 80
        return (
            left + wide * len(cols) + (14 if narrow else 20),
            height,
            "".join([*cells, *names, *under]),
        )

    return fitted("pairs of words", drawn) + legend(top)


# ---- documents
# --------------------------------------------------------------------------------------------------------
def _why(made: Similarity | Ledger) -> str:
    if isinstance(made, Similarity):
        best = content_pairs(made.words())[:3]
        return ", ".join(f"{a}-{b} {value:+.2f}" for a, b, value in best)
    return ", ".join(f"{name} {score:+.2f}" for name, score in made.words().top(3))


def ranking_text(r: Ranking, top: int = 5) -> str:
    """Documents in order, the first `top` with the words that put them there."""
    rows = [f"query: {r.query}"]
    for place, i in enumerate(r.order):
        why = f"  [{_why(r[i])}]" if place < top else ""
        line = f"{place + 1:>3}. {float(r.scores[i]):+.4f}  {fit(r.documents[i], 70)}{why}"
        rows.append(line.rstrip())
    return "\n".join(rows)


_rankings = itertools.count(1)


def ranking_fragment(r: Ranking, top: int = 10) -> str:
    """Documents in order, their words coloured by what they gave.

    A pointer over (or the keyboard's focus on) a word of the query colours every document's words by
    what they match of that word instead.
    """
    shown = [(place, i, r[i]) for place, i in enumerate(r.order[:top])]
    accounts = [
        made.words() for _, _, made in shown if isinstance(made, Similarity) and made.source
    ]
    accounts = accounts if len(accounts) == len(shown) else []
    strongest = (
        max((float(finite(made.pairs).abs().max()) for made in accounts), default=0.0) or 1.0
    )
    name = f"cmx-rank-{os.getpid()}-{next(_rankings)}"
    rows = []
    for place, i, made in shown:
        side_ = made.b.words() if isinstance(made, Similarity) else made.words().attribution
        title = f"{place + 1}. {float(r.scores[i]):+.4f}: {_why(made)}"
        matched = _matches(accounts[place], strongest) if accounts else None
        rows.append(coloured_text(side_[0], title, styles=matched))
    more = f"<p>... and {len(r) - top} more</p>" if len(r) > top else ""
    query, rules = _query(accounts, name) if accounts else (f"<b>{escape(r.query)}</b>", "")
    return rules + _whole(f"<p>{query}</p>{''.join(rows)}{more}", name)


def _matches(words: Similarity, strongest: float) -> list[str]:
    """Per word of the document: how strongly it matches each word of the query, of the strongest match there is."""
    shares = finite(words.pairs) / strongest
    return [
        "".join(
            f"--{'p' if v >= 0 else 'n'}{k}:{abs(v) * 100:.0f}%;"
            for k, v in enumerate(column)
            if abs(v) >= 0.01
        )
        for column in shares.mT.tolist()
    ]


def _query(accounts: list[Similarity], name: str) -> tuple[str, str]:
    """The query's words, each with its strongest match per document, and the rules that colour the documents."""
    words, rules = [], []
    first = accounts[0].a
    for k, word in enumerate(first.tokens[0].shown()):
        if _special(first)[k]:
            continue
        best = []
        for place, made in enumerate(accounts):
            j = int(made.pairs[k].abs().argmax())
            best.append(
                f"{place + 1}. {made.b.tokens[0].shown()[j]} {float(made.pairs[k, j]):+.3f}"
            )
        words.append(
            f"<b class='cmx-q{k}' tabindex='0' title='{escape(', '.join(best), quote=True)}'>"
            f"{escape(visible(word))}</b>"
        )
        held = f"#{name}:has(.cmx-q{k}:hover) .cmx-w,#{name}:has(.cmx-q{k}:focus) .cmx-w"
        less = f"color-mix(in srgb,{NEGATIVE} var(--n{k},0%),transparent)"
        rules.append(
            f"{held}{{color:inherit!important;"
            f"background:color-mix(in srgb,{POSITIVE} var(--p{k},0%),{less})!important}}"
        )
    return " ".join(words), f"<style>{''.join(rules)}</style>"


def ranking_page(r: Ranking, top: int = 10, title: str = "") -> str:
    """One file that opens by double click."""
    return _page(title or "ctxmix: " + r.query, ranking_fragment(r, top))


# ---- figure
# -----------------------------------------------------------------------------------------------------------
def plot_similarity(
    s: Similarity, words: bool = True, special: bool = False, cmap: Any = None
) -> Any:
    """The matrix of pairs; special tokens are left out unless asked for."""
    shown = s.words() if words and s.meta.get("unit") != "word" else s
    keep = [
        [i for i, flag in enumerate(_special(part)) if special or not flag]
        or list(range(part.scores.shape[1]))
        for part in (shown.a, shown.b)
    ]
    rows, cols = (
        [part.tokens[0].shown()[i] for i in chosen]
        for part, chosen in zip((shown.a, shown.b), keep, strict=True)
    )
    values = finite(shown.pairs)[keep[0]][:, keep[1]].numpy()
    top = float(abs(values).max()) or 1.0
    width, height = side(len(cols)) + 1.2, side(len(rows)) + 0.6
    figure, axes = new_figure(width, height)
    made = draw(
        axes[0][0], values, rows, cols, colour_map(cmap, signed=True), top, -top, (width, height)
    )
    axes[0][0].set_title(headline(s), fontsize=9)
    figure.colorbar(made, ax=axes[0][0], shrink=0.8)
    return figure


def plot_ranking(r: Ranking, top: int = 10) -> Any:
    """The first `top` documents by their score, each with the words that put it there."""
    shown = r.order[:top]
    height = 0.9 + 0.5 * len(shown)
    figure, axes = new_figure(9.0, height)
    bars = axes[0][0]
    scores = [float(r.scores[i]) for i in shown]
    bars.barh(range(len(shown)), scores, color=[POSITIVE if v >= 0 else NEGATIVE for v in scores])
    labels = [drawable(fit(f"{place + 1}. {r.documents[i]}", 44)) for place, i in enumerate(shown)]
    bars.set_yticks(range(len(shown)), labels, fontsize=8, fontfamily=fonts())
    for k, i in enumerate(shown):
        bars.annotate(
            drawable(f" {scores[k]:+.3f}  {_why(r[i])}"),
            (max(scores[k], 0.0), k),
            va="center",
            fontsize=7,
            fontfamily=fonts(),
            annotation_clip=False,
        )
    bars.invert_yaxis()
    bars.set_title(drawable(r.query), fontsize=10, fontfamily=fonts())
    bars.spines[["top", "right"]].set_visible(False)
    bars.margins(x=1.1)
    return figure
