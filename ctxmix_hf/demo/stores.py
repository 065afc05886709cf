"""Precomputed maps: a MapStore in a folder or on the Hub, browsed without a model."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import ctxmix_hf as cm
from ctxmix_hf.demo import library
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.demo.shelf import check_id
from ctxmix_hf.errors import InputError, RefusedError, StoreError, first_line
from ctxmix_hf.viz.names import people_name

DEFAULT = os.environ.get("CTXMIX_DEMO_STORE", "") or library.NAME
MOST = 200


@lru_cache(maxsize=4)
def open_store(name: str) -> Any:
    """A folder where paths are allowed, else a dataset repo."""
    name = name.strip()
    if not name:
        raise InputError("Type the name of a dataset repo (or a folder) with precomputed maps.")
    if name == library.NAME:
        return cm.MapStore.open(library.folder())
    if (SETTINGS.local_paths or name == DEFAULT) and Path(name).expanduser().is_dir():
        return cm.MapStore.open(Path(name).expanduser())
    if name != DEFAULT:
        check_id(name, "dataset")
    try:
        return cm.MapStore.from_hub(
            name, max_bytes=None if name == DEFAULT else SETTINGS.store_megabytes * 1_000_000
        )
    except (OSError, ValueError) as error:
        if isinstance(error, cm.CtxmixError):
            raise
        raise StoreError(f"{name!r} could not be opened: {first_line(error):.200}") from error


def search(name: str, split: str = "all", words: str = "") -> list[tuple[str, str]]:
    """(text, id) of the examples whose text contains the words."""
    store = open_store(name)
    found = []
    for key in store.ids(None if split in ("", "all") else split):
        text = str(store.example(key).get("text") or key)
        if words.strip().lower() in text.lower():
            found.append((text[:120], str(key)))
        if len(found) >= MOST:
            break
    return found


def splits(store: Any) -> list[str]:
    return sorted({row.split for row in store.index})


def choices(
    name: str, split: str, words: str
) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Splits, methods, and (text, id) of the examples found."""
    store = open_store(name)
    return splits(store), list(store.methods), search(name, split, words)


def map_of(name: str, key: str, method: str) -> Any:
    """One map, unless it is so large that its JSON would be more than the server sends: layers, heads
    and the map from the input.
    """
    store = open_store(name)
    row, entry = store.index.rows.get(str(key)), store.manifest.methods.get(method)
    kept = [] if entry is None else list(entry.parts.values())
    depths = zip(store.manifest.parts, store.index.depths, strict=True)
    layers = sum(depth for part, depth in depths if part in kept)
    numbers = 0 if row is None else row.size**2 * layers
    if numbers * 10 > SETTINGS.answer_megabytes * 1_000_000:
        raise RefusedError(
            f"The map of {key!r} has {numbers:,} numbers, too many for this page. Open it with "
            f"ctxmix_hf.MapStore.from_hub({name!r})[{key!r}, {method!r}]."
        )
    return store[key, method]


def view(name: str, key: str, method: str) -> dict[str, Any]:
    method = method or open_store(name).methods[0]
    made = map_of(name, key, method)
    if hasattr(made, "targets"):
        raise RefusedError(
            f"This store keeps rows, not maps, so there is none of {key!r} to draw: read it from Python."
        )
    return (made.to_map() if hasattr(made, "to_map") else made).to_view(
        title=f"{people_name(method)} · {name.rstrip('/').rsplit('/', 1)[-1]}"
    )  # type: ignore[no-any-return]
