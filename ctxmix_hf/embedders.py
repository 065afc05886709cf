"""Models that turn texts into vectors or rank them, as their users hold them.

sentence-transformers' `SentenceTransformer`, `SparseEncoder`, `MultiVectorEncoder` and
`CrossEncoder`, CLIP-like models with two towers, and plain transformers encoders with a pooling.
The package is never imported here: whoever holds such an object has it already.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ctxmix_hf.calling import read_batch
from ctxmix_hf.errors import (
    CtxmixWarning,
    InputError,
    InputTypeError,
    OptionError,
    UnsupportedMethodError,
    UnsupportedModelError,
)
from ctxmix_hf.instrumentation.account import Brief
from ctxmix_hf.instrumentation.layout import HiddenLayout
from ctxmix_hf.instrumentation.session import Instrumentation, LayerStack, instrumentation_of
from ctxmix_hf.modeling import instrument, uninstrument
from ctxmix_hf.pooling import MODES, Pooling, pooled_vector, read_pooling, short_mode
from ctxmix_hf.text.batch import encode, encode_one
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.text.targets import class_token
from ctxmix_hf.text.tokens import Tokens, read_encoding, read_tokens
from ctxmix_hf.unwrapping import base_model

KINDS = {
    "SentenceTransformer": "dense",
    "SparseEncoder": "sparse",
    "MultiVectorEncoder": "multi",
    "CrossEncoder": "cross",
}


class TextCutWarning(CtxmixWarning):
    """A text is longer than the model reads."""


def kind_of(model: Model) -> str | None:
    """`"dense"`, `"sparse"`, `"multi"` or `"cross"` for sentence-transformers' models; None for anything else."""
    for cls in type(model).__mro__:
        if cls.__module__.startswith("sentence_transformers.") and cls.__name__ in KINDS:
            return KINDS[cls.__name__]
    return None


# What the first recorded call of a model found, so that a model that is instrumented for one call
# only is not read anew each time.
_stacks: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()


@contextmanager
def instrumented(model: Model, tokenizer: Tokenizer | None = None) -> Iterator[Model]:
    """The transformers model inside, instrumented for the block; it is left as it was found."""
    base = base_model(model)
    holder = model if instrumentation_of(model) is not None else base
    if instrumentation_of(holder) is not None:
        yield holder
        return
    instrument(base, tokenizer)
    try:
        owner = instrumentation_of(base)
        assert owner is not None
        owner.stack = _stacks.get(base)
        yield base
        if owner.stack is not None:
            _stacks[base] = owner.stack
    finally:
        uninstrument(base)


class Fresh:
    """sentence-transformers' modules write into the features they are given: every run gets a copy."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __call__(self, input: dict[str, Any], **options: Any) -> Any:
        return self._model(dict(input), **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@dataclass(frozen=True)
class Text:
    """One text (or image) as the model reads it."""

    features: dict[str, Any]
    tokens: Tokens
    said: str  # the text, or what it is


@dataclass(frozen=True)
class Embedder:
    """One way from a text to a vector, with everything its users get: prompts, pooling, further modules, truncation.

    `holder` is what runs, `encoder` the transformers model inside it whose layers are followed.
    """

    holder: Any
    encoder: Any
    tokenizer: Tokenizer
    kind: str  # "dense", "sparse", "multi", "plain"
    score: str = "cosine"  # or "dot", "euclidean"
    pooling: str = ""  # in words
    assumed: bool = False
    truncate_dim: int | None = None
    normalise: bool = False
    processor: Any = None
    further: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: Model,
        pooling: str | None = None,
        tokenizer: Tokenizer | None = None,
        truncate_dim: int | None = None,
        normalise: bool = False,
    ) -> Embedder:
        """The embedder a model is, or one sentence why it is none."""
        kind = kind_of(model)
        if kind == "cross":
            raise InputTypeError(
                "A CrossEncoder reads both texts at once and gives one number, no two vectors: use "
                "cm.ledger(model, (query, document)), or cm.rank(model, query, documents)."
            )
        if kind is None:
            return cls._plain(model, pooling, tokenizer, truncate_dim, normalise)
        if pooling is not None:
            raise OptionError(
                f"A {type(model).__name__} has its own pooling: leave pooling={pooling!r} out."
            )
        score = str(getattr(model, "similarity_fn_name", None) or "cosine")
        if score == "manhattan":
            raise UnsupportedMethodError(
                "The Manhattan distance is not a sum over pairs of words: set similarity_fn_name to 'cosine', 'dot' "
                "or 'euclidean'."
            )
        own = getattr(model, "truncate_dim", None)
        return cls(
            Fresh(model),
            _encoder_of(model),
            tokenizer or own_tokenizer(model),
            kind,
            score,
            "the model's own pooling",
            truncate_dim=truncate_dim if truncate_dim is not None else own,
            normalise=normalise,
        )

    @classmethod
    def _plain(
        cls,
        model: Model,
        pooling: str | None,
        tokenizer: Tokenizer | None,
        truncate_dim: int | None,
        normalise: bool,
    ) -> Embedder:
        base = base_model(model)
        mode, known = pooling_of(base, pooling)
        owner = instrumentation_of(base)
        found = tokenizer or (None if owner is None else owner.load_tokenizer())
        if found is None:
            found = Instrumentation(
                base.config.model_type, base.dtype, source=base.config._name_or_path or None
            ).load_tokenizer()
        if found is None:
            raise InputError("No tokenizer is known for this model: pass tokenizer=...")
        if not callable(found):
            raise InputTypeError(f"tokenizer is a tokenizer, got {type(found).__name__}.")
        return cls(
            base.base_model,
            model if instrumentation_of(model) is not None else base,
            found,
            "plain",
            "cosine",
            mode,
            assumed=pooling is None and known is None,
            truncate_dim=truncate_dim,
            normalise=normalise,
            further={"limit": known.limit, "lower": known.lower} if known is not None else {},
        )

    # ---- reading ----------------------------------------------------------------------------------------------
    def read(self, text: Any, prompt: str | None = None, role: str | None = None) -> Text:
        """The tensors of one text, and the names of its tokens."""
        if not isinstance(text, str):
            raise InputTypeError(f"Expected a text, got {type(text).__name__}.")
        if not text.strip():
            raise InputError("The text is empty: there is no word to explain.")
        if self.kind == "plain":
            return self._read_plain(text)
        options = {"task": role} if role is not None else {}
        features = dict(self.holder.preprocess([text], prompt=prompt, **options))
        features = {k: _placed(v, self.encoder) for k, v in features.items()}
        ids = features.get("input_ids")
        if not isinstance(ids, Tensor):
            raise UnsupportedModelError(f"{type(self.holder).__name__} reads no token ids.")
        whole = f"{prompt or ''}{text}"
        tokens = _with_words(self._named(ids[0].tolist(), whole), text)
        return Text({"input": features, **options}, tokens, text)

    def _read_plain(self, text: str) -> Text:
        text = text.lower() if self.further.get("lower") else text
        batch = read_batch(self.encoder, text, self.tokenizer)
        limit = self.further.get("limit")
        size = batch.tensors["input_ids"].shape[1]
        if limit is not None and size > limit:
            raise InputError(
                f"The text has {size} tokens, and this model reads the first {limit}: shorten the text."
            )
        taken = inspect.signature(self.holder.forward).parameters
        tensors = {key: value for key, value in batch.tensors.items() if key in taken}
        assert batch.tokens is not None
        return Text(tensors, _with_words(batch.tokens[0], text), text)

    def _named(self, ids: list[int], whole: str) -> Tokens:
        encoding = encode(self.tokenizer, [whole], truncation=True, max_length=len(ids))
        if encoding["input_ids"][0] == ids and getattr(encoding, "is_fast", False):
            tokens = read_encoding(encoding, self.tokenizer, [whole])[0]
        else:
            tokens = read_tokens([ids], self.tokenizer)[0]
        there = len(encode_one(self.tokenizer, whole, verbose=False)["input_ids"])
        if there > len(ids):
            shown = list(tokens.shown())[-4:-1]
            warnings.warn(
                f"The text has {there} tokens and the model reads {len(ids)}: what stands after "
                f"{' '.join(shown)!r} has no part in the result.",
                TextCutWarning,
                stacklevel=4,
            )
        return tokens

    # ---- running ----------------------------------------------------------------------------------------------
    def vectors(self, output: Any, features: dict[str, Any]) -> Tensor:
        """`[B, D]` (`[B, T, D]` for late interaction) of what `holder` returned; runs inside the ledger's forward."""
        if self.kind == "plain":
            hidden = getattr(output, "last_hidden_state", None)
            encoder = getattr(output, "encoder_last_hidden_state", None)
            hidden = encoder if isinstance(encoder, Tensor) else hidden
            if not isinstance(hidden, Tensor):
                raise InputError(f"{type(self.holder).__name__} returns no last hidden state.")
            mask = features.get("attention_mask")
            mask = torch.ones(hidden.shape[:2]) if mask is None else mask
            made = pooled_vector(hidden, mask > 0, self.pooling)
        elif self.kind == "multi":
            return output["token_embeddings"]  # type: ignore[no-any-return]
        else:
            made = output["sentence_embedding"]
        if made.is_sparse:
            made = made.to_dense()
        if self.truncate_dim is not None:
            made = made[..., : self.truncate_dim]
        return nn.functional.normalize(made, p=2, dim=-1) if self.normalise else made

    def brief(self, text: Text, readout: Any, batch: int = 1) -> Brief:
        """The order for a ledger of what `readout(output)` gives for this text."""
        owner = instrumentation_of(self.encoder)
        assert owner is not None
        if owner.stack is None:
            self._find_layers(owner, text)
        assert owner.stack is not None
        stack = owner.stack
        if self.kind == "plain" and self.pooling == "cls" and not self.further:
            class_token(text.tokens, stack.causal)  # there must be one
        return Brief(
            self.holder,
            (),
            text.features,
            owner,
            stack.names,
            HiddenLayout(batch, 0, stack.order),
            readout,
            tuple(range(batch)),
            entering=stack.entering,
        )

    def _find_layers(self, owner: Instrumentation, text: Text) -> None:
        """Record the encoder once: which modules are its layers."""
        features = text.features.get("input", text.features)
        taken = inspect.signature(self.encoder.forward).parameters
        tensors = {k: v for k, v in features.items() if k in taken and isinstance(v, Tensor)}
        with torch.no_grad():
            record = self.encoder(**tensors, output_decomposition=True).decomposition
        if isinstance(record, dict):
            raise UnsupportedModelError("This model has several towers: pass a text and an image.")
        owner.stack = LayerStack.of(record)


def _with_words(tokens: Tokens, text: str) -> Tokens:
    """The tokens of a text, if there is one among them that the tokenizer did not put there itself."""
    own = zip(tokens.special or (False,), tokens.unknowns() or (False,), strict=False)
    if all(special and not unknown for special, unknown in own):
        raise InputError(
            f"Nothing is left of the text {text!r:.40} once it is tokenized: there is no word to explain."
        )
    return tokens


def _placed(value: Any, base: PreTrainedModel) -> Any:
    return value.to(base.device) if isinstance(value, Tensor) else value


def own_tokenizer(model: Model) -> Tokenizer:
    """Of a sentence-transformers model."""
    return model.tokenizer  # type: ignore[return-value]


def _encoder_of(model: Model) -> PreTrainedModel:
    found = getattr(model, "transformers_model", None)
    if not isinstance(found, PreTrainedModel):
        raise UnsupportedModelError(
            f"There is no transformers model inside this {type(model).__name__} (static embeddings "
            "or another backend), so no "
            "layers mix its words."
        )
    return found


def has_towers(model: Model) -> bool:
    """Does it turn texts and images into vectors that can be compared (CLIP, SigLIP)?"""
    base = None if kind_of(model) is not None else base_model(model)
    return all(hasattr(base, name) for name in ("get_text_features", "get_image_features"))


def own_pooling(model: Model) -> Pooling | None:
    """The pooling of a sentence-transformers model, as its Pooling module is set."""
    for module in model.modules():
        mode = getattr(module, "pooling_mode", None)
        if type(module).__name__ == "Pooling" and mode:
            return Pooling(short_mode([mode] if isinstance(mode, str) else list(mode)))
    return None


def pooling_of(base: PreTrainedModel, asked: str | None) -> tuple[str, Pooling | None]:
    """The pooling to use for a plain encoder, and what the model's files say where they decide."""
    if asked is not None:
        if asked not in MODES:
            raise OptionError.among("pooling", asked, MODES)
        return asked, None
    found = read_pooling(base.config._name_or_path, local=False)
    if found is None:
        return "mean", None
    wrong = [*found.further, *([f"the prompt {found.prompt!r}"] if found.prompt else [])]
    wrong += [] if found.mode in MODES else [f"{found.mode} pooling"]
    if wrong:
        raise UnsupportedMethodError(
            f"This model's own similarity goes through {' and '.join(wrong)}: load it with "
            "sentence_transformers.SentenceTransformer(...) and pass that, or say pooling='mean', "
            "'cls', 'last' or 'max' for "
            "the cosine without it."
        )
    return found.mode, found


def prompts_of(
    model: Model, names: Any, prompts: Any, roles: Sequence[str | None]
) -> list[str | None]:
    """The prompt before each text, by name or as it is; one for both, or a pair."""
    both = [tuple(x) if isinstance(x, list | tuple) else (x, x) for x in (names, prompts)]
    if any(len(pair) != 2 for pair in both):
        raise OptionError("prompt and prompt_name are one for both texts, or a pair.")
    if kind_of(model) is None:
        if any(x is not None for pair in both for x in pair):
            raise OptionError(
                "Prompts belong to sentence-transformers' models: put the prompt before the text."
            )
        return [None, None]
    if not all(x is None or isinstance(x, str) for pair in both for x in pair):
        raise OptionError("prompt and prompt_name are texts: one for both texts, or a pair.")
    known = dict(getattr(model, "prompts", None) or {})
    found: list[str | None] = []
    for name, prompt, role in zip(*both, roles, strict=True):
        if name is not None and name not in known:
            raise OptionError(
                f"There is no prompt named {name!r}. This model has: {', '.join(known) or 'none'}."
            )
        by_role = known.get(role) if role is not None else None
        if role == "document" and by_role is None:
            by_role = next(
                (known[key] for key in ("document", "passage", "corpus") if key in known), None
            )
        default = known.get(getattr(model, "default_prompt_name", None) or "")
        chosen = prompt if prompt is not None else known[name] if name is not None else by_role
        found.append(chosen if chosen is not None else default)
    return found
