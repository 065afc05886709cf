"""Sentences of mixed length, and a store that nothing interrupted."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ctxmix_hf.precompute import Job, Summary, precompute

WORDS = (
    "the a key keys cabinet film fine girl boys that like is are here not old [MASK] guests "
    "waiter table on to"
).split()


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 20))) + "." for _ in range(count)]


def hashes(root: Path) -> dict[str, str]:
    """sha256 of every file of a store and its run; the lock is not part of it."""
    files = (
        path for path in sorted(root.rglob("*")) if path.is_file() and path.name != ".ctxmix.lock"
    )
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


@pytest.fixture
def compute(tmp_path: Path) -> Callable[..., Summary]:
    def call(**options: object) -> Summary:
        given = {"out": str(tmp_path / "maps"), "methods": ("alti",), "token_budget": 64, **options}
        return precompute(Job(**given))  # type: ignore[arg-type]

    return call


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 good rows and some bad ones."""
    path = tmp_path_factory.mktemp("data") / "corpus.txt"
    lines = [line.encode() for line in sentences(150)]
    lines[10:10] = [b"", b"   ", b"caf\xe9"]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


@pytest.fixture(scope="session")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of one process that was never stopped."""
    out = tmp_path_factory.mktemp("whole") / "maps"
    made = precompute(Job(str(corpus), str(out), ("alti", "norm_enc"), token_budget=64))
    assert (made.examples, made.skipped) == (150, 3)
    return out
