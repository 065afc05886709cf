"""Who is asking, and for which repository: what decides between an answer and a 401 or 404."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from starlette.requests import Request

from .loopback_store import HubError, Repo

if TYPE_CHECKING:
    from .loopback import LoopbackHub

KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}


def param(request: Request, name: str) -> str:
    """A path parameter. Paths are matched undecoded, as a branch `a/b` arrives as one segment `a%2Fb`."""
    return unquote(request.path_params.get(name, ""))


def signed_in(hub: LoopbackHub, request: Request) -> bool:
    """Whether a valid token came along; an invalid one is an error even where none is needed."""
    header = request.headers.get("authorization")
    if header is None:
        return False
    if header != f"Bearer {hub.token}":
        raise HubError(401, "Invalid credentials in Authorization header")
    return True


def need_sign_in(hub: LoopbackHub, request: Request) -> None:
    """Raises unless a valid token came along."""
    if not signed_in(hub, request):
        raise HubError(401, "Invalid username or password.")


def find_repo(hub: LoopbackHub, request: Request, *, write: bool = False) -> Repo:
    """The repository in the path. To the anonymous, private and missing look alike: 401 and RepoNotFound."""
    user = signed_in(hub, request)
    kind = KINDS.get(param(request, "kinds") or "models", "")
    repo_id = "/".join(filter(None, (param(request, "owner"), param(request, "name"))))
    repo = hub.repos.get((kind, repo_id))
    if not user and (repo is None or repo.private):
        raise HubError(401, "Invalid username or password.", "RepoNotFound")
    if repo is None:
        raise HubError(404, "Repository not found", "RepoNotFound")
    if write and not user:
        raise HubError(401, "Invalid username or password.")
    return repo


def need_grant(hub: LoopbackHub, request: Request, repo: Repo) -> None:
    """Raises for the files of a gated repository unless its owner let this user in."""
    if repo.gated and not repo.granted:
        status = 403 if signed_in(hub, request) else 401
        raise HubError(status, f"Access to {repo.kind} {repo.id} is restricted.", "GatedRepo")


def storage_only(request: Request) -> None:
    """Refuses a token at the store of large files: it belongs to the Hub's host name alone."""
    if "authorization" in request.headers:
        raise HubError(400, "Only one auth mechanism allowed: a token was sent to the storage host")
