"""What a kill, a power cut or a bad disk leaves behind, and how a writer makes it whole again.

Every step can itself be killed and repeated. Examples whose bytes are gone or changed are forgotten
together with everything added after them, so that adding them again gives the bytes of a run that
was never disturbed.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ctxmix_hf.hub.folders import (
    INDEX,
    PENDING,
    cut,
    examples_file,
    file_digest,
    make_folder,
    pending_file,
    shard_file,
    sync_folder,
)
from ctxmix_hf.hub.index import Index, IndexRow, load_index
from ctxmix_hf.hub.manifest import Manifest
from ctxmix_hf.hub.shards import Entry, damaged_entries, reopen, room_of
from ctxmix_hf.hub.threads import side_by_side


def example_sizes(index: Index) -> dict[str, int]:
    """Bytes of each split's examples file that are whole lines of added examples."""
    sizes: dict[str, int] = defaultdict(int)
    for row in index:
        sizes[row.split] = max(sizes[row.split], row.line[1])
    return sizes


def entries_of(index: Index, i: int, number: int) -> list[Entry]:
    """The entries of one shard, in order."""
    return entries_by_shard(index, [(i, number)])[i, number]


def entries_by_shard(
    index: Index, which: list[tuple[int, int]]
) -> dict[tuple[int, int], list[Entry]]:
    """The entries of several shards `(series, number)` in one pass over the index."""
    found: dict[tuple[int, int], list[Entry]] = {item: [] for item in which}
    series = sorted({i for i, _ in which})
    for row in index:
        for i in series:
            place = row.places[i]
            if (i, place.shard) in found:
                found[i, place.shard].append(
                    Entry(row.id, row.size, place.begin, place.end, place.crc)
                )
    return found


def pending_sizes(manifest: Manifest, index: Index) -> dict[tuple[int, int], int]:
    """Bytes of data of every shard that is not finished."""
    listed = [len(part.shards) for part in manifest.parts]
    sizes: dict[tuple[int, int], int] = defaultdict(int)
    for row in index:
        for i, place in enumerate(row.places):
            if place.shard >= listed[i]:
                sizes[i, place.shard] = max(sizes[i, place.shard], place.end)
    return sizes


# ---- what is damaged
# --------------------------------------------------------------------------------------------------
def data_at(root: Path, manifest: Manifest, i: int, number: int) -> tuple[Path, int]:
    """The file of a shard and where its data begins; an unfinished one may lie in either folder."""
    part = manifest.parts[i]
    finished, growing = (
        root / shard_file(part.folder, number),
        root / pending_file(part.folder, number),
    )
    if number < len(part.shards):
        return finished, part.shards[number].data
    if growing.exists() or not finished.exists():
        return growing, room_of(manifest.shard_size)
    with finished.open("rb") as file:
        return finished, 8 + int.from_bytes(file.read(8), "little")


def damaged_in_shards(
    root: Path, manifest: Manifest, index: Index, which: list[tuple[int, int]]
) -> set[str]:
    """Ids whose bytes in these shards `(series, number)` are not those that were written."""
    entries = entries_by_shard(index, which)
    found = side_by_side(
        lambda item: damaged_entries(*data_at(root, manifest, *item), entries[item]), which
    )
    return {name for names in found for name in names}


def damaged_lines(root: Path, rows: Iterable[IndexRow]) -> set[str]:
    """Ids whose line in the examples is not the one that was written; without a checksum, not one of theirs."""
    found: set[str] = set()
    by_split: dict[str, list[IndexRow]] = defaultdict(list)
    for row in rows:
        by_split[row.split].append(row)
    for split, those in by_split.items():
        path = root / examples_file(split)
        if not path.is_file():
            found |= {row.id for row in those}
            continue
        size = path.stat().st_size
        with path.open("rb") as file:
            for row in those:
                file.seek(row.line[0])
                if row.line[1] > size or not line_fits(file.read(row.line[1] - row.line[0]), row):
                    found.add(row.id)
    return found


def line_fits(line: bytes, row: IndexRow) -> bool:
    if row.crc is not None:
        return zlib.crc32(line) == row.crc
    try:
        body = json.loads(line)
        return bool(body["id"] == row.id and len(body["tokens"]) == row.size)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def to_be_sealed(manifest: Manifest, index: Index) -> list[tuple[int, int]]:
    """Shards a writer will give a checksum: those that still grow, and the last one of each series,
    which grows again.
    """
    last = {
        (i, max((row.places[i].shard for row in index), default=-1))
        for i in range(len(manifest.parts))
    }
    return sorted({*pending_sizes(manifest, index), *(item for item in last if item[1] >= 0)})


def usable(root: Path, manifest: Manifest, everything: bool) -> tuple[Manifest, Index, int]:
    """(manifest, index, forgotten examples) as far as a writer can trust them.

    `everything` looks at finished shards too, and turns a damaged closed store into an open one.
    """
    given = manifest
    manifest = replace(manifest, complete=False, files={})
    index = load_index(root, manifest, recover=True)
    listed = [(i, n) for i, part in enumerate(manifest.parts) for n in range(len(part.shards))]
    which = {*to_be_sealed(manifest, index), *(listed if everything else ())}
    damaged = damaged_in_shards(root, manifest, index, sorted(which)) | damaged_lines(root, index)
    if everything:
        sound = side_by_side(lambda item: _is_whole(root, manifest, *item), listed)
        broken = entries_by_shard(
            index, [item for item, fine in zip(listed, sound, strict=True) if not fine]
        )
        damaged |= {entry.id for entries in broken.values() for entry in entries}
    count, path = len(index), root / INDEX
    first = next(
        (k for k, (_, names) in enumerate(index.batches) if damaged.intersection(names)), None
    )
    while first is not None and len(index.batches) > first:
        index.drop_last()
    cut_off = path.exists() and path.stat().st_size > index.size
    files_fit = all(
        _has(root / name, about["size"], about["sha256"]) for name, about in given.files.items()
    )
    if given.complete and not cut_off and files_fit:
        return given, index, 0
    return manifest, index, count - len(index)


def _is_whole(root: Path, manifest: Manifest, i: int, number: int) -> bool:
    shard = manifest.parts[i].shards[number]
    return _has(root / shard_file(manifest.parts[i].folder, number), shard.size, shard.sha256)


def _has(path: Path, size: int, sha256: str) -> bool:
    return path.is_file() and path.stat().st_size == size and file_digest(path) == sha256


# ---- making it whole
# --------------------------------------------------------------------------------------------------
def reopen_last(root: Path, manifest: Manifest, index: Index) -> Manifest:
    """The manifest without the last shard of each series: it grows again, so one long run and two
    short ones write the same.
    """
    for i, part in enumerate(manifest.parts):
        number = max((row.places[i].shard for row in index), default=-1)
        if number >= 0 and len(part.shards) > number:
            reopen(
                root / shard_file(part.folder, number),
                root / pending_file(part.folder, number),
                manifest,
                part.shards[number],
            )
        manifest = manifest.with_shards(part.folder, part.shards[: max(number, 0)])
    return replace(manifest, complete=False, files={})


def repair(root: Path, manifest: Manifest, index: Index) -> None:
    """Put unlisted shards back among the growing ones and cut what was never finished."""
    make_folder(root / PENDING)
    for path in [*root.glob(".*.tmp"), *(root / PENDING).glob(".*.tmp")]:
        path.unlink()
    take_back(root, manifest)
    cut_tails(root, manifest, index)


def take_back(root: Path, manifest: Manifest) -> None:
    """Shards the manifest does not list are not finished, whatever their name says."""
    for part in manifest.parts:
        folder = root / "matrices" / part.folder
        listed = {root / shard_file(part.folder, number) for number in range(len(part.shards))}
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path not in listed:
                _to_pending(
                    path,
                    root
                    / PENDING
                    / f"{part.folder}-{path.stem.removeprefix('shard-')}.safetensors",
                )


def _to_pending(path: Path, pending: Path) -> None:
    if pending.exists() or path.suffix == ".tmp":
        path.unlink()
    else:
        path.replace(pending)
        sync_folder(path.parent)
        sync_folder(pending.parent)


def cut_tails(root: Path, manifest: Manifest, index: Index) -> None:
    """Cut everything behind the last added batch."""
    room, sizes = room_of(manifest.shard_size), pending_sizes(manifest, index)
    cut(root / INDEX, index.size)
    lengths = example_sizes(index)
    for path in (root / "examples").glob("*.jsonl"):
        _cut_or_remove(path, lengths.get(path.stem, 0))
    for i, part in enumerate(manifest.parts):
        for path in (root / PENDING).glob(f"{part.folder}-*.safetensors"):
            number = path.stem.removeprefix(f"{part.folder}-")
            if number.isdigit():
                size = sizes.get((i, int(number)), 0)
                _cut_or_remove(path, room + size if size else 0)


def _cut_or_remove(path: Path, size: int) -> None:
    cut(path, size) if size else path.unlink()
