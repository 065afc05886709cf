"""`ctxmix compare`: methods on one sentence, or the difference of two sentences or two models."""

from __future__ import annotations

import io
from argparse import Namespace
from itertools import combinations
from typing import Any

from ctxmix_hf import loading
from ctxmix_hf.cli.commands.explain import emit, point, spec, view_format
from ctxmix_hf.cli.console import Console, table
from ctxmix_hf.errors import OptionError
from ctxmix_hf.explaining import explain
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.viz.payload import row_place

METHODS = ["attention_rollout", "globenc", "alti", "value_zeroing"]
TOP = 5


def run(args: Namespace, console: Console) -> None:
    form = view_format(args, console)
    if len(args.text) > 2:
        raise OptionError("Compare one sentence or two.")
    if args.methods and (len(args.text) == 2 or args.other_model):
        raise OptionError(
            "--methods compares on one sentence of one model; a difference takes --method."
        )
    model, tokenizer = loading.load_asked(args)
    texts = list(args.text) or [loading.example_of(args.model, tokenizer)]
    if len(texts) == 2 or args.other_model:
        first = explain(
            model,
            texts[0],
            spec(args.method, args.aggregate, {}),
            **loading.named_reader(model, tokenizer),
        )
        if args.other_model:
            model, tokenizer = loading.load(
                args.other_model,
                dtype=args.dtype,
                device=args.device,
                trust_remote_code=args.trust_remote_code,
            )
        second = explain(
            model,
            texts[-1],
            spec(args.method, args.aggregate, {}),
            **loading.named_reader(model, tokenizer),
        )
        emit([_difference(first, second, args, form)], form, args.out, console)
    else:
        if form not in ("text", "json"):
            raise OptionError(f"A table of methods is text or json, not {form}.")
        emit([_methods(model, tokenizer, texts[0], args, form)], form, args.out, console)


def _difference(
    first: ContextMixingMap, second: ContextMixingMap, args: Namespace, form: str
) -> Any:
    asked = Namespace(**{**vars(args), "target": None})
    made = point(second, asked)[0].difference(point(first, asked)[0])
    if form == "text":
        return str(made) if args.target is None else f"{made}\n\n{made.attribution(args.target)}"
    if form == "json":
        return {
            "title": made.title,
            "tokens": made.tokens.shown(),
            "left_out": made.left_out,
            "input": made.input.tolist(),
        }
    if form == "html":
        return made.to_html()
    held = io.BytesIO()
    made.plot().savefig(held, format=form)
    return held.getvalue()


def _methods(model: Model, tokenizer: Tokenizer, text: str, args: Namespace, form: str) -> Any:
    """Each method's strongest tokens, and the rank correlation of every two."""
    specs = [spec(name, args.aggregate, {}) for name in args.methods or METHODS]
    asked = Namespace(**vars(args))
    rows = {
        name: point(made, asked)[1]
        for name, made in explain(
            model, text, specs, **loading.named_reader(model, tokenizer)
        ).items()
    }
    pairs = {(a, b): rows[a].rank_correlation(rows[b]) for a, b in combinations(rows, 2)}
    if form == "json":
        return {
            "model": args.model,
            "text": text,
            "rows": {name: row.to_dict() for name, row in rows.items()},
            "rank_correlation": [
                {"a": a, "b": b, "spearman": v if v == v else None} for (a, b), v in pairs.items()
            ],
        }
    return "\n\n".join([_strongest(rows), _matrix(list(rows), pairs)])


def _strongest(rows: dict[str, Attribution]) -> str:
    first = next(iter(rows.values()))
    cells = [
        (name, *(f"{token} {score:.3f}" for token, score in _padded(row)))
        for name, row in rows.items()
    ]
    return f"strongest sources of {first.target}{row_place(first.meta)}\n" + table(
        ("method", *(str(k + 1) for k in range(TOP))), cells
    )


def _padded(row: Attribution) -> list[tuple[str, float]]:
    found = row.top(TOP)
    return found + [("", 0.0)] * (TOP - len(found))


def _matrix(names: list[str], pairs: dict[tuple[str, str], float]) -> str:
    value = {**pairs, **{(b, a): v for (a, b), v in pairs.items()}}
    cells = [(a, *("1" if a == b else f"{value[a, b]:.2f}" for b in names)) for a in names]
    return "rank correlation (Spearman)\n" + table(("", *names), cells)
