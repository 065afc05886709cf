"""`ctxmix evaluate`: a thin wrapper over `ctxmix_hf.evaluate`."""

from __future__ import annotations

from typing import Any

from ctxmix_hf import loading
from ctxmix_hf.cli.console import Console
from ctxmix_hf.evaluation import evaluate


def run(args: Any, console: Console) -> None:
    loading.quiet(args.debug)
    out = args.out or (None if console.as_json else f"ctxmix-{args.suite}")
    found = evaluate(
        args.suite, args.model, data=args.data, methods=args.methods, limit=args.limit, out=out, resume=args.resume, seed=args.seed
    )
    console.say(found.to_json() if console.as_json else str(found))
    if out:
        console.note(f"Tables and pictures are in {out}/.")
