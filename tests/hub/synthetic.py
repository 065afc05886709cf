"""Stores and maps that need no model, so that processes using them start fast."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from ctxmix_hf.hub.manifest import Manifest, method_entries
from ctxmix_hf.hub.store import MapStore
from ctxmix_hf.recipes import resolve
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.text.tokens import Tokens


def manifest(
    shard_size: int = 1 << 14, methods: Any = ("alti", "attention"), **fields: Any
) -> Manifest:
    """Of a store that no model made."""
    about = {"weights": "0" * 64, "dtype": "float32", "model_type": "bert"}
    origin = {"model_id": "none", "revision": None, "versions": {}}
    return Manifest(
        about,
        None,
        fields.pop("dtype", "float32"),
        method_entries(resolve(methods)),
        origin,
        shard_size,
        **fields,
    )


def some_maps(
    number: int, count: int = 2, layers: int = 2, methods: Any = ("alti", "attention")
) -> dict[str, ContextMixingMap]:
    """Random maps of `count` examples of different length, the same for the same number."""
    made = {}
    sizes = [3 + (number * 5 + b * 3) % 9 for b in range(count)]
    for key, recipe in resolve(methods).items():
        random = torch.Generator().manual_seed(hash((number, len(key))) % 1000)
        mask = torch.arange(max(sizes))[None] < torch.tensor(sizes)[:, None]
        values = torch.rand(count, layers, max(sizes), max(sizes), generator=random) * (
            mask[:, None, None] & mask[:, None, :, None]
        )
        tokens = [
            Tokens(tuple(f"w{i}" for i in range(max(sizes))), ids=tuple(range(max(sizes))))
            for _ in sizes
        ]
        meta = {"options": recipe.method.options()}
        made[key] = ContextMixingMap(key, values, mask, tokens, meta=meta)
    return made


def add_number(store: MapStore, number: int, **options: Any) -> None:
    """Add one small batch; the same for the same number."""
    store.add_maps(
        [f"{number}a", f"{number}b"],
        some_maps(number),
        split="train" if number % 3 else "test",
        **options,
    )


def contents(path: Path) -> dict[str, str]:
    """Every file of a store with the hash of its bytes; lock files are nobody's content."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.suffix != ".lock"]
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }
