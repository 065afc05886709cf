"""Is the map right? Six kinds of evidence from the papers, as one suite: `ctxmix_hf.evaluate("agreement")`."""

from ctxmix_hf.evaluation import (
    agreement,
    alternatives,
    attention_types,
    cue_alignment,
    erasure,
    faithfulness,
    geometry,
    identifiability,
    mdl_probe,
    mixing,
    plausibility,
    pronouns,
    recommendation,
    sanity,
)
from ctxmix_hf.evaluation.alternatives import alternative_attention
from ctxmix_hf.evaluation.context import EVALUATIONS, Context, Evaluation
from ctxmix_hf.evaluation.data import read_data
from ctxmix_hf.evaluation.fitting import PAPER, Fitting
from ctxmix_hf.evaluation.scores import as_published, signed
from ctxmix_hf.evaluation.suite import SUITES, evaluate
from ctxmix_hf.evaluation.table import EvaluationReport, EvaluationTable
from ctxmix_hf.evaluation.tagging import hanta
from ctxmix_hf.registry import VIEWS, import_folder

import_folder(__name__, __path__)
VIEWS.add(__name__, {"evaluation.plot": "plots:draw"})

run = evaluate

__all__ = [
    "EVALUATIONS",
    "PAPER",
    "SUITES",
    "Context",
    "Evaluation",
    "EvaluationReport",
    "EvaluationTable",
    "Fitting",
    "agreement",
    "alternative_attention",
    "alternatives",
    "as_published",
    "attention_types",
    "cue_alignment",
    "erasure",
    "evaluate",
    "faithfulness",
    "geometry",
    "hanta",
    "identifiability",
    "mdl_probe",
    "mixing",
    "plausibility",
    "pronouns",
    "read_data",
    "recommendation",
    "run",
    "sanity",
    "signed",
]
