"""A test run leaves tracked files as they were, and `scripts/test.sh` fails if it does not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUARD = ROOT / "scripts" / "unchanged.sh"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\x00 one")
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "one"],
    ):
        assert run(tmp_path, "git", *words).returncode == 0
    return tmp_path


def test_a_run_that_changes_a_tracked_file_fails(checkout: Path) -> None:
    done = run(checkout, "bash", str(GUARD), "sh", "-c", "printf '\\211PNG\\000 two' > picture.png")
    assert done.returncode == 1 and "M picture.png" in done.stderr
    # what somebody had changed before is not the run's doing, a second change of the same file is
    assert run(checkout, "bash", str(GUARD), "true").returncode == 0
    assert run(checkout, "bash", str(GUARD), "rm", "picture.png").returncode == 1


def test_other_runs_keep_their_exit_code(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert run(checkout, "bash", str(GUARD), "touch", "new.txt").returncode == 0
    assert run(checkout, "bash", str(GUARD), "sh", "-c", "exit 5").returncode == 5
    assert run(checkout, "bash", str(GUARD), "sh", "-c", "rm picture.png; exit 5").returncode == 5
    outside = tmp_path_factory.mktemp("outside")
    assert run(outside, "bash", str(GUARD), "sh", "-c", "exit 3").returncode == 3


def test_every_pytest_of_the_test_script_is_guarded() -> None:
    lines = [
        line
        for line in (ROOT / "scripts" / "test.sh").read_text().splitlines()
        if re.search(r"pytest|test_oldest|test_interop", line)
    ]
    assert len(lines) == 3 and all("scripts/unchanged.sh " in line for line in lines)


@pytest.mark.parametrize("skipped", [True, False])
def test_where_nothing_may_be_skipped_a_skip_fails(skipped: bool, tmp_path: Path) -> None:
    """The rule scripts/test_interop.sh runs by: a package that is missing there is an error."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    package = "no_such_package" if skipped else "torch"
    line = f"def test_it():\n    pytest.importorskip({package!r})\n"
    (tmp_path / "test_it.py").write_text(f"import pytest\n\n\n{line}")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py"]
    asked = {"cwd": tmp_path, "capture_output": True, "text": True}
    assert subprocess.run(command, **asked).returncode == 0
    strict = subprocess.run(command, env={**os.environ, "NOTHING_SKIPPED": "1"}, **asked)
    assert strict.returncode == skipped and (package in strict.stdout) == skipped


def test_the_gallery_draws_every_picture_of_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra [plot] is not installed")
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import gallery
    finally:
        sys.path.pop(0)
    made = gallery.gallery(tmp_path, text="The key [MASK] old.")
    names = {path.stem for path in made}
    assert {"views", "null", "alti_layers", "value_zeroing_grid"} <= names
    assert len(names) == 2 + 2 * len(gallery.METHODS)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made)
