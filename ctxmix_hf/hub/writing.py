"""The writer of a store: appends batches so that a kill loses at most the batch in hand, and finishes shards.

A batch is written as data, then its lines in the examples, then one line in the index; only the
last makes it exist. Each is forced to the disk before the next begins, so an index line never
promises bytes that a power cut can take away. Growing shards lie in `pending/` and are finished
after the batch that filled them; the manifest lists the finished ones.
"""

from __future__ import annotations

import shutil
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakMethod

from filelock import FileLock, Timeout

from ctxmix_hf.errors import StoreError, StoreInUseError
from ctxmix_hf.hub import recovery
from ctxmix_hf.hub.folders import (
    INDEX,
    LOCK,
    PENDING,
    canonical,
    cut,
    disk_errors,
    examples_file,
    file_digest,
    make_folder,
    pending_file,
    put,
    shard_file,
)
from ctxmix_hf.hub.index import Index, IndexRow, Place, line_of
from ctxmix_hf.hub.manifest import Manifest
from ctxmix_hf.hub.shards import Entry, entry_json, finish, metadata_json, room_of
from ctxmix_hf.hub.threads import side_by_side

LARGE = 1 << 20  # bytes of a batch from which on its series are written side by side


@dataclass(frozen=True)
class NewExample:
    """What is added: the line for the examples file and one `[L, T, T]` array per series of shards."""

    id: str
    split: str
    size: int
    key: str | None
    causal: bool
    line: dict[str, Any]
    arrays: list[Any]


@dataclass
class Growing:
    """The shard of a series that new entries go to."""

    number: int
    data: int  # bytes
    header: int  # bytes, exactly


@contextmanager
def locked_store(root: Path) -> Iterator[FileLock]:
    """The one writer's lock, kept after the block and freed if the block fails, by Ctrl-C too; the
    system frees it when a process dies.
    """
    lock = FileLock(root / LOCK)
    try:
        with disk_errors(root):
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise StoreInUseError(
                    f"Another process or object is writing to the store {root.name!r}: one writer at a time."
                ) from None
        yield lock
    except BaseException:
        lock.release()
        raise


class Writer:
    """Appends to one folder; made under the lock, after repairing what a kill left behind."""

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        index: Index,
        lock: FileLock,
        saved: Callable[[Manifest], None],
    ) -> None:
        self.root, self.manifest, self.index, self.lock = root, manifest, index, lock
        self.saved = WeakMethod(
            saved
        )  # a store that nobody holds any more frees its folder at once
        self.room = room_of(manifest.shard_size)
        self.sizes = recovery.example_sizes(index)
        self.growing: list[Growing] = []
        self.begun = False

    def append(self, batch: list[NewExample]) -> None:
        """Add a batch: afterwards all of it is in the store, or (after an error) none of it."""
        self._refuse_known(batch)
        with disk_errors(self.root):
            self._begin()
            before = [replace(shard) for shard in self.growing]
            try:
                rows = self._write(batch)
                line = line_of(rows)
                put(self.root / INDEX, self.index.size, [line])
            except BaseException:
                self.growing = before
                recovery.cut_tails(self.root, self.manifest, self.index)
                raise
            self.index.extend(rows, len(line))
            for row in rows:
                self.sizes[row.split] = max(self.sizes[row.split], row.line[1])
            self._finish_full()

    def close(self) -> None:
        """Finish every shard and free the folder."""
        with disk_errors(self.root):
            if self.begun or not self.manifest.complete:
                self._begin()
                self._finish_full()
                self._finish(
                    [(i, shard.number) for i, shard in enumerate(self.growing) if shard.data]
                )
                self._save(replace(self.manifest, complete=True, files=self._files()))
            shutil.rmtree(self.root / PENDING, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Free the folder as it is; a later writer goes on from here."""
        self.lock.release()

    # ---- one batch --------------------------------------------------------------------------------------------
    def _refuse_known(self, batch: list[NewExample]) -> None:
        seen: set[str] = set()
        for new in batch:
            if new.id in self.index.rows or new.id in seen:
                raise StoreError(f"The id {new.id!r} is in the store already: ids are unique.")
            seen.add(new.id)

    def _write(self, batch: list[NewExample]) -> list[IndexRow]:
        """Data and example lines; the rows that would make them exist."""
        series = range(len(self.manifest.parts))
        if (
            sum(array.nbytes for new in batch for array in new.arrays) > LARGE
        ):  # checksums and writing leave Python alone
            places = side_by_side(lambda i: self._write_part(i, batch), series)
        else:
            places = [self._write_part(i, batch) for i in series]
        lines = self._write_lines(batch)
        return [
            IndexRow(
                new.id,
                new.split,
                new.size,
                new.key,
                (begin, end),
                new.causal,
                tuple(part[b] for part in places),
                crc,
            )
            for b, (new, (begin, end, crc)) in enumerate(zip(batch, lines, strict=True))
        ]

    def _write_part(self, i: int, batch: list[NewExample]) -> list[Place]:
        """One series: place every array, then write each shard's arrays in one go."""
        folder, growing = self.manifest.parts[i].folder, self.growing[i]
        placed: list[Place] = []
        chunks: dict[int, list[Any]] = defaultdict(list)
        for new in batch:
            array = new.arrays[i]
            begin = self._room_for(
                growing, folder, Entry(new.id, new.size, growing.data, growing.data + array.nbytes)
            )
            placed.append(Place(growing.number, begin, growing.data, zlib.crc32(array)))
            chunks[growing.number].append((begin, array))
        for number, items in chunks.items():
            put(
                self.root / pending_file(folder, number),
                self.room + items[0][0],
                [array for _, array in items],
            )
        return placed

    def _room_for(self, growing: Growing, folder: str, entry: Entry) -> int:
        """Where an entry begins: behind the others, or in a new shard if header or data would grow too large."""
        name, size, begin, end, _ = entry
        length = self._entry_length(entry)
        if begin and (
            growing.header + length > self.room or self.room + end > self.manifest.shard_size
        ):
            growing.number, growing.header, begin, end = (
                growing.number + 1,
                self._empty_header(folder),
                0,
                end - begin,
            )
            length = self._entry_length(Entry(name, size, begin, end))
        growing.header, growing.data = growing.header + length, end
        return begin

    def _entry_length(self, entry: Entry) -> int:
        return 1 + len(entry_json(entry, self.manifest).encode())

    def _empty_header(self, folder: str) -> int:
        return 8 + 2 + len(metadata_json(self.manifest, folder).encode())

    def _write_lines(self, batch: list[NewExample]) -> list[tuple[int, int, int]]:
        """Append to the examples files; the bytes each line got, and its checksum."""
        sizes, found, chunks = dict(self.sizes), [], defaultdict(list)
        for new in batch:
            line = canonical(new.line).encode() + b"\n"
            begin = sizes.get(new.split, 0)
            sizes[new.split] = begin + len(line)
            found.append((begin, begin + len(line), zlib.crc32(line)))
            chunks[new.split].append(line)
        for split, lines in chunks.items():
            path = self.root / examples_file(split)
            make_folder(path.parent)
            put(path, self.sizes[split], [b"".join(lines)])
        return found

    # ---- shards -----------------------------------------------------------------------------------------------
    def _begin(self) -> None:
        """Before the first change: make the last shard of each series grow again."""
        if self.begun:
            return
        if self.manifest.complete:  # of an open one this was done when it was opened
            lost = recovery.damaged_in_shards(
                self.root,
                self.manifest,
                self.index,
                recovery.to_be_sealed(self.manifest, self.index),
            )
            if lost:
                raise StoreError(
                    f"The store {self.root.name!r} is damaged ({min(lost)!r:.80}), so nothing is "
                    "added to it. MapStore.open(path, "
                    "append=True, repair=True) forgets what is damaged and what came after it, so "
                    "that it can be added again."
                )
        self._save(recovery.reopen_last(self.root, self.manifest, self.index))
        recovery.repair(self.root, self.manifest, self.index)
        shutil.rmtree(
            self.root / "parquet", ignore_errors=True
        )  # an export of what was there before
        self.growing = [self._growing(i) for i in range(len(self.manifest.parts))]
        self.begun = True
        self._finish_full()

    def _growing(self, i: int) -> Growing:
        folder = self.manifest.parts[i].folder
        number = max((row.places[i].shard for row in self.index), default=0)
        entries = recovery.entries_of(self.index, i, number)
        lengths = sum(self._entry_length(entry) for entry in entries)
        return Growing(
            number, entries[-1].end if entries else 0, self._empty_header(folder) + lengths
        )

    def _finish_full(self) -> None:
        """Finish what the last batch filled: every shard before the growing one."""
        full = [
            (i, n)
            for i, part in enumerate(self.manifest.parts)
            for n in range(len(part.shards), self.growing[i].number)
        ]
        if full:
            self._finish(full)
            self._save(self.manifest)

    def _finish(self, which: list[tuple[int, int]]) -> None:
        """Finish shards side by side: hashing them is what takes time. They count once the manifest is saved."""
        entries = recovery.entries_by_shard(self.index, which)
        try:
            made = side_by_side(lambda item: self._finish_one(*item, entries[item]), which)
        except BaseException:
            recovery.take_back(self.root, self.manifest)
            raise
        for (i, _), shard in zip(which, made, strict=True):
            part = self.manifest.parts[i]
            self.manifest = self.manifest.with_shards(part.folder, (*part.shards, shard))

    def _finish_one(self, i: int, number: int, entries: list[Entry]) -> Any:
        folder = self.manifest.parts[i].folder
        source, target = (
            self.root / pending_file(folder, number),
            self.root / shard_file(folder, number),
        )
        return finish(source, target, self.manifest, folder, entries)

    def _save(self, manifest: Manifest) -> None:
        self.manifest = manifest
        manifest.save(self.root)
        if told := self.saved():
            told(manifest)
        for part in manifest.parts:
            for number in range(len(part.shards)):
                (self.root / pending_file(part.folder, number)).unlink(missing_ok=True)

    def _files(self) -> dict[str, dict[str, Any]]:
        """Size, hash and rows of index and examples, for the manifest of a closed store."""
        rows: dict[str, int] = defaultdict(int)
        for row in self.index:
            rows[examples_file(row.split)] += 1
        cut(self.root / INDEX, self.index.size)
        (self.root / INDEX).touch()
        found = {INDEX: len(self.index), **{name: rows[name] for name in sorted(rows)}}
        return {
            name: {
                "size": (self.root / name).stat().st_size,
                "sha256": file_digest(self.root / name),
                "rows": count,
            }
            for name, count in found.items()
        }
