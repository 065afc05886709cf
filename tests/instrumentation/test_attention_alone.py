"""A call that asks for attention only, of a model that earlier calls have proved, hears nothing else of it."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaModel,
    ModernBertConfig,
    ModernBertModel,
)

import ctxmix_hf as cm
from ctxmix_hf.errors import InputError, RecordError
from ctxmix_hf.instrumentation import listener
from ctxmix_hf.instrumentation.session import ApproximateWarning, instrumentation_of
from ctxmix_hf.instrumentation.trace import Trace

IDS = torch.tensor([[2, 9, 11, 14, 3], [2, 8, 3, 0, 0]])
MASK = (IDS > 0).long()


@pytest.fixture()
def model():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=20,
    )
    return cm.instrument(BertModel(config).double().eval())


@pytest.fixture()
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of operations that were written down."""
    kinds: list[str] = []
    own = Trace.add
    monkeypatch.setattr(
        Trace, "add", lambda self, kind, *rest: (kinds.append(kind), own(self, kind, *rest))[1]
    )
    return kinds


def rollout(model, methods=("attention_rollout",), **options):
    made = model(input_ids=IDS, attention_mask=MASK, output_context_mixing=list(methods), **options)
    return made.context_mixing["attention_rollout"]


def test_the_second_call_hears_the_attention_alone(model, heard) -> None:
    whole = rollout(model, ["attention_rollout", "alti"])
    assert "linear" in heard and "norm" in heard
    heard.clear()
    alone = rollout(model)
    assert not heard, "no operation is written down"
    assert torch.equal(alone.input, whole.input) and torch.equal(alone.layers, whole.layers)
    assert alone.tokens == whole.tokens and alone.meta["approximate"] == whole.meta["approximate"]
    heard.clear()
    rollout(model, ["attention_rollout", "alti"])
    assert "norm" in heard, "ALTI reads the norms, also after a call that did not"


def _modern() -> ModernBertModel:
    config = ModernBertConfig(
        hidden_size=32,
        num_hidden_layers=5,
        num_attention_heads=4,
        intermediate_size=48,
        vocab_size=30,
        local_attention=4,
        global_attn_every_n_layers=3,
        pad_token_id=0,
    )
    return ModernBertModel(config)


def _grouped() -> LlamaModel:
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=30,
    )
    return LlamaModel(config)


SPECS = ["attention", "attention_rollout", "attention_fixedres", "attention_flow"]


@pytest.mark.parametrize("joined", [0, 3000, 2**20])
@pytest.mark.parametrize("make", [_modern, _grouped])
def test_layers_as_one_batch_are_the_layers(make, joined: int, monkeypatch) -> None:
    """Whatever is joined (nothing, some, all of one mask): local and global layers, causal ones, padding."""
    torch.manual_seed(0)
    monkeypatch.setattr(listener, "JOINED", joined)
    model = cm.instrument(make().double().eval())
    specs = [*SPECS, cm.method("attention_rollout", per_head=True)]
    heard = []
    own = listener.AttentionListener._add
    monkeypatch.setattr(
        listener.AttentionListener,
        "_add",
        lambda self, name, layers, made: (heard.append(layers), own(self, name, layers, made))[1],
    )
    for asked in ({}, {"targets": ["mean_pool", 1]}, {"top_k": 2}):
        names = ["attention_rollout"] if asked else specs
        call = lambda: (
            model(
                input_ids=IDS, attention_mask=MASK, output_context_mixing=names, **asked
            ).context_mixing
        )
        instrumentation_of(model).fused = None
        first = call()
        assert not heard, "the first call proves the layers"
        for key, again in call().items():
            if "targets" in asked:
                assert torch.equal(again.scores, first[key].scores)
                continue
            if "top_k" in asked:
                assert torch.equal(again.input.values, first[key].input.values)
                continue
            assert torch.equal(again.input, first[key].input)
            assert again.meta == first[key].meta
            assert torch.equal(again.layers, first[key].layers)
            assert (again.heads is None) == (first[key].heads is None)
            assert again.heads is None or torch.equal(again.heads, first[key].heads)
        assert sum(heard) == len(model.layers)
        assert (len(heard) < sum(heard)) == (joined > 0 and "top_k" not in asked)
        heard.clear()


def test_numbers_that_are_not_finite_are_told_where_they_are(model) -> None:
    rollout(model)
    model.encoder.layer[1].output.dense.weight.data[0, 0] = float("nan")
    with pytest.raises(InputError, match=r"Layer 2 .*NaN"):
        rollout(model)


def test_a_copy_hears_it_too(model, heard) -> None:
    first = rollout(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        heard.clear()
        assert torch.equal(rollout(other).input, first.input)
        assert "norm" not in heard
        assert instrumentation_of(other).fused.program.runs()


def test_attention_spelled_out_is_looked_at_again(model, heard) -> None:
    fused = rollout(model)
    model.set_attn_implementation("eager")
    heard.clear()
    spelled = rollout(model)
    assert "norm" in heard
    torch.testing.assert_close(spelled.input, fused.input)


class Smeared(nn.Linear):
    """Mixes neighbouring tokens behind the attention's back."""

    def forward(self, x):
        return nn.Linear.forward(self, x.cumsum(dim=1))


def _exchange(model) -> None:
    old = model.encoder.layer[1].output.dense
    new = Smeared(old.in_features, old.out_features).double()
    new.load_state_dict(old.state_dict())
    model.encoder.layer[1].output.dense = new


def _exchange_forward(model) -> None:
    dense = model.encoder.layer[1].output.dense
    dense.forward = Smeared.forward.__get__(dense, nn.Linear)


def _add(model) -> None:
    dense = model.encoder.layer[1].output
    dense.LayerNorm = nn.Sequential(Smeared(16, 16).double(), dense.LayerNorm)


@pytest.mark.parametrize("change", [_exchange, _add])
def test_another_program_is_looked_at_again(model, change) -> None:
    """What was proved of the model no longer holds: its maps are approximate now, and say so."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ApproximateWarning)
        assert not rollout(model).meta["approximate"]
        assert not rollout(model).meta["approximate"]
    change(model)
    model.eval()
    with pytest.warns(ApproximateWarning):
        first = rollout(model).meta["approximate"]
    assert first
    for methods in (["attention_rollout"], ["attention_rollout", "globenc"]):
        again = rollout(model, methods).meta["approximate"]
        assert again == first, "what a proof said is said of every later call"


def test_train_mode_is_refused_also_where_everything_is_proved(model) -> None:
    rollout(model)
    model.encoder.layer[1].attention.train()
    with pytest.raises(RecordError, match=r"encoder\.layer\.1\.attention.*train mode"):
        rollout(model)
    model.eval()
    rollout(model)


def test_train_mode_of_a_head_is_refused(model) -> None:
    """Beside the layers, where nothing was proved."""
    config = BertConfig(**{**model.config.to_dict(), "num_labels": 3})
    whole = cm.instrument(BertForSequenceClassification(config).eval())
    rollout(whole)
    whole.dropout.train()
    with pytest.raises(RecordError, match=r"dropout.*train mode"):
        rollout(whole)


def test_another_forward_of_a_module_is_looked_at_again(model, heard) -> None:
    rollout(model)
    _exchange_forward(model)
    heard.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximateWarning)
        rollout(model)
    assert "norm" in heard


def test_a_layer_left_out_is_looked_at_again(model, heard) -> None:
    rollout(model)
    model.encoder.layer = model.encoder.layer[:2].eval()
    heard.clear()
    assert rollout(model).depth == 2
    assert "norm" in heard
