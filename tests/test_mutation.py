"""A few of `scripts/mutation.py`'s mutations, tried again: broken methods are noticed by the fast tests."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_broken_methods_are_noticed() -> None:
    run = subprocess.run(
        [sys.executable, "scripts/mutation.py", "--first", "3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 of 3 mutations noticed" in run.stdout


def test_every_mutation_still_applies() -> None:
    """A line that was reworded would otherwise be found out only in the long run."""
    spec = importlib.util.spec_from_file_location("mutation", ROOT / "scripts" / "mutation.py")
    assert spec is not None and spec.loader is not None
    script = sys.modules["mutation"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert len(script.MUTATIONS) >= 57
    for mutation in script.MUTATIONS:
        source = (ROOT / "ctxmix_hf" / mutation.file).read_text(encoding="utf-8")
        assert source.count(mutation.old) == 1, mutation.what
