"""How large a model is, before it is fetched or built: from its files, and from a build that holds no numbers."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from transformers import MODEL_MAPPING, AutoModel

from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.errors import RefusedError, UnsupportedModelError

WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")  # transformers takes the first kind there is
OTHERS = 300_000_000  # bytes of everything else that is read: configurations, tokenizer


class TooSlow(BaseException):
    """Raised by the alarm; no Exception, so that nothing on the way takes it for its own."""


def check(name: str, where: str, config: Any) -> None:
    """Raises if the model is larger than this server takes, or if that cannot be found out quickly."""
    stored, others = _files(where)
    if stored > 4 * SETTINGS.parameters or others > OTHERS:
        raise UnsupportedModelError(
            f"{name} has {(stored + others) / 1e6:,.0f} MB of files; this server takes models of at most "
            f"{SETTINGS.parameters / 1e6:,.0f} million parameters."
        )
    counts = [_in_headers(where), _built(name, config)]
    if max(counts) > SETTINGS.parameters:
        raise UnsupportedModelError(
            f"{name} has {max(counts) / 1e6:,.0f} million parameters; this server takes "
            f"{SETTINGS.parameters / 1e6:,.0f}."
        )


def _files(where: str) -> tuple[int, int]:
    """Bytes of the weights and of all other files transformers would read."""
    if Path(where).is_dir():
        sizes = {path.name: path.stat().st_size for path in Path(where).iterdir() if path.is_file()}
    else:
        try:
            info = HfApi().model_info(where, files_metadata=True)
        except (OfflineModeIsEnabled, HfHubHTTPError, OSError, ValueError):
            return 0, 0  # what cannot be asked for cannot be fetched either
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    kinds = [[name for name in sizes if fnmatch(name, kind)] for kind in WEIGHTS]
    weights = next((names for names in kinds if names), [])
    others = [
        name for name in sizes if "/" not in name and name.endswith((".json", ".txt", ".model"))
    ]
    return sum(sizes[name] for name in weights), sum(sizes[name] for name in others)


def _in_headers(where: str) -> int:
    """Numbers that the safetensors files of a folder say they hold."""
    total = 0
    for path in Path(where).glob(WEIGHTS[0]) if Path(where).is_dir() else ():
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(path.stat().st_size, 100_000_000):
                raise UnsupportedModelError("The header of its safetensors file is damaged.")
            header = json.loads(file.read(length))
        total += sum(prod(entry["shape"]) for key, entry in header.items() if key != "__metadata__")
    return total


def _built(name: str, config: Any) -> int:
    """Parameters of the model its configuration describes, built on the meta device (no memory for
    numbers) within a time.
    """
    try:
        MODEL_MAPPING.get(type(config), None)  # imports the family, which the alarm must not strike
        with _within(SETTINGS.building), torch.device("meta"):
            return sum(p.numel() for p in AutoModel.from_config(config).parameters())
    except TooSlow:
        raise RefusedError(
            f"{name} could not be built within {SETTINGS.building} s even without its weights: it "
            "has too many layers for this server."
        ) from None
    except (
        ValueError,
        KeyError,
        ImportError,
        RuntimeError,
        TypeError,
        AttributeError,
        NotImplementedError,
    ):
        return 0  # loading it says what is wrong


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """An alarm after so many seconds of computing, where there can be one: in the main thread, as
    in a worker. Elsewhere the gate's watchdog is all there is."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def ring(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
