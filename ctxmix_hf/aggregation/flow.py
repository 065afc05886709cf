"""Attention flow: contributions as maximum flows through the layers (Abnar & Zuidema 2020, section 3)."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.errors import OptionError

NEGATIVE = {"clamp": lambda maps: maps.clamp(min=0), "absolute": torch.abs}
ROWS_EACH = 8  # of a thread, between which whoever waits can interrupt
SLOW = 20_000  # flows that plain Python should not be asked for without a word


def flow(
    maps: Tensor,
    mask: Tensor | None = None,
    *,
    layers: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    row_shares: bool = True,
    negative: str | None = None,
) -> Tensor:
    """`flow[l,i,j]`: maximum flow from token i of layer l to input token j, edges weighing `maps` `[B, L, T, T]`.

    The residual must be in the maps already. Rows are divided by their sum as the authors' code does; the raw values
    (`row_shares=False`) are at most 1 for maps whose rows sum to 1. `layers` (from 0) and `targets` restrict what
    is computed; other rows are zero. Padding takes no part. A capacity cannot be negative, and no paper says what to
    do with one: maps that have some are refused unless `negative` is `"clamp"` (they count as 0: no edge) or
    `"absolute"` (their size counts, whatever the sign).
    """
    from ctxmix_hf.aggregation import maxflow  # numba: a third of a second that only flows need

    if negative not in (None, *NEGATIVE):
        raise OptionError.among("negative", negative, (None, *NEGATIVE))
    if negative is not None:
        maps = NEGATIVE[negative](maps)
    elif bool((maps < 0).any()):
        raise OptionError(
            "Flow needs maps without negative entries, which cannot be capacities (effective attention has some): "
            "m.aggregate('flow', negative='clamp') takes them as 0, negative='absolute' by their size."
        )
    batch, depth, tokens, _ = maps.shape
    chosen = [layer % depth for layer in layers] if layers is not None else list(range(depth))
    if maxflow.COMPILER is None:
        _warn_if_slow(batch * len(chosen) * tokens * (tokens if targets is None else len(targets)))
    result = torch.zeros(batch, depth, tokens, tokens, dtype=torch.float64)
    for b in range(batch):
        real = torch.arange(tokens) if mask is None else mask[b].cpu().nonzero().squeeze(-1)
        graph = maps[b].detach().cpu().double()[:, real[:, None], real].contiguous().numpy()
        rows = [
            int(t)
            for t in range(len(real))
            if targets is None or int(real[t]) in {x % tokens for x in targets}
        ]
        starts = np.array(rows, dtype=np.int64)
        with _as_many_threads_as_torch() as threads:
            reach, step = maxflow.deliverable_to_all(graph), ROWS_EACH * threads
            for layer, first in itertools.product(chosen, range(0, len(rows), step)):
                some = starts[first : first + step]
                found = maxflow.flows_from(graph, reach, layer + 1, some)
                result[b, layer, real[some][:, None], real] = torch.from_numpy(found)
    result = result.to(maps.device, maps.dtype)
    return to_shares(result) if row_shares else result


@contextlib.contextmanager
def _as_many_threads_as_torch() -> Iterator[int]:
    """Both may share one OpenMP, where the solver's threads would be torch's from then on: whoever asked for
    one would compute with all. Gives the number, which torch itself may report wrongly until it is set again.
    """
    from ctxmix_hf.aggregation import maxflow

    own, numba = torch.get_num_threads(), maxflow.COMPILER
    if numba is None:
        yield own
        return
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(min(own, numba.config.NUMBA_NUM_THREADS))
        yield own
    finally:
        numba.set_num_threads(before)
        torch.set_num_threads(own)


def _warn_if_slow(count: int) -> None:
    if count > SLOW:
        warnings.warn(
            f"{count} maximum flows in plain Python will take long: pip install 'ctxmix-hf[flow]' "
            "for the compiled solver.",
            stacklevel=3,
        )
