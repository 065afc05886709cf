"""One file per method: from a record to a map. Every file of this folder is imported, and so registered."""

from ctxmix_hf.methods.alti import Alti
from ctxmix_hf.methods.attention import Attention, AttentionFixedResidual, AttentionTrueResidual
from ctxmix_hf.methods.base import (
    METHODS,
    About,
    AbstractMethod,
    InputMethod,
    LayerMethod,
    make_method,
)
from ctxmix_hf.methods.decompx import Decompx
from ctxmix_hf.methods.effective_attention import EffectiveAttention
from ctxmix_hf.methods.hta import Hta, HtaTimesInput
from ctxmix_hf.methods.norm_ff import NormFeedForward
from ctxmix_hf.methods.norms import (
    Norm,
    NormEncoder,
    NormFixedResidual,
    NormResidual,
    NormResidualNorm,
)
from ctxmix_hf.methods.ratios import mixing_ratios
from ctxmix_hf.methods.value_zeroing import ValueZeroing
from ctxmix_hf.registry import import_folder

import_folder(__name__, __path__)

__all__ = [
    "METHODS",
    "About",
    "AbstractMethod",
    "Alti",
    "Attention",
    "AttentionFixedResidual",
    "AttentionTrueResidual",
    "Decompx",
    "EffectiveAttention",
    "Hta",
    "HtaTimesInput",
    "InputMethod",
    "LayerMethod",
    "Norm",
    "NormEncoder",
    "NormFeedForward",
    "NormFixedResidual",
    "NormResidual",
    "NormResidualNorm",
    "ValueZeroing",
    "make_method",
    "mixing_ratios",
]
