"""The list of everything that can be asked for, read off the registries."""

from __future__ import annotations

from dataclasses import fields

from ctxmix_hf.attribution import ATTRIBUTIONS
from ctxmix_hf.recipes import MethodInfo, method_infos


def list_methods(kind: str | None = None) -> list[MethodInfo]:
    """Every method with kind ("layer", "input", "attribution"), paper, equation and cost; only one kind if asked.

    Args:
        kind: `"layer"`, `"input"` or `"attribution"`; None: all.

    Returns:
        One `MethodInfo` per method, in the order of the README's table.
    """
    infos = method_infos()
    for name in ATTRIBUTIONS:
        cls = ATTRIBUTIONS.get(name)
        options = {f.name: f.default for f in fields(cls)}
        infos.append(
            MethodInfo(name=name, kind="attribution", options=options, **cls.about.__dict__)
        )
    return [info for info in infos if kind in (None, info.kind)]
