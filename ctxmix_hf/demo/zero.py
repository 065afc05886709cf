"""ZeroGPU: where Spaces lends its GPUs, a request is computed by a decorated function instead of a worker process.

Nothing here does anything unless the package `spaces` is importable, which it is on Spaces; and its
decorator does nothing on a Space with hardware of its own, which therefore keeps its worker processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import torch

from ctxmix_hf.demo.answering import answer
from ctxmix_hf.demo.settings import SETTINGS

Answer = Callable[[bytes, int], bytes]


@cache
def lent() -> Answer | None:
    """`answering.answer` in a process that `spaces` gives a GPU for as long as it runs; None where none is lent.

    It is decorated wherever `spaces` is importable: a Space of that kind looks for the decorator when it starts.
    """
    try:
        from spaces import GPU  # type: ignore[attr-defined]  # not a checkout's folder of that name
    except ImportError:
        return None
    decorated: Answer = GPU(duration=SETTINGS.kill)(answer)
    return decorated if _lends() else None


def _lends() -> bool:
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in (
        "1",
        "t",
        "true",
    )  # as `spaces` reads it


def device() -> str:
    """Where models stand: on the GPU that was lent, else on the processor."""
    return "cuda" if _lends() and torch.cuda.is_available() else "cpu"
