"""`ctxmix methods`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from typing import Any

from ctxmix_hf.catalogue import list_methods
from ctxmix_hf.cli.console import Console, table
from ctxmix_hf.errors import UnknownNameError


def run(args: Namespace, console: Console) -> None:
    infos = list_methods(args.kind)
    if args.name is not None:
        found = [info for info in infos if info.name == args.name]
        if not found:
            raise UnknownNameError.among("method", args.name, [info.name for info in infos])
        infos = found
    if console.as_json:
        console.data([asdict(info) for info in infos])
    elif args.name is not None:
        console.say(
            "\n".join(f"{key:<10} {_text(value)}" for key, value in asdict(infos[0]).items())
        )
    else:
        rows = [(info.name, info.kind, info.paper, info.summary) for info in infos]
        console.say(table(("method", "kind", "paper", "what it is"), rows))
        console.say(
            '\nAny layer method also as "name+rollout" or "name+flow". `ctxmix methods NAME` says all about one.'
        )


def _text(value: Any) -> str:
    return (
        ", ".join(f"{k}={v!r}" for k, v in value.items()) or "none"
        if isinstance(value, dict)
        else str(value)
    )
