"""What the page and its API do: each function is a short call into the library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import ctxmix_hf as cm
from ctxmix_hf.demo import documents, examples, options, pairs
from ctxmix_hf.demo.limits import check_cost, check_text, count_tokens, estimate, info_of
from ctxmix_hf.demo.pairs import check_pair
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.demo.shelf import SHELF, TEXT_MODELS, Held
from ctxmix_hf.errors import InputError, UnsupportedMethodError
from ctxmix_hf.heads import link_of
from ctxmix_hf.text.batch import encode_one
from ctxmix_hf.viz.names import GROUPS, RECOMMENDED, group_of, listed_name, people_name

SCORES = ("blank_out", "grad_x_input", "integrated_gradients")


def map_methods() -> list[str]:
    return [row.name for row in cm.list_methods() if row.kind != "attribution"]


def method_choices(flow: bool = True) -> list[tuple[str, str]]:
    """(label, name) as lists show them, in groups: what is recommended first."""
    flows = [f"{row.name}+flow" for row in cm.list_methods("layer")] if flow else []
    place = {name: k for k, name in enumerate(RECOMMENDED)}
    names = sorted(
        [*map_methods(), *flows],
        key=lambda name: (GROUPS.index(group_of(name)), place.get(name, 99)),
    )
    return [(listed_name(name), name) for name in names]


def map_of(
    model: str, method: str, text: str, pair: str = "", settings: str = "", part: str = ""
) -> Any:
    """The `ContextMixingMap` of a sentence or a pair: from the examples where it is one of them, else
    computed. `settings` are the method's options (`distance=euclidean,per_head=1`). A text too long to
    show by words is shown by its paragraphs (or sentences); `part` is the one of them, from 1, whose
    words are shown in its place.
    """
    text, pair = check_text(text, SETTINGS.document_characters), check_pair(pair)
    asked = options.chosen(method, settings)
    found = examples.find(model, method, text, pair)
    if found is not None and asked is method:
        return found
    held = SHELF.get(model)
    long = not pair and documents.is_long(held, text)
    check_cost(held, method, text, pair, SETTINGS.document_tokens if long else SETTINGS.tokens)
    units: dict[str, Any] = {"segments": documents.segments(held, text, part)} if long else {}
    with held.lock:
        made = cm.explain(
            held.model,
            pairs.both(text, pair),
            asked,
            tokenizer=held.tokenizer,
            max_memory=SETTINGS.memory,
            **units,
        )[0]
    return pairs.named(made, held.tokenizer, text, pair)


def view_of(
    model: str, method: str, text: str, pair: str = "", settings: str = "", part: str = ""
) -> dict[str, Any]:
    """The same for the widget, with what a link needs to reopen it."""
    made = map_of(model, method, text, pair, settings, part)
    query = {"model": model, "method": method, "text": text.strip(), "pair": check_pair(pair)}
    query |= {"options": settings.strip(), "part": part.strip()}
    return {
        **made.to_view(title=titled(model, method, settings)),
        "second": pairs.second_starts(made),
        "query": query,
        **documents.said(made, part),
    }


def titled(model: str, method: str, settings: str = "") -> str:
    """`Value Zeroing (distance=euclidean) · agreement`."""
    said = f" ({settings.strip().replace(',', ', ')})" if settings.strip() else ""
    return f"{people_name(method)}{said} · {model.rstrip('/').rsplit('/', 1)[-1]}"


def answer(
    model: str, method: str, text: str, pair: str = "", settings: str = "", part: str = ""
) -> dict[str, Any]:
    """Everything the map tab shows of one request, computed together so that it belongs together."""
    view = view_of(model, method, text, pair, settings, part)
    try:
        predicted = predictions(model, text, pair)
    except cm.CtxmixError:
        predicted = {"kind": "none", "rows": []}
    return {"view": view, "prediction": predicted, "slow": slow_note(model, method, text, pair)}


def why(
    model: str, text: str, pair: str = "", word: str = "", foil: str = "", rule: str = ""
) -> tuple[str, dict[str, Any]]:
    """The ledger of a prediction as HTML, and gradients and blank-out of the same output beside it."""
    made = ledger(model, text, pair, word, foil, rule)
    others = {name: scores(model, text, name, pair, word, foil) for name in SCORES}
    return made._repr_html_(), others


def ledger(
    model: str, text: str, pair: str = "", word: str = "", foil: str = "", rule: str = ""
) -> Any:
    """Signed contributions of the tokens and biases that sum to the model's own number."""
    text, pair = check_text(text), check_pair(pair)
    held = SHELF.get(model)
    check_cost(held, "value_zeroing", text, pair)
    if held.kind == "plain":
        raise UnsupportedMethodError(f"{model} predicts nothing: it has no head.")
    if held.kind == "masked" and held.tokenizer.mask_token not in f"{text} {pair}":
        raise InputError(
            f"{model} fills gaps: put {held.tokenizer.mask_token} where a word is missing, "
            "and this tab shows why it predicts what it predicts there."
        )
    with held.lock:
        return cm.ledger(
            held.model,
            pairs.both(text, pair),
            word.strip() or None,
            foil=foil.strip() or None,
            rule=rule or options.RULES[0],
            tokenizer=held.tokenizer,
        )


def slow_note(model: str, method: str, text: str, pair: str = "") -> str:
    """Said at once, without loading anything: why this pair is slow for this input, or nothing."""
    if model not in SHELF.names():
        return (
            ""
            if model in TEXT_MODELS or not model
            else f"{model} is not loaded yet: its first map takes longer."
        )
    held = SHELF.get(model)
    if (
        held.tokenizer is None
        or not text.strip()
        or max(len(text), len(pair)) > SETTINGS.document_characters
    ):
        return ""
    tokens = count_tokens(held, text, check_pair(pair))
    seconds, why = estimate(held, method, tokens), f"{tokens} tokens, cost: {info_of(method).cost}"
    if seconds > SETTINGS.seconds:
        return f"Too slow for this text: about {seconds:,.0f} s ({why}); this page stops at {SETTINGS.seconds} s."
    return f"Slow for this text: about {seconds:.0f} s ({why})." if seconds > 2 else ""


def predictions(model: str, text: str, pair: str = "", top: int = 6) -> dict[str, Any]:
    """A masked LM's words at each [MASK], or a classifier's classes, with probabilities."""
    text, pair = check_text(text, SETTINGS.document_characters), check_pair(pair)
    found = examples.find_prediction(model, text, pair)
    if found is not None:
        return found
    held = SHELF.get(model)
    check_cost(held, "attention", text, pair, SETTINGS.document_tokens)
    if held.kind == "plain":
        return {"kind": "none", "rows": []}
    with held.lock, torch.no_grad():
        encoding = encode_one(held.tokenizer, text, pair or None, return_tensors="pt")
        logits = held.model(**encoding.to(held.model.device)).logits[0]
    return _words(held, encoding, logits, top) if held.kind == "masked" else _classes(held, logits)


def _words(held: Held, encoding: Any, logits: Any, top: int) -> dict[str, Any]:
    places = (encoding["input_ids"][0] == held.tokenizer.mask_token_id).nonzero().flatten().tolist()
    rows = []
    for place in places:
        values, ids = logits[place].softmax(dim=-1).topk(top)
        rows.append(
            [
                [held.tokenizer.convert_ids_to_tokens(int(i)), float(v)]
                for i, v in zip(ids, values, strict=True)
            ]
        )
    return {"kind": "masked", "mask_token": held.tokenizer.mask_token, "rows": rows}


def _classes(held: Held, logits: Any) -> dict[str, Any]:
    """What the head means by its logits: shares of 1, a probability per label, or plain numbers."""
    names: dict[Any, str] = held.model.config.id2label or {}
    link = link_of(held.model.config, (1, len(logits)))
    values = (
        logits.softmax(dim=-1)
        if link == "softmax"
        else logits.sigmoid()
        if link == "sigmoid"
        else logits
    ).tolist()
    rows = [[[str(names.get(i, i)), value] for i, value in enumerate(values)]]
    return {"kind": "numbers" if link == "identity" else "classes", "rows": rows}


def scores(
    model: str,
    text: str,
    method: str = "blank_out",
    pair: str = "",
    word: str = "",
    foil: str = "",
) -> Any:
    """An `Attribution` of the prediction (or of a word or class, or of one against another): how much
    each token mattered for it.
    """
    text, pair = check_text(text), check_pair(pair)
    if method not in [row.name for row in cm.list_methods("attribution")]:
        raise InputError(
            f"{method!r} is not an attribution. Choose one of "
            f"{', '.join(row.name for row in cm.list_methods('attribution'))}."
        )
    held = SHELF.get(model)
    check_cost(held, "value_zeroing", text, pair)
    if held.kind == "plain":
        raise UnsupportedMethodError(f"{model} predicts nothing: it has no head.")
    with held.lock:
        made = cm.attribute(
            held.model,
            pairs.both(text, pair),
            method,
            word.strip() or None,
            foil=foil.strip() or None,
            tokenizer=held.tokenizer,
            max_memory=SETTINGS.memory,
        )
    return replace(
        made, target=f"“{made.target}”", tokens=map_of(model, "attention", text, pair).tokens
    )  # words as they were typed


def compare(
    model: str,
    method: str,
    text: str,
    other_model: str,
    other_method: str,
    other_text: str,
    pair: str = "",
    options: str = "",
    other_options: str = "",
) -> tuple[Any, Any, Any]:
    """Two maps and their difference, word by word; rows become shares where the units differ. A
    second sentence is on both sides; each side has its method's options.
    """
    first, second = (
        map_of(model, method, text, pair, options).words(),
        map_of(other_model, other_method, other_text, pair, other_options).words(),
    )
    if first.depth != second.depth:
        first, second = first.layer(-1), second.layer(-1)
    units = (model, method, options.strip()) != (other_model, other_method, other_options.strip())
    return first, second, second.difference(first, row_shares=units)


Side = tuple[str, str, str, str]  # model, method, text, options of the method


def compared(first: Side, second: Side, query: dict[str, str]) -> tuple[Any, Any, Any]:
    """The same for three widgets: first, second, and second minus first."""
    one, other, gap = compare(*first[:3], *second[:3], query["pair"], first[3], second[3])
    names = ("model", "method", "text", "options")
    sides = [
        {
            **made.to_view(title=f"{n}: {titled(side[0], side[1], side[3])}"),
            "query": query,
            "shows": dict(zip(names, side, strict=True)),
        }
        for made, n, side in ((one, "first", first), (other, "second", second))
    ]
    both = {
        name: a if a == b else f"{b} − {a}" for name, a, b in zip(names, first, second, strict=True)
    }
    return (
        sides[0],
        sides[1],
        {
            **gap.to_view(),
            "title": "second − first",
            "pairs": gap.pairs,
            "query": query,
            "shows": both,
        },
    )


def quick_methods(model: str, text: str, pair: str = "") -> tuple[list[str], list[str]]:
    """The methods that are quick enough for a table of all of them, and those that are not."""
    text, pair = check_text(text), check_pair(pair)
    held = SHELF.get(model)
    check_cost(held, "attention", text, pair)
    tokens = count_tokens(held, text, pair)
    quick = [name for name in map_methods() if estimate(held, name, tokens) < 2]
    return quick, [name for name in map_methods() if name not in quick]


def target_row(model: str, text: str, methods: list[str], target: int = 0, pair: str = "") -> Any:
    """The row of a target under some methods, from the input to the last layer, by name."""
    text, pair = check_text(text), check_pair(pair)
    held = SHELF.get(model)
    place = check_target(int(target), count_tokens(held, text, pair))
    with held.lock:
        maps = cm.explain(
            held.model,
            pairs.both(text, pair),
            methods,
            tokenizer=held.tokenizer,
            max_memory=SETTINGS.memory,
        )
    return {name: made[0].attribution(place) for name, made in maps.items()}


def correlations(rows: dict[str, Any], target: int, left_out: list[str]) -> dict[str, Any]:
    """Spearman's correlation of every pair of methods on the row of a target."""
    table = [[a.rank_correlation(b) for b in rows.values()] for a in rows.values()]
    named = next(iter(rows.values())).tokens[0].shown()[target]
    return {"target": named, "methods": list(rows), "correlation": table, "left_out": left_out}


def agreement(model: str, text: str, target: int = 0, pair: str = "") -> dict[str, Any]:
    """How far the methods agree on the row of a target."""
    quick, left_out = quick_methods(model, text, pair)
    rows = target_row(model, text, quick, target, pair)
    return correlations(rows, int(target), left_out)


def warm() -> None:
    """Load the first model before anybody asks."""
    held = SHELF.get(next(iter(TEXT_MODELS)))
    with held.lock:
        cm.explain(
            held.model, "Warm up.", ["value_zeroing", cm.DEFAULT_METHOD], tokenizer=held.tokenizer
        )


def check_target(target: int, count: int) -> int:
    if not -count <= target < count:
        raise InputError(
            f"There is no target {target}: the text has {count} tokens, counted from 0."
        )
    return target


def similarity(model: str, text_a: str, text_b: str, method: str = "") -> Any:
    """The model's own similarity of two texts, shared out over pairs of their words; with a method,
    over each text's words by that map.
    """
    first, second = check_text(text_a), check_text(text_b)
    held = SHELF.get(model)
    for text in (first, second):
        check_cost(held, method or "value_zeroing", text)
    with held.lock:
        return cm.similarity(held.model, first, second, method or None, tokenizer=held.tokenizer)


MOST_DOCUMENTS = 20


def rank(model: str, query: str, documents: list[str]) -> Any:
    """Documents in the order of their similarity to the query, each with its account."""
    texts = [check_text(text) for text in documents if text.strip()]
    if not 2 <= len(texts) <= MOST_DOCUMENTS:
        raise InputError(
            f"Give two to {MOST_DOCUMENTS} texts to rank, one per line; there are {len(texts)}."
        )
    held = SHELF.get(model)
    for text in (check_text(query), *texts):
        check_cost(held, "value_zeroing", text)
    with held.lock:
        return cm.rank(held.model, check_text(query), texts, tokenizer=held.tokenizer)


def similar(model: str, text_a: str, text_b: str) -> str:
    """The pairs as HTML, drawn in the worker: the result holds what it was computed from."""
    return str(similarity(model, text_a, text_b)._repr_html_())


def ranked(model: str, query: str, documents: str) -> str:
    return str(rank(model, query, documents.splitlines())._repr_html_())
