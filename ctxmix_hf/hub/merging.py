"""Several workers write a store each; merged in order, they are byte for byte what one worker would have written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ctxmix_hf.errors import StoreError
from ctxmix_hf.hub.folders import canonical
from ctxmix_hf.hub.index import IndexRow
from ctxmix_hf.hub.manifest import Manifest
from ctxmix_hf.hub.reading import read_example
from ctxmix_hf.hub.writing import NewExample


def empty_like(manifest: Manifest) -> Manifest:
    """The manifest of a store with the same identity and nothing in it."""
    for part in manifest.parts:
        manifest = manifest.with_shards(part.folder, ())
    return replace(manifest, complete=False, files={})


def check_parts(parts: Sequence[Any]) -> Manifest:
    """The parts' common manifest; raises where one of them holds other numbers or an id twice."""
    if not parts:
        raise StoreError("There is nothing to merge.")
    first = empty_like(parts[0].manifest)
    seen: set[str] = set()
    for part in parts:
        if canonical(empty_like(part.manifest).identity()) != canonical(first.identity()):
            raise StoreError(
                f"Not parts of one store: fingerprints {first.fingerprint[:12]} and "
                f"{part.manifest.fingerprint[:12]} differ."
            )
        twice = next((name for name in part.index.rows if name in seen), None)
        if twice is not None:
            raise StoreError(f"The id {twice!r} is in two parts.")
        seen.update(part.index.rows)
    return first


def copy_batches(target: Any, part: Any) -> None:
    """Append a part's batches as they are: the same bytes, the same lines."""
    for _, names in part.index.batches:
        target._writer.append([_example(part, part.index.rows[name]) for name in names])


def _example(part: Any, row: IndexRow) -> NewExample:
    arrays = [
        np.frombuffer(part.source.read(p, place), np.uint8)
        for p, place in zip(part.manifest.parts, row.places, strict=True)
    ]
    return NewExample(
        row.id, row.split, row.size, row.key, row.causal, read_example(part.source, row), arrays
    )


def merge(cls: Any, path: str | Path, parts: Sequence[Any]) -> Any:
    """A closed store of all parts, in their order."""
    opened = [part if isinstance(part, cls) else cls.open(part) for part in parts]
    target = cls.from_manifest(Path(path), check_parts(opened))
    with target:
        for part in opened:
            copy_batches(target, part)
    return target
