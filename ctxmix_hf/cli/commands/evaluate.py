"""`ctxmix evaluate`: a thin wrapper over `ctxmix_hf.evaluate`."""

from __future__ import annotations

from argparse import Namespace

from ctxmix_hf import loading
from ctxmix_hf.cli.console import Console
from ctxmix_hf.errors import OptionError
from ctxmix_hf.evaluation import evaluate
from ctxmix_hf.evaluation.sharing import push_results
from ctxmix_hf.hub.answers import ready_to_push, require_token


def run(args: Namespace, console: Console) -> None:
    loading.quiet(args.debug)
    if args.model_repo and not args.to_hub:
        raise OptionError(
            "--model-repo goes with --to-hub: the entries name the tables' repository."
        )
    if args.to_hub:
        require_token(args.to_hub)
        ready_to_push(args.to_hub, private=args.private)
    out = args.out or (None if console.as_json or args.to_hub else f"ctxmix-{args.suite}")
    found = evaluate(
        args.suite,
        args.model,
        data=args.data,
        methods=args.methods,
        limit=args.limit,
        out=out,
        resume=args.resume,
        seed=args.seed,
        answer=args.answer,
        of=args.of,
        trust_remote_code=args.trust_remote_code,
    )
    console.say(found.to_json() if console.as_json else str(found))
    if out:
        console.note(f"Tables and pictures are in {out}/.")
    if args.to_hub:
        push_results(
            found, args.to_hub, model_repo=args.model_repo, model=args.model, private=args.private
        )
        console.note(f"Pushed the tables to {args.to_hub}.")
        if args.model_repo:
            console.note(f"Wrote .eval_results/ctxmix.yaml of {args.model_repo}.")
