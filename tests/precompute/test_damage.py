"""Damage between two runs: found, and computed again; the bytes are those of a run that nothing disturbed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import ctxmix_hf as cm
from ctxmix_hf.errors import CtxmixError
from ctxmix_hf.precompute import Job, precompute
from ctxmix_hf.precompute.work import TaskWorker
from tests.precompute.conftest import hashes

METHODS = ("alti", "norm_enc")
SHARD = "matrices/alti/shard-00000.safetensors"


def stopped(corpus: Path, out: Path, count: int = 4) -> None:
    """A run that ends after some batches, as by a kill: nothing is tidied up."""
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len([line for line in said if "/s," in line]) == count:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        precompute(Job(str(corpus), str(out), METHODS, token_budget=64), say)


def damage(path: Path, how: str = "zero") -> None:
    data = bytearray(path.read_bytes())
    if how == "cut":
        data = data[: len(data) // 2]
    elif how == "zero":
        data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    else:
        data[len(data) // 2] ^= 2
    path.write_bytes(data)


def test_a_lost_page_is_computed_again(
    corpus: Path, whole: Path, compute: Any, tmp_path: Path
) -> None:
    out = tmp_path / "maps"
    stopped(corpus, out)
    with (out / "pending/alti-00000.safetensors").open(
        "r+b"
    ) as file:  # one page of the second batch
        row = cm.MapStore.open(out).index.rows[cm.MapStore.open(out).index.batches[1][1][0]]
        file.seek((1 << 20) + row.places[0].begin)
        file.write(bytes(row.places[0].end - row.places[0].begin))
    made = compute(dataset=str(corpus), methods=METHODS)
    assert made.examples == 150
    cm.MapStore.open(out).verify()
    assert hashes(out) == hashes(whole)


@pytest.mark.parametrize("how", ["flip", "cut", "missing"])
@pytest.mark.parametrize("name", [SHARD, "examples/train.jsonl", "index.jsonl"])
def test_a_finished_store_that_was_damaged_since(
    corpus: Path, whole: Path, compute: Any, tmp_path: Path, name: str, how: str
) -> None:
    """The same command again does not say that nothing is left to do."""
    out = tmp_path / "maps"
    shutil.copytree(whole, out)
    (out / name).unlink() if how == "missing" else damage(out / name, how)
    made = compute(dataset=str(corpus), methods=METHODS)
    assert made.computed > 0 and made.examples == 150
    assert hashes(out) == hashes(whole)


@pytest.mark.parametrize(
    "name", [SHARD, "examples/train.jsonl", "ctxmix.json", "../000001.failed.json"]
)
def test_a_damaged_part_of_a_worker_is_made_again(
    corpus: Path, whole: Path, compute: Any, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "maps"
    stopped(corpus, out)
    worker = TaskWorker.begin(Job(str(corpus), str(out), METHODS, token_budget=64))
    for number in (1, 2):
        worker.make_part(number)
    damage(out / "run/parts/000001" / name)
    compute(dataset=str(corpus), methods=METHODS)
    assert hashes(out) == hashes(whole)


@pytest.mark.parametrize("how", ["flip", "cut", "missing"])
def test_damaged_tasks_are_planned_again(
    corpus: Path, whole: Path, compute: Any, tmp_path: Path, how: str
) -> None:
    """A changed text in a task would be computed without a word."""
    out = tmp_path / "maps"
    stopped(corpus, out)
    task = out / "run/tasks/000001.json"
    task.unlink() if how == "missing" else damage(task, how)
    compute(dataset=str(corpus), methods=METHODS)
    assert hashes(out) == hashes(whole)


@pytest.mark.parametrize("name", ["plan.json", "options.json"])
@pytest.mark.parametrize(
    "text", ["", "[", "[]", "7", "{}", '{"rows": 3}', "\x00" * 40, "[" * 100_000]
)
def test_damaged_files_of_the_run_are_one_sentence(
    corpus: Path, compute: Any, tmp_path: Path, name: str, text: str
) -> None:
    out = tmp_path / "maps"
    stopped(corpus, out)
    (out / "run" / name).write_text(text)
    with pytest.raises(CtxmixError, match=r"is damaged|was begun with other options"):
        compute(dataset=str(corpus), methods=METHODS)


def test_damaged_lines_of_failures_are_left_out(
    corpus: Path, whole: Path, compute: Any, tmp_path: Path
) -> None:
    out = tmp_path / "maps"
    stopped(corpus, out)
    (out / "run/failed.jsonl").write_bytes(
        b'\xff\xfe\n[]\n7\n{"id": 3}\n{"why": "x"}\n' + b"[" * 100_000 + b'\n{"id": "x", "why": ['
    )
    made = compute(dataset=str(corpus), methods=METHODS)
    assert made.examples == 150
    (out / "run/failed.jsonl").unlink()
    assert hashes(out) == hashes(whole)


def test_the_plan_says_what_the_tasks_are(whole: Path) -> None:
    assert len(json.loads((whole / "run/plan.json").read_text())["checksum"]) == 64
