"""The README is true: its Python blocks run, its tables are the generated ones, its commands exist."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ctxmix_hf as cm

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [
    code
    for code in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    if "push_to_hub(" not in code
]  # see test_docs.py


@pytest.mark.parametrize("block", BLOCKS, ids=[str(i) for i in range(len(BLOCKS))])
def test_code_block_runs(block: str, tmp_path: Path) -> None:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", block],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_tables_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "scripts" / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    assert tables.rewritten(README) == README, "run python scripts/tables.py"


def test_set_up_commands_are_there() -> None:
    for command in ("scripts/explain.sh", "scripts/test.sh"):
        assert f"bash {command}" in README and (ROOT / command).exists()
    assert "scripts/test.sh" in (ROOT / ".ci" / "run").read_text()


def test_uv_knows_the_command_for_the_cpu_build(tmp_path: Path) -> None:
    """Offline it finds no torch (exit code 1); an option or a backend it did not know would be 2."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        pytest.skip("uv is not installed (extra test)")
    (line,) = re.findall(r"`uv (pip install torch[^`]*)`", README)
    where = ["--python", sys.executable, "--target", str(tmp_path / "target")]
    done = subprocess.run(
        [uv, *line.split(), "--offline", "--dry-run", "--cache-dir", str(tmp_path / "c"), *where],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "torch" in done.stderr, done.stderr


def test_pictures_exist() -> None:
    for path in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / path).stat().st_size > 5000


def test_pictures_are_described_by_their_numbers() -> None:
    """Their alt texts, here and in the documentation, are what a run gives today."""
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "scripts" / "pictures.py")
    assert spec is not None and spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    model = cm.load_default()[0]
    for name, say, where in (
        ("first_map", pictures.opening, "index.md"),
        ("space", pictures.page, "space.md"),
        ("ledger", pictures.account, "why.md"),
    ):
        said = say(model)
        assert f"![{said}](docs/images/{name}.png)" in README
        assert f"![{said}](images/{name}.png)" in (ROOT / "docs" / where).read_text()
    assert pictures.OPENING in README
