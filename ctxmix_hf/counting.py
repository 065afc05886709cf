"""Which layer, and from where: the one place where a layer as people, files and links count it meets a tensor's axis.

Layers count from 1 to L, and -1 is the last; 0 is the embedding output e^0, which has no map.
Tensor axes, `out.decomposition[i]` and `LayerRecord.index` count from 0, as any Python sequence
does.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from ctxmix_hf.errors import InputError, InputTypeError, OptionError

SCOPES = ("input", "layer")


def layer_number(index: int) -> int:
    """The number people know a layer by, from its place on a tensor's axis."""
    return index + 1


def layer_index(layer: object, numbers: Sequence[int]) -> int:
    """The place on the axis of `layer`, one of `numbers` (1 to L, or what a part of a map holds) or -1 for the last."""
    asked = _whole(layer)
    if not numbers:
        raise InputError("This map is empty: it has no layers.")
    if asked < 0 and -asked <= len(numbers):
        return len(numbers) + asked
    if asked in numbers:
        return numbers.index(asked)
    held = (
        f"layers count from {numbers[0]} to {numbers[-1]}"
        if len(numbers) > 1
        else f"this map holds only layer {numbers[0]}"
    )
    why = (
        "; 0 is the embedding output e^0: every token there is its own, and no map belongs to it"
        if asked == 0
        else ""
    )
    raise InputError(f"There is no layer {asked}: {held} (-1 is the last){why}.")


def state_index(layer: object, depth: int) -> int:
    """The place of a hidden state e^0 ... e^L: 0 is the embedding output, `layer` the output of
    that layer, -1 the last.
    """
    asked = _whole(layer)
    if not -depth <= asked <= depth:
        raise InputError(
            f"There is no layer {asked}: gradients are taken at e^0 (the embedding output) ... "
            f"e^{depth} (-1 is the last)."
        )
    return asked if asked >= 0 else depth + 1 + asked


def _whole(layer: object) -> int:
    try:
        if isinstance(layer, bool):
            raise TypeError
        return operator.index(layer)  # type: ignore[arg-type]
    except TypeError:
        raise InputTypeError(
            f"A layer is a whole number, 1 for the first and -1 for the last; got {layer!r}."
        ) from None


def check_scope(scope: object) -> str:
    """`"input"` or `"layer"`, nothing else: a row from the input and one within the layer are different numbers."""
    if not isinstance(scope, str) or scope not in SCOPES:
        raise OptionError(
            "scope must be 'input' (from the input up to the layer) or 'layer' (within the layer), "
            f"got {scope!r:.60}."
        )
    return scope


def in_words(number: int, scope: str, total: int | None = None) -> str:
    """As headers and titles say it: `layer 3, from the input`, `within layer 3`, or `layer 3 of 6, ...`."""
    named = f"layer {number}" if total is None else f"layer {number} of {total}"
    return f"{named}, from the input" if scope == "input" else f"within {named}"
