"""`transformers.pipeline("context-mixing", model=..., method=...)`: batches and streams like any pipeline.

`import ctxmix_hf`, before or after, makes the task known to transformers (task.py).

    from transformers import pipeline
    import ctxmix_hf

    mix = pipeline("context-mixing", model=model, tokenizer=tokenizer, method="alti")
    for m in mix(texts, batch_size=8): ...
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import Pipeline

from ctxmix_hf.attribution import ATTRIBUTIONS, AbstractAttribution
from ctxmix_hf.calling import call
from ctxmix_hf.errors import InputError, OptionError
from ctxmix_hf.explaining import attribute
from ctxmix_hf.instrumentation.awake import keeps_modes
from ctxmix_hf.instrumentation.session import instrumentation_of
from ctxmix_hf.modeling import instrument
from ctxmix_hf.recipes import Specs, TargetRows, Wanted, resolve
from ctxmix_hf.registry import DEFAULT_METHOD
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.task import TASK, register
from ctxmix_hf.text.batch import TextBatch, encode, encode_one
from ctxmix_hf.text.inputs import with_decoder
from ctxmix_hf.text.segments import Segments, check_segments
from ctxmix_hf.text.tokens import Tokens, read_encoding
from ctxmix_hf.unwrapping import base_model

__all__ = ["TASK", "ContextMixingPipeline", "register"]
_Pipeline: Any = Pipeline  # transformers leaves the types of its hooks open


class ContextMixingPipeline(_Pipeline):  # type: ignore[misc]
    """Text to `ContextMixingMap`, or with `target=` to the `Attribution` of that token.

    `method` is a name, a method object or `"alti+rollout"`; `layer` goes with `target`; `words=True`
    merges sub-words; `segments="sentences"` (or `"paragraphs"`) makes the map of these. A method
    that explains a prediction (`"ledger"`, `"integrated_gradients"`) gives its `Attribution`:
    `class_index` and `foil` are those of `attribute`.
    """

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if instrumentation_of(self.model) is None:
            instrument(self.model, tokenizer=self.tokenizer)

    @keeps_modes
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)

    def _sanitize_parameters(
        self,
        method: Any = None,
        target: Any = None,
        layer: int | None = None,
        words: bool | None = None,
        segments: Segments | None = None,
        class_index: Any = None,
        foil: Any = None,
        **tokenizer_options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if method is not None and not _explains_a_prediction(method):
            resolve(method)  # a wrong name is said before anything runs
        after = {
            key: value
            for key, value in (("target", target), ("layer", layer), ("words", words))
            if value is not None
        }
        forward = {} if method is None else {"method": method}
        if target is not None and layer in (None, -1) and not words:
            forward["target"] = target  # the row alone: no whole map is made for it
        if segments is not None:
            if target is not None or words:
                raise OptionError(
                    "segments=... makes a map of its own: leave target and words out."
                )
            check_segments(segments)
            forward["segments"] = segments
        asked = {"class_index": class_index, "foil": foil}
        forward |= {name: value for name, value in asked.items() if value is not None}
        return tokenizer_options, forward, after

    def preprocess(self, text: Any, **options: Any) -> dict[str, Any]:
        if not isinstance(text, str) or not text.strip():
            raise InputError("The context-mixing pipeline takes texts that are not empty.")
        return {**encode_one(self.tokenizer, text, return_tensors="pt", **options), "text": text}

    def _forward(
        self,
        inputs: dict[str, Any],
        method: Specs | AbstractAttribution = DEFAULT_METHOD,
        target: Any = None,
        segments: Segments | None = None,
        **asked: Any,
    ) -> dict[str, Any]:
        text = inputs.pop("text")
        explains = _explains_a_prediction(method)
        unfit = {"target": target, "segments": segments} if explains else asked
        if wrong := [name for name, value in unfit.items() if value is not None]:
            raise OptionError(
                f"{method} {'scores the input tokens for a prediction' if explains else 'makes maps'}: "
                f"leave {' and '.join(wrong)} out."
            )
        tokens = self._tokens(text, inputs["input_ids"])
        if explains:
            return {
                "mask": inputs["input_ids"],
                "map": self._scores(inputs, tokens, method, asked),
                "text": text,
            }
        rows = {}
        if target is not None or segments is not None:
            rows["targets"] = Wanted(() if target is None else (target,), False, segments)
        tensors = with_decoder(base_model(self.model), inputs)
        out = call(self.model, TextBatch(tensors, tokens), output_context_mixing=[method], **rows)
        made = next(iter(out.context_mixing.values()))
        return {
            "mask": made.mask,
            "map": made,
            "text": text,
        }  # a tensor first: transformers reads the batch size off it

    def _scores(
        self,
        inputs: dict[str, Any],
        tokens: list[Tokens] | None,
        method: Any,
        asked: dict[str, Any],
    ) -> list[Attribution]:
        """Each text on its own, without its padding: it names its own class."""
        real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
        found = []
        for i, keep in enumerate(real):
            one = {name: value[i : i + 1, keep] for name, value in inputs.items()}
            with torch.enable_grad():
                made = attribute(self.model, one, method, tokenizer=self.tokenizer, **asked)
            if tokens is not None:
                made = replace(made, tokens=[tokens[i].take(keep.nonzero().flatten().tolist())])
            found.append(made)
        return found

    def _tokens(self, text: str | list[str], ids: Tensor) -> list[Tokens] | None:
        """The words of these texts, which transformers' own batching does not carry; None where it cut them."""
        texts = [text] if isinstance(text, str) else list(text)
        encoding = encode(self.tokenizer, texts, padding=len(texts) > 1)
        same = encoding["input_ids"] == ids.tolist()
        return read_encoding(encoding, self.tokenizer, texts) if same else None

    def postprocess(
        self, result: dict[str, Any], target: Any = None, layer: int = -1, words: bool = False
    ) -> ContextMixingMap | Attribution:
        made = result["map"][0]
        if isinstance(made, TargetRows):
            return made.attribution()
        if made.meta.get("unit") is not None:  # segments, which have their names already
            return made if target is None else made.attribution(target, layer)
        shown = made.words() if words else made
        if isinstance(shown, Attribution):
            return shown
        return shown if target is None else shown.attribution(target, layer)


def _explains_a_prediction(method: Any) -> bool:
    return isinstance(method, AbstractAttribution) or method in ATTRIBUTIONS


register()
