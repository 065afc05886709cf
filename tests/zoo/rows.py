"""Short names for the kinds of row in the tables."""

from __future__ import annotations

from typing import Any

from . import inputs as I
from .spec import Spec


def text(
    model_type: str, *, inputs=I.text, cls: str | None = None, part=None, padded=True, **config: Any
) -> Spec:
    """A bidirectional text encoder."""
    return Spec(model_type, "text", inputs, config, cls, part, padded)


def seq2seq(model_type: str, *, inputs=I.text, **config: Any) -> Spec:
    """The encoder of a sequence-to-sequence text model."""
    return Spec(model_type, "text", inputs, config, part=encoder, padded=True)


def decoder(
    model_type: str, *, inputs=I.text, cls: str | None = None, part=None, padded=True, **config: Any
) -> Spec:
    """A causal language model without its head."""
    return Spec(model_type, "decoder", inputs, config, cls, part, padded)


def vision(model_type: str, *, inputs=I.pixels, cls: str | None = None, part=None, **config: Any) -> Spec:
    """An image or video encoder."""
    return Spec(model_type, "vision", inputs, config, cls, part)


def audio(model_type: str, *, inputs=I.wave, cls: str | None = None, part=None, **config: Any) -> Spec:
    """A speech or sound encoder."""
    return Spec(model_type, "audio", inputs, config, cls, part)


def plain(kind: Any, names: str) -> dict[str, Spec]:
    """Rows that need nothing but a name, or `name=Class` where AutoModel does not know the class."""
    pairs = (name.partition("=") for name in names.split())
    return {name: kind(name, cls=cls) if cls else kind(name) for name, _, cls in pairs}


def encoder(model: Any) -> Any:
    """The encoder half of a sequence-to-sequence model."""
    return model.get_encoder()
