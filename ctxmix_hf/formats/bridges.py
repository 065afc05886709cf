"""Results as other tools take them: bertviz's views, inseq's outputs, SHAP's explanations, Captum's records."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctxmix_hf.counting import layer_index
from ctxmix_hf.errors import MissingDependencyError
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.ledgers import Ledger
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.viz.payload import check_not_empty


def to_bertviz(m: ContextMixingMap, example: int = 0) -> dict[str, Any]:
    """Keywords for `bertviz.head_view` and `bertviz.model_view`: a `[1, heads, T, T]` tensor per layer, and the tokens.

    bertviz draws `attention[target, source]`, which is how our maps lie. Without per-head maps there is one head.
    """
    check_not_empty(m)
    one = m[example]
    per_layer = (
        one.heads
        if one.heads is not None
        else (one.layers if one.layers is not None else one.input)[:, :, None]
    )
    return {
        "attention": tuple(per_layer[:, layer].detach().cpu() for layer in range(m.depth)),
        "tokens": list(one.tokens[0].pieces),
    }


def to_inseq(m: ContextMixingMap, layer: int = -1, example: int = 0) -> Any:
    """An `inseq.FeatureAttributionOutput` whose sources and targets are the sentence's tokens (`[source, target]`)."""
    try:
        from inseq.data import FeatureAttributionOutput  # type: ignore[import-not-found]
        from inseq.data.attribution import CoarseFeatureAttributionSequenceOutput  # type: ignore[import-not-found]
        from inseq.utils.typing import TokenWithId  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingDependencyError(
            "to_inseq() needs inseq, which is not installed: pip install inseq."
        ) from error
    check_not_empty(m)
    one = m[example]
    ids = one.tokens[0].ids or tuple(-1 for _ in one.tokens[0])
    tokens = [
        TokenWithId(piece, number) for piece, number in zip(one.tokens[0].pieces, ids, strict=True)
    ]
    scores = one.input[0, layer_index(layer, m.layer_numbers)].detach().cpu().float().T.contiguous()
    sequence = (
        CoarseFeatureAttributionSequenceOutput(  # one number per pair: nothing left to aggregate
            source=tokens,
            target=list(tokens),
            source_attributions=scores,
            step_scores={},
            sequence_scores={},
            attr_pos_start=0,
            attr_pos_end=len(tokens),
        )
    )
    info = {
        "attribution_method": m.method,
        "model_name": str((m.meta.get("origin") or {}).get("model")),
    }
    return FeatureAttributionOutput(sequence_attributions=[sequence], info=info)


def to_shap(a: Attribution, example: int = 0, base_value: float = 0.0) -> Any:
    """A `shap.Explanation` of one example: `shap.plots.text(a.to_shap())`, `.bar`, `.waterfall`.

    SHAP takes `base_values + values.sum()` for what is explained: give `base_value` where scores are
    differences from something (a ledger knows its own).
    """
    try:
        import shap
    except ImportError as error:
        raise MissingDependencyError.of("shap", "interop") from error
    one = a[example]
    shown = one.tokens[0].shown()
    return shap.Explanation(
        values=one.scores[0, : len(shown)].detach().cpu().double().numpy(),
        base_values=np.float64(base_value),
        data=np.array(shown, dtype=object),
        feature_names=shown,
    )


def ledger_to_shap(l: Ledger, example: int = 0) -> Any:
    """The account as a `shap.Explanation` whose base value are the biases: the sum is the model's own number."""
    one = l[example]
    return to_shap(one.attribution, 0, float(one.bias[0]))


def to_captum(a: Attribution, example: int = 0) -> Any:
    """A Captum `VisualizationDataRecord`: `captum.attr.visualization.visualize_text([a.to_captum()])`.

    Scores are divided by the largest one, since Captum colours from -1 to 1.
    """
    try:
        from captum.attr import visualization
    except ImportError as error:
        raise MissingDependencyError.of("captum", "interop") from error
    one = a[example]
    shown = one.tokens[0].shown()
    scores = one.scores[0, : len(shown)].detach().cpu().double()
    largest = float(scores.abs().max())
    return visualization.VisualizationDataRecord(
        word_attributions=scores / largest if largest else scores,
        pred_prob=float("nan"),  # a result does not hold the model's outputs
        pred_class=a.target,
        true_class="-",
        attr_class=a.method,
        attr_score=float(scores.sum()),
        raw_input_ids=shown,
        convergence_score=0.0,
    )
