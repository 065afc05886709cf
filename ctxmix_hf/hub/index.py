"""The index of a store: where each example's bytes lie. One line per added batch, so a batch is
there whole or not at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctxmix_hf.errors import CtxmixError, StoreError
from ctxmix_hf.hub.folders import INDEX, canonical, check_id, check_split, file_digest
from ctxmix_hf.hub.manifest import Manifest, whole

MAX_TOKENS = 1 << 20


@dataclass(frozen=True)
class Place:
    """Bytes `[begin, end)` of a shard's data, and their crc32."""

    shard: int
    begin: int
    end: int
    crc: int


@dataclass(frozen=True)
class IndexRow:
    """One example: its length T, the hash of its tokens, its line in the examples file, and a place
    per series of shards.
    """

    id: str
    split: str
    size: int
    key: str | None
    line: tuple[int, int]
    causal: bool
    places: tuple[Place, ...]
    crc: int | None = None  # of the line; stores written before it was kept have none

    def to_json(self) -> dict[str, Any]:
        at = [[p.shard, p.begin, p.end, p.crc] for p in self.places]
        about = {
            "id": self.id,
            "split": self.split,
            "n": self.size,
            "key": self.key,
            "line": list(self.line),
        }
        return {
            **about,
            **({} if self.crc is None else {"crc": self.crc}),
            "causal": self.causal,
            "at": at,
        }


@dataclass
class Index:
    """All rows in the order they were added; `size` bytes of the file are whole lines."""

    rows: dict[str, IndexRow] = field(default_factory=dict)
    size: int = 0
    by_key: dict[str, str] = field(default_factory=dict)
    depths: list[int] = field(default_factory=list)  # layers per series of shards
    batches: list[tuple[int, list[str]]] = field(default_factory=list)  # (offset of its line, ids)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[IndexRow]:
        return iter(self.rows.values())

    def extend(self, rows: list[IndexRow], length: int) -> None:
        """Add a batch whose line has `length` bytes."""
        self.batches.append((self.size, [row.id for row in rows]))
        self.size += length
        for row in rows:
            self.rows[row.id] = row
            if row.key is not None:
                self.by_key.setdefault(row.key, row.id)

    def drop_last(self) -> None:
        """Forget the last batch (its data never reached the disk)."""
        self.size, ids = self.batches.pop()
        for name in ids:
            key = self.rows.pop(name).key
            if key is not None and self.by_key.get(key) == name:
                del self.by_key[key]


def line_of(rows: list[IndexRow]) -> bytes:
    return canonical([row.to_json() for row in rows]).encode() + b"\n"


def load_index(root: Path, manifest: Manifest, recover: bool = False) -> Index:
    """Read and check the index. A torn last line is left out where the store was never closed; else it is damage.

    With `recover` the index ends before the first line that is damaged: a writer goes on from there.
    """
    path, index = root / INDEX, Index(depths=[0] * len(manifest.parts))
    if not path.exists():
        if manifest.complete:
            raise StoreError(f"{INDEX} is missing.")
        return index
    if manifest.complete and path.stat().st_size != manifest.files.get(INDEX, {}).get("size"):
        raise StoreError(
            f"{INDEX} is damaged: it has {path.stat().st_size} bytes, not what the manifest says."
        )
    if manifest.complete and file_digest(path) != manifest.files[INDEX]["sha256"]:
        raise StoreError(f"{INDEX} is damaged: its checksum does not fit the manifest.")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("torn")
                rows = [_row(body, manifest, index) for body in json.loads(line)]
                if len({row.id for row in rows}) < len(rows):
                    raise ValueError("an id occurs twice")
            except (ValueError, KeyError, TypeError, RecursionError, CtxmixError) as error:
                if recover or (not manifest.complete and not file.read(1)):
                    return index
                raise StoreError(f"{INDEX} is damaged in line {number}: {error!s:.120}") from error
            index.extend(rows, len(line))
    return index


def _row(body: dict[str, Any], manifest: Manifest, index: Index) -> IndexRow:
    name, size = check_id(body["id"]), whole(body["n"], MAX_TOKENS)
    if name in index.rows:
        raise ValueError(f"the id {name!r} occurs twice")
    begin, end = (whole(value) for value in body["line"])
    key = body["key"]
    if size < 1 or begin >= end or not (key is None or (isinstance(key, str) and len(key) == 32)):
        raise ValueError(f"the row of {name!r} makes no sense")
    crc = body.get("crc")
    places = tuple(Place(*(whole(value) for value in place)) for place in body["at"])
    if len(places) != len(index.depths):
        raise ValueError(
            f"{name!r} has {len(places)} places for {len(index.depths)} series of shards"
        )
    for i, place in enumerate(places):
        each = math.prod(manifest.slice_shape(size)) * manifest.itemsize
        _check_place(name, place, each, i, index)
        _check_end(name, place, manifest, i)
    line_crc = None if crc is None else whole(crc, 0xFFFFFFFF)
    return IndexRow(
        name,
        check_split(body["split"]),
        size,
        key,
        (begin, end),
        body["causal"] is True,
        places,
        line_crc,
    )


def _check_place(name: str, place: Place, bytes_per_layer: int, i: int, index: Index) -> None:
    depth, rest = divmod(place.end - place.begin, bytes_per_layer)
    if rest or depth < 1 or index.depths[i] not in (0, depth):
        raise ValueError(f"the bytes of {name!r} do not fit its shape and dtype")
    index.depths[i] = depth


def _check_end(name: str, place: Place, manifest: Manifest, i: int) -> None:
    shards = manifest.parts[i].shards
    if place.shard < len(shards):
        if place.end > shards[place.shard].size - shards[place.shard].data:
            raise ValueError(f"{name!r} points past the end of shard {place.shard}")
    elif manifest.complete:
        raise ValueError(f"{name!r} points to shard {place.shard}, which does not exist")
