"""What a kill leaves behind, and how a writer makes it whole again. Every step can itself be killed and repeated."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from ctxmix_hf.hub.index import Index
from ctxmix_hf.hub.layout import INDEX, PENDING, cut, examples_file, pending_file, shard_file
from ctxmix_hf.hub.manifest import Manifest
from ctxmix_hf.hub.shards import Entry, reopen, room_of


def example_sizes(index: Index) -> dict[str, int]:
    """Bytes of each split's examples file that are whole lines of added examples."""
    sizes: dict[str, int] = defaultdict(int)
    for row in index:
        sizes[row.split] = max(sizes[row.split], row.line[1])
    return sizes


def entries_of(index: Index, i: int, number: int) -> list[Entry]:
    """The entries of one shard, in order."""
    return entries_by_shard(index, [(i, number)])[i, number]


def entries_by_shard(index: Index, which: list[tuple[int, int]]) -> dict[tuple[int, int], list[Entry]]:
    """The entries of several shards `(series, number)` in one pass over the index."""
    found: dict[tuple[int, int], list[Entry]] = {item: [] for item in which}
    series = sorted({i for i, _ in which})
    for row in index:
        for i in series:
            place = row.places[i]
            if (i, place.shard) in found:
                found[i, place.shard].append((row.id, row.size, place.begin, place.end))
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


def reopen_last(root: Path, manifest: Manifest, index: Index) -> Manifest:
    """The manifest without the last shard of each series: it grows again, so one long run and two short ones write the same."""
    numbers = [max((row.places[i].shard for row in index), default=-1) for i in range(len(manifest.parts))]
    for part, number in zip(manifest.parts, numbers, strict=True):
        if number >= 0 and len(part.shards) > number:
            reopen(root / shard_file(part.folder, number), root / pending_file(part.folder, number), manifest, part.shards[number])
            manifest = manifest.with_shards(part.folder, part.shards[:number])
    return replace(manifest, complete=False, files={})


def repair(root: Path, manifest: Manifest, index: Index) -> None:
    """Put unlisted shards back among the growing ones, forget batches whose data is not there, cut what was never finished."""
    (root / PENDING).mkdir(exist_ok=True)
    for path in [*root.glob(".*.tmp"), *(root / PENDING).glob(".*.tmp")]:
        path.unlink()
    take_back(root, manifest)
    drop_lost(root, manifest, index)
    cut_tails(root, manifest, index)


def take_back(root: Path, manifest: Manifest) -> None:
    """Shards the manifest does not list are not finished, whatever their name says."""
    for part in manifest.parts:
        folder = root / "matrices" / part.folder
        listed = {root / shard_file(part.folder, number) for number in range(len(part.shards))}
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path not in listed:
                _to_pending(path, root / PENDING / f"{part.folder}-{path.stem.removeprefix('shard-')}.safetensors")


def _to_pending(path: Path, pending: Path) -> None:
    if pending.exists() or path.suffix == ".tmp":
        path.unlink()
    else:
        path.replace(pending)


def drop_lost(root: Path, manifest: Manifest, index: Index) -> None:
    """Forget the last batches as long as bytes they need are missing (a power cut can lose data that a kill cannot)."""
    room = room_of(manifest.shard_size)
    while index.batches:
        needed = [(root / pending_file(manifest.parts[i].folder, n), room + s) for (i, n), s in pending_sizes(manifest, index).items()]
        needed += [(root / examples_file(split), size) for split, size in example_sizes(index).items()]
        if all(path.exists() and path.stat().st_size >= size for path, size in needed):
            return
        index.drop_last()


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
