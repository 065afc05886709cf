"""What the browser gets: tokens, words and all layers at once, as half floats in base64.

A rollout is multiplied out in the browser, so a map of 64 tokens and 6 layers travels in 66 kB. Values are divided by
their layer's largest one before they are halved, which keeps three to four digits whatever the method's unit is.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.errors import InputError, OptionError, UnknownNameError
from ctxmix_hf.maps import ContextMixingMap
from ctxmix_hf.tokens import Tokens
from ctxmix_hf.viz.colours import CANVAS_MAPS

VERSION = 1
OTHERS = ("layer", "specials", "diagonal", "k", "pin")
MAX_TOKENS = 1024  # beyond this a browser cannot draw a cell per value
VIEWS = {
    "view": ("map", "layers", "paths", "image"), "scope": ("input", "layer"), "unit": ("word", "piece"),
    "norm": ("none", "row", "max"), "cmap": CANVAS_MAPS,
}  # fmt: skip


def check_not_empty(m: ContextMixingMap) -> None:
    if len(m) == 0 or m.size == 0 or m.depth == 0 or not bool(m.mask.any()):
        raise InputError("This map is empty: it has no tokens or no layers, so there is nothing to draw.")


def check_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Display options as the widget takes them; a wrong one is named, with what exists."""
    for key, value in state.items():
        if key in VIEWS and value not in VIEWS[key]:
            raise UnknownNameError.among("colour map" if key == "cmap" else key, value, VIEWS[key])
        if key not in VIEWS and key not in OTHERS:
            raise OptionError(f"Display option {key!r} does not exist. Choose from: {', '.join([*VIEWS, *OTHERS])}.")
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
    groups, merged = tokens.groups(), tokens.merged()
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
        "special": [bool(flag) for flag in (tokens.special or [False] * len(tokens))],
        "text": tokens.text,
    }


def visible(piece: str) -> str:
    """Control characters shown as symbols, so that a label never disappears or moves the line."""
    shown = "".join(chr(0x2400 + ord(c)) if ord(c) < 32 else "␡" if c == "\x7f" else c for c in piece)
    return shown or "∅"


def payload(m: ContextMixingMap, example: int = 0, *, title: str | None = None, **state: Any) -> dict[str, Any]:
    """Everything the widget needs for one example of a map; `state` are its first display options."""
    check_not_empty(m)
    one = m[example]
    if one.size > MAX_TOKENS:
        raise InputError(f"{one.size} tokens are too many for the canvas (at most {MAX_TOKENS}): use m.plot() or cut the text.")
    maps: dict[str, Any] = {}
    if one.layers is not None:
        maps["layer"] = block(one.layers[0])
    rolled = one.layers is not None and one.aggregation == "rollout" and one.residual is None
    if rolled and one.meta.get("unit") != "word":
        maps["input"] = {"shares": bool(one.meta.get("rolls_out_shares")), "label": "from the input (rollout)"}
    else:
        named = f"from the input ({one.aggregation})" if one.layers is not None else "from the input"
        maps["input"] = {**block(one.input[0]), "label": named}
    return {
        "version": VERSION, "method": m.method, "aggregation": m.aggregation, "depth": m.depth, "maps": maps, "signed": False,
        "title": title or heading(m), "pin": str(default_target(one.tokens[0])), "notes": list(standard_error_note(one)),
        "state": check_state(state), **token_fields(one.tokens[0]),
    }  # fmt: skip


def standard_error_note(m: ContextMixingMap) -> list[str]:
    return ["Values are an estimate from random probes."] if m.meta.get("options", {}).get("sketch") else []


def heading(m: ContextMixingMap) -> str:
    """`value_zeroing · agreement`."""
    return " · ".join(filter(None, [m.method, model_name(m.meta)]))


def model_name(meta: Mapping[str, Any]) -> str:
    name = str((meta.get("origin") or {}).get("model") or "")
    return name.rstrip("/").rsplit("/", 1)[-1] if name.startswith(("/", ".")) or name.count("/") > 1 else name


def default_target(tokens: Tokens) -> int:
    """The masked word where there is one, else the first token ([CLS])."""
    for name in ("[MASK]", "<mask>"):
        if name in tokens.pieces:
            return tokens.pieces.index(name)
    return 0


def finite(values: Tensor) -> Tensor:
    return torch.nan_to_num(values.detach().cpu().double())
