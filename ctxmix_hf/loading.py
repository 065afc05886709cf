"""A model by name with the head it was saved with, its tokenizer, and quiet libraries."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import transformers

from ctxmix_hf import auto
from ctxmix_hf.auto import DTYPE, model_path
from ctxmix_hf.errors import CtxmixError, InputError

EXAMPLE = {"ctxmix/sentiment": "A warm, funny film that is never dull."}
DEFAULT_EXAMPLE = "The keys to the cabinet [MASK] on the table."
HEADS = {
    "ForSequenceClassification": auto.AutoContextMixingModelForSequenceClassification,
    "ForMaskedLM": auto.AutoContextMixingModelForMaskedLM,
    "ForTokenClassification": auto.AutoContextMixingModelForTokenClassification,
    "ForQuestionAnswering": auto.AutoContextMixingModelForQuestionAnswering,
    "ForImageClassification": auto.AutoContextMixingModelForImageClassification,
    "ForAudioClassification": auto.AutoContextMixingModelForAudioClassification,
}


def quiet(debug: bool = False) -> None:
    """No progress bars, no chatter: what is wrong is an error."""
    if not debug:
        warnings.simplefilter("ignore")
        transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def load(
    name: str, *, revision: str | None = None, dtype: str | None = None, device: str = "cpu", tokenizer: bool = True,
    lm_head: bool = True,
) -> tuple[Any, Any]:  # fmt: skip
    """`(model, tokenizer)`, instrumented, in evaluation mode; `lm_head=False` leaves a masked LM's head out: maps need none."""
    path = model_path(name)
    keywords: dict[str, Any] = {"revision": revision} if revision else {}
    if dtype:
        keywords[DTYPE] = getattr(torch, dtype)
    try:
        read = transformers.AutoTokenizer.from_pretrained(path, revision=revision) if tokenizer else None
        model = _loader(path, revision, lm_head).from_pretrained(name, tokenizer=read, **keywords)
        return model.to(device).eval(), read
    except CtxmixError:
        raise
    except (OSError, ValueError, RuntimeError, AssertionError, ImportError) as error:
        raise InputError(f"Could not load the model {name!r}: {_first_line(error)}") from error


def _loader(path: Any, revision: str | None, lm_head: bool) -> Any:
    """The Auto class of the head the model was saved with; without a known one, the bare encoder."""
    try:
        named = transformers.AutoConfig.from_pretrained(path, revision=revision).architectures or []
    except (OSError, ValueError):  # a pointer repository has no config
        named = []
    heads = {kind: cls for kind, cls in HEADS.items() if lm_head or kind != "ForMaskedLM"}
    return next((cls for kind, cls in heads.items() if any(kind in item for item in named)), auto.AutoContextMixingModel)


def load_asked(args: Any) -> tuple[Any, Any]:
    """The model of `--model --revision --dtype --device`."""
    quiet(args.debug)
    return load(args.model, revision=args.revision, dtype=args.dtype, device=args.device)


def example_of(model: str, tokenizer: Any) -> str:
    """A good sentence for a model: with a mask where it has one."""
    mask = getattr(tokenizer, "mask_token", None)
    if model in EXAMPLE:
        return EXAMPLE[model]
    return DEFAULT_EXAMPLE.replace("[MASK]", mask or "are")


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
