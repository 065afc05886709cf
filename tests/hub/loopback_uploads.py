"""The routes an upload walks through: which way each file goes, the large ones, the commit that names all."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .loopback_access import KINDS, find_repo, param, storage_only
from .loopback_store import LFS_SUFFIXES, File, HubError, Repo

if TYPE_CHECKING:
    from .loopback import LoopbackHub


async def preupload(hub: LoopbackHub, request: Request) -> Response:
    """Says which files are large, and the present hash of each: the client leaves out what is there."""
    repo = find_repo(hub, request, write=True)
    files = repo.at(param(request, "revision")).files
    answer = []
    for offered in (await request.json())["files"]:
        present = files.get(offered["path"])
        mode = "lfs" if _is_large(hub, offered) else "regular"
        row = {"path": offered["path"], "uploadMode": mode, "shouldIgnore": False}
        answer.append(row | {"oid": present.etag if present else None})
    return JSONResponse({"files": answer})


def _is_large(hub: LoopbackHub, offered: dict[str, Any]) -> bool:
    suffix = PurePosixPath(offered["path"]).suffix
    binary = b"\0" in base64.b64decode(offered["sample"])
    return suffix in LFS_SUFFIXES or binary or offered["size"] > hub.lfs_threshold


async def lfs_batch(hub: LoopbackHub, request: Request) -> Response:
    """Where to put each large object; nothing to do for those the repository has."""
    repo = find_repo(hub, request, write=True)
    objects = []
    for wanted in (await request.json())["objects"]:
        row: dict[str, Any] = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] not in repo.objects:
            verify = {"href": f"{hub.url}/lfs/{repo.kind}s/{repo.id}/verify", "header": {}}
            row["actions"] = {"upload": _upload_action(hub, repo, **row), "verify": verify}
        objects.append(row)
    return JSONResponse(
        {"transfer": "multipart" if hub.multipart_bytes else "basic", "objects": objects}
    )


def _upload_action(hub: LoopbackHub, repo: Repo, oid: str, size: int) -> dict[str, Any]:
    chunk, path = hub.multipart_bytes, f"lfs/{repo.kind}s/{repo.id}"
    if not chunk or size <= chunk:
        return {"href": f"{hub.storage_url}/{path}/upload/{oid}", "header": {}}
    numbers = range(1, -(-size // chunk) + 1)
    parts = {str(number): f"{hub.storage_url}/{path}/part/{oid}/{number}" for number in numbers}
    return {
        "href": f"{hub.url}/{path}/complete/{oid}",
        "header": {"chunk_size": str(chunk)} | parts,
    }


def _objects(hub: LoopbackHub, request: Request) -> dict[str, str | None]:
    """The large objects of the repository in the path; who may write was settled with the address."""
    kind = KINDS[param(request, "kinds")]
    return hub.repos[kind, f"{param(request, 'owner')}/{param(request, 'name')}"].objects


async def lfs_upload(hub: LoopbackHub, request: Request) -> Response:
    """A whole object in one PUT."""
    storage_only(request)
    await hub.blobs.receive(param(request, "oid"), request.stream())
    _objects(hub, request)[param(request, "oid")] = None
    return Response()


async def lfs_part(hub: LoopbackHub, request: Request) -> Response:
    """One part of an object; its hash goes back as ETag and must return with the completion."""
    storage_only(request)
    content = await request.body()
    hub.blobs.path(f"{param(request, 'oid')}.part{param(request, 'part')}").write_bytes(content)
    return Response(headers={"ETag": f'"{hashlib.md5(content).hexdigest()}"'})


async def lfs_complete(hub: LoopbackHub, request: Request) -> Response:
    """Joins the parts, in the order the client names them."""
    oid, body = param(request, "oid"), await request.json()
    paths = [hub.blobs.path(f"{oid}.part{part['partNumber']}") for part in body["parts"]]

    async def chunks() -> AsyncIterator[bytes]:
        for path, part in zip(paths, body["parts"], strict=True):
            content = path.read_bytes()
            if part["etag"] != f'"{hashlib.md5(content).hexdigest()}"':
                raise HubError(400, f"Part {part['partNumber']} came with the wrong ETag")
            yield content

    await hub.blobs.receive(oid, chunks())
    _objects(hub, request)[oid] = None
    for path in paths:
        path.unlink()
    return JSONResponse({})


async def lfs_verify(hub: LoopbackHub, request: Request) -> Response:
    """Whether an object arrived whole."""
    body = await request.json()
    arrived = body["oid"] in _objects(hub, request)
    if not arrived or hub.blobs.path(body["oid"]).stat().st_size != body["size"]:
        raise HubError(400, f"Object {body['oid']} is not in the store")
    return JSONResponse({})


async def commit(hub: LoopbackHub, request: Request) -> Response:
    """Applies the lines of an ndjson body to a branch: all of them, or none if one is refused."""
    repo, name = find_repo(hub, request, write=True), param(request, "revision")
    branch = name.removeprefix("refs/heads/")
    if branch not in repo.branches:
        raise HubError(404, f"Invalid rev id: {name}", "RevisionNotFound")
    lines = [json.loads(line) for line in (await request.body()).splitlines() if line.strip()]
    header = next(line["value"] for line in lines if line["key"] == "header")
    head = repo.branches[branch]
    if header.get("parentCommit", head.sha) != head.sha:
        raise HubError(412, "A commit has happened since. Please refresh and try again.")
    files = dict(head.files)
    for line in lines:
        if line["key"] != "header":
            _apply(hub, repo, files, line["key"], line["value"])
    made = repo.commit(branch, files, header["summary"], header.get("description", ""))
    url = f"{hub.url}/{repo.url_path}/commit/{made.sha}"
    return JSONResponse(
        {"success": True, "commitOid": made.sha, "commitUrl": url, "hookOutput": ""}
    )


def _apply(
    hub: LoopbackHub, repo: Repo, files: dict[str, File], key: str, value: dict[str, Any]
) -> None:
    """One line of a commit."""
    path = value["path"]
    if key == "file":
        files[path] = hub.blobs.add(base64.b64decode(value["content"]), lfs=False)
    elif key == "lfsFile":
        oid = value["oid"]
        if oid not in repo.objects:
            repo.objects[oid] = hub.xet.fetch(oid, hub.blobs)
        files[path] = hub.blobs.lfs_file(oid, repo.objects[oid])
    elif key in {"deletedFile", "deletedFolder"}:
        prefix = path.rstrip("/") + "/"
        gone = (
            [path] if key == "deletedFile" else [name for name in files if name.startswith(prefix)]
        )
        if not gone or any(files.pop(name, None) is None for name in gone):
            raise HubError(404, "A file with this name doesn't exist", "EntryNotFound")
    else:
        raise HubError(400, f"Unknown line in commit: {key}")
