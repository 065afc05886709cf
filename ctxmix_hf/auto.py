"""Mirrors of transformers' Auto classes that return the same models, instrumented; and the bundled models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import transformers
from packaging.version import Version
from transformers import PreTrainedModel

from ctxmix_hf.bundled import AGREEMENT, BUNDLED
from ctxmix_hf.errors import UnknownNameError, UnsupportedModelError
from ctxmix_hf.instrumentation.overrides import refusal_of
from ctxmix_hf.instrumentation.session import require_instrumentation
from ctxmix_hf.modeling import CONFIG_KEY, instrument
from ctxmix_hf.recipes import Specs, methods_from_json
from ctxmix_hf.registry import VIEWS
from ctxmix_hf.text.kinds import Model, Tokenizer

DTYPE = (
    "dtype" if Version(transformers.__version__) >= Version("4.56") else "torch_dtype"
)  # from_pretrained's keyword


def model_path(name_or_path: Any) -> Any:
    """A bundled model's folder for its name; anything else as it is."""
    if str(name_or_path) in BUNDLED:
        return BUNDLED[str(name_or_path)].path
    if str(name_or_path).startswith("ctxmix/"):
        raise UnknownNameError.among("bundled model", name_or_path, BUNDLED)
    return name_or_path


class _AutoContextMixing:
    """`from_pretrained` of the mirrored class, then `instrument`: same class, same weights, same keywords."""

    mirrors: ClassVar[Any]

    def __init__(self) -> None:
        raise TypeError(
            f"{type(self).__name__} is made with {type(self).__name__}.from_pretrained(name_or_path)."
        )

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: Any,
        *args: Any,
        methods: Specs | None = None,
        tokenizer: Tokenizer | None = None,
        **kwargs: Any,
    ) -> PreTrainedModel:
        """Load like the mirrored Auto class (revision, cache_dir, token, dtype, device_map, ... pass through).

        `methods` are what `output_context_mixing=True` computes; `tokenizer` names the tokens of maps.
        """
        path = model_path(name_or_path)
        if path is not name_or_path and not {"dtype", "torch_dtype"} & set(kwargs):
            kwargs[DTYPE] = torch.float32  # bundled weights are stored in half precision
        wants_info = kwargs.pop("output_loading_info", False)
        try:
            model, info = cls.mirrors.from_pretrained(
                path, *args, output_loading_info=True, **kwargs
            )
        except ImportError as error:
            refusal = _refusal(path, kwargs)  # no package that is missing would help
            if refusal is None:
                raise
            raise UnsupportedModelError(refusal) from error
        except (OSError, ValueError):
            pointer = VIEWS.get("model.pointer")(
                path, kwargs
            )  # a repository that names its base model
            if pointer is None:
                raise
            base, kwargs, defaults = pointer
            kwargs["output_loading_info"] = wants_info
            return cls.from_pretrained(
                base, *args, methods=methods or defaults, tokenizer=tokenizer, **kwargs
            )
        saved = getattr(model.config, CONFIG_KEY, None) or {}
        model = instrument(
            model, tokenizer=tokenizer, methods=methods or methods_from_json(saved.get("methods"))
        )
        owner = require_instrumentation(model)
        owner.revision = VIEWS.get("model.revision")(path, kwargs)
        owner.random = _drawn(model, info)
        return (model, info) if wants_info else model  # type: ignore[return-value]

    @classmethod
    def from_config(
        cls, config: Any, *, methods: Specs | None = None, **kwargs: Any
    ) -> PreTrainedModel:
        return instrument(cls.mirrors.from_config(config, **kwargs).eval(), methods=methods)  # type: ignore[no-any-return]


def _refusal(path: Any, kwargs: dict[str, Any]) -> str | None:
    """Why the family that config.json names cannot be decomposed: its class may need a package that is not here."""
    try:
        written, _ = transformers.PretrainedConfig.get_config_dict(path, **kwargs)
    except (OSError, ValueError):
        return None
    return refusal_of(SimpleNamespace(**written))


def _drawn(model: Model, info: dict[str, Any]) -> dict[str, int]:
    """Weights that the checkpoint did not hold, with their version: whoever trains or loads them later changes it."""
    parameters, bare = (
        dict(model.named_parameters()),
        model.base_model is model,
    )  # nobody reads a bare model's pooler out
    missing = (
        key
        for key in info.get("missing_keys") or ()
        if key in parameters and not (bare and "pooler" in key)
    )
    return {key: parameters[key]._version for key in missing}


def _mirror(name: str) -> Any:
    return getattr(transformers, name)


class AutoContextMixingModel(_AutoContextMixing):
    """`AutoModel`, instrumented."""

    mirrors = _mirror("AutoModel")


class AutoContextMixingModelForSequenceClassification(_AutoContextMixing):
    """`AutoModelForSequenceClassification`, instrumented."""

    mirrors = _mirror("AutoModelForSequenceClassification")


class AutoContextMixingModelForMaskedLM(_AutoContextMixing):
    """`AutoModelForMaskedLM`, instrumented."""

    mirrors = _mirror("AutoModelForMaskedLM")


class AutoContextMixingModelForCausalLM(_AutoContextMixing):
    """`AutoModelForCausalLM`, instrumented."""

    mirrors = _mirror("AutoModelForCausalLM")


class AutoContextMixingModelForSeq2SeqLM(_AutoContextMixing):
    """`AutoModelForSeq2SeqLM`, instrumented."""

    mirrors = _mirror("AutoModelForSeq2SeqLM")


class AutoContextMixingModelForTokenClassification(_AutoContextMixing):
    """`AutoModelForTokenClassification`, instrumented."""

    mirrors = _mirror("AutoModelForTokenClassification")


class AutoContextMixingModelForQuestionAnswering(_AutoContextMixing):
    """`AutoModelForQuestionAnswering`, instrumented."""

    mirrors = _mirror("AutoModelForQuestionAnswering")


class AutoContextMixingModelForMultipleChoice(_AutoContextMixing):
    """`AutoModelForMultipleChoice`, instrumented."""

    mirrors = _mirror("AutoModelForMultipleChoice")


class AutoContextMixingModelForNextSentencePrediction(_AutoContextMixing):
    """`AutoModelForNextSentencePrediction`, instrumented."""

    mirrors = _mirror("AutoModelForNextSentencePrediction")


class AutoContextMixingModelForImageClassification(_AutoContextMixing):
    """`AutoModelForImageClassification`, instrumented."""

    mirrors = _mirror("AutoModelForImageClassification")


class AutoContextMixingModelForAudioClassification(_AutoContextMixing):
    """`AutoModelForAudioClassification`, instrumented."""

    mirrors = _mirror("AutoModelForAudioClassification")


class AutoContextMixingModelForCTC(_AutoContextMixing):
    """`AutoModelForCTC`, instrumented."""

    mirrors = _mirror("AutoModelForCTC")


class AutoContextMixingModelForSpeechSeq2Seq(_AutoContextMixing):
    """`AutoModelForSpeechSeq2Seq`, instrumented."""

    mirrors = _mirror("AutoModelForSpeechSeq2Seq")


def load_default() -> tuple[PreTrainedModel, Any]:
    """`(model, tokenizer)`: the bundled number-agreement masked LM, instrumented, without any network."""
    path = AGREEMENT.path
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = AutoContextMixingModelForMaskedLM.from_pretrained(AGREEMENT.name, tokenizer=tokenizer)
    return model, tokenizer
