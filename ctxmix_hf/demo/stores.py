"""Precomputed maps: a MapStore in a folder or on the Hub, browsed without a model."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import gradio as gr

import ctxmix_hf as cm
from ctxmix_hf.demo import panels
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.errors import InputError, StoreError

DEFAULT = os.environ.get("CTXMIX_DEMO_STORE", "")
MOST = 200


@lru_cache(maxsize=4)
def open_store(name: str) -> Any:
    """A folder where paths are allowed, else a dataset repo."""
    name = name.strip()
    if not name:
        raise InputError("Type the name of a dataset repo (or a folder) with precomputed maps.")
    if SETTINGS.local_paths and Path(name).expanduser().is_dir():
        return cm.MapStore.open(Path(name).expanduser())
    try:
        return cm.MapStore.from_hub(name)
    except (OSError, ValueError) as error:
        if isinstance(error, cm.CtxmixError):
            raise
        raise StoreError(f"{name!r} could not be opened: {str(error).splitlines()[0][:200]}") from error


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


def listing(name: str, split: str, words: str, method: Any = "", key: Any = "") -> tuple[Any, Any, Any, str]:
    """Choices of split, example and method; what was chosen stays where it still exists."""
    try:
        store, found = open_store(name), search(name, split, words)
    except cm.CtxmixError as error:
        return gr.skip(), gr.skip(), gr.skip(), panels.message(str(error))
    said = "" if found else panels.message("No example contains these words.", "warn")
    methods, keys = list(store.methods), [place for _, place in found]
    return (
        gr.Dropdown(choices=["all", *splits(store)], value=split or "all"),
        gr.Dropdown(choices=found, value=key if key in keys else next(iter(keys), None)),
        gr.Dropdown(choices=methods, value=method if method in methods else next(iter(methods), None)), said,
    )  # fmt: skip


def first_listing(name: str, split: str, words: str, method: Any, key: Any) -> tuple[Any, Any, Any, Any]:
    """Opening the tab shows what the server's own store holds."""
    if key or not name.strip():
        return gr.skip(), gr.skip(), gr.skip(), gr.skip()
    return listing(name, split, words, method, key)


def splits(store: Any) -> list[str]:
    return sorted({row.split for row in store.index})


def view(name: str, key: str, method: str) -> dict[str, Any]:
    store = open_store(name)
    return store[key, method].to_view(title=f"{method} · {name.rstrip('/').rsplit('/', 1)[-1]}")  # type: ignore[no-any-return]


def opened(name: str, key: Any, method: Any, split: str = "all", words: str = "", said: str = "") -> tuple[Any, Any]:
    """The chosen example's map; what the search had to say stays."""
    if not key or said:
        return gr.skip(), gr.skip()
    try:
        chosen = str(method or open_store(name).methods[0])
        query = {"tab": "precomputed", "store": name.strip(), "split": "" if split == "all" else split, "search": words.strip()}
        return {**view(name, str(key), chosen), "query": {**query, "id": str(key), "store_method": chosen}}, ""
    except cm.CtxmixError as error:
        return gr.skip(), panels.message(str(error))
