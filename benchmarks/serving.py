"""The page in a process of its own, and visitors who speak its protocol from several addresses of
this machine (127.0.0.x).
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SERVER = """
import json, os, sys
from ctxmix_hf import demo
from ctxmix_hf.demo import gate
demo.launch({port}, quiet=True, prevent_thread_lock=True)
print("ready", flush=True)
for line in sys.stdin:
    made = gate.GATE
    pids = [w.process.pid for w in made.workers if w.process]
    told = {{"computed": made.computed, "stopped": made.stopped, "dropped": made.dropped, "waiting": len(made.waiting), "running": len(made.running)}}
    print(json.dumps({{**told, "server": os.getpid(), "workers": pids, "ready": sum(w.ready for w in made.workers)}}), flush=True)
"""  # noqa: E501


class Refused(Exception):
    """What the page answered instead of a value."""


class Page:
    """A running page."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self.port, self.process, self.lock = port, process, threading.Lock()
        made = json.loads(self.get("/config"))
        self.numbers = {
            row["api_name"]: row["id"]
            for row in made["dependencies"]
            if isinstance(row.get("api_name"), str)
        }

    def connect(
        self, visitor: str = "127.0.0.1", timeout: float = 120
    ) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=timeout, source_address=(visitor, 0)
        )

    def get(self, path: str) -> bytes:
        connection = self.connect()
        connection.request("GET", path)
        found = connection.getresponse().read()
        connection.close()
        return found

    def counts(self) -> dict[str, Any]:
        """What the gate has done so far, and who the processes are."""
        assert self.process.stdin and self.process.stdout
        with self.lock:
            print(file=self.process.stdin, flush=True)
            return json.loads(self.process.stdout.readline())  # type: ignore[no-any-return]

    def post(self, name: str, data: list[Any], visitor: str, session: str) -> tuple[int, bytes]:
        connection = self.connect(visitor)
        try:
            body = json.dumps(
                {"data": data, "fn_index": self.numbers[name], "session_hash": session}
            )
            connection.request(
                "POST", "/gradio_api/queue/join", body, {"content-type": "application/json"}
            )
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError as error:  # the server may close the door on a body it does not want
            return 413, str(error).encode()
        finally:
            connection.close()

    def upload(self, data: bytes, visitor: str = "127.0.0.1") -> dict[str, Any]:
        """What the page's functions take for a file: sent as a browser sends one that a visitor chose."""
        connection, edge = self.connect(visitor), os.urandom(8).hex()
        head = (
            f'--{edge}\r\nContent-Disposition: form-data; name="files"; filename="picture.png"\r\n'
        )
        body = (
            f"{head}Content-Type: image/png\r\n\r\n".encode()
            + data
            + f"\r\n--{edge}--\r\n".encode()
        )
        try:
            kind = {"content-type": f"multipart/form-data; boundary={edge}"}
            connection.request("POST", "/gradio_api/upload", body, kind)
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise Refused(said.decode(errors="replace"))
        return {"path": json.loads(said)[0], "meta": {"_type": "gradio.FileData"}}

    def abandon(
        self, name: str, data: list[Any], visitor: str, session: str, listen: float = 0.0
    ) -> None:
        """Ask, and leave: at once, or after having listened for some seconds."""
        self.post(name, data, visitor, session)
        if listen:
            connection = self.connect(visitor)
            connection.request("GET", f"/gradio_api/queue/data?session_hash={session}")
            time.sleep(listen)
            connection.close()

    def ask(
        self, name: str, data: list[Any], visitor: str = "127.0.0.1", session: str = ""
    ) -> list[Any]:
        """The values an endpoint answers with, or `Refused` with its sentence."""
        session = session or os.urandom(6).hex()
        status, said = self.post(name, data, visitor, session)
        if status != 200:
            raise Refused(said.decode(errors="replace"))
        wanted = json.loads(said)["event_id"]
        connection = self.connect(visitor)
        try:
            connection.request("GET", f"/gradio_api/queue/data?session_hash={session}")
            for line in connection.getresponse():
                message = json.loads(line[5:]) if line.startswith(b"data:") else {}
                if message.get("msg") == "process_completed" and message["event_id"] == wanted:
                    if not message["success"]:
                        raise Refused(str(message["output"].get("error")))
                    return message["output"]["data"]  # type: ignore[no-any-return]
            raise Refused("the connection ended without an answer")
        finally:
            connection.close()


@contextmanager
def serve(**env: str) -> Iterator[Page]:
    """A page as strangers meet it, except that it listens on this machine only; ready when its workers are."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        "CTXMIX_DEMO_WORKERS_PER_VISITOR": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER.format(port=port)],
        env={**os.environ, **given, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout
        while (line := process.stdout.readline().strip()) != "ready":
            if not line and process.poll() is not None:
                raise RuntimeError("the server ended before it served")
        page, until = Page(port, process), time.monotonic() + 180
        while (counts := page.counts())["ready"] < len(counts["workers"]) or counts["running"]:
            if time.monotonic() > until:
                raise RuntimeError("the workers did not start within three minutes")
            time.sleep(0.2)
        yield page
    finally:
        process.terminate()
        process.communicate(timeout=60)


def commit() -> str:
    """The commit that is checked out, marked if files differ from it."""
    words = ["git", "-C", str(ROOT)]
    name = subprocess.run(
        [*words, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    changed = subprocess.run(
        [*words, "diff", "HEAD", "--quiet", "--", "ctxmix_hf"], check=False
    ).returncode
    return f"{name or 'unknown'}{' with changes' if changed else ''}"


def megabytes(pid: int, kind: str = "VmRSS") -> float:
    """Resident memory; with `VmHWM`, the most there ever was."""
    with Path(f"/proc/{pid}/status").open() as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(kind))
