"""Where things lie in a store's folder, which names are allowed there, and how its files are written.

    ctxmix.json                                    manifest: identity, origin, shards with checksums
    index.jsonl                                    one line per batch: id -> shard, begin, end, checksum
    examples/<split>.jsonl                         id, text, tokens, ...: what `load_dataset` reads
    matrices/<folder>/shard-00000.safetensors      key = id, [L, T, T]
    pending/                                       shards that still grow; gone after close()

No name in a file is ever used as a path: shard names are made from numbers, folders and splits match a pattern.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import InputError, StoreError

MANIFEST, INDEX, CARD, LOCK = "ctxmix.json", "index.jsonl", "README.md", ".ctxmix.lock"
PENDING = "pending"
MAX_ID = 256
MAX_MANIFEST_BYTES = 64 << 20

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,119}")
_SPLIT = re.compile(r"[A-Za-z0-9_]{1,64}")


def check_id(name: Any) -> str:
    """An example's id as text: printable, not too long, not the word safetensors keeps for itself."""
    name = str(name) if isinstance(name, int) and not isinstance(name, bool) else name
    if (
        not isinstance(name, str)
        or not name
        or len(name) > MAX_ID
        or not name.isprintable()
        or name == "__metadata__"
    ):
        raise InputError(
            f"Not usable as an id: {name!r:.80}. An id is 1 to {MAX_ID} printable characters, not '__metadata__'."
        )
    return name


def check_split(name: Any) -> str:
    """A split is a file name, so only letters, digits and underscores."""
    if not isinstance(name, str) or not _SPLIT.fullmatch(name):
        raise InputError(
            f"Not usable as a split: {name!r:.80}. Use letters, digits and underscores, e.g. 'validation'."
        )
    return name


def is_folder(name: Any) -> bool:
    return isinstance(name, str) and _FOLDER.fullmatch(name) is not None


def folder_name(key: str) -> str:
    """A folder for a method's key: the key itself where it is a plain name, else made plain and
    told apart by a hash.
    """
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", key).strip("-_")[:80] or "method"
    return plain if plain == key else f"{plain}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def shard_file(folder: str, number: int) -> str:
    return f"matrices/{folder}/shard-{number:05d}.safetensors"


def pending_file(folder: str, number: int) -> str:
    return f"{PENDING}/{folder}-{number:05d}.safetensors"


def examples_file(split: str) -> str:
    return f"examples/{split}.jsonl"


def canonical(data: Any) -> str:
    """The one way this data is written: sorted keys, no spaces, so equal data has equal bytes."""
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest(data: Any) -> str:
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file, the same the Hub computes for large files."""
    made = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(1 << 18))  # stays in the processor's cache
        while count := file.readinto(buffer):
            made.update(buffer[:count])
    return made.hexdigest()


def is_cached(root: Path) -> bool:
    """Whether a folder is a snapshot in the Hub's cache: its files belong to the cache, named by their hash."""
    snapshots = root.resolve().parent
    return snapshots.name == "snapshots" and any(
        (snapshots.parent / name).is_dir() for name in ("blobs", "refs")
    )


def require_own_files(root: Path) -> None:
    """Raise where writing would change files that lie elsewhere: in a download cache, or behind links."""
    link = next((path for path in root.rglob("*") if path.is_symlink() and not path.is_dir()), None)
    if link is not None or is_cached(root):
        where = (
            "lies in a download cache"
            if is_cached(root)
            else f"holds links to files elsewhere ({link and link.name!r})"
        )
        raise StoreError(
            f"The store {root.name!r} {where}, which appending would change. Append to a copy of it: "
            "MapStore.from_hub(...).download(folder), or shutil.copytree(path, folder)."
        )


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk: a new or renamed file is there after a power cut
    (where the system can do that).
    """
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """The folder, on the disk."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)


def write_atomic(path: Path, text: str) -> None:
    """All of it or nothing, also when the machine stops in between."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def put(path: Path, offset: int, chunks: list[Any]) -> int:
    """Write chunks one after another from `offset` on, to the disk; the offset behind them. What
    was there is overwritten.
    """
    new = not path.exists()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    try:
        os.lseek(fd, offset, os.SEEK_SET)
        for chunk in chunks:
            view = memoryview(chunk).cast("B")
            offset += len(view)
            while view:
                view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    if new:
        sync_folder(path.parent)
    return offset


def cut(path: Path, size: int) -> None:
    """Shorten a file that is longer than `size`."""
    if path.exists() and path.stat().st_size > size:
        os.truncate(path, size)


@contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """A full or read-only disk as one clear line."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what = "the disk is full" if full else error.strerror or type(error).__name__
        raise StoreError(
            f"Could not write to the store {root.name!r}: {what}. Everything added before is kept."
        ) from error
