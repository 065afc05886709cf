"""`ctxmix ledger`: text -> the account of one logit -> text, JSON or a file by its suffix."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from ctxmix_hf import loading
from ctxmix_hf.accounting import ledger
from ctxmix_hf.asked import class_of
from ctxmix_hf.cli.commands.explain import emit, read_texts
from ctxmix_hf.cli.console import Console
from ctxmix_hf.errors import InputError, OptionError
from ctxmix_hf.text.batch import reads

SUFFIXES = (".txt", ".json", ".npz", ".safetensors", ".csv", ".html", ".png", ".pdf", ".svg")


def run(args: Namespace, console: Console) -> None:
    texts, suffix = read_texts(args), _suffix(args, console)
    model, reader = loading.load_asked(args)
    if not texts and reads(model) != "text":
        raise InputError(f"{args.model} reads {reads(model)}: give the path of a file.")
    texts = texts or [loading.example_of(args.model, reader)]
    if suffix not in ("", ".txt", ".json") and len(texts) > 1:
        raise OptionError(f"A {suffix} file is made of one sentence, {len(texts)} were given.")
    asked = {
        "class_index": class_of(args.class_index),
        "foil": class_of(args.foil),
        "position": args.position,
        "rule": args.rule,
        "gates": args.gates,
        "biases": args.biases,
        "start": args.start,
        **loading.named_reader(model, reader),
    }
    made = [ledger(model, text, **asked) for text in texts]
    if args.out and suffix not in (".txt", ".json"):
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        made[0].save(args.out)
        console.note(f"Wrote {args.out}.")
        return
    if suffix == ".json" or console.as_json:
        shared = [{"model": args.model, "text": text} for text in texts]
        rows = [{**one.to_dict(), **more} for one, more in zip(made, shared, strict=True)]
        emit(rows, "json", args.out, console)
    else:
        emit([str(one) for one in made], "text", args.out, console)


def _suffix(args: Namespace, console: Console) -> str:
    """Of the file that is written; nothing where the account is printed."""
    suffix = Path(args.out).suffix.replace(".jsonl", ".json") if args.out else ""
    if args.out and suffix not in SUFFIXES:
        raise OptionError(f"Cannot write {args.out!r}: choose a suffix among {' '.join(SUFFIXES)}.")
    if console.as_json and suffix not in ("", ".json"):
        raise OptionError(f"--json and --out {args.out} contradict each other.")
    return suffix
