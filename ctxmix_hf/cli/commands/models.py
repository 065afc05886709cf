"""`ctxmix models`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ctxmix_hf.architectures import supported_architectures
from ctxmix_hf.cli.console import Console, table
from ctxmix_hf.errors import UnknownNameError

IN_THE_BOX = ("ctxmix/agreement", "ctxmix/sentiment", "ctxmix/digits")


def run(args: Any, console: Console) -> None:
    families = supported_architectures(args.level)
    rows = [
        row
        for name, row in families.items()
        if args.name is None or args.name.lower() in f"{name} {row.model_type}".lower()
    ]
    if not rows:
        raise UnknownNameError.among("family", args.name, families)
    if console.as_json:
        console.data({"families": [asdict(row) for row in rows], "in_the_box": list(IN_THE_BOX)})
        return
    shown = [
        (r.name, r.model_type, r.modality, r.decomposition, r.order, r.norm, _error(r.error))
        for r in rows
    ]
    console.say(
        table(
            ("family", "model_type", "modality", "decomposition", "order", "norm", "error"), shown
        )
    )
    console.say(
        f"\nIn the box, without network: {', '.join(IN_THE_BOX)}. Another model: `ctxmix doctor NAME`."
    )


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.0e}"
