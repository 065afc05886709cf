"""A planned batch through the model. Where memory ends it is halved; where a row fails, the others go on without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ctxmix_hf.errors import CtxmixError
from ctxmix_hf.hub.computing import Kept, compute
from ctxmix_hf.precompute.plan import Batch
from ctxmix_hf.recipes import Recipe, TargetRows, Wanted
from ctxmix_hf.sparse import SparseMap, Tops
from ctxmix_hf.text.kinds import Model, Tokenizer

Maps = dict[str, Any]
Computed = tuple[
    list[int], Maps, list[dict[str, Any]], list[str | None]
]  # rows that worked, maps, example lines, keys
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "failed to allocate")


def no_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        words in str(error).lower() for words in _NO_MEMORY
    )


def compute_batch(
    model: Model,
    tokenizer: Tokenizer,
    recipes: dict[str, Recipe],
    batch: Batch,
    wanted: Wanted | None = None,
) -> tuple[Computed | None, list[tuple[str, str]]]:
    """(what worked, rows that failed with the reason). Halves are joined again: the store gets the
    batch as it was planned.
    """
    failed: list[tuple[str, str]] = []
    run = partial(compute, model, tokenizer, recipes, options={}, wanted=wanted)
    made = _compute(run, batch, list(range(len(batch))), failed)
    return made, failed


def _compute(
    run: Callable[..., Any],
    batch: Batch,
    rows: list[int],
    failed: list[tuple[str, str]],
) -> Computed | None:
    why = ""
    try:
        maps, about, keys = run(given=[batch[i][1] for i in rows])
        for made in maps.values():
            check_finite(made)
        return rows, maps, about, keys
    except (CtxmixError, RuntimeError, MemoryError, ValueError, IndexError) as error:
        why = (
            "out of memory"
            if no_memory(error)
            else f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        )
    if torch.cuda.is_available():  # outside the handler: its traceback holds the tensors
        torch.cuda.empty_cache()
    if len(rows) == 1:
        failed.append((batch[rows[0]][0], why))
        return None
    middle = len(rows) // 2
    halves = [_compute(run, batch, part, failed) for part in (rows[:middle], rows[middle:])]
    return join([half for half in halves if half is not None])


def check_finite(made: Kept) -> None:
    if isinstance(made, TargetRows):
        values = made.scores
    elif isinstance(made, SparseMap):
        values = made.input.values
    else:
        values = made.layers if made.layers is not None else made.input
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"{made.method} is not finite")


def join(parts: list[Computed]) -> Computed | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    maps = {key: join_maps([part[1][key] for part in parts]) for key in parts[0][1]}
    about = [line for part in parts for line in part[2]]
    return (
        [i for part in parts for i in part[0]],
        maps,
        about,
        [key for part in parts for key in part[3]],
    )


def join_maps(maps: list[Any]) -> Any:
    """One batch of several, padded to the longest."""
    size = max(made.mask.shape[1] for made in maps)
    if isinstance(maps[0], TargetRows):
        scores = torch.cat([pad(m.scores, (0, size - m.scores.shape[-1])) for m in maps])
        return replace(maps[0], scores=scores, outline=join_maps([m.outline for m in maps]))
    if isinstance(maps[0], SparseMap):
        layers = None if maps[0].layers is None else _join_tops([m.layers for m in maps], size)
        outline = join_maps([m.outline for m in maps])
        return SparseMap(_join_tops([m.input for m in maps], size), layers, outline)

    def both(held: list[Tensor | None]) -> Tensor | None:
        found = [t for t in held if t is not None]
        return (
            torch.cat([pad(t, (0, size - t.shape[-1], 0, size - t.shape[-1])) for t in found])
            if found
            else None
        )

    return replace(
        maps[0],
        layers=both([m.layers for m in maps]),
        heads=None,
        given_input=both([m.given_input for m in maps]),
        mask=torch.cat([pad(m.mask, (0, size - m.size)) for m in maps]),
        tokens=[tokens.with_length(size) for m in maps for tokens in m.tokens],
    )


def _join_tops(parts: list[Tops], size: int) -> Tops:
    k = max(part.sources.shape[-1] for part in parts)
    wide = lambda t: pad(t, (0, k - t.shape[-1], 0, size - t.shape[-2]))
    rest = [pad(part.rest, (0, size - part.rest.shape[-1])) for part in parts]
    return Tops(
        torch.cat([wide(part.sources) for part in parts]),
        torch.cat([wide(part.values) for part in parts]),
        torch.cat(rest),
    )
