"""What makes two entries the same: hashes of weights, tokenizers and inputs, and where a model came from.

Models and tokenizers are only looked at, never imported: a store opens without transformers.
"""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from torch import Tensor

from ctxmix_hf.hub.folders import digest, file_digest
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.unwrapping import base_model

_HEADS = ("pooler", "classifier", "cls", "lm_head")  # above the encoder: they change no map


def _tensors(model: Model) -> list[tuple[str, Tensor]]:
    """The encoder's parameters and buffers by name; the same for every head put on it."""
    named = sorted(base_model(model).base_model.state_dict().items())
    return [
        (name, t) for name, t in named if isinstance(t, Tensor) and name.split(".")[0] not in _HEADS
    ]


def weights_hash(model: Model) -> str:
    """sha256 of the encoder as it is in memory: a fine-tuned or edited model is another one,
    whatever file it came from.
    """
    made, seen = hashlib.sha256(), set()
    for name, tensor in _tensors(model):
        place = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() and place in seen:
            continue  # tied
        seen.add(place)
        made.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        made.update(tensor_bytes(tensor))
    return made.hexdigest()


def tensor_bytes(tensor: Tensor) -> Any:
    """Its numbers as they lie in memory, for a checksum; nothing is copied where they lie in one piece."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


def quick_mark(model: Model) -> tuple[Any, ...]:
    """Changes whenever training or an edit touched the weights: versions and a sample of each tensor, not all of it."""
    marks: list[Any] = []
    for name, tensor in _tensors(model):
        flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach().flatten()
        sample = flat[:: max(1, flat.numel() // 64)].double().sum().item() if flat.numel() else 0.0
        marks.append((name, tensor.data_ptr(), tensor._version, sample))
    return tuple(marks)


def tokenizer_hash(tokenizer: Tokenizer | None) -> str | None:
    """sha256 of what the tokenizer does to text; truncation and padding, which calls change, are left out."""
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        body = {
            k: v
            for k, v in json.loads(backend.to_str()).items()
            if k not in ("truncation", "padding")
        }
        return digest(body)
    vocabulary = sorted(tokenizer.get_vocab().items())
    special = {key: str(value) for key, value in tokenizer.special_tokens_map.items()}
    return digest([type(tokenizer).__name__, vocabulary, special])


def input_key(ids: Any, types: Any = None, start: int = 0) -> str:
    """32 hex digits for one example as the model saw it: token ids, segment ids, and how far
    padding on the left moved them.
    """
    segments = [int(t) for t in types] if types is not None and any(int(t) for t in types) else None
    return digest([[int(i) for i in ids], segments, start])[:32]


def batch_keys(inputs: dict[str, Any], mask: Tensor) -> list[str | None]:
    """A key per example of a model call; None where the call holds inputs that a key does not cover."""
    ids, types = inputs.get("input_ids"), inputs.get("token_type_ids")
    known = {"input_ids", "token_type_ids", "attention_mask", "labels", "return_dict"}
    others = [
        k
        for k, v in inputs.items()
        if k not in known and v is not None and not (k.startswith("output_") or v is False)
    ]
    if not isinstance(ids, Tensor) or others or ids.shape != mask.shape:
        return [None] * len(mask)
    keys: list[str | None] = []
    for b, row in enumerate(mask.cpu()):
        real = row.nonzero().squeeze(-1)
        solid = len(real) > 0 and int(real[-1]) - int(real[0]) + 1 == len(real)
        segments = types[b].cpu()[real].tolist() if isinstance(types, Tensor) else None
        keys.append(
            input_key(ids[b].cpu()[real].tolist(), segments, int(real[0])) if solid else None
        )
    return keys


def model_identity(model: Model) -> dict[str, Any]:
    """What of a model changes the numbers."""
    base = base_model(model)
    dtype = str(getattr(base, "dtype", torch.float32)).removeprefix("torch.")
    return {"weights": weights_hash(base), "dtype": dtype, "model_type": base.config.model_type}


def model_origin(
    model: Model, model_id: str | None = None, revision: str | None = None
) -> dict[str, Any]:
    """Where a model came from, for people: id, commit, hashes of its files, versions. Folders are
    named, their path is not told.
    """
    from ctxmix_hf.instrumentation.session import (
        instrumentation_of,  # a stored map opens without transformers
    )

    base = base_model(model)
    source = model_id or getattr(base.config, "_name_or_path", "") or type(base).__name__
    folder = Path(source) if model_id is None and Path(source).is_dir() else None
    loaded = getattr(instrumentation_of(model), "revision", None)  # noted by our Auto classes
    found = (
        revision
        or loaded
        or getattr(base.config, "_commit_hash", None)
        or (None if folder else cached_revision(source))
    )
    return {
        "model_id": folder.name if folder else source,
        "revision": found,
        "local": folder is not None,
        "files": {path.name: file_digest(path) for path in sorted(folder.glob("*.safetensors"))}
        if folder
        else {},
        "model_class": type(base).__name__,
        "attention": getattr(base.config, "_attn_implementation", None),
        "versions": {name: _version(name) for name in ("ctxmix-hf", "torch", "transformers")},
    }


def cached_revision(repo_id: str, revision: str = "main", cache_dir: Any = None) -> str | None:
    """The commit a name stands for in the local cache, where `from_pretrained` just put it. No network."""
    try:
        path = try_to_load_from_cache(
            repo_id, "config.json", cache_dir=cache_dir, revision=revision
        )
    except HFValidationError:
        return None
    sha = Path(path).parent.name if isinstance(path, str) else ""
    return sha if is_commit(sha) else None


def is_commit(text: Any) -> bool:
    return isinstance(text, str) and len(text) == 40 and not set(text) - set("0123456789abcdef")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
