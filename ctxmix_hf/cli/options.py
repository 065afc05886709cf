"""The options of each command."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser

BOX_MODEL = "ctxmix/agreement"
FORMATS = ("text", "json", "html", "png", "svg")


def positive(text: str) -> int:
    value = int(text) if text.lstrip("-").isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def names(text: str) -> list[str]:
    """`a,b,c`."""
    found = [item.strip() for item in text.split(",") if item.strip()]
    if not found:
        raise argparse.ArgumentTypeError("no names given")
    return found


def common(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the result as JSON, for machines")
    parser.add_argument("--debug", action="store_true", help="tracebacks and warnings")


def model(parser: ArgumentParser) -> None:
    parser.add_argument("--model", default=BOX_MODEL, metavar="NAME", help=f"Hub id, folder, or in the box (default: {BOX_MODEL})")
    how_loaded(parser)


def how_loaded(parser: ArgumentParser) -> None:
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit of the model")
    parser.add_argument("--dtype", choices=("float32", "float64", "float16", "bfloat16"), help="load the model in this precision")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (default: cpu)")


def output(parser: ArgumentParser) -> None:
    parser.add_argument("--format", choices=FORMATS, help="default: by the suffix of --out, else text")
    parser.add_argument("--out", metavar="FILE", help="write here instead of to the terminal")


def point_of_view(parser: ArgumentParser) -> None:
    parser.add_argument("--target", metavar="TOKEN", help="a token, a word, its position, or mean_pool (default: the mask, else [CLS])")
    parser.add_argument("--layer", type=int, default=-1, help="0 is the first (default: -1, the last)")
    parser.add_argument("--aggregate", choices=("rollout", "flow", "none"), help="how layers are joined; none: within the layer")


def explain(parser: ArgumentParser) -> None:
    parser.add_argument("text", nargs="*", help="sentences; - reads stdin, a sentence per line (default: an example)")
    parser.add_argument("--file", metavar="FILE", help="a sentence per line")
    model(parser)
    parser.add_argument("--method", default="alti", metavar="NAME", help="see `ctxmix methods` (default: alti)")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the method; can be repeated")
    point_of_view(parser)
    output(parser)


def compare(parser: ArgumentParser) -> None:
    parser.add_argument("text", nargs="*", help="one sentence, or two to subtract (default: an example)")
    model(parser)
    parser.add_argument("--other-model", metavar="NAME", help="subtract the maps of --model from this model's")
    parser.add_argument("--method", default="alti", metavar="NAME", help="for a difference (default: alti)")
    parser.add_argument("--methods", type=names, metavar="A,B", help="to compare on one sentence (default: a selection)")
    point_of_view(parser)
    output(parser)


def methods(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="all about this one")
    parser.add_argument("--kind", choices=("layer", "input", "attribution"), help="only these")


def models(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="only families with this in their name")
    parser.add_argument("--level", type=int, choices=(1, 2), help="2: only those decomposed exactly")


def doctor(parser: ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default=BOX_MODEL, help=f"Hub id or folder (default: {BOX_MODEL})")
    how_loaded(parser)
    parser.add_argument("--text", help="the probe (default: an example)")


def evaluate(parser: ArgumentParser) -> None:
    parser.add_argument("--suite", default="agreement", help="agreement, sentiment, identifiability, mixing, all, or one evaluation")
    parser.add_argument("--model", metavar="NAME", help="Hub id or folder (default: in the box)")
    parser.add_argument("--data", metavar="DATA", help="Hub id or file (default: built-in sentences)")
    parser.add_argument("--methods", type=names, metavar="A,B", help="default: a selection")
    parser.add_argument("--limit", type=positive, help="use at most so many sentences")
    parser.add_argument("--out", metavar="DIR", help="tables as CSV and JSON, pictures as PNG (default: ctxmix-<suite>/; with --json none)")
    parser.add_argument("--resume", metavar="DIR", help="keep partial results here and go on from them")
    parser.add_argument("--seed", type=int, default=0)


def precompute(parser: ArgumentParser) -> None:
    parser.add_argument("--dataset", required=True, metavar="DATA", help="Hub id (name or name:config), or csv, tsv, jsonl, txt, parquet")
    parser.add_argument("--split", default="train", help="of a Hub dataset; the store's split (default: train)")
    parser.add_argument("--text-column", default="text", metavar="COLUMN")
    parser.add_argument("--pair-column", metavar="COLUMN", help="the second sentence of a pair")
    parser.add_argument("--id-column", metavar="COLUMN", help="unique names of the rows (default: split and row number)")
    parser.add_argument("--label-column", metavar="COLUMN", help="kept with the example")
    model(parser)
    parser.add_argument("--methods", type=names, default=["alti"], metavar="A,B", help="default: alti")
    parser.add_argument("--out", required=True, metavar="DIR", help="the store; the same command again continues")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N rows")
    parser.add_argument("--max-length", type=positive, metavar="N", help="cut longer texts to N tokens (default: skip what does not fit)")
    parser.add_argument(
        "--token-budget", type=positive, default=1024, metavar="N", help="tokens per batch, padding included (default: 1024)"
    )
    parser.add_argument("--store-dtype", choices=("float32", "float16"), default="float32", help="of the kept maps (default: float32)")
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="processes or Ray actors (default: 1)")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="CPU threads of each worker (default: 1)")


def push(parser: ArgumentParser) -> None:
    parser.add_argument("folder", help="of a store")
    parser.add_argument("repo", help="e.g. me/maps")
    parser.add_argument("--private", action="store_true", default=None)
    parser.add_argument("--revision", metavar="BRANCH", help="push to this branch")
    parser.add_argument("--tag", help="put this tag on the commit")
    parser.add_argument("--license", default="unknown", help="of the maps, for the card")
    parser.add_argument("--message", default="Context mixing maps", help="of the commit")


def pull(parser: ArgumentParser) -> None:
    parser.add_argument("repo", help="e.g. me/maps")
    parser.add_argument("--out", metavar="DIR", help="default: the Hub's cache")
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit")
    parser.add_argument("--methods", type=names, metavar="A,B", help="only these")


def demo(parser: ArgumentParser) -> None:
    parser.add_argument("--port", type=positive, metavar="N", help="default: the first free one from 7860 on")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 opens it to the network (default: 127.0.0.1)")


def bench(parser: ArgumentParser) -> None:
    model(parser)
    parser.add_argument("--methods", type=names, metavar="A,B", help="default: all maps")
    parser.add_argument("--tokens", type=positive, default=32, help="per sentence (default: 32)")
    parser.add_argument("--batch", type=positive, default=4, help="sentences (default: 4)")
    parser.add_argument("--repeat", type=positive, default=3, help="times; the median counts (default: 3)")


def completion(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
