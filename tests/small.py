"""Tiny tokenizers and models as users have them: with a vocabulary of a few words, in memory or saved in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = (
    "the",
    "keys",
    "to",
    "cabinet",
    "are",
    "is",
    "old",
    "and",
    "embedding",
    "mean",
    "pool",
    ".",
    "ble",
    "##aching",
)
BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "initializer_range": 0.4,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.4}


def wordpiece(segments: bool = True) -> PreTrainedTokenizerFast:
    """As BERT's: [CLS] text [SEP] pair [SEP], segments 0 and 1, ## for what continues a word."""
    vocabulary = {
        piece: i for i, piece in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS))
    }
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
        "pad_token": "[PAD]",
    }
    reads = (
        ["input_ids", "token_type_ids", "attention_mask"]
        if segments
        else ["input_ids", "attention_mask"]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, model_input_names=reads, model_max_length=64, **names
    )


def llama(pad: bool = True, start: bool = True) -> PreTrainedTokenizerFast:
    """As Llama's and Gemma's: spaces become marks before anything is split, and nothing is split,
    so every piece is in word 0.
    """
    pieces = (
        "<unk>",
        "<s>",
        "</s>",
        "▁The",
        "▁keys",
        "▁ble",
        "aching",
        "▁are",
        "▁is",
        "▁old",
        "▁and",
        "▁",
        ".",
        "你",
        "好",
        "世",
        "界",
    )
    made = Tokenizer(
        models.Unigram([(piece, -1.0 - 0.1 * i) for i, piece in enumerate(pieces)], unk_id=0)
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    if start:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
        )
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"} | (
        {"pad_token": "</s>"} if pad else {}
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=64,
        **names,
    )


def build(cls: str, tokenizer: Any = None, **config: Any) -> Any:
    """A model of a transformers class, random but the same each time, in eval mode."""
    made = getattr(transformers, cls)
    vocabulary = (
        {}
        if tokenizer is None
        else {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return made(made.config_class(**{**vocabulary, **config})).eval()


def saved(folder: Path, model: Any, *beside: Any) -> str:
    """A folder with the model and what lies beside its weights."""
    for item in (model, *beside):
        item.save_pretrained(folder)
    return str(folder)
