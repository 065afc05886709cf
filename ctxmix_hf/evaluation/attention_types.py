"""Where do attention and effective attention go, and how large is the part that cannot matter?
(Brunner et al. 2020, section 3, figures 1b, 1c, 5 and 6)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.counting import layer_number
from ctxmix_hf.evaluation.bench import Bench, Ready
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.metrics import mean_of, summarise
from ctxmix_hf.evaluation.sessions import Result, content_key, rounded
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form
from ctxmix_hf.recipes import method as recipe
from ctxmix_hf.text.kinds import Tokenizer

TYPES = ("[CLS]", "[SEP]", ". ,", "other")
PARTS = ("raw", "effective", "null")
ANY = "any"


def type_of(piece: str, tokenizer: Tokenizer) -> str:
    """`[CLS]`, `[SEP]`, `. ,` or `other`, whatever the tokenizer calls the first two."""
    if piece == tokenizer.cls_token:
        return TYPES[0]
    if piece == tokenizer.sep_token:
        return TYPES[1]
    return TYPES[2] if piece.strip("▁Ġ") in (".", ",") else TYPES[3]


def attention_to_types(maps: Tensor, types: Sequence[str]) -> dict[tuple[str, str], list[float]]:
    """Mean attention from tokens of one type (or `"any"`) to all tokens of a type, per layer.

    Args:
        maps: attention of one sentence, `[L, H, T target, T source]`.
        types: the type of each of the T tokens.

    Returns:
        `(from, to)` to one number per layer, the mean over heads and over the rows of `from`;
        rows of attention sum to 1, so the numbers of one `from` do too.

    Example:
        >>> attention_to_types(torch.eye(2)[None, None], ["[CLS]", "other"])[("any", "[CLS]")]
        [0.5]
    """
    kinds = np.array(types)
    found = {}
    for start in (ANY, *dict.fromkeys(types)):
        rows = np.flatnonzero(kinds == start) if start != ANY else np.arange(len(kinds))
        for end in dict.fromkeys(types):
            columns = np.flatnonzero(kinds == end)
            mass = maps[..., rows[:, None], columns].sum(dim=-1)  # [L, H, rows]
            found[start, end] = [float(v) for v in mass.mean(dim=(-2, -1))]
    return found


def null_dimension(values: Tensor) -> Tensor:
    """How many dimensions of attention cannot change a head's output: `T - rank(V)` (Brunner et al. 2020, eq. 4-6).

    Args:
        values: value vectors `[..., T, E]`.

    Returns:
        `[...]`, at least `max(0, T - E)`.
    """
    return values.shape[-2] - torch.linalg.matrix_rank(values)


@torch.no_grad()
def _batch(bench: Bench, ready: Sequence[Ready]) -> list[Result]:
    asked: list[Any] = [
        recipe("attention", per_head=True),
        recipe("effective_attention", per_head=True),
    ]
    out = bench.model(
        **bench.inputs_of(ready), output_context_mixing=asked, output_decomposition=True
    )
    raw = out.context_mixing["attention"].heads
    effective = out.context_mixing["effective_attention"].heads
    results: list[Result] = []
    for b, item in enumerate(ready):
        n = len(item.ids)
        kinds = [type_of(piece, bench.tokenizer) for piece in item.pieces]
        maps = {"raw": raw[b, ..., :n, :n], "effective": effective[b, ..., :n, :n]}
        maps["null"] = maps["raw"] - maps["effective"]
        moved = {
            f"{part}|{start}|{end}": rounded(values)
            for part, made in maps.items()
            for (start, end), values in attention_to_types(made, kinds).items()
        }
        dimensions = [
            null_dimension(layer.values[b, :, :n].float()).double().mean().item()
            for layer in out.decomposition
        ]
        size = out.decomposition[0].values.shape[-1]
        results.append({"moved": moved, "length": n, "size": size, "null": rounded(dimensions)})
    return results


def measured(context: Context) -> list[Result]:
    """Per sentence: `moved` by `part|from|to` and layer, its length, the head size, `null` dimensions per layer."""
    context.need_sentences()
    keys = [
        content_key("types", item.sample.key, item.ids, context.bench.fingerprint)
        for item in context.ready
    ]

    def compute(batch: Sequence[int]) -> list[Result]:
        return _batch(context.bench, [context.ready[i] for i in batch])

    return context.store("types").run(
        keys, context.bench.batches(context.ready), compute, "attention by type", context.progress
    )


@evaluation(
    "attention_types",
    "raw, effective and null attention from and to kinds of tokens, by layer",
    "Brunner et al. 2020, figures 1b, 1c and 5",
)
def attention_types(context: Context) -> EvaluationTable:
    """One row per part of attention, kind it comes from, kind it goes to, and layer; mean over heads and sentences."""
    found = measured(context)
    names = list(dict.fromkeys(name for r in found for name in r["moved"]))
    rows: list[list[Cell]] = []
    for name in names:
        part, start, end = name.split("|")
        some = [r["moved"][name] for r in found if name in r["moved"]]
        for layer in range(len(some[0])):
            made = summarise([values[layer] for values in some], context.seed)
            line = f"{part}, {start} to {end}"
            rows.append(
                [
                    line,
                    part,
                    start,
                    end,
                    layer_number(layer),
                    made.mean,
                    made.low,
                    made.high,
                    made.n,
                ]
            )
    form = Form("lines", "line", "attention", "layer", title="Attention by kind of token")
    columns = ("line", "part", "from", "to", "layer", "attention", "ci_low", "ci_high", "n")
    caption = (
        "mean attention from and to kinds of tokens: raw, effective, and what is in the null space"
    )
    return context.table("attention_types", columns, rows, caption, form=form)


@evaluation(
    "null_space",
    "dimensions of attention that cannot change a head's output, by length",
    "Brunner et al. 2020, eq. 4-6",
)
def null_space(context: Context) -> EvaluationTable:
    """One row per number of tokens: `T - rank(V)`, mean over heads and layers, and the bound `max(0, T - E)`."""
    found = measured(context)
    rows: list[list[Cell]] = []
    for length in sorted({r["length"] for r in found}):
        some = [r for r in found if r["length"] == length]
        bound = max(0, length - some[0]["size"])
        rows.append(
            ["T - rank(V)", length, mean_of([mean_of(r["null"]) for r in some]), bound, len(some)]
        )
    form = Form("lines", "measure", "dimension", "tokens", title="Dimension of the null space")
    columns = ("measure", "tokens", "dimension", "at_least", "n")
    return context.table(
        "null_space", columns, rows, "dimension of the null space of attention", form=form
    )
