"""The scripts of the widget under node's own test runner; the browser tests drive the whole of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1] / "js"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_scripts_pass_their_own_tests() -> None:
    files = sorted(map(str, TESTS.glob("*.test.mjs")))
    done = subprocess.run(["node", "--test", *files], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-3000:]
