"""Bytes of a store, from a folder: checked for their length, their crc and, on request, their shard's sha256."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Protocol

import torch

from ctxmix_hf.errors import InputError, StoreError
from ctxmix_hf.hub.folders import INDEX, examples_file, file_digest, shard_file
from ctxmix_hf.hub.index import Index, IndexRow, Place
from ctxmix_hf.hub.manifest import Manifest, Part, Shard, whole
from ctxmix_hf.hub.recovery import (
    damaged_in_shards,
    damaged_lines,
    data_at,
    entries_by_shard,
    line_fits,
    pending_sizes,
)
from ctxmix_hf.hub.shards import check_header
from ctxmix_hf.hub.threads import side_by_side
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.text.tokens import Tokens, checked_tokens


class Source(Protocol):
    """Where a store's bytes are."""

    def read(self, part: Part, place: Place) -> bytes:
        """The bytes of one entry, as long as its place says."""
        ...

    def line(self, row: IndexRow) -> bytes:
        """An example's line."""
        ...


class FolderSource:
    """A folder on this machine, closed or still being written."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self.root, self.manifest = root, manifest
        self._sound: set[str] = (
            set()
        )  # splits of stores without a checksum per line, whose file was compared as a whole

    def read(self, part: Part, place: Place) -> bytes:
        folders = [known.folder for known in self.manifest.parts]
        try:
            path, start = data_at(self.root, self.manifest, folders.index(part.folder), place.shard)
            data = b""
            if path.stat().st_size >= start + place.end:  # before memory is taken for it
                with path.open("rb", buffering=0) as file:
                    file.seek(start + place.begin)
                    data = file.read(place.end - place.begin)
        except FileNotFoundError:
            raise StoreError(f"Shard {place.shard} of {part.folder!r} is missing.") from None
        return checked(data, part, place)

    def line(self, row: IndexRow) -> bytes:
        path, name = self.root / examples_file(row.split), examples_file(row.split)
        if not path.exists():
            raise StoreError(f"{name} is missing.")
        if row.crc is None and row.split not in self._sound and name in self.manifest.files:
            _check_file(path, name, self.manifest.files[name]["sha256"])
            self._sound.add(row.split)
        with path.open("rb") as file:
            file.seek(row.line[0])
            return file.read(max(0, min(row.line[1], path.stat().st_size) - row.line[0]))


def checked(data: bytes, part: Part, place: Place) -> bytes:
    """The same bytes, or a StoreError if they are too few or not those that were written."""
    if len(data) != place.end - place.begin:
        raise StoreError(
            f"Shard {place.shard} of {part.folder!r} is truncated: an example's bytes lie past its end."
        )
    if zlib.crc32(data) != place.crc:
        raise StoreError(
            f"Shard {place.shard} of {part.folder!r} is damaged: an example's checksum does not fit."
        )
    return data


def read_example(source: Source, row: IndexRow) -> dict[str, Any]:
    """An example's line as a dictionary; it must be about this example and name as many tokens as its maps have."""
    try:
        line = source.line(row)
        body = json.loads(line)
        if body["id"] != row.id or len(body["tokens"]) != row.size:
            raise ValueError("another example")
        if not line_fits(line, row):
            raise StoreError(
                f"{examples_file(row.split)} is damaged: the checksum of {row.id!r} does not fit."
            )
        return dict(body)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(
            f"{examples_file(row.split)} is damaged: no line for {row.id!r} where the index says."
        ) from error


def tokens_of(body: dict[str, Any]) -> Tokens:
    """The tokens an example's line describes."""
    text = (
        body.get("text")
        if isinstance(body.get("text"), str) and body.get("spans") is not None
        else None
    )
    try:
        return checked_tokens(
            body.get("tokens"),
            body.get("words"),
            body.get("special"),
            text,
            body.get("spans"),
            body.get("input_ids"),
            parts=body.get("parts"),
        )
    except InputError as error:
        raise StoreError(f"The tokens of {body.get('id')!r:.80} do not fit together.") from error


def attribution_of(body: dict[str, Any], name: str, options: dict[str, Any]) -> Attribution:
    """The scores that an example's line holds under a name, with their tokens."""
    try:
        held = body["attributions"][name]
        scores = torch.tensor([held["scores"]], dtype=torch.float32)
        told = {"class_index": [whole(held["class_index"])], "of": str(held["of"])}
        target = str(held["target"])
        if scores.shape != (1, len(body["tokens"])):
            raise ValueError("scores")
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise StoreError(
            f"The store is damaged: {body.get('id')!r:.80} has no scores of {name}."
        ) from error
    meta = {**told, "options": dict(options), "id": body["id"], "layer": 0}
    mask = torch.ones(1, scores.shape[1], dtype=torch.bool)
    return Attribution(scores, [tokens_of(body)], mask, name, target, meta)


def check_sizes(root: Path, manifest: Manifest) -> None:
    """Raise if a listed file is missing or has another size: one look per file."""
    listed = [
        (shard_file(p.folder, n), shard.size)
        for p in manifest.parts
        for n, shard in enumerate(p.shards)
    ]
    for name, size in [*listed, *((name, about["size"]) for name, about in manifest.files.items())]:
        path = root / name
        if not path.exists():
            raise StoreError(f"{name} is missing.")
        if path.stat().st_size != size:
            problem = "truncated" if path.stat().st_size < size else "longer than it was"
            raise StoreError(
                f"{name} is {problem}: {path.stat().st_size} bytes, the manifest says {size}."
            )


def verify(root: Path, manifest: Manifest, index: Index, folders: set[str] | None = None) -> None:
    """Raise unless every listed file has its checksum, every shard's header says what the index
    says, and every example is as written.
    """
    wanted = [
        i for i, part in enumerate(manifest.parts) if folders is None or part.folder in folders
    ]
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

    side_by_side(check, which)
    growing = [item for item in pending_sizes(manifest, index) if item[0] in wanted]
    lost = damaged_in_shards(root, manifest, index, [*which, *growing]) | damaged_lines(root, index)
    if lost:
        names = ", ".join(repr(row.id) for row in index if row.id in lost)
        raise StoreError(
            f"The store is damaged: the bytes of {len(lost)} examples are not those that were written: {names:.200}."
        )


def _check_file(path: Path, name: str, sha256: str) -> None:
    if not path.exists():
        raise StoreError(f"{name} is missing.")
    if file_digest(path) != sha256:
        raise StoreError(f"{name} is damaged: its checksum does not fit the manifest.")


def count_rows(manifest: Manifest) -> int:
    return int(manifest.files.get(INDEX, {}).get("rows", 0))
