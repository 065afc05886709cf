"""A Hub for every test in this folder, and a way to run scripts that look for the Hub in the environment.

Xet: the client sends large files past any server, to a Xet store, unless HF_HUB_DISABLE_XET was set when
huggingface_hub was first imported. It is set here, which is early enough if only this folder runs. In a run
of all tests another module may have imported it before; then set it where the run begins (tests/conftest.py
or the shell), or the tests that ask for `plain_uploads` are skipped, with that reason. The server takes
uploads either way.
"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import hashlib
import json
import random
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest
from huggingface_hub import HfApi, constants

from .loopback import LoopbackHub

ROOT = Path(__file__).parents[2]
BIG = random.Random(0).randbytes(12_000_000)
SHARD = "matrices/tiny/alti/shard-00000-of-00001.safetensors"
CARD = """\
---
license: mit
configs:
- config_name: default
  data_files:
  - split: test
    path: examples/test.jsonl
---
# Maps
"""
CLOSED_PROXY = "http://127.0.0.1:9"  # nothing listens there: what tries to leave the machine is refused at once


class RunPython(Protocol):
    """Runs a script in a process of its own and returns what it printed."""

    def __call__(self, script: str, env: Mapping[str, str] | None = None) -> str: ...


@pytest.fixture(scope="session")
def hub_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHub]:
    """The server of this run; tests take `server`, which is the same with faults and log cleared."""
    with LoopbackHub(tmp_path_factory.mktemp("loopback_hub")) as server:
        yield server


@pytest.fixture
def server(hub_server: LoopbackHub) -> Iterator[LoopbackHub]:
    """The loopback Hub, up, without faults and with an empty log, whatever the test before did to it."""
    hub_server.reset()
    yield hub_server
    hub_server.reset()


@pytest.fixture
def api(server: LoopbackHub) -> HfApi:
    """The real client, signed in."""
    return HfApi(endpoint=server.url, token=server.token)


@pytest.fixture
def repo_id(server: LoopbackHub, request: pytest.FixtureRequest) -> str:
    """A name no other test uses, since repositories live as long as the server."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    return f"{server.user}/{name}"[:96]


@pytest.fixture
def sample_folder(tmp_path: Path) -> Path:
    """A dataset of maps as the store lays it out: card, examples, index and one large shard."""
    rows = [{"id": str(number), "text": f"sentence {number}"} for number in range(3)]
    files = {
        "README.md": CARD.encode(),
        "ctxmix.json": b"{}",
        "examples/test.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
        "matrices/tiny/alti/index.json": b'{"0": [0, 100]}',
        SHARD: BIG,
    }
    for name, content in files.items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "folder"


@pytest.fixture
def sample_commit(api: HfApi, repo_id: str, sample_folder: Path) -> str:
    """The sample folder in a dataset repository; the sha of its commit."""
    api.create_repo(repo_id, repo_type="dataset")
    return api.upload_folder(repo_id=repo_id, repo_type="dataset", folder_path=sample_folder).oid


def sha256(path: str | Path) -> str:
    """The hash of a file's bytes."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@pytest.fixture
def plain_uploads() -> None:
    """For tests that watch large files pass through the server."""
    if not constants.HF_HUB_DISABLE_XET:
        pytest.skip(
            "huggingface_hub was imported with Xet on; set HF_HUB_DISABLE_XET=1 before the run"
        )


@pytest.fixture(autouse=True)
def no_outside_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuses all names but the loopback ones, so a forgotten `endpoint=` fails here, not on the real Hub."""
    look_up = socket.getaddrinfo

    def only_loopback(host: Any, *args: Any, **options: Any) -> Any:
        if host not in {"127.0.0.1", "localhost", b"127.0.0.1", b"localhost", None}:
            raise OSError(f"a test tried to reach {host!r}; pass endpoint=server.url")
        return look_up(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", only_loopback)


@pytest.fixture
def run_python(server: LoopbackHub, tmp_path: Path) -> RunPython:
    """For code that reads the endpoint at import: `run_python(script, env)` finds our server in its settings.

    All calls of one test share an HF_HOME, so a second one sees what the first one downloaded.
    """
    settings = {
        "HF_ENDPOINT": server.url,
        "HF_TOKEN": server.token,
        "HF_HOME": str(tmp_path / "hf_home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HTTP_PROXY": CLOSED_PROXY,
        "HTTPS_PROXY": CLOSED_PROXY,
        "NO_PROXY": "127.0.0.1,localhost",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "TRANSFORMERS_"))
    }

    def run(script: str, env: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env=inherited | settings | dict(env or {}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
