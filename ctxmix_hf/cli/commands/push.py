"""`ctxmix push`."""

from __future__ import annotations

from argparse import Namespace

from ctxmix_hf.cli.console import Console
from ctxmix_hf.hub.store import MapStore


def run(args: Namespace, console: Console) -> None:
    store = MapStore.open(args.folder)
    sha = store.push_to_hub(
        args.repo,
        private=args.private,
        revision=args.revision,
        tag=args.tag,
        license=args.license,
        commit_message=args.message,
    )
    found = {"repo": args.repo, "commit": sha, "examples": len(store), "methods": store.methods}
    console.data(found) if console.as_json else console.say(
        f"{args.repo}: {len(store)} examples, commit {sha}"
    )
