"""Which tokens was each representation made from? Context mixing in any Hugging Face encoder.

    import ctxmix_hf as cm

    model, tokenizer = cm.load_default()
    m = cm.explain(model, "The keys to the cabinet [MASK] on the table.", "value_zeroing")
    print(m.attribution("[MASK]"))

Names are imported when first used, so that the command line starts without torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Attribution": "maps",
    "AutoContextMixingModel": "auto",
    "AutoContextMixingModelForAudioClassification": "auto",
    "AutoContextMixingModelForImageClassification": "auto",
    "AutoContextMixingModelForMaskedLM": "auto",
    "AutoContextMixingModelForQuestionAnswering": "auto",
    "AutoContextMixingModelForSequenceClassification": "auto",
    "AutoContextMixingModelForTokenClassification": "auto",
    "ContextMixingMap": "maps",
    "ContextMixingPipeline": "pipeline",
    "CtxmixError": "errors",
    "MapDifference": "viz.difference",
    "MapStore": "hub.store",
    "EvaluationTable": "evaluation.table",
    "attribute": "explaining",
    "evaluate": "evaluation.suite",
    "explain": "explaining",
    "instrument": "modeling",
    "list_methods": "catalogue",
    "load_default": "auto",
    "method": "recipes",
    "mixing_ratios": "methods.ratios",
    "plot_methods": "viz.figures",
    "similarity": "explaining",
    "supported_architectures": "architectures",
    "uninstrument": "modeling",
    "verify": "verification",
}

__all__ = [
    "Attribution",
    "AutoContextMixingModel",
    "AutoContextMixingModelForAudioClassification",
    "AutoContextMixingModelForImageClassification",
    "AutoContextMixingModelForMaskedLM",
    "AutoContextMixingModelForQuestionAnswering",
    "AutoContextMixingModelForSequenceClassification",
    "AutoContextMixingModelForTokenClassification",
    "ContextMixingMap",
    "ContextMixingPipeline",
    "CtxmixError",
    "EvaluationTable",
    "MapDifference",
    "MapStore",
    "__version__",
    "attribute",
    "evaluate",
    "explain",
    "instrument",
    "list_methods",
    "load_default",
    "method",
    "mixing_ratios",
    "plot_methods",
    "similarity",
    "supported_architectures",
    "uninstrument",
    "verify",
]

if TYPE_CHECKING:
    from ctxmix_hf.architectures import supported_architectures
    from ctxmix_hf.auto import (
        AutoContextMixingModel,
        AutoContextMixingModelForAudioClassification,
        AutoContextMixingModelForImageClassification,
        AutoContextMixingModelForMaskedLM,
        AutoContextMixingModelForQuestionAnswering,
        AutoContextMixingModelForSequenceClassification,
        AutoContextMixingModelForTokenClassification,
        load_default,
    )
    from ctxmix_hf.catalogue import list_methods
    from ctxmix_hf.errors import CtxmixError
    from ctxmix_hf.evaluation.suite import evaluate
    from ctxmix_hf.evaluation.table import EvaluationTable
    from ctxmix_hf.explaining import attribute, explain, similarity
    from ctxmix_hf.hub.store import MapStore
    from ctxmix_hf.maps import Attribution, ContextMixingMap
    from ctxmix_hf.methods.ratios import mixing_ratios
    from ctxmix_hf.modeling import instrument, uninstrument
    from ctxmix_hf.pipeline import ContextMixingPipeline
    from ctxmix_hf.recipes import method
    from ctxmix_hf.verification import verify
    from ctxmix_hf.viz.difference import MapDifference
    from ctxmix_hf.viz.figures import plot_methods


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)


if "transformers.pipelines" in sys.modules:  # pipeline("context-mixing") works at once; else: import ctxmix_hf.pipeline
    importlib.import_module(f"{__name__}.pipeline")
