# /// script
# requires-python = ">=3.10"
# dependencies = ["ctxmix-hf[data]"]
# ///
"""The maps of a dataset, computed and pushed: one file for `uv run` and for Hugging Face Jobs.

uv run scripts/jobs/precompute.py --dataset stanfordnlp/sst2 --text-column sentence --repo me/sst2-maps
hf jobs uv run --flavor a10g-small --secrets HF_TOKEN scripts/jobs/precompute.py -- \\
    --dataset stanfordnlp/sst2 --text-column sentence --methods alti --device cuda --repo me/sst2-maps

All options of `ctxmix precompute`; --repo says where the store goes, --dry-run only what would be done.
"""

from __future__ import annotations

import argparse
import shlex
import sys

from huggingface_hub import get_token

from ctxmix_hf.cli import main
from ctxmix_hf.cli.parser import build_parser
from ctxmix_hf.errors import CtxmixError
from ctxmix_hf.hub.answers import ready_to_push

NAME = "precompute"
OUT = "maps"


def token(args: argparse.Namespace) -> None:
    """A job whose result has nowhere to go is stopped before it costs anything."""
    if args.repo and not get_token():
        sys.exit(
            f"{NAME}: there is no Hub token, so nothing could be pushed to {args.repo}: start the job with "
            "--secrets HF_TOKEN, or leave --repo out."
        )


def run(*words: str) -> None:
    """One `ctxmix` command, as a person would type it."""
    code = main(list(words))
    if code:
        sys.exit(code)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--repo", help="dataset repository the store is pushed to")
    parser.add_argument("--out", default=OUT, help=f"folder the store is kept in ({OUT})")
    parser.add_argument("--private", action="store_true")
    parser.add_argument("--dry-run", action="store_true", help="check everything, compute nothing")
    args, rest = parser.parse_known_args()
    first = ["precompute", *rest, "--out", args.out]
    second = ["push", args.out, args.repo, *(["--private"] if args.private else [])]
    steps = [first, second] if args.repo else [first]
    for words in steps:
        build_parser().parse_args(words)
    token(args)
    if args.repo and not args.dry_run:
        try:
            ready_to_push(args.repo, private=args.private or None)
        except CtxmixError as error:
            sys.exit(f"{NAME}: {error}")
    for words in steps:
        print("ctxmix", shlex.join(words), flush=True)
        if not args.dry_run:
            run(*words)
