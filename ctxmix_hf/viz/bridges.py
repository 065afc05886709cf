"""Maps as other tools take them: bertviz's views, inseq's outputs."""

from __future__ import annotations

from typing import Any

from ctxmix_hf.errors import MissingDependencyError
from ctxmix_hf.maps import ContextMixingMap
from ctxmix_hf.viz.payload import check_not_empty


def to_bertviz(m: ContextMixingMap, example: int = 0) -> dict[str, Any]:
    """Keywords for `bertviz.head_view` and `bertviz.model_view`: a `[1, heads, T, T]` tensor per layer, and the tokens.

    bertviz draws `attention[target, source]`, which is how our maps lie. Without per-head maps there is one head.
    """
    check_not_empty(m)
    one = m[example]
    per_layer = one.heads if one.heads is not None else (one.layers if one.layers is not None else one.input)[:, :, None]
    return {"attention": tuple(per_layer[:, layer].detach().cpu() for layer in range(m.depth)), "tokens": list(one.tokens[0].pieces)}


def to_inseq(m: ContextMixingMap, layer: int = -1, example: int = 0) -> Any:
    """An `inseq.FeatureAttributionOutput` whose sources and targets are the sentence's tokens (`[source, target]`)."""
    try:
        from inseq.data import FeatureAttributionOutput  # type: ignore[import-not-found]
        from inseq.data.attribution import CoarseFeatureAttributionSequenceOutput  # type: ignore[import-not-found]
        from inseq.utils.typing import TokenWithId  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingDependencyError("to_inseq() needs inseq, which is not installed: pip install inseq.") from error
    check_not_empty(m)
    one = m[example]
    ids = one.tokens[0].ids or tuple(-1 for _ in one.tokens[0])
    tokens = [TokenWithId(piece, number) for piece, number in zip(one.tokens[0].pieces, ids, strict=True)]
    scores = one.input[0, layer].detach().cpu().float().T.contiguous()
    sequence = CoarseFeatureAttributionSequenceOutput(  # one number per pair: nothing left to aggregate
        source=tokens, target=list(tokens), source_attributions=scores, step_scores={}, sequence_scores={}, attr_pos_start=0,
        attr_pos_end=len(tokens),
    )  # fmt: skip
    info = {"attribution_method": m.method, "model_name": str((m.meta.get("origin") or {}).get("model"))}
    return FeatureAttributionOutput(sequence_attributions=[sequence], info=info)
