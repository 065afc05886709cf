"""What is to be done, as plain data that travels to workers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ctxmix_hf.bundled import AGREEMENT

ENGINES = ("local", "ray")
WINDOW = 8192  # rows that are sorted by length together
TASK_BATCHES = 8  # batches a worker takes at a time


@dataclass(frozen=True)
class Job:
    """One `ctxmix precompute`. `identity` is what decides the bytes of the result."""

    dataset: str
    out: str
    methods: tuple[str, ...]
    model: str = AGREEMENT.name
    revision: str | None = None
    dtype: str | None = None
    device: str = "cpu"
    split: str = "train"
    text_column: str = "text"
    pair_column: str | None = None
    id_column: str | None = None
    label_column: str | None = None
    limit: int | None = None
    max_length: int | None = None
    token_budget: int = 1024
    store_dtype: str = "float32"
    engine: str = "local"
    workers: int = 1
    threads: int = 1
    segments: str | None = None
    targets: tuple[Any, ...] | None = None
    top_k: int | None = None
    trust_remote_code: bool = False

    def identity(self) -> dict[str, Any]:
        """Not the place of the data nor the number of workers; the model and the data are compared
        by their contents.
        """
        left_out = (
            *("dataset", "out", "model", "revision", "dtype", "engine", "workers", "device"),
            "trust_remote_code",
        )
        options = {key: value for key, value in asdict(self).items() if key not in left_out}
        for name in ("segments", "targets", "top_k"):
            if options[name] is None:  # runs that began before there were such options go on
                del options[name]
        return {
            **options,
            "methods": list(self.methods),
            "window": WINDOW,
            "task_batches": TASK_BATCHES,
        }
