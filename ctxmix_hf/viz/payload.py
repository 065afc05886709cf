"""What the browser gets: tokens, words and all layers at once, as half floats in base64.

A rollout is multiplied out in the browser, so a map of 64 tokens and 6 layers travels in 66 kB. Values are divided by
their layer's largest one before they are halved, which keeps three to four digits whatever the method's unit is.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.counting import check_scope, in_words, layer_index
from ctxmix_hf.errors import InputError, OptionError, UnknownNameError
from ctxmix_hf.results.maps import ContextMixingMap, heading, model_name
from ctxmix_hf.text.targets import first_shown
from ctxmix_hf.text.tokens import Tokens
from ctxmix_hf.viz.colours import CANVAS_MAPS
from ctxmix_hf.viz.names import people_name

VERSION = 2  # 1: `state.layer` counted from 0, and there were no `layers`
OTHERS = ("layer", "specials", "diagonal", "k", "pin", "zoom", "even")
MAX_TOKENS = 1024  # beyond this a browser cannot draw a cell per value
VIEWS = {
    "view": ("map", "layers", "paths", "image", "heads"),
    "scope": ("input", "layer"),
    "unit": ("word", "piece"),
    "norm": ("none", "row", "max"),
    "range": ("all", "layer"),
    "cmap": CANVAS_MAPS,
}


def check_not_empty(m: ContextMixingMap) -> None:
    if len(m) == 0 or m.size == 0 or m.depth == 0 or not bool(m.mask.any()):
        raise InputError(
            "This map is empty: it has no tokens or no layers, so there is nothing to draw."
        )


def check_state(
    state: Mapping[str, Any], numbers: Sequence[int], scopes: Sequence[str]
) -> dict[str, Any]:
    """Display options as the widget takes them; a wrong one is named, with what exists."""
    if "layer" in state:
        state = {**state, "layer": numbers[layer_index(state["layer"], numbers)]}
    if check_scope(state.get("scope", "input")) not in scopes:
        raise OptionError("There are no per-layer maps: use scope='input'.")
    for key, value in state.items():
        if key in VIEWS and value not in VIEWS[key]:
            raise UnknownNameError.among("colour map" if key == "cmap" else key, value, VIEWS[key])
        if key not in VIEWS and key not in OTHERS:
            raise OptionError(
                f"There is no display option {key!r}. Choose from: {', '.join([*VIEWS, *OTHERS])}."
            )
    return {key: int(value) if isinstance(value, bool) else value for key, value in state.items()}


def block(values: Tensor) -> dict[str, Any]:
    """`[L, T, T]` as scaled half floats."""
    array = np.nan_to_num(values.detach().cpu().float().numpy())
    scale = np.abs(array).max(axis=(1, 2))
    scale[scale == 0] = 1
    halves = (array / scale[:, None, None]).astype("<f2")
    return {"data": base64.b64encode(halves.tobytes()).decode("ascii"), "scale": scale.tolist()}


def token_fields(tokens: Tokens) -> dict[str, Any]:
    """Labels of pieces and words, and how they belong together."""
    groups, merged, unknown = tokens.groups(), tokens.merged(), tokens.unknowns()
    special = merged.special or tuple(False for _ in groups)
    word_of: list[int | None] = [None] * len(tokens)
    for w, group in enumerate(groups):
        for place in group:
            word_of[place] = None if special[w] else w
    return {
        "tokens": [visible(piece) for piece in tokens.shown()],
        "words": [visible(piece) for piece in merged.shown()],
        "groups": groups,
        "word_of": word_of,
        "special": [
            bool(flag) and not lost
            for flag, lost in zip(tokens.special or [False] * len(tokens), unknown, strict=True)
        ],
        "unknown": unknown,
        "text": tokens.text,
    }


def visible(piece: str) -> str:
    """Control characters shown as symbols, so that a label never disappears or moves the line."""
    shown = "".join(
        chr(0x2400 + ord(c)) if ord(c) < 32 else "␡" if c == "\x7f" else c for c in piece
    )
    return shown or "∅"


def payload(
    m: ContextMixingMap, example: int = 0, *, title: str | None = None, **state: Any
) -> dict[str, Any]:
    """Everything the widget needs for one example of a map; `state` are its first display options."""
    check_not_empty(m)
    one = m[example]
    if one.size > MAX_TOKENS:
        raise InputError(
            f"{one.size} tokens are too many for the canvas (at most {MAX_TOKENS}): use m.plot() or cut the text."
        )
    maps: dict[str, Any] = {}
    if one.layers is not None:
        maps["layer"] = block(one.layers[0])
    if _rolls_out(one):
        maps["input"] = {
            "shares": bool(one.meta.get("rolls_out_shares")),
            "label": "from the input (rollout)",
        }
    else:
        joined = (
            f"from the input ({one.aggregation})" if one.layers is not None else "from the input"
        )
        named = joined if one.meant("input") == "input" else "within the layer (not joined)"
        maps["input"] = {**block(one.input[0]), "label": named}
    return {
        "version": VERSION,
        "method": m.method,
        "name": people_name(m.method),
        "model": model_name(m.meta),
        "aggregation": m.aggregation,
        "depth": m.depth,
        "layers": list(m.layer_numbers),
        "maps": maps,
        "signed": False,
        "title": title or heading(m),
        "pin": str(first_shown(one.tokens[0], bool(one.meta.get("causal")))),
        "notes": [note for note in [estimate_note(m.meta, example)] if note],
        "state": check_state(state, m.layer_numbers, list(maps)),
        **({"heads": _heads(one.heads[0])} if one.heads is not None else {}),
        **token_fields(one.tokens[0]),
    }


def _heads(values: Tensor) -> dict[str, Any]:
    """`[L, H, T, T]`, layer by layer: what each head did within its layer."""
    return {"count": values.shape[1], **block(values.flatten(0, 1))}


def _rolls_out(one: ContextMixingMap) -> bool:
    """Is the input map the product of the layer maps, so that the browser can make it? Not of
    words, some tokens or one layer.
    """
    if one.layers is None or one.aggregation != "rollout" or one.residual is not None:
        return False
    return one.given_input is None or torch.allclose(
        one.aggregate("rollout"), one.given_input, rtol=1e-4, atol=1e-6
    )


def estimate_note(meta: Mapping[str, Any], example: int) -> str:
    """Of values that random probes estimated, how far they may be from the exact ones; else nothing."""
    probes = meta.get("options", {}).get("sketch")
    if not probes:
        return ""
    error = meta.get("notes", {}).get("standard_error")
    said = f"Values are an estimate from {probes} random probes"
    if error is None:
        return f"{said}."
    found = error[example]
    found = found[found > 0] if bool((found > 0).any()) else found.flatten()[:1]
    return f"{said}: standard error {found.mean():.2g} on average, {found.max():.2g} at most."


def row_place(meta: Mapping[str, Any], before: str = ", ") -> str:
    """Which row of a map an attribution is; of scores for a class, where their gradients were taken if not at e^0."""
    if "scope" in meta:
        return (
            before
            + in_words(meta["layer"], meta["scope"])
            + (f" ({meta['part']})" if meta.get("part") else "")
        )
    return f"{before}at e^{meta['layer']}" if "class_index" in meta and meta.get("layer") else ""


def finite(values: Tensor) -> Tensor:
    return torch.nan_to_num(values.detach().cpu().double())
