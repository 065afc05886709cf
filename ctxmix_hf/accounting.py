"""`ledger`: why this output? Contributions of tokens and named lines that add up to the model's own number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ctxmix_hf.attribution import Question, ask, real_positions
from ctxmix_hf.calling import call, read_batch
from ctxmix_hf.embedders import (
    Embedder,
    instrumented,
    kind_of,
    own_tokenizer,
    prompts_of,
)
from ctxmix_hf.errors import InputError, InputTypeError, OptionError, UnknownNameError
from ctxmix_hf.explaining import (
    _Classes,
    _logits,
    _one_record,
    _place,
    _target_name,
    _warn_of_random,
)
from ctxmix_hf.heads import head_of, link_of
from ctxmix_hf.instrumentation.account import STARTS, Brief, Drawn, draw_up
from ctxmix_hf.instrumentation.awake import keeps_modes
from ctxmix_hf.instrumentation.layout import HiddenLayout
from ctxmix_hf.instrumentation.linear import GATES, RULES
from ctxmix_hf.instrumentation.session import LayerStack, require_instrumentation
from ctxmix_hf.methods.base import check_choice
from ctxmix_hf.pooling import MODES, pooled_vector, read_pooling
from ctxmix_hf.results.ledgers import Ledger
from ctxmix_hf.text.batch import TextBatch, vocabulary_id
from ctxmix_hf.text.inputs import batch_sizes, check_call, padding_mask
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.text.tokens import Tokens
from ctxmix_hf.unwrapping import base_model

BIASES = ("lines", "spread")
READOUTS = (
    "a class or word of the model's head (class_index=..., foil=..., position=...), "
    "readout='start' or 'end' of question answering, "
    "readout='embedding' (direction=..., pooling=...), or readout=lambda outputs: one number per example"
)


@keeps_modes
def ledger(
    model: Model,
    inputs: Any,
    class_index: Any = None,
    *,
    foil: Any = None,
    position: Any = None,
    readout: str | Callable[[Any], Tensor] | None = None,
    direction: Any = None,
    pooling: str | None = None,
    rule: str = "frozen",
    gates: str = "half",
    biases: str = "lines",
    start: str = "input",
    checkpoint: bool = False,
    tokenizer: Tokenizer | None = None,
    processor: Any = None,
) -> Ledger:
    """Why this output? Signed contributions of the tokens and named lines that sum to the model's own number.

    With attention probabilities, deviations of norms and activation ratios frozen, a Transformer is
    linear in its tokens and its biases, so one backward pass gives parts that sum to the output
    (Modarressi et al. 2023, DecompX; Ali et al. 2022). Costs about two forward passes. Each ledger
    carries its own proof, `.gap`; a model whose account does not balance is refused with the
    operation that breaks it.

    Args:
        model: An instrumented model.
        inputs: What `explain` takes: a text, a pair, a list of these, tensors, an image, a waveform.
        class_index: A class, its label, or for language models a word or its id. None: what the model predicts.
        foil: Explain the logit of `class_index` minus the logit of this class or word.
        position: The token of a per-token head, counting real tokens from either end. None: the
            masked word, what follows the last token of a causal model, or for CTC the frame where
            the class is strongest.
        readout: What is explained instead of a head's logit: `"start"`, `"end"`, `"embedding"`, or
            a function of the model's outputs that gives one number per example, `[B]`.
        direction: `[D]` or `[B, D]`, for `readout="embedding"`: the pooled vector's projection on this direction is
            explained (None: on its own direction, that is, its length).
        pooling: `"mean"`, `"cls"`, `"last"` or `"max"`, for `readout="embedding"`. None: what the model's files say.
        rule: `"frozen"`, or `"through"`: contributions also pass through the attention scores (Achtibat et al. 2024,
            AttnLRP); what softmax does not pass on is the line `softmax remainder`.
        gates: `"half"`: a product of two activations passes half on to each; `"frozen"`: all to the ungated factor.
        biases: `"lines"`, or `"spread"`: shared out over the tokens in proportion to the size of their contributions.
        start: `"input"`: tokens as they enter the first layer; `"embeddings"`: word embeddings, with position and
            token-type embeddings as lines `[B, T]`.
        checkpoint: Run every layer a second time instead of keeping its activations: about one
            forward pass more, and memory for two layers only. Such a ledger has no edges.
        tokenizer: Where none lies beside the model.
        processor: An image processor or feature extractor, where none lies beside the model.

    Returns:
        A `Ledger`.

    Raises:
        UnsupportedModelError: The account does not balance; the message names the operation.
        InputError: What is asked does not exist in this model.

    Example:
        >>> l = cm.ledger(model, "The keys to the cabinet [MASK] on the table.", class_index="are", foil="is")
        >>> l.value, l.total, l.top(3)
    """
    for name, value, known in (
        ("rule", rule, RULES),
        ("gates", gates, GATES),
        ("biases", biases, BIASES),
        ("start", start, STARTS),
    ):
        check_choice("ledger", name, value, known)
    if kind_of(model) is not None:
        options: dict[str, Any] = {
            "rule": rule,
            "gates": gates,
            "biases": biases,
            "start": start,
            "checkpoint": checkpoint,
        }
        if kind_of(model) == "cross":
            own = tokenizer or own_tokenizer(model)
            with instrumented(model, own) as encoder:
                return ledger(
                    encoder,
                    inputs,
                    class_index,
                    foil=foil,
                    position=position,
                    readout=readout,
                    tokenizer=own,
                    **options,
                )
        return _of_embedding(model, inputs, class_index, foil, readout, direction, options)
    if checkpoint and start != "input":
        raise OptionError("checkpoint=True starts at the input: leave start='embeddings' out.")
    owner, base = require_instrumentation(model), base_model(model)
    batch = read_batch(model, inputs, tokenizer, processor)
    check_call(base, model, (), batch.tensors)
    _warn_of_random(model, head=readout is None)
    stack, layout = _stack(model, batch)
    mask = padding_mask((), batch.tensors)
    asked = _Reading(
        base,
        batch,
        mask,
        tokenizer or owner.load_tokenizer(),
        class_index,
        foil,
        position,
        readout,
        direction,
        pooling,
    )
    examples = tuple(range(layout.batch))
    drawn = draw_up(
        Brief(
            model,
            (),
            batch.tensors,
            owner,
            stack.names,
            layout,
            asked,
            examples,
            mask,
            rule=rule,
            gates=gates,
            start=start,
            entering=stack.entering,
            by_layer=checkpoint,
        )
    )
    tokens = _tokens(model, batch, drawn)
    meta = {
        "rule": rule,
        "gates": gates,
        "biases": biases,
        "start": start,
        **asked.meta,
        "origin": _origin(base),
    }
    made = Ledger(
        drawn.value,
        drawn.scores,
        drawn.lines,
        drawn.mask,
        tokens,
        asked.named(tokens),
        drawn.rows,
        drawn.above,
        drawn.attended,
        None if checkpoint else drawn.edges,
        meta,
    )
    return made.spread() if biases == "spread" else made


def _of_embedding(
    model: Model,
    text: Any,
    term: Any,
    foil: Any,
    readout: Any,
    direction: Any,
    options: dict[str, Any],
) -> Ledger:
    """The ledger of a sentence-transformers model's vector: a term of a sparse one, or its
    projection on a direction.
    """
    if options.pop("biases") != "lines" or options.pop("checkpoint"):
        raise OptionError("biases='spread' and checkpoint=True are for transformers models.")
    if (
        foil is not None
        or readout not in (None, "embedding")
        or (term is None and direction is None and readout is None)
    ):
        raise InputError(
            f"A {type(model).__name__} gives a vector: explain a term of it (class_index='word', sparse encoders), its "
            "projection on a direction (direction=...), or its length (readout='embedding')."
        )
    embedder = Embedder.of(model)
    with instrumented(model, embedder.tokenizer):
        read = embedder.read(text, *prompts_of(model, None, None, (None, None))[:1])
        said = ""

        def number(output: Any, examples: list[int]) -> Tensor:
            nonlocal said
            vector = embedder.vectors(output, read.features["input"])
            if vector.dim() != 2:
                raise InputError(
                    "This model gives a vector per token: use cm.similarity or cm.rank."
                )
            if term is not None:
                place = term if isinstance(term, int) else vocabulary_id(embedder.tokenizer, term)
                if place is None or not 0 <= place < vector.shape[-1]:
                    raise UnknownNameError(
                        f"class_index={term!r} is not a coordinate of this vector."
                    )
                said = f"term {term!r}"
                return vector[:, place]
            unit = (
                vector.detach() / vector.detach().norm()
                if direction is None
                else torch.as_tensor(direction)
            )
            said = (
                "length of the embedding"
                if direction is None
                else "projection of the embedding on a direction"
            )
            return (vector * unit.to(vector)).sum(dim=-1)

        drawn = draw_up(replace(embedder.brief(read, number), **options))
    return Ledger(
        drawn.value,
        drawn.scores,
        drawn.lines,
        drawn.mask,
        [read.tokens],
        said,
        drawn.rows,
        drawn.above,
        drawn.attended,
        drawn.edges,
        {**options, "origin": _origin(base_model(model))},
    )


def _origin(base: PreTrainedModel) -> dict[str, Any]:
    return {
        "model": base.config._name_or_path or type(base).__name__,
        "model_type": base.config.model_type,
    }


def _stack(model: Model, batch: TextBatch) -> tuple[LayerStack, HiddenLayout]:
    """The layers, as the first recorded call of this model found them."""
    owner, base = require_instrumentation(model), base_model(model)
    if owner.stack is None:
        found = call(model, batch, output_decomposition=True).decomposition
        record = _one_record(base, found)
        owner.stack = LayerStack.of(record)
    stack = owner.stack
    return stack, HiddenLayout(batch_sizes(base, (), batch.tensors)[0], 0, stack.order)


def _tokens(model: Model, batch: TextBatch, drawn: Drawn) -> list[Tokens]:
    """Names of the tokens: the text's own, or what the record of such a call would say."""
    count, size = drawn.scores.shape
    if batch.tokens is not None and len(batch.tokens) == count and len(batch.tokens[0]) == size:
        return batch.tokens
    ids = batch.tensors.get("input_ids")
    named = require_instrumentation(model).read_tokens
    fits = isinstance(ids, Tensor) and ids.shape == (count, size)
    return list(named(_Names(drawn.mask, ids if fits else None)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Names:
    """As much of a record as tokens are named from."""

    mask: Tensor
    input_ids: Tensor | None
    patches: Tensor | None = None


@dataclass
class _Reading:
    """What is read out of the model's output: decided while it runs, because only then the head is known."""

    base: PreTrainedModel
    batch: TextBatch
    mask: Tensor | None
    tokenizer: Tokenizer
    class_index: Any
    foil: Any
    position: Any
    readout: Any
    direction: Any
    pooling: str | None
    question: Question | None = None
    said: str = ""

    def __post_init__(self) -> None:
        if (
            self.readout is not None
            and not callable(self.readout)
            and self.readout not in ("start", "end", "embedding")
        ):
            raise OptionError(f"readout={self.readout!r:.60} is not known. Choose {READOUTS}.")
        if self.readout not in (None, "start", "end") and not (
            self.class_index is None and self.foil is None and self.position is None
        ):
            raise OptionError(
                "class_index, foil and position belong to a head's logits: leave them out where "
                "readout says what is explained."
            )
        if self.pooling is not None and self.pooling not in MODES:
            raise OptionError.among("pooling", self.pooling, MODES)
        if self.direction is not None and self.readout != "embedding":
            raise OptionError("direction belongs to readout='embedding'.")

    def __call__(self, output: Any, examples: list[int]) -> Tensor:
        if callable(self.readout):
            made = self.readout(output)
            self.said = self.said or getattr(self.readout, "__name__", "read-out").replace(
                "<lambda>", "read-out"
            )
            return (
                made.reshape(1)
                if isinstance(made, Tensor) and made.dim() == 0 and len(examples) == 1
                else made
            )
        if self.readout == "embedding":
            return self._embedding(output, examples)
        answers = getattr(output, "start_logits", None)
        if self.readout in ("start", "end") or (
            self.readout is None and isinstance(answers, Tensor)
        ):
            return self._span(output, examples)
        return self._logit(output, examples)

    # ---- a class or a word ------------------------------------------------------------------------------------
    def _logit(self, output: Any, examples: list[int]) -> Tensor:
        logits = getattr(output, "logits", None)
        if not isinstance(logits, Tensor):
            raise InputError(
                f"{type(self.base).__name__} has no head with classes: say what is to be "
                f"explained. There are: {READOUTS}."
            )
        if self.question is None:
            self._ask(output, logits.detach())
        assert self.question is not None
        return self.question.of_examples(output, examples)

    def _ask(self, output: Any, logits: Tensor) -> None:
        mask = self.mask
        if mask is None or (logits.dim() == 3 and mask.shape != logits.shape[:2]):
            mask = torch.ones(
                logits.shape[: max(1, logits.dim() - 1)] if logits.dim() == 3 else (len(logits), 1),
                dtype=torch.bool,
            )
        ids = self.batch.tensors.get("input_ids")
        seen: Any = _Names(mask, ids if isinstance(ids, Tensor) else None)
        logits = _logits(self.base, output, seen).detach()
        classes = self._classes(logits)
        link = link_of(self.base.config, tuple(logits.shape))
        wanted, foil = classes.ids(self.class_index, "class_index"), classes.ids(self.foil, "foil")
        if (
            self.position is None
            and logits.dim() == 3
            and head_of(type(self.base).__name__) == "CTC"
        ):
            place: Tensor | None = self._strongest_frame(logits, wanted)
        else:
            mask_id = getattr(self.tokenizer, "mask_token_id", None)
            place = _place(self.base, logits, seen, self.batch, self.position, mask_id)
        self.question = ask(logits, link, wanted, "logit", foil, place)
        if self.question.foil is not None and bool(
            (self.question.foil.cpu() == self.question.class_index.cpu()).any()
        ):
            raise InputError(
                "The foil is the class itself, so their difference is zero: choose another foil."
            )

    def _strongest_frame(self, logits: Tensor, wanted: Any) -> Tensor:
        """The frame where the class is strongest, or any class but the blank."""
        if wanted is not None:
            ids = torch.as_tensor(wanted).reshape(-1).expand(len(logits))
            return logits[torch.arange(len(logits)), :, ids].argmax(dim=-1)
        blank = getattr(self.base.config, "pad_token_id", 0) or 0
        others = logits.clone()
        others[..., blank] = -torch.inf
        return others.amax(dim=-1).argmax(dim=-1)

    def _classes(self, logits: Tensor) -> _Classes:
        return _Classes(self.base.config, logits.shape[-1], self.tokenizer)

    # ---- question answering -----------------------------------------------------------------------------------
    def _span(self, output: Any, examples: list[int]) -> Tensor:
        which = self.readout or "start"
        logits = getattr(output, f"{which}_logits", None)
        if not isinstance(logits, Tensor):
            raise InputError(
                f"{type(self.base).__name__} gives no {which} of an answer: readout={which!r} is "
                "for question answering."
            )
        if self.class_index is not None or self.foil is not None:
            raise OptionError(
                "Question answering scores places, not classes: choose the token with position=..."
            )
        rows = torch.arange(len(logits), device=logits.device)
        if self.position is None:
            place = logits.detach().argmax(dim=-1)
        else:
            real = (
                self.mask
                if self.mask is not None and self.mask.shape == logits.shape
                else torch.ones_like(logits, dtype=torch.bool)
            )
            place = real_positions(
                self.position, real[torch.tensor(examples)] if len(real) != len(logits) else real
            ).to(logits.device)
        self.said = f"{which} of the answer at token {', '.join(map(str, place.tolist()))} (logit)"
        return logits[rows, place]

    # ---- a pooled vector --------------------------------------------------------------------------------------
    def _embedding(self, output: Any, examples: list[int]) -> Tensor:
        hidden = next(
            (
                v
                for v in (
                    getattr(output, n, None)
                    for n in ("last_hidden_state", "encoder_last_hidden_state")
                )
                if isinstance(v, Tensor)
            ),
            None,
        )
        if hidden is None:
            raise InputError(
                f"{type(self.base).__name__} returns no last hidden state to pool: "
                "load it with AutoModel, or pass readout=lambda outputs: ..."
            )
        found = read_pooling(self.base.config._name_or_path)
        mode = self.pooling or (found.mode if found is not None and found.mode in MODES else "mean")
        mask = (
            self.mask
            if self.mask is not None and self.mask.shape[1] == hidden.shape[1]
            else torch.ones(hidden.shape[:2], dtype=torch.bool)
        )
        pooled = pooled_vector(
            hidden, mask[torch.tensor(examples)] if len(mask) != len(hidden) else mask, mode
        )
        if self.direction is None:
            unit = pooled.detach()
            unit = unit / unit.norm(dim=-1, keepdim=True)
            self.said = f"length of the embedding ({mode} pooling)"
        else:
            unit = torch.as_tensor(self.direction, dtype=pooled.dtype, device=pooled.device)
            if unit.shape[-1:] != pooled.shape[-1:] or unit.dim() > 2:
                raise InputTypeError(
                    f"direction has shape {tuple(unit.shape)}, expected ({pooled.shape[-1]},) or "
                    "one such row per example."
                )
            unit = unit if unit.dim() == 1 else unit[torch.tensor(examples)]
            self.said = f"projection of the embedding on a direction ({mode} pooling)"
        return (pooled * unit).sum(dim=-1)

    # ---- in words ---------------------------------------------------------------------------------------------
    def named(self, tokens: list[Tokens]) -> str:
        if self.question is None:
            return self.said
        count = self.question.class_index
        classes = _Classes(self.base.config, self._count or int(count.max()) + 1, self.tokenizer)
        return _target_name(self.question, classes, tokens)

    @property
    def _count(self) -> int:
        labels, vocabulary = (
            getattr(self.base.config, "num_labels", 0),
            getattr(self.base.config, "vocab_size", 0),
        )
        return int(
            vocabulary
            if head_of(type(self.base).__name__)
            in ("MaskedLM", "CausalLM", "Seq2SeqLM", "SpeechSeq2Seq", "CTC")
            else labels
        )

    @property
    def meta(self) -> dict[str, Any]:
        q = self.question
        if q is None:
            return {"readout": self.said}
        return {
            "class_index": q.class_index.tolist(),
            "foil": None if q.foil is None else q.foil.tolist(),
            "of": "logit",
            "link": q.link,
            "position": None if q.position is None else q.position.tolist(),
        }
