"""Small things to store: a random model with a tokenizer, and maps that need no model at all."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import ctxmix_hf as cm
from ctxmix_hf.hub.manifest import Manifest, method_entries
from ctxmix_hf.hub.store import MapStore
from ctxmix_hf.maps import ContextMixingMap
from ctxmix_hf.recipes import resolve
from ctxmix_hf.tokens import Tokens

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the film is good bad and not very a story".split()
TEXTS = ["the film is good", "a very bad story", "not bad", "the story is good and the film is not very good", "good", "a film"]
METHODS = ["alti", "value_zeroing"]


@lru_cache
def tokenizer() -> Any:
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)])
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def fresh_model(seed: int = 0) -> Any:
    """An uninstrumented tiny classifier."""
    torch.manual_seed(seed)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=len(WORDS), **size)).eval()


@lru_cache
def model() -> Any:
    """The tiny classifier, instrumented; shared, so not to be changed."""
    return cm.instrument(fresh_model(), tokenizer=tokenizer())


def filled(path: Path, texts: list[str] | None = None, methods: Any = METHODS, **options: Any) -> MapStore:
    """A closed store of some texts."""
    texts = TEXTS if texts is None else texts
    store = MapStore.create(path, model=model(), tokenizer=tokenizer(), methods=methods, **options)
    store.add([f"validation-{i}" for i in range(len(texts))], texts, split="validation", labels=[i % 2 for i in range(len(texts))])
    store.close()
    return store


def manifest(shard_size: int = 1 << 14, methods: Any = ("alti", "attention"), **fields: Any) -> Manifest:
    """Of a store that no model made."""
    about = {"weights": "0" * 64, "dtype": "float32", "model_type": "bert"}
    origin = {"model_id": "none", "revision": None, "versions": {}}
    return Manifest(about, None, fields.pop("dtype", "float32"), method_entries(resolve(methods)), origin, shard_size, **fields)


def some_maps(number: int, count: int = 2, layers: int = 2, methods: Any = ("alti", "attention")) -> dict[str, ContextMixingMap]:
    """Random maps of `count` examples of different length, the same for the same number."""
    made = {}
    sizes = [3 + (number * 5 + b * 3) % 9 for b in range(count)]
    for key, recipe in resolve(methods).items():
        random = torch.Generator().manual_seed(hash((number, len(key))) % 1000)
        mask = torch.arange(max(sizes))[None] < torch.tensor(sizes)[:, None]
        values = torch.rand(count, layers, max(sizes), max(sizes), generator=random) * (mask[:, None, None] & mask[:, None, :, None])
        tokens = [Tokens(tuple(f"w{i}" for i in range(max(sizes))), ids=tuple(range(max(sizes)))) for _ in sizes]
        meta = {"options": recipe.method.options()}
        made[key] = ContextMixingMap(key, values, mask, tokens, meta=meta)
    return made


def add_number(store: MapStore, number: int, **options: Any) -> None:
    """Add one small batch; the same for the same number."""
    store.add_maps([f"{number}a", f"{number}b"], some_maps(number), split="train" if number % 3 else "test", **options)


def contents(path: Path) -> dict[str, str]:
    """Every file of a store with the hash of its bytes; lock files are nobody's content."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.suffix != ".lock"]
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
