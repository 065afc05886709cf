"""The notebooks in examples/ run from top to bottom, the sharing one with a Hub on the loopback
address; their files can be shown.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import hub_environment

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SHARES = "precompute_and_share"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(package, reason="the test extra is not installed")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if path.stem == SHARES:
        server = _run_with_hub(path, tmp_path, monkeypatch)
        assert len(server.repos) == 1, "nothing was pushed"
    else:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        _run(path, tmp_path)


def _run(path: Path, folder: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    work = folder / "work"
    work.mkdir()
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    ).execute()


def _run_with_hub(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("uvicorn", reason="the loopback Hub needs the demo extra")
    from tests.hub.loopback import LoopbackHub

    with LoopbackHub(folder / "server") as server:
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        for name, value in hub_environment(server, folder).items():
            monkeypatch.setenv(name, value)
        _run(path, folder)
    return server


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_saved_notebook_is_fit_to_be_shown(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(text) < 600_000 and not re.search(r"/(root|home|work|tmp|Users)/", text)
    assert all(cell["execution_count"] for cell in code), "run it and save it with its outputs"
    assert any(cell["outputs"] for cell in code) and len(cells) > len(code) + 3
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])


def test_the_notebooks_are_there() -> None:
    assert {path.stem for path in NOTEBOOKS} >= {
        "first_map",
        "compare_methods_on_agreement",
        "why_are",
        "why_first",
        "lesson",
        "long_document",
        SHARES,
    }
