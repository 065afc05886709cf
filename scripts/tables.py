"""Writes the generated tables of README.md between their markers: methods, architectures, measured cost.

`python scripts/tables.py` rewrites them; a test checks that they are up to date with the registry and the files.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import ctxmix_hf as cm

ROOT = Path(__file__).parents[1]


def methods() -> str:
    lines = [
        "| name | kind | what it is | covers | leaves out | paper |",
        "|---|---|---|---|---|---|",
    ]
    for info in cm.list_methods():
        lines.append(
            f"| `{info.name}` | {info.kind} | {info.summary} | {info.covers} | {info.leaves_out} | {info.paper} |"
        )
    return "\n".join(lines)


def _all_but(names: list[str]) -> str:
    return f"all but {', '.join(sorted(names))}" if names else "all"


def architectures() -> str:
    rows = cm.supported_architectures()
    exact: dict[str, list[str]] = defaultdict(list)
    for row in rows.values():
        if row.level == 2:
            exact[row.modality].append(row.name)
    others = [f"`{row.name}`" for row in rows.values() if row.level == 1 and not row.approximate]
    near = [f"`{row.name}`" for row in rows.values() if row.approximate]
    counts = ", ".join(f"{len(names)} {kind}" for kind, names in sorted(exact.items()))
    lines = [
        f"**{sum(map(len, exact.values()))} families exact** ({counts}): parts add up to 1e-10 in "
        "float64, 1e-5 where the family rounds "
        "to float32, and a probe of every layer finds nothing but the attention that moves information between tokens.",
        f"**{len(near)} approximate**: a convolution inside the layer mixes neighbouring frames "
        "too, which no map shows "
        f"({', '.join(sorted(near))}); `hta`, gradients and blank-out include it.",
        f"**{sum(row.ledger is not None for row in rows.values())} of {len(rows)} have a ledger that balances** "
        f"({sum(row.ledger is not None and row.ledger <= 1e-9 for row in rows.values())} to 1e-9 "
        "in float64, the others to 1e-5: they "
        "compute norms in float32 whatever their dtype).",
        "",
        "<details><summary>Their names</summary>",
        "",
        "| modality | families | with a ledger that balances |",
        "|---|---|---|",
    ]
    lines += [
        f"| {kind} ({len(names)}) | {', '.join(sorted(names))} | "
        f"{_all_but([name for name in names if rows[name].ledger is None])} |"
        for kind, names in sorted(exact.items())
    ]
    lines += [
        "",
        "Attention-level methods only (the heads are gated or mixed before the projection): "
        f"{', '.join(sorted(others))}.",
        "",
        "</details>",
    ]
    return "\n".join(lines)


def cost() -> str:
    path = ROOT / "benchmarks" / "results" / "cost-bert-base-b1-t1.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    tokens = sorted({row["T"] for row in rows})
    lines = [
        "| asked for | " + " | ".join(f"T={t}" for t in tokens) + " |",
        "|---|" + "---|" * len(tokens),
    ]
    for name in dict.fromkeys(row["method"] for row in rows):
        found = {row["T"]: row for row in rows if row["method"] == name}
        cells = [f"{found[t]['ratio']}x" if t in found else "-" for t in tokens]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def peers() -> str:
    path = ROOT / "benchmarks" / "results" / "peers.json"
    found = json.loads(path.read_text()) if path.exists() else {"rows": [], "skipped": {}}
    lines = ["| tool | asked for | forward passes |", "|---|---|---|"]
    lines += [f"| {row['tool']} | {row['asked']} | {row['forwards']} |" for row in found["rows"]]
    lines += [f"| {name} | not run: {reason} | - |" for name, reason in found["skipped"].items()]
    return "\n".join(lines)


def ledger() -> str:
    path = ROOT / "benchmarks" / "results" / "ledger.json"
    found = json.loads(path.read_text()) if path.exists() else {"rows": [], "literature": {}}
    tokens = sorted({row["T"] for row in found["rows"]})
    plain = {row["T"]: row["plain_peak_mb"] for row in found["rows"]}
    lines = [
        "| asked for | " + " | ".join(f"T={t}" for t in tokens) + " |",
        "|---|" + "---|" * len(tokens),
    ]
    lines.append(
        "| a plain forward pass | " + " | ".join(f"1x ({plain[t]:.0f} MB)" for t in tokens) + " |"
    )
    for name in dict.fromkeys(row["asked"] for row in found["rows"]):
        rows = {row["T"]: row for row in found["rows"] if row["asked"] == name}
        memory = {
            t: "" if row["peak_mb"] is None else f" ({row['peak_mb']:.0f} MB)"
            for t, row in rows.items()
        }
        cells = [f"{rows[t]['forwards']:.1f}x{memory[t]}" if t in rows else "-" for t in tokens]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(
        [*lines, "", *(f"{name}: {said}" for name, said in found["literature"].items())]
    )


def similarity() -> str:
    held = json.loads((ROOT / "benchmarks" / "results" / "similarity.json").read_text())
    words, flips = (
        held["words"]["spearman"],
        held["ranking"]["flips"]["words of the first document"],
    )
    best = held["words"]["best_baseline"]
    return (
        "On the real MiniLM and MRPC its scores follow what deleting a word does with a Spearman correlation of "
        f"{words['similarity']['mean']:.2f}\n(next best: {best}, {words[best]['mean']:.2f}), and "
        "without the first document's "
        f"three strongest words another one comes first in {100 * flips['three strongest']['mean']:.1f} %\n"
        f"of {flips['difference']['n']} queries (three other words: {100 * flips['three others']['mean']:.1f} %)."
    )


def _aimed(value: float, unit: str, target: float | None) -> str:
    """A figure, and behind it the one that was aimed at."""
    return f"{value:.2f}{unit}" + (f" (of {target:g})" if target else "")


def long() -> str:
    held = json.loads((ROOT / "benchmarks" / "results" / "long.json").read_text())
    lines = []
    for shape, said in (("small", "8 layers, 384 wide"), ("base", "22 layers, 768 wide")):
        if shape not in held:
            continue
        tokens = sorted(held[shape], key=int)
        names = dict.fromkeys(name for t in tokens for name in held[shape][t])
        lines += [f"| {said} | " + " | ".join(f"T = {int(t):,}" for t in tokens) + " |"]
        lines += ["|---|" + "---|" * len(tokens)]
        for name in names:
            found = [held[shape][t].get(name) for t in tokens]
            cells = [
                "-"
                if one is None
                else f"{_aimed(one['ratio'], 'x', one['target'])}, "
                f"+{_aimed(one['gigabytes_above_plain'], ' GB', one['target_gigabytes'])}"
                for one in found
            ]
            lines.append(f"| {name.replace('_', ' ')} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip("\n")


TABLES = {
    "long": long,
    "similarity": similarity,
    "methods": methods,
    "architectures": architectures,
    "cost": cost,
    "peers": peers,
    "ledger": ledger,
}


def rewritten(text: str) -> str:
    for name, make in TABLES.items():
        pattern = rf"(<!-- {name}: generated by scripts/tables.py -->\n).*?(<!-- end {name} -->)"
        text = re.sub(
            pattern,
            lambda match, make=make: f"{match.group(1)}{make()}\n{match.group(2)}",
            text,
            flags=re.DOTALL,
        )
    return text


if __name__ == "__main__":
    for page in (ROOT / "README.md", ROOT / "docs" / "long.md"):
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
