"""One call from text, image or sound to result: `explain` and `attribute`."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.attribution import (
    ATTRIBUTIONS,
    AbstractAttribution,
    Case,
    Question,
    ask,
    real_positions,
)
from ctxmix_hf.calling import call, read_batch
from ctxmix_hf.counting import state_index
from ctxmix_hf.embedders import instrumented, kind_of, own_pooling, own_tokenizer
from ctxmix_hf.errors import (
    InputError,
    OptionError,
    RandomWeightsWarning,
    UnknownNameError,
    UnsupportedMethodError,
)
from ctxmix_hf.heads import NEXT_WORD, head_of, link_of
from ctxmix_hf.instrumentation.awake import keeps_modes
from ctxmix_hf.instrumentation.session import require_instrumentation
from ctxmix_hf.pooling import Pooling, pooling_weights, read_pooling
from ctxmix_hf.recipes import Specs, Wanted, checked_top_k, map_names, resolve
from ctxmix_hf.records import ModelRecord
from ctxmix_hf.registry import DEFAULT_METHOD
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.text.batch import TextBatch, pieces_of, vocabulary_id
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.text.segments import Segments, check_segments
from ctxmix_hf.text.targets import Target
from ctxmix_hf.text.tokens import MASKS, Tokens
from ctxmix_hf.unwrapping import base_model

CALL_OPTIONS = ("max_memory", "cache")


@keeps_modes
def explain(
    model: Model,
    text: Any,
    method: Specs = DEFAULT_METHOD,
    *,
    target: Target = None,
    targets: Sequence[Target] | None = None,
    layers: bool = False,
    segments: Segments | None = None,
    top_k: int | None = None,
    tokenizer: Tokenizer | None = None,
    processor: Any = None,
    **options: Any,
) -> Any:
    """The map of a text (or of each of several): `explain(model, "The keys ...", "alti")`.

    Args:
        model: A loaded model; one without instrumentation is instrumented.
        text: A text, a pair, a list of them, a dict of tensors (what a tokenizer or processor returns), token ids,
            or for models that read them an image, a waveform, or the path of one.
        method: A name of `list_methods()`, a method with options (`cm.method(...)`), or a list of these.
        target: Ask for one row alone (a token, a word, `"[CLS]"`, `"mean_pool"`, `"embedding"`, or a list of these to
            average): the `Attribution` that the map's `attribution(target)` would be, without making the
            map, which long texts cannot afford.
        targets: The same for several, one row each (`TargetRows`, `[B, N, T]`).
        layers: With `target`, a row for every layer; with `targets`, `rows.layers` `[B, L, N, T]` too.
        segments: `"sentences"`, `"paragraphs"`, or a list of the positions of each: the map of these, `[L, N, N]`,
            that of the tokens with sources summed and targets averaged (`map.segments(...)`), which is
            never made.
        top_k: Keep of every row, in every layer, the k largest sources and what the rest has together
            (`SparseMap`).
        tokenizer: Found beside the weights where it is not given.
        processor: The same for images and sound.
        options: Of the model call: `max_memory`, `cache`, or an argument of the model's own forward.

    Returns:
        One `ContextMixingMap` for one method, a dict of them for a list; with `target`, `targets` or `top_k` what
        stands there. It knows words and the original text where it saw the text.

    Raises:
        InputError: The text or the target cannot be read.
        UnsupportedMethodError: The model or the record does not have what the method needs.

    Example:
        >>> m = cm.explain(model, "The keys to the cabinet [MASK] here.", "alti")
        >>> print(m.words().attribution("[MASK]"))
    """
    rows = _Rows.of(target, targets, layers, segments, top_k)
    if kind_of(model) is not None:
        own = tokenizer or own_tokenizer(model)
        with instrumented(model, own) as encoder:
            return _explained(
                encoder, text, method, own, processor, options, own_pooling(model), rows
            )
    return _explained(model, text, method, tokenizer, processor, options, None, rows)


@dataclass(frozen=True)
class _Rows:
    """Rows that were asked for instead of maps."""

    targets: tuple[Target, ...] = ()
    one: bool = False
    layers: bool = False
    segments: Segments | None = None
    top_k: int | None = None

    @property
    def asked(self) -> bool:
        return bool(self.targets) or self.segments is not None or self.top_k is not None

    @classmethod
    def of(
        cls,
        target: Target,
        targets: Sequence[Target] | None,
        layers: bool,
        segments: Segments | None,
        top_k: int | None,
    ) -> _Rows:
        if top_k is not None:
            if target is not None or targets is not None or segments is not None:
                raise OptionError(
                    "top_k=... keeps the largest sources of every row: leave target, targets and segments out, and "
                    "take a row from the result, m.attribution(3)."
                )
            return cls(top_k=checked_top_k(top_k))
        if segments is not None:
            if target is not None or targets is not None:
                raise OptionError(
                    "segments=... makes a map and target=... a row: give one of the two, and take the row of "
                    "a segment from the map, m.attribution(2)."
                )
            check_segments(segments)
            return cls(layers=True, segments=segments)
        if target is not None and targets is not None:
            raise OptionError(
                "target=... is one row and targets=[...] is one each: give one of the two."
            )
        if target is None and targets is None:
            if layers:
                raise OptionError(
                    "layers=True goes with target=...: without it the map has every layer anyway."
                )
            return cls()
        asked = (target,) if targets is None else Wanted.of(targets).targets
        return cls(asked, targets is None, layers)

    def taken(self, made: Any) -> Any:
        """What the caller sees of one method's rows; of several towers, of each."""
        if isinstance(made, dict):
            return {tower: self.taken(part) for tower, part in made.items()}
        if not self.one:
            return made  # one row each, or a map of segments
        return made.by_layer() if self.layers else made.attribution()


def _explained(
    model: Model,
    text: Any,
    method: Any,
    tokenizer: Tokenizer | None,
    processor: Any,
    options: dict[str, Any],
    pooling: Pooling | None,
    rows: _Rows,
) -> Any:
    several = isinstance(method, list | tuple)
    asked = list(method) if several else [method]
    resolve(asked)  # a wrong name is said before anything runs
    _check_options(model, options)
    batch = read_batch(model, text, tokenizer, processor)
    _warn_of_random(model, head=False)
    held = {key: options.pop(key) for key in CALL_OPTIONS if key in options}
    batch = replace(
        batch, tensors={**batch.tensors, **options}
    )  # the caller's own arguments of the forward win
    found = pooling or read_pooling(base_model(model).config._name_or_path)
    hidden = lambda out: getattr(out, "last_hidden_state", None)
    if rows.asked:
        held["targets"] = Wanted(
            rows.targets,
            rows.layers,
            rows.segments,
            rows.top_k,
            lambda made, out: pooled(made, found, hidden(out)),
        )
        out = call(model, batch, output_context_mixing=asked, **held)
        maps = {key: rows.taken(made) for key, made in out.context_mixing.items()}
    else:
        out = call(model, batch, output_context_mixing=asked, **held)
        maps = {key: pooled(made, found, hidden(out)) for key, made in out.context_mixing.items()}
    return maps if several else next(iter(maps.values()))


def _check_options(model: Model, options: dict[str, Any]) -> None:
    """A misspelled option must not vanish in the model's keywords."""
    taken = [
        name
        for name, p in inspect.signature(base_model(model).forward).parameters.items()
        if p.kind is not p.VAR_KEYWORD
    ]
    own = [
        "target",
        "targets",
        "layers",
        "segments",
        "top_k",
        "tokenizer",
        "processor",
        *CALL_OPTIONS,
    ]
    known = [*own, *taken]
    for key in options:
        if key not in known:
            near = [] if key == "layer" else difflib.get_close_matches(key, known, n=1, cutoff=0.7)
            result = " A layer is chosen from the result: m.layer(...), m.attribution(...)."
            hint = f" Did you mean {near[0]!r}?" if near else result
            raise OptionError(
                f"explain has no option {key!r}.{hint} Options of a method go through "
                f"cm.method(name, {key}=...); its own are {', '.join(own)}."
            )


def pooled(made: Any, pooling: Pooling | None, hidden: Tensor | None = None) -> Any:
    """The map with the pooling its model's embedding is made by; of several towers, of each."""
    if isinstance(made, dict):
        return {tower: pooled(part, pooling) for tower, part in made.items()}
    if pooling is None:
        return made
    meta = {**made.meta, "pooling": pooling.mode}
    if hidden is not None and hidden.shape[:2] == made.mask.shape:
        weights = pooling_weights(pooling.mode, hidden.detach(), made.mask)
        meta = meta if weights is None else {**meta, "embedding_weights": weights.double().tolist()}
    return replace(made, meta=meta)


# ---- scores for a prediction
# ------------------------------------------------------------------------------------------
@keeps_modes
def attribute(
    model: Model,
    inputs: Any,
    method: str | AbstractAttribution = "integrated_gradients",
    class_index: Any = None,
    of: str | None = None,
    *,
    foil: Any = None,
    position: Any = None,
    layer: int = 0,
    tokenizer: Tokenizer | None = None,
    processor: Any = None,
    mask_token_id: int | None = None,
    unk_token_id: int | None = None,
    max_memory: Any = None,
    **options: Any,
) -> Attribution:
    """Scores per token for a class or a word: `attribute(model, inputs, "integrated_gradients").scores` is `[B, T]`.

    Args:
        model: A loaded model; one without instrumentation is instrumented.
        inputs: What `explain` takes.
        method: A name of `list_methods("attribution")`, or such a method with its options.
        class_index: A class, its label, or for language models a word of the vocabulary or its id; None: predicted.
        of: `"prob"` or `"logit"`; None is the probability where the head gives one (softmax, or sigmoid for
            several labels at once) and the number itself where it does not (one output: regression, rerankers).
        foil: A class or word that is set against `class_index`.
        position: The token of a per-token head, counting real tokens from either end; None: the masked word,
            or what follows the last token of a causal model.
        layer: Gradients are taken with respect to e^layer: 0 the embedding output, 1 to L the layers' outputs,
            -1 the last.
        tokenizer: Found beside the weights where it is not given.
        processor: The same for images and sound.
        mask_token_id: The masked token, where the tokenizer is not known.
        unk_token_id: What blank-out puts in a token's place, where the tokenizer is not known.
        max_memory: What temporary tensors may take, as `"500MB"`.
        options: The method's (`steps`, `baseline`, `replace_with`, ...).

    Returns:
        Scores `[B, T]` with their tokens; the result's `target` says what was explained.

    Raises:
        InputError: The inputs, the class or the position cannot be read.
        UnsupportedMethodError: The model has nothing of what is asked.

    Example:
        >>> cm.attribute(model, "The keys [MASK] here.", "blank_out", class_index="are", foil="is")
    """
    made = _make(method, options)
    if made.only_logit:
        if of == "prob":
            name = "The ledger" if method == "ledger" else str(method)
            raise OptionError(
                f"{name} adds up to a logit, a probability is not linear in it: use of='logit', or "
                "integrated_gradients."
            )
        of = "logit"
    owner, base = require_instrumentation(model), base_model(model)
    batch = read_batch(model, inputs, tokenizer, processor)
    tokenizer = tokenizer or owner.load_tokenizer()
    known = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("mask", "unk", "bos")}
    special = known | {
        name: i for name, i in (("mask", mask_token_id), ("unk", unk_token_id)) if i is not None
    }
    out = call(model, batch, output_decomposition=True)
    record = _one_record(base, out.decomposition)
    logits = _logits(base, out, record)
    layer = state_index(layer, len(record))
    _warn_of_random(model, head=True)
    place = _place(base, logits, record, batch, position, special["mask"])
    classes = _Classes(base.config, logits.shape[-1], tokenizer)
    link = link_of(base.config, tuple(logits.shape))
    question = ask(
        logits, link, classes.ids(class_index, "class_index"), of, classes.ids(foil, "foil"), place
    )
    decoder = head_of(type(base).__name__) == "CausalLM"
    ends = (
        getattr(base.config, "eos_token_id", None)
        if getattr(base.config, "is_encoder_decoder", False) and logits.dim() == 2
        else None
    )
    case = Case(record, question, logits, special, Budget.of(max_memory), layer, decoder, ends)
    scores = made.scores(case).detach()
    name = next((n for n in ATTRIBUTIONS if ATTRIBUTIONS.get(n) is type(made)), type(made).__name__)
    meta = {
        "class_index": question.class_index.tolist(),
        "of": question.of,
        "link": link,
        "layer": layer,
        "notes": case.notes,
        "foil": None if question.foil is None else question.foil.tolist(),
        "position": None if place is None else place.tolist(),
        "origin": record.origin,
        "part": record.origin.get("part"),
    }
    tokens = list(record.tokens)
    return Attribution(
        scores, tokens, record.mask, name, _target_name(question, classes, tokens), meta
    )


def _one_record(base: PreTrainedModel, found: Any) -> ModelRecord:
    """The record of the tokens that get scores: of several towers, the one that reads text."""
    if not isinstance(found, dict):
        return found  # type: ignore[no-any-return]
    texts = [record for record in found.values() if record.input_ids is not None]
    if len(texts) != 1:
        raise UnsupportedMethodError(
            f"{type(base).__name__} has several towers ({', '.join(found)}), and its score "
            "belongs to none of them alone: use explain, or one tower with a head of its own."
        )
    return texts[0]  # type: ignore[no-any-return]


def _logits(base: PreTrainedModel, out: Any, record: ModelRecord) -> Tensor:
    logits = getattr(out, "logits", None)
    if not isinstance(logits, Tensor):
        raise UnsupportedMethodError(
            f"{type(base).__name__} has no head with classes: load it with a ForSequenceClassification, "
            "ForMaskedLM or ForTokenClassification class, or use a context-mixing map."
        )
    if logits.dim() not in (2, 3):
        raise UnsupportedMethodError(
            f"Logits of shape {tuple(logits.shape)} are neither one per class nor one per token and class."
        )
    if len(logits) != len(record.mask):
        raise UnsupportedMethodError(
            f"{type(base).__name__} reads {len(record.mask)} sequences for {len(logits)} answers: "
            "its scores belong to no single sequence. "
            "Use explain for their maps."
        )
    return logits


def _place(
    base: PreTrainedModel,
    logits: Tensor,
    record: ModelRecord,
    batch: TextBatch,
    position: Any,
    mask_id: int | None,
) -> Tensor | None:
    """The row of per-token logits that is explained, `[B]`; None for heads with one answer per example."""
    if logits.dim() == 2:
        if position is not None:
            raise OptionError(
                f"{type(base).__name__} gives one answer per example: leave position out."
            )
        return None
    real = (
        batch.tensors.get("decoder_attention_mask")
        if getattr(base.config, "is_encoder_decoder", False)
        else record.mask
    )
    real = (
        real
        if isinstance(real, Tensor) and real.shape == logits.shape[:2]
        else torch.ones(logits.shape[:2])
    )
    if position is not None:
        return real_positions(position, real > 0)
    if head_of(type(base).__name__) in NEXT_WORD:
        return real_positions(-1, real > 0)
    if (
        record.input_ids is None
        or mask_id is None
        or logits.shape[-1] != getattr(base.config, "vocab_size", None)
    ):
        raise InputError(
            "This model scores every token: say which one with position=... (or give the tokenizer for its [MASK])."
        )
    found = (record.input_ids == mask_id).cpu()
    if not bool(found.any(dim=1).all()):
        raise InputError(
            "A masked-word target needs a [MASK] in the text, or position=... for another token."
        )
    return found.long().argmax(dim=1)


@dataclass(frozen=True)
class _Classes:
    """The names of a head's classes: labels, or the words of a vocabulary."""

    config: Any
    count: int
    tokenizer: Tokenizer

    @property
    def labels(self) -> dict[int, str]:
        found = getattr(self.config, "id2label", None) or {}
        return {int(k): str(v) for k, v in found.items()} if len(found) == self.count else {}

    @property
    def are_words(self) -> bool:
        return self.tokenizer is not None and self.count == getattr(self.config, "vocab_size", None)

    def ids(self, value: Any, what: str) -> Any:
        """Numbers for names, one or several; anything else as it is."""
        if isinstance(value, str):
            return self._id(value, what)
        if isinstance(value, list | tuple) and any(isinstance(item, str) for item in value):
            return [self._id(item, what) if isinstance(item, str) else item for item in value]
        return value

    def _id(self, name: str, what: str) -> int:
        if self.are_words:
            found = vocabulary_id(self.tokenizer, name)
            if found is not None:
                return found
            pieces = pieces_of(self.tokenizer, name)
            near = difflib.get_close_matches(
                name,
                [word for word in self.tokenizer.get_vocab() if word[:1] == name[:1]],
                n=3,
                cutoff=0.6,
            )
            hint = f" Near it are {', '.join(map(repr, near))}." if near else ""
            raise UnknownNameError(
                f"{what}={name!r} is not a single piece of the vocabulary (its pieces: {', '.join(pieces)}).{hint}"
            )
        same = [i for i, label in self.labels.items() if label == name] or [
            i for i, label in self.labels.items() if label.lower() == name.lower()
        ]
        if not same:
            raise UnknownNameError.among(
                "label", name, self.labels.values() or map(str, range(self.count))
            )
        return same[0]

    def named(self, ids: Tensor) -> str:
        numbers = ids.flatten().tolist()
        if self.are_words:
            shown = Tokens(
                tuple(str(piece) for piece in self.tokenizer.convert_ids_to_tokens(numbers))
            ).shown()
        else:
            shown = [self.labels.get(i, f"class {i}") for i in numbers]
        return ", ".join(dict.fromkeys(shown))


def _target_name(question: Question, classes: _Classes, tokens: list[Tokens]) -> str:
    """What was explained, and where."""
    said = question.named(
        classes.named(question.class_index),
        "" if question.foil is None else classes.named(question.foil),
    )
    if (
        question.position is None
        or len(question.position) > 1
        or int(question.position[0]) >= len(tokens[0])
    ):
        return said
    place = int(question.position[0])
    piece = tokens[0].shown()[place]
    return (
        f"{said} at {piece} ({place})"
        if piece not in MASKS or sum(p in MASKS for p in tokens[0].pieces) > 1
        else f"{said} at {piece}"
    )


def _warn_of_random(model: Model, *, head: bool) -> None:
    """Weights that no checkpoint held and nobody has changed since they were drawn; `head=False`: below the head."""
    base, drawn = base_model(model), require_instrumentation(model).random
    parameters = dict(base.named_parameters()) if drawn else {}
    inner = (
        {id(p) for name, p in base.base_model.named_parameters() if "pooler" not in name}
        if drawn
        else set()
    )
    random = [
        name
        for name, version in drawn.items()
        if name in parameters and parameters[name]._version == version
    ]
    random = random if head else [name for name in random if id(parameters[name]) in inner]
    if random:
        warnings.warn(
            "These weights were not in the checkpoint and are random: "
            f"{', '.join(random[:3])}{' ...' * (len(random) > 3)}. What is "
            "explained was never trained: load a checkpoint that holds them.",
            RandomWeightsWarning,
            stacklevel=3,
        )


def _make(method: str | AbstractAttribution, options: dict[str, Any]) -> AbstractAttribution:
    if isinstance(method, AbstractAttribution):
        if options:
            raise OptionError(
                f"{type(method).__name__} is made already: give it {', '.join(options)} where it is made."
            )
        return method
    if (
        isinstance(method, str)
        and method not in ATTRIBUTIONS
        and method.partition("+")[0].strip() in map_names()
    ):
        raise UnknownNameError(
            f"{method!r} maps tokens to tokens and explains no prediction: use cm.explain(model, text, {method!r})."
        )
    cls = ATTRIBUTIONS.get(method)
    known = [f.name for f in fields(cls)]
    for key in options:
        if key not in known:
            near = difflib.get_close_matches(
                key, [*known, *inspect.signature(attribute).parameters], n=1, cutoff=0.6
            )
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise OptionError(
                f"Attribution {method!r} has no option {key!r}.{hint} Its options: {', '.join(known) or 'none'}."
            )
    return cls(**options)
