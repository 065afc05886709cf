"""Hidden states of all sentences, for the evaluations that train something on them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ctxmix_hf.evaluation.bench import Bench, Ready
from ctxmix_hf.evaluation.sessions import watched


@torch.no_grad()
def hidden_states(
    bench: Bench, ready: Sequence[Ready], progress: bool | None = None
) -> list[Tensor]:
    """e^0 ... e^L of every sentence without its padding: one `[L+1, T, D]` each, float32 on the CPU."""
    found: dict[int, Tensor] = {}
    for batch in watched(bench.batches(ready), "hidden states", progress):
        out = bench.model(**bench.inputs_of([ready[i] for i in batch]), output_decomposition=True)
        stacked = torch.stack(
            [state.float().cpu() for state in out.decomposition.hidden_states], dim=1
        )  # [B, L+1, T, D]
        for b, i in enumerate(batch):
            found[i] = stacked[b, :, : len(ready[i].ids)].clone()
    return [found[i] for i in range(len(ready))]
