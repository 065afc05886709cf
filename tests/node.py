"""Tools of the front end (prettier, eslint, axe-core): installed once from package-lock.json into node_modules/."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "node_modules"


def modules() -> Path:
    """The folder, as package-lock.json says; the test is skipped where npm or its registry is out of reach."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: CI has it")
    lock = (ROOT / "package-lock.json").read_text()
    (ROOT / "tests" / "artifacts").mkdir(exist_ok=True)
    with (ROOT / "tests" / "artifacts" / "npm.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # two workers of the test run want it at once
        stamp = FOLDER / ".installed"
        if not stamp.exists() or stamp.read_text() != lock:
            done = subprocess.run(
                ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=300,
            )
            if done.returncode and "network" in done.stderr.lower() + done.stdout.lower():
                pytest.skip(f"npm reaches no registry: {done.stderr[-200:]}")
            assert done.returncode == 0, done.stderr[-2000:]
            stamp.write_text(lock)
    return FOLDER
