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


@pytest.fixture(scope="session")
def context(box: Bench) -> Callable[..., Context]:
    """Contexts of the first sentences; those asked for twice keep their scores."""
    known: dict[Any, Context] = {}

    def make(count: int = 4, methods: Any = FEW, **options: Any) -> Context:
        key = (count, tuple(methods))
        if key not in known or options:
            ready, _ = box.prepare(read_data("agreement").kept[:count])
            made = Context(box, tuple(ready), (), methods, progress=False, **options)
            if options:
                return made
            known[key] = made
        return known[key]

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def to_file(rows: list[dict[str, Any]], name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return to_file
