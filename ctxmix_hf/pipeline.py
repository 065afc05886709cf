"""`transformers.pipeline("context-mixing", model=..., method=...)`: batches and streams like any pipeline.

Importing this module registers the task (`import ctxmix_hf` does so where `transformers.pipelines` is loaded already).

    from transformers import pipeline
    import ctxmix_hf.pipeline

    mix = pipeline("context-mixing", model=model, tokenizer=tokenizer, method="alti")
    for m in mix(texts, batch_size=8): ...
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from transformers import AutoModel, Pipeline
from transformers.pipelines import PIPELINE_REGISTRY

from ctxmix_hf.errors import InputError
from ctxmix_hf.instrumentation.session import instrumentation_of
from ctxmix_hf.maps import Attribution, ContextMixingMap
from ctxmix_hf.modeling import instrument
from ctxmix_hf.recipes import resolve
from ctxmix_hf.tokens import read_encoding

TASK = "context-mixing"
_Pipeline: Any = Pipeline  # transformers leaves the types of its hooks open


class ContextMixingPipeline(_Pipeline):  # type: ignore[misc]
    """Text to `ContextMixingMap`, or with `target=` to the `Attribution` of that token.

    `method` is a name, a method object or `"alti+rollout"`; `layer` goes with `target`; `words=True` merges sub-words.
    """

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if instrumentation_of(self.model) is None:
            instrument(self.model, tokenizer=self.tokenizer)

    def _sanitize_parameters(
        self, method: Any = None, target: Any = None, layer: int | None = None, words: bool | None = None, **tokenizer_options: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if method is not None:
            resolve(method)  # a wrong name is said before anything runs
        after = {key: value for key, value in (("target", target), ("layer", layer), ("words", words)) if value is not None}
        return tokenizer_options, {} if method is None else {"method": method}, after

    def preprocess(self, text: Any, **options: Any) -> dict[str, Any]:
        if not isinstance(text, str) or not text.strip():
            raise InputError("The context-mixing pipeline takes texts that are not empty.")
        return {**self.tokenizer(text, return_tensors="pt", **options), "text": text}

    def _forward(self, inputs: dict[str, Any], method: Any = "value_zeroing") -> dict[str, Any]:
        text = inputs.pop("text")
        with torch.no_grad():
            out = self.model(**inputs, output_context_mixing=[method])
        made = next(iter(out.context_mixing.values()))
        return {"mask": made.mask, "map": made, "text": text}  # a tensor first: transformers reads the batch size off it

    def postprocess(
        self, result: dict[str, Any], target: Any = None, layer: int = -1, words: bool = False
    ) -> ContextMixingMap | Attribution:
        text = result["text"] if isinstance(result["text"], str) else result["text"][0]
        made = result["map"][0]
        encoding = self.tokenizer([text])
        tokens = read_encoding(encoding, self.tokenizer, [text])
        made = replace(made, tokens=tokens) if len(tokens[0]) == made.size else made
        shown: ContextMixingMap = made.words() if words else made
        return shown if target is None else shown.attribution(target, layer)


def register() -> None:
    """Make the task known to transformers (again is harmless)."""
    if TASK not in PIPELINE_REGISTRY.get_supported_tasks():
        PIPELINE_REGISTRY.register_pipeline(TASK, pipeline_class=ContextMixingPipeline, pt_model=AutoModel, type="text")


register()
