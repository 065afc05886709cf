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
from transformers import Pipeline

from ctxmix_hf.errors import InputError, OptionError
from ctxmix_hf.instrumentation.awake import keeps_modes
from ctxmix_hf.instrumentation.inputs import with_decoder
from ctxmix_hf.instrumentation.session import base_model, instrumentation_of
from ctxmix_hf.modeling import instrument
from ctxmix_hf.recipes import TargetRows, Wanted, resolve
from ctxmix_hf.registry import DEFAULT_METHOD
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.segments import Segments, check_segments
from ctxmix_hf.task import TASK, register
from ctxmix_hf.tokens import read_encoding

__all__ = ["TASK", "ContextMixingPipeline", "register"]
_Pipeline: Any = Pipeline  # transformers leaves the types of its hooks open


class ContextMixingPipeline(_Pipeline):  # type: ignore[misc]
    """Text to `ContextMixingMap`, or with `target=` to the `Attribution` of that token.

    `method` is a name, a method object or `"alti+rollout"`; `layer` goes with `target`; `words=True`
    merges sub-words; `segments="sentences"` (or `"paragraphs"`) makes the map of these.
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
        **tokenizer_options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if method is not None:
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
        return tokenizer_options, forward, after

    def preprocess(self, text: Any, **options: Any) -> dict[str, Any]:
        if not isinstance(text, str) or not text.strip():
            raise InputError("The context-mixing pipeline takes texts that are not empty.")
        return {**self.tokenizer(text, return_tensors="pt", **options), "text": text}

    def _forward(
        self,
        inputs: dict[str, Any],
        method: Any = DEFAULT_METHOD,
        target: Any = None,
        segments: Segments | None = None,
    ) -> dict[str, Any]:
        text, rows = inputs.pop("text"), {}
        if target is not None or segments is not None:
            targets = () if target is None else (target,)
            rows = {"targets": Wanted(targets, False, segments, named=self._named(text))}
        with torch.no_grad():
            out = self.model(
                **with_decoder(base_model(self.model), inputs),
                output_context_mixing=[method],
                **rows,
            )
        made = next(iter(out.context_mixing.values()))
        return {
            "mask": made.mask,
            "map": made,
            "text": text,
        }  # a tensor first: transformers reads the batch size off it

    def _named(self, text: Any) -> Any:
        """Gives maps of these texts their words."""
        texts = [text] if isinstance(text, str) else list(text)
        encoding = self.tokenizer(texts, padding=len(texts) > 1)
        tokens = read_encoding(encoding, self.tokenizer, texts)
        return lambda made, out: (
            replace(made, tokens=tokens)
            if len(tokens) == len(made) and len(tokens[0]) == made.size
            else made
        )

    def postprocess(
        self, result: dict[str, Any], target: Any = None, layer: int = -1, words: bool = False
    ) -> ContextMixingMap | Attribution:
        text = result["text"] if isinstance(result["text"], str) else result["text"][0]
        made = result["map"][0]
        if isinstance(made, TargetRows):
            return made.attribution()
        if made.meta.get("unit") is not None:  # segments, which have their names already
            return made if target is None else made.attribution(target, layer)
        encoding = self.tokenizer([text])
        tokens = read_encoding(encoding, self.tokenizer, [text])
        made = replace(made, tokens=tokens) if len(tokens[0]) == made.size else made
        shown: ContextMixingMap = made.words() if words else made
        return shown if target is None else shown.attribution(target, layer)


register()
