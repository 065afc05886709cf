"""The transformers model inside what people hold: compiled, PEFT's, sentence-transformers'. The one place that knows.

transformers is imported when a model is there: a store opens without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from ctxmix_hf.errors import NotATransformersModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def unwrapped(model: nn.Module) -> Any:
    """What holds the instrumentation: a compiled module's original, the transformers model inside
    one of sentence-transformers.
    """
    from transformers import PreTrainedModel

    model = getattr(model, "_orig_mod", model)
    held = (
        None if isinstance(model, PreTrainedModel) else getattr(model, "transformers_model", None)
    )
    return held if isinstance(held, PreTrainedModel) else model


def base_model(model: nn.Module) -> PreTrainedModel:
    """The transformers model inside what the user gave: itself, a PEFT wrapper's base, a compiled module's original."""
    from transformers import PreTrainedModel

    model = unwrapped(model)
    unwrap = getattr(model, "get_base_model", None)
    base = unwrap() if callable(unwrap) and not isinstance(model, PreTrainedModel) else model
    if not isinstance(base, PreTrainedModel):
        raise NotATransformersModelError(
            f"Expected a Hugging Face transformers model, got {type(model).__name__}: load it with "
            "AutoModel.from_pretrained(...) or ctxmix_hf.AutoContextMixingModel.from_pretrained(...)."
        )
    return base


def encoder_of(base: PreTrainedModel) -> nn.Module:
    """Where the layers are looked for: the encoder of an encoder-decoder, else the whole model."""
    if getattr(base.config, "is_encoder_decoder", False):
        holders: tuple[Any, ...] = (base, base.base_model)
        encoder = next(
            (holder.get_encoder() for holder in holders if hasattr(holder, "get_encoder")), None
        )
        if isinstance(encoder, nn.Module):
            return encoder
    return base
