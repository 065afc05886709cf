"""From what a user holds to a recorded forward pass: read as a batch, run, and the names of its tokens ride along."""

from __future__ import annotations

from traceback import walk_tb
from typing import Any

import torch

from ctxmix_hf.errors import CtxmixError, InputError, first_line
from ctxmix_hf.instrumentation.session import require_instrumentation
from ctxmix_hf.text.batch import TextBatch, read
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.unwrapping import base_model


def read_batch(
    model: Model, given: Any, tokenizer: Tokenizer | None = None, processor: Any = None
) -> TextBatch:
    """What `explain` takes, as an instrumented model is called with it; the tokenizer is looked for
    beside the weights where it is not given.
    """
    owner = require_instrumentation(model)
    return read(model, given, lambda: tokenizer or owner.load_tokenizer(), processor)


def call(model: Model, batch: TextBatch, **asked: Any) -> Any:
    """The model on a batch, without gradients; what the model itself finds wrong with it is one sentence."""
    try:
        with torch.no_grad():
            return model(**batch.tensors, **({"tokens": batch.tokens} if asked else {}), **asked)
    except CtxmixError:
        raise
    except (ValueError, TypeError) as error:
        if not _of_the_model(error):
            raise
        raise InputError(
            f"{type(base_model(model)).__name__} could not be called with "
            f"{', '.join(batch.tensors)}: {first_line(error).rstrip('.')}. "
            "Pass a dict of all the tensors it needs."
        ) from error


def _of_the_model(error: Exception) -> bool:
    """Whether its forward pass raised: of ours only the instrumentation stands around that, while a method is always
    run by what makes maps.
    """
    frames = walk_tb(error.__traceback__)
    ours = {str(frame.f_globals.get("__name__")) for frame, _ in frames} - {__name__}
    return all(
        name.startswith("ctxmix_hf.instrumentation.")
        for name in ours
        if name.startswith("ctxmix_hf.")
    )
