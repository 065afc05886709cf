"""The options of methods as the page writes them: `distance=euclidean,per_head=1`."""

from __future__ import annotations

from typing import Any

import ctxmix_hf as cm
from ctxmix_hf.demo.limits import info_of
from ctxmix_hf.errors import OptionError
from ctxmix_hf.viz.names import CHOICES, option_name

RULE_NAMES = {"frozen": "attention frozen", "through": "through attention"}  # of the ledger
RULES = tuple(RULE_NAMES)
UNSEEN = ("targets", "seed", "shortcut", "closed_form")  # they change how it is computed, not what


def _kind(value: Any) -> str:
    return type(value).__name__ if isinstance(value, bool | int | float) else "str"


def settings(method: str) -> list[dict[str, Any]]:
    """What can be set of a method, for the page's controls: name, kind, start, choices, and people's
    words for them.
    """
    info = info_of(method)
    return [
        {
            "name": name,
            "kind": _kind(value),
            "start": str(int(value)) if isinstance(value, bool) else str(value),
            **dict(zip(("label", "help"), option_name(name), strict=True)),
            **(
                {
                    "choices": info.choices[name],
                    "labels": [CHOICES.get(name, {}).get(c, str(c)) for c in info.choices[name]],
                }
                if name in info.choices
                else {}
            ),
        }
        for name, value in info.options.items()
        if name not in UNSEEN
    ]


def read(method: str, text: str = "") -> dict[str, Any]:
    """The options that are written there, each of the kind its default is of."""
    known, found = info_of(method).options, {}
    for part in filter(None, map(str.strip, str(text or "").split(","))):
        name, _, given = (piece.strip() for piece in part.partition("="))
        if name not in known or name in UNSEEN:
            shown = ", ".join(row["name"] for row in settings(method)) or "none"
            raise OptionError(
                f"Method {method!r} has no option {name!r:.40} on this page. Its options: {shown}."
            )
        found[name] = _value(method, name, known[name], given)
    return found


def _value(method: str, name: str, start: Any, given: str) -> Any:
    try:
        if isinstance(start, bool):
            return {"1": True, "0": False, "true": True, "false": False}[given.lower()]
        return type(start)(given)
    except (KeyError, ValueError) as error:
        kind = "0 or 1" if isinstance(start, bool) else f"a number like {start}"
        raise OptionError(f"{method}: {name} must be {kind}, got {given!r:.40}.") from error


def chosen(method: str, text: str = "") -> Any:
    """The method with those options, as `explain` takes it."""
    found = read(method, text)
    return cm.method(method, **found) if found else method


def code(method: str, text: str = "") -> str:
    """The same as Python."""
    found = read(method, text)
    if not found:
        return repr(method)
    return (
        f"cm.method({method!r}, {', '.join(f'{name}={value!r}' for name, value in found.items())})"
    )
