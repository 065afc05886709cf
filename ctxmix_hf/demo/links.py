"""Links: everything the page shows is in its address, and opening the address shows it again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from ctxmix_hf.demo import examples, extras, handlers, options, parts, pictures

TOP = ("model", "method", "text", "pair", "options", "part")
Found = dict[Any, Any]
Parts = Mapping[str, Any]


def reopen(asked: Mapping[str, str], page: Parts) -> Found:
    """New values by component; what the address does not name stays as it is."""
    found = _top(asked, page)
    tab = asked.get("tab", "map")
    if tab in TABS:
        found |= {page["tabs"]: gr.Tabs(selected=tab), page["now"]: tab, **TABS[tab](asked, page)}
    return found


def _asked(asked: Mapping[str, str], page: Parts) -> tuple[str, str, str, str]:
    """Model, method, text, second sentence."""
    model, method, text = (asked.get(name, page[name].value) for name in TOP[:3])
    return model, method, text, asked.get("pair", "")


def _top(asked: Mapping[str, str], page: Parts) -> Found:
    if not set(TOP) & set(asked):
        return {}
    model, method, text, pair = _asked(asked, page)
    settings, part = asked.get("options", ""), asked.get("part", "")
    found = {
        page["model"]: model,
        page["text"]: text,
        page["pair"]: pair,
        page["options"]: settings,
        page["part"]: part,
        page["main"]: parts.answer(model, method, text, pair, settings, part),
    }
    if method.partition("+")[0] in handlers.map_methods():
        found[page["method"]] = method
    if asked.get("scores"):
        found[page["scores"]] = parts.score(model, text, pair)
    return found


def _why(asked: Mapping[str, str], page: Parts) -> Found:
    model, _, text, pair = _asked(asked, page)
    word, foil = examples.reason(asked, model, text)
    rule = asked.get("rule") if asked.get("rule") in options.RULES else options.RULES[0]
    return {
        page["word"]: word,
        page["foil"]: foil,
        page["rule"]: rule,
        page["why"]: parts.why(model, text, pair, word, foil, str(rule)),
    }


def _compare(asked: Mapping[str, str], page: Parts) -> Found:
    model, method, text, pair = _asked(asked, page)
    mode = asked.get("mode", parts.MODES[0])
    mode = mode if mode in parts.MODES else parts.MODES[0]
    others = tuple(f"other_{name}" for name in ("model", "method", "text", "options"))
    second = [asked.get(name, page[name].value) for name in others]
    made = parts.compare(mode, model, method, text, pair, asked.get("options", ""), *second)
    names = ("mode", *others, "first", "second", "gap")
    found = dict(zip(names, [mode, *second, *made], strict=True))
    seen = {
        f"other_{name}": gr.update(
            value=found[f"other_{name}"], visible=True if mode == shown else "hidden"
        )
        for name, shown in zip(("method", "model", "text"), parts.MODES, strict=True)
    }
    if asked.get("agree", "").isdecimal():
        found["agreement"] = parts.agree(model, text, pair, int(asked["agree"]))
    return {page[name]: value for name, value in {**found, **seen}.items()}


def _embeddings(asked: Mapping[str, str], page: Parts) -> Found:
    model, *_ = _asked(asked, page)
    texts = [asked.get(name, page[name].value) for name in ("a", "b")]
    found = {
        page["a"]: texts[0],
        page["b"]: texts[1],
        page["similarity"]: parts.similar(model, texts[0], texts[1]),
    }
    found[page["documents"]] = documents = asked.get("documents") or page["documents"].value
    found[page["ranking"]] = parts.ranked(model, texts[0], documents)
    return found


def _image(asked: Mapping[str, str], page: Parts) -> Found:
    """The model, the method and an example's name; an uploaded picture is in no address."""
    model, method, name = (
        asked.get("vision", page["vision"].value),
        asked.get("vision_method", page["vision_method"].value),
        asked.get("picture", "" if "vision" in asked else extras.FIRST),
    )
    found = {
        page["vision"]: model,
        page["vision_method"]: method if method in handlers.map_methods() else gr.skip(),
    }
    if name not in pictures.EXAMPLES:
        gone = "The picture of this link was uploaded, so it is not in it: choose it again."
        return {**found, page["image_map"]: {"error": parts.say(gone)}}
    found |= {page["picture"]: name, page["image"]: pictures.example(name)}
    found[page["image_map"]] = parts.show_image(pictures.example(name), model, method, name)
    return found


def _precomputed(asked: Mapping[str, str], page: Parts) -> Found:
    store, split, words = (
        asked.get("store", page["store"].value),
        asked.get("split", "all"),
        asked.get("search", ""),
    )
    method, key = asked.get("store_method", ""), asked.get("id", "")
    listed = dict(
        zip(
            ("split", "id", "store_method", "stored"),
            extras.listing(store, split, words, method, key),
            strict=True,
        )
    )
    found = {
        page["store"]: store,
        page["search"]: words,
        **{page[name]: value for name, value in listed.items()},
    }
    if key:
        found[page["stored"]] = extras.opened(store, key, method, split, words)
    return found


TABS: dict[str, Callable[[Mapping[str, str], Parts], Found]] = {
    "why": _why,
    "compare": _compare,
    "embeddings": _embeddings,
    "image": _image,
    "precomputed": _precomputed,
}


FIELDS = {  # what people fill in, by what it is asked for
    "main": TOP,
    "why": ("word", "foil", "rule"),
    "compare": ("mode", "other_model", "other_method", "other_text", "other_options"),
    "similarity": ("a", "b"),
    "ranking": ("documents",),
    "image": ("picture", "vision", "vision_method"),
}


def told(found: Found, page: Parts) -> tuple[Found, str]:
    """What the address shows, and apart from it what fields should say: by what they are for and by their
    ids, with what they say as the page opens. The browser fills those that nobody has changed meanwhile.
    """
    shown, said = dict(found), dict[str, dict[str, list[Any]]]()
    for slot, names in FIELDS.items():
        for name in names:
            part = page[name]
            value = shown.pop(part, None)
            if isinstance(value, dict):
                rest = {key: given for key, given in value.items() if key != "value"}
                shown |= {part: rest} if len(rest) > 1 else {}
                value = value.get("value")
            if value is not None:
                labels = {key: label for label, key in getattr(part, "choices", [])}
                before = str(labels.get(part.value, part.value) or "").strip()
                said.setdefault(slot, {})[part.elem_id] = [value, before]
    return shown, json.dumps(said)


def add(blocks: Any, page: Parts, private: dict[str, Any]) -> None:
    """When the page loads with something in its address, show that."""
    filled = [page[name] for names in FIELDS.values() for name in names]
    link = gr.Textbox("", visible="hidden")

    def load(request: gr.Request) -> Found:
        found = reopen(dict(request.query_params), page) if request else {}
        shown, said = told(found, page)
        return {**shown, link: said} if found else {page["now"]: gr.skip()}

    hidden = {**private, "show_progress": "hidden"}
    ids = json.dumps([part.elem_id for part in filled])
    js = f"(told) => window.ctxmixSpace.fill(told, {ids})"
    blocks.load(load, None, [*page.values(), link], **hidden).then(
        None, [link], filled, js=js, **hidden
    )
