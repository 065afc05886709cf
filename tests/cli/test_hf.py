"""`hf ctxmix` is `ctxmix`: the extension in scripts/hf-ctxmix, laid out as `hf extensions install` lays it out."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import ctxmix_hf as cm

EXTENSION = Path(__file__).parents[2] / "scripts" / "hf-ctxmix"
BIN = Path(sys.executable).parent


def installed(home: Path) -> None:
    """What `hf extensions install OWNER/hf-ctxmix` leaves behind, without asking anybody for it."""
    folder = home / ".local" / "share" / "hf" / "extensions" / "hf-ctxmix"
    folder.mkdir(parents=True)
    program = Path(shutil.copy(EXTENSION / "hf-ctxmix", folder))
    manifest = {
        "owner": "me",
        "repo": "hf-ctxmix",
        "repo_id": "me/hf-ctxmix",
        "short_name": "ctxmix",
        "executable_path": str(program),
        "type": "binary",
        "installed_at": "2026-11-17T00:00:00+00:00",
        "description": json.loads((EXTENSION / "manifest.json").read_text())["description"],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


def hf(home: Path, path: str, *words: str) -> subprocess.CompletedProcess[str]:
    if not (BIN / "hf").exists():
        pytest.skip("this huggingface_hub has no hf command")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    env = {**kept, "HOME": str(home), "PATH": path}
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, str(BIN / "hf"), *words],
        env={**env, **quiet},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    pytest.importorskip(
        "huggingface_hub.cli.extensions", reason="this huggingface_hub has no extensions"
    )
    installed(tmp_path)
    return tmp_path


def test_the_file_can_be_run() -> None:
    assert (EXTENSION / "hf-ctxmix").stat().st_mode & stat.S_IXUSR


def test_hf_runs_ctxmix(home: Path) -> None:
    bin_folder = home / "bin"
    bin_folder.mkdir()
    program = bin_folder / "ctxmix"  # of this checkout, whatever the environment has installed
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ctxmix_hf "$@"\n')
    program.chmod(0o755)
    path = f"{bin_folder}:/usr/bin:/bin"
    done = hf(home, path, "ctxmix", "--version")
    assert (done.returncode, done.stdout) == (0, f"ctxmix {cm.__version__}\n"), done.stderr
    done = hf(home, path, "ctxmix", "methods", "alty")  # words and exit codes pass through
    assert done.returncode == 2 and "alti" in done.stderr
    done = hf(home, path, "--help")
    assert "ctxmix" in done.stdout and "me/hf-ctxmix" in done.stdout


def test_without_ctxmix_one_sentence_says_what_to_do(home: Path) -> None:
    done = hf(home, "/usr/bin:/bin", "ctxmix", "methods")
    assert done.returncode == 127 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.endswith(".\n")
    assert "ctxmix is not installed" in done.stderr and "pip install ctxmix-hf" in done.stderr
