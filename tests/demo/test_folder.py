"""The folder of the Space: its header, its app, and that it deploys with the real client (to a Hub on this machine)."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, SpaceCard

from ctxmix_hf.demo import examples
from tests.demo.conftest import ROOT
from tests.hub.loopback import LoopbackHub

FOLDER = ROOT / "spaces" / "context_mixing"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_header_is_what_spaces_read() -> None:
    header = SpaceCard.load(FOLDER / "README.md").data.to_dict()
    assert (header["sdk"], header["app_file"], header["license"]) == (
        "gradio",
        "app.py",
        "apache-2.0",
    )
    assert len(header["short_description"]) <= 60
    assert "gradio" not in (FOLDER / "requirements.txt").read_text()  # it comes with the Space


def test_the_space_runs_tested_versions() -> None:
    """Each requirement is pinned to what CI runs, gradio by the header."""
    pinned = dict(
        re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    )
    deploy = load("deploy")
    assert deploy.requirements().splitlines() == [
        f"{name}=={pinned[name]}" for name in deploy.NEEDS
    ]
    assert (
        FOLDER / "requirements.txt"
    ).read_text().splitlines() == deploy.requirements().splitlines()
    assert SpaceCard.load(FOLDER / "README.md").data.to_dict()["sdk_version"] == pinned["gradio"]


def test_the_examples_are_small_and_complete() -> None:
    path = ROOT / "ctxmix_hf" / "demo" / examples.FILE
    assert path.stat().st_size < 1_000_000
    assert len(examples.read()["maps"]) == len(examples.SENTENCES) * len(examples.METHODS)
    for _, model, text, pair in examples.SENTENCES:
        assert examples.find_prediction(model, text, pair) is not None


def test_handlers_import_public_names_only() -> None:
    """The library proper is reached through `import ctxmix_hf as cm`; viz, errors, the table of
    heads, the project's addresses and the assistant's tools are the page's own, and how a text is read (`text/`) and
    how a repository points to another model (`hub/pointers`) are known in one place for everybody.
    """
    allowed = re.compile(
        r"ctxmix_hf(\.demo|\.errors|\.viz|\.heads|\.assistant|\.bundled|\.addresses|\.text"
        r"|\.hub\.pointers)"
    )
    for path in (ROOT / "ctxmix_hf" / "demo").glob("*.py"):
        for line in path.read_text().splitlines():
            if "from ctxmix_hf." in line:
                assert allowed.search(line), f"{path.name}: {line}"


@pytest.mark.slow
def test_it_deploys_and_the_deployed_folder_runs(tmp_path: Path) -> None:
    with LoopbackHub(tmp_path / "hub") as hub:
        api = HfApi(endpoint=hub.url, token=hub.token)
        repo = f"{hub.user}/context_mixing"
        load("deploy").deploy(repo, api=api)
        files = set(api.list_repo_files(repo, repo_type="space"))
        assert {
            "app.py",
            "README.md",
            "requirements.txt",
            "ctxmix_hf/viz/js/main.js",
            "ctxmix_hf/demo/examples.json",
        } <= files
        assert not any(name.endswith(".pyc") for name in files)
        folder = api.snapshot_download(repo, repo_type="space", local_dir=tmp_path / "space")
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    code = "import app, ctxmix_hf; print(type(app.demo).__name__, ctxmix_hf.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("Blocks")
    assert str(tmp_path) in done.stdout
