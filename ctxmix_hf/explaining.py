"""One call from text to result: `explain`, `attribute` and `similarity`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.attribution import ATTRIBUTIONS, AbstractAttribution, Case, ask
from ctxmix_hf.errors import InputError, InputTypeError, OptionError, UnsupportedMethodError
from ctxmix_hf.instrumentation.session import base_model, require_instrumentation
from ctxmix_hf.maps import Attribution, ContextMixingMap
from ctxmix_hf.records import ModelRecord
from ctxmix_hf.tokens import read_encoding


def encode(model: Any, text: Any, tokenizer: Any = None) -> tuple[dict[str, Any], Any]:
    """(tensors on the model's device, the tokenizer's own encoding) of one text, a pair, or a list of them."""
    tokenizer = tokenizer or require_instrumentation(model).load_tokenizer()
    if tokenizer is None:
        raise InputError("No tokenizer is known for this model: pass tokenizer=... or load the model from a folder that holds one.")
    texts = [text] if isinstance(text, str | tuple) else list(text)
    if not texts or any(not _is_text(item) for item in texts):
        raise InputTypeError("Expected a text, a pair of texts, or a list of them.")
    if any(not "".join(item).strip() for item in texts):
        raise InputError("The text is empty: there is no token to explain.")
    pairs = [item if isinstance(item, tuple) else (item,) for item in texts]
    if len({len(pair) for pair in pairs}) > 1:
        raise InputError("Mix no single texts with pairs in one batch.")
    columns = [list(column) for column in zip(*pairs, strict=True)]
    needs_padding = len(texts) > 1
    encoding = tokenizer(*columns, padding=needs_padding, return_tensors="pt")
    device = base_model(model).device
    return {key: value.to(device) for key, value in encoding.items()}, (encoding, tokenizer, texts)


def _is_text(item: Any) -> bool:
    return isinstance(item, str) or (isinstance(item, tuple) and len(item) == 2 and all(isinstance(t, str) for t in item))


def explain(model: Any, text: Any, method: Any = "alti", *, tokenizer: Any = None, **options: Any) -> Any:
    """The map of a text (or of each of several): `explain(model, "The keys ...", "alti")`.

    Returns one `ContextMixingMap` for one method, a dict of them for a list. Knows words and the original text, because it
    saw the text. `options` go to the model call (`max_memory`, `cache`).
    """
    inputs, read = encode(model, text, tokenizer)
    several = isinstance(method, list | tuple)
    with torch.no_grad():
        out = model(**inputs, output_context_mixing=list(method) if several else [method], **options)
    tokens = read_encoding(read[0], read[1], read[2])
    maps = {key: _with_tokens(made, tokens) for key, made in out.context_mixing.items()}
    return maps if several else next(iter(maps.values()))


def _with_tokens(made: ContextMixingMap, tokens: list[Any]) -> ContextMixingMap:
    object.__setattr__(made, "tokens", tokens)  # the same map, with better names
    return made


def attribute(
    model: Any, inputs: Any, method: Any = "integrated_gradients", class_index: Any = None, of: str = "prob", *,
    foil: Any = None, position: Any = None, layer: int = 0, tokenizer: Any = None, mask_token_id: int | None = None,
    unk_token_id: int | None = None, max_memory: Any = None, **options: Any,
) -> Attribution:  # fmt: skip
    """Scores per token for a class or a masked word: `attribute(model, inputs, "integrated_gradients").scores` is `[B, T]`.

    `inputs` are the tensors the model is called with, or a text. `class_index` is a class, or a vocabulary id for a masked
    LM (None: predicted); with `foil` the probability is taken between the two. `of` is `"prob"` or `"logit"`. `layer` takes
    gradients with respect to e^layer. `options` are the method's (`steps`, `baseline`, `replace_with`, ...).
    """
    owner, seen = require_instrumentation(model), None
    if isinstance(inputs, str | tuple | list):
        inputs, read = encode(model, inputs, tokenizer)
        seen = read_encoding(read[0], read[1], read[2])
    tokenizer = tokenizer or owner.load_tokenizer()
    special = {
        "mask": mask_token_id if mask_token_id is not None else getattr(tokenizer, "mask_token_id", None),
        "unk": unk_token_id if unk_token_id is not None else getattr(tokenizer, "unk_token_id", None),
    }
    made = _make(method, options)
    inputs = {key: value for key, value in dict(inputs).items() if value is not None}
    with torch.no_grad():
        out = model(**inputs, output_decomposition=True)
    record: ModelRecord = out.decomposition
    logits = getattr(out, "logits", None)
    if not isinstance(logits, Tensor):
        raise UnsupportedMethodError(
            f"{type(base_model(model)).__name__} has no head with classes: load it with a ForSequenceClassification, "
            "ForMaskedLM or ForTokenClassification class, or use a context-mixing map."
        )
    if not 0 <= layer <= len(record):
        raise InputError(f"layer={layer} does not exist: gradients are taken at e^0 ... e^{len(record)}.")
    question = ask(logits, record, class_index, of, position, foil, special["mask"])
    case = Case(record, question, logits, special, Budget.of(max_memory), layer)
    scores = made.scores(case).detach()
    name = next((n for n in ATTRIBUTIONS if ATTRIBUTIONS.get(n) is type(made)), type(made).__name__)
    meta = {"class_index": question.class_index.tolist(), "of": of, "layer": layer, "notes": case.notes, "origin": record.origin}
    tokens = seen or list(record.tokens)
    return Attribution(scores, tokens, record.mask, name, _target_name(model, question.class_index, logits, tokenizer), meta)


def _target_name(model: Any, classes: Tensor, logits: Tensor, tokenizer: Any) -> str:
    """Labels where the model names its classes, words where they are its vocabulary."""
    config, ids = base_model(model).config, classes.flatten().tolist()
    labels = getattr(config, "id2label", None) or {}
    if logits.shape[-1] == len(labels):
        named = [str(labels.get(i, i)) for i in ids]
    elif tokenizer is not None and logits.shape[-1] == getattr(config, "vocab_size", None):
        named = [str(piece) for piece in tokenizer.convert_ids_to_tokens(ids)]
    else:
        named = [f"class {i}" for i in ids]
    return ", ".join(dict.fromkeys(named))


def _make(method: Any, options: dict[str, Any]) -> AbstractAttribution:
    if isinstance(method, AbstractAttribution):
        return method
    cls = ATTRIBUTIONS.get(method)
    known = [f.name for f in fields(cls)]
    for key in options:
        if key not in known:
            raise OptionError(f"Attribution {method!r} has no option {key!r}. Its options: {', '.join(known) or 'none'}.")
    return cls(**options)


@dataclass(frozen=True)
class Similarity:
    """The cosine of two texts' pooled vectors, shared out over both texts' tokens."""

    cosine: float
    a: Attribution
    b: Attribution


def similarity(model: Any, text_a: str, text_b: str, method: Any = "value_zeroing+rollout", *, tokenizer: Any = None) -> Similarity:
    """Which words made this similarity? Both sides' contributions to the cosine of the mean-pooled embeddings.

    The cosine is a sum over a text's tokens, `cos = sum_i e_i . p_b / (n |p_a| |p_b|)`: exact. Each token's share is then
    traced to its sources by the method's input map, so for methods whose rows sum to 1 both sides sum to the cosine.
    """
    sides = []
    for text in (text_a, text_b):
        if not isinstance(text, str):
            raise InputTypeError("similarity compares two texts.")
        inputs, read = encode(model, text, tokenizer)
        with torch.no_grad():
            out = model(**inputs, output_decomposition=True, output_context_mixing=[method])
        hidden = _last_hidden(out)
        made = _with_tokens(next(iter(out.context_mixing.values())), read_encoding(read[0], read[1], read[2]))
        sides.append((hidden[0][made.mask[0]], made))
    (ha, ma), (hb, mb) = sides
    pa, pb = ha.mean(dim=0), hb.mean(dim=0)
    cosine = torch.nn.functional.cosine_similarity(pa, pb, dim=0)
    scale = 1.0 / (pa.norm() * pb.norm())
    return Similarity(float(cosine), _traced(ma, ha @ pb * scale / len(ha), text_b), _traced(mb, hb @ pa * scale / len(hb), text_a))


def _last_hidden(out: Any) -> Tensor:
    final = getattr(out, "last_hidden_state", None)
    return final if isinstance(final, Tensor) else out.decomposition.hidden_states[-1]


def _traced(made: ContextMixingMap, shares: Tensor, other: str) -> Attribution:
    scores = shares.to(made.input.dtype) @ made.input[0, -1]
    return Attribution(scores[None], made.tokens, made.mask, made.method, f"cosine with {other!r}", made.meta)
