"""How a sentence encoder makes one vector of its tokens: read from the files that
sentence-transformers leaves beside the weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from torch import Tensor

MODES = ("mean", "cls", "last", "max")
_NAMES = {
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean",
    "cls_token": "cls",
    "lasttoken": "last",
    "max_tokens": "max",
    "mean_sqrt_len": "mean",
    "weightedmean_tokens": "weightedmean",
}
_HARMLESS = (
    "Transformer",
    "Pooling",
    "Normalize",
)  # nothing that changes a cosine once the tokens are pooled


@dataclass(frozen=True)
class Pooling:
    """What the files say: `mode` is one of MODES, or another name that no row of a map stands for."""

    mode: str
    further: tuple[str, ...] = ()  # modules behind the pooling
    prompt: str = ""  # put before every text
    limit: int | None = None  # tokens the encoder reads of a text
    lower: bool = False  # texts are lowercased first


def read_pooling(source: str | None, local: bool = True) -> Pooling | None:
    """The pooling of the model in a folder or (`local=False` also looks on) the Hub; None where no file tells."""
    read = model_files(source, local)
    modules = read("modules.json")
    if not isinstance(modules, list):
        return None
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if "Pooling" not in kinds:
        return None
    body = read(f"{modules[kinds.index('Pooling')].get('path') or '1_Pooling'}/config.json") or {}
    asked, text = (
        read("config_sentence_transformers.json") or {},
        read("sentence_bert_config.json") or {},
    )
    prompt = (asked.get("prompts") or {}).get(asked.get("default_prompt_name")) or ""
    further = tuple(kind for kind in kinds if kind not in _HARMLESS)
    return Pooling(
        _mode(body),
        further,
        str(prompt),
        text.get("max_seq_length"),
        bool(text.get("do_lower_case")),
    )


def _mode(body: dict[str, Any]) -> str:
    named = body.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or [])
    modes += [
        key.removeprefix("pooling_mode_")
        for key, on in body.items()
        if key.startswith("pooling_mode_") and on is True
    ]
    return short_mode(modes)


def short_mode(modes: list[str]) -> str:
    """Our name for sentence-transformers' pooling modes."""
    return " and ".join(dict.fromkeys(_NAMES.get(mode, mode) for mode in modes)) or "mean"


def model_files(source: str | None, local: bool) -> Callable[[str], Any]:
    """Reads a JSON file beside the weights, by name; None where there is none."""

    def read(name: str) -> Any:
        if not source:
            return None
        try:
            folder = Path(source)
            path = (
                folder / name
                if folder.is_dir()
                else Path(hf_hub_download(source, name, local_files_only=local))
            )
            return json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):  # not there, no network, no valid name, no JSON
            return None

    return read


def pool(hidden: Tensor, mode: str, class_token: int) -> tuple[Tensor, Tensor]:
    """`(vector [D], parts [T, D])`: the pooled vector of one text, and each token's part of it; the
    parts sum to the vector.
    """
    weights = torch.zeros_like(hidden)
    if mode == "mean":
        weights += 1 / len(hidden)
    elif mode == "max":
        weights.scatter_(
            0, hidden.argmax(dim=0, keepdim=True), 1.0
        )  # each coordinate is some token's
    else:
        weights[class_token if mode == "cls" else -1] = 1
    parts = hidden * weights
    return parts.sum(dim=0), parts


def pooling_weights(mode: str, hidden: Tensor, mask: Tensor) -> Tensor | None:
    """`[B, T]`, rows summing to 1: how much each token of `hidden` `[B, T, D]` counts in the pooled
    vector; None for other modes.

    Max pooling counts the coordinates a token wins; the weighted mean counts tokens by their place.
    """
    real = mask.to(hidden.device)
    if mode == "max":
        winners = hidden.masked_fill(~real[..., None], -torch.inf).argmax(dim=1)
        return (
            torch.zeros_like(hidden[..., 0]).scatter_add_(1, winners, torch.ones_like(hidden[:, 0]))
            / hidden.shape[-1]
        )
    if mode == "weightedmean":
        places = real.cumsum(dim=1).to(hidden.dtype) * real
        return places / places.sum(dim=1, keepdim=True)
    return None


def pooled_vector(hidden: Tensor, mask: Tensor, mode: str) -> Tensor:
    """`[B, D]`: the tokens of `hidden` `[B, T, D]` pooled as sentence encoders do."""
    mask = mask.to(hidden.device)
    rows = torch.arange(len(hidden), device=hidden.device)
    if mode == "mean":
        return (hidden * mask[..., None].to(hidden.dtype)).sum(dim=1) / mask.sum(
            dim=1, keepdim=True
        ).to(hidden.dtype)
    if mode == "max":
        return hidden.masked_fill(~mask[..., None], torch.finfo(hidden.dtype).min).amax(dim=1)
    first = mask.long().argmax(dim=1)
    last = mask.shape[1] - 1 - mask.flip(1).long().argmax(dim=1)
    return hidden[rows, first if mode == "cls" else last]
