"""What the page and its API do: each function is a short call into the library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import ctxmix_hf as cm
from ctxmix_hf.demo import examples, pairs
from ctxmix_hf.demo.limits import check_cost, check_text, count_tokens, estimate, info_of
from ctxmix_hf.demo.pairs import check_pair
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.demo.shelf import BOX, SHELF, Held
from ctxmix_hf.errors import InputError, UnsupportedMethodError

SCORES = ("blank_out", "grad_x_input", "integrated_gradients")


def map_methods() -> list[str]:
    return [row.name for row in cm.list_methods() if row.kind != "attribution"]


def map_of(model: str, method: str, text: str, pair: str = "") -> Any:
    """The `ContextMixingMap` of a sentence or a pair: from the examples where it is one of them, else computed."""
    text, pair = check_text(text), check_pair(pair)
    info_of(method)
    found = examples.find(model, method, text, pair)
    if found is not None:
        return found
    held = SHELF.get(model)
    check_cost(held, method, text, pair)
    with held.lock:
        made = cm.explain(held.model, pairs.both(text, pair), method, tokenizer=held.tokenizer, max_memory=SETTINGS.memory)[0]
    return pairs.named(made, held.tokenizer, text, pair)


def view_of(model: str, method: str, text: str, pair: str = "") -> dict[str, Any]:
    """The same for the widget, with what a link needs to reopen it."""
    made = map_of(model, method, text, pair)
    query = {"model": model, "method": method, "text": check_text(text), "pair": check_pair(pair)}
    return {**made.to_view(title=f"{method} · {model.rsplit('/', 1)[-1]}"), "second": pairs.second_starts(made), "query": query}


def slow_note(model: str, method: str, text: str, pair: str = "") -> str:
    """Said at once, without loading anything: why this pair is slow for this input, or nothing."""
    if model not in SHELF.names():
        return "" if model in BOX or not model else f"{model} is not loaded yet: its first map takes longer."
    held = SHELF.get(model)
    if held.tokenizer is None or not text.strip() or max(len(text), len(pair)) > SETTINGS.characters:
        return ""
    tokens = count_tokens(held, text, check_pair(pair))
    seconds, why = estimate(held, method, tokens), f"{tokens} tokens, cost: {info_of(method).cost}"
    if seconds > SETTINGS.seconds:
        return f"Too slow for this text: about {seconds:,.0f} s ({why}); this page stops at {SETTINGS.seconds} s."
    return f"Slow for this text: about {seconds:.0f} s ({why})." if seconds > 2 else ""


def predictions(model: str, text: str, pair: str = "", top: int = 6) -> dict[str, Any]:
    """A masked LM's words at each [MASK], or a classifier's classes, with probabilities."""
    text, pair = check_text(text), check_pair(pair)
    found = examples.find_prediction(model, text, pair)
    if found is not None:
        return found
    held = SHELF.get(model)
    check_cost(held, "attention", text, pair)
    if held.kind == "plain":
        return {"kind": "none", "rows": []}
    with held.lock, torch.no_grad():
        encoding = pairs.encode(held.tokenizer, text, pair, return_tensors="pt")
        logits = held.model(**encoding).logits[0]
    return _words(held, encoding, logits, top) if held.kind == "masked" else _classes(held, logits)


def _words(held: Held, encoding: Any, logits: Any, top: int) -> dict[str, Any]:
    places = (encoding["input_ids"][0] == held.tokenizer.mask_token_id).nonzero().flatten().tolist()
    rows = []
    for place in places:
        values, ids = logits[place].softmax(dim=-1).topk(top)
        rows.append([[held.tokenizer.convert_ids_to_tokens(int(i)), float(v)] for i, v in zip(ids, values, strict=True)])
    return {"kind": "masked", "mask_token": held.tokenizer.mask_token, "rows": rows}


def _classes(held: Held, logits: Any) -> dict[str, Any]:
    names = held.model.config.id2label
    values = logits.softmax(dim=-1).tolist()
    return {"kind": "classes", "rows": [[[str(names[i]), value] for i, value in enumerate(values)]]}


def scores(model: str, text: str, method: str = "blank_out", pair: str = "") -> Any:
    """An `Attribution` of the prediction: how much each token mattered for it."""
    text, pair = check_text(text), check_pair(pair)
    if method not in [row.name for row in cm.list_methods("attribution")]:
        raise InputError(f"{method!r} is no attribution. Choose one of {', '.join(row.name for row in cm.list_methods('attribution'))}.")
    held = SHELF.get(model)
    check_cost(held, "value_zeroing", text, pair)
    if held.kind == "plain":
        raise UnsupportedMethodError(f"{model} predicts nothing: it has no head.")
    with held.lock:
        made = cm.attribute(held.model, pairs.both(text, pair), method, tokenizer=held.tokenizer, max_memory=SETTINGS.memory)
    number = int(made.meta["class_index"][0])
    named = held.tokenizer.convert_ids_to_tokens(number) if held.kind == "masked" else held.model.config.id2label[number]
    return replace(made, target=f"“{named}”", tokens=map_of(model, "attention", text, pair).tokens)  # words as they were typed


def compare(
    model: str, method: str, text: str, other_model: str, other_method: str, other_text: str, pair: str = ""
) -> tuple[Any, Any, Any]:
    """Two maps and their difference, word by word; rows become shares where the units differ. A second sentence is on both sides."""
    first, second = map_of(model, method, text, pair).words(), map_of(other_model, other_method, other_text, pair).words()
    if first.depth != second.depth:
        first, second = first.layer(-1), second.layer(-1)
    return first, second, second.difference(first, row_shares=method != other_method or model != other_model)


def agreement(model: str, text: str, target: int = 0, pair: str = "") -> dict[str, Any]:
    """Spearman's correlation of every pair of methods on the row of a target, from the input to the last layer."""
    text, pair = check_text(text), check_pair(pair)
    held = SHELF.get(model)
    check_cost(held, "attention", text, pair)
    tokens = count_tokens(held, text, pair)
    quick = [name for name in map_methods() if estimate(held, name, tokens) < 2]
    with held.lock:
        maps = cm.explain(held.model, pairs.both(text, pair), quick, tokenizer=held.tokenizer, max_memory=SETTINGS.memory)
    place = check_target(int(target), tokens)
    rows = {name: made[0].attribution(place) for name, made in maps.items()}
    table = [[a.rank_correlation(b) for b in rows.values()] for a in rows.values()]
    left_out = [name for name in map_methods() if name not in quick]
    named = next(iter(maps.values())).tokens[0].shown()[place]
    return {"target": named, "methods": list(rows), "correlation": table, "left_out": left_out}


def check_target(target: int, count: int) -> int:
    if not -count <= target < count:
        raise InputError(f"There is no target {target}: the text has {count} tokens, counted from 0.")
    return target


def similarity(model: str, text_a: str, text_b: str, method: str = "value_zeroing") -> Any:
    """The cosine of two texts' vectors, shared out over both texts' tokens."""
    first, second = check_text(text_a), check_text(text_b)
    held = SHELF.get(model)
    for text in (first, second):
        check_cost(held, method, text)
    with held.lock:
        return cm.similarity(held.model, first, second, method, tokenizer=held.tokenizer)
