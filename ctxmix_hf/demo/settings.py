"""What one visitor may ask for; every number can be set by an environment variable."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from ipaddress import ip_address

HOST = "CTXMIX_DEMO_HOST"  # where `launch` serves; worker processes inherit it

READY = b"ready"  # what a worker process says when it can be asked


def _number(name: str, default: int) -> int:
    return int(os.environ.get(f"CTXMIX_DEMO_{name}", default))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what is served there."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def exposed() -> bool:
    """Whether strangers can reach the page: on a Space, or on any host but a loopback one."""
    return "SPACE_ID" in os.environ or not is_loopback(os.environ.get(HOST, "127.0.0.1"))


@dataclass(frozen=True)
class Settings:
    """Limits of the server."""

    characters: int = _number("CHARACTERS", 2000)
    tokens: int = _number("TOKENS", 256)
    document_characters: int = _number("DOCUMENT_CHARACTERS", 20_000)
    document_tokens: int = _number("DOCUMENT_TOKENS", 4096)
    seconds: int = _number("SECONDS", 20)
    kill: int = _number("KILL", 60)
    building: int = _number("BUILDING", 5)
    models: int = _number("MODELS", 3)
    parameters: int = _number("PARAMETERS", 500_000_000)
    memory: str = os.environ.get("CTXMIX_DEMO_MEMORY", "256MB")
    process_megabytes: int = _number("PROCESS_MEGABYTES", 6000)
    answer_megabytes: int = _number("ANSWER_MEGABYTES", 32)
    store_megabytes: int = _number("STORE_MEGABYTES", 200)
    upload_megabytes: int = _number("UPLOAD_MEGABYTES", 8)
    pixels: int = _number("PIXELS", 20_000_000)
    concurrency: int = _number("CONCURRENCY", 2)
    queue: int = _number("QUEUE", 48)
    per_visitor: int = _number("PER_VISITOR", 12)
    proxies: int = _number("PROXIES", 1 if "SPACE_ID" in os.environ else 0)

    @property
    def workers_per_visitor(self) -> int:
        """How many of the worker processes one address may hold at once: not all of them where
        strangers share the page.
        """
        return max(
            1,
            _number("WORKERS_PER_VISITOR", self.concurrency - 1 if exposed() else self.concurrency),
        )

    @property
    def any_model(self) -> bool:
        """Whether visitors may name any model and dataset of the Hub."""
        return os.environ.get("CTXMIX_DEMO_ANY_MODEL", "0" if exposed() else "1") == "1"

    @property
    def local_paths(self) -> bool:
        """Whether visitors may name folders of this machine; never on a Space."""
        return (
            "SPACE_ID" not in os.environ
            and os.environ.get("CTXMIX_DEMO_LOCAL_PATHS", "0" if exposed() else "1") == "1"
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names under which the page may be asked for, beside addresses and this machine's own."""
        return tuple(
            name for name in re.split(r"[,\s]+", os.environ.get("CTXMIX_DEMO_HOSTS", "")) if name
        )


SETTINGS = Settings()


_START = r"(?:file:/+|[A-Za-z]:[\\/]|~?[\\/])"
_QUOTED = re.compile(rf"(?P<quote>['\"`]){_START}[^'\"`\n]*(?P=quote)")  # spaces too
_BARE = re.compile(rf"(?<![\w:/.<\\]){_START}[^\s'\"`,;:()<>]+")
HIDDEN = "(a path of the server)"


def hide_paths(text: str) -> str:
    """An error as a visitor may read it: paths of this machine are nobody's business."""
    if SETTINGS.local_paths:
        return text
    return _BARE.sub(HIDDEN, _QUOTED.sub(rf"\g<quote>{HIDDEN}\g<quote>", text))
