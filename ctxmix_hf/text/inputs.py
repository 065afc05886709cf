"""Reads and checks what a model is called with, before anything runs."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ctxmix_hf.errors import InputError, InputTypeError, RecordError
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.unwrapping import base_model

MAIN_INPUTS = (
    "input_ids",
    "inputs_embeds",
    "pixel_values",
    "input_values",
    "input_features",
    "pixel_values_videos",
    "encoder_outputs",
    "bbox",
)


def main_input(base: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The tensor that holds the batch."""
    names = (getattr(base, "main_input_name", "input_ids"), *MAIN_INPUTS)
    candidates = [*args[:1], *(kwargs.get(name) for name in names), *kwargs.values()]
    found = next(
        (value for value in candidates if isinstance(value, Tensor) and value.dim() >= 2), None
    )
    if found is None:
        given = next((value for value in candidates if value is not None), None)
        what = "a text" if _is_text(given) else type(given).__name__
        raise InputTypeError(
            f"Expected tensors, got {what}: call model(**tokenizer(text, return_tensors='pt'), "
            "...) (or a processor for images and sound)."
        )
    named: Any = kwargs.get("input_ids")
    return _one_per_row(found) if found is named else found


def _one_per_row(values: Tensor) -> Tensor:
    """`[B * C, T]` of multiple choice's `[B, C, T]`: the encoder sees each choice as a sequence of its own."""
    return values.flatten(0, 1) if values.dim() == 3 else values


def batch_sizes(
    base: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, ...]:
    """The size of the main input's batch, then those of the other inputs (an image tower may read another number)."""
    sizes = [main_input(base, args, kwargs).shape[0]]
    sizes += [
        value.shape[0]
        for value in (*args, *kwargs.values())
        if isinstance(value, Tensor) and value.dim() >= 2
    ]
    return tuple(dict.fromkeys(sizes))


def reads_ids(base: PreTrainedModel, layer: str) -> bool:
    """Does the tower that holds this layer start at a table of token embeddings?"""
    parts = layer.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        tower = base.get_submodule(".".join(parts[:depth]))
        if isinstance(tower, PreTrainedModel):
            return "input_ids" in (getattr(tower, "main_input_name", ""),) or isinstance(
                tower.get_input_embeddings(), nn.Embedding
            )
    tower = base.get_submodule(parts[0])
    return not any(
        isinstance(module, nn.Conv2d | nn.Conv3d | nn.Conv1d) for module in tower.modules()
    )


def patch_numbers(output: Any, tokens: int) -> Tensor | None:
    """`[B, patches]`: which patch each token after the class token shows, where the model shuffled
    and dropped some (ViTMAE).
    """
    restore = getattr(output, "ids_restore", None)
    if not isinstance(restore, Tensor) or not 1 < tokens <= restore.shape[1] + 1:
        return None
    return restore.argsort(dim=1)[:, : tokens - 1]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list | tuple) and bool(value) and isinstance(value[0], str)
    )


def padding_mask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """`[B, T]` bool from the caller's attention mask, if it gave a plain one."""
    mask = kwargs.get("attention_mask")
    if mask is None and len(args) > 1 and isinstance(args[1], Tensor) and args[1].dim() == 2:
        mask = args[1]
    ids = kwargs.get("input_ids")
    if isinstance(mask, Tensor) and isinstance(ids, Tensor) and mask.shape == ids.shape:
        mask = _one_per_row(mask)
    return mask.detach() > 0 if isinstance(mask, Tensor) and mask.dim() == 2 else None


def check_call(
    base: PreTrainedModel,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    evaluates: nn.Module | None = None,
) -> None:
    """One clear sentence for each way a call can be wrong, before the forward pass. `evaluates` is a part of the model
    that is known not to be in train mode.
    """
    x = main_input(base, args, kwargs)
    if _trains(module, but=evaluates):
        training = next(name for name, part in module.named_modules() if _trains(part, alone=True))
        where = f"Its part {training} is" if training else "The model is"
        raise RecordError(
            f"{where} in train mode, where dropout changes every number: call model.eval() first."
        )
    if x.shape[0] == 0:
        raise InputError("The batch is empty.")
    if x.shape[1] == 0:
        raise InputError("The sequence is empty: there is no token to explain.")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise InputError("The inputs hold NaN or infinite numbers.")
    if not x.is_floating_point() and x.dim() == 2:
        _check_ids(base, x, padding_mask(args, kwargs))


def _trains(module: nn.Module, alone: bool = False, but: nn.Module | None = None) -> bool:
    """Is it in train mode, or (unless `alone`) a part of it outside `but`? Every recorded call asks, so no names are
    made.
    """
    parts, seen = [] if module is but else [module], {id(module), id(but)}
    for part in parts:
        # linear maps of torch.ao are made in train mode, which means nothing to them
        if part.training and not type(part).__module__.startswith("torch.ao."):
            return True
        if not alone:
            for child in part._modules.values():
                if child is not None and id(child) not in seen:
                    seen.add(id(child))
                    parts.append(child)
    return False


def _check_ids(base: PreTrainedModel, ids: Tensor, mask: Tensor | None) -> None:
    limit = position_limit(base)
    if limit is not None and ids.shape[1] > limit:
        raise InputError(
            f"The input has {ids.shape[1]} tokens, the model has {limit} positions: truncate "
            f"(tokenizer(..., truncation=True, max_length={limit})) or split the text into windows that overlap "
            f"(the same with return_overflowing_tokens=True, stride={limit // 4}, padding=True)."
        )
    if mask is not None and mask.shape == ids.shape and not bool(mask.any(dim=1).all()):
        raise InputError(
            "The attention mask of an example is all zero: there is no token to explain."
        )
    pad = getattr(base.config, "pad_token_id", None)
    special = (
        getattr(base.config, "eos_token_id", None),
        getattr(base.config, "bos_token_id", None),
    )
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
        if isinstance(module, nn.Embedding) and leaf in (
            "position_embeddings",
            "wpe",
            "embed_positions",
        ):
            offset = int(getattr(module, "offset", 0) or 0)
            if module.padding_idx is not None:  # RoBERTa counts from padding_idx + 1
                offset = module.padding_idx + 1
            return module.num_embeddings - offset
    return None


def with_decoder(base: PreTrainedModel, tensors: dict[str, Any]) -> dict[str, Any]:
    """The encoder is explained, but an encoder-decoder runs both halves: its decoder gets its start
    token where it got nothing.
    """
    taken = inspect.signature(base.forward).parameters
    if (
        not getattr(base.config, "is_encoder_decoder", False)
        or "decoder_input_ids" not in taken
        or "decoder_input_ids" in tensors
    ):
        return tensors
    if {"decoder_inputs_embeds", "labels"} & set(tensors) or (
        base.base_model is not base and base.get_output_embeddings() is None
    ):
        return tensors  # heads that are not language models feed their decoder themselves
    found = (
        getattr(holder, name, None)
        for holder in (getattr(base, "generation_config", None), base.config)
        for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    )
    start = next((value for value in found if isinstance(value, int)), 0)
    batch = next(len(value) for value in tensors.values() if isinstance(value, Tensor))
    return {**tensors, "decoder_input_ids": torch.full((batch, 1), start)}


UNLIMITED = 10**6  # what tokenizers that know no limit say is far above


def longest_input(model: Model, tokenizer: Tokenizer | None = None) -> int | None:
    """The most tokens a model takes: its position table, without the places that padding takes
    (RoBERTa), or where it has none what its config says; and what its tokenizer says. None: no limit is known.
    """
    base = base_model(model)
    table = position_limit(base)
    places = getattr(base.config, "max_position_embeddings", None) if table is None else table
    says = getattr(tokenizer, "model_max_length", None)
    known = [int(n) for n in (places, says) if isinstance(n, int | float) and 0 < n < UNLIMITED]
    return min(known, default=None)
