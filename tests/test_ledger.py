"""`cm.ledger`: parts that add up, against a propagation of vectors by hand, for every kind of
read-out and every bad one.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

import ctxmix_hf as cm
from ctxmix_hf.errors import (
    CtxmixError,
    InputError,
    NotInstrumentedError,
    OptionError,
    RandomWeightsWarning,
    RecordError,
    UnknownNameError,
    UnsupportedModelError,
)
from ctxmix_hf.instrumentation.awake import ACTIVE
from tests import small, zoo

TEXT = "the keys to the cabinet [MASK] old ."
BOTH = ["the keys to the cabinet [MASK] old .", "the keys [MASK] ."]


def build(
    name: str, dtype: torch.dtype = torch.float64, tokenizer: Any = None, **config: Any
) -> Any:
    tokenizer = tokenizer or small.wordpiece()
    sizes = small.GPT2 if name.startswith("GPT2") else small.BERT
    model = small.build(name, tokenizer, **{**sizes, **config}).to(dtype)
    for (
        parameter
    ) in model.parameters():  # biases of a fresh model are zero: nothing would be proved about them
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.3, 0.3)
    return cm.instrument(model, tokenizer)


@pytest.fixture(scope="module")
def masked() -> Any:
    return build("BertForMaskedLM")


# ---- by hand
# ----------------------------------------------------------------------------------------------------------
def propagated(model: Any, inputs: Any, row: Tensor) -> tuple[Tensor, Tensor]:
    """(tokens [T], all biases) of `<row, last hidden state of the masked token>`: one vector per
    source, carried through the layers.

    Slot T carries what the biases put in. Attention, deviations and activation ratios are those of the plain forward.
    """
    layers, bert = model.bert.encoder.layer, model.bert
    with torch.no_grad():
        seen = bert(**inputs, output_attentions=True, output_hidden_states=True)
        x = seen.hidden_states[0][0]
        count, width = x.shape
        parts = torch.zeros(count + 1, count, width, dtype=x.dtype)  # [source, token, D]
        for j in range(count):
            parts[j, j] = x[j]
        for layer, attention in zip(layers, seen.attentions, strict=True):
            own, heads = layer.attention.self, attention.shape[1]
            value = own.value(x).unflatten(-1, (heads, -1))
            value_parts = (parts @ own.value.weight.T).unflatten(-1, (heads, -1))
            value_parts[count] += own.value.bias.unflatten(-1, (heads, -1))
            assert torch.allclose(value_parts.sum(0), value)
            mixed = torch.einsum("hij,sjhe->sihe", attention[0], value_parts).flatten(2)
            out = mixed @ layer.attention.output.dense.weight.T
            out[count] += layer.attention.output.dense.bias
            parts = normed(layer.attention.output.LayerNorm, out + parts)
            inner = parts @ layer.intermediate.dense.weight.T
            inner[count] += layer.intermediate.dense.bias
            whole = inner.sum(0)
            inner = inner * (gelu(whole) / whole)
            out = inner @ layer.output.dense.weight.T
            out[count] += layer.output.dense.bias
            parts = normed(layer.output.LayerNorm, out + parts)
            x = parts.sum(0)
        place = (inputs["input_ids"][0] == 4).nonzero()[0, 0]
        return parts[:count, place] @ row, parts[count, place] @ row


def normed(norm: Any, parts: Tensor) -> Tensor:
    whole = parts.sum(0)
    deviation = (whole.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    made = (parts - parts.mean(-1, keepdim=True)) / deviation * norm.weight
    made[-1] += norm.bias
    assert torch.allclose(
        made.sum(0), layer_norm(whole, whole.shape[-1:], norm.weight, norm.bias, norm.eps)
    )
    return made


def test_scores_equal_vectors_carried_through_the_layers_by_hand() -> None:
    model = build("BertForMaskedLM", attn_implementation="eager")
    inputs = small.wordpiece()(TEXT, return_tensors="pt")
    row = torch.randn(32, dtype=torch.float64)
    place = int((inputs["input_ids"][0] == 4).nonzero()[0, 0])
    tokens, biases = propagated(model, inputs, row)
    bare = cm.instrument(model.bert)
    l = cm.ledger(bare, dict(inputs), readout=lambda out: out.last_hidden_state[:, place] @ row)
    assert torch.allclose(l.scores[0], tokens, atol=1e-12)
    assert torch.allclose(l.bias[0], biases, atol=1e-12)
    assert float(l.gap) < 1e-14


def test_edges_and_components_equal_gradients_at_the_modules() -> None:
    """`<dy/dcontext, A V>` with the gradients of a frozen copy of the model, made by hooks that
    detach what the ledger freezes.
    """
    model = cm.instrument(build("BertForMaskedLM", attn_implementation="eager").bert)
    inputs = small.wordpiece()(TEXT, return_tensors="pt")
    l = cm.ledger(model, dict(inputs), readout=lambda out: out.last_hidden_state[:, 2].sum(-1))
    record = model(**inputs, output_decomposition=True).decomposition
    # A frozen forward by hand: everything is linear in the layer inputs once attention, deviations
    # and ratios are constants.
    x = record.hidden_states[0][0].detach().requires_grad_()
    state, kept = x, []
    for k, layer in enumerate(model.encoder.layer):
        attention = record[k].attention[0].detach()
        heads = attention.shape[0]
        value = layer.attention.self.value(state).unflatten(-1, (heads, -1)).transpose(0, 1)
        context = attention @ value
        dense = layer.attention.output.dense
        attended = context.transpose(0, 1).flatten(1) @ dense.weight.T
        skip = state * 1
        middle = frozen_norm(layer.attention.output.LayerNorm, attended + dense.bias + skip)
        inner = layer.intermediate.dense(middle)
        inner = inner * (gelu(inner) / inner).detach()
        fed = inner @ layer.output.dense.weight.T
        state = frozen_norm(layer.output.LayerNorm, fed + layer.output.dense.bias + middle)
        kept.append((attention, value, context, attended, fed, skip))
    y = state[2].sum()
    for k, (attention, value, context, attended, fed, skip) in enumerate(kept):
        grads = torch.autograd.grad(y, [context, attended, fed, skip], retain_graph=True)
        edges = torch.einsum("hij,hie,hje->ij", attention, grads[0], value)
        assert torch.allclose(l.edges[0, k], edges, atol=1e-12)
        for row, (g, v) in enumerate(zip(grads[1:], (attended, fed, skip), strict=True)):
            assert torch.allclose(l.components[0, k, row], (g * v).sum(-1), atol=1e-12), (k, row)
    assert torch.allclose(l.edges.sum(-1), l.components[:, :, 0], atol=1e-12)


def frozen_norm(norm: Any, x: Tensor) -> Tensor:
    deviation = (x.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt().detach()
    return (x - x.mean(-1, keepdim=True)) / deviation * norm.weight + norm.bias


def test_every_row_and_the_lines_above_it_sum_to_the_value(masked: Any) -> None:
    l = cm.ledger(masked, BOTH, class_index="are", foil="is")
    assert l.layers.shape == (2, 3, l.scores.shape[1])
    assert torch.allclose(l.layers.sum(-1) + l.above, l.value[:, None].expand(-1, 3), atol=1e-10)
    assert torch.allclose(l.layers[:, 0], l.scores)
    assert torch.allclose(l.above[:, 0], l.bias)


@pytest.mark.parametrize("rule", ["frozen", "through"])
@pytest.mark.parametrize("gates", ["half", "frozen"])
@pytest.mark.parametrize("start", ["input", "embeddings"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "gpt2", "llama", "t5"])
def test_every_rule_balances(family: str, rule: str, gates: str, start: str) -> None:
    model, inputs = zoo.build(family, dtype=torch.float64)
    read = lambda out: out[0][:, 0].sum(-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        l = cm.ledger(
            cm.instrument(model), inputs, readout=read, rule=rule, gates=gates, start=start
        )
    assert float(l.gap.max()) <= 1e-6  # llama's norms and T5's compute in float32
    assert ("softmax remainder" in l.lines) == (rule == "through")
    with torch.no_grad():
        assert torch.allclose(l.value, read(model(**inputs)).double(), rtol=1e-6)


def test_through_attention_equals_attnlrp_by_hand() -> None:
    """Gradient times input of a copy whose products are halved between their factors and whose
    softmax is left as it is: AttnLRP's rules (Achtibat et al. 2024, propositions 3.1 and 3.3).
    """
    model = cm.instrument(build("BertForMaskedLM", attn_implementation="eager").bert)
    inputs = small.wordpiece()(TEXT, return_tensors="pt")
    read = lambda out: out.last_hidden_state[:, 2].sin().detach().mul(out.last_hidden_state[:, 2])
    l = cm.ledger(model, dict(inputs), readout=lambda out: read(out).sum(-1), rule="through")
    record = model(**inputs, output_decomposition=True).decomposition
    x = record.hidden_states[0][0].detach().requires_grad_()
    half = lambda a, b: (a.detach() @ b + a @ b.detach()) / 2
    halved = lambda a, b: half(a, b) + (a @ b).detach() - half(a, b).detach()
    state = x
    for layer in model.encoder.layer:
        own = layer.attention.self
        heads = own.num_attention_heads
        query, key, value = (
            part(state).unflatten(-1, (heads, -1)).transpose(0, 1)
            for part in (own.query, own.key, own.value)
        )
        weights = (halved(query, key.mT) / query.shape[-1] ** 0.5).softmax(-1)
        mixed = halved(weights, value).transpose(0, 1).flatten(1)
        middle = frozen_norm(
            layer.attention.output.LayerNorm, layer.attention.output.dense(mixed) + state
        )
        inner = layer.intermediate.dense(middle)
        inner = inner * (gelu(inner) / inner).detach()
        state = frozen_norm(layer.output.LayerNorm, layer.output.dense(inner) + middle)
    y = (state[2].sin().detach() * state[2]).sum()
    (slope,) = torch.autograd.grad(y, x)
    assert torch.allclose(l.value, y, atol=1e-12)
    assert torch.allclose(l.scores[0], (slope * x).sum(-1), atol=1e-12)
    frozen = cm.ledger(model, dict(inputs), readout=lambda out: read(out).sum(-1))
    assert not torch.allclose(frozen.scores, l.scores)
    rest = l.value - l.scores.sum(-1) - l.bias
    assert "softmax remainder" in l.lines and float(rest.abs()) < 1e-12  # l.bias holds all lines


@pytest.mark.parametrize("gates", ["half", "frozen"])
def test_a_gated_feed_forward_by_hand(gates: str) -> None:
    """`act(gate) * up`: each gets half of the product, or the gate is a constant."""
    model, inputs = zoo.build("llama", dtype=torch.float64)
    whole = inputs["attention_mask"].all(-1)
    inputs = {name: value[whole] for name, value in inputs.items()}  # no padding
    cm.instrument(model)
    read = lambda out: out[0][:, -1].sum(-1)
    l = cm.ledger(model, inputs, readout=read, gates=gates)
    record = model(**inputs, output_decomposition=True).decomposition
    base = getattr(model, "model", model)
    for b in range(len(record.mask)):
        x = record.hidden_states[0][b].detach().requires_grad_()
        state = x
        for k, layer in enumerate(base.layers):
            weights = record[k].attention[b].detach()
            value = layer.self_attn.v_proj(rms(layer.input_layernorm, state))
            value = value.unflatten(-1, (-1, layer.self_attn.head_dim)).transpose(0, 1)
            value = value.repeat_interleave(weights.shape[0] // value.shape[0], dim=0)
            state = state + layer.self_attn.o_proj((weights @ value).transpose(0, 1).flatten(1))
            normed = rms(layer.post_attention_layernorm, state)
            gate, up = layer.mlp.gate_proj(normed), layer.mlp.up_proj(normed)
            opened = gate * (layer.mlp.act_fn(gate) / gate).detach()
            product = opened.detach() * up
            if gates == "half":
                product = product / 2 + opened * up.detach() / 2
            state = state + layer.mlp.down_proj(product)
        y = rms(base.norm, state)[-1].sum()
        (slope,) = torch.autograd.grad(y, x)
        assert torch.allclose(l.scores[b], (slope * x).sum(-1), atol=1e-5)


def rms(norm: Any, x: Tensor) -> Tensor:
    scale = (x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt().detach()
    return x * scale * norm.weight


class Cumulative(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cumprod(x, dim=-1)


def test_what_breaks_the_account_is_named() -> None:
    model = build("BertForMaskedLM")
    model.bert.encoder.layer[0].intermediate.intermediate_act_fn = Cumulative().eval()
    with pytest.raises(UnsupportedModelError, match="no rule keeps cumprod in layer 1"):
        cm.ledger(model, TEXT)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_is_kept_for_the_way_back(checkpoint: bool) -> None:
    """With `checkpoint=True` at most two layers' activations live at once, whatever the depth."""
    most = {}
    for depth in (2, 8):
        model = build("BertForMaskedLM", num_hidden_layers=depth)
        alive, largest = 0, [0]

        class Kept:
            def __init__(self, tensor: Tensor) -> None:
                nonlocal alive
                self.tensor, self.size = tensor, tensor.numel()
                alive += self.size
                largest[0] = max(largest[0], alive)

            def __del__(self) -> None:
                nonlocal alive
                alive -= self.size

        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            cm.ledger(model, TEXT, checkpoint=checkpoint)
        most[depth] = largest[0]
    if checkpoint:
        assert most[8] < 2 * most[2]
    else:
        assert most[8] > 3 * most[2]  # linear in the layers


def test_embeddings_are_told_apart(masked: Any) -> None:
    whole = cm.ledger(masked, BOTH, class_index="are")
    split = cm.ledger(masked, BOTH, class_index="are", start="embeddings")
    assert {"position_embeddings", "token_type_embeddings"} <= {
        name for name, line in split.lines.items() if line.dim() == 2
    }
    assert split.lines["position_embeddings"].shape == split.scores.shape
    assert torch.allclose(split.value, whole.value) and float(split.gap.max()) < 1e-12
    alone = cm.ledger(masked, BOTH[1], class_index="are", start="embeddings")
    assert torch.allclose(
        alone.lines["position_embeddings"][0], split[1].lines["position_embeddings"][0], atol=1e-12
    )


def test_biases_can_be_spread(masked: Any) -> None:
    lines, spread = (cm.ledger(masked, BOTH, biases=biases) for biases in ("lines", "spread"))
    assert not spread.lines and torch.allclose(spread.scores.sum(-1), lines.value, atol=1e-12)
    share = (spread.scores - lines.scores)[0] / lines.bias[0]
    assert torch.allclose(share, lines.scores[0].abs() / lines.scores[0].abs().sum(), atol=1e-12)


# ---- read-outs
# --------------------------------------------------------------------------------------------------------
def plain(model: Any, inputs: Any) -> Any:
    with torch.no_grad():
        return model(**inputs)


def test_a_masked_word_and_its_foil(masked: Any) -> None:
    tokenizer = small.wordpiece()
    inputs = tokenizer(TEXT, return_tensors="pt")
    logits = plain(masked, inputs).logits[0, 6]
    are, other = tokenizer.convert_tokens_to_ids(["are", "is"])
    l = cm.ledger(masked, TEXT, class_index="are", foil="is")
    assert torch.allclose(l.value, (logits[are] - logits[other])[None])
    assert l.target == "are minus is (logits) at [MASK]"
    assert torch.allclose(cm.ledger(masked, inputs, class_index=are).value, logits[are][None])
    assert torch.allclose(cm.ledger(masked, TEXT).value, logits.max()[None])
    assert torch.allclose(
        cm.ledger(masked, TEXT, position=2, class_index="is").value,
        plain(masked, inputs).logits[0, 2, other][None],
    )


def test_classes_by_label() -> None:
    model = build(
        "BertForSequenceClassification",
        num_labels=3,
        id2label={0: "bad", 1: "so so", 2: "good"},
        label2id={"bad": 0, "so so": 1, "good": 2},
    )
    text = "the keys are old"
    logits = plain(model, small.wordpiece()(text, return_tensors="pt")).logits[0]
    l = cm.ledger(model, text, class_index="good", foil="bad")
    assert (
        torch.allclose(l.value, (logits[2] - logits[0])[None])
        and l.target == "good minus bad (logits)"
    )
    assert any(name == "classifier bias" for name in l.lines)
    with pytest.raises(UnknownNameError, match="good"):
        cm.ledger(model, text, class_index="goood")


def test_a_reranker_gives_its_logit() -> None:
    model = build("BertForSequenceClassification", num_labels=1)
    pair = ("the keys", "the cabinet is old")
    l = cm.ledger(model, pair)
    assert torch.allclose(
        l.value, plain(model, small.wordpiece()(*pair, return_tensors="pt")).logits[0]
    )
    assert len(l.top(4)) == 4 and float(l.gap) < 1e-12


def test_the_next_token_of_a_causal_model() -> None:
    tokenizer = small.llama()
    model = build("GPT2LMHeadModel", tokenizer=tokenizer)
    text = "The keys are"
    logits = plain(model, tokenizer(text, return_tensors="pt")).logits[0, -1]
    assert torch.allclose(cm.ledger(model, text).value, logits.max()[None])


def test_token_labels_and_answers() -> None:
    model = build("BertForTokenClassification", num_labels=3)
    inputs = small.wordpiece()("the keys are old", return_tensors="pt")
    l = cm.ledger(model, "the keys are old", class_index=1, position=-2)
    assert torch.allclose(l.value, plain(model, inputs).logits[0, -2, 1][None])
    with pytest.raises(InputError, match="position"):
        cm.ledger(model, "the keys are old", class_index=1)
    answers = build("BertForQuestionAnswering")
    pair = ("the keys", "the cabinet is old")
    out = plain(answers, small.wordpiece()(*pair, return_tensors="pt"))
    assert torch.allclose(cm.ledger(answers, pair).value, out.start_logits.max()[None])
    assert torch.allclose(
        cm.ledger(answers, pair, readout="end", position=3).value, out.end_logits[:, 3]
    )


def test_an_embedding_on_a_direction() -> None:
    model = build("BertModel")
    text, direction = "the keys are old", torch.randn(32, dtype=torch.float64)
    hidden = plain(model, small.wordpiece()(text, return_tensors="pt")).last_hidden_state[0]
    pooled = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1], "max": hidden.amax(0)}
    for mode, vector in pooled.items():
        l = cm.ledger(model, text, readout="embedding", direction=direction, pooling=mode)
        assert torch.allclose(l.value, (vector @ direction)[None]) and float(l.gap) < 1e-12, mode
        assert torch.allclose(
            cm.ledger(model, text, readout="embedding", pooling=mode).value, vector.norm()[None]
        )
    batch = cm.ledger(
        model, [text, "the"], readout="embedding", direction=direction, pooling="mean"
    )
    assert torch.allclose(batch.value[:1], (pooled["mean"] @ direction)[None])


def test_ctc_and_images() -> None:
    config = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "conv_dim": (16,),
        "conv_stride": (8,),
        "conv_kernel": (10,),
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
        "vocab_size": 8,
        "num_feat_extract_layers": 1,
    }
    torch.manual_seed(0)
    speech = cm.instrument(
        transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**config)).eval().double()
    )
    sound = {"input_values": torch.randn(1, 200, dtype=torch.float64)}
    logits = plain(speech, sound).logits[0]
    l = cm.ledger(speech, sound, class_index=3)
    assert torch.allclose(l.value, logits[:, 3].max()[None]) and float(l.gap) < 1e-12
    vit = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=4,
    )
    image = cm.instrument(transformers.ViTForImageClassification(vit).eval().double())
    pixels = {"pixel_values": torch.randn(2, 1, 8, 8, dtype=torch.float64)}
    l = cm.ledger(image, pixels, class_index=1, foil=2)
    assert torch.allclose(
        l.value, plain(image, pixels).logits @ torch.tensor([0.0, 1, -1, 0], dtype=torch.float64)
    )
    assert l.scores.shape == (2, 5) and float(l.gap.max()) < 1e-12


# ---- as the model is used
# ---------------------------------------------------------------------------------------------
def test_attribute_gives_the_same_scores(masked: Any) -> None:
    l = cm.ledger(masked, BOTH, class_index="are", foil="is")
    a = cm.attribute(masked, BOTH, "ledger", class_index="are", foil="is")
    assert torch.allclose(a.scores, l.scores, atol=1e-12) and a.target == l.target
    assert a.meta["of"] == "logit" and a.meta["notes"]["gap"] < 1e-12
    assert torch.allclose(
        cm.attribute(masked, BOTH, "ledger", class_index="are", foil="is", layer=1).scores,
        l.layers[:, 1],
        atol=1e-12,
    )
    with pytest.raises(OptionError, match="logit"):
        cm.attribute(masked, TEXT, "ledger", of="prob")


def test_eager_and_sdpa_agree() -> None:
    model = build("BertForMaskedLM", attn_implementation="eager")
    eager = cm.ledger(model, BOTH, class_index="are")
    model.set_attn_implementation("sdpa")
    fused = cm.ledger(model, BOTH, class_index="are")
    assert torch.allclose(eager.scores, fused.scores, atol=1e-12) and torch.allclose(
        eager.edges, fused.edges, atol=1e-12
    )


@pytest.mark.parametrize(
    "dtype,limit", [(torch.bfloat16, 0.03), (torch.float16, 0.005), (torch.float32, 1e-5)]
)
def test_half_precision(dtype: torch.dtype, limit: float) -> None:
    model = build("BertForMaskedLM", dtype)
    l = cm.ledger(model, BOTH, class_index="are")
    assert l.scores.dtype == torch.float32 and float(l.gap.max()) <= limit
    wide = cm.ledger(
        cm.uninstrument(model).double() and cm.instrument(model, small.wordpiece()),
        BOTH,
        class_index="are",
    )
    assert float((l.scores - wide.scores).abs().max()) <= 4 * limit * float(
        wide.scores.abs().sum(-1).max()
    )


def test_lora_is_the_merged_model() -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    base = small.build("BertForMaskedLM", small.wordpiece(), **small.BERT).double()
    adapted = peft.get_peft_model(
        base, peft.LoraConfig(target_modules=["query", "value"], r=2, init_lora_weights=False)
    ).eval()
    l = cm.ledger(cm.instrument(adapted, small.wordpiece()), TEXT, class_index="are")
    cm.uninstrument(adapted)
    merged = adapted.merge_and_unload().eval()
    again = cm.ledger(cm.instrument(merged, small.wordpiece()), TEXT, class_index="are")
    assert torch.allclose(l.scores, again.scores, atol=1e-10) and float(l.gap) < 1e-12


def test_nothing_is_left_behind(masked: Any) -> None:
    inputs = small.wordpiece()(BOTH, padding=True, return_tensors="pt")
    before = plain(masked, inputs).logits
    cm.ledger(masked, BOTH)
    assert ACTIVE.get() is None and not torch.overrides._get_current_function_mode_stack()
    assert all(p.grad is None and p.requires_grad for p in masked.parameters())
    assert torch.equal(plain(masked, inputs).logits, before)
    with torch.inference_mode():
        assert float(cm.ledger(masked, TEXT).gap) < 1e-12


def test_two_threads(masked: Any) -> None:
    """300 calls from two threads: each gets its own sentence's account."""
    expected = [cm.ledger(masked, text, class_index="are").scores for text in BOTH]
    wrong: list[int] = []

    def work(which: int) -> None:
        for _ in range(150):
            if not torch.allclose(
                cm.ledger(masked, BOTH[which], class_index="are").scores,
                expected[which],
                atol=1e-12,
            ):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(k,)) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("family", ["bert", "modernbert", "gpt2", "llama", "vit", "wavlm"])
def test_layer_by_layer_is_the_same_account(family: str) -> None:
    """`checkpoint=True` keeps the activations of one layer, and changes no number."""
    model, inputs = zoo.build(family, dtype=torch.float64)
    cm.instrument(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = lambda out: out[0][:, 0].sin().detach().mul(out[0][:, 0]).sum(-1)
        whole, by_layer = (
            cm.ledger(model, inputs, readout=read, checkpoint=c) for c in (False, True)
        )
    assert torch.allclose(whole.scores, by_layer.scores, atol=1e-6, rtol=1e-6)
    assert torch.allclose(whole.layers, by_layer.layers, atol=1e-6, rtol=1e-6)
    assert torch.allclose(whole.components, by_layer.components, atol=1e-6, rtol=1e-6)
    assert set(whole.lines) == set(by_layer.lines) and torch.allclose(
        whole.bias, by_layer.bias, atol=1e-6
    )
    with pytest.raises(CtxmixError, match="edges"):
        _ = by_layer.edges


def test_one_token() -> None:
    model = build("BertForMaskedLM")
    l = cm.ledger(model, torch.tensor([[4]]), class_index=5, position=0)
    assert l.scores.shape == (1, 1) and float(l.gap) < 1e-12


def test_a_finding_names_what_speaks_against_it(masked: Any) -> None:
    """The largest word of the other sign, where none of the largest words has it."""
    l = cm.ledger(masked, "the bleaching keys [MASK] old", class_index="are").words()
    names = l.tokens[0].shown()
    of = lambda *scores: replace(
        l,
        scores=torch.tensor([scores], dtype=torch.float64),
        value=torch.tensor([sum(scores)], dtype=torch.float64),
    ).finding()
    rest = [0.0] * (len(names) - 5)
    assert of(5.0, 4.0, 3.0, -0.5, -0.2, *rest).endswith(
        f"{names[2]} +3.00, {names[3]} -0.50, biases {float(l.bias[0]):+.2f}"
    )
    assert f"{names[3]}" not in of(5.0, -4.0, 3.0, -0.5, -0.2, *rest)  # one of them is against it
    assert of(5.0, 4.0, 3.0, -0.001, 0.0, *rest).count(",") == 3  # nothing worth a number


# ---- the result
# -------------------------------------------------------------------------------------------------------
def test_words_examples_and_files(masked: Any, tmp_path: Any) -> None:
    l = cm.ledger(
        masked, ["the bleaching keys [MASK] old", "the [MASK]"], class_index="are", foil="is"
    )
    words = l.words()
    assert (
        "bleaching" in words.tokens[0].shown()
        and torch.allclose(words.total, l.total)
        and float(words.gap.max()) < 1e-12
    )
    assert torch.allclose(words.edges.sum((-1, -2)), l.edges.sum((-1, -2))) and torch.allclose(
        words.layers.sum(-1), l.layers.sum(-1)
    )
    assert (
        torch.allclose(l[1].value, l.value[1:])
        and l[1].scores.shape[1] == 4
        and torch.allclose(l[1].edges, l.edges[1:, :, :4, :4])
    )
    for suffix in ("json", "npz", "safetensors"):
        path = l.save(tmp_path / f"l.{suffix}")
        again = cm.Ledger.load(path)
        assert (
            again == l and torch.equal(again.edges, l.edges) and torch.equal(again.above, l.above)
        ), suffix
    rows = l.to_csv().splitlines()
    assert rows[0] == "example,kind,index,name,contribution"
    total = sum(float(row.rsplit(",", 1)[1]) for row in rows[1:] if row.startswith("0,"))
    assert abs(total - float(l.value[0])) < 1e-9
    assert "are minus is" in str(l) and "biases" in str(l)
    assert l.save(tmp_path / "l.png").stat().st_size > 5000
    assert hash(l) == hash(cm.Ledger.load(tmp_path / "l.npz"))


def test_the_page_states_what_it_shows(masked: Any) -> None:
    text = "the <b>keys</b> [MASK] old"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # most of it is unknown to this tokenizer
        html = cm.ledger(masked, text, class_index="are").to_html()
    assert html.count("<b>") == 1 and "Showing" in html and "biases" in html and "http" not in html


def test_what_flows_through_a_token_is_what_was_counted_there(masked: Any) -> None:
    """In and out, from the input to the output, with what biases put in."""
    from ctxmix_hf.viz.accounts import BIASES, OUTPUT, flows

    l = cm.ledger(masked, TEXT, class_index="are")
    leaving, arriving = torch.zeros_like(l.layers[0]), torch.zeros_like(l.layers[0])
    biases, out = torch.zeros_like(l.above[0]), 0.0
    for layer, source, target, value in flows(l):
        if source == BIASES:
            biases[layer] += value
        else:
            leaving[layer, source] += value
        if target == OUTPUT:
            out += value
        else:
            arriving[layer + 1, target] += value
    assert torch.allclose(leaving, l.layers[0], atol=1e-10)
    assert torch.allclose(arriving[1:], l.layers[0, 1:], atol=1e-10)
    assert out == pytest.approx(float(l.value[0]), abs=1e-10)
    assert float(biases.sum()) == pytest.approx(float(l.bias[0]), abs=1e-10)
    above = l.above[0] - torch.cat([l.above[0, 1:], l.above.new_zeros(1)])
    assert torch.allclose(biases, above, atol=1e-10)  # of each layer, and of the head


@pytest.mark.parametrize("rule", ["frozen", "through"])
def test_what_is_drawn_of_the_flow_leads_from_the_input_to_the_output(
    masked: Any, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole paths, the widest first: no link comes from nowhere or leads nowhere; and what share they are is said."""
    from ctxmix_hf.viz import accounts
    from ctxmix_hf.viz.accounts import BIASES, OUTPUT

    l = cm.ledger(masked, TEXT, class_index="are", rule=rule)
    every = accounts.flows(l)
    depth = max(layer for layer, *_ in every)
    for most in (depth + 1, 20, 60, 10_000):
        monkeypatch.setattr(accounts, "LINKS", most)
        kept, said = accounts.drawn_flows(l)
        assert set(kept) <= set(every) and len(set(kept)) == len(kept)
        leaves = {(layer, source) for layer, source, *_ in kept}
        arrives = {(layer + 1, target) for layer, _, target, _ in kept}
        for layer, source, target, _ in kept:
            assert layer == 0 or source == BIASES or (layer, source) in arrives
            assert target == OUTPUT or (layer + 1, target) in leaves
        share = sum(abs(link[3]) for link in kept) / sum(abs(link[3]) for link in every)
        assert f"{share:.0%}" in said and f"{len(kept)} of {len(every)} links" in said
        assert len(kept) <= max(most, accounts.PATHS * (depth + 1))
        assert _widest(kept, depth) == _widest(every, depth)  # the widest of all is there
    going = [
        link for link in every if link[3]
    ]  # with room for everything, what is missing leads nowhere
    while True:
        leaves = {(layer, source) for layer, source, *_ in going}
        on = [f for f in going if f[2] == OUTPUT or (f[0] + 1, f[2]) in leaves]
        if len(on) == len(going):
            break
        going = on
    assert set(kept) == set(going)


def _widest(every: list[Any], depth: int) -> float:
    """How wide the narrowest link of the widest path from the input to the output is, by trying all of them."""
    paths = [[link] for link in every if link[0] == 0 and link[1] >= 0]
    for layer in range(1, depth + 1):
        paths = [
            [*path, link]
            for path in paths
            for link in every
            if link[0] == layer and link[1] == path[-1][2]
        ]
    return max(min(abs(link[3]) for link in path) for path in paths)


def test_the_figure_shows_what_the_page_shows(masked: Any) -> None:
    l = cm.ledger(masked, TEXT, class_index="are")
    figure = l.plot()
    said = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert {"keys", "cabinet", "biases"} <= said  # the sentence
    titles = [axes.get_title() for axes in figure.axes]
    shown = next(title for title in titles if title.startswith("Showing"))
    assert shown in cm.ledger(masked, TEXT, class_index="are").to_html()
    assert "output" in [tick.get_text() for tick in figure.axes[3].get_yticklabels()]
    without = cm.ledger(masked, TEXT, class_index="are", checkpoint=True).plot()
    assert not any(axes.get_title().startswith("Showing") for axes in without.axes)


# ---- bad input
# --------------------------------------------------------------------------------------------------------
def test_bad_input_is_one_sentence(masked: Any) -> None:
    cases: list[tuple[type[CtxmixError], str, dict[str, Any]]] = [
        (UnknownNameError, "single piece", {"class_index": "zebra"}),
        (InputError, "out of range", {"class_index": 10_000}),
        (InputError, "foil", {"class_index": "are", "foil": "are"}),
        (OptionError, "rule", {"rule": "magic"}),
        (OptionError, "readout", {"readout": "nothing"}),
        (OptionError, "leave them out", {"readout": "embedding", "class_index": 1}),
        (OptionError, "direction", {"direction": torch.ones(32)}),
        (InputError, "question answering", {"readout": "start"}),
        (InputError, "one number per example", {"readout": lambda out: out.logits}),
    ]
    for kind, said, options in cases:
        with pytest.raises(kind, match=said):
            cm.ledger(masked, TEXT, **options)
    with pytest.raises(InputError, match=r"\[MASK\]"):
        cm.ledger(masked, "the keys are old")
    masked.train()
    try:
        with pytest.raises(RecordError, match="train mode"):
            cm.ledger(masked, TEXT)
    finally:
        masked.eval()


def test_an_encoder_without_a_head_says_which_readouts_exist() -> None:
    with pytest.raises(InputError, match="readout='embedding'"):
        cm.ledger(build("BertModel"), "the keys")
    with pytest.raises(NotInstrumentedError):
        cm.ledger(small.build("BertModel", small.wordpiece(), **small.BERT), "the keys")


def test_a_random_head_is_warned_of(tmp_path: Any) -> None:
    small.build("BertModel", small.wordpiece(), **small.BERT).save_pretrained(tmp_path)
    small.wordpiece().save_pretrained(tmp_path)
    model = cm.AutoContextMixingModelForSequenceClassification.from_pretrained(tmp_path)
    with pytest.warns(RandomWeightsWarning, match="random"):
        cm.ledger(model, "the keys are old")


def test_a_value_of_zero_has_an_absolute_gap() -> None:
    model = build("BertForSequenceClassification", num_labels=2)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.zero_()
    l = cm.ledger(model, "the keys", class_index=0)
    assert float(l.value) == 0.0 and float(l.gap) == 0.0
