"""`instrument(model, layers=[...])`: a user declares what discovery cannot find."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.bert.modeling_bert import BertEmbeddings, BertLayer

import ctxmix_hf as cm
from ctxmix_hf.errors import OptionError, UnsupportedModelError

SIZE = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 40}


class Two(PreTrainedModel):
    """Layers that stand in no list."""

    config_class = BertConfig

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.embeddings = BertEmbeddings(config)
        self.lower, self.upper = BertLayer(config), BertLayer(config)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **_: Any) -> BaseModelOutput:
        hidden = self.embeddings(input_ids)
        for layer in (self.lower, self.upper):
            made = layer(hidden)
            hidden = made[0] if isinstance(made, tuple) else made
        return BaseModelOutput(last_hidden_state=hidden)


@pytest.fixture
def pair() -> tuple[Two, BertModel, torch.Tensor]:
    """The odd model, and a BERT with the same weights."""
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=2, attn_implementation="eager", **SIZE)
    odd, plain = Two(config).eval().double(), BertModel(config, add_pooling_layer=False).eval()
    plain.double().embeddings.load_state_dict(odd.embeddings.state_dict())
    for mine, theirs in zip((odd.lower, odd.upper), plain.encoder.layer, strict=True):
        theirs.load_state_dict(mine.state_dict())
    return odd, plain, torch.tensor([[3, 7, 11, 5, 2]])


@pytest.mark.parametrize("by", ["name", "module"])
def test_declared_layers_give_the_maps(pair: tuple[Two, BertModel, torch.Tensor], by: str) -> None:
    odd, plain, ids = pair
    with pytest.raises(UnsupportedModelError, match=r"instrument\(model, layers="):
        cm.instrument(odd)
    names: list[str | nn.Module] = ["lower", "upper"]
    cm.instrument(odd, layers=names if by == "name" else [odd.lower, odd.upper])  # the advice
    methods = ["alti", "value_zeroing", "globenc"]
    with torch.no_grad():
        mine = odd(ids, output_context_mixing=methods).context_mixing
        theirs = cm.instrument(plain)(ids, output_context_mixing=methods).context_mixing
    for method in methods:
        assert torch.allclose(mine[method].layers, theirs[method].layers, atol=1e-10), method
    cm.uninstrument(odd)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in odd.modules())


def test_some_of_the_layers(pair: tuple[Two, BertModel, torch.Tensor]) -> None:
    """A BERT of which only the upper layer is asked about."""
    _, plain, ids = pair
    with torch.no_grad():
        both = cm.instrument(plain)(ids, output_context_mixing="alti").context_mixing["alti"]
        cm.instrument(plain, layers=["encoder.layer.1"])
        one = plain(ids, output_context_mixing="alti").context_mixing["alti"]
    assert one.depth == 1 and torch.allclose(one.layers[:, 0], both.layers[:, 1], atol=1e-12)


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        (["lower", "uper"], "has no module 'uper'. Did you mean 'upper'"),
        ([], "name at least one module"),
        (["lower", "lower"], "named twice"),
        ([nn.Linear(2, 2)], "is not inside Two"),
    ],
)
def test_bad_declarations_change_nothing(
    pair: tuple[Two, BertModel, torch.Tensor], layers: list[Any], said: str
) -> None:
    odd, _, _ = pair
    with pytest.raises(OptionError, match=said):
        cm.instrument(odd, layers=layers)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in odd.modules())
