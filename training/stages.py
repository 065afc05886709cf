"""What each stage learns: words in context, then number agreement, and sentiment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    PreTrainedTokenizerBase,
)

from corpus import BoxData
from examples import (
    IGNORED,
    PluralSplitter,
    TrainingText,
    agreement_pairs,
    ask,
    encode,
    hide,
    language_texts,
    pad,
    spellings,
)
from loop import LengthBatches, Log, LossAt, Plan, train
from vocabulary import LONGEST, train_tokenizer

LABELS = {0: "negative", 1: "positive"}


@dataclass(frozen=True)
class Bench:
    """What every stage works with."""

    data: BoxData
    text: TrainingText
    tokenizer: PreTrainedTokenizerBase
    work: Path
    log: Log


def bundled_config(tokenizer: PreTrainedTokenizerBase, dropout: float) -> BertConfig:
    """The architecture of both bundled models."""
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=512,
        max_position_embeddings=LONGEST,
        pad_token_id=tokenizer.pad_token_id,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",  # type: ignore[call-arg]
    )


def make_tokenizer(data: BoxData, text: TrainingText) -> PreTrainedTokenizerBase:
    """The vocabulary may know the held-out targets and foils as words; it never sees their sentences."""
    return train_tokenizer(
        language_texts(text), (w for p in data.cues for w in (p.good_word, p.bad_word))
    )


def language_model(bench: Bench, plan: Plan) -> BertForMaskedLM:
    """Masked-LM pre-training on the training half of BLiMP and the sentences of SST-2."""
    torch.manual_seed(plan.seed)
    model = BertForMaskedLM(bundled_config(bench.tokenizer, dropout=0.0))
    train(model, plan, lambda: masked_loss(model, bench, plan, size=72), bench.work, bench.log)
    return model


def masked_loss(model: BertForMaskedLM, bench: Bench, plan: Plan, size: int) -> LossAt:
    """Cross entropy at hidden pieces, over both corpora."""
    tokenizer = bench.tokenizer
    sequences = encode(tokenizer, language_texts(bench.text))
    batches = LengthBatches([len(s) for s in sequences], size, plan.seed)
    split = PluralSplitter(tokenizer)

    def loss_at(step: int) -> Tensor:
        ids, mask = pad(
            [split(sequences[i])[:LONGEST] for i in batches[step]], tokenizer.pad_token_id
        )
        hidden, labels = hide(ids, mask, tokenizer, share=0.2)
        chosen = labels != IGNORED
        return F.cross_entropy(logits_at(model, hidden, mask, chosen), labels[chosen])

    return loss_at


def logits_at(model: BertForMaskedLM, ids: Tensor, mask: Tensor, where: Tensor) -> Tensor:
    """Vocabulary logits [N, V] at the true places of `where` [B, T]; the rest is not scored."""
    return model.cls(model.bert(input_ids=ids, attention_mask=mask).last_hidden_state[where])


def agreement_model(start: BertForMaskedLM, bench: Bench, plan: Plan) -> BertForMaskedLM:
    """The language model, tuned so that the masked number word follows its cue; it stays a masked LM."""
    model = BertForMaskedLM(bundled_config(bench.tokenizer, dropout=0.0))
    model.load_state_dict(start.state_dict())
    train(model, plan, lambda: mixed_loss(model, bench, plan), bench.work, bench.log)
    return model


def mixed_loss(model: BertForMaskedLM, bench: Bench, plan: Plan) -> LossAt:
    """Agreement beside the masked-LM loss, so that the other words are not forgotten."""
    agree = agreement_loss(model, bench, plan)
    speak = masked_loss(model, bench, plan, size=24)
    return lambda step: agree(step) + 0.5 * speak(step)


def agreement_loss(model: BertForMaskedLM, bench: Bench, plan: Plan) -> LossAt:
    """Cross entropy of the right word plus a logistic loss on right minus wrong number."""
    tokenizer = bench.tokenizer
    asked = [
        q
        for q in (ask(tokenizer, pair) for pair in agreement_pairs(bench.text, plan.seed))
        if q is not None
    ]
    encoded = encode(tokenizer, [q.text for q in asked])
    questions = [
        (q, ids) for q, ids in zip(asked, encoded, strict=True) if tokenizer.mask_token_id in ids
    ]
    batches = LengthBatches([len(ids) for _, ids in questions], 56, plan.seed + 1)
    split = PluralSplitter(tokenizer)

    def loss_at(step: int) -> Tensor:
        some = [questions[i] for i in batches[step]]
        ids, mask = pad([split(ids)[:LONGEST] for _, ids in some], tokenizer.pad_token_id)
        logits = logits_at(model, ids, mask, ids == tokenizer.mask_token_id)
        good, bad = torch.tensor([q.good for q, _ in some]), torch.tensor([q.bad for q, _ in some])
        gap = logits.gather(1, good[:, None]) - logits.gather(1, bad[:, None])
        return 0.3 * F.cross_entropy(logits, good) + F.softplus(-gap).mean()

    return loss_at


def sentiment_model(
    start: BertForMaskedLM, bench: Bench, plan: Plan, teacher: dict[str, float] | None = None
) -> BertForSequenceClassification:
    """The language model's encoder with a two-class head, on all SST-2 phrases."""
    config = bundled_config(bench.tokenizer, dropout=0.1)
    config.id2label, config.label2id = LABELS, {name: index for index, name in LABELS.items()}
    torch.manual_seed(plan.seed)
    model = BertForSequenceClassification(config)
    model.bert.load_state_dict(start.bert.state_dict(), strict=False)
    train(model, plan, lambda: sentiment_loss(model, bench, plan, teacher), bench.work, bench.log)
    return model


def sentiment_loss(
    model: BertForSequenceClassification, bench: Bench, plan: Plan, teacher: dict[str, float] | None
) -> LossAt:
    """Cross entropy with smoothed labels (or the teacher's); with blanked pieces no word decides alone."""
    tokenizer, phrases = bench.tokenizer, bench.data.sst_train
    rows = [
        (s, float(y) if teacher is None else teacher[t]) for t, y in phrases for s in spellings(t)
    ]
    sequences = encode(tokenizer, [text for text, _ in rows])
    batches = LengthBatches([len(s) for s in sequences], 64, plan.seed)
    smoothing = 0.1 if teacher is None else 0.0

    def loss_at(step: int) -> Tensor:
        ids, mask = pad([sequences[i] for i in batches[step]], tokenizer.pad_token_id)
        blank = (torch.rand(ids.shape) < 0.1) & (ids >= len(tokenizer.all_special_ids))
        logits = model(
            input_ids=ids.masked_fill(blank, tokenizer.mask_token_id), attention_mask=mask
        ).logits
        positive = (
            torch.tensor([rows[i][1] for i in batches[step]]) * (1 - smoothing) + smoothing / 2
        )
        return F.cross_entropy(logits, torch.stack([1 - positive, positive], dim=1))

    return loss_at
