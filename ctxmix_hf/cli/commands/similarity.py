"""`ctxmix similarity`: two texts -> the pairs of words that made their similarity -> text, JSON or
a file by its suffix.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from ctxmix_hf import loading
from ctxmix_hf.bundled import AGREEMENT
from ctxmix_hf.cli.commands.explain import emit
from ctxmix_hf.cli.console import Console
from ctxmix_hf.errors import OptionError
from ctxmix_hf.results.matches import content_pairs
from ctxmix_hf.similarities import similarity
from ctxmix_hf.viz.pairing import similarity_text

SUFFIXES = (".txt", ".json", ".npz", ".safetensors", ".csv", ".html", ".png", ".pdf", ".svg")


def run(args: Namespace, console: Console) -> None:
    suffix = suffix_of(args, console, SUFFIXES)
    model, options = load_embedder(args)
    made = similarity(model, args.a, args.b, **options)
    if suffix == ".json" or console.as_json:
        top = [
            {"a": a, "b": b, "contribution": value}
            for a, b, value in content_pairs(made.words())[: args.top]
        ]
        emit(
            [{**made.to_dict(), "model": args.model or AGREEMENT.name, "top": top}],
            "json",
            args.out,
            console,
        )
    elif suffix in ("", ".txt"):
        emit(
            [similarity_text(made, False if args.out else None, args.top)],
            "text",
            args.out,
            console,
        )
    else:
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        made.save(args.out)
        console.note(f"Wrote {args.out}.")


def load_embedder(args: Namespace) -> tuple[Any, dict[str, Any]]:
    """The model of `--model --pooling --revision --dtype --device`, with the options it needs."""
    loading.quiet(args.debug)
    return loading.load_embedder(
        args.model,
        revision=args.revision,
        dtype=args.dtype,
        device=args.device,
        pooling=args.pooling,
        trust_remote_code=args.trust_remote_code,
    )


def suffix_of(args: Namespace, console: Console, known: tuple[str, ...]) -> str:
    """Of the file that is written; nothing where the result is printed."""
    suffix = Path(args.out).suffix if args.out else ""
    if args.out and suffix not in known:
        raise OptionError(f"Cannot write {args.out!r}: choose a suffix among {' '.join(known)}.")
    if console.as_json and suffix not in ("", ".json"):
        raise OptionError(f"--json and --out {args.out} contradict each other.")
    return suffix
