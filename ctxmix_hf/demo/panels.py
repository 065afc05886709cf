"""Small pieces of HTML made on the server; every text from outside is escaped."""

from __future__ import annotations

from html import escape
from typing import Any

import ctxmix_hf as cm
from ctxmix_hf.demo import handlers
from ctxmix_hf.demo.limits import info_of
from ctxmix_hf.viz.colours import ground
from ctxmix_hf.viz.names import people_name


def message(text: str, kind: str = "error") -> str:
    """A line above the map; empty when there is nothing to say."""
    return (
        f"<div class='ctxmix-message ctxmix-{kind}' role='alert'>{escape(text)}</div>"
        if text
        else ""
    )


def method_info(method: str, slow: str = "") -> str:
    """What the method is, whose, its equation and what it costs: one click away."""
    try:
        row = info_of(method)
    except cm.CtxmixError as error:
        return message(str(error))
    rows = {
        "paper": row.paper,
        "equation": row.equation,
        "covers": row.covers,
        "leaves out": row.leaves_out,
        "cost": row.cost,
    }
    body = "".join(
        f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in rows.items() if value
    )
    return (
        f"<details class='ctxmix-info'><summary>What is {escape(people_name(method))}?</summary>"
        f"<p>{escape(row.summary[:1].upper() + row.summary[1:])}.</p><dl>{body}</dl></details>{message(slow, 'warn')}"
    )


def why_panel(*asked: str) -> str:
    """The ledger, and other answers to the same question under it."""
    account, others = handlers.why(*asked)
    lines = score_lines(others)
    beside = (
        f"<div class='ctxmix-others'><h2>What others say about the same output</h2>{lines}</div>"
        if lines
        else ""
    )
    return f"<div class='ctxmix-why'>{account}{beside}</div>"


def prediction_bars(prediction: dict[str, Any]) -> str:
    """Probabilities as bars; numbers that are none as numbers."""
    if prediction["kind"] == "none" or not prediction["rows"]:
        return (
            "<div class='ctxmix-dim'>No prediction: the model has no head, or the text has no "
            "mask token to fill.</div>"
        )
    tables = []
    for number, rows in enumerate(prediction["rows"], start=1):
        title = (
            f"Words at {prediction['mask_token']} {number if len(prediction['rows']) > 1 else ''}"
            if prediction["kind"] == "masked"
            else "Output (a number, not a probability)"
            if prediction["kind"] == "numbers"
            else "Classes"
        )
        widths = [0.0 if prediction["kind"] == "numbers" else 100 * value for _, value in rows]
        body = "".join(
            f"<tr><td>{escape(name)}</td><td class='ctxmix-num'>{value:.3f}</td>"
            f"<td class='ctxmix-wide'><div class='ctxmix-bar' style='width:{width:.1f}%'></div></td></tr>"
            for (name, value), width in zip(rows, widths, strict=True)
        )
        tables.append(
            f"<table class='ctxmix-table'><caption>{escape(title)}</caption>{body}</table>"
        )
    return "".join(tables)


def score_lines(attributions: dict[str, Any]) -> str:
    """Blank-out and gradients as coloured text, one under the other."""
    return "".join(
        f"<div class='ctxmix-scores'>{made.words()._repr_html_()}</div>"
        for made in attributions.values()
    )


def scored(model: str, text: str, pair: str = "") -> str:
    """The same of a prediction."""
    lines = {name: handlers.scores(model, text, name, pair) for name in handlers.SCORES}
    return f"<div id='scores'>{score_lines(lines)}</div>"


def progress(done: int, of: int, name: str = "") -> dict[str, Any]:
    """How far a table of methods is; the page says it where it says how long something takes."""
    said = f"{done} of {of} methods, now {people_name(name)}"
    return {"done": done, "of": of, "said": said if of else "Looking which methods are quick"}


def agreement_finding(result: dict[str, Any]) -> str:
    """What the table says, in words: how far the methods agree, which of them most and least."""
    names, table = [people_name(name) for name in result["methods"]], result["correlation"]
    pairs = {
        (i, j): table[i][j]
        for i in range(len(names))
        for j in range(i)
        if table[i][j] == table[i][j]  # a constant row correlates with nothing
    }
    if not pairs:
        return ""
    with_others = {
        k: sum(values) / len(values)
        for k in range(len(names))
        if (values := [value for pair, value in pairs.items() if k in pair])
    }
    mean = sum(pairs.values()) / len(pairs)
    said = f"The rows of “{result['target']}” correlate by {mean:.2f} on average"
    if len(with_others) < 3:
        return f"{said}."
    most, least = (choose(with_others, key=lambda k: with_others[k]) for choose in (max, min))
    far = min(pairs, key=lambda pair: pairs[pair])
    return (
        f"{said}. {names[most]} agrees most with the others ({with_others[most]:.2f}), {names[least]} "
        f"least ({with_others[least]:.2f}); furthest apart are {names[far[1]]} and {names[far[0]]} "
        f"({pairs[far]:.2f})."
    )


def agreement_table(result: dict[str, Any]) -> str:
    """Methods by methods, coloured by correlation, under what that says in words."""
    names = [people_name(name) for name in result["methods"]]
    head = "".join(f"<th scope='col'><span>{escape(name)}</span></th>" for name in names)
    body = "".join(
        f"<tr><th scope='row'>{escape(name)}</th>{''.join(map(_cell, row))}</tr>"
        for name, row in zip(names, result["correlation"], strict=True)
    )
    slow = ", ".join(people_name(name) for name in result["left_out"])
    said = f"Left out as too slow for this text: {escape(slow)}."
    left = f"<div class='ctxmix-dim'>{said}</div>" if slow else ""
    caption = f"Rank correlation of the methods on the row of “{escape(result['target'])}” (last layer, from the input)"
    table = f"<table class='ctxmix-matrix' aria-labelledby='agreement-caption'><tr><td></td>{head}</tr>{body}</table>"
    words = f"<p class='ctxmix-finding'>{escape(agreement_finding(result))}</p>"
    said = f"{words}<div class='ctxmix-caption' id='agreement-caption'>{caption}</div>"
    return (
        f"{said}<div class='ctxmix-scroll' tabindex='0' role='region' "
        f"aria-labelledby='agreement-caption'>{table}</div>{left}"
    )


def _cell(value: float) -> str:
    if value != value:
        return "<td title='undefined: one row is constant'>–</td>"
    return f"<td style='background:{ground(value, 1.0)}'>{value:.2f}</td>"
