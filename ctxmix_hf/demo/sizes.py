"""How large a model is, before it is fetched or built: from its files, and from a build that holds no numbers."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, ModelInfo, constants, hf_hub_download
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.file_download import repo_folder_name
from transformers import MODEL_MAPPING, AutoModel

from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.errors import CtxmixError, RefusedError, UnsupportedModelError
from ctxmix_hf.hub.pointers import POINTER, find_pointer

WEIGHTS = (  # transformers takes the first kind there is
    "model.safetensors",
    "model-*-of-*.safetensors",
    "pytorch_model.bin",
    "pytorch_model-*-of-*.bin",
)
READ = (".json", ".txt", ".model", ".jinja", ".spm", ".codes", ".vocab", ".bpe", ".tokenizer")
OTHERS = 300_000_000  # bytes of everything else that is read: configurations, tokenizer
ADAPTER = "adapter_config.json"  # with it, PEFT loads the model that it names instead


class TooSlow(BaseException):
    """Raised by the alarm; no Exception, so that nothing on the way takes it for its own."""


@dataclass(frozen=True)
class Weighed:
    """Files of a model that were measured, and how to load these and no others."""

    where: str  # a folder, or a name on the Hub
    folder: Path  # where they lie
    keywords: dict[str, Any]  # of every from_pretrained


def fetch(name: str, where: str) -> Weighed:
    """Weigh a model's files, then fetch those that were weighed, all of one commit.

    Nothing of the model is opened before, and loading it asks the Hub for nothing more. Without the
    Hub, what lies in its cache is weighed.

    Raises:
        UnsupportedModelError: Too large, or it would load another model in its place.
        OSError: The Hub has no such model, or cannot be asked and the model is not in its cache.
    """
    keywords: dict[str, Any] = {"trust_remote_code": False}
    if (folder := Path(where)).is_dir():
        _check_files(name, _sizes(folder))
    else:
        info = _ask(where)
        if info is None:
            folder = _cached(where)
            _check_files(name, _sizes(folder))
        else:
            sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
            for file in _check_files(name, sizes):
                folder = Path(hf_hub_download(where, file, revision=info.sha)).parent
        keywords |= {"revision": folder.name, "local_files_only": True}
    if (folder / POINTER).exists() and _points(folder):
        raise UnsupportedModelError(
            f"{name} has no weights of its own: its {POINTER} points to another model. Give the name of "
            "that model."
        )
    return Weighed(where, folder, keywords)


def check(name: str, weighed: Weighed, config: Any) -> None:
    """Raises if the model is larger than this server takes, or if that cannot be found out quickly."""
    counts = [_in_headers(weighed.folder), _built(name, config)]
    if max(counts) > SETTINGS.parameters:
        raise UnsupportedModelError(
            f"{name} has {max(counts) / 1e6:,.0f} million parameters; this server takes "
            f"{SETTINGS.parameters / 1e6:,.0f}."
        )


def _ask(where: str) -> ModelInfo | None:
    """What the Hub says of a model's newest commit; None where it cannot be asked."""
    try:
        return HfApi().model_info(where, files_metadata=True, timeout=10)
    except RepositoryNotFoundError as error:
        raise UnsupportedModelError(
            f"There is no model {where!r} on the Hub that this server may read: check the name."
        ) from error
    except Exception as error:  # of requests, httpx or its successor, by the version of the client
        answer = getattr(error, "response", None)
        if isinstance(error, ValueError) or (answer is not None and answer.status_code < 500):
            raise  # no name of a repository, or an answer
        return None


def _cached(where: str) -> Path:
    """The commit of a model that was fetched last."""
    kept = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=where, repo_type="model")
    found = [path.parent for path in kept.glob("snapshots/*/config.json")]
    if not found:
        raise UnsupportedModelError(
            f"The Hub cannot be reached now, and {where} is not on this server: try again later."
        )
    return max(found, key=lambda folder: folder.stat().st_mtime)


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}


def _check_files(name: str, sizes: dict[str, int]) -> list[str]:
    """Those that transformers would read, unless they are too large or name another model."""
    if ADAPTER in sizes:
        raise UnsupportedModelError(
            f"{name} is a PEFT adapter, which would load the model that its {ADAPTER} names. Give the name "
            "of a whole model."
        )
    if not {"config.json", POINTER} & set(sizes):
        raise UnsupportedModelError(
            f"{name} has no config.json: give the name of a model that transformers reads."
        )
    top = [file for file in sizes if "/" not in file]
    kinds = [[file for file in top if fnmatch(file, kind)] for kind in WEIGHTS]
    weights = next((files for files in kinds if files), [])
    others = [file for file in top if file.endswith(READ)]
    stored, beside = (sum(sizes[file] for file in files) for files in (weights, others))
    if stored > 4 * SETTINGS.parameters or beside > OTHERS:
        raise UnsupportedModelError(
            f"{name} has {(stored + beside) / 1e6:,.0f} MB of files; this server takes models of at most "
            f"{SETTINGS.parameters / 1e6:,.0f} million parameters."
        )
    return [*others, *weights]


def _points(folder: Path) -> bool:
    """Whether a pointer beside the model would be followed where the model cannot be loaded."""
    try:
        return find_pointer(folder, {}) is not None
    except CtxmixError:  # damaged, or it names something that is here
        return True


def _in_headers(folder: Path) -> int:
    """Numbers that the safetensors files of a folder say they hold."""
    total = 0
    for path in folder.glob("model*.safetensors"):
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
