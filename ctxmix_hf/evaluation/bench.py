"""A model and its tokenizer at work: sentences made ready, batched by length, asked with the right head."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from ctxmix_hf.auto import (
    AutoContextMixingModel,
    AutoContextMixingModelForMaskedLM,
    AutoContextMixingModelForSequenceClassification,
    model_path,
)
from ctxmix_hf.bundled import BUNDLED
from ctxmix_hf.errors import InputError, UnsupportedMethodError
from ctxmix_hf.evaluation.heldout import EVERY_SET, maybe_seen
from ctxmix_hf.evaluation.samples import Sample
from ctxmix_hf.instrumentation.session import instrumentation_of
from ctxmix_hf.loading import in_words
from ctxmix_hf.modeling import instrument
from ctxmix_hf.text.batch import encode_one, vocabulary_id
from ctxmix_hf.text.inputs import longest_input
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.text.targets import first_shown
from ctxmix_hf.text.tokens import NOTICEABLE, Tokens, unknown_id
from ctxmix_hf.unwrapping import base_model

Head = Literal["masked_lm", "classifier", "any"]
HEAD_CLASS: dict[Head, str] = {
    "masked_lm": "ForMaskedLM",
    "classifier": "ForSequenceClassification",
}
LOADERS: dict[Head, Any] = {
    "masked_lm": AutoContextMixingModelForMaskedLM,
    "classifier": AutoContextMixingModelForSequenceClassification,
    "any": AutoContextMixingModel,
}
BATCH_TOKENS, BATCH_SENTENCES = 640, 32


@dataclass(frozen=True)
class Ready:
    """A sentence as the model reads it. Positions count real tokens, padding never."""

    sample: Sample
    ids: tuple[int, ...]
    special: tuple[bool, ...]
    pieces: tuple[str, ...]
    words: tuple[
        tuple[int, ...], ...
    ]  # the pieces of each of the sample's words; empty where cut off
    position: int  # the target token: [MASK], [CLS], or the last one of a causal model
    good: int | None = None
    bad: int | None = None
    label: int | None = None
    # the segment of each piece of a pair, where the model has segments
    types: tuple[int, ...] | None = None

    def units(self) -> list[list[int]]:
        """Pieces grouped to words in the order of the text; a piece outside all words (special tokens) stands alone."""
        inside = {piece: list(word) for word in self.words for piece in word}
        groups: list[list[int]] = []
        for place in range(len(self.ids)):
            group = inside.get(place, [place])
            if not groups or groups[-1] != group:
                groups.append(group)
        return groups

    def unit_mask(self, words: Iterable[int]) -> list[int]:
        """1 for every unit that is one of these words."""
        wanted = {self.words[w] for w in words}
        return [int(tuple(group) in wanted) for group in self.units()]


@dataclass(frozen=True)
class Bench:
    """What every evaluation works with."""

    model: Model
    tokenizer: Tokenizer
    head: Head
    name: str
    fingerprint: str
    longest: int
    heldout_only: bool
    every_set: bool = False  # of a tuned model: sentences of any set may have been seen

    @property
    def labels(self) -> int:
        return int(base_model(self.model).config.num_labels or 0)

    @property
    def depth(self) -> int:
        """How many layers a recorded forward pass leaves."""
        return len(self._probe)

    @property
    def causal(self) -> bool:
        return bool(self._probe.causal)

    @cached_property
    def _probe(self) -> Any:
        with torch.no_grad():
            return self.model(
                **self.inputs([[self.tokenizer.unk_token_id or 0] * 2]), output_decomposition=True
            ).decomposition

    def prepare(self, samples: Sequence[Sample]) -> tuple[list[Ready], Counter[str]]:
        """Sentences ready for the model, and how many are not, by reason."""
        ready: list[Ready] = []
        skipped: Counter[str] = Counter()
        for sample in samples:
            made = self._ready(sample)
            if isinstance(made, str):
                skipped[made] += 1
            else:
                ready.append(made)
        return ready, skipped

    def unknown_words(self, ready: Sequence[Ready]) -> tuple[str, ...]:
        """A note where the model saw the unknown token in the place of many words."""
        unknown = unknown_id(self.tokenizer)
        ids = [
            i
            for item in ready
            for i, special in zip(item.ids, item.special, strict=True)
            if not special
        ]
        count = sum(i == unknown for i in ids)
        if not ids or count < NOTICEABLE * len(ids):
            return ()
        return (
            f"{count} of {len(ids)} tokens are unknown to the tokenizer: is it the model's own?",
        )

    def _ready(self, sample: Sample) -> Ready | str:
        if self.heldout_only and maybe_seen(sample, self.every_set):
            return "not in the held-out half, so the model may have seen it"
        mask = self.tokenizer.mask_token if self.head == "masked_lm" else None
        if mask is not None and sample.target is None:
            return "no target word to mask"
        texts, spans = sample.texts(mask)
        encoding = encode_one(
            self.tokenizer,
            *texts,
            truncation=True,
            max_length=self.longest,
            return_offsets_mapping=True,
        )
        parts = encoding.sequence_ids(0)
        words = tuple(_pieces(span, encoding["offset_mapping"], parts) for span in spans)
        needed = [*sample.cues, *([sample.target] if sample.target is not None else [])]
        if any(not words[w] for w in needed):
            return "cue or target cut off by truncation"
        ids = tuple(int(i) for i in encoding["input_ids"])
        answers = self._answers(sample)
        if isinstance(answers, str):
            return answers
        special = set(self.tokenizer.all_special_ids) - {
            self.tokenizer.mask_token_id,
            self.tokenizer.unk_token_id,
        }
        pieces = tuple(map(str, self.tokenizer.convert_ids_to_tokens(list(ids))))
        position = (
            words[sample.target][0]
            if mask is not None and sample.target is not None
            else first_shown(Tokens(pieces), self.causal)
        )
        types = encoding.get("token_type_ids") if sample.second is not None else None
        return Ready(
            sample,
            ids,
            tuple(i in special for i in ids),
            pieces,
            words,
            position,
            *answers,
            None if types is None else tuple(types),
        )

    def _answers(self, sample: Sample) -> tuple[int | None, int | None, int | None] | str:
        """(good word, bad word, class) as the head's numbers."""
        if self.head == "masked_lm":
            good, bad = (None if w is None else self._single(w) for w in (sample.good, sample.bad))
            if (sample.good is not None and good is None) or (
                sample.bad is not None and bad is None
            ):
                return "target or foil word is not one piece of the tokenizer"
            return good, bad, None
        if self.head == "classifier" and sample.label is not None:
            names = {
                str(k).lower(): int(v)
                for k, v in (base_model(self.model).config.label2id or {}).items()
            }
            label = (
                sample.label
                if isinstance(sample.label, int)
                else names.get(sample.label.lower(), -1)
            )
            return (
                (None, None, label)
                if 0 <= label < self.labels
                else "label outside the model's classes"
            )
        return None, None, None

    def _single(self, word: str) -> int | None:
        """The vocabulary number of a word inside a sentence, where it is one piece."""
        return vocabulary_id(self.tokenizer, word)

    def batches(self, ready: Sequence[Ready], sentences: int = BATCH_SENTENCES) -> list[list[int]]:
        """Numbers of sentences of similar length, shortest first; the same list always gives the same batches."""
        order = sorted(
            range(len(ready)), key=lambda i: (ready[i].bad is None, len(ready[i].ids), i)
        )
        most = sentences if self.tokenizer.pad_token_id is not None else 1
        batches: list[list[int]] = []
        for i in order:
            room = (
                batches
                and len(batches[-1]) < most
                and (len(batches[-1]) + 1) * len(ready[i].ids) <= BATCH_TOKENS
            )
            if room and (ready[batches[-1][0]].bad is None) == (
                ready[i].bad is None
            ):  # one question per batch
                batches[-1].append(i)
            else:
                batches.append([i])
        return batches

    def inputs_of(self, ready: Sequence[Ready]) -> dict[str, Tensor]:
        """The tensors of a batch of sentences."""
        return self.inputs([item.ids for item in ready], [item.types for item in ready])

    def inputs(
        self, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int] | None] | None = None
    ) -> dict[str, Tensor]:
        """Right-padded ids and mask (and segments, where a row has them) on the model's device."""
        width = max(map(len, rows))
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
        mask = (
            torch.arange(width)[None] < torch.tensor([len(row) for row in rows])[:, None]
        ).long()
        held = {"input_ids": ids, "attention_mask": mask}
        if types is not None and any(row is not None for row in types):
            held["token_type_ids"] = torch.tensor(
                [[*(row or ()), *[0] * (width - len(row or ()))] for row in types]
            )
        return {key: value.to(base_model(self.model).device) for key, value in held.items()}


def open_bench(
    model: Model | str | None,
    tokenizer: Tokenizer | None,
    head: Head,
    default: str,
    heldout_only: bool | None = None,
    trust_remote_code: bool = False,
) -> Bench:
    """Load or take over the model, and refuse early where its head is not the one needed."""
    opened: Model
    if model is None or isinstance(model, str):
        name = model or default
        path = model_path(name)
        trust = {"trust_remote_code": trust_remote_code}
        with in_words(name, **trust):
            named = architectures(name, **trust)
            if head != "any":
                _check_architecture(named, head, name)
            tokenizer = tokenizer or AutoTokenizer.from_pretrained(path, **trust)
            opened = LOADERS[head if head != "any" else _own_head(named)].from_pretrained(
                name, tokenizer=tokenizer, **trust
            )
    else:
        opened = model
        name = str(base_model(model).config._name_or_path or type(base_model(model)).__name__)
        owner = instrumentation_of(model)
        tokenizer = tokenizer or (owner.load_tokenizer() if owner is not None else None)
        if tokenizer is None:
            raise InputError("No tokenizer is known for this model: pass tokenizer=...")
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            "Evaluations need a fast tokenizer: only those know which characters a piece stands for."
        )
    base = base_model(opened)
    base.train(False)
    if head == "masked_lm" and tokenizer.mask_token is None:
        raise UnsupportedMethodError(f"{name} has no mask token, so no word can be masked.")
    _check_head(opened, tokenizer, head, name)
    if instrumentation_of(opened) is None:
        opened = instrument(opened, tokenizer=tokenizer)
    held = _heldout(name)
    return Bench(
        opened,
        tokenizer,
        head,
        name,
        fingerprint(base),
        longest_input(base, tokenizer) or 512,
        held is not None if heldout_only is None else heldout_only,
        held == EVERY_SET,
    )


def _heldout(name: str) -> str | None:
    """What a model's heldout.json says of the sets it may have learned from; None where there is no such file."""
    path = Path(BUNDLED[name].path if name in BUNDLED else name) / "heldout.json"
    if not path.is_file():
        return None
    return str(json.loads(path.read_text(encoding="utf-8")).get("sets", "five"))


def architectures(name: str, trust_remote_code: bool) -> list[str]:
    """The classes a model was saved with, as its config.json names them."""
    config = AutoConfig.from_pretrained(model_path(name), trust_remote_code=trust_remote_code)
    return list(config.architectures or [])


def _own_head(named: list[str]) -> Head:
    """Where no head is needed, the one the model was saved with: nothing is loaded in vain or made up."""
    return next((head for head, kind in HEAD_CLASS.items() if any(kind in a for a in named)), "any")


def _check_architecture(named: list[str], head: Head, name: str) -> None:
    if named and not any(
        HEAD_CLASS[head] in a or (head == "masked_lm" and "ForPreTraining" in a) for a in named
    ):
        raise UnsupportedMethodError(
            f"{name} was saved as {', '.join(named)}, without a {HEAD_CLASS[head]} head: its head would be random. "
            f"Give a {HEAD_CLASS[head]} checkpoint (bundled: {', '.join(BUNDLED)}), or choose "
            "identifiability or mixing, which need none."
        )


@torch.no_grad()
def _check_head(model: Model, tokenizer: Tokenizer, head: Head, name: str) -> None:
    if head == "any":
        return
    base = base_model(model)
    logits = getattr(
        base(
            **{
                k: v.to(base.device)
                for k, v in encode_one(tokenizer, "a", return_tensors="pt").items()
            }
        ),
        "logits",
        None,
    )
    shape = () if logits is None else tuple(logits.shape)
    fits = (
        len(shape) == 3 and shape[-1] >= len(tokenizer) // 2
        if head == "masked_lm"
        else len(shape) == 2 and shape[-1] > 1
    )
    if not fits:
        raise UnsupportedMethodError(
            f"{name} ({type(base).__name__}) has no {HEAD_CLASS[head]} head, which this evaluation needs"
            + (f": its logits have shape {list(shape)}." if shape else ": it returns no logits.")
        )


def fingerprint(base: PreTrainedModel) -> str:
    """A hash of the configuration and of a sample of every weight: results of another model are never taken up."""
    config = {
        k: v
        for k, v in base.config.to_dict().items()
        if k not in ("_name_or_path", "transformers_version")
    }
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for key, value in base.state_dict().items():
        flat = value.detach().flatten()
        digest.update(f"{key}{tuple(value.shape)}".encode())
        digest.update(flat[:: max(1, len(flat) // 64)].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _pieces(
    span: tuple[int, int, int], offsets: Sequence[tuple[int, int]], parts: Sequence[int | None]
) -> tuple[int, ...]:
    part, start, stop = span
    return tuple(
        i
        for i, (a, b) in enumerate(offsets)
        if b > a and parts[i] == part and min(b, stop) - max(a, start) > 0
    )
