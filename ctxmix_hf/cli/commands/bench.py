"""`ctxmix bench`: the time of each method on a model, as a multiple of the plain forward."""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from ctxmix_hf import loading
from ctxmix_hf.bundled import AGREEMENT
from ctxmix_hf.cli.console import Console, table
from ctxmix_hf.errors import CtxmixError, InputError
from ctxmix_hf.modeling import instrument, uninstrument
from ctxmix_hf.recipes import map_names, resolve
from ctxmix_hf.text.batch import encode_one
from ctxmix_hf.text.inputs import longest_input
from ctxmix_hf.text.kinds import Model, Tokenizer


def run(args: Namespace, console: Console) -> None:
    model, tokenizer = loading.load_asked(args)
    resolve(args.methods or [])  # a wrong name is said before anything is measured
    inputs = _inputs(model, tokenizer, args)
    uninstrument(model)
    plain = _seconds(lambda: model(**inputs), args.repeat)
    instrument(model, tokenizer)
    rows = []
    for name in args.methods or map_names():
        console.progress(name)
        rows.append(_row(model, inputs, name, plain, args.repeat))
    console.progress("", last=True)
    about = {
        "model": args.model,
        "tokens": args.tokens,
        "batch": args.batch,
        "threads": torch.get_num_threads(),
        "plain_ms": 1000 * plain,
    }
    if console.as_json:
        console.data({**about, "methods": rows})
        return
    console.say(
        f"{args.model}: {args.batch} sentences of {args.tokens} tokens; the plain forward takes {1000 * plain:.1f} ms"
    )
    cells = [(r["method"], *_cells(r)) for r in rows]
    console.say(table(("method", "ms", "x forward", ""), cells))


def _cells(row: dict[str, Any]) -> tuple[str, str, str]:
    return (
        ("-", "-", row["error"])
        if "error" in row
        else (f"{row['ms']:.1f}", f"{row['ratio']:.1f}", "")
    )


def _row(
    model: Model, inputs: dict[str, Any], name: str, plain: float, repeat: int
) -> dict[str, Any]:
    """One method; what this model cannot do is said, not fatal. Aggregation counts: it is part of the map."""
    try:
        seconds = _seconds(
            lambda: (
                next(
                    iter(model(**inputs, output_context_mixing=[name]).context_mixing.values())
                ).input
            ),
            repeat,
        )
    except CtxmixError as error:
        return {"method": name, "error": str(error)}
    return {"method": name, "ms": 1000 * seconds, "ratio": seconds / plain}


def _inputs(model: PreTrainedModel, tokenizer: Tokenizer, args: Namespace) -> dict[str, Any]:
    """Sentences of exactly so many tokens: an example, repeated."""
    longest = longest_input(model, tokenizer)
    if longest is not None and args.tokens > longest:
        raise InputError(f"--tokens {args.tokens} is more than {args.model} takes ({longest}).")
    ids = encode_one(tokenizer, AGREEMENT.example, add_special_tokens=False)["input_ids"]
    row = (ids * (args.tokens // len(ids) + 1))[: args.tokens]
    both = torch.tensor([row] * args.batch, device=model.device)
    return {"input_ids": both, "attention_mask": torch.ones_like(both)}


@torch.no_grad()
def _seconds(work: Callable[[], Any], repeat: int) -> float:
    """The median, after one run that does not count."""
    work()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
