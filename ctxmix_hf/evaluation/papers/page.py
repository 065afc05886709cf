"""Entries of `papers.json` as a page: our numbers, their intervals, the papers', and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ctxmix_hf.evaluation.metrics import rank_correlation
from ctxmix_hf.evaluation.papers.items import ITEMS, TITLES, Claim, Item, by_layer

Entry = Mapping[str, Any]
UNTOLD = "Cannot be told here."
NEAR = 0.10  # a number this close to the paper's is called the same
ORDERED, PARTLY = 0.8, 0.5  # Spearman between our numbers and the paper's
HEAD = """# The papers' tables, run again

Written by `python scripts/papers.py` from `benchmarks/results/papers.json`; every sentence about agreement is
computed from the numbers above it. Brackets are 95 % bootstrap intervals over sentences. *In value*: within 0.10 of
the paper's number. *In order*: Spearman's correlation between our numbers and the paper's over the rows of the item
(0.8 and more agrees, 0.5 and more in part). These are not the papers' models, so orders say more than values.
A claim is tested on the point values: where intervals overlap, holding or not holding says little.

The same on your models and data, resumable, offline or with Hub ids:
<!-- not run: takes minutes to hours; tests/evaluation/test_papers.py runs small versions -->
```bash
ctxmix papers --out ctxmix-papers/ --limit 20
ctxmix papers --paper globenc --classifier textattack/bert-base-uncased-SST-2 --data sst2=dev.tsv --out ctxmix-papers/
ctxmix papers --paper value_zeroing --masked-lm bert-base-uncased --data blimp=blimp/ --out ctxmix-papers/
```
"""


def written(
    entries: Sequence[Entry],
    left_out: Mapping[str, str] | None = None,
    why: Mapping[tuple[str, str], str] | None = None,
    of_model: Mapping[tuple[str, str], str] | None = None,
    fewer: Mapping[str, str] | None = None,
) -> str:
    """The page of these entries, as Markdown; `why` (by paper and item) is said where an item does not agree,
    `of_model` (by model and corpus) wherever the model is asked about the corpus, `left_out` and `fewer` at the end."""
    lines = [HEAD, summary(entries)]
    for paper, title in TITLES.items():
        of_paper = [e for e in entries if e["paper"] == paper]
        if not of_paper:
            continue
        lines.append(f"## {title}\n")
        for number in dict.fromkeys(e["item"] for e in of_paper):
            named = [e for e in of_paper if e["item"] == number]
            for data in dict.fromkeys(_item(e).about for e in named):
                lines.append(f"### {number}: {data}\n")
                told = [e for e in named if _item(e).about == data]
                if _item(told[0]).difference:
                    lines.append(f"{_item(told[0]).difference}\n")
                for entry in told:
                    lines.append(section(entry, why, of_model))
    for title, some in (("Left out", left_out), ("Fewer than in the papers", fewer)):
        if some:
            lines.append(f"## {title}\n")
            lines += [f"- {name}: {reason}" for name, reason in some.items()]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _item(entry: Entry) -> Item:
    """The item of an entry: by paper, number and corpus (one table may be about two)."""
    corpus = str(entry["data"]).partition(":")[0]
    return next(
        one
        for one in ITEMS.values()
        if (one.paper, one.number, one.data) == (entry["paper"], entry["item"], corpus)
    )


def section(
    entry: Entry,
    why: Mapping[tuple[str, str], str] | None = None,
    of_model: Mapping[tuple[str, str], str] | None = None,
) -> str:
    """One model's rows of an item, and what they say."""
    key = (str(entry["model"]), str(entry["data"]).partition(":")[0])
    lines = [
        f"`{entry['model']}` on {entry['data']}, n = {entry['n']}.\n",
        *([f"Maps were learned in {entry['fitting']}.\n"] if "fitting" in entry else []),
        *[f"{entry[told]}\n" for told in ("seen", "how") if told in entry],
        *([f"{of_model[key]}\n"] if of_model and key in of_model else []),
        _table(entry["rows"]),
        "",
    ]
    lines += [f"- {said}" for said in judged(entry)]
    if why is not None and disagrees(entry):
        lines.append(f"- Why: {why.get((entry['paper'], entry['item']), 'not known.')}")
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Entry]) -> str:
    labels = [by_layer(row["name"]) for row in rows]
    if rows and all(label is not None for label in labels):
        return _by_layers(rows)
    lines = [["", "ours", "95 %", "paper"]]
    lines += [
        [row["name"], _number(row["ours"]), _interval(row), _number(row["paper"], "-")]
        for row in rows
    ]
    return _markdown(lines)


def _by_layers(rows: Sequence[Entry]) -> str:
    """A row per label and a column per layer; the paper's numbers, where there are some, below ours."""
    labels = list(dict.fromkeys(by_layer(row["name"]) or "" for row in rows))
    layers = sorted({int(row["name"].rsplit(" ", 1)[1]) for row in rows})
    cells = {row["name"]: row for row in rows}
    lines = [["layer", *map(str, layers)]]
    for label in labels:
        found = [cells.get(f"{label}, layer {layer}") for layer in layers]
        lines.append(
            [
                label,
                *(
                    "" if r is None else f"{_number(r['ours'])} {_interval(r)}".strip()
                    for r in found
                ),
            ]
        )
        if any(r is not None and r["paper"] is not None for r in found):
            theirs = [None if r is None else r["paper"] for r in found]
            lines.append([f"*{label}, paper*", *(_number(v, "") for v in theirs)])
    return _markdown(lines)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    safe = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    head, *rest = ["| " + " | ".join(line) + " |" for line in safe]
    return "\n".join([head, "|" + "---|" * len(lines[0]), *rest])


def _number(value: float | None, missing: str = "undefined") -> str:
    if value is None or not math.isfinite(value):
        return missing
    if 1e-4 <= abs(value) < 0.1:  # two decimals would leave one digit, or none
        return f"{value:.3g}"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def _interval(row: Entry) -> str:
    if row["low"] is None or row["high"] is None:
        return ""
    return f"[{_number(row['low'])}, {_number(row['high'])}]"


def compared(entry: Entry) -> tuple[int, int, float | None]:
    """(rows near the paper's number, rows that have one, Spearman over them or None below three)."""
    pairs = [
        (row["ours"], row["paper"])
        for row in entry["rows"]
        if row["ours"] is not None and row["paper"] is not None
    ]
    near = sum(abs(ours - paper) <= NEAR for ours, paper in pairs)
    order = (
        rank_correlation([p[0] for p in pairs], [p[1] for p in pairs]) if len(pairs) > 2 else None
    )
    return near, len(pairs), None if order is None or not math.isfinite(order) else order


def judged(entry: Entry) -> list[str]:
    """Agreement in value, in order, and of each claim: computed from the rows."""
    near, total, order = compared(entry)
    said = []
    if total:
        said.append(f"In value: {near} of {total} within {NEAR:.2f} of the paper's.")
    if order is not None:
        how = (
            "agrees"
            if order >= ORDERED
            else "agrees in part"
            if order >= PARTLY
            else "does not agree"
        )
        said.append(f"In order: Spearman {order:.2f} over {total} rows, which {how}.")
    said += [
        f"The paper: {claim} **{word}**"
        if _item(entry).paper and not _ours_alone(entry)
        else f"{claim} **{word}**"
        for claim, word in claims(entry)
    ]
    return said or ["No number and no claim of the paper to compare with."]


def disagrees(entry: Entry) -> bool:
    """Does a claim not hold, or is the order not the paper's?"""
    order = compared(entry)[2]
    failed = any(word == "Does not hold." for _, word in claims(entry))
    return failed or (order is not None and order < PARTLY)


def _ours_alone(entry: Entry) -> bool:
    return str(entry["item"]).endswith("varied")


def claims(entry: Entry) -> list[tuple[str, str]]:
    """What the paper says in words and whether it holds on these rows."""
    found = []
    for claim in _item(entry).claims:
        holds = _holds(claim, entry, "ours")
        if claim.steady and {_holds(claim, entry, end) for end in ("low", "high")} != {holds}:
            holds = None
        word = UNTOLD if holds is None else "Holds." if holds else "Does not hold."
        found.append((claim.said, word))
    return found


def _holds(claim: Claim, entry: Entry, column: str) -> bool | None:
    """The claim, asked of one column of the rows."""
    ours = {row["name"]: math.nan if row[column] is None else row[column] for row in entry["rows"]}
    try:
        return claim.holds(ours)
    except (KeyError, ValueError, IndexError):  # a row this claim needs is not there
        return None


def summary(entries: Sequence[Entry]) -> str:
    """A line per item and model: how far it agrees."""
    lines = [["paper", "item", "model", "n", "in value", "in order", "claims that hold"]]
    for e in entries:
        near, total, order = compared(e)
        words = [word for _, word in claims(e) if word != UNTOLD]
        lines.append(
            [
                e["paper"],
                e["item"],
                f"`{e['model']}`",
                str(e["n"]),
                f"{near} of {total}" if total else "-",
                "-" if order is None else f"{order:.2f}",
                f"{words.count('Holds.')} of {len(words)}" if words else "-",
            ]
        )
    return _markdown(lines) + "\n"
