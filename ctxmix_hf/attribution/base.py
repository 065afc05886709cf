"""What an attribution explains (a class, a masked or next word) and the registry of ways to explain it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.errors import InputError, OptionError, UnsupportedMethodError
from ctxmix_hf.heads import Link
from ctxmix_hf.methods.base import About
from ctxmix_hf.records import ModelRecord
from ctxmix_hf.registry import Registry

ATTRIBUTIONS: Registry[type[AbstractAttribution]] = Registry("attribution")


@dataclass(frozen=True)
class Question:
    """`f`: the score that is explained, one number per example.

    `class_index` is a class of a classifier or a vocabulary id of a language model. `link` is how
    the head's logits become what it predicts (`heads.link_of`). With `foil` the probability is a
    softmax over the two logits [class_index, foil], and the logit their difference. `position` is
    the row of a per-token head: the masked token, or the token that is labelled.
    """

    class_index: Tensor  # [B]
    of: Literal["prob", "logit"]
    position: Tensor | None = None  # [B]
    foil: Tensor | None = None  # [B]
    link: Link = "softmax"

    def score(self, logits: Tensor) -> Tensor:
        """`[K*B]` from logits `[K*B, C]` or `[K*B, T, V]`, K replicas of the batch."""
        copies = logits.shape[0] // len(self.class_index)
        rows = torch.arange(logits.shape[0], device=logits.device)
        wanted = self.class_index.repeat(copies).to(logits.device)
        if logits.dim() == 3:
            assert self.position is not None
            logits = logits[rows, self.position.repeat(copies).to(logits.device)]
        chosen = logits[rows, wanted]
        if self.foil is not None:
            gap = chosen - logits[rows, self.foil.repeat(copies).to(logits.device)]
            return gap if self.of == "logit" else gap.sigmoid()
        if self.of == "logit":
            return chosen
        return chosen.sigmoid() if self.link == "sigmoid" else logits.softmax(dim=-1)[rows, wanted]

    def of_examples(self, output: Any, examples: Sequence[int]) -> Tensor:
        """The score of a model's output that holds these examples of the batch."""
        chosen = torch.as_tensor(examples)
        pick = lambda t: None if t is None else t.cpu()[chosen]
        asked = replace(
            self,
            class_index=self.class_index.cpu()[chosen],
            position=pick(self.position),
            foil=pick(self.foil),
        )
        return asked.score(output.logits)

    def named(self, classes: str, foils: str = "") -> str:
        """The class, and what of it is explained where that is not its probability among all classes."""
        if foils:
            return (
                f"{classes} minus {foils} (logits)"
                if self.of == "logit"
                else f"{classes} against {foils}"
            )
        if self.of == "logit":
            return (
                f"{classes} (logit, which this head gives as its answer)"
                if self.link == "identity"
                else f"{classes} (logit)"
            )
        return (
            f"{classes} (sigmoid: a probability of its own)" if self.link == "sigmoid" else classes
        )


def ask(
    logits: Tensor,
    link: Link,
    class_index: Any = None,
    of: str | None = None,
    foil: Any = None,
    position: Tensor | None = None,
) -> Question:
    """Check what is asked against the model's own answer. `position` `[B]` chooses the row of per-token logits."""
    if of not in (None, "prob", "logit"):
        raise OptionError.among("of", of, ("prob", "logit"))
    if of == "prob" and link == "identity":
        raise OptionError(
            "This head gives a number, not a probability: use of='logit', which explains the number itself."
        )
    batch = logits.shape[0]
    if logits.dim() == 3:
        assert position is not None
        logits = logits[torch.arange(batch), position.to(logits.device)]
    if class_index is None and link == "identity" and logits.shape[-1] > 1:
        raise InputError(
            f"This head gives {logits.shape[-1]} numbers and prefers none: say which one with class_index=..."
        )
    chosen = (
        logits.argmax(dim=-1)
        if class_index is None
        else _ids(class_index, batch, logits.shape[-1], "class_index")
    )
    other = None if foil is None else _ids(foil, batch, logits.shape[-1], "foil")
    if other is not None and bool((other == chosen.cpu()).any()):
        raise InputError(
            "foil is the class that is explained, so every score would be 0: name another one."
        )
    asked: Any = of or ("logit" if link == "identity" else "prob")
    return Question(chosen, asked, position, other, link)


def _ids(value: Any, batch: int, count: int, name: str) -> Tensor:
    try:
        ids = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name}={value!r} must be the number of a class, its label or a word, or one of these per example."
        ) from error
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise InputError(f"{name}={value!r} must be a whole number.")
    ids = ids.reshape(-1).expand(batch) if ids.numel() == 1 else ids
    if ids.shape != (batch,):
        raise InputError(
            f"{name} must be one number or one per example ({batch}), not {tuple(ids.shape)}."
        )
    if bool((ids < 0).any() | (ids >= count).any()):
        raise InputError(
            f"{name}={ids.tolist()} is out of range: the model has {count} classes (0 to {count - 1})."
        )
    return ids


def real_positions(position: Any, mask: Tensor) -> Tensor:
    """`[B]` places in a padded batch from positions that count real tokens, from either end (`-1`:
    each example's last one).
    """
    batch = len(mask)
    given = torch.as_tensor(position).reshape(-1)
    if given.is_floating_point() or given.dtype == torch.bool or len(given) not in (1, batch):
        raise InputError(
            f"position={position!r} must be one whole number or one per example ({batch})."
        )
    places = []
    for place, row in zip(given.expand(batch).tolist(), mask.cpu(), strict=True):
        real = row.nonzero().squeeze(-1).tolist()
        if not -len(real) <= place < len(real):
            raise InputError(
                f"position={place} is outside the example, which has {len(real)} tokens "
                f"({-len(real)} to {len(real) - 1})."
            )
        places.append(real[place])
    return torch.tensor(places)


@dataclass(frozen=True)
class Case:
    """Everything an attribution may use: the recorded call, the question, and the special token ids."""

    record: ModelRecord
    question: Question
    logits: Tensor
    special: dict[str, int | None]
    budget: Budget
    layer: int = 0  # gradients with respect to e^layer
    decoder: bool = False  # a causal model, also where one token alone cannot show it
    # the token that the head looks for to read its answer off: it cannot be taken away
    read_off: int | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def hidden(self) -> Tensor:
        return self.record.hidden_states[self.layer].detach()

    def score_from(self, hidden: Tensor, **run: Any) -> Tensor:
        """`f` when e^layer is `hidden` `[K*B, T, D]`."""
        return self.question.score(
            self.record.replay.run(hidden, at=self.layer, **run).output.logits
        )

    def gradient(self, hidden: Tensor, **run: Any) -> Tensor:
        """`d f / d e^layer` at `hidden`."""
        with torch.enable_grad():
            leaf = hidden.detach().clone().requires_grad_()
            score = self.score_from(leaf, **run).sum()
            (grad,) = (
                torch.autograd.grad(score, leaf, allow_unused=True)
                if score.requires_grad
                else (None,)
            )
        if grad is None:
            raise UnsupportedMethodError(
                f"This model runs layers above e^{self.layer} without gradients, so its answer has "
                "none there: use blank_out, or a "
                "context-mixing map."
            )
        return grad

    def token(self, name: str, wanted: Any = None) -> int:
        """The id of [MASK] or [UNK]."""
        value = wanted if isinstance(wanted, int) else self.special.get(name)
        if value is None:
            raise InputError(
                f"No {name} token is known for this model: pass tokenizer=... (or "
                f"{name}_token_id=...), or choose another replacement."
            )
        return value


@dataclass(frozen=True)
class AbstractAttribution(ABC):
    """One score per token for the question; options are fields."""

    about: ClassVar[About]
    only_logit: ClassVar[bool] = False  # what it explains is a logit, never a probability

    @abstractmethod
    def scores(self, case: Case) -> Tensor:
        """`[B, T]`."""

    def owed(self, case: Case) -> Tensor | None:
        """`[B]`: what the signed scores add up to by the method's own claim; None where it claims nothing."""
        return None
