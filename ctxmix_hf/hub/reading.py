"""Bytes of a store, from a folder: checked for their length, their crc and, on request, their shard's sha256."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from ctxmix_hf.errors import StoreError
from ctxmix_hf.hub.index import Index, Place, Row
from ctxmix_hf.hub.layout import INDEX, examples_file, file_digest, pending_file, shard_file
from ctxmix_hf.hub.manifest import Manifest, Part, Shard
from ctxmix_hf.hub.recovery import entries_by_shard
from ctxmix_hf.hub.shards import check_header, room_of
from ctxmix_hf.tokens import Tokens


class Source(Protocol):
    """Where a store's bytes are."""

    def read(self, part: Part, place: Place) -> bytes:
        """The bytes of one entry, as long as its place says."""
        ...

    def line(self, row: Row) -> bytes:
        """An example's line."""
        ...


class FolderSource:
    """A folder on this machine, closed or still being written."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self.root, self.manifest = root, manifest

    def read(self, part: Part, place: Place) -> bytes:
        path, start = self._find(part, place.shard)
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(start + place.begin)
                data = file.read(place.end - place.begin)
        except FileNotFoundError:
            raise StoreError(f"Shard {place.shard} of {part.folder!r} is missing.") from None
        return checked(data, part, place)

    def _find(self, part: Part, number: int) -> tuple[Path, int]:
        """File and where its data begins. The manifest may be newer than ours: a writer is at work."""
        part = next((p for p in self.manifest.parts if p.folder == part.folder), part)
        finished = self.root / shard_file(part.folder, number)
        if number < len(part.shards):
            return finished, part.shards[number].data
        growing = self.root / pending_file(part.folder, number)
        if growing.exists() or not finished.exists():
            return growing, room_of(self.manifest.shard_size)
        with finished.open("rb") as file:
            return finished, 8 + int.from_bytes(file.read(8), "little")

    def line(self, row: Row) -> bytes:
        path = self.root / examples_file(row.split)
        if not path.exists():
            raise StoreError(f"{examples_file(row.split)} is missing.")
        with path.open("rb") as file:
            file.seek(row.line[0])
            return file.read(row.line[1] - row.line[0])


def checked(data: bytes, part: Part, place: Place) -> bytes:
    """The same bytes, or a StoreError if they are too few or not those that were written."""
    if len(data) != place.end - place.begin:
        raise StoreError(f"Shard {place.shard} of {part.folder!r} is truncated: an example's bytes lie past its end.")
    if zlib.crc32(data) != place.crc:
        raise StoreError(f"Shard {place.shard} of {part.folder!r} is damaged: an example's checksum does not fit.")
    return data


def read_example(source: Source, row: Row) -> dict[str, Any]:
    """An example's line as a dictionary; it must be about this example and name as many tokens as its maps have."""
    try:
        body = json.loads(source.line(row))
        if body["id"] != row.id or len(body["tokens"]) != row.size:
            raise ValueError("another example")
        return dict(body)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{examples_file(row.split)} is damaged: no line for {row.id!r} where the index says.") from error


def tokens_of(body: dict[str, Any]) -> Tokens:
    """The tokens an example's line describes."""

    def pick(name: str, make: Callable[[Any], Any]) -> Any:
        return None if body.get(name) is None else tuple(make(value) for value in body[name])

    try:
        made = Tokens(
            tuple(str(piece) for piece in body["tokens"]),
            pick("words", lambda w: None if w is None else int(w)),
            pick("special", bool),
            body.get("text") if isinstance(body.get("text"), str) and body.get("spans") is not None else None,
            pick("spans", lambda s: None if s is None else (int(s[0]), int(s[1]))),
            pick("input_ids", int),
        )
        if any(field is not None and len(field) != len(made) for field in (made.words, made.special, made.spans, made.ids)):
            raise ValueError("lengths")
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise StoreError(f"The tokens of {body.get('id')!r:.80} do not fit together.") from error
    return made


def check_sizes(root: Path, manifest: Manifest) -> None:
    """Raise if a listed file is missing or has another size: one look per file."""
    listed = [(shard_file(p.folder, n), shard.size) for p in manifest.parts for n, shard in enumerate(p.shards)]
    for name, size in [*listed, *((name, about["size"]) for name, about in manifest.files.items())]:
        path = root / name
        if not path.exists():
            raise StoreError(f"{name} is missing.")
        if path.stat().st_size != size:
            problem = "truncated" if path.stat().st_size < size else "longer than it was"
            raise StoreError(f"{name} is {problem}: {path.stat().st_size} bytes, the manifest says {size}.")


def verify(root: Path, manifest: Manifest, index: Index, folders: set[str] | None = None) -> None:
    """Raise unless every listed file has its checksum and every shard's header says what the index says."""
    wanted = [i for i, part in enumerate(manifest.parts) if folders is None or part.folder in folders]
    which = [(i, n) for i in wanted for n in range(len(manifest.parts[i].shards))]
    entries = entries_by_shard(index, which)
    for name, about in manifest.files.items():
        _check_file(root / name, name, about["sha256"])

    def check(item: tuple[int, int]) -> None:
        part: Part = manifest.parts[item[0]]
        shard: Shard = part.shards[item[1]]
        name = shard_file(part.folder, item[1])
        _check_file(root / name, name, shard.sha256)
        check_header(root / name, manifest, part.folder, shard, entries[item])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, which))


def _check_file(path: Path, name: str, sha256: str) -> None:
    if not path.exists():
        raise StoreError(f"{name} is missing.")
    if file_digest(path) != sha256:
        raise StoreError(f"{name} is damaged: its checksum does not fit the manifest.")


def count_rows(manifest: Manifest) -> int:
    return int(manifest.files.get(INDEX, {}).get("rows", 0))
