"""A click in a real JupyterLab, in a real browser, is known to the kernel.

JupyterLab is installed beside other people's packages (scripts/test_interop.sh), where nothing may be skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("jupyterlab", "anywidget", "ipykernel", "nbformat")
MAP = """import ctxmix_hf as cm
model, tokenizer = cm.load_default()
m = cm.explain(model, "The keys to the cabinet [MASK] on the table.", "alti", tokenizer=tokenizer)
m"""
ASK = """import json, pathlib
answer = {"target": m.target, "row": m.position(["keys"]), "scores": m.attribution(m.target).scores.tolist()}
pathlib.Path("answer.json").write_text(json.dumps(answer))"""
MOVE = "w = m.widget(layer=1); w.target = 'cabinet'; w"


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """The address of a notebook in a JupyterLab of its own."""
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (scripts/test_interop.sh)")
    import nbformat

    cells = [nbformat.v4.new_code_cell(source) for source in (MAP, ASK, MOVE)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(book, tmp_path / "maps.ipynb")
    port, log = _free_port(), tmp_path / "lab.log"
    own = {
        name: str(tmp_path / name.lower()) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")
    }
    with log.open("w") as out:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
                *(f"--port={port}", "--ip=127.0.0.1", "--IdentityProvider.token="),
                "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
                f"--ServerApp.root_dir={tmp_path}",
            ],
            env={**os.environ, **own, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
            stdout=out,
            stderr=out,
        )
        try:
            _wait_for(f"http://127.0.0.1:{port}/api", server, log)
            yield f"http://127.0.0.1:{port}/lab/tree/maps.ipynb"
        finally:
            server.terminate()
            server.wait(timeout=30)


def _wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(address, timeout=5).read()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


def _answer(folder: Path) -> dict[str, Any]:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if (folder / "answer.json").exists():
            return json.loads((folder / "answer.json").read_text())  # type: ignore[no-any-return]
        time.sleep(0.2)
    raise AssertionError("the second cell did not run")


@pytest.mark.slow
def test_a_click_in_jupyterlab_sets_the_target(lab: str, browser: Any, tmp_path: Path) -> None:
    page = browser.new_page(viewport={"width": 1300, "height": 1400})
    try:
        page.goto(lab)
        cells = page.locator(".jp-Notebook .jp-CodeCell")
        cells.first.wait_for(timeout=60_000)
        page.get_by_text("| Idle").wait_for(timeout=60_000)  # what is run earlier is lost

        def run(number: int) -> Any:
            cells.nth(number).locator(".cm-content").click()
            page.keyboard.press("Shift+Enter")
            return cells.nth(number).locator(".jp-OutputArea")

        shown = run(0)
        shown.locator(".cmx canvas").wait_for(timeout=120_000)
        shown.locator(".cmx-token", has_text="keys").click()
        shown.locator(".cmx-target", has_text="keys").wait_for()
        run(1)
        answer = _answer(tmp_path)
        target = answer["target"] if isinstance(answer["target"], list) else [answer["target"]]
        assert target == answer["row"], "what was clicked in the page is what Python knows"
        moved = run(2)
        moved.locator(".cmx-target", has_text="cabinet").wait_for(timeout=60_000)
    finally:
        page.screenshot(path=str(tmp_path / "lab.png"))
        page.close()
