"""`ctxmix models`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from ctxmix_hf.architectures import supported_architectures
from ctxmix_hf.bundled import BUNDLED
from ctxmix_hf.cli.console import Console, table
from ctxmix_hf.errors import UnknownNameError


def run(args: Namespace, console: Console) -> None:
    families = supported_architectures(args.level)
    rows = [
        row
        for name, row in families.items()
        if args.name is None or args.name.lower() in f"{name} {row.model_type}".lower()
    ]
    if not rows:
        raise UnknownNameError.among("family", args.name, families)
    if console.as_json:
        console.data({"families": [asdict(row) for row in rows], "bundled": list(BUNDLED)})
        return
    shown = [
        (
            r.name,
            r.model_type,
            r.modality,
            r.decomposition,
            r.order,
            r.norm,
            _error(r.error),
            _error(r.ledger),
        )
        for r in rows
    ]
    names = ("family", "model_type", "modality", "decomposition", "order", "norm", "error")
    console.say(table((*names, "ledger"), shown))
    console.say(
        f"\nBundled, without network: {', '.join(BUNDLED)}. Another model: `ctxmix doctor NAME`."
    )


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.0e}"
