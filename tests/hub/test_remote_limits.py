"""Servers that are slow, silent, endless or rude: a read ends soon, takes no more memory than it
asked for, and tells no secret.
"""

from __future__ import annotations

import gzip
import socket
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, constants

from ctxmix_hf.errors import StoreError
from ctxmix_hf.hub import ranges
from ctxmix_hf.hub.answers import hub_errors
from ctxmix_hf.hub.folders import INDEX, MANIFEST
from ctxmix_hf.hub.remote import HubSource
from ctxmix_hf.hub.store import MapStore

from .hostile import HostileServer, reply
from .loopback import LoopbackHub
from .synthetic import add_number, manifest

BOMB = gzip.compress(bytes(50 << 20))
TOKEN = "a-token-that-is-not-of-the-hub"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds, not minutes."""
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    monkeypatch.setattr(ranges, "PAUSE", 0.01)


@pytest.fixture
def hostile() -> Iterator[Callable[[str], HostileServer]]:
    opened: list[HostileServer] = []

    def make(way: Any) -> HostileServer:
        server = HostileServer(lambda *_: None)
        server.answer = (
            getattr(server, way)
            if isinstance(way, str)
            else lambda c, asked: server.send(c, way(asked))
        )
        opened.append(server)
        return server

    yield make
    for server in opened:
        server.__exit__()


def read(server: HostileServer, size: int = 5000) -> bytes:
    source = HubSource(
        "me/maps", "0" * 40, manifest(), {"endpoint": server.url, "token": TOKEN, "cache_dir": None}
    )
    return source._range("shard", 100, 748, size)


def in_time(call: Callable[[], Any], seconds: float = 20) -> Any:
    """The result, or the error; a call that hangs fails the test instead of stopping it."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "still waiting"
    return found[0]


@pytest.mark.parametrize("way", ["silent", "drip"])
def test_a_server_that_does_not_answer_is_left(hostile: Any, way: str) -> None:
    error = in_time(lambda: read(hostile(way)))
    assert isinstance(error, StoreError) and "me/maps" in str(error)


def test_no_more_is_read_than_was_asked_for(hostile: Any) -> None:
    server = hostile("endless")
    tracemalloc.start()
    data = in_time(lambda: read(server))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert data == b"x" * 648  # the checksum decides whether they are the right ones
    assert most < 4 << 20 and server.sent < 64 << 20


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Length": str(2 << 30)}, b""),
        ({"Content-Encoding": "gzip"}, BOMB),
        ({"Content-Range": "bytes 0-647/5000"}, b"x" * 648),
    ],
    ids=["2 GB", "gzip bomb", "another range"],
)
def test_an_answer_that_is_not_the_range_is_refused(
    hostile: Any, headers: dict[str, str], body: bytes
) -> None:
    server = hostile(lambda asked: reply("206 Partial Content", headers, body))
    tracemalloc.start()
    error = in_time(lambda: read(server))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(error, StoreError) and most < 4 << 20


@pytest.mark.parametrize("status", ["503 Busy", "429 Too Many", "500 Oops"])
def test_waiting_has_a_ceiling(hostile: Any, status: str) -> None:
    server = hostile(lambda asked: reply(status, {"Retry-After": "100000"}))
    error = in_time(lambda: read(server))
    assert isinstance(error, StoreError) and "100000" in str(error) and len(server.requests) == 1


def test_a_busy_server_is_asked_again(hostile: Any) -> None:
    answers = iter(
        [reply("503 Busy", {"Retry-After": "0"}), b"", reply("206 Partial Content", {}, b"y" * 648)]
    )
    server = hostile(lambda asked: next(answers))
    assert in_time(lambda: read(server)) == b"y" * 648
    assert len(server.requests) == 3


def test_redirects_end_and_carry_no_token_elsewhere(hostile: Any) -> None:
    there = hostile(lambda asked: reply("206 Partial Content", {}, b"z" * 648))
    port = there.url.rpartition(":")[2]
    server = hostile(lambda asked: reply("302 Found", {"Location": f"http://localhost:{port}/x"}))
    assert in_time(lambda: read(server)) == b"z" * 648
    assert TOKEN in server.requests[0] and TOKEN not in there.requests[0]
    loop = hostile(
        lambda asked: reply("302 Found", {"Location": "/again", "Content-Encoding": "gzip"}, BOMB)
    )
    tracemalloc.start()
    error = in_time(lambda: read(loop))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(error, StoreError) and most < 4 << 20 and len(loop.requests) < 12
    away = hostile(lambda asked: reply("302 Found", {"Location": "file:///etc/passwd"}))
    assert "redirects to" in str(in_time(lambda: read(away)))


# ---- secrets


def everything_said(error: BaseException) -> str:
    """The error as every logger and debugger can show it: its message, and those of all it came from."""
    texts = ["".join(traceback.format_exception(error))]
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            texts.append(f"{one} {one.args}")
            todo += [one.__cause__, one.__context__]
    return "\n".join(texts)


@pytest.mark.parametrize("token", [TOKEN, "hf_" + "a" * 30])
def test_an_echoed_token_is_in_no_part_of_an_error(
    hostile: Any, tmp_path: Path, token: str
) -> None:
    """The server repeats what it was sent: in headers, in the body, in the reason."""
    server = hostile(
        lambda asked: reply(
            f"401 {token}", {"X-Error-Message": f"wrong: Bearer {token}"}, f"no {token}".encode()
        )
    )
    where = {"endpoint": server.url, "token": token, "cache_dir": tmp_path}
    calls: list[Callable[[], Any]] = [
        lambda: MapStore.from_hub("me/maps", **where),
        lambda: HubSource("me/maps", "0" * 40, manifest(), where)._range("shard", 0, 10, 20),
    ]
    store = MapStore.from_manifest(tmp_path / "m", manifest())
    add_number(store, 0)
    calls.append(lambda: store.push_to_hub("me/maps", endpoint=server.url, token=token))
    for call in calls:
        error = in_time(call)
        assert isinstance(error, StoreError)
        assert token not in everything_said(error)


def test_an_error_without_secrets_keeps_its_cause() -> None:
    with pytest.raises(StoreError) as caught, hub_errors("me/maps", token="secret-token"):
        raise OSError("the cable is out")
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(StoreError) as caught, hub_errors("me/maps", token="secret-token"):
        try:
            raise ValueError("secret-token")
        except ValueError as error:
            raise OSError("the cable is out") from error
    assert caught.value.__cause__ is None and caught.value.__context__ is None


# ---- whole files


def push(server: LoopbackHub, folder: Path, repo_id: str) -> None:
    with MapStore.from_manifest(folder, manifest()) as store:
        for number in range(3):
            add_number(store, number)
    store.push_to_hub(repo_id, endpoint=server.url, token=server.token)


def test_files_of_another_size_are_not_fetched(
    server: LoopbackHub, api: HfApi, repo_id: str, tmp_path: Path
) -> None:
    push(server, tmp_path / "m", repo_id)
    access = {"endpoint": server.url, "token": server.token, "cache_dir": tmp_path / "cache"}
    api.upload_file(
        repo_id=repo_id, repo_type="dataset", path_in_repo=INDEX, path_or_fileobj=b" " * 3_000_000
    )
    server.requests.clear()
    with pytest.raises(StoreError, match="is not the file the manifest describes"):
        MapStore.from_hub(repo_id, **access)
    assert server.bytes_sent(INDEX) == 0
    api.upload_file(
        repo_id=repo_id,
        repo_type="dataset",
        path_in_repo=MANIFEST,
        path_or_fileobj=b" " * (65 << 20),
    )
    server.requests.clear()
    with pytest.raises(StoreError, match="too large to be a manifest"):
        MapStore.from_hub(repo_id, **access)
    assert server.bytes_sent() < 1 << 20


def test_a_reader_can_say_how_much_is_too_much(
    server: LoopbackHub, repo_id: str, tmp_path: Path
) -> None:
    push(server, tmp_path / "m", repo_id)
    access = {"endpoint": server.url, "token": server.token, "cache_dir": tmp_path / "cache"}
    with pytest.raises(StoreError, match="at most 1,000 bytes"):
        MapStore.from_hub(repo_id, max_bytes=1000, **access)
    assert server.bytes_sent(INDEX) == 0
    assert len(MapStore.from_hub(repo_id, max_bytes=1 << 20, **access)) == 6


def test_a_slow_server_of_large_files_is_not_cut_off(
    hostile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time there is grows with the bytes: a slow line is no attack."""
    monkeypatch.setattr(ranges, "SLOWEST", 100)

    def slowly(connection: socket.socket, _: str) -> None:
        server.send(connection, b"HTTP/1.1 206 Partial Content\r\nContent-Length: 648\r\n\r\n")
        for _ in range(8):
            time.sleep(0.2)
            server.send(connection, b"s" * 81)

    server = hostile("silent")
    server.answer = slowly
    assert in_time(lambda: read(server)) == b"s" * 648
