"""The door: what every HTTP request passes before gradio sees it.

Unknown hosts, bodies that are too large and visitors with too many connections are turned away;
answers carry security headers; and the gate is told which sessions have somebody listening.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import time
from collections import Counter
from functools import cache
from html import escape
from importlib import resources
from typing import Any
from urllib.parse import parse_qs

from ctxmix_hf.demo.gate import LISTENERS, visitor_of
from ctxmix_hf.demo.settings import HOST, SETTINGS, exposed, is_loopback

CONNECTIONS = 64  # open requests of one visitor
BODIES = 20  # full uploads of one visitor in ten minutes
_FRAMES = (
    "'self' https://huggingface.co https://*.hf.space" if "SPACE_ID" in os.environ else "'self'"
)
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
    # gradio's page needs inline scripts and eval; nothing may be fetched from, or sent to, anywhere else
    (
        b"content-security-policy",
        "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; base-uri "
        "'self'; form-action 'self'; "
        f"frame-ancestors {_FRAMES}".encode(),
    ),
]


TITLE = "Context mixing: which tokens was each representation made from?"
DESCRIPTION = (
    "Type a sentence, choose a model and a method, and see which tokens each representation was made "
    "from, layer by layer: ALTI, Value Zeroing, GlobEnc, DecompX, attention rollout and more."
)
PREVIEW = "A sentence, coloured by where its masked word took information from, over the map of all its tokens."
_META = re.compile(r"<meta\b[^>]*?\b(?:property|name)=[\"'](?:og|twitter):[^>]*>\s*", re.DOTALL)
_OURS = "".join(
    f'<meta {kind}="{name}" content="{value}" />\n'
    for kind, name, value in (
        ("name", "description", DESCRIPTION),
        ("property", "og:title", TITLE),
        ("property", "og:type", "website"),
        ("property", "og:description", DESCRIPTION),
        ("property", "og:image", "{origin}/preview.png"),
        ("property", "og:image:alt", PREVIEW),
        ("name", "twitter:card", "summary_large_image"),
        ("name", "twitter:image", "{origin}/preview.png"),
        ("name", "twitter:title", TITLE),
        ("name", "twitter:description", DESCRIPTION),
    )
)


@cache
def preview() -> bytes:
    """The picture beside a link to this page (scripts/pictures.py makes it of what a visitor sees)."""
    return (resources.files("ctxmix_hf") / "demo" / "preview.png").read_bytes()


def own_head(page: bytes, origin: str = "") -> bytes:
    """The page with a description and a preview of its own in place of gradio's."""
    text, ours = _META.sub("", page.decode("utf-8")), _OURS.replace("{origin}", escape(origin))
    return (
        text.replace("</title>", f"</title>\n{ours}", 1).encode()
        if "</title>" in text
        else (text.replace("<head>", f"<head>\n<title>{TITLE}</title>\n{ours}", 1).encode())
    )


def framed(scope: Any) -> list[tuple[bytes, bytes]]:
    """The headers; a page that asks to be embedded may stand in anybody's frame, where strangers may see it anyway."""
    embed = b"embed=1" in scope.get("query_string", b"").split(b"&")
    if not embed or not exposed():
        return HEADERS
    return [
        (name, value.replace(f"frame-ancestors {_FRAMES}".encode(), b"frame-ancestors *"))
        for name, value in HEADERS
    ]


def known_host(given: str) -> bool:
    """Whether the Host header names this server: another name is a page elsewhere that points its
    own name here (DNS rebinding).
    """
    name = given.rsplit(":", 1)[0] if not given.endswith("]") else given
    name = name.strip("[]").lower()
    if not name:
        return False
    if is_loopback(name) or name in {
        os.environ.get(HOST, "").lower(),
        *map(str.lower, SETTINGS.hosts),
    }:
        return True
    if not exposed():
        return False
    if name in {os.environ.get("SPACE_HOST", "").lower(), socket.gethostname().lower()} - {""}:
        return True
    return (
        name.replace(".", "").isdecimal() or ":" in name
    )  # a plain address cannot be pointed anywhere


class Door:
    """ASGI middleware."""

    def __init__(self, app: Any) -> None:
        self.app, self.open, self.sent = app, Counter[str](), dict[str, list[tuple[float, int]]]()
        LISTENERS.told = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        if scope["type"] == "websocket":
            if not known_host(headers.get("host", "")):
                return await send({"type": "websocket.close", "code": 1008})
            return await self.app(scope, receive, send)
        visitor = visitor_of((scope.get("client") or ("",))[0], headers.get("x-forwarded-for", ""))
        if not known_host(headers.get("host", "")):
            return await refuse(
                send,
                421,
                "This server does not answer to that host name. Its owner can add it to CTXMIX_DEMO_HOSTS.",
            )
        most = SETTINGS.upload_megabytes * 1_000_000
        if (
            int(headers.get("content-length", "0") or 0) > most
            or self._recently(visitor) > BODIES * most
        ):
            return await refuse(
                send,
                413,
                f"This server takes at most {SETTINGS.upload_megabytes} MB at once. Send a smaller picture.",
            )
        if self.open[visitor] >= CONNECTIONS:
            return await refuse(
                send,
                429,
                "Too many connections are open from your address. Close some, then try again.",
            )
        if scope["path"] == "/preview.png" and scope["method"] in ("GET", "HEAD"):
            return await reply(send, 200, b"image/png", preview())
        self.open[visitor] += 1
        try:
            await self._pass(scope, receive, send, visitor, most)
        finally:
            self.open[visitor] -= 1
            self.open += Counter()  # drops those at zero

    def _recently(self, visitor: str) -> int:
        """Bytes in the bodies of the last ten minutes."""
        now = time.monotonic()
        self.sent = {
            who: kept
            for who, rows in self.sent.items()
            if (kept := [row for row in rows if now - row[0] < 600])
        }
        return sum(size for _, size in self.sent.get(visitor, ()))

    async def _pass(self, scope: Any, receive: Any, send: Any, visitor: str, most: int) -> None:
        listens = listening(scope)
        arrived: asyncio.Queue[Any] = asyncio.Queue(4)
        size, answered = 0, False

        async def read() -> None:
            """Reads ahead, so that a client that goes is noticed when it goes, not when the next message is due."""
            nonlocal size, listens
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" and listens:
                    LISTENERS.go(listens)
                    listens = ""
                size += len(message.get("body", b""))
                if size > most:
                    message = {"type": "http.disconnect"}
                await arrived.put(message)
                if message["type"] == "http.disconnect":
                    return

        held: list[Any] = []  # the start and the body of the page itself, until it is whole

        async def write(message: Any) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                known = {name for name, _ in message["headers"]}
                message = {
                    **message,
                    "headers": [
                        *message["headers"],
                        *(pair for pair in framed(scope) if pair[0] not in known),
                    ],
                }
                kind = dict(message["headers"]).get(b"content-type", b"")
                if (
                    scope["path"] == "/"
                    and kind.startswith(b"text/html")
                    and b"content-encoding" not in known
                ):
                    held.append(message)
                    return
            elif held and message["type"] == "http.response.body":
                held.append(message.get("body", b""))
                if message.get("more_body"):
                    return
                start, body = held[0], own_head(b"".join(held[1:]), origin(scope))
                held.clear()
                headers = [pair for pair in start["headers"] if pair[0] != b"content-length"]
                await send(
                    {
                        **start,
                        "headers": [*headers, (b"content-length", str(len(body)).encode())],
                    }
                )
                message = {"type": "http.response.body", "body": body}
            await send(message)

        async def next_message() -> Any:
            return (
                {"type": "http.disconnect"}
                if reader.done() and arrived.empty()
                else await arrived.get()
            )

        first: list[Any] = []  # read before the app is asked

        async def replayed() -> Any:
            return first.pop(0) if first else await next_message()

        if listens:
            LISTENERS.come(listens)
        reader = asyncio.create_task(read())
        try:
            if scope["method"] == "POST" and not scope["path"].endswith("/upload"):
                first.append(await next_message())
                while first[-1].get("more_body"):
                    first.append(await next_message())
                if names_an_address(b"".join(part.get("body", b"") for part in first)):
                    answered = True
                    return await refuse(
                        send,
                        400,
                        "This server fetches no files from other addresses. Upload the file itself.",
                    )
            await self.app(scope, replayed, write)
        except Exception:
            if size <= most:
                raise
        finally:
            reader.cancel()
            if listens:
                LISTENERS.go(listens)
            if size > 10_000:
                self.sent.setdefault(visitor, []).append((time.monotonic(), size))
        if size > most and not answered:
            await refuse(
                send,
                413,
                f"This server takes at most {SETTINGS.upload_megabytes} MB at once. Send a smaller picture.",
            )


def names_an_address(body: bytes) -> bool:
    """Whether a request has an address where a file belongs: gradio would fetch it, of any size, before it asks us."""
    try:
        left = [json.loads(body)]
    except (ValueError, RecursionError):
        return False  # no JSON: nothing that gradio would read
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            place = value.get("path")
            if isinstance(place, str) and re.match(r"\s*[a-z]+://", place, re.IGNORECASE):
                return True
            left += value.values()
    return False


def listening(scope: Any) -> str:
    """The session (or event) whose answers this request would carry; empty for all other requests."""
    path: str = scope["path"]
    if scope["method"] != "GET":
        return ""
    if path.endswith("/queue/data"):
        return parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])[0]
    parts = path.strip("/").split("/")
    return parts[-1] if len(parts) >= 3 and "call" in parts[:-2] else ""


def origin(scope: Any) -> str:
    """Where the visitor found this page; its host was checked before."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    secure = headers.get(b"x-forwarded-proto", scope.get("scheme", "http")).startswith("https")
    return f"{'https' if secure else 'http'}://{headers.get(b'host', '')}"


async def refuse(send: Any, status: int, text: str) -> None:
    await reply(send, status, b"text/plain; charset=utf-8", text.encode())


async def reply(send: Any, status: int, kind: bytes, body: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
