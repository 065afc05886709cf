"""The generated part of the documentation, as a mkdocs hook: a page per method, and the tables
between `<!-- generated: ... -->` marks.

Everything is read off the registry, `architectures.json`, `benchmarks/results` and the command
line's own parser, so a new method or family is in the documentation without an edit.
`tests/test_docs.py` runs the examples on these pages.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import ctxmix_hf as cm
from ctxmix_hf.assistant.tools import NAMES, Tools, describe
from ctxmix_hf.attribution import ATTRIBUTIONS
from ctxmix_hf.cli.parser import build_parser
from ctxmix_hf.evaluation.papers.alti import METHODS as FERRANDO
from ctxmix_hf.evaluation.papers.desk import ANALYSED, VARIANTS
from ctxmix_hf.instrumentation.overrides import REFUSED
from ctxmix_hf.methods import METHODS
from ctxmix_hf.recipes import RECIPES, MethodInfo

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
KINDS = {
    "layer": "Maps per layer",
    "input": "Maps from the input",
    "attribution": "Scores for a class or word",
}
TEXT = "The keys [MASK] here."


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


# ---- a page per method ------------------------------------------------------------------------------------------
def method_page(info: MethodInfo) -> str:
    """Everything about one method: equation, cover, options, an example that runs, and its source."""
    cls = _class(info.name)
    facts = [
        ["gives", KINDS[info.kind].lower()],
        ["paper", info.paper],
        ["covers", info.covers],
        ["leaves out", info.leaves_out],
        ["cost", info.cost],
        ["needs", _needs(info.needs)],
    ]
    made = "" if info.name not in RECIPES else _recipe(info.name)
    return "\n\n".join(
        part
        for part in (
            f"# `{info.name}`",
            f"{info.summary[0].upper()}{info.summary[1:]}.",
            f"```text\n{info.equation}\n```\n\nLetters: [notation](index.md#notation).",
            table(facts[0], facts[1:]),
            made,
            f"## In its own words\n\n{_docstring(cls)}",
            "## Options\n\n" + _options(info),
            f"## Example\n\n```python\n{_example(info)}\n```",
            _source(cls),
        )
        if part
    )


def _class(name: str) -> type:
    if name in RECIPES:
        return type(RECIPES.get(name).method)
    return METHODS.get(name) if name in METHODS else ATTRIBUTIONS.get(name)


def _docstring(cls: type) -> str:
    """Without references to the maintainers' own specification."""
    return re.sub(r"(; METHODS\.md [\d.]+|\(METHODS\.md [\d.]+\))", "", inspect.getdoc(cls) or "")


def _needs(needs: str) -> str:
    return {
        "attention": "attention weights: every recorded family",
        "values": "attention weights and values: every recorded family",
        "block": "the decomposition: families that are exact in [the table](../architectures.md)",
        "feed_forward": "the decomposition and a feed-forward that is proved: `plain` or `gated` "
        "in [the table](../architectures.md)",
        "replay": "a layer that can be decomposed or run again: every recorded family",
        "model": "the model itself: every family; scores need a head",
    }[needs]


def _recipe(name: str) -> str:
    recipe = RECIPES.get(name)
    layer = next(n for n in METHODS if METHODS.get(n) is type(recipe.method))
    return f"A recipe: the layer maps of [`{layer}`]({layer}.md), joined over layers by {recipe.aggregation}."


def _options(info: MethodInfo) -> str:
    if not info.options:
        return "None."
    return table(
        ["option", "default"],
        [[f"`{name}`", f"`{value!r}`"] for name, value in info.options.items()],
    )


def _example(info: MethodInfo) -> str:
    pairs = [f"{name}={value!r}".replace("'", '"') for name, value in info.options.items()]
    start = f'import ctxmix_hf as cm\n\nmodel, tokenizer = cm.load_default()\ntext = "{TEXT}"\n'
    if info.kind == "attribution":
        call = ["model", "text", f'"{info.name}"', "class_index=are", "foil=wrong", *pairs]
        return (
            start
            + 'are, wrong = tokenizer.convert_tokens_to_ids(["are", "is"])\n'
            + _call("scores = cm.attribute", call)
            + "\n"
            'print(scores)     # which tokens decided for "are" and against "is"?'
        )
    named = (
        _call("chosen = cm.method", [f'"{info.name}"', *pairs])
        + "     # all options, at their defaults\n"
        if pairs
        else ""
    )
    return (
        start
        + named
        + f"m = cm.explain(model, text, {'chosen' if pairs else repr(info.name)})\n".replace(
            "'", '"'
        )
        + 'print(m.attribution("[MASK]"))     # what was the masked token made from?'
    )


def _call(function: str, arguments: list[str]) -> str:
    """On one line where it fits, else an argument per line."""
    line = f"{function}({', '.join(arguments)})"
    return (
        line
        if len(line) <= 72
        else f"{function}(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")"
    )


def _source(cls: type) -> str:
    path = Path(inspect.getfile(cls)).relative_to(ROOT)
    line = inspect.getsourcelines(cls)[1]
    body = "\n".join(f"    {row}".rstrip() for row in inspect.getsource(cls).splitlines())
    return f'## Source\n\n`{path}`, line {line}.\n\n??? note "Show it"\n\n    ```{{.py}}\n{body}\n    ```'


# ---- tables -----------------------------------------------------------------------------------------------------
def methods() -> str:
    """Every method with a link to its page, by kind."""
    blocks = []
    for kind, title in KINDS.items():
        rows = [
            [f"[`{i.name}`]({i.name}.md)", i.summary, i.covers, i.leaves_out, i.paper]
            for i in cm.list_methods(kind)
        ]
        blocks.append(
            f"### {title}\n\n"
            + table(["name", "what it is", "covers", "leaves out", "paper"], rows)
        )
    return "\n\n".join(blocks)


def architectures() -> str:
    """Families by modality: exact, recorded only, refused."""
    rows, exact = cm.supported_architectures(), defaultdict(list)
    for row in rows.values():
        if row.level == 2:
            exact[row.modality].append(row)
    parts = [f"## Exact: {sum(map(len, exact.values()))} families"]
    for modality, found in sorted(exact.items()):
        cells = [
            [
                f"`{r.name}`",
                r.order,
                r.norm,
                r.feed_forward,
                r.attention,
                "-" if r.error is None else f"{r.error:.0e}",
                "refused" if r.ledger is None else f"{r.ledger:.0e}",
            ]
            for r in found
        ]
        parts.append(
            f"### {modality} ({len(found)})\n\n"
            + table(
                ["family", "norms", "kind", "feed-forward", "attention", "error", "ledger's gap"],
                cells,
            )
        )
    near = [[f"`{r.name}`", r.modality, r.reason] for r in rows.values() if r.approximate]
    parts.append(
        f"## Approximate: {len(near)} families\n\n" + table(["family", "modality", "why"], near)
    )
    recorded = [
        [f"`{r.name}`", r.modality, r.reason]
        for r in rows.values()
        if r.level == 1 and not r.approximate
    ]
    parts.append(
        f"## Recorded, not decomposed: {len(recorded)} families\n\n"
        + table(["family", "modality", "why"], recorded)
    )
    reasons = defaultdict(list)
    for name, refusal in REFUSED.items():
        reasons[refusal.text].append(f"`{name}`")
    refused = [[", ".join(names), text] for text, names in reasons.items()]
    parts.append(
        f"## Refused: {len(REFUSED)} model types\n\n" + table(["model types", "why"], refused)
    )
    return "\n\n".join(parts)


def tested_with() -> str:
    text = (ROOT / "ctxmix_hf" / "architectures.json").read_text(encoding="utf-8")
    return f"Measured with transformers {json.loads(text)['transformers']}."


def cost() -> str:
    """Every `cost-*.json` as a table: multiples of one plain forward pass."""
    parts = []
    for path in sorted(RESULTS.glob("cost-*.json")):
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        tokens = sorted({row["T"] for row in rows})
        names = dict.fromkeys(row["method"] for row in rows)
        found = {(row["method"], row["T"]): f"{row['ratio']}x" for row in rows}
        first = rows[0]
        parts.append(
            f"{first['size']}, batch of {first['batch']}, {first['threads']} thread(s) (`{path.relative_to(ROOT)}`):"
        )
        head = ["asked for", *(f"T={t}" for t in tokens)]
        parts.append(
            table(head, [[name, *(found.get((name, t), "-") for t in tokens)] for name in names])
        )
    return "\n\n".join(parts)


def slow() -> str:
    """HTA and identifiability: seconds of one core beside what was asked of them, from their benchmarks."""
    held = json.loads((RESULTS / "exact.json").read_text(encoding="utf-8"))
    lines = []
    for tokens, target in HTA_TARGETS.items():
        row = held[f"hta T={tokens}"]
        lines += [
            [
                f"`hta`, all layers and tokens, exact: {tokens} tokens, MiniLM's size",
                f"{row['exact_seconds']:.1f}",
                f"{target}",
            ],
            [f"the same with `sketch={row['probes']}`", f"{row['sketch_seconds']:.1f}", "-"],
        ]
    path = RESULTS / "identifiability.json"
    learned = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    lines += [
        [
            f"identifiability: one map ({name}) with the paper's set-up, learned from {row['learned_from']} of "
            f"{row['tokens']} tokens, MiniLM",
            f"{row['seconds']:.1f}",
            f"{row['target']:.0f}",
        ]
        for name, row in learned.items()
    ]
    return table(["asked for", "seconds of one core", "at most, as a target"], lines)


HTA_TARGETS = {
    16: 44.6,
    32: 180,
}  # a tenth of what 16 tokens took before the chain rule; for 32, a wish
# item -> (what it measures, the paper's names of methods to ours)
EVIDENCE = {
    ("mohebbi2023", "Figure 2a", "blimp"): ("cue words, best layer", ANALYSED),
    ("mohebbi2023", "Figure 2b", "blimp"): ("cue words by average precision, best layer", ANALYSED),
    ("mohebbi2023", "Table 3", "blimp"): ("blank-out", ANALYSED),
    ("modarressi2022", "Table 1", "sst2"): ("gradient x input", VARIANTS),
    ("ferrando2022", "Table 2", "linzen"): ("blank-out, verbs", FERRANDO),
}


def evidence() -> str:
    """Methods by what the papers' items measured of them, with intervals, from `papers.json`."""
    held = json.loads((RESULTS / "papers.json").read_text(encoding="utf-8"))
    columns: dict[str, dict[str, str]] = {}
    for entry in held:
        item = (entry["paper"], entry["item"], entry["data"].split(":")[0])
        about, names = EVIDENCE.get(item, ("", {}))
        if not about:
            continue
        found = best_rows(entry, names)
        columns[f"{about}, {entry['model']} (n = {entry['n']}{knows(entry)})"] = {
            name: cell for name, (_, cell) in found.items()
        }
    order = [info.name for info in cm.list_methods()]
    shown = [name for name in order if any(name in column for column in columns.values())]
    lines = [[f"`{name}`", *(c.get(name, "-") for c in columns.values())] for name in shown]
    return table(["method", *columns], lines)


# what we would use -> items of papers.json (and methods in them), evaluations of ledger_evidence.json (and methods)
ANSWERS: dict[str, tuple[str, dict[tuple[str, str, str], list[str]], dict[str, list[str]]]] = {
    "what did a token take from others inside a layer?": (
        "`value_zeroing`; `norm` where it must be cheap",
        {
            ("mohebbi2023", "Figure 2a", "blimp"): ["value_zeroing", "norm", "attention", "random"],
            ("mohebbi2023", "Figure 2b", "blimp"): ["value_zeroing", "norm", "attention", "random"],
        },
        {},
    ),
    "what was the final vector made from?": (
        "`globenc`, `norm_res` or `alti`",
        {
            ("mohebbi2023", "Table 3", "blimp"): ["globenc", "norm_res", "alti", "value_zeroing"],
            ("modarressi2022", "Table 1", "sst2"): ["globenc", "norm_res", "attention_rollout"],
            ("ferrando2022", "Table 2", "linzen"): ["alti", "norm_rollout", "attention_rollout"],
        },
        {},
    ),
    "why this class or word?": (
        "`cm.ledger`; `integrated_gradients` to check it",
        {},
        {
            "blank-out": [
                "ledger",
                "ledger (rule='through')",
                "integrated_gradients",
                "alti_logit",
                "alti",
                "random",
            ]
        },
    ),
    "which word decided?": (
        "`alti_logit` or `cm.ledger`; `blank_out` to check it",
        {},
        {
            "cue first": [
                "alti_logit",
                "ledger",
                "blank_out",
                "integrated_gradients",
                "alti",
                "random",
            ]
        },
    ),
}
FAITHFUL = {
    "blank-out": ("faithfulness", {"reference": "blank_out"}, "mean"),
    "cue first": ("cue_alignment", {"layer": "input"}, "cue_first"),
}


def answers() -> str:
    """What we would use, and what for: each line's numbers, with intervals, from the committed results."""
    held = json.loads((RESULTS / "papers.json").read_text(encoding="utf-8"))
    lines = []
    for question, (use, items, measured) in ANSWERS.items():
        said = []
        for item, methods in items.items():
            about, names = EVIDENCE[item]
            for entry in held:
                if (entry["paper"], entry["item"], entry["data"].split(":")[0]) == item:
                    found = best_rows(entry, names)
                    told = ", ".join(f"`{m}` {found[m][1]}" for m in methods if m in found)
                    said.append(
                        f"{about}, {entry['model']}, n = {entry['n']}{knows(entry)}: {told}"
                    )
        for about, methods in measured.items():
            name, where, value = FAITHFUL[about]
            for model, tables in _evidence().items():
                rows = {
                    r["method"]: f"{r[value]:.2f} [{r['ci_low']:.2f}, {r['ci_high']:.2f}]"
                    for r in tables.get(name, {"rows": []})["rows"]
                    if all(r[k] == v for k, v in where.items())
                }
                told = ", ".join(f"`{m}` {rows[m]}" for m in methods if m in rows)
                if told:
                    size = next(r["n"] for r in tables[name]["rows"])
                    said.append(f"{about}, {model}, n = {size}: {told}")
        lines.append([question, use, "<br>".join(said)])
    return table(["question", "we would use", "measured (95 % intervals)"], lines)


def varied() -> str:
    """The controlled comparison of the rolled-out maps: one thing changed at a time, from `papers.json`."""
    held = json.loads((RESULTS / "papers.json").read_text(encoding="utf-8"))
    columns: dict[str, dict[str, str]] = {}
    for entry in held:
        if entry["item"] == "Table 3 varied":
            for row in entry["rows"]:
                method, _, way = row["name"].partition(", ")
                head = f"{method}, {entry['model']} (n = {entry['n']})"
                cell = f"{row['ours']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
                columns.setdefault(head, {})[way] = cell
    ways = list(dict.fromkeys(way for column in columns.values() for way in column))
    lines = [[way, *(column.get(way, "-") for column in columns.values())] for way in ways]
    return table(["changed", *columns], lines)


def knows(entry: dict[str, Any]) -> str:
    """How often the model is right about what it explains, where its entry says so."""
    found = re.search(r"\((\d\.\d+); chance", entry.get("how", ""))
    return "" if found is None else f", right on {found[1]}"


def best_rows(entry: dict[str, Any], names: dict[str, str]) -> dict[str, tuple[float, str]]:
    """Our method names to (value, cell) of an entry; of rows by layer the best one."""
    found: dict[str, tuple[float, str]] = {}
    for row in entry["rows"]:
        label = row["name"].partition(", layer ")[0]
        if label not in names or row["ours"] is None:
            continue
        cell = f"{row['ours']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        found[names[label]] = max(found.get(names[label], (-9.0, "")), (row["ours"], cell))
    return found


def ledger_cost() -> str:
    """`ledger.json`: multiples of one plain forward pass, and the memory of the three ledgers."""
    held = json.loads((RESULTS / "ledger.json").read_text(encoding="utf-8"))
    tokens = sorted({row["T"] for row in held["rows"]})
    found = {(row["asked"], row["T"]): row for row in held["rows"]}
    lines = []
    for name in dict.fromkeys(row["asked"] for row in held["rows"]):
        cells = []
        for t in tokens:
            row = found.get((name, t))
            memory = "" if row is None or row["peak_mb"] is None else f" ({row['peak_mb']:.0f} MB)"
            cells.append("-" if row is None else f"{row['forwards']:.1f}x{memory}")
        lines.append([name, *cells])
    first = {row["T"]: row["plain_peak_mb"] for row in held["rows"]}
    lines.append(["plain forward pass", *(f"1x ({first[t]:.0f} MB)" for t in tokens)])
    lines += [[name, said, *[""] * (len(tokens) - 1)] for name, said in held["literature"].items()]
    return table(["asked for", *(f"T={t}" for t in tokens)], lines)


def _evidence() -> dict[str, Any]:
    path = RESULTS / "ledger_evidence.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def ledger_evidence() -> str:
    """Methods by measured quality, with intervals, from `ledger_evidence.json`; n below each."""
    wanted = {  # evaluation -> (title, which rows, value)
        "cue_alignment": ("cue first", {"layer": "input"}, "cue_first"),
        "faithfulness": ("blank-out", {"reference": "blank_out"}, "mean"),
        "erasure": ("erasure", {}, "comprehensiveness"),
        "plausibility": ("marked words", {}, "auprc"),
    }
    parts = []
    for model, tables in _evidence().items():
        columns: dict[str, dict[str, str]] = {}
        for name, (title, where, value) in wanted.items():
            if name in tables:
                rows = [r for r in tables[name]["rows"] if all(r[k] == v for k, v in where.items())]
                columns[f"{title} (n = {rows[0]['n']})"] = {
                    r["method"]: f"{r[value]:.3f} [{r['ci_low']:.3f}, {r['ci_high']:.3f}]"
                    for r in rows
                }
        if columns:
            names = list(dict.fromkeys(n for column in columns.values() for n in column))
            lines = [
                [f"`{n}`", *(column.get(n, "-") for column in columns.values())] for n in names
            ]
            made = dict.fromkeys(tables[name]["commit"][:7] for name in wanted if name in tables)
            parts.append(
                f"**{model}** (commit {', '.join(made)})\n\n" + table(["method", *columns], lines)
            )
    return "\n\n".join(parts)


def believed() -> str:
    """Methods over all models by how well they follow blank-out, signed and in size, the best mean rank first."""
    parts = []
    for reference, title in BELIEVED.items():
        columns: dict[str, dict[str, tuple[float, str]]] = {}
        for model, tables in _evidence().items():
            rows = [r for r in tables["faithfulness"]["rows"] if r["reference"] == reference]
            sizes = {r["n"] for r in rows}
            columns[f"{model} (n = {max(sizes)})"] = {
                r["method"]: (r["mean"], f"{r['mean']:.2f} [{r['ci_low']:.2f}, {r['ci_high']:.2f}]")
                for r in rows
            }
        shared = set.intersection(*(set(column) for column in columns.values()))
        places: dict[str, list[int]] = {name: [] for name in shared}
        for column in columns.values():
            order = sorted(shared, key=lambda name: -column[name][0])
            for place, name in enumerate(order, 1):
                places[name].append(place)
        mean = {name: sum(found) / len(found) for name, found in places.items()}
        lines = [
            [f"`{name}`", *(column[name][1] for column in columns.values()), f"{mean[name]:.1f}"]
            for name in sorted(shared, key=lambda name: (mean[name], name))
        ]
        parts.append(f"{title}\n\n" + table(["method", *columns, "mean rank"], lines))
    return "\n\n".join(parts)


# references of the faithfulness table -> what a table of them is called
BELIEVED = {
    "blank_out": "Spearman's correlation with the *signed* drop of the answer when a token is blanked:",
    "blank_out_abs": "The same with the *size* of the change, whichever way it goes:",
}


def sanity() -> str:
    """Correlations by stage, one table per model."""
    parts = []
    for model, tables in _evidence().items():
        if "randomisation" in tables:
            rows = tables["randomisation"]["rows"]
            stages = list(dict.fromkeys(row["down_to"] for row in rows))
            found = {(row["method"], row["down_to"]): row["mean"] for row in rows}
            lines = [
                [
                    f"`{name}`",
                    *("-" if found[name, s] is None else f"{found[name, s]:.2f}" for s in stages),
                ]
                for name in dict.fromkeys(row["method"] for row in rows)
            ]
            made = table(["shuffled down to", *stages], lines)
            parts.append(
                f"**{model}** (n = {tables['randomisation']['meta']['sentences']})\n\n{made}"
            )
    return "\n\n".join(parts)


def completeness() -> str:
    """The mean and the largest difference, by method and model."""
    lines = [
        [
            model,
            f"`{row['method']}`",
            f"{row['missing']:.1e}",
            f"{row['largest']:.1e}",
            str(row["n"]),
        ]
        for model, tables in _evidence().items()
        if "completeness" in tables
        for row in tables["completeness"]["rows"]
    ]
    return table(["model", "method", "missing, mean", "largest", "n"], lines)


def similarity() -> str:
    """Deleted words, flipped rankings and cost, from `similarity.json`."""
    held = json.loads((RESULTS / "similarity.json").read_text(encoding="utf-8"))

    def said(found: dict[str, Any]) -> str:
        return f"{found['mean']:.2f} ({found['low']:.2f} to {found['high']:.2f})"

    parts = [
        f"{held['about']['model']}; {held['about']['data']}; in brackets 95 % bootstrap intervals."
    ]
    asked = {
        "words": "drop of the cosine when a word is deleted",
        "pairs": "interaction when a word of each text is deleted",
    }
    for name, title in asked.items():
        rows = held[name]["spearman"]
        count = next(iter(rows.values()))["n"]
        order = sorted(rows, key=lambda method: -rows[method]["mean"])
        parts.append(
            table(
                [f"Spearman with the {title} ({count} pairs of sentences)", ""],
                [[m, said(rows[m])] for m in order],
            )
        )
    flips = held["ranking"]["flips"]
    count = next(iter(flips.values()))["difference"]["n"]
    head = [
        f"another document comes first ({count} queries) without three",
        "strongest words",
        "other words",
        "difference",
    ]
    parts.append(
        table(
            head,
            [
                [
                    name,
                    *(
                        said(found[key])
                        for key in ("three strongest", "three others", "difference")
                    ),
                ]
                for name, found in flips.items()
            ],
        )
    )
    cost = {size: row for size, row in held["cost"].items() if size.startswith("T=")}
    lines = [
        [name, *(f"{row[name]}x" for row in cost.values())]
        for name in ("totals", "top_k=3", "pairs")
    ]
    parts.append(table(["plain forward passes of both texts, one thread", *cost], lines))
    return "\n\n".join(parts)


def versions() -> str:
    """What the package asks for beside what CI installs."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").replace("_", "-")
    asked = re.findall(
        r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)"',
        project.partition("dependencies = [")[2].partition("test = [")[0],
    )
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", constraints, flags=re.MULTILINE))
    python = re.search(r'requires-python = ">=([\d.]+)"', project)
    rows = [[name, least, pinned[name]] for name, least in dict(asked).items() if name in pinned]
    return table(
        ["", "at least", "tested with"],
        [["Python", python.group(1) if python else "", "3.11"], *rows],
    )


def commands() -> str:
    """The help of every command, as it prints itself."""
    parser = build_parser()
    chosen = next(action for action in parser._actions if action.dest == "command")
    assert isinstance(chosen.choices, dict)
    return "\n\n".join(
        f"## ctxmix {name}\n\n```text\n{made.format_help().strip()}\n```"
        for name, made in chosen.choices.items()
    )


def tools() -> str:
    """The assistant's tools, as a client lists them."""
    asked = Tools(None)  # type: ignore[arg-type]  # described, not called
    found = [(name, *describe(getattr(asked, name))) for name in NAMES]
    rows = [
        [f"`{name}`", about, ", ".join(f"`{key}`" for key in schema["properties"])]
        for name, about, schema in found
    ]
    return table(["tool", "what for", "parameters"], rows)


TABLES = {
    "methods": methods,
    "architectures": architectures,
    "tested_with": tested_with,
    "cost": cost,
    "slow": slow,
    "evidence": evidence,
    "answers": answers,
    "varied": varied,
    "commands": commands,
    "versions": versions,
    "ledger_cost": ledger_cost,
    "ledger_evidence": ledger_evidence,
    "believed": believed,
    "sanity": sanity,
    "completeness": completeness,
    "similarity": similarity,
    "tools": tools,
}


def filled(markdown: str) -> str:
    """A page with its marks replaced by what they stand for."""
    return re.sub(r"<!-- generated: (\w+) -->", lambda match: TABLES[match.group(1)](), markdown)


# ---- the hook ---------------------------------------------------------------------------------------------------
def on_config(config: Any) -> Any:
    """Method pages into the navigation, below "Methods"."""
    section = next(
        item["Methods"] for item in config.nav if isinstance(item, dict) and "Methods" in item
    )
    for kind, title in KINDS.items():
        section.append(
            {title: [{info.name: f"methods/{info.name}.md"} for info in cm.list_methods(kind)]}
        )
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for info in cm.list_methods():
        files.append(File.generated(config, f"methods/{info.name}.md", content=method_page(info)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return filled(markdown)
