"""Small pieces of HTML made on the server; every text from outside is escaped."""

from __future__ import annotations

from html import escape
from typing import Any

import ctxmix_hf as cm
from ctxmix_hf.demo.limits import info_of
from ctxmix_hf.viz.colours import css, ink, shade


def message(text: str, kind: str = "error") -> str:
    """A line above the map; empty when there is nothing to say."""
    return f"<div class='ctxmix-message ctxmix-{kind}' role='alert'>{escape(text)}</div>" if text else ""


def method_info(method: str, slow: str = "") -> str:
    """What the method is, whose, and what it costs."""
    try:
        row = info_of(method)
    except cm.CtxmixError as error:
        return message(str(error))
    line = (
        f"<b>{escape(row.name)}</b>: {escape(row.summary)} <span class='ctxmix-dim'>({escape(row.paper)})</span>. "
        f"Covers {escape(row.covers)}; leaves out {escape(row.leaves_out)}. <span class='ctxmix-dim'>Cost: {escape(row.cost)}.</span>"
    )
    return f"<div class='ctxmix-info'>{line}</div>{message(slow, 'warn')}"


def prediction_bars(prediction: dict[str, Any]) -> str:
    """Probabilities as bars."""
    if prediction["kind"] == "none" or not prediction["rows"]:
        return "<div class='ctxmix-dim'>No prediction: the model has no head, or the text has no mask token to fill.</div>"
    tables = []
    for number, rows in enumerate(prediction["rows"], start=1):
        title = (
            f"Words at {prediction['mask_token']} {number if len(prediction['rows']) > 1 else ''}"
            if prediction["kind"] == "masked"
            else "Classes"
        )
        body = "".join(
            f"<tr><td>{escape(name)}</td><td class='ctxmix-num'>{value:.3f}</td>"
            f"<td class='ctxmix-wide'><div class='ctxmix-bar' style='width:{100 * value:.1f}%'></div></td></tr>"
            for name, value in rows
        )
        tables.append(f"<table class='ctxmix-table'><caption>{escape(title)}</caption>{body}</table>")
    return "".join(tables)


def score_lines(attributions: dict[str, Any]) -> str:
    """Blank-out and gradients as coloured text, one under the other."""
    return "".join(f"<div class='ctxmix-scores'>{made.words()._repr_html_()}</div>" for made in attributions.values())


def agreement_table(result: dict[str, Any]) -> str:
    """Methods by methods, coloured by correlation."""
    names = result["methods"]
    head = "".join(f"<th scope='col'><span>{escape(name)}</span></th>" for name in names)
    body = "".join(
        f"<tr><th scope='row'>{escape(name)}</th>{''.join(map(_cell, row))}</tr>"
        for name, row in zip(names, result["correlation"], strict=True)
    )
    left = (
        f"<div class='ctxmix-dim'>Left out as too slow for this text: {escape(', '.join(result['left_out']))}.</div>"
        if result["left_out"]
        else ""
    )
    caption = f"Rank correlation of the methods on the row of “{escape(result['target'])}” (last layer, from the input)"
    table = f"<table class='ctxmix-matrix' aria-labelledby='agreement-caption'><tr><td></td>{head}</tr>{body}</table>"
    said = f"<div class='ctxmix-caption' id='agreement-caption'>{caption}</div>"
    return f"{said}<div class='ctxmix-scroll' tabindex='0' role='region' aria-labelledby='agreement-caption'>{table}</div>{left}"


def _cell(value: float) -> str:
    if value != value:
        return "<td title='undefined: one row is constant'>–</td>"
    colour = shade(0.5 + value / 2, "signed")
    return f"<td style='background:{css(colour)};color:{css(ink(colour))}'>{value:.2f}</td>"


def similarity_panel(result: Any) -> str:
    """The cosine, and both texts coloured by their shares of it."""
    lines = "".join(f"<div class='ctxmix-scores'>{side.words()._repr_html_()}</div>" for side in (result.a, result.b))
    return f"<div class='ctxmix-big'>cosine similarity <b>{result.cosine:.4f}</b></div>{lines}"
