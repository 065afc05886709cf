"""What the page and its API do: each function is a short call into the library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import ctxmix_hf as cm
from ctxmix_hf.demo import examples
from ctxmix_hf.demo.limits import check_cost, check_text, estimate, info_of
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.demo.shelf import SHELF, Held
from ctxmix_hf.errors import InputError, UnsupportedMethodError

SCORES = ("blank_out", "grad_x_input", "integrated_gradients")


def map_methods() -> list[str]:
    return [row.name for row in cm.list_methods() if row.kind != "attribution"]


def map_of(model: str, method: str, text: str) -> Any:
    """One sentence's `ContextMixingMap`: from the examples where it is one of them, else computed."""
    text = check_text(text)
    info_of(method)
    found = examples.find(model, method, text)
    if found is not None:
        return found
    held = SHELF.get(model)
    check_cost(held, method, text)
    with held.lock:
        return cm.explain(held.model, text, method, tokenizer=held.tokenizer, max_memory=SETTINGS.memory)[0]


def view_of(model: str, method: str, text: str) -> dict[str, Any]:
    """The same for the widget, with what a link needs to reopen it."""
    made = map_of(model, method, text)
    title = f"{method} · {model.rsplit('/', 1)[-1]}"
    return {**made.to_view(title=title), "query": {"model": model, "method": method, "text": check_text(text)}}


def slow_note(model: str, method: str, text: str) -> str:
    """Said at once, without loading anything: why this pair is slow for this input, or nothing."""
    if model not in SHELF.names() or not text.strip() or len(text) > SETTINGS.characters:
        return ""
    held = SHELF.get(model)
    if held.tokenizer is None:
        return ""
    seconds = estimate(held, method, len(held.tokenizer(text, verbose=False)["input_ids"]))
    if seconds > SETTINGS.seconds:
        return f"Would take about {seconds:.0f} s for this text, more than this page's limit of {SETTINGS.seconds} s."
    return f"Slow for this text: about {seconds:.0f} s." if seconds > 2 else ""


def predictions(model: str, text: str, top: int = 6) -> dict[str, Any]:
    """A masked LM's words at each [MASK], or a classifier's classes, with probabilities."""
    text = check_text(text)
    found = examples.find_prediction(model, text)
    if found is not None:
        return found
    held = SHELF.get(model)
    check_cost(held, "attention", text)
    if held.kind == "plain":
        return {"kind": "none", "rows": []}
    with held.lock, torch.no_grad():
        encoding = held.tokenizer(text, return_tensors="pt")
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


def scores(model: str, text: str, method: str = "blank_out") -> Any:
    """An `Attribution` of the prediction: how much each token mattered for it."""
    text = check_text(text)
    if method not in [row.name for row in cm.list_methods("attribution")]:
        raise InputError(f"{method!r} is no attribution. Choose one of {', '.join(row.name for row in cm.list_methods('attribution'))}.")
    held = SHELF.get(model)
    check_cost(held, "value_zeroing", text)
    if held.kind == "plain":
        raise UnsupportedMethodError(f"{model} predicts nothing: it has no head.")
    with held.lock:
        made = cm.attribute(held.model, text, method, tokenizer=held.tokenizer, max_memory=SETTINGS.memory)
    number = int(made.meta["class_index"][0])
    named = held.tokenizer.convert_ids_to_tokens(number) if held.kind == "masked" else held.model.config.id2label[number]
    return replace(made, target=f"“{named}”")


def compare(model: str, method: str, text: str, other_model: str, other_method: str, other_text: str) -> tuple[Any, Any, Any]:
    """Two maps and their difference, word by word; rows become shares where the units differ."""
    first, second = map_of(model, method, text).words(), map_of(other_model, other_method, other_text).words()
    if first.depth != second.depth:
        first, second = first.layer(-1), second.layer(-1)
    return first, second, second.difference(first, row_shares=method != other_method or model != other_model)


def agreement(model: str, text: str, target: int = 0) -> dict[str, Any]:
    """Spearman's correlation of every pair of methods on the row of a target, from the input to the last layer."""
    text = check_text(text)
    held = SHELF.get(model)
    check_cost(held, "attention", text)
    tokens = len(held.tokenizer(text, verbose=False)["input_ids"])
    quick = [name for name in map_methods() if estimate(held, name, tokens) < 2]
    with held.lock:
        maps = cm.explain(held.model, text, quick, tokenizer=held.tokenizer, max_memory=SETTINGS.memory)
    rows = {name: made[0].attribution(int(target)) for name, made in maps.items()}
    table = [[a.rank_correlation(b) for b in rows.values()] for a in rows.values()]
    left_out = [name for name in map_methods() if name not in quick]
    named = next(iter(maps.values())).tokens[0].shown()[int(target)]
    return {"target": named, "methods": list(rows), "correlation": table, "left_out": left_out}


def similarity(model: str, text_a: str, text_b: str, method: str = "value_zeroing") -> Any:
    """The cosine of two texts' vectors, shared out over both texts' tokens."""
    first, second = check_text(text_a), check_text(text_b)
    held = SHELF.get(model)
    for text in (first, second):
        check_cost(held, method, text)
    with held.lock:
        return cm.similarity(held.model, first, second, method, tokenizer=held.tokenizer)


def snippet(model: str, method: str, text: str) -> str:
    """Code that makes the same map with the library."""
    loader = "AutoContextMixingModel"
    if model in SHELF.names() or model in ("ctxmix/agreement", "ctxmix/sentiment"):
        masked = model == "ctxmix/agreement" or (model in SHELF.names() and SHELF.get(model).kind == "masked")
        loader += "ForMaskedLM" if masked else "ForSequenceClassification" if model == "ctxmix/sentiment" else ""
    return (
        f"import ctxmix_hf as cm\n\nmodel = cm.{loader}.from_pretrained({model!r})\n"
        f"m = cm.explain(model, {text.strip()!r}, {method!r})\nm.show()                 # the same picture\n"
        'm.to_html("map.html")    # one file, opens by double click\n'
    )
