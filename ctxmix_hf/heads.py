"""Heads of models: the one table of Auto classes that load them, and what the numbers they give mean."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

# What stands behind "AutoModelFor" and "AutoContextMixingModelFor". Of two that both know a class
# the first one is taken.
HEADS = (
    "SequenceClassification",
    "Seq2SeqLM",
    "MaskedLM",
    "CausalLM",
    "TokenClassification",
    "QuestionAnswering",
    "MultipleChoice",
    "NextSentencePrediction",
    "ImageClassification",
    "AudioClassification",
    "CTC",
    "SpeechSeq2Seq",
)
LM_HEADS = ("MaskedLM", "CausalLM", "Seq2SeqLM", "SpeechSeq2Seq")
NEXT_WORD = LM_HEADS[1:]  # these say what comes after the last token
Link = Literal["softmax", "sigmoid", "identity"]


@cache
def head_of(model_class: str) -> str | None:
    """The head of a transformers class: `"CausalLM"` for `GPT2LMHeadModel`; None for a bare model
    or a head we do not mirror.
    """
    import transformers  # names of heads are read where no model is loaded, too

    for head in HEADS:
        known = getattr(transformers, f"AutoModelFor{head}")._model_mapping._model_mapping.values()
        if any(
            model_class == name or (model_class in name and not isinstance(name, str))
            for name in known
        ):
            return head
    return next(
        (head for head in HEADS if model_class.endswith(f"For{head}")), None
    )  # code that is not part of transformers


def auto_class(model_class: str) -> str:
    """The name of our class that loads a model of this class, head included where we mirror it."""
    head = head_of(model_class)
    return "AutoContextMixingModel" if head is None else f"AutoContextMixingModelFor{head}"


def link_of(config: Any, shape: tuple[int, ...]) -> Link:
    """How a head's logits of this shape become what the model predicts: shares of 1, independent
    probabilities, or numbers as they are.
    """
    problem = (
        getattr(config, "problem_type", None) if len(shape) == 2 else None
    )  # per-token heads ignore the setting
    if problem == "multi_label_classification":
        return "sigmoid"
    return "identity" if problem == "regression" or shape[-1] == 1 else "softmax"
