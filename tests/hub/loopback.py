"""A Hugging Face Hub on the loopback address, for the real and unpatched client to push to and pull from.

It knows what the client asks (create, upload, list, tag, download by range) and what goes wrong on the way:
wrong tokens, private repositories, missing things, connections cut short, a server that is down. It is
faithful to what `huggingface_hub` 2.4 expects, not to every word of the real Hub.

    with LoopbackHub(folder) as server:
        api = HfApi(endpoint=server.url, token=server.token)

Large files come from `localhost`, all else from `127.0.0.1`: two host names, as with the Hub and its storage,
so a token that is sent where it does not belong is answered with 400.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import loopback_downloads as downloads
from . import loopback_repos as repos
from . import loopback_uploads as uploads
from .loopback_store import Blobs, HubError, Repo
from .loopback_xet import XetStore, xet_token

Handler = Callable[["LoopbackHub", Request], Awaitable[Response]]

_REPO = "/api/{kinds}/{owner}/{name}"
_OBJECTS = "/lfs/{kinds}/{owner}/{name}"
_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/api/whoami-v2", repos.whoami),
    ("POST", "/api/validate-yaml", repos.validate_yaml),
    ("POST", "/api/repos/create", repos.create_repo),
    ("DELETE", "/api/repos/delete", repos.delete_repo),
    ("GET", _REPO, repos.repo_info),
    ("GET", "/api/{kinds}/{name}", repos.repo_info),
    ("PUT", _REPO + "/settings", repos.settings),
    ("GET", _REPO + "/auth-check", repos.auth_check),
    ("GET", _REPO + "/auth-check/write", repos.auth_check_write),
    ("GET", _REPO + "/revision/{revision}", repos.repo_info),
    ("GET", _REPO + "/tree/{revision}", repos.tree),
    ("GET", _REPO + "/tree/{revision}/{path:path}", repos.tree),
    ("POST", _REPO + "/paths-info/{revision}", repos.paths_info),
    ("GET", _REPO + "/refs", repos.refs),
    ("GET", _REPO + "/commits/{revision}", repos.commits),
    ("POST DELETE", _REPO + "/tag/{ref}", repos.tag),
    ("POST DELETE", _REPO + "/branch/{ref}", repos.branch),
    ("POST", _REPO + "/preupload/{revision}", uploads.preupload),
    ("POST", _REPO + "/commit/{revision}", uploads.commit),
    ("GET", _REPO + "/xet-{access}-token/{revision}", xet_token),
    ("PUT", _OBJECTS + "/upload/{oid}", uploads.lfs_upload),
    ("PUT", _OBJECTS + "/part/{oid}/{part}", uploads.lfs_part),
    ("POST", _OBJECTS + "/complete/{oid}", uploads.lfs_complete),
    ("POST", _OBJECTS + "/verify", uploads.lfs_verify),
    ("GET", "/storage/{oid}", downloads.storage),
    ("POST", "/{kinds}/{owner}/{name}.git/info/lfs/objects/batch", uploads.lfs_batch),
    ("POST", "/{owner}/{name}.git/info/lfs/objects/batch", uploads.lfs_batch),
    ("GET", "/{kinds}/{owner}/{name}/resolve/{revision}/{path:path}", downloads.resolve),
    ("GET", "/{owner}/{name}/resolve/{revision}/{path:path}", downloads.resolve),
    ("GET", "/{name}/resolve/{revision}/{path:path}", downloads.resolve),
)


@dataclass
class Logged:
    """One request as it came in, and what has been sent back so far."""

    method: str
    path: str
    host: str
    range: str | None
    authorized: bool
    status: int = 0
    bytes_sent: int = 0


class LoopbackHub:
    """The server. Faults and switches are plain attributes; log and repositories are there to be read."""

    def __init__(self, folder: Path, user: str = "tester") -> None:
        self.user, self.token = user, f"hf_test{'0' * 27}"
        self.blobs, self.repos = Blobs(folder / "blobs"), dict[tuple[str, str], Repo]()
        self.xet = XetStore(folder / "xet")
        self.port = 0
        self._running: tuple[uvicorn.Server, threading.Thread] | None = None
        self.reset()

    def reset(self) -> None:
        """Forgets faults, switches and the log, and is up again; repositories stay."""
        self.requests: list[Logged] = []
        # the next longer file body ends there, without a word
        self.cut_after_bytes: int | None = None
        self.ignore_ranges = False  # answers 200 with everything, as some mirrors do
        self.tree_page_size = 1000
        self.lfs_threshold = 10 * 1024 * 1024  # text files from here on are large files too
        self.multipart_bytes: int | None = None  # larger uploads come in parts of this size
        self._failures: list[tuple[int, str]] = []
        if self.port:
            self.up()

    @property
    def url(self) -> str:
        """The endpoint to give to the client."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_url(self) -> str:
        """The same server under the host name large files live on."""
        return f"http://localhost:{self.port}"

    def fail_next(self, status: int, path_substring: str = "", times: int = 1) -> None:
        """The next request whose path contains `path_substring` only gets `status` as its answer."""
        self._failures += [(status, path_substring)] * times

    def bytes_sent(self, path_filter: str = "") -> int:
        """Bytes of bodies sent so far to requests whose path contains `path_filter`."""
        return sum(one.bytes_sent for one in self.requests if path_filter in one.path)

    def up(self) -> None:
        """Listens, on the same port as before if there was one. Returns once connections are accepted."""
        if self._running is not None:
            return
        listener = _listener(self.port)
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app(), log_config=None, lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, name="loopback-hub", daemon=True
        )
        thread.start()
        self._running = server, thread

    def down(self) -> None:
        """Closes the port and every open connection; the next attempt to connect is refused."""
        if self._running is not None:
            server, thread = self._running
            server.should_exit = True
            thread.join()
            self._running = None

    def __enter__(self) -> LoopbackHub:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def take_failure(self, path: str) -> int | None:
        """The status the next request to `path` must fail with, if one was ordered."""
        for number, (status, substring) in enumerate(self._failures):
            if substring in path:
                del self._failures[number]
                return status
        return None

    def _app(self) -> ASGIApp:
        routes = [
            Route(path, self._endpoint(handler), methods=methods.split())
            for methods, path, handler in _ROUTES
        ]
        return _Logging(self, Starlette(routes=routes))

    def _endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                return await handler(self, request)
            except HubError as error:
                headers = error.headers | {"X-Error-Message": error.message}
                return JSONResponse({"error": error.message}, error.status, headers)

        return endpoint


def _listener(port: int) -> socket.socket:
    """A listening socket that names TCP: asyncio sends at once only on such, else each answer waits 40 ms."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


class _Logging:
    """Logs a request when it comes and a chunk before it goes: what a client has seen is in the log."""

    def __init__(self, hub: LoopbackHub, app: ASGIApp) -> None:
        self.hub, self.app = hub, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        path = scope["raw_path"].decode()
        host, authorized = headers["host"].split(":")[0], "authorization" in headers
        entry = Logged(scope["method"], path, host, headers.get("range"), authorized)
        self.hub.requests.append(entry)

        async def logged_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
            entry.bytes_sent += 0 if entry.method == "HEAD" else len(message.get("body", b""))
            await send(message)

        status = self.hub.take_failure(path)
        app = self.app if status is None else JSONResponse({"error": "failed, as set"}, status)
        with contextlib.suppress(downloads.ConnectionCut):
            await app({**scope, "path": path}, receive, logged_send)
