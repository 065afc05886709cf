"""A zoo of tiny random Hugging Face models, one per family, for the contract tests.

`FAMILIES` are those with softmax attention over the sequence, `REFUSED` those without, `MISSING` those that
the installed transformers does not have, `PECULIAR` what a test must know of some of the first. `python -m
tests.zoo` checks them all. Nothing here touches the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from .audio import AUDIO
from .decoders import DECODERS
from .inputs import singles
from .refused import REFUSED_SPECS
from .spec import Spec
from .text import TEXT
from .towers import TOWERS
from .vision import VISION

__all__ = [
    "EAGER_DIFFERS",
    "FAMILIES",
    "FLOAT32_ONLY",
    "MANDATORY",
    "MISSING",
    "PECULIAR",
    "REFUSED",
    "Family",
    "build",
    "config",
    "singles",
]

Built = tuple[PreTrainedModel, dict[str, Tensor]]

MANDATORY = frozenset(
    "albert bart beit bert camembert clip_text_model clip_vision_model data2vec-audio data2vec-text"
    " data2vec-vision deberta deberta-v2 deit dinov2 dinov3_vit distilbert electra ernie esm eurobert gpt2"
    " hubert layoutlm llama marian megatron-bert mobilebert modernbert mpnet nomic_bert roberta"
    " roberta-prelayernorm roformer siglip_vision_model squeezebert t5 vit wav2vec2 wav2vec2-stable wavlm"
    " whisper xlm xlm-roberta xlnet".split()
)

_SINK = "attention sinks: a row of probabilities sums to less than one"
_GATED = "the mixed values are gated before the output projection"

PECULIAR: dict[str, str] = {
    **dict.fromkeys(("flint", "gpt_oss", "mimo_v2_flash", "openai_privacy_filter"), _SINK),
    **dict.fromkeys(
        ("afmoe", "beam", "granite_swa", "granitemoe_swa", "muse_glimmer_text", "neomme"), _GATED
    ),
    "diffllama": "two attentions per layer, the second subtracted",
    "hrm_text": "its layers run several times in one forward",
    "lilt": "two attentions per layer, one per stream",
    "longcat_flash": "two attentions per layer, one after the other",
}
# Eager and sdpa compute different things (ALiBi added twice; causal in one only): transformers' own doing.
EAGER_DIFFERS = frozenset({"falcon-alibi", "phi4_multimodal_vision"})
# Families whose masks or experts transformers cannot compute in float64, up to the version given.
_FLOAT32_BEFORE = {
    "99": "prophetnet xglm kosmos_2_text_model",
    "5": "clip_text_model clipseg_text_model groupvit_text_model metaclip_2_text_model owlv2_text_model"
    " owlvit_text_model xclip_text_model mpt trocr open-llama"
    " deepseek_v3 dots1 ernie4_5_moe glm4_moe longcat_flash",
    "4.57": "biogpt gpt2 opt",
}
FLOAT32_ONLY = frozenset(
    name
    for version, names in _FLOAT32_BEFORE.items()
    if Version(transformers.__version__) < Version(version)
    for name in names.split()
)


@dataclass(frozen=True)
class Family:
    """One instrumentable family. `build()` gives (model, inputs): float32, eval mode, random weights."""

    name: str
    model_type: str
    modality: str
    build: Callable[..., Built]
    padded: bool
    mandatory: bool


def _family(name: str, spec: Spec) -> Family:
    return Family(name, spec.model_type, spec.modality, spec.build, spec.padded, name in MANDATORY)


_SPECS = {**TEXT, **TOWERS, **VISION, **AUDIO, **DECODERS}
MISSING: dict[str, str] = {
    name: reason
    for name, spec in {
        **_SPECS,
        **{name: spec for name, (spec, _) in REFUSED_SPECS.items()},
    }.items()
    if (reason := spec.missing()) is not None
}
FAMILIES: dict[str, Family] = {
    n: _family(n, s) for n, s in sorted(_SPECS.items()) if n not in MISSING
}
REFUSED: dict[str, tuple[Callable[..., Built], str]] = {
    name: (spec.build, reason)
    for name, (spec, reason) in REFUSED_SPECS.items()
    if name not in MISSING
}


def config(name: str) -> PretrainedConfig:
    """The tiny configuration of a whole model of this family, for a class with a head."""
    return _SPECS[name].make_config()


def build(
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    attn_implementation: str | None = None,
) -> Built:
    """The tiny model called `name`, instrumentable or refused, and its inputs."""
    if name in MISSING:
        raise LookupError(f"{name}: {MISSING[name]}")
    make = FAMILIES[name].build if name in FAMILIES else REFUSED[name][0]
    return make(dtype=dtype, seed=seed, attn_implementation=attn_implementation)
