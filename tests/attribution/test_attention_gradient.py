"""Attention times its gradient against transformers' own attentions and a plain backward pass:
eager and sdpa, one row and several.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ctxmix_hf as cm
from tests import small

IDS = torch.tensor([[2, 5, 6, 4, 9, 3], [2, 5, 7, 4, 3, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])


def expected(model, ids: Tensor, pick, row: int, drop_own: bool = False) -> Tensor:
    """Chefer et al. 2021, eq. 5-6 in loops, one sentence, on a plain eager model."""
    model.set_attn_implementation("eager")
    out = model(input_ids=ids[None], output_attentions=True)
    grads = torch.autograd.grad(pick(out.logits[0]), out.attentions)
    attentions = [attention.detach() for attention in out.attentions]
    n = len(ids)
    relevance = torch.eye(n, dtype=torch.float64)
    for attention, grad in zip(attentions, grads, strict=True):
        bar = torch.zeros(n, n, dtype=torch.float64)
        for i in range(n):
            for j in range(n):
                heads = attention.shape[1]
                bar[i, j] = (
                    sum(
                        max(0.0, float(attention[0, h, i, j] * grad[0, h, i, j]))
                        for h in range(heads)
                    )
                    / heads
                )
        relevance = relevance + bar @ relevance
    if drop_own:
        relevance[row, row] = 0
    return relevance[row]


@pytest.mark.parametrize("path", ["eager", "sdpa"])
@pytest.mark.parametrize("of", ["logit", "prob"])
def test_classifier_reads_its_first_token(path: str, of: str) -> None:
    model = small.build(
        "BertForSequenceClassification", vocab_size=30, num_labels=3, **small.BERT
    ).double()
    pick = (lambda logits: logits[1]) if of == "logit" else (lambda logits: logits.softmax(-1)[1])
    wanted = [expected(model, IDS[b][MASK[b] == 1], pick, 0) for b in range(2)]
    dropped = expected(model, IDS[0], pick, 0, drop_own=True)
    model.set_attn_implementation(path)
    cm.instrument(model)
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    made = cm.attribute(model, inputs, "attention_gradient", class_index=1, of=of)
    for b in range(2):
        n = len(wanted[b])
        assert torch.allclose(made.scores[b, :n], wanted[b], atol=1e-12)
        assert not made.scores[b, n:].any()
    alone = cm.attribute(model, IDS[:1], "attention_gradient", class_index=1, of=of, drop_own=True)
    assert torch.allclose(alone.scores[0], dropped, atol=1e-12) and alone.scores[0, 0] == 0
    assert float(dropped.max()) > 0  # else nothing was compared


def test_next_word_of_a_pre_norm_decoder_reads_its_last_token() -> None:
    model = small.build("GPT2LMHeadModel", vocab_size=40, **small.GPT2).double()
    ids = torch.tensor([3, 17, 5, 8])
    wanted = expected(model, ids, lambda logits: logits[-1, 7], -1)
    model.set_attn_implementation("sdpa")
    model.requires_grad_(False)  # frozen weights have attention gradients all the same
    made = cm.attribute(
        cm.instrument(model), ids[None], "attention_gradient", class_index=7, of="logit"
    )
    assert torch.allclose(made.scores[0], wanted, atol=1e-12)
    assert all(p.grad is None for p in model.parameters())


def test_where_the_head_reads_several_tokens_their_rows_are_averaged() -> None:
    """DistilBERT reads its first token, a ViT-like mean head all: a class head that averages is made of BERT here."""
    model = small.build(
        "BertForTokenClassification", vocab_size=30, num_labels=2, **small.BERT
    ).double()
    rows = [expected(model, IDS[0], lambda logits: logits.mean(0)[1], i) for i in range(6)]
    plain = model.forward

    def averaged(*args, **kwargs):
        out = plain(*args, **kwargs)
        out.logits = out.logits.mean(dim=1)
        return out

    model.forward = averaged
    made = cm.attribute(
        cm.instrument(model), IDS[:1], "attention_gradient", class_index=1, of="logit"
    )
    assert torch.allclose(made.scores[0], torch.stack(rows).mean(0), atol=1e-12)
