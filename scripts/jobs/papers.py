# /// script
# requires-python = ">=3.10"
# dependencies = ["ctxmix-hf[data,flow]"]
# ///
"""The papers' tables on a model of yours, pushed: one file for `uv run` and for Hugging Face Jobs.

uv run scripts/jobs/papers.py --paper globenc --classifier textattack/bert-base-uncased-SST-2 --repo me/papers
hf jobs uv run --secrets HF_TOKEN scripts/jobs/papers.py -- --masked-lm bert-base-uncased --repo me/papers

All options of `ctxmix papers`; --repo says where the tables go, --dry-run computes nothing.
"""

from __future__ import annotations

import argparse
import shlex
import sys

from huggingface_hub import HfApi, get_token

from ctxmix_hf.cli import main
from ctxmix_hf.cli.parser import build_parser
from ctxmix_hf.errors import CtxmixError
from ctxmix_hf.hub.answers import hub_errors, ready_to_push

NAME, OUT = "papers", "papers"


def token(args: argparse.Namespace) -> None:
    """A job whose result has nowhere to go is stopped before it costs anything."""
    if args.repo and not get_token():
        sys.exit(
            f"{NAME}: there is no Hub token, so nothing could be pushed to {args.repo}: start the job with "
            "--secrets HF_TOKEN, or leave --repo out."
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--repo", help="dataset repository the tables are pushed to")
    parser.add_argument("--out", default=OUT, help=f"folder the tables are kept in ({OUT})")
    parser.add_argument("--dry-run", action="store_true", help="check everything, compute nothing")
    args, rest = parser.parse_known_args()
    words = ["papers", *rest, "--out", args.out]
    build_parser().parse_args(words)
    token(args)
    print("ctxmix", shlex.join(words), flush=True)
    if args.repo:
        print("upload", args.out, "to", args.repo, flush=True)
    if args.dry_run:
        sys.exit()
    try:
        if args.repo:
            ready_to_push(args.repo)
        code = main(words)
        if args.repo and not code:
            with hub_errors(args.repo):
                HfApi().upload_folder(repo_id=args.repo, folder_path=args.out, repo_type="dataset")
    except CtxmixError as error:
        sys.exit(f"{NAME}: {error}")
    sys.exit(code)
