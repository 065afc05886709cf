"""`ctxmix pull`."""

from __future__ import annotations

from argparse import Namespace

from ctxmix_hf.cli.console import Console
from ctxmix_hf.errors import UnknownNameError
from ctxmix_hf.hub.store import MapStore


def run(args: Namespace, console: Console) -> None:
    store = MapStore.from_hub(args.repo, args.revision)
    for name in args.methods or ():
        if name not in store.methods:
            raise UnknownNameError.among("method in this store", name, store.methods)
    folder = store.download(args.out, methods=args.methods)
    found = {
        "repo": args.repo,
        "commit": store.revision,
        "folder": str(folder),
        "examples": len(store),
        "methods": store.methods,
    }
    console.data(found) if console.as_json else console.say(
        f"{folder}: {len(store)} examples of {', '.join(store.methods)}, verified"
    )
