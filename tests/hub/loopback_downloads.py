"""The routes a download walks through: metadata, ranges, and the second host name for large files."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from .loopback_access import find_repo, need_grant, param, storage_only
from .loopback_store import HubError

if TYPE_CHECKING:
    from .loopback import LoopbackHub

CHUNK_BYTES = 1 << 18


class ConnectionCut(Exception):
    """Raised in the middle of a body: uvicorn then closes the connection and the client reads too little."""


async def resolve(hub: LoopbackHub, request: Request) -> Response:
    """HEAD and GET of a file at a revision. Large files are only pointed to: they are on the storage host."""
    repo = find_repo(hub, request)
    need_grant(hub, request, repo)
    commit, file = repo.file_at(param(request, "revision"), param(request, "path"))
    headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{file.etag}"'}
    if not file.lfs:
        return _body(hub, request, file.sha256, headers)
    headers |= {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(file.size)}
    headers["Location"] = f"{hub.storage_url}/storage/{file.sha256}"
    if file.xet_hash:
        route = f"{hub.url}/api/{repo.kind}s/{repo.id}/xet-read-token/{commit.sha}"
        headers |= {"X-Xet-Hash": file.xet_hash, "X-Xet-Refresh-Route": route}
    return Response(status_code=302, headers=headers)


async def storage(hub: LoopbackHub, request: Request) -> Response:
    """A large file by its hash. No token may come here; on the real Hub the address itself is signed."""
    storage_only(request)
    oid = param(request, "oid")
    if not hub.blobs.has(oid):
        raise HubError(404, "No such object")
    return _body(hub, request, oid, {"ETag": f'"{oid}"'})


def _body(hub: LoopbackHub, request: Request, sha256: str, headers: dict[str, str]) -> Response:
    """The bytes asked for, or only their headers for a HEAD."""
    path = hub.blobs.path(sha256)
    size = path.stat().st_size
    start, end, status = _wanted(None if hub.ignore_ranges else request.headers.get("range"), size)
    headers |= {"Content-Length": str(end - start), "Accept-Ranges": "bytes"}
    if status == 206:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    kind = "application/octet-stream"
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=kind)
    return StreamingResponse(
        _chunks(path, start, end, _cut(hub, end - start)), status, headers, kind
    )


def _wanted(header: str | None, size: int) -> tuple[int, int, int]:
    """Begin, end (excluded) and status for a Range header: `a-b`, `a-` or `-n`."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if found is None or not any(found.groups()):
        return 0, size, 200
    first, last = found.groups()
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= end:
        raise HubError(416, "Range not satisfiable", Content_Range=f"bytes */{size}")
    return start, end, 206


def _cut(hub: LoopbackHub, length: int) -> int | None:
    """Takes the fault that is set, if this body is long enough for it to bite."""
    cut = hub.cut_after_bytes
    if cut is None or cut >= length:
        return None
    hub.cut_after_bytes = None
    return cut


async def _chunks(path: Path, start: int, end: int, cut: int | None) -> AsyncIterator[bytes]:
    stop = end if cut is None else start + cut
    with path.open("rb") as file:
        file.seek(start)
        while start < stop:
            chunk = file.read(min(CHUNK_BYTES, stop - start))
            start += len(chunk)
            yield chunk
    if cut is not None:
        raise ConnectionCut(f"cut after {cut} bytes, as set")
