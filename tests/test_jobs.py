"""The jobs: uv reads their inline metadata and runs them; without a token they stop before they cost anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
JOBS = sorted((ROOT / "scripts" / "jobs").glob("*.py"))
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
ASKED = {
    "precompute": ["--dataset", "reviews.csv", "--methods", "alti"],
    "evaluate": ["--suite", "sentiment", "--limit", "5"],
    "papers": ["--paper", "globenc", "--limit", "5"],
}
SAID = {
    "precompute": "ctxmix precompute --dataset reviews.csv --methods alti --out maps\nctxmix push maps me/it\n",
    "evaluate": "ctxmix evaluate --suite sentiment --limit 5 --out evidence --to-hub me/it\n",
    "papers": "ctxmix papers --paper globenc --limit 5 --out papers\nupload papers to me/it\n",
}


def metadata(text: str) -> str:
    """The block of PEP 723, by the pattern the PEP gives."""
    pattern = r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$"
    (found,) = [m for m in re.finditer(pattern, text) if m["type"] == "script"]
    return "".join(line[2:] or "\n" for line in found["content"].splitlines(keepends=True))


def uv(path: Path, *words: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """`uv run` in this environment: the metadata is read, but nothing is installed."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("uv is not installed (extra test)")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    settings = {"PYTHONPATH": str(ROOT), "HF_HOME": str(folder), "UV_OFFLINE": "1", **env}
    command = [found, "run", "--no-project", "--active", "--python", sys.executable, "python"]
    return subprocess.run(
        [*command, str(path), *words],
        cwd=folder,
        env={**kept, "VIRTUAL_ENV": sys.prefix, **settings},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_inline_metadata_names_this_package(path: Path) -> None:
    block = metadata(path.read_text(encoding="utf-8"))
    assert 'requires-python = ">=3.10"' in block and 'requires-python = ">=3.10"' in PROJECT
    (extras,) = re.findall(r'dependencies = \["ctxmix-hf\[([\w,]+)\]"\]', block)
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", PROJECT, flags=re.MULTILINE), extra


def test_uv_reads_the_metadata(tmp_path: Path) -> None:
    """uv itself resolves from the block: offline it fails on the package the block names, not on the block."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("uv is not installed (extra test)")
    for path in JOBS:
        done = subprocess.run(
            [
                found,
                "run",
                "--offline",
                "--no-index",
                "--python",
                sys.executable,
                str(path),
                "--help",
            ],
            cwd=tmp_path,
            env={**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode != 0 and "ctxmix-hf" in done.stderr, done.stderr


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_dry_run_says_what_would_be_done(path: Path, tmp_path: Path) -> None:
    words = [*ASKED[path.stem], "--repo", "me/it"]
    done = uv(path, *words, "--dry-run", folder=tmp_path, HF_TOKEN="hf_none")
    assert done.returncode == 0 and done.stdout == SAID[path.stem], done.stderr
    assert not (tmp_path / "maps").exists()
    poor = uv(path, *words, folder=tmp_path)
    assert poor.returncode == 1 and "there is no Hub token" in poor.stderr
    assert poor.stderr.count("\n") == 1
    wrong = uv(path, *ASKED[path.stem], "--mthods", "alti", "--dry-run", folder=tmp_path)
    assert wrong.returncode == 2 and "--mthods" in wrong.stderr


def test_the_guide_shows_the_commands() -> None:
    guide = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    for path in JOBS:
        assert f"uv run scripts/jobs/{path.name}" in guide
    assert "hf jobs uv run" in guide
