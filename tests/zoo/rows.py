"""Short names for the kinds of row in the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import inputs as I
from .spec import Spec


def _kind(
    modality: str, inputs: Any, padded: bool = False, part: Any = None
) -> Callable[..., Spec]:
    """A maker of rows: `make(model_type, *, cls, inputs, part, padded, since, **config)`."""
    usual = {"inputs": inputs, "padded": padded, "part": part}

    def make(model_type: str, *, cls: str | None = None, since: str = "4.48", **given: Any) -> Spec:
        fixed = {key: given.pop(key, value) for key, value in usual.items()}
        return Spec(model_type, modality, config=given, cls=cls, since=since, **fixed)

    return make


def encoder(model: Any) -> Any:
    """The encoder half of a sequence-to-sequence model."""
    return model.get_encoder()


text = _kind("text", I.text, padded=True)
seq2seq = _kind("text", I.text, padded=True, part=encoder)
decoder = _kind("decoder", I.text, padded=True)
vision = _kind("vision", I.pixels)
audio = _kind("audio", I.wave)


def plain(kind: Callable[..., Spec], names: str, since: str = "4.48") -> dict[str, Spec]:
    """Rows that need nothing but a name, or `name=Class` where AutoModel does not know the class."""
    pairs = (name.partition("=") for name in names.split())
    return {name: kind(name, cls=cls or None, since=since) for name, _, cls in pairs}
