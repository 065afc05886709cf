"""`ctxmix explain`: text -> map -> the view that was asked for."""

from __future__ import annotations

import io
import json
import os
import select
import stat
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from ctxmix_hf import loading
from ctxmix_hf.asked import row_of
from ctxmix_hf.attribution import ATTRIBUTIONS
from ctxmix_hf.cli.console import Console, write_out
from ctxmix_hf.cli.options import FORMATS
from ctxmix_hf.counting import layer_index
from ctxmix_hf.errors import InputError, OptionError, UnsupportedMethodError
from ctxmix_hf.explaining import attribute, explain
from ctxmix_hf.recipes import RECIPES, method
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.text.batch import encode_one, reads
from ctxmix_hf.text.kinds import Model, Tokenizer

LONG = 512  # tokens from which --target gives the row alone, without a map
STDIN_WAIT = 0.3  # seconds for something to arrive in a pipe nobody asked for


def run(args: Namespace, console: Console) -> None:
    texts = read_texts(args, whole=args.segments is not None)
    form = view_format(args, console)
    model, tokenizer = loading.load_asked(args)
    if not texts and reads(model) != "text":
        raise InputError(f"{args.model} reads {reads(model)}: give the path of a file.")
    texts = texts or [loading.example_of(args.model, tokenizer)]
    if len(texts) > 1 and form not in ("text", "json"):
        raise OptionError(f"{form} is made of one sentence, {len(texts)} were given.")
    made = []
    for number, text in enumerate(texts):
        console.progress(f"{number + 1} of {len(texts)}", last=number + 1 == len(texts)) if len(
            texts
        ) > 1 else None
        made.append(view(*one(model, tokenizer, text, args), args, text, form))
    emit(made, form, args.out, console)


# ---- what to explain ----------------------------------------------------------------------------------------------
def read_texts(args: Namespace, whole: bool = False) -> list[str]:
    """From the arguments, a file or stdin (a text per line, or `whole`); empty: nothing was given."""
    given = list(args.text)
    if args.file is not None:
        if given:
            raise OptionError("Give sentences or --file, not both.")
        return _lines(_read(Path(args.file)), args.file, whole)
    if given == ["-"] or (not given and _piped()):
        return _lines(sys.stdin.read(), "stdin", whole)
    if any(not text.strip() for text in given):
        raise InputError("The text is empty: there is no token to explain.")
    return given


def _piped() -> bool:
    """Something is waiting in stdin."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
        return stat.S_ISREG(kind) or (
            stat.S_ISFIFO(kind) and bool(select.select([sys.stdin], [], [], STDIN_WAIT)[0])
        )
    except (OSError, ValueError, AttributeError):
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"Could not read {path}: {getattr(error, 'strerror', None) or error}."
        ) from error


def _lines(text: str, where: str, whole: bool = False) -> list[str]:
    """A text per line, or all of it as one."""
    found = [line.strip() for line in ([text] if whole else text.splitlines()) if line.strip()]
    if not found:
        raise InputError(f"There is no text in {where}.")
    return found


# ---- the map and the row --------------------------------------------------------------------------------------------
def one(
    model: Model, tokenizer: Tokenizer, text: str, args: Namespace
) -> tuple[ContextMixingMap | None, Attribution]:
    """(map of the layer asked for, row of the target); attribution methods have a row only."""
    given = read_options(args.option)
    reader = loading.named_reader(model, tokenizer)
    if args.method in ATTRIBUTIONS:
        _check_row_options(args)
        return None, attribute(model, text, args.method, **reader, **given)
    asked = spec(args.method, args.aggregate, given)
    if args.segments is not None:
        return point(explain(model, text, asked, segments=args.segments, **reader), args)
    if args.target is not None and args.aggregate is None and _is_long(tokenizer, text):
        row = explain(model, text, asked, target=_position(args.target), layers=True, **reader)
        return None, row[layer_index(args.layer, range(1, len(row) + 1))]
    return point(explain(model, text, asked, **reader), args)


def _is_long(tokenizer: Tokenizer, text: str) -> bool:
    """A text whose whole map nobody could look at: only the row is made."""
    return (
        tokenizer is not None
        and len(text) >= LONG
        and len(encode_one(tokenizer, text, verbose=False)["input_ids"]) >= LONG
    )


def _position(target: str) -> int | str:
    return int(target) if target.lstrip("-").isdigit() else target


def _check_row_options(args: Namespace) -> None:
    """What chooses a part of a map chooses nothing of an attribution."""
    if args.aggregate:
        raise OptionError(f"{args.method} scores the input tokens: there is nothing to aggregate.")
    if args.target is not None:
        raise OptionError(
            f"{args.method} explains a prediction: name what with --option class_index=... instead of --target."
        )
    if args.segments is not None:
        raise OptionError(
            f"{args.method} scores the input tokens and makes no map: leave --segments out."
        )
    if args.layer != -1:
        raise OptionError(
            f"{args.method} scores the input tokens: take gradients at a layer with --option "
            "layer=... instead of --layer."
        )


def spec(name: str, aggregate: str | None, given: dict[str, Any]) -> Any:
    if aggregate in (None, "none") or "+" in name:
        return method(name, **given)
    if name in RECIPES:
        raise OptionError(
            f"{name} is a method with its aggregation already: choose the method alone for --aggregate {aggregate}."
        )
    return method(f"{name}+{aggregate}", **given)


def point(made: ContextMixingMap, args: Namespace) -> tuple[ContextMixingMap, Attribution]:
    """The layer and the row that were asked for."""
    if args.aggregate == "none":
        if made.layers is None:
            raise UnsupportedMethodError(
                f"{made.method} starts at the input: it has no maps within a layer."
            )
        made = replace(made, given_input=made.layers, aggregation="none")
    made = made.layer(args.layer) if args.layer != -1 else made
    return made, row_of(made, args.target)


def read_options(given: list[str]) -> dict[str, Any]:
    """`key=value`, the value as JSON where it is, else as text."""
    found = {}
    for item in given:
        key, sign, value = item.partition("=")
        if not sign or not key:
            raise OptionError(f"--option {item!r} is not KEY=VALUE.")
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError:
            found[key] = {"True": True, "False": False, "None": None}.get(value, value)
    return found


# ---- views
# ------------------------------------------------------------------------------------------------------------
def view_format(args: Namespace, console: Console) -> str:
    suffix = Path(args.out).suffix.lstrip(".").lower() if args.out else ""
    suffix = {"txt": "text", "htm": "html", "jsonl": "json"}.get(suffix, suffix)
    if console.as_json and args.format not in (None, "json"):
        raise OptionError(f"--json and --format {args.format} contradict each other.")
    form: str = args.format or ("json" if console.as_json else suffix or "text")
    if form not in FORMATS:
        raise OptionError(
            f"Cannot write {args.out!r}: choose a suffix or --format among {', '.join(FORMATS)}."
        )
    return form


def view(
    made: ContextMixingMap | None, row: Attribution, args: Namespace, text: str, form: str
) -> Any:
    if form == "text":
        row = row.words()
        return str(row) if made is None else f"{row}\n\n{made}"
    if form == "json":
        shared = {"model": args.model, "text": text}
        return (
            {**row.to_dict(), **shared}
            if made is None
            else {**made.to_dict(), **shared, "attribution": row.to_dict()}
        )
    if form == "html":
        return row.to_html() if made is None else made.to_html()
    figure = row.plot() if made is None else made.plot()
    held = io.BytesIO()
    figure.savefig(held, format=form)
    return held.getvalue()


def emit(made: list[Any], form: str, out: str | None, console: Console) -> None:
    """JSON of several sentences is one line each."""
    whole = (
        b"".join(made)
        if isinstance(made[0], bytes)
        else "\n".join(
            json.dumps(item, ensure_ascii=False, allow_nan=False) if form == "json" else item
            for item in made
        )
    )
    if out:
        write_out(out, whole)
        console.note(f"Wrote {out}.")
    elif isinstance(whole, bytes):
        if sys.stdout.isatty():
            raise OptionError(f"A {form} picture cannot be printed: name a file with --out.")
        sys.stdout.buffer.write(whole)
    else:
        console.say(whole)
