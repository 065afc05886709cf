"""Damaged, hostile and contested stores: every case is one clear error, and nothing outside the folder is touched."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxmix_hf.errors import InputError, OptionError, StoreError
from ctxmix_hf.hub.folders import INDEX, MANIFEST, digest, file_digest
from ctxmix_hf.hub.index import line_of
from ctxmix_hf.hub.manifest import load_manifest
from ctxmix_hf.hub.reading import tokens_of
from ctxmix_hf.hub.store import MapStore

from .conftest import ROOT
from .synthetic import add_number, contents, manifest, some_maps

SHARD = "matrices/alti/shard-00000.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with MapStore.from_manifest(tmp_path / "m", manifest()) as store:
        for number in range(3):
            add_number(store, number)
    return tmp_path / "m"


def edit_manifest(
    folder: Path, change: Callable[[dict[str, Any]], None], mend: bool = True
) -> None:
    """Change the manifest as an attacker would, with a fingerprint that fits again."""
    body = json.loads((folder / MANIFEST).read_text())
    change(body)
    if mend:
        methods = {
            k: {n: v[n] for n in ("options", "aggregation", "shares")}
            for k, v in body["methods"].items()
        }
        identity = {
            "schema": 1,
            "methods": methods,
            **{n: body[n] for n in ("model", "tokenizer", "dtype")},
        }
        body["fingerprint"] = digest(identity)
    (folder / MANIFEST).write_text(json.dumps(body))


def edit_index(folder: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the first batch of the index; the manifest then fits it."""
    lines = (folder / INDEX).read_text().splitlines()
    rows = json.loads(lines[0])
    change(rows)
    (folder / INDEX).write_text("\n".join([json.dumps(rows), *lines[1:]]) + "\n")
    about = {
        "size": (folder / INDEX).stat().st_size,
        "sha256": file_digest(folder / INDEX),
        "rows": 6,
    }
    edit_manifest(folder, lambda body: body["files"].update({INDEX: about}))


def test_truncated_shard(folder: Path) -> None:
    os.truncate(folder / SHARD, (folder / SHARD).stat().st_size - 1)
    with pytest.raises(StoreError, match=r"shard-00000\.safetensors is truncated"):
        MapStore.open(folder)


def test_shard_truncated_while_open(folder: Path) -> None:
    store = MapStore.open(folder)
    os.truncate(folder / SHARD, (folder / SHARD).stat().st_size - 1)
    assert store["0a", "alti"].size == 3
    with pytest.raises(StoreError, match="truncated"):
        store["2b", "alti"]


def test_flipped_bits(folder: Path) -> None:
    data = bytearray((folder / SHARD).read_bytes())
    data[-5] ^= 1
    (folder / SHARD).write_bytes(data)
    store = MapStore.open(folder)
    with pytest.raises(StoreError, match="Shard 0 of 'alti' is damaged"):
        store["2b", "alti"]
    with pytest.raises(StoreError, match="checksum"):
        store.verify()


@pytest.mark.parametrize("name", [SHARD, INDEX, "examples/train.jsonl"])
def test_missing_files(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(StoreError, match="is missing"):
        MapStore.open(folder)
    with pytest.raises(StoreError, match="is missing"):
        MapStore.open(folder, append=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r[0]["at"][0].__setitem__(2, 1 << 40), "do not fit its shape"),
        (
            lambda r: r[0].update(n=1 << 19, at=[[0, 0, 2 * (1 << 38) * 4, 0]] * 2),
            "past the end|not a sensible number",
        ),
        (
            lambda r: [
                p.__setitem__(1, p[1] + 4800) or p.__setitem__(2, p[2] + 4800) for p in r[0]["at"]
            ],
            "past the end",
        ),
        (lambda r: r[0]["at"][0].__setitem__(0, 7), "shard 7, which does not exist"),
        (lambda r: r[0].update(n=5), "do not fit its shape"),
        (lambda r: r[0].update(n=0), "makes no sense"),
        (lambda r: r[0].update(n=True), "not a sensible number"),
        (lambda r: r[0]["at"][0].__setitem__(1, -8), "not a sensible number"),
        (lambda r: r[1].update(id="0a"), "twice"),
        (lambda r: r[1].update(id="1a"), "twice"),
        (lambda r: r[1].update(id="__metadata__"), "Not usable"),
        (lambda r: r[1].update(split="../../etc/passwd"), "Not usable as a split"),
        (lambda r: r[1].update(line=[5, 5]), "makes no sense"),
        (lambda r: r[1].pop("at"), "at"),
        (lambda r: r.append(7), "damaged"),
    ],
)
def test_hostile_index(folder: Path, change: Any, message: str) -> None:
    edit_index(folder, change)
    with pytest.raises(StoreError, match=message):
        MapStore.open(folder)


def test_index_that_points_to_another_line(folder: Path) -> None:
    edit_index(folder, lambda rows: rows[0].update(line=rows[1]["line"]))
    with pytest.raises(StoreError, match="no line for '0a'"):
        MapStore.open(folder)["0a", "alti"]


@pytest.mark.parametrize(
    ("change", "mend", "message"),
    [
        (lambda b: b.update(kind="x"), True, "does not describe"),
        (lambda b: b.update(schema=2), True, "schema 2"),
        (lambda b: b["model"].update(weights="1" * 64), False, "fingerprint"),
        (lambda b: b.update(dtype="float64"), True, "damaged"),
        (
            lambda b: b["methods"]["alti"]["parts"]["layers"].update(folder="../../x"),
            True,
            "damaged",
        ),
        (lambda b: b["methods"]["alti"]["parts"]["layers"].update(folder="/etc"), True, "damaged"),
        (
            lambda b: b["methods"]["alti"]["parts"]["layers"].update(folder="attention"),
            True,
            "damaged",
        ),
        (
            lambda b: b["methods"]["alti"]["parts"]["layers"]["shards"][0].update(size=-1),
            True,
            "damaged",
        ),
        (
            lambda b: b["methods"]["alti"]["parts"]["layers"]["shards"][0].update(size=1 << 60),
            True,
            "damaged",
        ),
        (
            lambda b: b["files"].update({"examples/../../x.jsonl": b["files"][INDEX]}),
            True,
            "damaged",
        ),
        (lambda b: b["files"].update({"../x": b["files"][INDEX]}), True, "damaged"),
        (lambda b: b.update(order=[]), True, "damaged"),
        (lambda b: b.pop("origin"), True, "damaged"),
    ],
)
def test_hostile_manifest(folder: Path, change: Any, mend: bool, message: str) -> None:
    edit_manifest(folder, change, mend)
    with pytest.raises(StoreError, match=message):
        MapStore.open(folder)


def test_manifest_that_is_no_json(folder: Path) -> None:
    for text in (
        "{",
        "[" * 100_000,
        "[]",
        "\udc80".encode("utf-8", "surrogatepass").decode("latin1"),
    ):
        (folder / MANIFEST).write_text(text)
        with pytest.raises(StoreError):
            MapStore.open(folder)


def test_wrong_dtype_is_seen_by_verify(folder: Path) -> None:
    """A shard that says float16 where the manifest says float32, with fitting checksums."""
    data = (folder / SHARD).read_bytes().replace(b'"F32"', b'"F16"', 1)
    (folder / SHARD).write_bytes(data)
    shard = {"sha256": file_digest(folder / SHARD)}
    edit_manifest(
        folder, lambda b: b["methods"]["alti"]["parts"]["layers"]["shards"][0].update(shard)
    )
    with pytest.raises(StoreError, match="disagree about '0a'"):
        MapStore.open(folder).verify()


def test_no_pickle_is_ever_read(folder: Path) -> None:
    sources = [path.read_text() for path in (ROOT / "ctxmix_hf/hub").glob("*.py")]
    assert not any(
        "pickle." in text or "import pickle" in text or "torch.load" in text for text in sources
    )


@pytest.mark.parametrize(
    "change", [{"input_ids": [1]}, {"input_ids": ["x"] * 3}, {"spans": [1, 2, 3]}, {"words": 7}]
)
def test_hostile_tokens(folder: Path, change: dict[str, Any]) -> None:
    body = {"id": "a", "tokens": ["x", "y", "z"], **change}
    with pytest.raises(StoreError, match="do not fit together"):
        tokens_of(body)


# ---- ids and splits


@pytest.mark.parametrize(
    "name", ["", "__metadata__", "a\nb", "a\x00", "x" * 257, "\ud800", None, 1.5, True]
)
def test_ids_that_cannot_be_used(tmp_path: Path, name: Any) -> None:
    with MapStore.from_manifest(tmp_path / "m", manifest()) as store:
        with pytest.raises(InputError, match="Not usable as an id"):
            store.add_maps([name, "b"], some_maps(0))
        assert len(store) == 0


def test_ids_that_look_like_paths_stay_ids(tmp_path: Path) -> None:
    names = [
        "../../escape",
        "/etc/passwd",
        "C:\\x",
        'quote"',
        "ünï-😀",
        "a/b/c",
        "..",
        ".",
        "x" * 256,
        "😀" * 256,
    ]
    with MapStore.from_manifest(tmp_path / "m", manifest()) as store:
        for i, name in enumerate(names):
            store.add_maps([name, i], some_maps(i))
    store = MapStore.open(tmp_path / "m")
    store.verify()
    assert store[names[0], "alti"].size == 3 and store[3, "alti"].depth == 2
    assert {path.name for path in tmp_path.iterdir()} == {"m"}
    assert all("escape" not in name and "passwd" not in name for name in contents(tmp_path))


@pytest.mark.parametrize("split", ["../x", "a/b", "", "a b", "x" * 65, None])
def test_splits_are_file_names(tmp_path: Path, split: Any) -> None:
    with (
        MapStore.from_manifest(tmp_path / "m", manifest()) as store,
        pytest.raises(InputError, match="split"),
    ):
        store.add_maps(["a", "b"], some_maps(0), split=split)


def test_method_names_become_safe_folders(tmp_path: Path) -> None:
    names = ["alti+flow", "alti+rollout", "alti"]
    with MapStore.from_manifest(tmp_path / "m", manifest(methods=names)) as store:
        pass
    folders = [part.folder for part in store.manifest.parts]
    assert len(set(folders)) == len(folders) and all("/" not in f and "+" not in f for f in folders)
    assert load_manifest(tmp_path / "m" / MANIFEST).methods.keys() == set(names)


def test_duplicate_ids(folder: Path) -> None:
    with MapStore.open(folder, append=True) as store:
        for ids in (["0a", "new"], ["new", "new"]):
            with pytest.raises(StoreError, match="unique"):
                store.add_maps(ids, some_maps(9))
        assert len(store) == 6


def test_maps_with_other_options_are_refused(tmp_path: Path) -> None:
    with MapStore.from_manifest(tmp_path / "m", manifest()) as store:
        maps = some_maps(0)
        maps["alti"].meta["options"] = {**maps["alti"].meta["options"], "norm": 2}
        with pytest.raises(StoreError, match="norm is 1 in the store, 2 was asked for"):
            store.add_maps(["a", "b"], maps)
        with pytest.raises(InputError, match="missing for: attention"):
            store.add_maps(["a", "b"], {"alti": some_maps(0)["alti"]})
        with pytest.raises(InputError, match="3 ids for maps of 2"):
            store.add_maps(["a", "b", "c"], some_maps(0))
    with pytest.raises(OptionError, match="shard_size"):
        MapStore.create(tmp_path / "n", model=None, methods=["alti"], shard_size=1)


# ---- two writers, a full disk


def test_one_writer_at_a_time(folder: Path) -> None:
    with MapStore.open(folder, append=True) as store:
        with pytest.raises(StoreError, match="one writer"):
            MapStore.open(folder, append=True)
        script = (
            f"from ctxmix_hf.hub.store import MapStore\nMapStore.open({str(folder)!r}, append=True)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 1 and "one writer at a time" in done.stderr
        add_number(store, 5)
        assert len(MapStore.open(folder)) == 8  # readers are welcome
    MapStore.open(folder, append=True).close()


@pytest.mark.parametrize("at", range(1, 6))
def test_full_disk_keeps_what_was_added(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    store = MapStore.open(folder, append=True)
    add_number(store, 3)
    real, count = os.write, 0

    def full(fd: int, data: Any) -> int:
        nonlocal count
        count += 1
        if count == at:
            real(fd, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", full)
    if at <= 4:
        with pytest.raises(StoreError, match="the disk is full"):
            for number in (4, 5):
                add_number(store, number)
    monkeypatch.undo()
    for number in (4, 5):
        if f"{number}a" not in store:
            add_number(store, number)
    store.close()
    MapStore.open(folder).verify()
    assert MapStore.open(folder).ids() == [f"{n}{letter}" for n in range(6) for letter in "ab"]


def test_file_size_limit_of_the_system(tmp_path: Path) -> None:
    """The kernel itself refuses to let a file grow; the store says so, and stays whole."""
    script = f"""
import resource, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.hub.synthetic import add_number, manifest
from ctxmix_hf.errors import StoreError
from ctxmix_hf.hub.store import MapStore
store = MapStore.from_manifest(Path({str(tmp_path / "m")!r}), manifest(1 << 20))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    for number in range(1000):
        add_number(store, number)
except StoreError as error:
    print(len(store), error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    count, _, message = done.stdout.partition(" ")
    assert "the disk is full. Everything added before is kept." in message
    with MapStore.open(tmp_path / "m", append=True) as store:
        assert len(store) == int(count) > 4
    MapStore.open(tmp_path / "m").verify()


def test_index_lines_are_canonical(folder: Path) -> None:
    store = MapStore.open(folder)
    lines = (folder / INDEX).read_bytes().splitlines(keepends=True)
    assert lines == [
        line_of([store.index.rows[name] for name in names]) for _, names in store.index.batches
    ]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOLCK])
def test_appending_on_a_read_only_disk_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(code, os.strerror(code))
        return real(path, flags, *args, **options)

    real = os.open
    monkeypatch.setattr(os, "open", refuse)
    before = contents(folder)
    with pytest.raises(StoreError, match=r"Could not write to the store 'm': "):
        MapStore.open(folder, append=True)
    with pytest.raises(StoreError, match=r"Could not write to the store"):
        MapStore.from_manifest(folder.parent / "new", manifest())
    monkeypatch.undo()
    assert contents(folder) == before
