"""Imports point down: read from the source, not from what happens to be loaded."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ctxmix_hf"

# From the bottom up: a module may import its own part and parts further down the list.
ORDER = [
    ["errors"],
    ["tokens", "algebra", "registry", "pieces"],
    ["aggregation"],  # pure tensor functions; below maps, because a map aggregates itself
    ["viz"],  # draws from plain arrays and maps given to it
    ["views"],
    ["records", "maps"],
    ["outputs"],
    ["methods"],
    ["attribution"],
    ["instrumentation"],
    ["recipes"],
    ["hub"],  # a cached map opens without a model: see test_hub_opens_without_models
    ["modeling"],
    ["auto", "catalogue", "architectures"],
    ["explaining"],
    ["verification", "pipeline", "loading"],
    ["evaluation"],
    ["precompute"],
    ["demo"],
    ["cli"],
    ["__main__"],
]
# Imports inside functions that are allowed, because the other side is optional and only used when asked for.
LAZY_UP = {("views", "viz"), ("viz", "maps"), ("viz", "views")}


def parts() -> dict[str, int]:
    return {name: level for level, names in enumerate(ORDER) for name in names}


def imports(path: Path) -> list[tuple[str, bool]]:
    """(part of ctxmix_hf that is imported, whether it is inside a function or only for type checking)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            lazy |= {id(n) for n in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "ctxmix_hf" else [f"ctxmix_hf.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        found += [(name.split(".")[1], id(node) in lazy) for name in names if name.startswith("ctxmix_hf.")]
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    level = parts()
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    assert own in level, f"{own} has no place in the order: add it to ORDER"
    for other, lazy in imports(path):
        if other not in level:
            continue  # a public name
        down = level[other] < level[own] or other == own
        assert down or lazy or (own, other) in LAZY_UP, f"{path.name} imports {other}, which is above {own}"


@pytest.mark.parametrize("folder", ["spaces", "benchmarks"])
def test_outsiders_use_public_names_only(folder: str) -> None:
    allowed = {"demo"} if folder == "spaces" else {"evaluation", "aggregation", "hub", "precompute", "recipes", "tokens", "auto"}
    for path in sorted((ROOT / folder).rglob("*.py")):
        for other, _ in imports(path):
            assert other not in parts() or other in allowed, f"{path} imports ctxmix_hf.{other}"


def test_methods_never_see_a_model() -> None:
    for path in sorted((PACKAGE / "methods").rglob("*.py")):
        assert "transformers" not in path.read_text(encoding="utf-8").replace("transformers model", "")


def test_modules_are_small() -> None:
    long = {str(p.relative_to(PACKAGE)): n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 320}
    assert not long
