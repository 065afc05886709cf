"""Which tokens was each representation made from? Context mixing in any Hugging Face encoder.

    import ctxmix_hf as cm

    model, tokenizer = cm.load_default()
    m = cm.explain(model, "The keys to the cabinet [MASK] on the table.", "value_zeroing")
    print(m.attribution("[MASK]"))

Names are imported when first used, so that the command line starts without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import ctxmix_hf.formats  # they enter themselves where results and models look for them
import ctxmix_hf.hub
import ctxmix_hf.viz  # noqa: F401
from ctxmix_hf.task import register

__version__ = "0.1.0"

_HOME = {
    "DEFAULT_METHOD": "registry",
    "Attribution": "results.attributions",
    "AutoContextMixingModel": "auto",
    "AutoContextMixingModelForAudioClassification": "auto",
    "AutoContextMixingModelForCTC": "auto",
    "AutoContextMixingModelForCausalLM": "auto",
    "AutoContextMixingModelForImageClassification": "auto",
    "AutoContextMixingModelForMaskedLM": "auto",
    "AutoContextMixingModelForMultipleChoice": "auto",
    "AutoContextMixingModelForNextSentencePrediction": "auto",
    "AutoContextMixingModelForQuestionAnswering": "auto",
    "AutoContextMixingModelForSeq2SeqLM": "auto",
    "AutoContextMixingModelForSequenceClassification": "auto",
    "AutoContextMixingModelForSpeechSeq2Seq": "auto",
    "AutoContextMixingModelForTokenClassification": "auto",
    "ContextMixingMap": "results.maps",
    "ContextMixingPipeline": "pipeline",
    "CtxmixError": "errors",
    "MapDifference": "results.differences",
    "MapStore": "hub.store",
    "Ranking": "results.matches",
    "Similarity": "results.matches",
    "EvaluationTable": "evaluation.table",
    "Ledger": "results.ledgers",
    "LogitLens": "lenses",
    "attribute": "explaining",
    "certify": "certifying",
    "check_certificate": "certifying",
    "evaluate": "evaluation.suite",
    "explain": "explaining",
    "instrument": "modeling",
    "ledger": "accounting",
    "list_methods": "catalogue",
    "load_default": "auto",
    "logit_lens": "lenses",
    "method": "recipes",
    "mixing_ratios": "methods.ratios",
    "plot_methods": "viz.figures",
    "rank": "similarities",
    "similarity": "similarities",
    "supported_architectures": "architectures",
    "to_quantus": "judging",
    "uninstrument": "modeling",
    "verify": "verification",
}

__all__ = [
    "DEFAULT_METHOD",
    "Attribution",
    "AutoContextMixingModel",
    "AutoContextMixingModelForAudioClassification",
    "AutoContextMixingModelForCTC",
    "AutoContextMixingModelForCausalLM",
    "AutoContextMixingModelForImageClassification",
    "AutoContextMixingModelForMaskedLM",
    "AutoContextMixingModelForMultipleChoice",
    "AutoContextMixingModelForNextSentencePrediction",
    "AutoContextMixingModelForQuestionAnswering",
    "AutoContextMixingModelForSeq2SeqLM",
    "AutoContextMixingModelForSequenceClassification",
    "AutoContextMixingModelForSpeechSeq2Seq",
    "AutoContextMixingModelForTokenClassification",
    "ContextMixingMap",
    "ContextMixingPipeline",
    "CtxmixError",
    "EvaluationTable",
    "Ledger",
    "LogitLens",
    "MapDifference",
    "MapStore",
    "Ranking",
    "Similarity",
    "__version__",
    "attribute",
    "certify",
    "check_certificate",
    "evaluate",
    "explain",
    "instrument",
    "ledger",
    "list_methods",
    "load_default",
    "logit_lens",
    "method",
    "mixing_ratios",
    "plot_methods",
    "rank",
    "similarity",
    "supported_architectures",
    "to_quantus",
    "uninstrument",
    "verify",
]

if TYPE_CHECKING:
    from ctxmix_hf.accounting import ledger
    from ctxmix_hf.architectures import supported_architectures
    from ctxmix_hf.auto import (
        AutoContextMixingModel,
        AutoContextMixingModelForAudioClassification,
        AutoContextMixingModelForCausalLM,
        AutoContextMixingModelForCTC,
        AutoContextMixingModelForImageClassification,
        AutoContextMixingModelForMaskedLM,
        AutoContextMixingModelForMultipleChoice,
        AutoContextMixingModelForNextSentencePrediction,
        AutoContextMixingModelForQuestionAnswering,
        AutoContextMixingModelForSeq2SeqLM,
        AutoContextMixingModelForSequenceClassification,
        AutoContextMixingModelForSpeechSeq2Seq,
        AutoContextMixingModelForTokenClassification,
        load_default,
    )
    from ctxmix_hf.catalogue import list_methods
    from ctxmix_hf.certifying import certify, check_certificate
    from ctxmix_hf.errors import CtxmixError
    from ctxmix_hf.evaluation.suite import evaluate
    from ctxmix_hf.evaluation.table import EvaluationTable
    from ctxmix_hf.explaining import attribute, explain
    from ctxmix_hf.hub.store import MapStore
    from ctxmix_hf.judging import to_quantus
    from ctxmix_hf.lenses import LogitLens, logit_lens
    from ctxmix_hf.methods.ratios import mixing_ratios
    from ctxmix_hf.modeling import instrument, uninstrument
    from ctxmix_hf.pipeline import ContextMixingPipeline
    from ctxmix_hf.recipes import method
    from ctxmix_hf.registry import DEFAULT_METHOD
    from ctxmix_hf.results.attributions import Attribution
    from ctxmix_hf.results.differences import MapDifference
    from ctxmix_hf.results.ledgers import Ledger
    from ctxmix_hf.results.maps import ContextMixingMap
    from ctxmix_hf.results.matches import Ranking, Similarity
    from ctxmix_hf.similarities import rank, similarity
    from ctxmix_hf.verification import verify
    from ctxmix_hf.viz.figures import plot_methods


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)


register()  # pipeline("context-mixing") works, whether transformers was imported before or comes later
