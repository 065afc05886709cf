"""A small random model with a tokenizer, and stores of its maps."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import ctxmix_hf as cm
from ctxmix_hf.hub.store import MapStore

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "film",
    "is",
    "good",
    "bad",
    "and",
    "not",
    "very",
    "a",
    "story",
]
TEXTS = [
    "the film is good",
    "a very bad story",
    "not bad",
    "the story is good and the film is not very good",
    "good",
    "a film",
]
METHODS = ["alti", "value_zeroing"]


@lru_cache
def tokenizer() -> Any:
    backend = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def fresh_model(seed: int = 0) -> Any:
    """An uninstrumented tiny classifier."""
    torch.manual_seed(seed)
    size = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
    }
    return BertForSequenceClassification(BertConfig(vocab_size=len(WORDS), **size)).eval()


@lru_cache
def model() -> Any:
    """The tiny classifier, instrumented; shared, so not to be changed."""
    return cm.instrument(fresh_model(), tokenizer=tokenizer())


def filled(
    path: Path, texts: list[str] | None = None, methods: Any = METHODS, **options: Any
) -> MapStore:
    """A closed store of some texts."""
    texts = TEXTS if texts is None else texts
    store = MapStore.create(path, model=model(), tokenizer=tokenizer(), methods=methods, **options)
    store.add(
        [f"validation-{i}" for i in range(len(texts))],
        texts,
        split="validation",
        labels=[i % 2 for i in range(len(texts))],
    )
    store.close()
    return store
