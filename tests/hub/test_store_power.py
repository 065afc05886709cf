"""Power cuts and pages that are lost: what was promised is on the disk, and damage is found before it is sealed in."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

import pytest

from ctxmix_hf.errors import StoreError
from ctxmix_hf.hub.folders import INDEX, MANIFEST
from ctxmix_hf.hub.store import MapStore
from tests.alone import alone

from .powercut import Disk
from .synthetic import add_number, contents, manifest
from .test_store_crash import Kill, check, write

PENDING = "pending/alti-00000.safetensors"
SHARD = "matrices/alti/shard-00000.safetensors"
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and /proc")


def zero(path: Path, begin: int, count: int = 16) -> None:
    """A lost page: zeros inside a file, its size as before."""
    with path.open("r+b") as file:
        file.seek(begin)
        assert any(file.read(count)), "there was nothing to lose"
        file.seek(begin)
        file.write(bytes(count))


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def killed(path: Path, count: int = 5, shard_size: int = 1 << 20) -> None:
    """A store whose writer died after some batches."""
    with (
        pytest.raises(KeyboardInterrupt),
        MapStore.from_manifest(path, manifest(shard_size)) as store,
    ):
        for number in range(count):
            add_number(store, number)
        raise KeyboardInterrupt


def whole(path: Path, count: int = 5, shard_size: int = 1 << 20) -> dict[str, str]:
    with MapStore.from_manifest(path, manifest(shard_size)) as store:
        for number in range(count):
            add_number(store, number)
    return contents(path)


def go_on(path: Path, count: int = 5, **options: Any) -> list[str]:
    """Add what is not there; the ids that were there."""
    with MapStore.open(path, append=True, **options) as store:
        there = store.ids()
        for number in range(count):
            if f"{number}a" not in store:
                add_number(store, number)
    return there


# ---- damage in what a kill left


@pytest.mark.parametrize("name", [PENDING, "examples/train.jsonl", INDEX])
def test_a_page_lost_before_the_run_goes_on_is_computed_again(tmp_path: Path, name: str) -> None:
    """The third batch is damaged: it and what follows is forgotten when the store is opened, and added again."""
    path, expected = tmp_path / "m", whole(tmp_path / "whole")
    killed(path)
    store = MapStore.open(path)
    row = store.index.rows["2a"]
    begin = {
        PENDING: (1 << 13) + row.places[0].begin + 40,
        INDEX: store.index.batches[2][0] + 5,
    }.get(name, row.line[0] + 5)
    zero(path / name, begin)
    assert go_on(path) == ["0a", "0b", "1a", "1b"]
    MapStore.open(path).verify()
    assert contents(path) == expected


def test_forgotten_examples_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    killed(tmp_path / "m")
    zero(tmp_path / "m" / PENDING, (1 << 13) + 40)
    go_on(tmp_path / "m")
    assert "10 examples of the store 'm' are damaged or incomplete and are forgotten" in caplog.text


def test_a_shard_that_other_series_finished_is_opened_again(tmp_path: Path) -> None:
    """Damage in a growing shard also takes back finished shards of other series that hold later batches."""
    path, expected = tmp_path / "m", whole(tmp_path / "whole", 60, 1 << 14)
    killed(path, 60, 1 << 14)
    store = MapStore.open(path)
    assert all(len(part.shards) > 1 for part in store.manifest.parts)
    pending = path / f"pending/attention-{len(store.manifest.parts[1].shards):05d}.safetensors"
    first = next(
        name
        for name, row in store.index.rows.items()
        if row.places[1].shard == len(store.manifest.parts[1].shards)
    )
    zero(pending, (1 << 13) + 40)
    there = go_on(path, 60)
    assert first not in there and store.ids()[: len(there)] == there
    MapStore.open(path).verify()
    assert contents(path) == expected


def test_damage_is_not_sealed_in(tmp_path: Path) -> None:
    """Bytes that change between writing and finishing a shard are an error, not a checksum."""
    path = tmp_path / "m"
    store = MapStore.from_manifest(path, manifest(1 << 20))
    for number in range(5):
        add_number(store, number)
    zero(path / PENDING, (1 << 13) + 40)
    with pytest.raises(StoreError, match=r"damaged .*'0a'"):
        store.close()
    store.__exit__(StoreError, None, None)
    go_on(path)
    MapStore.open(path).verify()
    assert contents(path) == whole(tmp_path / "whole")


# ---- damage in a closed store


def test_appending_to_a_damaged_shard_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m"
    whole(path)
    zero(path / SHARD, (path / SHARD).stat().st_size - 40)
    before = contents(path)
    with MapStore.open(path, append=True) as store, pytest.raises(StoreError, match="repair=True"):
        add_number(store, 7)
    assert contents(path) == before


@pytest.mark.parametrize(
    "name", [SHARD, "matrices/attention/shard-00001.safetensors", "examples/test.jsonl", INDEX]
)
@pytest.mark.parametrize("how", ["zero", "cut", "missing", "header"])
def test_repair_forgets_what_is_damaged(tmp_path: Path, name: str, how: str) -> None:
    path, expected = tmp_path / "m", whole(tmp_path / "whole", 40, 1 << 14)
    whole(path, 40, 1 << 14)
    target = path / name
    if how == "missing":
        target.unlink()
    elif how == "cut":
        os.truncate(target, target.stat().st_size - 7)
    else:
        flip(target, 12 if how == "header" else target.stat().st_size // 2)
    assert len(go_on(path, 40, repair=True)) < 80  # the advice
    MapStore.open(path).verify()
    assert contents(path) == expected


def test_repair_of_a_sound_store_changes_nothing(tmp_path: Path) -> None:
    expected = whole(tmp_path / "m")
    assert len(go_on(tmp_path / "m", repair=True)) == 10
    assert contents(tmp_path / "m") == expected


def test_verify_looks_at_growing_shards_too(tmp_path: Path) -> None:
    killed(tmp_path / "m")
    MapStore.open(tmp_path / "m").verify()
    zero(tmp_path / "m" / PENDING, (1 << 13) + 40)
    with pytest.raises(StoreError, match="'0a'"):
        MapStore.open(tmp_path / "m").verify()


def test_a_flipped_bit_in_the_index_of_a_closed_store_is_noticed(tmp_path: Path) -> None:
    whole(tmp_path / "m")
    data = (tmp_path / "m" / INDEX).read_bytes()
    (tmp_path / "m" / INDEX).write_bytes(data.replace(b'"0a"', b'"0c"', 1))
    with pytest.raises(StoreError, match=r"index\.jsonl is damaged"):
        MapStore.open(tmp_path / "m")


# ---- power cuts


def powered_run(root: Path, at: int, images: Path, seeds: list[int | None], log: Path) -> bool:
    """A forked writer whose machine stops at its `at`-th step; what can be left of its folder lies in `images`."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            disk = Disk(root.parent)

            class Cut(Kill):
                def stop(self) -> None:
                    for number, seed in enumerate(seeds):
                        disk.after_a_power_cut(images / str(number), seed)
                    os._exit(9)

            cut = Cut(at)
            write_, truncate, replace, unlink = os.write, os.truncate, Path.replace, Path.unlink
            os.fsync = cut.wrap(disk.fsync)  # type: ignore[assignment]
            os.write = cut.wrap(write_)  # type: ignore[assignment]
            os.truncate = cut.wrap(truncate)  # type: ignore[assignment]
            Path.replace = cut.wrap(replace)  # type: ignore[method-assign]
            Path.unlink = cut.wrap(unlink)  # type: ignore[method-assign]
            write(root, lambda number: log.write_text(str(number + 1)) and None)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


@needs_fork
@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_power_cut_at_any_step(tmp_path: Path, stride: int) -> None:
    """What was acknowledged is there, and going on gives the bytes of a run whose power was never cut."""
    alone(power_cut_at_any_step, tmp_path, stride)


def power_cut_at_any_step(tmp_path: Path, stride: int) -> None:
    write(tmp_path / "whole")
    expected, at, points = contents(tmp_path / "whole"), 1, 0
    while True:
        base, images, log = tmp_path / f"cut{at}", tmp_path / f"images{at}", tmp_path / "log"
        base.mkdir()
        log.write_text("0")
        if not powered_run(base / "m", at, images, [None, at, at + 1], log):
            break
        for image in sorted(images.iterdir()):
            path = image / "m"
            if (path / MANIFEST).exists():
                check(path, int(log.read_text()))
            else:
                assert log.read_text() == "0"
            write(path)
            assert contents(path) == expected, f"cut at step {at}, image {image.name}"
        points, at = points + 1, at + stride
    assert points >= 10
