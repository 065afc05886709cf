"""ZeroGPU: with `spaces` on the path the page's functions are decorated; without it nothing is.

The package here is a stand-in that forks for every call, as the real one does, and writes down what it
was asked. No GPU was ever seen by these tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.demo.conftest import ROOT

SPACES = """
import multiprocessing, os
def note(*words):
    with open(os.environ["NOTES"], "a") as file:
        print(*words, file=file)
def GPU(task=None, *, duration=None):
    def decorate(function):
        note("decorated", function.__module__, function.__name__, duration)
        if os.environ.get("SPACES_ZERO_GPU") != "true":
            return function  # the real one does nothing either
        def call(*args):
            note("called")
            ours, theirs = multiprocessing.get_context("fork").Pipe()
            def run():
                theirs.send_bytes(function(*args))
            child = multiprocessing.get_context("fork").Process(target=run, daemon=True)
            child.start()
            made = ours.recv_bytes()
            child.join()
            return made
        return call
    return decorate if task is None else decorate(task)
"""
ASK = """
import json, os
from gradio_client import Client
from ctxmix_hf import demo
from ctxmix_hf.demo import gate

_, url, _ = demo.launch(quiet=True, prevent_thread_lock=True)
client, said = Client(url, verbose=False), []
text = "The sisters of the old waiter [MASK] here."
for method in ("alti", "alty"):
    try:
        made = client.predict("ctxmix/agreement", method, text, api_name="/map")
        said.append(made["method"])
    except Exception as error:
        said.append(str(error))
processes = [worker.process is not None for worker in gate.GATE.workers]
print(json.dumps({"said": said, "processes": processes}), flush=True)
gate.GATE.close()
os._exit(0)
"""


def served(tmp_path: Path, **env: str) -> tuple[dict[str, Any], list[str]]:
    """What a server's client heard, and what the stand-in wrote down."""
    notes = tmp_path / "notes"
    notes.touch()
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "GRADIO_ANALYTICS_ENABLED": "False",
            "CTXMIX_DEMO_CONCURRENCY": "1",
            "NOTES": str(notes),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)]),
            **env,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), notes.read_text().splitlines()


@pytest.mark.parametrize("lends", [True, False], ids=["zerogpu", "own hardware"])
def test_with_spaces_functions_are_decorated(tmp_path: Path, lends: bool) -> None:
    (tmp_path / "spaces.py").write_text(SPACES)
    heard, notes = served(tmp_path, **({"SPACES_ZERO_GPU": "true"} if lends else {}))
    assert heard["said"][0] == "alti" and "Unknown method 'alty'" in heard["said"][1]
    assert notes[0] == "decorated ctxmix_hf.demo.answering answer 60"  # once, before the first call
    assert notes[1:] == (
        ["called", "called"] if lends else []
    )  # and nobody borrowed one to warm up
    assert heard["processes"] == [
        not lends
    ]  # the watched worker process is kept where none is lent


def test_without_spaces_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from ctxmix_hf.demo import zero

    monkeypatch.setitem(sys.modules, "spaces", None)
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    zero.lent.cache_clear()
    try:
        assert zero.lent() is None and zero.device() == "cpu"
    finally:
        zero.lent.cache_clear()
