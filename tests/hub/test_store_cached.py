"""A downloaded store lies in the Hub's cache, as links to files named by their hash: those are read, never written."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from ctxmix_hf.errors import StoreError
from ctxmix_hf.hub.store import MapStore

from .loopback import LoopbackHub
from .synthetic import add_number, manifest


def tree(root: Path) -> dict[str, Any]:
    """Every name with what it is and holds."""
    return {
        str(path.relative_to(root)): str(path.readlink())
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture
def cached(server: LoopbackHub, repo_id: str, tmp_path: Path) -> Path:
    """The snapshot of a downloaded store in `tmp_path / "cache"`."""
    with MapStore.from_manifest(tmp_path / "m", manifest(1 << 20)) as store:
        for number in range(4):
            add_number(store, number)
    store.push_to_hub(repo_id, endpoint=server.url, token=server.token)
    return MapStore.from_hub(
        repo_id, endpoint=server.url, token=server.token, cache_dir=tmp_path / "cache"
    ).download()


@pytest.mark.parametrize("options", [{}, {"repair": True}])
def test_appending_into_a_cache_is_refused(
    cached: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    before = tree(tmp_path / "cache")
    with pytest.raises(StoreError, match=r"download cache.*copy"):
        MapStore.open(cached, append=True, **options)
    assert tree(tmp_path / "cache") == before  # not even a lock
    MapStore.open(cached).verify()


def test_links_anywhere_in_a_store_are_refused(tmp_path: Path) -> None:
    """A store somebody linked together by hand, file by file."""
    with MapStore.from_manifest(tmp_path / "m", manifest(1 << 20)) as store:
        add_number(store, 0)
    for name in ("matrices/alti/shard-00000.safetensors", "examples/test.jsonl", "index.jsonl"):
        copy = tmp_path / name.replace("/", "-")
        shutil.copytree(tmp_path / "m", copy)
        (copy / name).unlink()
        (copy / name).symlink_to(tmp_path / "m" / name)
        with pytest.raises(StoreError, match="copy"):
            MapStore.open(copy, append=True)
        assert len(MapStore.open(copy)) == 2


def test_a_linked_folder_is_the_users_own(tmp_path: Path) -> None:
    with MapStore.from_manifest(tmp_path / "m", manifest(1 << 20)) as store:
        add_number(store, 0)
    (tmp_path / "link").symlink_to(tmp_path / "m")
    with MapStore.open(tmp_path / "link", append=True) as store:
        add_number(store, 1)
    assert len(MapStore.open(tmp_path / "m")) == 4


def test_a_copy_can_be_appended_to(cached: Path, tmp_path: Path) -> None:
    shutil.copytree(cached, tmp_path / "copy")
    before = tree(tmp_path / "cache")
    with MapStore.open(tmp_path / "copy", append=True) as store:  # the advice
        add_number(store, 9)
    MapStore.open(tmp_path / "copy").verify()
    assert tree(tmp_path / "cache") == before


def test_nothing_else_is_written_there(
    cached: Path, server: LoopbackHub, repo_id: str, tmp_path: Path
) -> None:
    """Exports need a place of their own; a downloaded store can be pushed elsewhere."""
    before = tree(tmp_path / "cache")
    store = MapStore.open(cached)
    with pytest.raises(StoreError, match=r"to_parquet\(folder\)"):
        store.to_parquet()
    other = f"{repo_id}-2"[:96]
    store.push_to_hub(other, endpoint=server.url, token=server.token)
    assert (
        len(
            MapStore.from_hub(
                other, endpoint=server.url, token=server.token, cache_dir=tmp_path / "other"
            )
        )
        == 8
    )
    assert tree(tmp_path / "cache") == before
