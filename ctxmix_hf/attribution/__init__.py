"""Scores for a class or a masked word: gradients, blank-out, the ledger and what else needs the model again."""

from ctxmix_hf.attribution.ablation import BlankOut, Random
from ctxmix_hf.attribution.alti_logit import AltiLogit
from ctxmix_hf.attribution.attention_gradient import AttentionGradient
from ctxmix_hf.attribution.base import (
    ATTRIBUTIONS,
    AbstractAttribution,
    Case,
    Question,
    ask,
    real_positions,
)
from ctxmix_hf.attribution.deeplift import DeepLift
from ctxmix_hf.attribution.gradients import (
    GradientDotInput,
    GradientL2,
    GradientSum,
    GradientTimesInput,
)
from ctxmix_hf.attribution.integrated_gradients import IntegratedGradients
from ctxmix_hf.attribution.ledger import LedgerScores
from ctxmix_hf.registry import import_folder

import_folder(__name__, __path__)

__all__ = [
    "ATTRIBUTIONS",
    "AbstractAttribution",
    "AltiLogit",
    "AttentionGradient",
    "BlankOut",
    "Case",
    "DeepLift",
    "GradientDotInput",
    "GradientL2",
    "GradientSum",
    "GradientTimesInput",
    "IntegratedGradients",
    "LedgerScores",
    "Question",
    "Random",
    "ask",
    "real_positions",
]
