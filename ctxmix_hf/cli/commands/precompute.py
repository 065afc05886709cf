"""`ctxmix precompute`."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import fields
from pathlib import Path

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch: --threads decides, the same for every engine

from ctxmix_hf.cli.console import Console
from ctxmix_hf.precompute import Job, precompute


def run(args: Namespace, console: Console) -> None:
    given = vars(args)
    values = {field.name: given[field.name] for field in fields(Job)}
    made = precompute(Job(**{**values, "methods": tuple(args.methods)}), console.progress)
    console.progress("done", last=True)
    if console.as_json:
        console.data(made.as_dict())
        return
    rate = (
        f"{made.computed / made.seconds:.1f} sentences/s"
        if made.seconds and made.computed
        else "nothing was left to do"
    )
    console.say(
        f"{made.out}: {made.examples} examples of {', '.join(made.methods)} ({made.computed} new, {rate})"
    )
    if made.truncated:
        console.say(f"{made.truncated} texts were cut to {args.max_length} tokens.")
    if made.skipped:
        console.say(
            f"{made.skipped} rows were skipped: {Path(made.out) / 'run' / 'skipped.jsonl'} says which and why."
        )
