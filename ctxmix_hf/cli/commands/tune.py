"""`ctxmix tune`: a thin wrapper over `ctxmix_hf.evaluation.papers.tune`."""

from __future__ import annotations

from argparse import Namespace

from ctxmix_hf import loading
from ctxmix_hf.bundled import AGREEMENT
from ctxmix_hf.cli.console import Console
from ctxmix_hf.evaluation.papers import tune


def run(args: Namespace, console: Console) -> None:
    loading.quiet(args.debug)
    made = tune(
        args.masked_lm or AGREEMENT.name,
        args.out,
        args.data,
        epochs=args.epochs,
        rate=args.rate,
        batch=args.batch,
        limit=args.limit,
        only_head=args.only_head,
        seed=args.seed,
    )
    console.say(made.to_json() if console.as_json else str(made))
