"""Models are loaded once and the least recently used one is put away."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

import ctxmix_hf as cm
from ctxmix_hf.bundled import BUNDLED, DIGITS
from ctxmix_hf.demo import sizes, zero
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.errors import InputError, UnknownNameError, UnsupportedModelError, first_line
from ctxmix_hf.heads import auto_class, head_of
from ctxmix_hf.text.inputs import longest_input

_LOADED_BY = {name: f"AutoContextMixingModelFor{model.head}" for name, model in BUNDLED.items()}
VISION = {DIGITS.name: _LOADED_BY[DIGITS.name]}  # reads pictures
TEXT_MODELS = {name: loader for name, loader in _LOADED_BY.items() if name not in VISION}
_SHOWN = (
    "MaskedLM",
    "SequenceClassification",
    "ImageClassification",
)  # heads whose predictions the page shows


@dataclass(frozen=True)
class Held:
    """A loaded model with what goes with it; one visitor at a time uses it."""

    name: str
    model: PreTrainedModel
    tokenizer: Any  # None where it reads pictures
    files: sizes.Weighed
    rate: float  # floating point operations per second of its forward pass
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def kind(self) -> str:
        name = type(self.model).__name__
        return (
            "masked" if "MaskedLM" in name else "classes" if "Classification" in name else "plain"
        )

    @property
    def weights(self) -> int:
        """Parameters that multiply vectors (embeddings are looked up)."""
        return sum(p.numel() for n, p in self.model.named_parameters() if "embed" not in n)


class Shelf:
    """An LRU of loaded models."""

    def __init__(self, size: int) -> None:
        self.size, self._held, self._lock = size, OrderedDict[str, Held](), threading.Lock()
        self._loading: dict[str, threading.Lock] = {}

    def __len__(self) -> int:
        return len(self._held)

    def names(self) -> list[str]:
        return list(self._held)

    def get(self, name: str) -> Held:
        """The model of that name, loaded if need be; a slow download holds up nobody who asks for another."""
        name = check_name(name)
        with self._lock:
            if name in self._held:
                self._held.move_to_end(name)
                return self._held[name]
            loading = self._loading.setdefault(name, threading.Lock())
        with loading:
            found = self._held.get(name)  # somebody else waited for the same one
            if found is not None:
                return found
            try:
                return self._put(name, load(name))
            finally:
                self._loading.pop(
                    name, None
                )  # also after a failure: names that cannot be loaded leave nothing behind

    def _put(self, name: str, made: Held) -> Held:
        with self._lock:
            self._held[name] = made
            while len(self._held) > self.size:
                self._held.popitem(last=False)
        return made


def check_name(given: Any) -> str:
    """Bundled models always; other names where the server allows them."""
    name = str(given or "").strip()
    if name in TEXT_MODELS or name in VISION:
        return name
    if name.startswith("ctxmix/"):
        raise UnknownNameError.among("bundled model", name, {**TEXT_MODELS, **VISION})
    if not name or len(name) > 200 or any(ord(c) < 32 for c in name):
        raise InputError("Choose a model.")
    return check_id(name, "model")


def check_id(name: str, kind: str) -> str:
    """A name that is not the server's own, where the server allows it: of the Hub, or a folder of this machine."""
    if not SETTINGS.any_model and not SETTINGS.local_paths:
        raise InputError(
            f"This server offers only {', '.join(TEXT_MODELS)}."
            if kind == "model"
            else "This server offers only its own maps."
        )
    path = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name or ".." in name
    if not SETTINGS.local_paths and (path or Path(name).exists()):
        raise InputError(f"This server opens {kind}s of the Hub only, not paths.")
    if not SETTINGS.any_model and not Path(name).expanduser().exists():
        raise InputError("This server opens folders of its own machine only, nothing of the Hub.")
    return name


def load(name: str) -> Held:
    """Bundled, from the Hub or from a folder; what goes wrong is said in one sentence."""
    try:
        bundled = TEXT_MODELS.get(name) or VISION.get(name)
        if bundled:
            path = BUNDLED[name].path
            files = sizes.Weighed(path, Path(path), {})
            made = getattr(cm, bundled).from_pretrained(name)
        else:
            where = str(Path(name).expanduser()) if SETTINGS.local_paths else name
            files = sizes.fetch(name, where)
            made = _load_other(name, files)
        tokenizer = (
            AutoTokenizer.from_pretrained(files.where, **files.keywords)
            if hasattr(made.config, "vocab_size")
            else None
        )
        made.eval().to(zero.device())
        return Held(name, made, tokenizer, files, _rate(made, tokenizer))
    except cm.CtxmixError:
        raise
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError) as error:
        raise UnsupportedModelError(
            f"The model {name!r} could not be loaded: {first_line(error):.300}"
        ) from error


def _load_other(name: str, files: sizes.Weighed) -> Any:
    config = AutoConfig.from_pretrained(files.where, **files.keywords)
    sizes.check(name, files, config)
    written = (getattr(config, "architectures", None) or [""])[0]
    named = auto_class(written) if head_of(written) in _SHOWN else "AutoContextMixingModel"
    return getattr(cm, named).from_pretrained(files.where, **files.keywords)


def _rate(model: PreTrainedModel, tokenizer: Any) -> float:
    """Measured on a short text."""
    if tokenizer is None:
        return 5e9
    tokens = min(48, longest_input(model, tokenizer) or 48)
    ids = torch.full((1, tokens), 5, device=model.device)
    weights = sum(p.numel() for n, p in model.named_parameters() if "embed" not in n)
    times = []
    with torch.no_grad():
        for _ in range(4):
            start = time.perf_counter()
            model(ids)
            times.append(time.perf_counter() - start)
    return float(
        max(2e9, 2 * weights * tokens / max(1e-4, min(times)))
    )  # the best of four: the first one warms up


SHELF = Shelf(SETTINGS.models)
