"""`similarity` and `rank`: which word of this text matched which word of that one, and what put a document first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ctxmix_hf.accounting import ledger
from ctxmix_hf.calling import call, read_batch
from ctxmix_hf.embedders import (
    Embedder,
    Text,
    has_towers,
    instrumented,
    kind_of,
    pooling_of,
    prompts_of,
)
from ctxmix_hf.errors import (
    InputError,
    InputTypeError,
    OptionError,
    UnsupportedMethodError,
    UnsupportedModelError,
)
from ctxmix_hf.instrumentation.account import BALANCES, Brief, VectorAccount, drawn_dtype
from ctxmix_hf.instrumentation.awake import keeps_modes
from ctxmix_hf.instrumentation.layout import HiddenLayout
from ctxmix_hf.instrumentation.session import LayerStack, instrumentation_of
from ctxmix_hf.pooling import pool
from ctxmix_hf.results.attributions import Attribution
from ctxmix_hf.results.maps import ContextMixingMap
from ctxmix_hf.results.matches import (
    BIAS_COLUMN,
    BIAS_ROW,
    BIASES,
    OWN_A,
    OWN_B,
    Pairs,
    Ranking,
    Similarity,
)
from ctxmix_hf.text.batch import encode, read_images
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.text.targets import class_token
from ctxmix_hf.text.tokens import read_encoding
from ctxmix_hf.unwrapping import base_model


# ---- one pair of texts
# ------------------------------------------------------------------------------------------------
@keeps_modes
def similarity(
    model: Model,
    text_a: str,
    text_b: Any,
    method: Any = None,
    *,
    pooling: str | None = None,
    tokenizer: Tokenizer | None = None,
    processor: Any = None,
    prompt: Any = None,
    prompt_name: Any = None,
    truncate_dim: int | None = None,
    normalize: bool = False,
    top_k: int | None = None,
) -> Similarity:
    """Which words made this similarity? A token x token account that sums to the model's own number.

    With attention, deviations and activation ratios frozen, the vector of a text is a sum of
    vectors of its tokens and of its biases, `p = sum_j P_j + P_bias`, so a cosine is a sum over
    pairs, `<P_j, Q_k> / (|p| |q|)`. Each side's totals cost one forward and one backward pass, the
    pairs about half a forward pass per token.

    Args:
        model: A `SentenceTransformer`, `SparseEncoder` or `MultiVectorEncoder`, or a transformers
            encoder with a `pooling`. One that is not instrumented is instrumented for the call and
            left as it was.
        text_a: The first text.
        text_b: The second text; an image, for a model with a tower for texts and one for images (CLIP, SigLIP).
        method: A context-mixing method (`"alti"`, ...) for shares traced by its map instead of the exact account.
        pooling: `"mean"`, `"cls"`, `"last"` or `"max"`, for a transformers encoder. None: what its
            files say, else the mean, and the result says that this was assumed.
        tokenizer: Where none lies beside the model.
        processor: The image processor of a model with two towers, where none lies beside it.
        prompt: Put before the texts; one for both, or a pair. Prompts of sentence-transformers' models only.
        prompt_name: The same by name: `("query", "document")`.
        truncate_dim: The first coordinates only (Matryoshka models). None: as the model is set.
        normalize: Divide vectors by their length before they are compared.
        top_k: Pairs for the k strongest tokens of the first text only, k backward passes more instead of one per token.

    Returns:
        A `Similarity`.

    Raises:
        InputTypeError: A cross-encoder, which has no two vectors: use `ledger` or `rank`.
        UnsupportedMethodError: A similarity that is no sum over pairs (Manhattan distance).

    Example:
        >>> s = cm.similarity(st, "How do I reset my password?", "Forgotten credentials can be changed.")
        >>> s.cosine, s.top(3)
    """
    if method is not None:
        if kind_of(model) is not None:
            raise OptionError(
                "method=... is for transformers encoders: pass the SentenceTransformer without it."
            )
        with instrumented(model, tokenizer) as holder:
            return _by_map(holder, text_a, text_b, method, pooling, tokenizer)
    _check_count("top_k", top_k)
    _check_count("truncate_dim", truncate_dim)
    if has_towers(model):
        return _text_and_image(model, text_a, text_b, tokenizer, processor, top_k)
    for text in (text_a, text_b):
        if not isinstance(text, str):
            raise InputTypeError(
                f"similarity compares two texts, and this {type(base_model(model)).__name__} has "
                "no tower for images: got "
                f"{type(text).__name__}."
            )
    embedder = Embedder.of(model, pooling, tokenizer, truncate_dim, normalize)
    roles = (None, None)
    if embedder.kind == "multi":
        roles = ("query", "document")  # type: ignore[assignment]
    both = prompts_of(model, prompt_name, prompt, roles)
    with instrumented(model, embedder.tokenizer):
        texts = [
            embedder.read(text, p, role)
            for text, p, role in zip((text_a, text_b), both, roles, strict=True)
        ]
        return _accounted(embedder, texts[0], texts[1], top_k)


def _check_count(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}.")


def _text_and_image(
    model: Model,
    text: Any,
    image: Any,
    tokenizer: Tokenizer | None,
    processor: Any,
    top_k: int | None,
) -> Similarity:
    """Words x patches of a model with two towers: each tower's vector is shared out over its own tokens."""
    if not isinstance(text, str) or (isinstance(image, str) and not Path(image).is_file()):
        raise InputTypeError(
            f"{type(base_model(model)).__name__} compares a text with an image: pass the text "
            "first, then an image, its "
            "path or its pixel values."
        )
    if not text.strip():
        raise InputError("The text is empty: there is no word to explain.")
    with instrumented(model, tokenizer) as holder:
        owner, base = instrumentation_of(holder), base_model(holder)
        assert owner is not None
        tokenizer = tokenizer or owner.load_tokenizer()
        if tokenizer is None:
            raise InputError("No tokenizer is known for this model: pass tokenizer=...")
        encoding = encode(tokenizer, [text], return_tensors="pt")
        inputs = {**encoding, **read_images(base, image, processor)}
        inputs = {
            key: value.to(base.device, base.dtype)
            if value.is_floating_point()
            else value.to(base.device)
            for key, value in inputs.items()
        }
        with torch.no_grad():
            records = holder(**inputs, output_decomposition=True).decomposition
        reads = {record.input_ids is not None: record for record in records.values()}
        if set(reads) != {True, False} or len(records) != 2:
            raise UnsupportedModelError(
                "This model's towers are not one for texts and one for images."
            )
        accounts = []
        for record, name in ((reads[True], "text_embeds"), (reads[False], "image_embeds")):
            stack = LayerStack.of(record)
            layout = HiddenLayout(1, record.mask.shape[1], stack.order)
            brief = Brief(
                holder,
                (),
                inputs,
                owner,
                stack.names,
                layout,
                lambda output, examples, name=name: getattr(output, name),  # type: ignore[misc]
                (0,),
                entering=stack.entering,
            )
            accounts.append(VectorAccount(brief))
        words = read_encoding(encoding, tokenizer, [text])[0]
        sides = (Text(inputs, words, text), Text(inputs, reads[False].tokens[0], "the image"))
    return _balanced(
        accounts,
        sides,
        "cosine",
        "its own towers",
        False,
        drawn_dtype(base),
        top_k,
        base.config.model_type,
    )


def _accounted(embedder: Embedder, a: Text, b: Text, top_k: int | None) -> Similarity:
    if embedder.kind == "multi":
        readouts = _matched(embedder, a, b)
    else:
        readouts = tuple(_whole(embedder, text) for text in (a, b))
    accounts = [
        VectorAccount(embedder.brief(text, readout))
        for text, readout in zip((a, b), readouts, strict=True)
    ]
    how = embedder.pooling if embedder.kind != "plain" else f"{embedder.pooling} pooling"
    score = "maxsim" if embedder.kind == "multi" else embedder.score
    dtype, family = drawn_dtype(embedder.encoder), base_model(embedder.encoder).config.model_type
    made = _balanced(accounts, (a, b), score, how, embedder.assumed, dtype, top_k, family)
    return replace(made, pooling=embedder.pooling)


def _balanced(
    accounts: Sequence[VectorAccount],
    texts: tuple[Text, Text],
    score: str,
    how: str,
    assumed: bool,
    dtype: torch.dtype,
    top_k: int | None,
    family: str,
) -> Similarity:
    """The account of two vectors, once it is proved that both sides add up."""
    first, second = accounts
    a, b = texts
    p, q = first.whole, second.whole
    value, towards_q, towards_p, scale, own = _score(score, p, q)
    sides = [first.against(towards_q), second.against(towards_p)]
    expected = [float(p @ towards_q), float(q @ towards_p)]
    gap = max(_gap(*side, wanted) for side, wanted in zip(sides, expected, strict=True))
    if not gap <= BALANCES.get(dtype, BALANCES[torch.float32])[0]:
        raise UnsupportedModelError(
            f"{family}: the account of this similarity does not balance (off by {gap:.1e})."
        )
    held: dict[str, Any] = {"accounts": (first, second)}

    def pairs() -> Pairs:
        return _pairs(held.pop("accounts"), sides, scale, own, top_k)

    said = [
        f"{score} with {_short(other.said)!r} ({how}{', assumed' * assumed})" for other in (b, a)
    ]
    side_a, side_b = (
        _side(*part) for part in zip((a, b), (side[0] for side in sides), said, strict=True)
    )
    biases = [float(sum(side[1].values(), torch.zeros(()))) for side in sides]
    meta = {"a": a.said, "b": b.said, "biases": biases}
    return Similarity(float(value), side_a, side_b, how, assumed, score, gap, pairs, meta)


def _whole(embedder: Embedder, text: Text) -> Callable[[Any, list[int]], Tensor]:
    features = text.features.get("input", text.features)
    return lambda output, examples: embedder.vectors(output, features)


def _score(score: str, p: Tensor, q: Tensor) -> tuple[Any, Tensor, Tensor, Any, dict[str, Tensor]]:
    """(similarity, direction that side a is projected on, side b's, factor of <P_j, Q_k>, what is no pair)."""
    if score == "euclidean":
        distance = (p - q).norm()
        if not float(distance) > 0:
            raise UnsupportedMethodError(
                "Both texts have the same vector: a distance of zero has no parts."
            )
        away = (p - q) / distance
        own = {OWN_A: -(p @ p) / distance, OWN_B: -(q @ q) / distance}
        return -distance, -away, away, 2 / distance, own
    if score == "cosine" and not (float(p.norm()) > 0 and float(q.norm()) > 0):
        raise InputError("The vector of a text is zero: it has no direction, and so no cosine.")
    scale = 1.0 if score in ("dot", "maxsim") else 1 / (p.norm() * q.norm())
    return (p @ q) * scale, q * scale, p * scale, scale, {}


def _gap(scores: Tensor, lines: dict[str, Tensor], wanted: float) -> float:
    bias = sum(lines.values(), torch.zeros_like(scores[0]))
    size = max(abs(wanted), float(scores.abs().sum() + sum(abs(v) for v in lines.values())))
    return abs(float(scores.sum() + bias) - wanted) / size if size else 0.0


def _pairs(
    accounts: Any, sides: Any, scale: Any, own: dict[str, Tensor], top_k: int | None
) -> Pairs:
    """All pairs from both texts' vectors; with `top_k` the rows of the strongest tokens of the
    first text, one backward pass each.
    """
    first, second = accounts
    (scores_a, _), (scores_b, _) = sides
    p, q = first.whole, second.whole
    count = len(scores_a)
    if top_k is None:
        parts_a = first.parts(torch.arange(count))
        parts_b = second.parts(torch.arange(len(scores_b)))
        bias_a, bias_b = p - parts_a.sum(0), q - parts_b.sum(0)
        lines = {
            BIAS_ROW: scale * (parts_b @ bias_a),
            BIAS_COLUMN: scale * (parts_a @ bias_b),
            BIASES: scale * (bias_a @ bias_b),
            **own,
        }
        return Pairs(scale * (parts_a @ parts_b.mT), lines)
    chosen = scores_a.abs().argsort(descending=True)[:top_k].sort().values
    matrix = scores_a.new_zeros(count, len(scores_b))
    for place, part in zip(chosen.tolist(), first.parts(chosen), strict=True):
        matrix[place] = scale * second.against(part)[0]
    rest = p @ q * scale - matrix.sum()
    return Pairs(matrix, {"tokens and biases beyond top_k": rest, **own}, tuple(chosen.tolist()))


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _side(text: Text, scores: Tensor, said: str) -> Attribution:
    mask = torch.ones(1, len(scores), dtype=torch.bool)
    return Attribution(scores[None].cpu(), [text.tokens], mask, "similarity", said)


def _matched(embedder: Embedder, a: Text, b: Text) -> Any:
    """Late interaction: each query vector beside the document vector it matches best, that choice frozen."""
    found = []
    with torch.no_grad():
        for text in (a, b):
            out = embedder.holder(**text.features)
            mask = out["attention_mask"][0].bool()  # by now the mask of the vectors that count
            found.append(
                (embedder.vectors(out, text.features["input"])[0], mask.nonzero().squeeze(-1))
            )
    (q, of_query), (d, of_document) = found
    best = of_document[(q[of_query] @ d[of_document].mT).argmax(dim=1)]
    picks = (of_query, best)

    def readout(places: Tensor, text: Text) -> Callable[[Any, list[int]], Tensor]:
        return lambda output, examples: embedder.vectors(output, text.features["input"])[
            :, places
        ].flatten(1)

    return tuple(readout(places, text) for places, text in zip(picks, (a, b), strict=True))


# ---- shares by a map
# --------------------------------------------------------------------------------------------------
def _by_map(
    model: Model,
    text_a: str,
    text_b: str,
    method: Any,
    pooling: str | None,
    tokenizer: Tokenizer | None,
) -> Similarity:
    """Each token's share of the cosine, traced to its sources by the method's input map."""
    mode, known = pooling_of(base_model(model), pooling)
    assumed = pooling is None and known is None
    said = f"{mode} pooling" + ", assumed" * assumed
    sides = []
    for text in (text_a, text_b):
        if not isinstance(text, str):
            raise InputTypeError("similarity compares two texts.")
        batch = read_batch(
            model, text.lower() if known is not None and known.lower else text, tokenizer
        )
        with _last_hidden(model) as seen:
            out = call(model, batch, output_context_mixing=[method])
        made = next(iter(out.context_mixing.values()))
        if known is not None and known.limit is not None and made.size > known.limit:
            raise InputError(
                f"The text has {made.size} tokens, and this model reads the first {known.limit}: shorten the text."
            )
        hidden = seen[0][0].to(made.input)[made.mask[0]]
        causal = bool(made.meta.get("causal"))
        first = class_token(made[0].tokens[0], causal) if mode == "cls" and known is None else 0
        sides.append((*pool(hidden, mode, first), made))
    (pa, parts_a, ma), (pb, parts_b, mb) = sides
    cosine = torch.nn.functional.cosine_similarity(pa, pb, dim=0)
    scale = 1.0 / (pa.norm() * pb.norm())
    a = _traced(ma, parts_a @ pb * scale, text_b, said)
    b = _traced(mb, parts_b @ pa * scale, text_a, said)
    return Similarity(float(cosine), a, b, mode, assumed, "shares")


@contextmanager
def _last_hidden(model: Model) -> Iterator[list[Tensor]]:
    """The final hidden states of the bare model inside, its last norm included, whatever head is on top of it.

    The first are those of the call; a recorded call may run the model again to prove something.
    """
    seen: list[Tensor] = []

    def see(module: Any, args: Any, output: Any) -> None:
        encoder = getattr(output, "encoder_last_hidden_state", None)
        found = (
            encoder if isinstance(encoder, Tensor) else getattr(output, "last_hidden_state", None)
        )
        seen.append(found if isinstance(found, Tensor) else output[0])

    hook = base_model(model).base_model.register_forward_hook(see)
    try:
        yield seen
    finally:
        hook.remove()


def _traced(made: ContextMixingMap, shares: Tensor, other: str, said: str) -> Attribution:
    scores = shares.to(made.input.dtype) @ made.input[0, -1]
    meta = {**made.meta, "layer": made.layer_numbers[-1], "scope": "input"}
    target = f"cosine with {other!r} ({said})"
    return Attribution(scores[None], made.tokens, made.mask, made.method, target, meta)


# ---- many documents
# ---------------------------------------------------------------------------------------------------
@keeps_modes
def rank(
    model: Model,
    query: str,
    documents: Sequence[str],
    *,
    pooling: str | None = None,
    tokenizer: Tokenizer | None = None,
    top_k: int | None = None,
) -> Ranking:
    """Why did this document rank first? Documents scored by the model itself, each with its account.

    Args:
        model: A `SentenceTransformer` (its query and document prompts are used), `SparseEncoder`, `MultiVectorEncoder`,
            `CrossEncoder`, or a transformers encoder with a `pooling`.
        query: What was searched for.
        documents: The texts that were found.
        pooling: For a transformers encoder, as in `similarity`.
        tokenizer: Where none lies beside the model.
        top_k: As in `similarity`.

    Returns:
        A `Ranking`: `r.scores`, `r.order`, `r[i]` (a `Similarity`, or a `Ledger` for a
        cross-encoder), `r.compare(i, j)`.

    Raises:
        InputError: No documents, or an empty one.

    Example:
        >>> r = cm.rank(st, "reset password", ["Change credentials in settings.", "Opening hours"])
        >>> r.order, r[r.order[0]].top(3), r.compare(0, 1).top(3)
    """
    if isinstance(documents, str | bytes | Mapping) or not isinstance(documents, Iterable):
        raise InputTypeError(f"documents is a list of texts, got {type(documents).__name__}.")
    documents = tuple(documents)
    if not documents:
        raise InputError("documents is empty: there is nothing to rank.")
    if not isinstance(query, str):
        raise InputTypeError(f"The query is a text, got {type(query).__name__}.")
    if not query.strip():
        raise InputError("The query is empty.")
    for place, text in enumerate(documents):
        if not isinstance(text, str):
            raise InputTypeError(
                f"documents is a list of texts, and number {place} is of type {type(text).__name__}."
            )
        if not text.strip():
            raise InputError(f"Document {place} is empty.")
    _check_count("top_k", top_k)
    if kind_of(model) == "cross":
        reads_both: Any = model  # sentence-transformers' own
        scores = reads_both.predict(
            [(query, d) for d in documents],
            convert_to_tensor=True,
            activation_fn=torch.nn.Identity(),
            show_progress_bar=False,
        )
        return Ranking(
            query,
            documents,
            _finite(scores.float().cpu().reshape(-1)),
            lambda i: ledger(model, (query, documents[i])),
        )
    embedder = Embedder.of(model, pooling, tokenizer)
    roles = ("query", "document") if kind_of(model) is not None else (None, None)
    prompts = prompts_of(model, None, None, roles)

    with instrumented(model, embedder.tokenizer):
        asked = embedder.read(query, prompts[0], roles[0])
        found = [embedder.read(text, prompts[1], roles[1]) for text in documents]
        scores = _own_scores(model, embedder, asked, found)

    def account(i: int) -> Similarity:
        with instrumented(model, embedder.tokenizer):
            return _accounted(embedder, asked, found[i], top_k)

    return Ranking(query, documents, _finite(scores), account)


def _own_scores(model: Any, embedder: Embedder, query: Text, documents: Sequence[Text]) -> Tensor:
    if embedder.kind != "plain":
        stacked = {} if embedder.kind == "multi" else {"convert_to_tensor": True}
        asked = model.encode_query([query.said], show_progress_bar=False, **stacked)
        texts = [text.said for text in documents]
        found = model.encode_document(texts, show_progress_bar=False, **stacked)
        return model.similarity(asked, found).float().cpu().reshape(-1)  # type: ignore[no-any-return]
    with torch.no_grad():
        vectors = [
            embedder.vectors(embedder.holder(**text.features), text.features)[0]
            for text in (query, *documents)
        ]
    return (
        torch.nn.functional.cosine_similarity(vectors[0][None], torch.stack(vectors[1:]))
        .float()
        .cpu()
    )


def _finite(scores: Tensor) -> Tensor:
    if not bool(scores.isfinite().all()):
        raise InputError(
            "The model gave scores that are NaN or infinite: its weights are not finite."
        )
    return scores
