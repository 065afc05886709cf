"""Imports point down: read from the source, not from what happens to be loaded."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import ctxmix_hf as cm

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ctxmix_hf"

# From the bottom up: a module may import its own part and parts further down the list.
ORDER = [
    ["errors", "addresses", "bundled"],
    ["registry", "counting", "algebra", "pieces", "task", "heads", "unwrapping", "workspace"],
    ["text"],  # the only calls of a tokenizer or processor, the only reader of corpora
    ["aggregation"],  # pure tensor functions; below results, because a map aggregates itself
    ["results", "records"],  # know nothing of drawing or of files
    ["viz"],
    ["formats"],
    ["outputs"],
    ["methods"],
    ["attribution"],
    ["instrumentation"],
    ["recipes"],
    ["sparse"],
    ["modeling"],
    ["auto", "catalogue", "architectures", "calling", "pooling"],
    ["embedders"],
    ["explaining"],
    ["accounting"],
    ["verification", "pipeline", "loading", "similarities", "lenses", "asked", "judging", "frames"],
    ["hub"],  # pushes and pulls; the core does not import it
    ["certifying"],
    ["evaluation"],
    ["precompute"],
    ["assistant"],
    ["demo"],
    ["cli"],
    ["__main__"],
]


def parts() -> dict[str, int]:
    return {name: level for level, names in enumerate(ORDER) for name in names}


def imports(path: Path) -> list[str]:
    """The modules of ctxmix_hf that a file imports, wherever in the file, for whatever reason."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports hide where they point"
            module = node.module or ""
            found += [module, *(f"{module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    known = modules()
    return [name for name in found if name in known and name != "ctxmix_hf"]


def taken_from(path: Path) -> set[str]:
    """The modules whose own names, not their submodules, a file takes by `from ... import ...`."""
    known = modules()
    return {
        node.module
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module in known
        for alias in node.names
        if f"{node.module}.{alias.name}" not in known and alias.name != "__version__"
    }


def takes_public_names(path: Path) -> bool:
    """Does it import the package itself, through which everything can be reached?"""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    plain = (a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names)
    return "ctxmix_hf" in plain or "ctxmix_hf" in taken_from(path)


@cache
def modules() -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    paths = sorted(PACKAGE.rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return dict(zip((n.removesuffix(".__init__") for n in names), paths, strict=True))


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_point_down(name: str) -> None:
    level = parts()
    own = name.partition(".")[2].partition(".")[0]
    if not own:
        return
    assert own in level, f"{own} has no place in the order: add it to ORDER"
    for other in imports(modules()[name]):
        part = other.split(".")[1]
        assert part == own or level[part] < level[own], (
            f"{name} imports {other}, which is not below {own}"
        )


def test_the_drawing_of_the_layers_is_the_order() -> None:
    """docs/architecture.md names every part once, none above what it may import."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+) \| ", text, flags=re.MULTILINE)
    drawn = [re.findall(r"`(\w+)`", row) for row in rows]
    level = parts()
    assert sorted(name for row in drawn for name in row) == sorted(set(level) - {"__main__"})
    for above, below in pairwise(drawn):
        assert min(level[name] for name in above) >= max(level[name] for name in below)


def test_no_import_leads_back() -> None:
    """Over all imports, those inside functions and for type checking too, there is no cycle. What a module takes from
    the packages it stands in counts, their submodules as themselves.
    """
    graph = {}
    for name, path in modules().items():
        others = {other for other in imports(path) if not f"{name}.".startswith(f"{other}.")}
        graph[name] = (others | taken_from(path)) - {name, "ctxmix_hf"}
    del graph["ctxmix_hf"]  # the public names: who takes them is the next test
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("imports lead back: " + " <- ".join(error.args[1]))


def test_only_the_page_uses_the_public_names() -> None:
    """`import ctxmix_hf` reaches everything, so below the page it would hide where an import points."""
    users = {name for name, path in modules().items() if takes_public_names(path)}
    assert {name.split(".")[1] for name in users} == {"demo"}


def test_the_check_sees_imports_wherever_they_stand(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden.py"
    hidden.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from ctxmix_hf.cli import main\n"
        "def f():\n    import ctxmix_hf.demo\n    from ctxmix_hf.hub import store\n"
    )
    assert set(imports(hidden)) == {
        "ctxmix_hf.cli",
        "ctxmix_hf.demo",
        "ctxmix_hf.hub",
        "ctxmix_hf.hub.store",
    }
    for code in ("import ctxmix_hf as cm", "def f():\n    from ctxmix_hf import MapStore"):
        hidden.write_text(f"{code}\n")
        assert takes_public_names(hidden)
    hidden.write_text("from ctxmix_hf import __version__, loading\n")
    assert not takes_public_names(hidden) and imports(hidden) == ["ctxmix_hf.loading"]


def test_no_module_hides_a_public_function() -> None:
    """A submodule of a public function's name would take its place once it is imported."""
    for name in modules():
        if name.rpartition(".")[2] != "__main__":
            importlib.import_module(name)
    for name in cm.__all__:
        value = getattr(cm, name)
        assert not isinstance(value, ModuleType), f"ctxmix_hf.{name} is a module"
    assert callable(cm.ledger) and callable(cm.explain) and callable(cm.method)


@pytest.mark.parametrize("folder", ["spaces", "benchmarks"])
def test_outsiders_use_public_names_only(folder: str) -> None:
    allowed = (
        {"demo"}
        if folder == "spaces"
        else {"evaluation", "aggregation", "hub", "precompute", "recipes", "text", "auto"}
    )
    for path in sorted((ROOT / folder).rglob("*.py")):
        for other in imports(path):
            assert other.split(".")[1] in allowed, f"{path} imports ctxmix_hf.{other}"


def test_methods_never_see_a_model() -> None:
    for path in sorted((PACKAGE / "methods").rglob("*.py")):
        assert "transformers" not in path.read_text(encoding="utf-8").replace(
            "transformers model", ""
        )


def test_instrumenting_does_not_import_the_hub() -> None:
    script = (
        "import sys, ctxmix_hf as cm\n"
        "from transformers import BertConfig, BertModel\n"
        "size = dict(hidden_size=8, num_attention_heads=2, intermediate_size=8, vocab_size=9)\n"
        "cm.instrument(BertModel(BertConfig(num_hidden_layers=1, **size)).eval())\n"
        "print([m for m in sys.modules if m.startswith('ctxmix_hf.hub.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_only_one_module_calls_a_tokenizer_or_a_processor() -> None:
    """Everything else asks `text.batch`, so that texts become tensors in one way."""
    readers = {"tokenizer", "processor"}
    verbs = {"tokenize", "encode_plus", "batch_encode_plus"}
    for name, path in modules().items():
        if name == "ctxmix_hf.text.batch":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                assert called not in readers | verbs, f"{name}, line {node.lineno}: {called}"
                asked = ast.unparse(node.func).split(".")[:-1][-1:]
                assert called != "encode" or not readers & {*asked}, f"{name}, line {node.lineno}"


def test_no_module_writes_to_a_record() -> None:
    """A record is what a forward pass left: frozen, so nothing computed from it can be about something else."""
    from ctxmix_hf.records import LayerRecord, ModelRecord

    for kind in (LayerRecord, ModelRecord):
        assert kind.__dataclass_params__.frozen
    for (
        name,
        path,
    ) in modules().items():  # frozen means frozen: a default may be filled in at birth, no later
        tree = ast.parse(path.read_text(encoding="utf-8"))
        born = [n for n in ast.walk(tree) if getattr(n, "name", "") == "__post_init__"]
        at_birth = {id(node) for birth in born for node in ast.walk(birth)}
        for node in ast.walk(tree):
            if getattr(node, "attr", "") == "__setattr__":
                assert id(node) in at_birth, f"{name}, line {node.lineno}"
