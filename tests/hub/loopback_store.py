"""What a loopback Hub remembers: repositories, their immutable commits, and the bytes on disk.

Bytes are kept once per content under their sha256, so a commit is only a table from path to `File` and an
older commit keeps answering after `main` has moved on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

LFS_SUFFIXES = frozenset(
    (
        ".safetensors",
        ".bin",
        ".pt",
        ".ckpt",
        ".npy",
        ".npz",
        ".parquet",
        ".arrow",
        ".zip",
        ".gz",
        ".tar",
        ".pkl",
    )
)
GIT_ATTRIBUTES = "".join(
    f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in sorted(LFS_SUFFIXES)
)


class HubError(Exception):
    """An answer that is not a success; `code` is what the client turns into an exception type."""

    def __init__(self, status: int, message: str, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if code is not None:
            self.headers["X-Error-Code"] = code


@dataclass(frozen=True)
class File:
    """One file of a commit: `git_oid` names it in listings, `sha256` finds its bytes."""

    size: int
    git_oid: str
    sha256: str
    lfs: bool
    xet_hash: str | None = None

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.git_oid


@dataclass(frozen=True)
class Commit:
    """A snapshot that never changes, addressed by its 40 hex digits."""

    sha: str
    parent: Commit | None
    title: str
    message: str
    date: str
    files: Mapping[str, File]

    def history(self) -> Iterator[Commit]:
        """This commit and its ancestors, newest first."""
        commit: Commit | None = self
        while commit is not None:
            yield commit
            commit = commit.parent

    def last_change(self, path: str) -> Commit:
        """The commit that gave `path` (a file or a folder) the content it has here."""
        changed = self
        for older in self.history():
            if _below(older.files, path) != _below(self.files, path):
                break
            changed = older
        return changed


def _below(files: Mapping[str, File], path: str) -> dict[str, File]:
    return {
        name: file for name, file in files.items() if name == path or name.startswith(path + "/")
    }


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


@dataclass
class Repo:
    """Branches move, tags and commits do not; `objects` are its large files: sha256 to Xet hash, if any."""

    kind: str
    id: str
    private: bool
    sdk: str | None = None
    gated: bool = False  # its files are for those who asked and were granted
    granted: bool = False  # whether the user of the token was
    created: str = field(default_factory=_now)
    branches: dict[str, Commit] = field(default_factory=dict)
    tags: dict[str, Commit] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    objects: dict[str, str | None] = field(default_factory=dict)

    @property
    def url_path(self) -> str:
        """Where people find it: only models go without a prefix."""
        return self.id if self.kind == "model" else f"{self.kind}s/{self.id}"

    def at(self, revision: str) -> Commit:
        """The commit a branch, tag, full ref name or sha stands for."""
        name = revision.removeprefix("refs/heads/").removeprefix("refs/tags/")
        found = self.branches.get(name) or self.tags.get(name) or self.commits.get(revision)
        if found is None:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return found

    def file_at(self, revision: str, path: str) -> tuple[Commit, File]:
        """The file and its commit; a miss still names the commit, as the client caches misses."""
        commit = self.at(revision)
        if path not in commit.files:
            raise HubError(
                404, f"Entry not found: {path}", "EntryNotFound", X_Repo_Commit=commit.sha
            )
        return commit, commit.files[path]

    def commit(
        self, branch: str, files: Mapping[str, File], title: str, message: str = ""
    ) -> Commit:
        """Adds a snapshot on top of `branch` and moves the branch to it."""
        parent = self.branches.get(branch)
        table = {path: files[path].sha256 for path in sorted(files)}
        seed = json.dumps(
            [self.kind, self.id, len(self.commits), parent and parent.sha, title, table]
        )
        sha = hashlib.sha1(seed.encode()).hexdigest()
        made = Commit(sha, parent, title, message, _now(), MappingProxyType(dict(files)))
        self.commits[sha] = self.branches[branch] = made
        return made


class Blobs:
    """Bytes on disk by sha256."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, sha256: str) -> Path:
        return self.folder / sha256

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def add(self, content: bytes, *, lfs: bool) -> File:
        """Stores bytes that came inside a commit."""
        sha256 = hashlib.sha256(content).hexdigest()
        self.path(sha256).write_bytes(content)
        git_oid = _git_oid(_pointer(sha256, len(content)) if lfs else content)
        return File(len(content), git_oid, sha256, lfs)

    async def receive(self, sha256: str, chunks: AsyncIterator[bytes]) -> None:
        """Stores an upload as it arrives, and refuses it if it is not what its name promises."""
        digest, partial = hashlib.sha256(), self.folder / f"{sha256}.partial"
        with partial.open("wb") as out:
            async for chunk in chunks:
                digest.update(chunk)
                out.write(chunk)
        if digest.hexdigest() != sha256:
            partial.unlink()
            raise HubError(400, f"Content does not hash to {sha256}")
        partial.rename(self.path(sha256))

    def lfs_file(self, sha256: str, xet_hash: str | None) -> File:
        """The table entry for an object uploaded before the commit that names it."""
        size = self.path(sha256).stat().st_size
        return File(size, _git_oid(_pointer(sha256, size)), sha256, lfs=True, xet_hash=xet_hash)


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _pointer(sha256: str, size: int) -> bytes:
    return (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
    )


def card_metadata(text: str) -> dict[str, Any]:
    """The YAML between the `---` lines of a README; raises `ValueError` with the reason if it is unusable."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "---":
        return {}
    try:
        end = next(number for number, line in enumerate(lines[1:], 1) if line.strip() == "---")
        data = yaml.safe_load("\n".join(lines[1:end]))
    except StopIteration:
        raise ValueError("metadata block is not closed") from None
    except yaml.YAMLError as error:
        raise ValueError(f"bad YAML: {error}") from error
    if not isinstance(data, dict | None):
        raise ValueError("metadata must be a mapping")
    return data or {}
