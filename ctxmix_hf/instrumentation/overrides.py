"""The few families that numbers alone do not settle: layers without a module, and attention that is not T x T."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel


@dataclass(frozen=True)
class Span:
    """Layer i runs from the call of `first` to the return of `last` (paths below the base model, `{i}` the layer)."""

    first: str
    last: str


SPANS = {
    # the layers are parallel lists of attentions, norms and feed-forwards
    "xlm": Span("attentions.{i}", "layer_norm2.{i}"),
    "flaubert": Span("attentions.{i}", "layer_norm2.{i}"),
    # calls layer.forward(...) directly, past every hook on the layer itself
    "squeezebert": Span("encoder.layers.{i}.attention", "encoder.layers.{i}.output"),
}


def span_of(base: PreTrainedModel) -> Span | None:
    return SPANS.get(base.config.model_type)


@dataclass(frozen=True)
class Refusal:
    text: str
    applies: Callable[[Any], bool] = lambda config: True


_APPROXIMATE = "its attention is an approximation that never forms tokens x tokens probabilities."
_WINDOWS = (
    "its attention runs in local windows, so there is no tokens x tokens matrix over the sequence."
)
_POOLED = "its layers change the number of tokens, so maps of different layers do not compose."
_NONE = "it has no softmax attention."

REFUSED: dict[str, Refusal] = {
    **dict.fromkeys(
        (
            "fnet",
            "rwkv",
            "mamba",
            "mamba2",
            "falcon_mamba",
            "xlstm",
            "convnext",
            "convnextv2",
            "poolformer",
            "resnet",
            "regnet",
            "hyena",
            "recurrent_gemma",
            "mobilenet_v2",
        ),
        Refusal(_NONE),
    ),
    **dict.fromkeys(("reformer", "nystromformer", "yoso", "mra"), Refusal(_APPROXIMATE)),
    **dict.fromkeys(
        (
            "longformer",
            "led",
            "swin",
            "swinv2",
            "donut-swin",
            "maskformer-swin",
            "swin2sr",
            "clap_audio_model",
            "vitdet",
            "pegasus_x",
            "hiera",
            "mobilevit",
            "mobilevitv2",
        ),
        Refusal(_WINDOWS),
    ),
    **dict.fromkeys(
        (
            "funnel",
            "segformer",
            "pvt",
            "pvt_v2",
            "levit",
            "cvt",
            "perceiver",
            "canine",
            "mvit",
            "glpn",
        ),
        Refusal(_POOLED),
    ),
    **dict.fromkeys(
        ("timm_wrapper", "timm_backbone"),
        Refusal(
            "it wraps a model of timm, whose layers are not read: load the same architecture with its own class of "
            "transformers (ViT, DeiT, BEiT, DINOv2, ...)."
        ),
    ),
    "longt5": Refusal(_WINDOWS),
    "nezha": Refusal(
        "its values depend on the distance between two tokens, so no vector belongs to a source alone."
    ),
    "convbert": Refusal(
        "half of its heads are convolutions, so attention alone does not make a token's new state."
    ),
    "timesformer": Refusal(
        "space and time attention alternate inside one layer, so no single matrix mixes its tokens."
    ),
    **dict.fromkeys(
        ("inkling_text", "fun_asr_nano_encoder"),
        Refusal("convolutions mix tokens in the same branch as the attention."),
    ),
    "big_bird": Refusal(
        "block-sparse attention never forms tokens x tokens probabilities: load it with "
        "attention_type='original_full'.",
        lambda config: getattr(config, "attention_type", "") == "block_sparse",
    ),
    "bigbird_pegasus": Refusal(
        "block-sparse attention never forms tokens x tokens probabilities: load it with "
        "attention_type='original_full'.",
        lambda config: getattr(config, "attention_type", "") == "block_sparse",
    ),
}


def refusal_of(config: Any) -> str | None:
    """Why models of this configuration cannot be decomposed, in a sentence; None: nothing is known against them."""
    kind = getattr(config, "model_type", None)
    reason = REFUSED.get(str(kind))
    if reason is None or not reason.applies(config):
        return None
    return f"{kind} cannot be decomposed: {reason.text}"
