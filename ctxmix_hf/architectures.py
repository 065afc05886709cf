"""Which model types are known to be exact, with their layer layout: measured by the contract test,
not written by hand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Architecture:
    """One family as the contract test last saw it (`python -m tests.contract.coverage` writes the file)."""

    name: str
    model_type: str
    modality: str
    # 2: exact decomposition; 1: approximate, or attention, flow, effective attention, Value
    # Zeroing, HTA and gradients only
    level: int
    order: str
    norm: str
    feed_forward: str
    attention: str
    error: float | None
    reason: str = ""  # why level 1
    ledger: float | None = None  # how far its ledger is from balancing (relative); None: refused
    # all maps can be had, but something beside the attention mixes tokens too
    approximate: bool = False

    @property
    def decomposition(self) -> str:
        """In a word."""
        return (
            "exact" if self.level >= 2 else "approximate" if self.approximate else "attention only"
        )


@cache
def _table() -> tuple[Architecture, ...]:
    text = (resources.files("ctxmix_hf") / "architectures.json").read_text(encoding="utf-8")
    return tuple(Architecture(**row) for row in json.loads(text)["families"])


def supported_architectures(level: int | None = None) -> dict[str, Architecture]:
    """Families by name; `level=2` for those whose decomposition is exact.

    Args:
        level: At least this level; None: every family that was tried.

    Returns:
        Name to `Architecture`.
    """
    return {row.name: row for row in _table() if level is None or row.level >= level}
