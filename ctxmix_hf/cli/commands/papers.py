"""`ctxmix papers`: a thin wrapper over `ctxmix_hf.evaluation.papers.reproduce`."""

from __future__ import annotations

from argparse import Namespace

from ctxmix_hf import loading
from ctxmix_hf.cli.console import Console
from ctxmix_hf.errors import OptionError
from ctxmix_hf.evaluation.fitting import PAPER
from ctxmix_hf.evaluation.papers import reproduce


def run(args: Namespace, console: Console) -> None:
    loading.quiet(args.debug)
    data = {}
    for given in args.data or ():
        name, found, where = given.partition("=")
        if not found or not where:
            raise OptionError(f"--data is NAME=WHERE, such as sst2=dev.tsv; got {given!r}.")
        data[name] = where
    report = reproduce(
        args.out,
        args.paper,
        classifier=args.classifier,
        masked_lm=args.masked_lm,
        encoder=args.encoder,
        before=args.before,
        data=data,
        items=args.item,
        limit=args.limit,
        seed=args.seed,
        fitting=PAPER if args.as_published else None,
        trust_remote_code=args.trust_remote_code,
    )
    console.say(report.to_json() if console.as_json else str(report))
    for name, why in report.left_out.items():
        console.error(f"left out: {name}: {why}")
    console.note(f"{args.out}/papers.json and papers.md hold all of it.")
