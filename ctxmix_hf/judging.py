"""Explanations as Quantus's metrics take them: a model of one array, and an `explain_func` for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.attribution import ATTRIBUTIONS, AbstractAttribution
from ctxmix_hf.calling import read_batch
from ctxmix_hf.errors import InputError, UnsupportedModelError
from ctxmix_hf.explaining import attribute, explain
from ctxmix_hf.instrumentation.awake import keeps_modes
from ctxmix_hf.recipes import Spec
from ctxmix_hf.registry import DEFAULT_METHOD
from ctxmix_hf.text.batch import reads
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.unwrapping import base_model
from ctxmix_hf.viz.signals import patch_grid


class ArrayModel(torch.nn.Module):
    """A classifier as a function of one array: token ids `[B, 1, T]` or pixels `[B, C, H, W]` -> logits `[B, C]`.

    Padding is told by its id, so that the array holds everything; `model` is the instrumented one.
    """

    def __init__(self, model: Any, padding: int | None = None) -> None:
        super().__init__()
        self.model, self.padding = model, padding

    def tensors(self, x: Any) -> dict[str, Tensor]:
        """What the model is called with."""
        given = torch.as_tensor(x, device=self.model.device)
        if reads(self.model) == "images":
            return {"pixel_values": given.to(self.model.dtype)}
        given = given.reshape(len(given), -1)
        ids = given.round().long() if given.is_floating_point() else given.long()
        words = self.model.get_input_embeddings().num_embeddings
        if not torch.equal(ids.to(given.dtype), given) or not bool(
            ((ids >= 0) & (ids < words)).all()
        ):
            raise InputError(
                f"Token ids are whole numbers from 0 to {words - 1}: choose a metric that replaces tokens "
                "(perturb_baseline=tokenizer.mask_token_id), not one that adds noise to them."
            )
        mask = torch.ones_like(ids) if self.padding is None else (ids != self.padding).long()
        return {"input_ids": ids, "attention_mask": mask}

    def forward(self, x: Any) -> Tensor:
        return self.model(**self.tensors(x)).logits  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ExplainFunc:
    """`explain_func(model=, inputs=, targets=)` for a Quantus metric: scores `[B, 1, T]`, or `[B, 1, H, W]` of pixels.

    `model` is the `ArrayModel` the metric holds, or the metric's own copy of it with other weights.
    """

    method: Spec | AbstractAttribution = DEFAULT_METHOD
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, model: ArrayModel, inputs: Any, targets: Any, **_: Any) -> Any:
        tensors = model.tensors(inputs)
        method = self.method
        if isinstance(method, AbstractAttribution) or (
            isinstance(method, str) and method in ATTRIBUTIONS
        ):
            classes = np.asarray(targets).reshape(-1).tolist()
            made = attribute(model.model, tensors, method, classes, **self.options)
        else:
            asked = dict(self.options)
            target = asked.pop("target", None)
            made = explain(model.model, tensors, method, **asked).attribution(target)
        scores = made.scores.double().cpu().numpy()
        if reads(model.model) != "images":
            return scores[:, None]
        (rows, columns), before = patch_grid(scores.shape[1])
        height, width = np.shape(inputs)[-2:]
        patches = scores[:, before:].reshape(-1, 1, rows, columns)
        return patches.repeat(height // rows, axis=2).repeat(width // columns, axis=3)


@keeps_modes
def to_quantus(
    model: Model,
    inputs: Any,
    method: Spec | AbstractAttribution = DEFAULT_METHOD,
    class_index: Any = None,
    *,
    tokenizer: Tokenizer | None = None,
    processor: Any = None,
    **options: Any,
) -> dict[str, Any]:
    """What a metric of Quantus is called with: `metric(**cm.to_quantus(model, texts, "integrated_gradients"))`.

    Args:
        model: An instrumented classifier of texts or of images.
        inputs: Texts or images, as `explain` takes them.
        method: A method of `attribute` (scores of the class), or of `explain` (the row of `target=`, else
            what `m.attribution()` gives).
        class_index: One class, or one per input (None: what the model predicts).
        tokenizer: Of the texts, where it is not found beside the weights.
        processor: Of the images, likewise.
        options: The method's (`steps=20`, `target="mean_pool"`).

    Returns:
        `model`, `x_batch` (token ids `[B, 1, T]` or pixels `[B, C, H, W]`), `y_batch` `[B]`, `a_batch` (`[B, 1, T]` or
        `[B, 1, H, W]`), `explain_func`, `channel_first`. Token ids are replaced, not shaken: give the metric
        `perturb_baseline=tokenizer.mask_token_id`.

    Raises:
        UnsupportedModelError: The model reads neither text nor images, or gives no classes.
        InputError: Pairs of texts, whose second segment ids alone do not tell.
    """
    base, kind = base_model(model), reads(model)
    if kind not in ("text", "images"):
        raise UnsupportedModelError(
            f"Quantus takes texts and images: {type(base).__name__} reads {kind}."
        )
    batch = read_batch(model, inputs, tokenizer, processor)
    segments = batch.tensors.get("token_type_ids")
    if segments is not None and bool(segments.any()):
        raise InputError("Quantus takes one array per input: give single texts, not pairs.")
    x = batch.tensors["input_ids"][:, None] if kind == "text" else batch.tensors["pixel_values"]
    made, function = (
        ArrayModel(model, getattr(base.config, "pad_token_id", None)),
        ExplainFunc(method, options),
    )
    with torch.no_grad():
        out = base(**made.tensors(x))
    logits = getattr(out, "logits", None)
    if logits is None or logits.dim() != 2:
        raise UnsupportedModelError(
            f"Quantus judges the explanation of a class, and {type(base).__name__} gives none for the whole input: "
            "load it with a classification head."
        )
    predicted = logits.argmax(dim=-1) if class_index is None else torch.as_tensor(class_index)
    y = predicted.expand(len(x)).cpu().numpy()
    return {
        "model": made.eval(),
        "x_batch": x.double().cpu().numpy(),
        "y_batch": y,
        "a_batch": function(made, x, y),
        "explain_func": function,
        "channel_first": True,
    }
