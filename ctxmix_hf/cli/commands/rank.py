"""`ctxmix rank`: a query and a file of documents -> the model's own order, with the words that made it."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from ctxmix_hf.bundled import AGREEMENT
from ctxmix_hf.cli.commands.explain import emit, read_texts
from ctxmix_hf.cli.commands.similarity import load_embedder, suffix_of
from ctxmix_hf.cli.console import Console
from ctxmix_hf.results.matches import Ranking, Similarity, content_pairs
from ctxmix_hf.similarities import rank
from ctxmix_hf.viz.pairing import ranking_text

SUFFIXES = (".txt", ".json", ".html")
WORDS = 5


def run(args: Namespace, console: Console) -> None:
    suffix = suffix_of(args, console, SUFFIXES)
    piped = args.documents == "-"
    asked = Namespace(text=["-"] if piped else [], file=None if piped else args.documents)
    documents = read_texts(asked)
    model, options = load_embedder(args)
    made = rank(model, args.query, documents, **options)
    if suffix == ".json" or console.as_json:
        whole = {"model": args.model or AGREEMENT.name, "query": args.query}
        rows = [_row(made, place) for place in range(min(args.top, len(made)))]
        emit([{**whole, "of": len(made), "documents": rows}], "json", args.out, console)
    elif suffix == ".html":
        emit([made.to_html(top=args.top)], "html", args.out, console)
    else:
        emit([ranking_text(made, args.top)], "text", args.out, console)


def _row(made: Ranking, place: int) -> dict[str, Any]:
    """One document: its place, its line in the file, its score and its strongest pairs of words
    (words, for a reranker).
    """
    number = made.order[place]
    account = made[number]
    if isinstance(account, Similarity):
        top = [
            {"query": a, "document": b, "contribution": value}
            for a, b, value in content_pairs(account.words())[:WORDS]
        ]
    else:
        top = [{"word": word, "contribution": value} for word, value in account.words().top(WORDS)]
    return {
        "place": place + 1,
        "document": number + 1,
        "text": made.documents[number],
        "score": float(made.scores[number]),
        "top": top,
    }
