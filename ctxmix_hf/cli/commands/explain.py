"""`ctxmix explain`: text -> map -> the view that was asked for."""

from __future__ import annotations

import io
import json
import os
import select
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ctxmix_hf import loading
from ctxmix_hf.attribution import ATTRIBUTIONS
from ctxmix_hf.cli.console import Console, write_out
from ctxmix_hf.cli.options import FORMATS
from ctxmix_hf.errors import InputError, OptionError, UnsupportedMethodError
from ctxmix_hf.explaining import attribute, explain
from ctxmix_hf.maps import Attribution, ContextMixingMap
from ctxmix_hf.recipes import RECIPES, method
from ctxmix_hf.tokens import read_encoding

STDIN_WAIT = 0.3  # seconds for something to arrive in a pipe nobody asked for


def run(args: Any, console: Console) -> None:
    texts = read_texts(args)
    form = view_format(args, console)
    model, tokenizer = loading.load_asked(args)
    texts = texts or [loading.example_of(args.model, tokenizer)]
    if len(texts) > 1 and form not in ("text", "json"):
        raise OptionError(f"{form} is made of one sentence, {len(texts)} were given.")
    made = []
    for number, text in enumerate(texts):
        console.progress(f"{number + 1} of {len(texts)}", last=number + 1 == len(texts)) if len(texts) > 1 else None
        made.append(view(*one(model, tokenizer, text, args), args, text, form))
    emit(made, form, args.out, console)


# ---- what to explain ----------------------------------------------------------------------------------------------
def read_texts(args: Any) -> list[str]:
    """From the arguments, a file or stdin; empty: nothing was given."""
    given = list(args.text)
    if args.file is not None:
        if given:
            raise OptionError("Give sentences or --file, not both.")
        return _lines(_read(Path(args.file)), args.file)
    if given == ["-"] or (not given and _piped()):
        return _lines(sys.stdin.read(), "stdin")
    if any(not text.strip() for text in given):
        raise InputError("The text is empty: there is no token to explain.")
    return given


def _piped() -> bool:
    """Something is waiting in stdin."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
        return stat.S_ISREG(kind) or (stat.S_ISFIFO(kind) and bool(select.select([sys.stdin], [], [], STDIN_WAIT)[0]))
    except (OSError, ValueError, AttributeError):
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Could not read {path}: {getattr(error, 'strerror', None) or error}.") from error


def _lines(text: str, where: str) -> list[str]:
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if not found:
        raise InputError(f"There is no text in {where}.")
    return found


# ---- the map and the row --------------------------------------------------------------------------------------------
def one(model: Any, tokenizer: Any, text: str, args: Any) -> tuple[ContextMixingMap | None, Attribution]:
    """(map of the layer asked for, row of the target); attribution methods have a row only."""
    given = read_options(args.option)
    if args.method in ATTRIBUTIONS:
        if args.aggregate:
            raise OptionError(f"{args.method} scores the input tokens: there is nothing to aggregate.")
        row = attribute(model, text, args.method, tokenizer=tokenizer, **given)
        return None, replace(row, tokens=read_encoding(tokenizer([text]), tokenizer, [text]))
    made = explain(model, text, spec(args.method, args.aggregate, given), tokenizer=tokenizer)
    return point(made, args)


def spec(name: str, aggregate: str | None, given: dict[str, Any]) -> Any:
    if aggregate in (None, "none") or "+" in name:
        return method(name, **given)
    if name in RECIPES:
        raise OptionError(f"{name} is a method with its aggregation already: choose the method alone for --aggregate {aggregate}.")
    return method(f"{name}+{aggregate}", **given)


def point(made: ContextMixingMap, args: Any) -> tuple[ContextMixingMap, Attribution]:
    """The layer and the row that were asked for."""
    if args.aggregate == "none":
        if made.layers is None:
            raise UnsupportedMethodError(f"{made.method} starts at the input: it has no maps within a layer.")
        made = replace(made, given_input=made.layers, aggregation="none")
    made = made.layer(args.layer) if args.layer != -1 else made
    return made, row_of(made, args.target)


def row_of(made: ContextMixingMap, target: str | None) -> Attribution:
    """A position, a piece, or a word."""
    if target is None:
        masks = [i for i, piece in enumerate(made.tokens[0].pieces) if piece in ("[MASK]", "<mask>")]
        return _named(made, masks[0]) if masks else made.attribution("[CLS]")
    if target.lstrip("-").isdigit() and target not in made.tokens[0].shown():
        return _named(made, int(target))
    try:
        return made.attribution(target)
    except InputError:
        words = made.words()
        if target.partition("#")[0] not in words.tokens[0].shown():
            raise
        return words.attribution(target)


def _named(made: ContextMixingMap, place: int) -> Attribution:
    row = made.attribution(place)
    return replace(row, target=f"{made.tokens[0].shown()[place]} ({place})")


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


# ---- views ------------------------------------------------------------------------------------------------------------
def view_format(args: Any, console: Console) -> str:
    suffix = Path(args.out).suffix.lstrip(".").lower() if args.out else ""
    suffix = {"txt": "text", "htm": "html", "jsonl": "json"}.get(suffix, suffix)
    if console.as_json and args.format not in (None, "json"):
        raise OptionError(f"--json and --format {args.format} contradict each other.")
    form: str = args.format or ("json" if console.as_json else suffix or "text")
    if form not in FORMATS:
        raise OptionError(f"Cannot write {args.out!r}: choose a suffix or --format among {', '.join(FORMATS)}.")
    return form


def view(made: ContextMixingMap | None, row: Attribution, args: Any, text: str, form: str) -> Any:
    if form == "text":
        row = row.words()
        return str(row) if made is None else f"{row}\n\n{made}"
    if form == "json":
        shared = {"model": args.model, "text": text}
        return {**row.to_dict(), **shared} if made is None else {**made.to_dict(), **shared, "attribution": row.to_dict()}
    if form == "html":
        return row.to_html() if made is None else made.to_html()
    figure = row.plot() if made is None else made.plot()
    held = io.BytesIO()
    figure.savefig(held, format=form)
    return held.getvalue()


def emit(made: list[Any], form: str, out: str | None, console: Console) -> None:
    """JSON of several sentences is one line each."""
    whole = b"".join(made) if isinstance(made[0], bytes) else "\n".join(
        json.dumps(item, ensure_ascii=False, allow_nan=False) if form == "json" else item for item in made
    )  # fmt: skip
    if out:
        write_out(out, whole)
        console.note(f"Wrote {out}.")
    elif isinstance(whole, bytes):
        if sys.stdout.isatty():
            raise OptionError(f"A {form} picture is no text: name a file with --out.")
        sys.stdout.buffer.write(whole)
    else:
        console.say(whole)
