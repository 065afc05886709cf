"""The front end: its modules under node's own test runner, formatted, linted, and joined into one script."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ctxmix_hf.viz import canvas
from tests.node import ROOT, modules

TESTS = ROOT / "tests" / "js"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@needs_node
def test_the_scripts_pass_their_own_tests() -> None:
    run("node", "--test", *sorted(map(str, TESTS.glob("*.test.mjs"))))


def test_the_scripts_are_formatted_and_linted() -> None:
    tools = modules() / ".bin"
    run(str(tools / "prettier"), "--check", ".")
    run(str(tools / "eslint"), "--max-warnings", "0", ".")


def test_the_lock_names_no_registry() -> None:
    lock = (ROOT / "package-lock.json").read_text()
    assert '"resolved"' not in lock


@needs_node
def test_the_joined_script_is_whole(tmp_path: Path) -> None:
    """Every module once, none of its names twice (node refuses that), small, and defined only once in a page."""
    pytest.importorskip("gradio", reason="the extra [demo] is not installed")
    from ctxmix_hf.demo import parts

    for name, made in (
        ("widget", canvas.script()),
        ("drawings", canvas.aloud()),
        ("page", parts.page_script()),
    ):
        (tmp_path / f"{name}.js").write_text(made)
        run("node", "--check", str(tmp_path / f"{name}.js"))
        assert not re.search(r"^(import|export) ", made, flags=re.MULTILINE)
    folder = ROOT / "ctxmix_hf" / "viz" / "js"
    for path in folder.glob("*.js"):
        for declared in re.findall(
            r"^export (?:class|const|function) (\w+)", path.read_text(), re.M
        ):
            kinds = rf"^(?:class|const|function) {declared}\b"
            assert re.search(kinds, canvas.script() + canvas.aloud(), re.M), declared
    assert len(canvas.script()) < 60_000
    version = re.search(r"version: (\d+)", (folder / "main.js").read_text())
    assert version and f"version >= {version.group(1)})" in canvas.script()
