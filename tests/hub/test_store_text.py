"""What the examples say is what was written: a changed token, id or label is an error, never an answer."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from ctxmix_hf.errors import StoreError
from ctxmix_hf.hub.folders import INDEX, MANIFEST, file_digest
from ctxmix_hf.hub.store import MapStore

from .samples import filled
from .synthetic import add_number, manifest

LINES = "examples/validation.jsonl"


def without_checksums(folder: Path) -> None:
    """The store as it was written before lines had checksums."""
    lines = map(json.loads, (folder / INDEX).read_text().splitlines())
    rows = [[{k: v for k, v in row.items() if k != "crc"} for row in line] for line in lines]
    (folder / INDEX).write_text(
        "".join(json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n" for row in rows)
    )
    body = json.loads((folder / MANIFEST).read_text())
    body["files"][INDEX] |= {
        "size": (folder / INDEX).stat().st_size,
        "sha256": file_digest(folder / INDEX),
    }
    (folder / MANIFEST).write_text(json.dumps(body))


@pytest.mark.parametrize("old", [False, True])
def test_no_flipped_bit_changes_what_is_read(tmp_path: Path, old: bool) -> None:
    filled(tmp_path / "m")
    if old:
        without_checksums(tmp_path / "m")
    store = MapStore.open(tmp_path / "m")
    right = {name: store.example(name) for name in store.ids()}
    data, draw = (tmp_path / "m" / LINES).read_bytes(), random.Random(0)
    for place in draw.sample(range(len(data)), 120):
        flipped = bytearray(data)
        flipped[place] ^= 1 << draw.randrange(8)
        (tmp_path / "m" / LINES).write_bytes(flipped)
        store = MapStore.open(tmp_path / "m")
        refused = 0
        for name, body in right.items():
            try:
                assert store.example(name) == body
            except StoreError:
                refused += 1
                with pytest.raises(StoreError):
                    store[name, "alti"]
        assert refused == (len(right) if old else 1)


def test_an_open_store_checks_its_lines_too(tmp_path: Path) -> None:
    with MapStore.from_manifest(tmp_path / "m", manifest()) as store:
        add_number(store, 0)
        path = tmp_path / "m" / "examples/test.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"w0"', b'"w9"', 1))
        with pytest.raises(StoreError, match=r"checksum of '0a' does not fit"):
            store.example("0a")
        assert store.example("0b")["tokens"][0] == "w0"
        path.write_bytes(path.read_bytes().replace(b'"w9"', b'"w0"', 1))


def test_a_place_beyond_the_end_takes_no_memory(tmp_path: Path) -> None:
    """An index that promises a petabyte is refused before a buffer is made for it."""
    with (
        pytest.raises(KeyboardInterrupt),
        MapStore.from_manifest(tmp_path / "m", manifest(1 << 20)) as store,
    ):
        add_number(store, 0)
        raise KeyboardInterrupt
    lines = (tmp_path / "m" / INDEX).read_text()
    rows = json.loads(lines)
    size = rows[0]["n"]
    depth = (1 << 49) // (size * size * 4)
    rows = [{**rows[0], "at": [[0, 0, depth * size * size * 4, 7]] * 2, "line": [0, 1 << 49]}]
    (tmp_path / "m" / INDEX).write_text(json.dumps(rows) + "\n")
    store = MapStore.open(tmp_path / "m")
    with pytest.raises(StoreError, match="truncated"):
        store["0a", "alti"]
    with pytest.raises(StoreError, match="damaged"):
        store.example("0a")
