"""Reads and checks what a model is called with, before anything runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ctxmix_hf.errors import InputError, InputTypeError, RecordError

MAIN_INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features", "pixel_values_videos",
               "encoder_outputs", "bbox")  # fmt: skip


def main_input(base: PreTrainedModel, args: Any, kwargs: Any) -> Tensor:
    """The tensor that holds the batch."""
    names = (getattr(base, "main_input_name", "input_ids"), *MAIN_INPUTS)
    candidates = [*args[:1], *(kwargs.get(name) for name in names), *kwargs.values()]
    found = next((value for value in candidates if isinstance(value, Tensor) and value.dim() >= 2), None)
    if found is None:
        given = next((value for value in candidates if value is not None), None)
        what = "a text" if _is_text(given) else type(given).__name__
        raise InputTypeError(
            f"Expected tensors, got {what}: call model(**tokenizer(text, return_tensors='pt'), ...) (or a processor for images and sound)."
        )
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list | tuple) and bool(value) and isinstance(value[0], str))


def padding_mask(args: Any, kwargs: Any) -> Tensor | None:
    """`[B, T]` bool from the caller's attention mask, if it gave a plain one."""
    mask = kwargs.get("attention_mask")
    if mask is None and len(args) > 1 and isinstance(args[1], Tensor) and args[1].dim() == 2:
        mask = args[1]
    return mask.detach() > 0 if isinstance(mask, Tensor) and mask.dim() == 2 else None


def check_call(base: PreTrainedModel, module: nn.Module, args: Any, kwargs: Any) -> None:
    """One clear sentence for each way a call can be wrong, before the forward pass."""
    x = main_input(base, args, kwargs)
    if module.training:
        raise RecordError("The model is in train mode, where dropout changes every number: call model.eval() first.")
    if x.shape[0] == 0:
        raise InputError("The batch is empty.")
    if x.shape[1] == 0:
        raise InputError("The sequence is empty: there is no token to explain.")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise InputError("The inputs hold NaN or infinite numbers.")
    if not x.is_floating_point() and x.dim() == 2:
        _check_ids(base, x, padding_mask(args, kwargs))


def _check_ids(base: PreTrainedModel, ids: Tensor, mask: Tensor | None) -> None:
    limit = position_limit(base)
    if limit is not None and ids.shape[1] > limit:
        raise InputError(
            f"The input has {ids.shape[1]} tokens, the model has {limit} positions: truncate "
            f"(tokenizer(..., truncation=True, max_length={limit})) or split the text."
        )
    if mask is not None and mask.shape == ids.shape and not bool(mask.any(dim=1).all()):
        raise InputError("The attention mask of an example is all zero: there is no token to explain.")
    pad = getattr(base.config, "pad_token_id", None)
    special = (getattr(base.config, "eos_token_id", None), getattr(base.config, "bos_token_id", None))
    padded = mask is None and isinstance(pad, int) and pad not in special and ids.shape[1] > 1
    if padded and pad in torch.cat([ids[:, -1], ids[:, 0]]).tolist():
        raise InputError(
            "The batch holds padding but no attention_mask was passed, so the model would mix padding into every "
            "token: pass the tokenizer's attention_mask too."
        )


def position_limit(base: PreTrainedModel) -> int | None:
    """How many tokens the learned position table takes; None where positions are relative or rotary."""
    for name, module in base.named_modules():
        leaf = name.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and leaf in ("position_embeddings", "wpe", "embed_positions"):
            offset = int(getattr(module, "offset", 0) or 0)
            if module.padding_idx is not None:  # RoBERTa counts from padding_idx + 1
                offset = module.padding_idx + 1
            return module.num_embeddings - offset
    return None
