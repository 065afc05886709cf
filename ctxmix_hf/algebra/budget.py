"""Memory as a budget: `max_memory="500MB"` picks the chunk sizes, nobody tunes them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ctxmix_hf.errors import OptionError

DEFAULT = 256 * 2**20
_UNITS = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}


@dataclass(frozen=True)
class Budget:
    """How many bytes temporary tensors of one step may take."""

    bytes: int = DEFAULT

    @classmethod
    def of(cls, value: Budget | str | int | None) -> Budget:
        if value is None:
            return cls()
        if isinstance(value, Budget):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?B?)\s*", str(value), re.IGNORECASE)
        unit = match.group(2).upper() if match else ""
        unit = unit if unit in _UNITS else unit + "B"
        size = float(match.group(1)) * _UNITS[unit] if match else 0
        if size < 2**20:
            raise OptionError(
                f"max_memory={value!r}: give at least 1MB, as bytes or like '500MB' or '2GB'."
            )
        return cls(int(size))

    def chunks(self, count: int, bytes_each: int, limit: int | None = None) -> Iterator[slice]:
        """Slices over `count` items such that each slice's temporaries fit (at least one item at a time)."""
        fitting = max(1, self.bytes // max(1, bytes_each))
        step = min(fitting, limit) if limit else fitting
        for start in range(0, count, step):
            yield slice(start, min(count, start + step))


def available() -> int | None:
    """Bytes this machine can still give, where it says so."""
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 2**10
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def size_in_words(count: float) -> str:
    """`5.9 GB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"
