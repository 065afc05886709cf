"""What an attribution explains (a class, a masked word) and the registry of ways to explain it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.errors import InputError, OptionError, UnsupportedMethodError
from ctxmix_hf.methods.base import About
from ctxmix_hf.records import ModelRecord
from ctxmix_hf.registry import Registry

ATTRIBUTIONS: Registry[type[AbstractAttribution]] = Registry("attribution")


@dataclass(frozen=True)
class Question:
    """`f`: the score that is explained, one number per example.

    `class_index` is a class of a classifier or a vocabulary id of a masked LM (None: the predicted one). With `foil`, the
    probability is a softmax over the two logits [class_index, foil]. `position` is the row of a per-token head:
    the masked token, or the token that is labelled.
    """

    class_index: Tensor  # [B]
    of: Literal["prob", "logit"]
    position: Tensor | None = None  # [B]
    foil: Tensor | None = None  # [B]

    def score(self, logits: Tensor) -> Tensor:
        """`[K*B]` from logits `[K*B, C]` or `[K*B, T, V]`, K replicas of the batch."""
        copies = logits.shape[0] // len(self.class_index)
        rows = torch.arange(logits.shape[0], device=logits.device)
        wanted = self.class_index.repeat(copies).to(logits.device)
        if logits.dim() == 3:
            assert self.position is not None
            logits = logits[rows, self.position.repeat(copies).to(logits.device)]
        if self.of == "logit":
            return logits[rows, wanted]
        if self.foil is not None:
            logits = torch.stack([logits[rows, wanted], logits[rows, self.foil.repeat(copies).to(logits.device)]], dim=-1)
            wanted = torch.zeros_like(wanted)
        return logits.softmax(dim=-1)[rows, wanted]


def ask(logits: Tensor, record: ModelRecord, class_index: Any, of: str, position: Any, foil: Any, mask_token_id: int | None) -> Question:
    """Check what is asked against the model's own answer."""
    if of not in ("prob", "logit"):
        raise OptionError(f"of={of!r} does not exist. Choose 'prob' or 'logit'.")
    batch = logits.shape[0]
    place: Tensor | None = None
    if logits.dim() == 3:
        place = _positions(record, position, mask_token_id, batch)
        logits = logits[torch.arange(batch), place.to(logits.device)]
    if logits.dim() != 2:
        raise UnsupportedMethodError(f"Logits of shape {tuple(logits.shape)} are neither one per class nor one per token and class.")
    chosen = logits.argmax(dim=-1) if class_index is None else _ids(class_index, batch, logits.shape[-1], "class_index")
    other = None if foil is None else _ids(foil, batch, logits.shape[-1], "foil")
    return Question(chosen, of, place, other)  # type: ignore[arg-type]


def _ids(value: Any, batch: int, count: int, name: str) -> Tensor:
    ids = torch.as_tensor(value).reshape(-1).expand(batch) if torch.as_tensor(value).numel() == 1 else torch.as_tensor(value)
    if ids.shape != (batch,):
        raise InputError(f"{name} must be one number or one per example ({batch}), not {tuple(ids.shape)}.")
    if bool((ids < 0).any() | (ids >= count).any()):
        raise InputError(f"{name}={ids.tolist()} is out of range: the model has {count} classes (0 to {count - 1}).")
    return ids


def _positions(record: ModelRecord, position: Any, mask_token_id: int | None, batch: int) -> Tensor:
    if position is not None:
        given = torch.as_tensor(position).reshape(-1)
        return given.expand(batch) if given.numel() == 1 else given
    if record.input_ids is None or mask_token_id is None:
        raise InputError("This model scores every token: say which one with position=... (or give the tokenizer for its [MASK]).")
    found = record.input_ids.cpu() == mask_token_id
    if not bool(found.any(dim=1).all()):
        raise InputError("A masked-word target needs a [MASK] in the text, or position=... for another token.")
    return found.long().argmax(dim=1)


@dataclass(frozen=True)
class Case:
    """Everything an attribution may use: the recorded call, the question, and the special token ids."""

    record: ModelRecord
    question: Question
    logits: Tensor
    special: dict[str, int | None]
    budget: Budget
    layer: int = 0  # gradients with respect to e^layer
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def hidden(self) -> Tensor:
        return self.record.hidden_states[self.layer].detach()

    def score_from(self, hidden: Tensor, **run: Any) -> Tensor:
        """`f` when e^layer is `hidden` `[K*B, T, D]`."""
        return self.question.score(self.record.replay.run(hidden, at=self.layer, **run).output.logits)

    def gradient(self, hidden: Tensor, **run: Any) -> Tensor:
        """`d f / d e^layer` at `hidden`."""
        with torch.enable_grad():
            leaf = hidden.detach().clone().requires_grad_()
            (grad,) = torch.autograd.grad(self.score_from(leaf, **run).sum(), leaf)
        return grad

    def token(self, name: str, wanted: Any = None) -> int:
        """The id of [MASK] or [UNK]."""
        value = wanted if isinstance(wanted, int) else self.special.get(name)
        if value is None:
            raise InputError(
                f"No {name} token is known for this model: pass tokenizer=... (or {name}_token_id=...), or choose another replacement."
            )
        return value


@dataclass(frozen=True)
class AbstractAttribution(ABC):
    """One score per token for the question; options are fields."""

    about: ClassVar[About]

    @abstractmethod
    def scores(self, case: Case) -> Tensor:
        """`[B, T]`."""
