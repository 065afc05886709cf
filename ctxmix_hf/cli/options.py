"""The options of each command."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser

from ctxmix_hf.bundled import AGREEMENT
from ctxmix_hf.registry import DEFAULT_METHOD
from ctxmix_hf.text.segments import UNITS

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


def targets(text: str) -> tuple[int | str, ...]:
    """`[CLS],mean_pool,5`: a number is a position."""
    return tuple(int(one) if one.lstrip("-").isdigit() else one for one in names(text))


def common(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the result as JSON, for machines")
    parser.add_argument("--debug", action="store_true", help="tracebacks and warnings")


def model(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        default=AGREEMENT.name,
        metavar="NAME",
        help=f"Hub id, folder, or bundled model (default: {AGREEMENT.name})",
    )
    how_loaded(parser)


def how_loaded(parser: ArgumentParser) -> None:
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit of the model")
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64", "float16", "bfloat16"),
        help="load the model in this precision",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (default: cpu)")
    remote_code(parser)


def remote_code(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the code that lies beside the model's weights: only if you have read it",
    )


def output(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=FORMATS, help="default: by the suffix of --out, else text"
    )
    parser.add_argument("--out", metavar="FILE", help="write here instead of to the terminal")


def point_of_view(parser: ArgumentParser) -> None:
    default = "the mask, else the class token, the last token of a causal model, or mean_pool"
    parser.add_argument(
        "--target",
        metavar="TOKEN",
        help=f"a word, a token, its position, [CLS] or mean_pool (default: {default})",
    )
    parser.add_argument(
        "--layer", type=int, default=-1, help="1 is the first (default: -1, the last)"
    )
    parser.add_argument(
        "--aggregate",
        choices=("rollout", "flow", "none"),
        help="how layers are joined; none: within the layer",
    )


def explain(parser: ArgumentParser) -> None:
    reads = "sentences, or the paths of images or WAV files where the model reads those"
    parser.add_argument(
        "text", nargs="*", help=f"{reads}; - reads stdin, a sentence per line (default: an example)"
    )
    parser.add_argument(
        "--file", metavar="FILE", help="a sentence per line; with --segments one text"
    )
    parser.add_argument(
        "--segments",
        choices=tuple(UNITS),
        help="the map of these units instead of the tokens: for long texts",
    )
    model(parser)
    parser.add_argument(
        "--method",
        default=DEFAULT_METHOD,
        metavar="NAME",
        help=f"see `ctxmix methods` (default: {DEFAULT_METHOD})",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of the method; can be repeated",
    )
    point_of_view(parser)
    output(parser)


def ledger(parser: ArgumentParser) -> None:
    reads = "sentences, or the paths of images or WAV files where the model reads those"
    parser.add_argument(
        "text", nargs="*", help=f"{reads}; - reads stdin, a sentence per line (default: an example)"
    )
    parser.add_argument("--file", metavar="FILE", help="a sentence per line")
    model(parser)
    parser.add_argument(
        "--class",
        dest="class_index",
        metavar="NAME",
        help="a label, a word or its number (default: what the model predicts)",
    )
    parser.add_argument(
        "--foil", metavar="NAME", help="explain the logit of --class minus the logit of this one"
    )
    parser.add_argument(
        "--position",
        type=int,
        metavar="N",
        help="token of a per-token head, from 0 or from the end with -1 (default: the masked word)",
    )
    for flag, choices, about in (
        ("--rule", ("frozen", "through"), "attention is given, or explained too"),
        (
            "--gates",
            ("half", "frozen"),
            "a product of two activations: half to each, or all to the ungated one",
        ),
        ("--biases", ("lines", "spread"), "lines of their own, or shared out over the tokens"),
        (
            "--start",
            ("input", "embeddings"),
            "embeddings: position and token type are told apart from words",
        ),
    ):
        parser.add_argument(
            flag, choices=choices, default=choices[0], help=f"{about} (default: {choices[0]})"
        )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="txt, json, npz, safetensors, csv, html, png, pdf or svg, by suffix",
    )


def compare(parser: ArgumentParser) -> None:
    parser.add_argument(
        "text", nargs="*", help="one sentence, or two to subtract (default: an example)"
    )
    model(parser)
    parser.add_argument(
        "--other-model", metavar="NAME", help="subtract the maps of --model from this model's"
    )
    parser.add_argument(
        "--method",
        default=DEFAULT_METHOD,
        metavar="NAME",
        help=f"for a difference (default: {DEFAULT_METHOD})",
    )
    parser.add_argument(
        "--methods",
        type=names,
        metavar="A,B",
        help="to compare on one sentence (default: a selection)",
    )
    point_of_view(parser)
    output(parser)


def embedder(parser: ArgumentParser) -> None:
    known = (
        "Hub id or folder: sentence-transformers' models as they are, other encoders with --pooling"
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help=f"{known} (default: {AGREEMENT.name} with mean pooling, which was not trained for this)",
    )
    how_loaded(parser)
    pooling = "make vectors of a transformers encoder's tokens so (default: as its files say, else the mean)"
    parser.add_argument("--pooling", choices=("mean", "cls", "last", "max"), help=pooling)


def similarity(parser: ArgumentParser) -> None:
    parser.add_argument("a", help="the first text")
    parser.add_argument("b", help="the second text")
    embedder(parser)
    parser.add_argument(
        "--top",
        type=positive,
        default=8,
        metavar="K",
        help="list the K strongest pairs of words (default: 8)",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="txt, json, npz, safetensors, csv, html, png, pdf or svg, by suffix",
    )


def rank(parser: ArgumentParser) -> None:
    parser.add_argument("documents", metavar="FILE", help="a document per line; - reads stdin")
    parser.add_argument("--query", required=True, metavar="TEXT", help="what was searched for")
    embedder(parser)
    parser.add_argument(
        "--top",
        type=positive,
        default=10,
        metavar="K",
        help="explain the first K documents (default: 10)",
    )
    parser.add_argument("--out", metavar="FILE", help="txt, json or html, by suffix")


def methods(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="all about this one")
    parser.add_argument("--kind", choices=("layer", "input", "attribution"), help="only these")


def models(parser: ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="only families with this in their name")
    parser.add_argument(
        "--level", type=int, choices=(1, 2), help="2: only those decomposed exactly"
    )


def doctor(parser: ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        default=AGREEMENT.name,
        help=f"Hub id or folder (default: {AGREEMENT.name})",
    )
    how_loaded(parser)
    parser.add_argument("--text", help="the probe (default: an example)")


def certify(parser: ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help=f"Hub id or folder (default: {AGREEMENT.name})")
    how_loaded(parser)
    parser.add_argument("--text", help="the probe (default: an example)")
    parser.add_argument("--out", metavar="FILE", help="write here instead of to the terminal")
    parser.add_argument(
        "--check", metavar="FILE", help="derive this certificate again and name what differs"
    )


def evaluate(parser: ArgumentParser) -> None:
    suites = "agreement, sentiment, identifiability, mixing, sanity, all"
    parser.add_argument("--suite", default="agreement", help=f"{suites}, or one evaluation")
    parser.add_argument(
        "--model", metavar="NAME", help="Hub id or folder (default: a bundled model)"
    )
    remote_code(parser)
    parser.add_argument(
        "--data", metavar="DATA", help="Hub id or file (default: built-in sentences)"
    )
    parser.add_argument("--methods", type=names, metavar="A,B", help="default: a selection")
    parser.add_argument("--limit", type=positive, help="use at most so many sentences")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="tables as CSV and JSON, pictures as PNG (default: ctxmix-<suite>/; with --json none)",
    )
    parser.add_argument(
        "--resume", metavar="DIR", help="keep partial results here and go on from them"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--answer",
        choices=("predicted", "true"),
        default="predicted",
        help="explain a classifier's predicted class, or the label of the row (default: predicted)",
    )
    parser.add_argument(
        "--of", choices=("prob", "logit"), default="prob", help="of that answer (default: prob)"
    )
    parser.add_argument(
        "--to-hub", metavar="REPO", help="push the tables to this dataset repository"
    )
    parser.add_argument(
        "--model-repo",
        metavar="REPO",
        help="with --to-hub: also write the scores into this model's .eval_results",
    )
    parser.add_argument("--private", action="store_true", default=None, help="of a new repository")


def tune(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--masked-lm", metavar="NAME", help=f"Hub id or folder (default: {AGREEMENT.name})"
    )
    parser.add_argument(
        "--data",
        metavar="WHERE",
        help="BLiMP's folder, Hub id or file of rows with a target and a foil (default: built-in sentences)",
    )
    parser.add_argument("--epochs", type=positive, default=3, metavar="N")
    parser.add_argument(
        "--rate", type=float, default=2e-5, metavar="X", help="AdamW's (default 2e-5)"
    )
    parser.add_argument(
        "--batch", type=positive, default=32, metavar="N", help="sentences per step"
    )
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="learn from at most N sentences"
    )
    parser.add_argument("--only-head", action="store_true", help="leave the encoder as it is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="model/ in it; the same command again continues"
    )


def papers(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--paper",
        action="append",
        choices=("abnar", "brunner", "globenc", "alti", "value_zeroing"),
        help="only this one; may be given several times (default: all five)",
    )
    parser.add_argument(
        "--item",
        action="append",
        metavar="NUMBER",
        help='only this table or figure, such as "Table 1"; may be given several times',
    )
    parser.add_argument(
        "--classifier", metavar="NAME", help="Hub id or folder (default: a bundled model)"
    )
    parser.add_argument(
        "--masked-lm", metavar="NAME", help="Hub id or folder (default: a bundled model)"
    )
    parser.add_argument(
        "--encoder", metavar="NAME", help="Hub id or folder (default: a bundled model)"
    )
    parser.add_argument(
        "--before",
        metavar="NAME",
        help="the masked LM or encoder before it was tuned, for figures that show both",
    )
    remote_code(parser)
    parser.add_argument(
        "--data",
        action="append",
        metavar="NAME=WHERE",
        help="sst2, blimp, linzen, mrpc, cola, mnli or pronouns = Hub id, file or folder (default: built-in sentences)",
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="at most N sentences per item")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--as-published",
        action="store_true",
        help="learn the maps of identifiability exactly as the paper does: ten folds, all four maps (hours)",
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="a file per item; the same command again continues",
    )


def precompute(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--dataset",
        required=True,
        metavar="DATA",
        help="Hub id (name, name:config or name:config:split), or csv, tsv, json, jsonl, txt, parquet",
    )
    parser.add_argument(
        "--split", default="train", help="of a Hub dataset; the store's split (default: train)"
    )
    parser.add_argument("--text-column", default="text", metavar="COLUMN")
    parser.add_argument("--pair-column", metavar="COLUMN", help="the second sentence of a pair")
    parser.add_argument(
        "--id-column",
        metavar="COLUMN",
        help="unique names of the rows (default: split and row number)",
    )
    parser.add_argument("--label-column", metavar="COLUMN", help="kept with the example")
    model(parser)
    parser.add_argument(
        "--methods",
        type=names,
        default=[DEFAULT_METHOD],
        metavar="A,B",
        help=f"default: {DEFAULT_METHOD}",
    )
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="the store; the same command again continues"
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N rows")
    parser.add_argument(
        "--max-length",
        type=positive,
        metavar="N",
        help="cut longer texts to N tokens (default: skip what does not fit)",
    )
    parser.add_argument(
        "--token-budget",
        type=positive,
        default=1024,
        metavar="N",
        help="tokens per batch, padding included (default: 1024)",
    )
    parser.add_argument(
        "--segments",
        choices=tuple(UNITS),
        help="keep the maps of these units instead of the tokens': for long texts",
    )
    parser.add_argument(
        "--targets",
        type=targets,
        metavar="A,B",
        help="keep one row for each of these instead of maps: words, positions, [CLS], mean_pool, embedding",
    )
    parser.add_argument(
        "--top-k", type=positive, metavar="K", help="keep the K largest sources of every row"
    )
    parser.add_argument(
        "--store-dtype",
        choices=("float32", "float16"),
        default="float32",
        help="of the kept maps (default: float32)",
    )
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument(
        "--workers",
        type=positive,
        default=1,
        metavar="N",
        help="processes (as soon as they are worth their start) or Ray actors (default: 1)",
    )
    parser.add_argument(
        "--threads",
        type=positive,
        default=1,
        metavar="N",
        help="CPU threads of each worker (default: 1)",
    )


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
    parser.add_argument(
        "--port", type=positive, metavar="N", help="default: the first free one from 7860 on"
    )
    host = (
        "0.0.0.0 opens it to the network, which then sees only the bundled models and your "
        "own store (default: 127.0.0.1)"
    )
    parser.add_argument("--host", default="127.0.0.1", help=host)
    parser.add_argument(
        "--mcp",
        action="store_true",
        help="also serve the tools for assistants (Model Context Protocol)",
    )
    anything = (
        "with --host: let everybody who reaches it make this machine fetch and run any "
        "model and dataset of the Hub"
    )
    parser.add_argument("--let-visitors-load-any-hub-id", action="store_true", help=anything)
    paths = (
        "with --host: let everybody who reaches it open every model and store that you can "
        "read on this machine's disk"
    )
    parser.add_argument("--let-visitors-read-local-folders", action="store_true", help=paths)


def mcp(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--views",
        metavar="DIR",
        help="where the pictures of answers are written (default: a new temporary folder)",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="append",
        default=[],
        metavar="NAME",
        help="run the code beside this model's weights when the assistant asks for it: only if you have read it; "
        "may be given several times",
    )


def bench(parser: ArgumentParser) -> None:
    model(parser)
    parser.add_argument("--methods", type=names, metavar="A,B", help="default: all maps")
    parser.add_argument("--tokens", type=positive, default=32, help="per sentence (default: 32)")
    parser.add_argument("--batch", type=positive, default=4, help="sentences (default: 4)")
    parser.add_argument(
        "--repeat", type=positive, default=3, help="times; the median counts (default: 3)"
    )


def completion(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
