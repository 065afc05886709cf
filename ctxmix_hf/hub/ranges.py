"""One range of bytes over HTTP: in time, not one byte more than was asked for, whatever the server does.

`huggingface_hub`'s own session is used (httpx or requests, as its version has it), so proxies and
certificates are the user's. Redirects are followed here, because both libraries read a redirect's
whole body; no body is ever decompressed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urljoin, urlsplit

from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

from ctxmix_hf.errors import StoreError

CLIENT_ERRORS: tuple[Any, ...] = (
    *HfHubHTTPError.__bases__,
    OSError,
)  # the HTTP library's own, whichever it is
TRIES, REDIRECTS = 4, 5
PAUSE, LONGEST_PAUSE = (
    0.2,
    10.0,
)  # seconds between tries; a server that asks for more is not waited for
SLOWEST = 20_000  # bytes per second that are still waited for
CHUNK = 1 << 16
_BUSY = (408, 425, 429, 500, 502, 503, 504)

Answer = tuple[int, Mapping[str, str], Iterator[bytes]]  # status, headers, body


def read_range(url: str, headers: Mapping[str, str], begin: int, end: int, size: int) -> bytes:
    """Bytes `[begin, end)` of a file of `size` bytes. A cut connection and a busy server are asked
    again, a few times.
    """
    asked = {**headers, "Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
    for left in reversed(range(TRIES)):
        pause = PAUSE * 2 ** (TRIES - 1 - left)
        try:
            with _get(url, asked) as (status, fields, body):
                if status not in _BUSY:
                    return _taken(status, fields, body, begin, end, size)
                pause = max(pause, _asked_to_wait(status, fields))
                if not left:
                    raise StoreError(f"the server is busy (status {status})")
        except CLIENT_ERRORS:
            if not left:
                raise
        time.sleep(pause)
    raise AssertionError("unreachable")


def _asked_to_wait(status: int, fields: Mapping[str, str]) -> float:
    wanted = str(fields.get("retry-after", "")).strip()
    seconds = float(wanted) if wanted.isdigit() and len(wanted) < 12 else 0.0
    if seconds > LONGEST_PAUSE:
        raise StoreError(
            f"the server is busy (status {status}) and asks to come back in {seconds:.0f} s: try again later"
        )
    return seconds


def _taken(
    status: int, fields: Mapping[str, str], body: Iterator[bytes], begin: int, end: int, size: int
) -> bytes:
    """The range from an answer; the rest of a longer one is never read."""
    if status not in (200, 206):
        raise StoreError(f"the server answered with status {status}")
    encoding, length, sent = (
        str(fields.get(name, ""))
        for name in ("content-encoding", "content-length", "content-range")
    )
    if encoding not in ("", "identity"):
        raise StoreError("the server sent compressed bytes, which were not asked for")
    skip, expected = (
        (0, end - begin) if status == 206 else (begin, size)
    )  # 200: a mirror that knows no ranges
    if length not in ("", str(expected)) or (
        status == 206 and sent and not sent.startswith(f"bytes {begin}-{end - 1}/")
    ):
        raise StoreError(
            f"asked for {end - begin} bytes, got something else ({length or 'no'} bytes, range {sent or 'none'!r:.80})"
        )
    data, passed = bytearray(), 0
    deadline = (
        time.monotonic() + 2 * constants.HF_HUB_DOWNLOAD_TIMEOUT + (skip + end - begin) / SLOWEST
    )
    for chunk in body:
        data += chunk[max(0, skip - passed) :][: end - begin - len(data)]
        passed += len(chunk)
        if len(data) == end - begin:
            return bytes(data)
        if time.monotonic() > deadline:
            raise StoreError(f"the server is too slow: {passed} bytes in the time there was")
    raise StoreError(f"asked for {end - begin} bytes, got {len(data)}")


@contextmanager
def _get(url: str, headers: Mapping[str, str]) -> Iterator[Answer]:
    """The answer at the end of some redirects. A token goes to the host it was meant for, and to no other."""
    first, sent = url, dict(headers)
    for _ in range(REDIRECTS + 1):
        if urlsplit(url)[:2] != urlsplit(first)[:2]:
            sent = {
                name: value
                for name, value in headers.items()
                if name.lower() not in ("authorization", "cookie")
            }
        with _open(url, sent) as (status, fields, body):
            if status not in (301, 302, 303, 307, 308):
                yield status, fields, body
                return
            place = urljoin(url, str(fields.get("location", "")))
        if urlsplit(place).scheme not in {"https", urlsplit(url).scheme}:
            raise StoreError(f"the server redirects to {place!r:.80}, which is not https")
        url = place
    raise StoreError(f"the server redirects more than {REDIRECTS} times")


@contextmanager
def _open(url: str, headers: dict[str, str]) -> Iterator[Answer]:
    session: Any = get_session()
    limit = constants.HF_HUB_DOWNLOAD_TIMEOUT
    if callable(getattr(session, "stream", None)):  # httpx; requests has a flag of that name
        with session.stream(
            "GET", url, headers=headers, timeout=limit, follow_redirects=False
        ) as response:
            yield response.status_code, response.headers, response.iter_raw(CHUNK)
    else:  # its adapter, because the session reads the body of every redirect
        from requests import Request

        settings = session.merge_environment_settings(url, {}, True, None, None)
        prepared = session.prepare_request(Request("GET", url, headers=headers))
        with session.get_adapter(url).send(prepared, timeout=limit, **settings) as response:
            yield (
                response.status_code,
                response.headers,
                response.iter_content(CHUNK),
            )  # refused if it is encoded
