"""Shards as safetensors files. A growing shard leaves room for its header, so that finishing it moves no data.

Bytes depend on nothing but the entries: one metadata key, entries in the order they were added. An
entry's checksum is taken before it is written and compared before its shard gets a checksum of its
own, so damage in between is found, not sealed in.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.errors import StoreError
from ctxmix_hf.hub.folders import canonical, file_digest, make_folder, sync_folder
from ctxmix_hf.hub.manifest import DTYPES, Manifest, Shard


class Entry(NamedTuple):
    """An example's bytes in a shard: id, T, begin, end, crc32."""

    id: str
    size: int
    begin: int
    end: int
    crc: int = 0


# a last shard with less data than this many rooms is written again without the empty room
SMALL = 32


def room_of(shard_size: int) -> int:
    """Bytes kept free for the header of a growing shard: 1 MiB of the usual 256."""
    return min(1 << 20, max(1 << 13, shard_size // 256)) // 8 * 8


def entry_json(entry: Entry, manifest: Manifest) -> str:
    """An entry's line in the safetensors header."""
    name, size, begin, end, _ = entry
    code, itemsize = DTYPES[manifest.dtype]
    each = manifest.slice_shape(size)
    shape = ",".join(map(str, ((end - begin) // (math.prod(each) * itemsize), *each)))
    about = f'{{"data_offsets":[{begin},{end}],"dtype":"{code}","shape":[{shape}]}}'
    return f"{json.dumps(name, ensure_ascii=False)}:{about}"


def metadata_json(manifest: Manifest, folder: str) -> str:
    """The one metadata key: which store and which series this shard belongs to."""
    mark = canonical({"fingerprint": manifest.fingerprint, "folder": folder, "schema": 1})
    return '"__metadata__":' + canonical({"ctxmix": mark})


def header(
    manifest: Manifest, folder: str, entries: Iterable[Entry], room: int | None = None
) -> bytes:
    """Length and header of a safetensors file, filled with spaces to a multiple of 8 or to `room`."""
    text = (
        "{"
        + ",".join([metadata_json(manifest, folder), *(entry_json(e, manifest) for e in entries)])
        + "}"
    )
    body = text.encode()
    length = -(-len(body) // 8) * 8 if room is None else room - 8
    if len(body) > length:
        raise StoreError("A shard's header does not fit in its room.")
    return length.to_bytes(8, "little") + body.ljust(length)


def finish(
    source: Path, target: Path, manifest: Manifest, folder: str, entries: list[Entry]
) -> Shard:
    """Turn the growing shard `source` into the finished file `target`. Small ones are copied (and
    `source` stays), others moved.
    """
    room = room_of(manifest.shard_size)
    data = entries[-1].end
    lost = damaged_entries(source, room, entries)
    if lost:
        raise StoreError(
            f"{source.name} was damaged after it was written ({lost[0]!r:.80}): run again, which adds it again."
        )
    make_folder(target.parent.parent)
    make_folder(target.parent)
    if data < SMALL * room:
        front = header(manifest, folder, entries)
        _copy(source, target, front, room, data)
    else:
        front = header(manifest, folder, entries, room)
        with source.open("r+b") as file:
            file.write(front)
            file.truncate(room + data)
            file.flush()
            os.fsync(file.fileno())
        source.replace(target)
        sync_folder(source.parent)
        sync_folder(target.parent)
    return Shard(len(front) + data, file_digest(target), len(front))


def reopen(source: Path, target: Path, manifest: Manifest, shard: Shard) -> None:
    """A finished shard as a growing one again, in place of nothing: `source` stays."""
    room = room_of(manifest.shard_size)
    make_folder(target.parent)
    if shard.data != room:
        _copy(source, target, bytes(room), shard.data, shard.size - shard.data)


def _copy(source: Path, target: Path, front: bytes, begin: int, length: int) -> None:
    """`front` and then `length` bytes of `source` from `begin` on; `target` appears whole or not at all."""
    temporary = target.with_name(f".{target.name}.tmp")
    with source.open("rb") as read, temporary.open("wb") as write:
        write.write(front)
        read.seek(begin)
        shutil.copyfileobj(read, write, 1 << 20)
        whole = write.tell() >= len(front) + length
        write.truncate(len(front) + length)
        write.flush()
        os.fsync(write.fileno())
    if not whole:
        temporary.unlink()
        raise StoreError(f"{source.name} is shorter than the index says.")
    temporary.replace(target)
    sync_folder(target.parent)


def damaged_entries(path: Path, start: int, entries: Iterable[Entry]) -> list[str]:
    """Ids of the entries whose bytes, from `start` on, are not there or not those that were written."""
    try:
        with path.open("rb", buffering=0) as file:
            size = path.stat().st_size
            return [
                e.id
                for e in entries
                if start + e.end > size or _crc(file, start + e.begin, e.end - e.begin) != e.crc
            ]
    except FileNotFoundError:
        return [entry.id for entry in entries]


def _crc(file: IO[bytes], begin: int, length: int) -> int:
    file.seek(begin)
    made = 0
    while length > 0 and (data := file.read(min(length, 1 << 20))):
        made, length = zlib.crc32(data, made), length - len(data)
    return made


def check_header(
    path: Path, manifest: Manifest, folder: str, shard: Shard, entries: list[Entry]
) -> None:
    """Raise unless the file's own header names exactly the entries of the index, with their dtype and shape."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length + 8 != shard.data:
            raise StoreError(
                f"{path.name} of {folder!r} is damaged: its header has another length than the manifest says."
            )
        try:
            found: dict[str, Any] = json.loads(file.read(length))
            found.pop("__metadata__", None)
        except (ValueError, AttributeError, RecursionError) as error:
            raise StoreError(
                f"{path.name} of {folder!r} is damaged: its header is not JSON."
            ) from error
    wanted = json.loads("{" + ",".join(entry_json(entry, manifest) for entry in entries) + "}")
    if found != wanted:
        name = next((n for n in {**wanted, **found} if found.get(n) != wanted.get(n)), "")
        raise StoreError(
            f"{path.name} of {folder!r} is damaged: its header and the index disagree about {name!r:.80}."
        )


def to_array(values: Any, dtype: str, name: str) -> Any:
    """`[L, T, T]` as the contiguous array that is stored."""
    if dtype == "float32":
        return np.ascontiguousarray(values, dtype="<f4")
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(values, dtype="<f2")
    if not np.isfinite(array).all():
        raise StoreError(
            f"The map of {name!r} does not fit in float16: store it with dtype='float32'."
        )
    return array


def to_tensor(data: bytes, each: tuple[int, ...], dtype: str) -> Tensor:
    """`[L, T, T]` (or as many slices of another shape) float32 from stored bytes."""
    array = np.frombuffer(data, dtype=np.dtype(dtype).newbyteorder("<")).reshape(-1, *each)
    return torch.from_numpy(array.astype(np.float32))
