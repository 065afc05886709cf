"""Is the map right? Five kinds of evidence from the papers, as one suite: `ctxmix_hf.evaluate("agreement")`."""

from ctxmix_hf.evaluation import (
    agreement,
    cue_alignment,
    erasure,
    faithfulness,
    identifiability,
    mdl_probe,
    mixing,
    plausibility,
    recommendation,
)
from ctxmix_hf.evaluation.context import EVALUATIONS, Context, Evaluation
from ctxmix_hf.evaluation.data import read_data
from ctxmix_hf.evaluation.suite import SUITES, evaluate
from ctxmix_hf.evaluation.table import EvaluationReport, EvaluationTable

run = evaluate

__all__ = [
    "EVALUATIONS",
    "SUITES",
    "Context",
    "Evaluation",
    "EvaluationReport",
    "EvaluationTable",
    "agreement",
    "cue_alignment",
    "erasure",
    "evaluate",
    "faithfulness",
    "identifiability",
    "mdl_probe",
    "mixing",
    "plausibility",
    "read_data",
    "recommendation",
    "run",
]
