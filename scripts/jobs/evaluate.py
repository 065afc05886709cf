# /// script
# requires-python = ">=3.10"
# dependencies = ["ctxmix-hf[data,plot]"]
# ///
"""An evaluation of a model, with its tables pushed: one file for `uv run` and for Hugging Face Jobs.

uv run scripts/jobs/evaluate.py --suite sentiment --model textattack/bert-base-uncased-SST-2 --repo me/sst2-evidence
hf jobs uv run --secrets HF_TOKEN scripts/jobs/evaluate.py -- --suite sentiment --model me/my-model --repo me/evidence

All options of `ctxmix evaluate` but --to-hub; --repo says where the tables go, --dry-run computes nothing.
"""

from __future__ import annotations

import argparse
import shlex
import sys

from huggingface_hub import get_token

from ctxmix_hf.cli import main
from ctxmix_hf.cli.parser import build_parser

NAME, OUT = "evaluate", "evidence"


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
    parser.add_argument("--repo", help="dataset repository the tables are pushed to")
    parser.add_argument("--out", default=OUT, help=f"folder the tables are kept in ({OUT})")
    parser.add_argument("--dry-run", action="store_true", help="check everything, compute nothing")
    args, rest = parser.parse_known_args()
    words = ["evaluate", *rest, "--out", args.out]
    if build_parser().parse_args(words).to_hub:
        sys.exit(f"{NAME}: a job takes the repository as --repo me/evidence, not as --to-hub.")
    words += ["--to-hub", args.repo] if args.repo else []
    token(args)
    print("ctxmix", shlex.join(words), flush=True)
    if not args.dry_run:
        run(*words)
