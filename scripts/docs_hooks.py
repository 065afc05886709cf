"""The generated part of the documentation, as a mkdocs hook: a page per method, and the tables between `<!-- generated: ... -->` marks.

Everything is read off the registry, `architectures.json`, `benchmarks/results` and the command line's own parser, so a new method
or family is in the documentation without an edit. `tests/test_docs.py` runs the examples on these pages.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import ctxmix_hf as cm
from ctxmix_hf.attribution import ATTRIBUTIONS
from ctxmix_hf.cli.parser import build_parser
from ctxmix_hf.instrumentation.overrides import REFUSED
from ctxmix_hf.methods import METHODS
from ctxmix_hf.recipes import RECIPES, MethodInfo

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
KINDS = {"layer": "Maps per layer", "input": "Maps from the input", "attribution": "Scores for a class or word"}
TEXT = "The keys [MASK] here."




def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# ---- a page per method ------------------------------------------------------------------------------------------
def method_page(info: MethodInfo) -> str:
    """Everything about one method: equation, cover, options, an example that runs, and its source."""
    cls = _class(info.name)
    facts = [["gives", KINDS[info.kind].lower()], ["paper", info.paper], ["covers", info.covers], ["leaves out", info.leaves_out],
             ["cost", info.cost], ["needs", _needs(info.needs)]]  # fmt: skip
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
    return table(["option", "default"], [[f"`{name}`", f"`{value!r}`"] for name, value in info.options.items()])


def _example(info: MethodInfo) -> str:
    pairs = [f"{name}={value!r}".replace("'", '"') for name, value in info.options.items()]
    start = f'import ctxmix_hf as cm\n\nmodel, tokenizer = cm.load_default()\ntext = "{TEXT}"\n'
    if info.kind == "attribution":
        call = ["model", "text", f'"{info.name}"', "class_index=are", "foil=wrong", *pairs]
        return (
            start + 'are, wrong = tokenizer.convert_tokens_to_ids(["are", "is"])\n' + _call("scores = cm.attribute", call) + "\n"
            'print(scores)     # which tokens decided for "are" and against "is"?'
        )
    named = _call("chosen = cm.method", [f'"{info.name}"', *pairs]) + "     # all options, at their defaults\n" if pairs else ""
    return (
        start + named + f"m = cm.explain(model, text, {'chosen' if pairs else repr(info.name)})\n".replace("'", '"')
        + 'print(m.attribution("[MASK]"))     # what was the masked token made from?'
    )  # fmt: skip


def _call(function: str, arguments: list[str]) -> str:
    """On one line where it fits, else an argument per line."""
    line = f"{function}({', '.join(arguments)})"
    return line if len(line) <= 72 else f"{function}(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")"


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
        rows = [[f"[`{i.name}`]({i.name}.md)", i.summary, i.covers, i.leaves_out, i.paper] for i in cm.list_methods(kind)]
        blocks.append(f"### {title}\n\n" + table(["name", "what it is", "covers", "leaves out", "paper"], rows))
    return "\n\n".join(blocks)


def architectures() -> str:
    """Families by modality: exact, recorded only, refused."""
    rows, exact = cm.supported_architectures(), defaultdict(list)
    for row in rows.values():
        if row.level == 2:
            exact[row.modality].append(row)
    parts = [f"## Exact: {sum(map(len, exact.values()))} families"]
    for modality, found in sorted(exact.items()):
        cells = [[f"`{r.name}`", r.order, r.norm, r.feed_forward, r.attention, "-" if r.error is None else f"{r.error:.0e}"] for r in found]
        parts.append(f"### {modality} ({len(found)})\n\n" + table(["family", "norms", "kind", "feed-forward", "attention", "error"], cells))
    recorded = [[f"`{r.name}`", r.modality, r.reason] for r in rows.values() if r.level == 1]
    parts.append(f"## Recorded, not decomposed: {len(recorded)} families\n\n" + table(["family", "modality", "why"], recorded))
    reasons = defaultdict(list)
    for name, refusal in REFUSED.items():
        reasons[refusal.text].append(f"`{name}`")
    refused = [[", ".join(names), text] for text, names in reasons.items()]
    parts.append(f"## Refused: {len(REFUSED)} model types\n\n" + table(["model types", "why"], refused))
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
        parts.append(f"{first['size']}, batch of {first['batch']}, {first['threads']} thread(s) (`{path.relative_to(ROOT)}`):")
        head = ["asked for", *(f"T={t}" for t in tokens)]
        parts.append(table(head, [[name, *(found.get((name, t), "-") for t in tokens)] for name in names]))
    return "\n\n".join(parts)


def evidence() -> str:
    """Maps against two references on the models of papers.md, from `papers.json`."""
    held = json.loads((RESULTS / "papers.json").read_text(encoding="utf-8"))
    columns: dict[str, dict[str, float]] = {}
    for model in ("minilm_agreement", "box_agreement"):
        cues = [row for row in held[model]["value_zeroing_figure_1"]["rows"] if row["dot_product"] is not None]
        inside = [row for row in cues if row["layer"] != "input"]
        columns[f"{model}: cue, best layer"] = {
            name: max(row["dot_product"] for row in inside if row["method"] == name) for name in {row["method"] for row in inside}
        }
        columns[f"{model}: cue, from the input"] = {row["method"]: row["dot_product"] for row in cues if row["layer"] == "input"}
    for model, part in (("minilm_agreement", "value_zeroing_table_2"), ("minilm_sst2", "globenc_table_1_alti_table_2")):
        rows = [row for row in held[model][part]["rows"] if row["reference"] == "blank_out_abs"]
        columns[f"{model}: blank-out"] = {row["method"]: row["mean"] for row in rows}
    maps = [info.name for info in cm.list_methods() if info.kind != "attribution"] + ["random"]
    maps = [name for name in maps if any(name in column for column in columns.values())]
    lines = [[f"`{name}`", *(f"{column[name]:.2f}" if name in column else "-" for column in columns.values())] for name in maps]
    return table(["method", *columns], lines)


def versions() -> str:
    """What the package asks for beside what CI installs."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").replace("_", "-")
    asked = re.findall(r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)"', project.partition("dependencies = [")[2].partition("test = [")[0])
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", constraints, flags=re.MULTILINE))
    python = re.search(r'requires-python = ">=([\d.]+)"', project)
    rows = [[name, least, pinned[name]] for name, least in dict(asked).items() if name in pinned]
    return table(["", "at least", "tested with"], [["Python", python.group(1) if python else "", "3.11"], *rows])


def commands() -> str:
    """The help of every command, as it prints itself."""
    parser = build_parser()
    chosen = next(action for action in parser._actions if action.dest == "command")
    assert isinstance(chosen.choices, dict)
    return "\n\n".join(f"## ctxmix {name}\n\n```text\n{made.format_help().strip()}\n```" for name, made in chosen.choices.items())


TABLES = {
    "methods": methods, "architectures": architectures, "tested_with": tested_with, "cost": cost, "evidence": evidence,
    "commands": commands, "versions": versions,
}  # fmt: skip


def filled(markdown: str) -> str:
    """A page with its marks replaced by what they stand for."""
    return re.sub(r"<!-- generated: (\w+) -->", lambda match: TABLES[match.group(1)](), markdown)


# ---- the hook ---------------------------------------------------------------------------------------------------
def on_config(config: Any) -> Any:
    """Method pages into the navigation, below "Methods"."""
    section = next(item["Methods"] for item in config.nav if isinstance(item, dict) and "Methods" in item)
    for kind, title in KINDS.items():
        section.append({title: [{info.name: f"methods/{info.name}.md"} for info in cm.list_methods(kind)]})
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for info in cm.list_methods():
        files.append(File.generated(config, f"methods/{info.name}.md", content=method_page(info)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return filled(markdown)
