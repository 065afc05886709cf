"""One row of the zoo: how to build one tiny random model of one family, and the inputs to call it with."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from .inputs import Inputs
from .randomise import randomise

HIDDEN, HEADS, LAYERS, WIDE, VOCAB, POSITIONS = 32, 4, 2, 48, 100, 64

# Every spelling of the same few sizes; a config class takes those that its signature names.
TINY: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim"), HIDDEN),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS),
    **dict.fromkeys(
        ("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"), LAYERS
    ),
    **dict.fromkeys(("encoder_num_hidden_layers", "decoder_num_hidden_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), HEADS),
    **dict.fromkeys(("encoder_num_attention_heads", "decoder_num_attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("encoder_num_key_value_heads", "decoder_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "kv_channels", "attention_head_dim"), HIDDEN // HEADS),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "hidden_dim", "d_ff", "d_inner", "n_inner"), WIDE
    ),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size"), WIDE),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), WIDE),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k"), 2),
    **dict.fromkeys(("vocab_size", "encoder_vocab_size"), VOCAB),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"), POSITIONS
    ),
    "rotary_dim": 4,
    "embedding_size": HIDDEN,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "image_size": 16,
    "patch_size": 4,
    "num_channels": 3,
    "conv_dim": (16, 16, 16),
    "conv_kernel": (5, 3, 3),
    "conv_stride": (4, 2, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "num_mel_bins": 16,
    "max_source_positions": 12,
    "max_target_positions": 24,
}


@dataclass(frozen=True)
class Spec:
    """`config` overrides `TINY`; `cls` names the class to build (else AutoModel's choice); `part` picks the
    sub-model that a user of the encoder calls; `inputs` makes the batch from the config; before transformers
    `since` the family was another, or broken."""

    model_type: str
    modality: str
    inputs: Callable[[Any], Inputs]
    config: dict[str, Any] = field(default_factory=dict)
    cls: str | None = None
    part: Callable[[PreTrainedModel], PreTrainedModel] | None = None
    padded: bool = False
    since: str = "4.48"

    def missing(self) -> str | None:
        """Why the installed transformers cannot build this row, or None."""
        if Version(transformers.__version__) < Version(self.since):
            return f"transformers {transformers.__version__} is older than {self.since}"
        if self.cls is not None:
            found = _find(self.cls)
            if found is None or "dummy" in found.__module__:
                return f"transformers {transformers.__version__} has no usable {self.cls}"
            return None
        for kind, names in (("config", CONFIG_MAPPING_NAMES), ("model", MODEL_MAPPING_NAMES)):
            if self.model_type not in names:
                return f"transformers {transformers.__version__} has no {kind} of type {self.model_type}"
        return None

    def make_config(self) -> Any:
        """The tiny config: the sizes its class knows, then the row's own."""
        known = _config_class(self)
        names = set(inspect.signature(known.__init__).parameters)
        config = known(**{k: v for k, v in TINY.items() if k in names} | self.config)
        # the grouped kernel of transformers 5 has no float64
        config._experts_implementation = "eager"
        return config

    def build(
        self,
        *,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        attn_implementation: str | None = None,
    ) -> tuple[PreTrainedModel, dict[str, Tensor]]:
        """The model in eval mode with every parameter redrawn, and its batch of two."""
        config = self.make_config()
        options = (
            {} if attn_implementation is None else {"attn_implementation": attn_implementation}
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            factory = AutoModel.from_config if self.cls is None else _find(self.cls)._from_config
            model = factory(config, **options)
            inputs = self.inputs(config)
        model = (self.part(model) if self.part else model).float()
        randomise(model, seed)
        model._apply(lambda tensor: _cast(tensor, dtype))  # .to would make complex rotations real
        return model.eval(), {name: _cast(value, dtype) for name, value in inputs.items()}


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _config_class(spec: Spec) -> Any:
    if spec.cls is not None and spec.model_type not in CONFIG_MAPPING_NAMES:
        return _find(spec.cls).config_class
    return type(AutoConfig.for_model(spec.model_type))


def _find(cls: str) -> Any:
    """A class that transformers exports, or `folder.Class` for one that stays in its modeling file."""
    folder, _, name = cls.rpartition(".")
    if not folder:
        return getattr(transformers, name, None)
    try:
        module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    except ImportError:
        return None
    return getattr(module, name, None)
