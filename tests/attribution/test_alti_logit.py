"""ALTI-Logit in loops on plain modules: GPT-2, as in the paper, and BERT, where norms stand on the residual stream."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ctxmix_hf as cm
from ctxmix_hf.errors import OptionError, UnsupportedMethodError
from tests import small
from tests.test_logit_lens import states_of


def alti(y: Tensor, parts: Tensor) -> Tensor:
    """Ferrando et al. 2022, eq. 9-11, one layer: `parts` [i, j, D], their whole `y` [i, D]."""
    n = len(y)
    shares = torch.zeros(n, n, dtype=y.dtype)
    for i in range(n):
        for j in range(n):
            shares[i, j] = max(0.0, float(y[i].abs().sum() - (y[i] - parts[i, j]).abs().sum()))
        shares[i] /= shares[i].sum()
    return shares


def linear_norm(vectors: Tensor, norm, state: Tensor) -> Tensor:
    deviation = (state.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    return (vectors - vectors.mean(-1, keepdim=True)) / deviation * norm.weight


def attention_parts(attention: Tensor, values: Tensor, wo: Tensor) -> Tensor:
    """`[i, j, D]` from `[H, T, T]`, `[H, T, E]` and `[D, HE]`."""
    heads, n, size = values.shape
    z = torch.zeros(n, n, len(wo), dtype=values.dtype)
    for h in range(heads):
        for i in range(n):
            for j in range(n):
                z[i, j] += attention[h, i, j] * (wo[:, h * size : (h + 1) * size] @ values[h, j])
    return z


def gpt2(model, ids: Tensor, word: int) -> tuple[Tensor, Tensor]:
    """(scores, the direct part of e^0) for the logit of `word` after the last token."""
    states = [state[0] for state in states_of(model, input_ids=ids)]
    attentions = model(input_ids=ids, output_attentions=True).attentions
    n, width = states[0].shape
    final, unembed = model.transformer.ln_f, model.lm_head.weight[word]
    project = lambda v: linear_norm(v, final, states[-1][-1]) @ unembed
    total, mixed = torch.zeros(n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)
    for number, block in enumerate(model.transformer.h):
        x = states[number]
        v = (
            block.attn.c_attn(block.ln_1(x))[:, 2 * width :]
            .unflatten(-1, (model.config.n_head, -1))
            .transpose(0, 1)
        )
        z = attention_parts(attentions[number][0], v, block.attn.c_proj.weight.mT)
        updates = torch.stack([project(z[-1, j]) for j in range(n)])
        total = total + updates @ mixed
        for i in range(n):
            z[i, i] += x[i]
        mixed = alti(z.sum(1) + block.attn.c_proj.bias, z) @ mixed
    return total, project(states[0][-1])


def test_pre_norm_equals_loops() -> None:
    model = small.build("GPT2LMHeadModel", vocab_size=40, **small.GPT2).double()
    model.set_attn_implementation("eager")
    ids = torch.tensor([[3, 17, 5, 8, 2]])
    with torch.no_grad():
        (right, start), (wrong, start_wrong) = gpt2(model, ids, 7), gpt2(model, ids, 9)
        own = model(input_ids=ids).logits[0, -1]
    cm.instrument(model)
    made = cm.attribute(model, ids, "alti_logit", class_index=7)
    assert torch.allclose(made.scores[0], right, atol=1e-10)
    assert made.meta["of"] == "logit"
    assert abs(float(made.scores.sum()) + made.meta["notes"]["rest"][0] - float(own[7])) < 1e-10
    contrast = cm.attribute(model, ids, "alti_logit", class_index=7, foil=9)
    assert torch.allclose(contrast.scores[0], right - wrong, atol=1e-10)
    whole = cm.attribute(model, ids, "alti_logit", class_index=7, foil=9, initial=True)
    right[-1] += start
    wrong[-1] += start_wrong
    assert torch.allclose(whole.scores[0], right - wrong, atol=1e-10)


def test_all_updates_together_are_the_logit() -> None:
    """Attention, feed-forward, biases and e^0, each on its direct way: what is not a token's is `rest`, exactly."""
    model = small.build("GPT2LMHeadModel", vocab_size=40, **small.GPT2).double()
    ids = torch.tensor([[3, 17, 5, 8, 2]])
    states = states_of(model, input_ids=ids)
    with torch.no_grad():
        unembed, final = model.lm_head.weight[7], model.transformer.ln_f
        rest = final.bias @ unembed
        for number, block in enumerate(model.transformer.h):
            x = states[number][0]
            out = block.attn(block.ln_1(states[number]))[0]
            fed = states[number + 1][0] - out[0] - x
            for update in (fed[-1], block.attn.c_proj.bias):
                rest = rest + linear_norm(update, final, states[-1][0, -1]) @ unembed
    made = cm.attribute(cm.instrument(model), ids, "alti_logit", class_index=7, initial=True)
    assert abs(made.meta["notes"]["rest"][0] - float(rest)) < 1e-10


def bert(model, ids: Tensor, word: int, place: int) -> Tensor:
    """The masked word's logit: updates pass the norms that stand between them and the head, all
    with frozen deviations.
    """
    out = model(input_ids=ids, output_hidden_states=True, output_attentions=True)
    states = [state[0] for state in out.hidden_states]
    layers = model.bert.encoder.layer
    n = len(states[0])
    held = []
    for number, layer in enumerate(layers):
        own, x = layer.attention.self, states[number]
        v = own.value(x).unflatten(-1, (own.num_attention_heads, -1)).transpose(0, 1)
        dense = layer.attention.output.dense
        z = attention_parts(out.attentions[number][0], v, dense.weight)
        u = z.sum(1) + dense.bias + x
        a = layer.attention.output.LayerNorm(u)
        held.append((z, u, layer.output.dense(layer.intermediate(a)) + a))

    def on_its_way(vector: Tensor, number: int) -> Tensor:
        """From the residual stream before the first norm of layer `number` to the logit, for the token at `place`."""
        for later in range(number, len(layers)):
            vector = linear_norm(
                vector, layers[later].attention.output.LayerNorm, held[later][1][place]
            )
            vector = linear_norm(vector, layers[later].output.LayerNorm, held[later][2][place])
        transform = model.cls.predictions.transform
        h = transform.dense(states[-1][place])
        active = transform.transform_act_fn(h)
        vector = (transform.dense.weight @ vector) * (active / h)
        return (
            linear_norm(vector, transform.LayerNorm, active)
            @ model.cls.predictions.decoder.weight[word]
        )

    total, mixed = torch.zeros(n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)
    for number, layer in enumerate(layers):
        z, u, _ = held[number]
        total = total + torch.stack([on_its_way(z[place, j], number) for j in range(n)]) @ mixed
        parts = z.clone()
        for i in range(n):
            parts[i, i] += states[number][i]
        norm = layer.attention.output.LayerNorm
        parts = torch.stack([linear_norm(parts[i], norm, u[i]) for i in range(n)])
        mixed = alti(norm(u), parts) @ mixed
    return total


def test_post_norm_equals_loops() -> None:
    tokenizer = small.wordpiece()
    model = small.build("BertForMaskedLM", tokenizer, **small.BERT).double()
    model.set_attn_implementation("eager")
    ids = torch.tensor([[2, 5, 6, 4, 9, 3]])
    with torch.no_grad():
        wanted = bert(model, ids, 9, 3) - bert(model, ids, 10, 3)
    made = cm.attribute(
        cm.instrument(model), ids, "alti_logit", class_index=9, foil=10, tokenizer=tokenizer
    )
    assert torch.allclose(made.scores[0], wanted, atol=1e-10)


def test_bad_questions() -> None:
    model = cm.instrument(small.build("GPT2LMHeadModel", vocab_size=40, **small.GPT2))
    with pytest.raises(OptionError, match="alti_logit adds up to a logit"):
        cm.attribute(model, torch.tensor([[3, 4]]), "alti_logit", of="prob")
    sizes = {
        "hidden_size": 64,
        "intra_bottleneck_size": 32,
        "embedding_size": 32,
        "num_feedforward_networks": 2,
    }
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    bottleneck = small.build("MobileBertForSequenceClassification", vocab_size=30, **sizes)
    with pytest.raises(UnsupportedMethodError, match="Layer 1 "):
        cm.attribute(
            cm.instrument(bottleneck), torch.tensor([[3, 4, 5]]), "alti_logit", class_index=0
        )
