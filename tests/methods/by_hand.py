"""One layer small enough for paper and pencil: two tokens, one head, no norms.

x = [1, 0], [0, 1]        A = [1/2, 1/2], [1/4, 3/4]        V = [2, 0], [0, 4]        W_O = I
z = [[1, 0], [0, 2]], [[1/2, 0], [0, 3]]                    u = [2, 2], [1/2, 4]
"""

from __future__ import annotations

import torch

from ctxmix_hf.records import Block, LayerRecord

ATTENTION = [[0.5, 0.5], [0.25, 0.75]]


def layer(values: list[list[float]] | None = None) -> LayerRecord:
    """The layer above; `values` in place of V (then without a block: only attention and values are known)."""
    tensor = lambda rows: torch.tensor([rows], dtype=torch.float64)
    x, attention = tensor([[1.0, 0.0], [0.0, 1.0]]), tensor([ATTENTION])
    v = tensor([values or [[2.0, 0.0], [0.0, 4.0]]])
    u = x + (attention @ v)[:, 0] if values is None else x
    block = Block(
        projection=torch.eye(2, dtype=torch.float64)[None],
        projection_bias=None,
        branch_norm=None,
        residual=x,
        before_norm=u,
        norm1=None,
        output=u,
        tail=(),
        tail_complete=True,
        order="parallel",
    )
    return LayerRecord(
        index=0,
        name="layer",
        layer_input=x,
        attention=attention,
        values=v,
        output=u,
        mask=torch.ones(1, 2, dtype=torch.bool),
        path="eager",
        level2=None if values else block,
    )
