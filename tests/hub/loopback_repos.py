"""The /api routes about repositories: create and delete, information, listings, refs, tags and branches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .loopback_access import find_repo, need_sign_in, param, signed_in
from .loopback_store import GIT_ATTRIBUTES, Commit, File, HubError, Repo, card_metadata

if TYPE_CHECKING:
    from .loopback import LoopbackHub


async def whoami(hub: LoopbackHub, request: Request) -> Response:
    """The user behind the token."""
    need_sign_in(hub, request)
    token = {"displayName": "test", "role": "write"}
    auth = {"type": "access_token", "accessToken": token}
    return JSONResponse(
        {"type": "user", "name": hub.user, "fullname": hub.user, "orgs": [], "auth": auth}
    )


async def validate_yaml(hub: LoopbackHub, request: Request) -> Response:
    """Checks that a card's metadata is YAML; says so, as the real Hub does, when there is none."""
    signed_in(hub, request)
    body = await request.json()
    try:
        metadata = card_metadata(body["content"])
    except ValueError as error:
        return JSONResponse({"errors": [{"message": str(error)}], "warnings": []}, 400)
    missing = [] if metadata else [{"message": "empty or missing yaml metadata in repo card"}]
    return JSONResponse({"errors": [], "warnings": missing})


async def create_repo(hub: LoopbackHub, request: Request) -> Response:
    """Makes a repository with the one file a fresh one has; 409 with its address if it is there already."""
    need_sign_in(hub, request)
    body = await request.json()
    kind, repo_id = (
        body.get("type") or "model",
        f"{body.get('organization') or hub.user}/{body['name']}",
    )
    repo = Repo(kind, repo_id, private=body.get("visibility") == "private", sdk=body.get("sdk"))
    answer = {"url": f"{hub.url}/{repo.url_path}", "name": repo_id, "id": repo_id}
    if (kind, repo_id) in hub.repos:
        return JSONResponse(answer | {"error": f"You already created this {kind} repo"}, 409)
    repo.commit(
        "main",
        {".gitattributes": hub.blobs.add(GIT_ATTRIBUTES.encode(), lfs=False)},
        "initial commit",
    )
    hub.repos[kind, repo_id] = repo
    return JSONResponse(answer)


async def delete_repo(hub: LoopbackHub, request: Request) -> Response:
    """Forgets a repository."""
    need_sign_in(hub, request)
    body = await request.json()
    key = body.get("type") or "model", f"{body.get('organization') or hub.user}/{body['name']}"
    if hub.repos.pop(key, None) is None:
        raise HubError(404, "Repository not found", "RepoNotFound")
    return Response("OK")


async def settings(hub: LoopbackHub, request: Request) -> Response:
    """Makes a repository private or public."""
    repo = find_repo(hub, request, write=True)
    repo.private = (await request.json()).get("visibility") == "private"
    return JSONResponse({"private": repo.private})


async def auth_check(hub: LoopbackHub, request: Request) -> Response:
    """Whether the asker may read it."""
    find_repo(hub, request)
    return JSONResponse({})


async def auth_check_write(hub: LoopbackHub, request: Request) -> Response:
    """Whether the asker may write to it."""
    find_repo(hub, request, write=True)
    return JSONResponse({})


async def repo_info(hub: LoopbackHub, request: Request) -> Response:
    """A repository at a revision; `blobs` adds sizes and hashes to the list of files."""
    repo = find_repo(hub, request)
    commit = repo.at(param(request, "revision") or "main")
    blobs = _flag(request, "blobs")
    files = [
        {"rfilename": path} | (_blob(file) if blobs else {})
        for path, file in sorted(commit.files.items())
    ]
    info: dict[str, Any] = {
        "_id": repo.id,
        "id": repo.id,
        "author": repo.id.split("/")[0],
        "sha": commit.sha,
    }
    info |= {
        "private": repo.private,
        "gated": "manual" if repo.gated else False,
        "disabled": False,
        "tags": [],
        "downloads": 0,
        "likes": 0,
    }
    info |= {
        "createdAt": repo.created,
        "lastModified": commit.date,
        "siblings": files,
        "sdk": repo.sdk,
    }
    if "README.md" in commit.files:
        info["cardData"] = card_metadata(
            hub.blobs.path(commit.files["README.md"].sha256).read_text("utf-8")
        )
    return JSONResponse(info)


def _blob(file: File) -> dict[str, Any]:
    lfs = {"sha256": file.sha256, "size": file.size, "pointerSize": 134} if file.lfs else None
    return {"size": file.size, "blobId": file.git_oid, "lfs": lfs}


async def tree(hub: LoopbackHub, request: Request) -> Response:
    """What lies below a folder, page by page: the address of the next page comes in a Link header."""
    repo = find_repo(hub, request)
    commit, folder = repo.at(param(request, "revision")), param(request, "path").strip("/")
    rows = sorted(_listing(commit, folder, _flag(request, "recursive"), _flag(request, "expand")))
    if folder and not rows:
        raise HubError(
            404,
            f"{folder} does not exist on {commit.sha}",
            "EntryNotFound",
            X_Repo_Commit=commit.sha,
        )
    start = int(request.query_params.get("cursor", 0))
    end = start + hub.tree_page_size
    headers = {}
    if end < len(rows):
        following = request.url.include_query_params(cursor=end).query
        headers["Link"] = f'<{hub.url}{request.scope["path"]}?{following}>; rel="next"'
    return JSONResponse([row for _, row in rows[start:end]], headers=headers)


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() in {"1", "true"}


def _listing(
    commit: Commit, folder: str, recursive: bool, expand: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    prefix = folder + "/" if folder else ""
    folders: set[str] = set()
    for path in commit.files:
        if not path.startswith(prefix):
            continue
        parts = path.removeprefix(prefix).split("/")
        folders |= {
            prefix + "/".join(parts[:depth]) for depth in range(1, len(parts) if recursive else 2)
        }
        if recursive or len(parts) == 1:
            yield path, _row(commit, path, expand)
    yield from ((path, _row(commit, path, expand)) for path in folders - set(commit.files))


def _row(commit: Commit, path: str, expand: bool) -> dict[str, Any]:
    """A file or folder as listings show it."""
    file = commit.files.get(path)
    if file is None:
        row: dict[str, Any] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}
    else:
        row = {"type": "file", "oid": file.git_oid, "size": file.size, "path": path}
        if file.lfs:
            row["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": 134}
            row |= {"xetHash": file.xet_hash} if file.xet_hash else {}
    if expand:
        last = commit.last_change(path)
        row["lastCommit"] = {"id": last.sha, "title": last.title, "date": last.date}
    return row


async def paths_info(hub: LoopbackHub, request: Request) -> Response:
    """The rows of the named files and folders; names that do not exist are left out, not an error."""
    repo = find_repo(hub, request)
    commit = repo.at(param(request, "revision"))
    form = parse_qs((await request.body()).decode())
    expand = form.get("expand", ["false"])[0].lower() == "true"
    known = [
        path
        for path in form.get("paths", [])
        if any(f"{name}/".startswith(f"{path}/") for name in commit.files)
    ]
    return JSONResponse([_row(commit, path, expand) for path in known])


async def refs(hub: LoopbackHub, request: Request) -> Response:
    """All branches and tags."""
    repo = find_repo(hub, request)
    answer: dict[str, list[dict[str, str]]] = {"converts": [], "pullRequests": []}
    for group, folder, named in (("branches", "heads", repo.branches), ("tags", "tags", repo.tags)):
        answer[group] = [
            {"name": name, "ref": f"refs/{folder}/{name}", "targetCommit": commit.sha}
            for name, commit in named.items()
        ]
    return JSONResponse(answer)


async def commits(hub: LoopbackHub, request: Request) -> Response:
    """A revision's history, newest first."""
    history = find_repo(hub, request).at(param(request, "revision")).history()
    authors = [{"user": hub.user}]
    rows = [
        {
            "id": one.sha,
            "title": one.title,
            "message": one.message,
            "date": one.date,
            "authors": authors,
        }
        for one in history
    ]
    return JSONResponse(rows)


async def tag(hub: LoopbackHub, request: Request) -> Response:
    """POST tags the revision in the path; DELETE removes the tag in the path."""
    repo, name = find_repo(hub, request, write=True), param(request, "ref")
    if request.method == "DELETE":
        return _forget(repo.tags, name)
    return _remember(repo.tags, (await request.json())["tag"], repo.at(name))


async def branch(hub: LoopbackHub, request: Request) -> Response:
    """POST starts a branch (at `main` unless told); DELETE removes it."""
    repo, name = find_repo(hub, request, write=True), param(request, "ref")
    if request.method == "DELETE":
        return _forget(repo.branches, name)
    return _remember(
        repo.branches, name, repo.at((await request.json()).get("startingPoint") or "main")
    )


def _remember(named: dict[str, Commit], name: str, commit: Commit) -> Response:
    if name in named:
        raise HubError(409, f"Reference already exists: {name}")
    named[name] = commit
    return JSONResponse({})


def _forget(named: dict[str, Commit], name: str) -> Response:
    if named.pop(name, None) is None:
        raise HubError(404, f"Invalid rev id: {name}", "RevisionNotFound")
    return JSONResponse({})
