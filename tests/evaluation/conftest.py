"""The box model on a few sentences: small enough to be run by many tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ctxmix_hf.evaluation.bench import Bench, open_bench
from ctxmix_hf.evaluation.context import Context
from ctxmix_hf.evaluation.data import read_data

torch.set_num_threads(1)
FEW = ["attention", "alti", "random"]


@pytest.fixture(scope="session")
def box() -> Bench:
    return open_bench(None, None, "masked_lm", "ctxmix/agreement", heldout_only=False)


@pytest.fixture(scope="session")
def sentiment() -> Bench:
    return open_bench(None, None, "classifier", "ctxmix/sentiment", heldout_only=False)


@pytest.fixture
def context(box: Bench) -> Callable[..., Context]:
    def make(count: int = 6, methods: Any = FEW, **options: Any) -> Context:
        ready, _ = box.prepare(read_data("agreement").kept[:count])
        return Context(box, tuple(ready), (), methods, progress=False, **options)

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def to_file(rows: list[dict[str, Any]], name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return to_file
