"""What one visitor may ask for; every number can be set by an environment variable."""

from __future__ import annotations

import os
from dataclasses import dataclass


def _number(name: str, default: int) -> int:
    return int(os.environ.get(f"CTXMIX_DEMO_{name}", default))


@dataclass(frozen=True)
class Settings:
    """Limits of the server."""

    characters: int = _number("CHARACTERS", 2000)
    tokens: int = _number("TOKENS", 256)
    seconds: int = _number("SECONDS", 20)
    models: int = _number("MODELS", 3)
    parameters: int = _number("PARAMETERS", 500_000_000)
    memory: str = os.environ.get("CTXMIX_DEMO_MEMORY", "256MB")
    concurrency: int = _number("CONCURRENCY", 2)
    queue: int = _number("QUEUE", 64)
    any_model: bool = os.environ.get("CTXMIX_DEMO_ANY_MODEL", "1") != "0"
    local_paths: bool = "SPACE_ID" not in os.environ  # on a public Space only Hub ids


SETTINGS = Settings()
