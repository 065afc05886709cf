"""Large files by Xet, the way the client goes unless told otherwise, without a Xet server.

hf_xet itself opens a store at `local:///folder`. That is undocumented and locked against a second process at
the same moment, so it is for serial tests only. What the Hub must add is the link between the sha256 that a
commit names and the Xet hash that a download needs; it stands in the shard files, rows of 48-byte records.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .loopback_access import find_repo, param
from .loopback_store import Blobs, HubError

if TYPE_CHECKING:
    from .loopback import LoopbackHub

_RECORD = 48
_HAS_VERIFICATION, _HAS_SHA256 = 1 << 31, 1 << 30


class XetStore:
    """The folder hf_xet writes to, and what is known about its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def url(self) -> str:
        """The address that makes hf_xet use the folder instead of a server."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return f"local://{self.folder}"

    def fetch(self, sha256: str, blobs: Blobs) -> str:
        """The Xet hash of a file that came by Xet; rebuilds it, so that plain and ranged GETs find it too."""
        for shard in self.folder.rglob("shards/*.mdb"):
            for known, (xet_hash, size) in _files_in(shard.read_bytes()):
                if known == sha256:
                    self._rebuild(xet_hash, size, blobs.path(sha256))
                    return xet_hash
        raise HubError(400, f"LFS pointer pointed to a file that does not exist: {sha256}")

    def _rebuild(self, xet_hash: str, size: int, target: Path) -> None:
        """Reads from a copy, as the client has the store open, and so locked, while it commits."""
        import hf_xet  # only here: without Xet uploads the package is not needed

        with tempfile.TemporaryDirectory(dir=self.folder.parent) as copy:
            shutil.copytree(self.folder, copy, dirs_exist_ok=True)
            with hf_xet.XetSession().new_file_download_group(endpoint=f"local://{copy}") as group:
                group.start_download_file(hf_xet.XetFileInfo(xet_hash, size), str(target))


def _files_in(shard: bytes) -> Iterator[tuple[str, tuple[str, int]]]:
    """sha256, Xet hash and size of each file of a shard."""
    records = iter(shard[start : start + _RECORD] for start in range(_RECORD, len(shard), _RECORD))
    for record in records:
        if record[:32] == b"\xff" * 32:
            return
        flags, segments = struct.unpack_from("<II", record, 32)
        size = sum(struct.unpack_from("<I", next(records), 36)[0] for _ in range(segments))
        for _ in range(segments if flags & _HAS_VERIFICATION else 0):
            next(records)
        if flags & _HAS_SHA256:
            yield _hex(next(records)), (_hex(record), size)


def _hex(record: bytes) -> str:
    """A hash as the client writes it: four little-endian words."""
    return "".join(f"{word:016x}" for word in struct.unpack_from("<4Q", record))


async def xet_token(hub: LoopbackHub, request: Request) -> Response:
    """Where the Xet store is, said twice because uploads read the body and downloads the headers."""
    find_repo(hub, request, write=param(request, "access") == "write")
    until = int(time.time()) + 3600
    body = {"casUrl": hub.xet.url, "accessToken": "xet", "exp": until}
    headers = {
        "X-Xet-Cas-Url": hub.xet.url,
        "X-Xet-Access-Token": "xet",
        "X-Xet-Token-Expiration": str(until),
    }
    return JSONResponse(body, headers=headers)
