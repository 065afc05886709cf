"""Finds the embedding norm: Hidden Token Attribution starts at the sum of embeddings that enters it."""

from __future__ import annotations

from torch import Tensor, nn

from ctxmix_hf.instrumentation.feedforward import Backtrack
from ctxmix_hf.instrumentation.roles import norm_of
from ctxmix_hf.instrumentation.trace import Trace


def embedding_norm(
    prelude: Trace, hidden: Tensor, root: nn.Module | None
) -> tuple[nn.Module | None, Tensor | None]:
    """(norm module, its input) between the sum of embeddings and the first layer; None where there is no norm."""
    back = Backtrack(prelude)
    waiting, seen = [prelude.known(hidden)], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        event = back.producers.get(node)
        if event is None:
            continue
        if norm_of(prelude, event) is not None:
            module = (
                event.payload if event.kind == "module" else _owner_of(event.payload.weight, root)
            )
            return module, prelude.values[event.inputs[0]].detach()
        if event.kind in ("alias", "linear", "scale", "shift", "gate"):  # dropout, projection, mask
            waiting.extend(event.inputs)
    return None, None


def _owner_of(weight: Tensor | None, root: nn.Module | None) -> nn.Module | None:
    if weight is None or root is None:
        return None
    return next(
        (module for module in root.modules() if getattr(module, "weight", None) is weight), None
    )
