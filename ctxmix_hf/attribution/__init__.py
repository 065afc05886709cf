"""Scores for a class or a masked word: gradients, integrated gradients, DeepLift, blank-out."""

from ctxmix_hf.attribution.ablation import BlankOut, Random
from ctxmix_hf.attribution.base import ATTRIBUTIONS, AbstractAttribution, Case, Question, ask
from ctxmix_hf.attribution.deeplift import DeepLift
from ctxmix_hf.attribution.gradients import GradientDotInput, GradientL2, GradientSum, GradientTimesInput
from ctxmix_hf.attribution.integrated_gradients import IntegratedGradients

__all__ = [
    "ATTRIBUTIONS",
    "AbstractAttribution",
    "BlankOut",
    "Case",
    "DeepLift",
    "GradientDotInput",
    "GradientL2",
    "GradientSum",
    "GradientTimesInput",
    "IntegratedGradients",
    "Question",
    "Random",
    "ask",
]
