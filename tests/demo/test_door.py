"""The door and the lock-down: hosts, headers, sizes, names, and a real server whose visitors leave."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import io
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

import pytest
from PIL import Image

import ctxmix_hf as cm
from benchmarks.serving import Refused, megabytes, serve
from ctxmix_hf.cli.parser import build_parser
from ctxmix_hf.demo import door, settings, shelf, sizes, stores
from ctxmix_hf.demo.door import CONNECTIONS, Door, known_host
from ctxmix_hf.demo.settings import SETTINGS, hide_paths
from ctxmix_hf.errors import InputError, RefusedError, UnsupportedModelError
from tests.alone import awaited
from tests.demo.conftest import KEYS, Server


def through(
    app: Any,
    *bodies: bytes,
    headers: dict[str, str] | None = None,
    path: str = "/gradio_api/upload",
) -> tuple[int, bytes, dict[str, str]]:
    """One request through the door."""
    sent: list[Any] = []
    left = [
        {"type": "http.request", "body": body, "more_body": k < len(bodies) - 1}
        for k, body in enumerate(bodies)
    ]

    async def receive() -> Any:
        await asyncio.sleep(0)
        return left.pop(0) if left else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    given = {"host": "127.0.0.1:7860", **(headers or {})}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "client": ("9.9.9.9", 1),
        "headers": [(k.encode(), v.encode()) for k, v in given.items()],
    }
    awaited(app(scope, receive, send))
    start = next(m for m in sent if m["type"] == "http.response.start")
    body = b"".join(m.get("body", b"") for m in sent if m["type"] == "http.response.body")
    return start["status"], body, {k.decode(): v.decode() for k, v in start["headers"]}


async def reads_all(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads the whole body, as gradio's upload does."""
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RuntimeError("client disconnected")
        size += len(message["body"])
        if not message["more_body"]:
            break
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"text/plain")],
        }
    )
    await send({"type": "http.response.body", "body": str(size).encode()})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Door:
    monkeypatch.setattr(door.LISTENERS, "told", door.LISTENERS.told)  # put back afterwards
    return Door(reads_all)


def test_bodies_are_limited_also_when_their_length_is_not_said(made: Door) -> None:
    most = SETTINGS.upload_megabytes * 1_000_000
    assert through(made, b"x" * 1000)[:2] == (200, b"1000")
    status, said, _ = through(made, b"x", headers={"content-length": str(most + 1)})
    assert status == 413 and b"at most 8 MB" in said
    status, said, _ = through(made, *[b"x" * 1_000_000] * 12)
    assert status == 413 and b"at most 8 MB" in said


def test_one_visitor_cannot_fill_the_disk_or_hold_every_connection(made: Door) -> None:
    for _ in range(21):
        status = through(made, *[b"x" * 1_000_000] * 8)[0]
    assert status == 200  # twenty are allowed, and the one that finds exactly twenty
    assert through(made, b"x")[0] == 413
    made.sent.clear()
    made.open["9.9.9.9"] = CONNECTIONS
    assert through(made, b"x")[0] == 429


def test_every_answer_carries_the_headers(made: Door) -> None:
    for headers in ({}, {"host": "evil.example"}):
        found = through(made, b"x", headers=headers)[2]
        assert found["x-content-type-options"] == "nosniff"
        assert (
            "frame-ancestors 'self'" in found["content-security-policy"]
            and "object-src 'none'" in found["content-security-policy"]
        )


@pytest.mark.parametrize("exposed", [True, False])
def test_only_a_public_page_that_asks_for_it_may_stand_in_any_frame(
    monkeypatch: pytest.MonkeyPatch, exposed: bool
) -> None:
    monkeypatch.setattr(door, "exposed", lambda: exposed)

    def frames(query: bytes) -> str:
        policy = dict(door.framed({"query_string": query}))[b"content-security-policy"].decode()
        return policy.rpartition("frame-ancestors ")[2]

    own = frames(b"")
    assert "*" not in own.split()
    assert frames(b"text=a&embed=1") == ("*" if exposed else own)
    assert frames(b"embed=10") == frames(b"text=embed=1") == own


def test_only_known_hosts_are_answered(made: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page elsewhere that points its own name to 127.0.0.1 cannot talk to the page of the person who opened it."""
    status, said, _ = through(made, b"x", headers={"host": "evil.example"})
    assert status == 421 and b"CTXMIX_DEMO_HOSTS" in said
    for host, passed in (("evil.example", False), ("127.0.0.1:7860", True)):
        said_to: list[Any] = []
        reached: list[str] = []

        async def inner(scope: Any, receive: Any, send: Any, reached: list[str] = reached) -> None:
            reached.append(scope["type"])

        async def send(message: Any, said_to: list[Any] = said_to) -> None:
            said_to.append(message)

        scope = {"type": "websocket", "headers": [(b"host", host.encode())], "path": "/"}
        awaited(Door(inner)(scope, None, send))
        assert bool(reached) == passed and bool(said_to) != passed
    assert all(map(known_host, ["localhost:7860", "127.0.0.1", "[::1]:7860"]))
    assert not any(map(known_host, ["evil.example", "192.168.0.7", "127.0.0.1.evil.example", ""]))
    monkeypatch.setenv(settings.HOST, "0.0.0.0")
    assert known_host("192.168.0.7:7860") and not known_host("evil.example")
    monkeypatch.setenv("CTXMIX_DEMO_HOSTS", "maps.example, other.example")
    assert known_host("maps.example")  # the advice of the refusal
    monkeypatch.setenv("SPACE_HOST", "me-maps.hf.space")
    assert known_host("me-maps.hf.space")


# ---- lock-down ------------------------------------------------------------------------------------------------
def test_strangers_get_the_box_only_unless_a_flag_opens_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("CTXMIX_DEMO_ANY_MODEL", "CTXMIX_DEMO_LOCAL_PATHS"):
        monkeypatch.delenv(name, raising=False)
    assert SETTINGS.any_model and SETTINGS.local_paths  # loopback: the person's own machine
    for host in ("0.0.0.0", "192.168.0.7", "::", "maps.example"):
        monkeypatch.setenv(settings.HOST, host)
        assert not SETTINGS.any_model and not SETTINGS.local_paths
        assert shelf.check_name("ctxmix/agreement") == "ctxmix/agreement"
        for name in ("google/vit-base", str(tmp_path), "/etc/passwd", "~/x"):
            with pytest.raises(InputError, match="offers only ctxmix/agreement"):
                shelf.check_name(name)
        stores.open_store.cache_clear()
        with pytest.raises(InputError, match="only its own maps"):
            stores.open_store(str(tmp_path))
    monkeypatch.setenv("CTXMIX_DEMO_ANY_MODEL", "1")
    assert shelf.check_name("google/vit-base") == "google/vit-base"
    for name in (str(tmp_path), "../x", "a/../../etc", "a\\b", "./a"):
        with pytest.raises(InputError, match="not paths"):
            shelf.check_name(name)
    monkeypatch.setenv("CTXMIX_DEMO_ANY_MODEL", "0")
    monkeypatch.setenv("CTXMIX_DEMO_LOCAL_PATHS", "1")
    assert shelf.check_name(str(tmp_path)) == str(tmp_path)
    with pytest.raises(InputError, match="nothing of the Hub"):
        shelf.check_name("google/vit-base")


def test_on_a_space_a_name_is_never_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not even where the owner asked for local paths and a folder of that name stands beside the app."""
    monkeypatch.setenv("SPACE_ID", "me/space")
    monkeypatch.setenv("CTXMIX_DEMO_LOCAL_PATHS", "1")
    monkeypatch.setenv("CTXMIX_DEMO_ANY_MODEL", "1")
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="not paths"):
        shelf.check_name("a/b")
    stores.open_store.cache_clear()
    with pytest.raises(InputError, match="not paths"):
        stores.open_store("a/b")
    assert shelf.check_name("a/c") == "a/c"


def test_the_flags_say_what_they_open() -> None:
    help_ = " ".join(
        build_parser()._subparsers._group_actions[0].choices["demo"].format_help().split()
    )  # type: ignore[union-attr]
    assert "--let-visitors-load-any-hub-id" in help_ and "any model and dataset of the Hub" in help_
    assert (
        "--let-visitors-read-local-folders" in help_
        and "you can read on this machine's disk" in help_
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "[Errno 2] No such file: '/root/.cache/hub/x.json'",
            "[Errno 2] No such file: '(a path of the server)'",
        ),
        ("~/maps/a is no store", "(a path of the server) is no store"),
        ("cannot read '/home/me/My Documents/x.json'", "cannot read '(a path of the server)'"),
        ("file:///srv/x and x:/maps", "(a path of the server) and (a path of the server)"),
        (r"C:\Users\me\maps: no store", "(a path of the server): no store"),
        ("/data is full", "(a path of the server) is full"),
        ("and/or <b>x</b>, a 1/2", "and/or <b>x</b>, a 1/2"),
        (
            "see https://huggingface.co/a/b, me/maps and 1/2",
            "see https://huggingface.co/a/b, me/maps and 1/2",
        ),
    ],
)
def test_paths_are_hidden_from_strangers(
    text: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hide_paths(text) == text  # on the person's own machine they help
    monkeypatch.setenv(settings.HOST, "0.0.0.0")
    assert hide_paths(text) == shown


# ---- sizes ----------------------------------------------------------------------------------------------------
def folder(path: Path, **config: Any) -> str:
    about = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
        "vocab_size": 100,
        **config,
    }
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(about))
    return str(path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"vocab_size": 100_000_000}, "800 million parameters; this server takes 500"),
        ({"intermediate_size": 80_000_000}, "million parameters; this server takes 500"),
        ({"num_hidden_layers": 3_000_000}, "could not be built within"),
    ],
)
def test_models_that_are_too_large_are_refused_before_they_are_loaded(
    tmp_path: Path, config: Any, said: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(sizes, "SETTINGS", SimpleNamespace(parameters=500_000_000, building=4))
    begun = time.monotonic()
    with pytest.raises((UnsupportedModelError, RefusedError), match=said):
        shelf.load(folder(tmp_path / "m", **config))
    assert time.monotonic() - begun < 60


def test_files_are_weighed_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = folder(tmp_path / "m")
    with (tmp_path / "m" / "model.safetensors").open("wb") as file:
        file.truncate(3_000_000_000)  # a hole: it takes no room
    with pytest.raises(UnsupportedModelError, match="3,000 MB of files"):
        shelf.load(name)
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [1_000_000, 1_000], "data_offsets": [0, 4]}}
    ).encode()
    (tmp_path / "m" / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + b"1234"
    )
    with pytest.raises(UnsupportedModelError, match="1,000 million parameters"):
        shelf.load(name)
    header = header.replace(b"[1000000, 1000]", b"[1]")
    (tmp_path / "m" / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + b"12"
    )
    with pytest.raises(UnsupportedModelError, match="could not be loaded"):
        shelf.load(name)


def test_a_stored_map_that_is_too_large_is_refused_unread(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stores.map_of(store, "girls", "alti").size > 4
    monkeypatch.setattr(
        stores,
        "SETTINGS",
        SimpleNamespace(answer_megabytes=0.001, local_paths=True, any_model=True),
    )
    with pytest.raises(
        RefusedError, match=r"numbers, too many for this page. Open it with ctxmix_hf.MapStore"
    ):
        stores.map_of(store, "girls", "alti")


def test_the_heads_of_a_stored_map_count(
    box: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two maps of one size, of which one has the map of every head beside those of the layers."""
    name, text = str(tmp_path / "heads"), "The boys [MASK] tired."
    methods = ["alti", cm.method("attention", per_head=True)]
    with cm.MapStore.create(name, model=box[0], tokenizer=box[1], methods=methods) as made:
        made.add(["boys"], [text])
    assert stores.map_of(name, "boys", "attention").heads is not None
    answer = len(json.dumps(stores.map_of(name, "boys", "alti").to_dict())) / 1_000_000
    limits = SimpleNamespace(answer_megabytes=answer, local_paths=True, any_model=True)
    monkeypatch.setattr(stores, "SETTINGS", limits)
    assert stores.map_of(name, "boys", "alti").size > 4
    with pytest.raises(RefusedError, match="too many for this page"):
        stores.map_of(name, "boys", "attention")


def test_pictures_are_under_the_same_limits(client: Any, server: Server) -> None:
    with pytest.raises(Exception, match="would take about"):
        client.predict("shapes", server.slow_vision, "hta", api_name="/image_map")


# ---- a real server --------------------------------------------------------------------------------------------
def test_visitors_who_leave_cost_nothing() -> None:
    """Sixty requests nobody waits for, from one address; another visitor is served meanwhile, and
    none of the sixty is computed.
    """
    with serve() as page:
        asked = ["ctxmix/agreement", "value_zeroing", KEYS, ""]
        for k in range(60):
            page.abandon("map", asked, visitor="127.0.0.66", session=f"gone{k}")
        answers = [
            page.ask("map", ["ctxmix/agreement", "alti", f"The girls {k} [MASK] old.", ""])[0]
            for k in range(5)
        ]
        assert [a["tokens"][0]["text"] for a in answers] == [
            f"The girls {k} [MASK] old." for k in range(5)
        ]
        until = time.monotonic() + 60
        while page.counts()["waiting"] and time.monotonic() < until:
            time.sleep(0.5)
        counts = page.counts()
        assert "127.0.0.66" not in counts["computed"] and counts["computed"]["127.0.0.1"] == 5
        assert counts["waiting"] == counts["running"] == 0


def test_a_picture_is_never_decoded_in_the_server(tmp_path: Path) -> None:
    """36 million pixels in 35 kB, uploaded as the page does it, or in the place of its address; a worker refuses them
    by their header, and the server's memory has no room for them. A path that was not uploaded is not opened.
    """
    file = io.BytesIO()
    Image.new("L", (6000, 6000)).save(file, format="PNG")
    data = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
    secret, meta = str(tmp_path / "secret.png"), {"_type": "gradio.FileData"}
    asked = ["ctxmix/digits", "alti", None, ""]
    with serve() as page:
        server = page.counts()["server"]
        page.ask("show_image", [page.upload(_small()), *asked])
        before = megabytes(server, "VmHWM")
        shown = page.ask("show_image", [page.upload(file.getvalue()), *asked])[0]
        assert "too many pixels" in shown["error"]
        for given in ({"path": None, "url": data, "meta": meta}, {"url": data}):
            with contextlib.suppress(Refused):
                assert "error" in page.ask("show_image", [given, *asked])[0]
        assert megabytes(server, "VmHWM") - before < 40
        for given in ({"path": secret, "meta": meta}, {"path": secret}, {"url": secret}, secret):
            with contextlib.suppress(Refused):
                shown = page.ask("show_image", [given, *asked])[0]
                assert "not uploaded here" in shown["error"] or "Choose" in shown["error"]


def _small() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, format="PNG")
    return file.getvalue()


def test_the_page_still_answers_to_its_own_name_only(server: Server) -> None:
    at = urlparse(server.url)
    for host, status in ((f"127.0.0.1:{at.port}", 200), ("evil.example", 421)):
        connection = http.client.HTTPConnection("127.0.0.1", at.port, timeout=30)
        connection.request("GET", "/config", headers={"host": host})
        answer = connection.getresponse()
        assert answer.status == status and answer.headers["x-content-type-options"] == "nosniff"
        connection.close()


@pytest.mark.parametrize("place", ["http://x.example/big", "HTTPS://x.example/big", " ftp://x/a"])
@pytest.mark.parametrize("path", ["/gradio_api/queue/join", "/gradio_api/call/map", "/run/map"])
def test_no_file_is_fetched_from_an_address(place: str, path: str) -> None:
    """gradio would download it, of any size, before a function of ours is called."""
    asked: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        message, body = await receive(), b""
        while message["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
            message = await receive()
        asked.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    own = {"path": "tmp/a.png", "url": "http://127.0.0.1:7860/file=a.png"}  # as the page sends it
    good = json.dumps({"data": ["a text about http://x.example", own]}).encode()
    bad = json.dumps({"data": [{"a": [{"path": place, "meta": {"_type": "gradio.FileData"}}]}]})
    escaped = bad.replace("path", "p\\u0061th")
    for body in (bad, escaped):
        half = len(body) // 2
        status, said, _ = through(Door(app), body[:half].encode(), body[half:].encode(), path=path)
        assert status == 400 and b"Upload the file itself" in said and not asked
    assert through(Door(app), good[:9], good[9:], path=path)[0] == 200 and asked == [good]
    assert through(Door(app), b"[" * 10_000, path=path)[0] == 200  # not JSON: gradio's to refuse
