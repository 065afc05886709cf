"""The logit lens: its last row is the model's own answer, the others are the plain head on plain hidden states."""

from __future__ import annotations

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.errors import InputError, OptionError, UnsupportedMethodError
from tests import small

IDS = torch.tensor([[2, 5, 6, 4, 9, 3], [2, 5, 7, 4, 3, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])


def states_of(model, **inputs) -> tuple[torch.Tensor, ...]:
    """e^0 ... e^L by hooks on the plain model: transformers' own last hidden state is behind the final norm."""
    layers = model.transformer.h if hasattr(model, "transformer") else model.bert.encoder.layer
    seen: list[torch.Tensor] = []
    first = lambda out: out if isinstance(out, torch.Tensor) else out[0]
    handles = [layers[0].register_forward_pre_hook(lambda m, args: seen.append(args[0]))]
    handles += [
        layer.register_forward_hook(lambda m, args, out: seen.append(first(out)))
        for layer in layers
    ]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return tuple(seen)


def test_masked_word() -> None:
    tokenizer = small.wordpiece()
    model = small.build("BertForMaskedLM", tokenizer, **small.BERT).double()
    states = states_of(model, input_ids=IDS, attention_mask=MASK)
    with torch.no_grad():
        own = model(input_ids=IDS, attention_mask=MASK).logits
        expected = [model.cls(state)[:, 3] for state in states]
    made = cm.logit_lens(
        cm.instrument(model), {"input_ids": IDS, "attention_mask": MASK}, tokenizer=tokenizer, top=3
    )
    assert made.logits.shape == (2, 3, len(tokenizer)) and made.position.tolist() == [3, 3]
    assert torch.equal(made.logits[:, -1], own[:, 3])
    for layer, logits in enumerate(expected):
        assert torch.allclose(made.logits[:, layer], logits, atol=1e-12)
        for b in range(2):
            best = logits[b].argsort(descending=True)[:3]
            assert made.top[b, layer].equal(best)
            named = tokenizer.convert_ids_to_tokens(best.tolist())
            assert [w.replace("##", "") for w in named] == [
                w.replace("##", "") for w in made.words[b][layer]
            ]
    assert not torch.allclose(made.logits[:, 0], made.logits[:, -1])
    assert torch.allclose(made.scores.sum(dim=-1), torch.ones(2, 3, dtype=torch.float64))


def test_next_word_of_a_pre_norm_decoder_passes_the_final_norm() -> None:
    model = small.build("GPT2LMHeadModel", vocab_size=40, **small.GPT2).double()
    ids = torch.tensor([[3, 17, 5, 8]])
    states = states_of(model, input_ids=ids)
    with torch.no_grad():
        own = model(input_ids=ids).logits
        expected = [model.lm_head(model.transformer.ln_f(state))[:, -1] for state in states]
    cm.instrument(model)
    made = cm.logit_lens(model, ids)
    assert torch.equal(made.logits[:, -1], own[:, -1])
    assert torch.allclose(made.logits[0], torch.cat(expected), atol=1e-12)
    second = cm.logit_lens(model, ids, position=1, top=1)
    assert torch.equal(second.logits[:, -1], own[:, 1]) and second.top.shape == (1, 3, 1)


def test_classes_have_one_answer_and_labels() -> None:
    model = small.build(
        "BertForSequenceClassification", vocab_size=30, id2label={0: "bad", 1: "good"}, **small.BERT
    ).double()
    with torch.no_grad():
        own = model(input_ids=IDS, attention_mask=MASK).logits
    cm.instrument(model)
    made = cm.logit_lens(model, {"input_ids": IDS, "attention_mask": MASK})
    assert torch.equal(made.logits[:, -1], own) and made.position is None
    assert set(made.words[0][0]) == {"bad", "good"}  # top=5 of two
    with pytest.raises(OptionError, match="leave position out"):
        cm.logit_lens(model, IDS[:1], position=1)


def test_the_table_says_what_it_shows(box) -> None:
    model, tokenizer = box
    made = cm.logit_lens(model, "The keys to the cabinet [MASK] here.", top=2)
    lines = str(made).splitlines()
    with torch.no_grad():
        inputs = tokenizer("The keys to the cabinet [MASK] here.", return_tensors="pt")
        probabilities = model(**inputs).logits[0, int(made.position[0])].softmax(-1)
    best = int(probabilities.argmax())
    assert lines[0].startswith("logit lens at [MASK]") and lines[1].startswith("input")
    assert len(lines) == 2 + model.config.num_hidden_layers
    assert lines[-1].startswith(f"layer {model.config.num_hidden_layers} ")
    assert f"{tokenizer.convert_ids_to_tokens(best)} {float(probabilities[best]):.3f}" in lines[-1]


def test_bad_questions() -> None:
    model = small.build("GPT2LMHeadModel", vocab_size=40, **small.GPT2)
    cm.instrument(model)
    with pytest.raises(OptionError, match="top=0"):
        cm.logit_lens(model, IDS[:1], top=0)
    with pytest.raises(InputError, match="position=9"):
        cm.logit_lens(model, IDS[:1], position=9)
    bare = cm.instrument(small.build("BertModel", vocab_size=30, **small.BERT))
    with pytest.raises(UnsupportedMethodError, match="no head"):
        cm.logit_lens(bare, IDS[:1])
    sizes = {
        "d_model": 16,
        "d_ff": 32,
        "d_kv": 4,
        "num_heads": 4,
        "num_layers": 2,
        "vocab_size": 30,
        "decoder_start_token_id": 0,
    }
    both = cm.instrument(small.build("T5ForConditionalGeneration", **sizes))
    with pytest.raises(UnsupportedMethodError, match="an encoder and a decoder"):
        cm.logit_lens(both, IDS[:1])
