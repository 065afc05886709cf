"""What is imported is declared, and every declared range has a tested end: docs/versions.md says so."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
CORE = PROJECT.partition("\ndependencies = [")[2].partition("]")[0]
EXTRAS = PROJECT.partition("[project.optional-dependencies]")[2].partition("[project.scripts]")[0]
NAMES = {"huggingface_hub": "huggingface-hub"}


def imported(top_level: bool) -> dict[str, str]:
    """Third-party modules of the package -> a file that imports them; with `top_level` only what no
    function or `try` guards.
    """
    found: dict[str, str] = {}
    for path in (ROOT / "ctxmix_hf").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body if top_level else ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += (
                [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            )
            found |= {name.split(".")[0]: str(path.relative_to(ROOT)) for name in names}
    return {
        name: at
        for name, at in found.items()
        if name and name != "ctxmix_hf" and name not in sys.stdlib_module_names
    }


def test_what_the_core_imports_is_declared() -> None:
    """Not left to what another package happens to bring."""
    declared = set(re.findall(r'"([\w-]+)', CORE))
    for name, path in imported(top_level=True).items():
        if path.startswith("ctxmix_hf/demo/"):
            continue  # the extra [demo]
        assert NAMES.get(name, name) in declared, (
            f"{path} imports {name}, which pyproject.toml does not declare"
        )


def test_every_range_has_a_tested_end() -> None:
    """The policy in the place of upper bounds: CI runs the versions of constraints.txt, so each
    declared package stands there.
    """
    pinned = set(
        re.findall(
            r"^([\w-]+)==",
            (ROOT / "constraints.txt").read_text().replace("_", "-"),
            flags=re.MULTILINE,
        )
    )
    runtime = EXTRAS.partition("\ndocs =")[0] + CORE
    asked = set(re.findall(r'"([\w-]+)(?:\[[\w,]+\])?>=', runtime))
    assert asked and asked <= pinned, f"not pinned in constraints.txt: {sorted(asked - pinned)}"
    assert "tested with" in (ROOT / "docs" / "versions.md").read_text()


def test_the_range_of_mcp_is_that_of_gradio() -> None:
    """gradio[mcp] is not asked for (pyproject.toml says why), so its range is kept by hand."""
    pytest.importorskip("gradio", reason="the demo extra is not installed")
    theirs = [Requirement(line) for line in importlib.metadata.requires("gradio") or ()]
    (wanted,) = [one.specifier for one in theirs if one.name == "mcp"]
    ours = Requirement(re.findall(r'^mcp = \["([^"]+)"', EXTRAS, flags=re.MULTILINE)[0])
    assert ours.name == "mcp"
    bounds = lambda given: {(one.operator, Version(one.version)) for one in given}
    assert bounds(ours.specifier) == bounds(wanted)


def test_an_extra_that_is_named_brings_the_package() -> None:
    """Every "This needs X: pip install 'ctxmix-hf[Y]'" of the source, and what Y asks for."""
    named = {
        pair
        for path in (ROOT / "ctxmix_hf").rglob("*.py")
        for pair in re.findall(
            r'MissingDependencyError\.of\("([\w-]+)", "(\w+)"\)', path.read_text(encoding="utf-8")
        )
    }
    assert {extra for _, extra in named} >= {"data", "demo", "interop", "mcp", "notebook", "plot"}
    for package, extra in sorted(named):
        (asked,) = re.findall(rf"^{extra} = \[(.+)\]", EXTRAS, flags=re.MULTILINE)
        assert re.search(rf'"{package}(\[\w+\])?[><=]', asked), (package, extra)


@pytest.mark.parametrize("package", ["gradio", "matplotlib"])
def test_a_command_without_its_extra_says_which(package: str, tmp_path: Path) -> None:
    """As from a wheel that was installed bare: one sentence, no traceback."""
    words = {
        "gradio": ["demo"],
        "matplotlib": ["explain", "She sang.", "--out", str(tmp_path / "map.png")],
    }[package]
    code = f"import sys; sys.modules[{package!r}] = None; from ctxmix_hf.cli import main; sys.exit(main({words!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    extra = {"gradio": "demo", "matplotlib": "plot"}[package]
    said = (
        f"ctxmix: This needs {package}, which is not installed: pip install 'ctxmix-hf[{extra}]'."
    )
    assert (done.returncode, done.stderr.strip().splitlines()) == (2, [said])
