"""Python that makes what the page shows, from the same words that stand in the page's address."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

import ctxmix_hf as cm
from ctxmix_hf.demo import documents, examples, gate, library
from ctxmix_hf.demo.options import code
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.demo.shelf import SHELF, TEXT_MODELS, VISION

NUMBERS = ("layer", "specials", "diagonal", "k", "zoom", "even")
DISPLAY = (
    "view",
    "scope",
    "layer",
    "unit",
    "specials",
    "diagonal",
    "norm",
    "range",
    "cmap",
    "pin",
    "k",
    "zoom",
    "even",
)
TEXTS = ("A dull film.", "A boring movie.")  # what the tab of similarities opens with
DOCUMENTS = ("A boring movie.", "A warm and funny film.", "The boys are tired.")
Asked = Mapping[str, str]


def load_line(model: str, name: str = "model") -> str:
    """With the head the page's model has, where that is known."""
    loader = (
        TEXT_MODELS.get(model)
        or VISION.get(model)
        or (type(SHELF.get(model).model).__name__ if model in SHELF.names() else "")
    )
    kind = next(
        (
            head
            for head in ("ForMaskedLM", "ForSequenceClassification", "ForImageClassification")
            if head in loader
        ),
        "",
    )
    return f"{name} = cm.AutoContextMixingModel{kind}.from_pretrained({model!r})\n"


def display(asked: Asked, prefix: str = "") -> str:
    """The widget's options in the address as keyword arguments."""
    parts = []
    for key in DISPLAY:
        value = asked.get(prefix + key, "")
        if value.isdecimal() and key in NUMBERS:
            parts.append(f"{key}={int(value)}")
        elif value and key not in NUMBERS:
            parts.append(f"{key}={value!r}")
    return ", ".join(parts)


def _text(text: str, pair: str) -> str:
    return f"({text.strip()!r}, {pair.strip()!r})" if pair.strip() else repr(text.strip())


def of_map(
    model: str,
    method: str,
    text: str,
    pair: str = "",
    options: str = "",
    settings: str = "",
    part: str = "",
) -> str:
    """A sentence, a pair, or the paragraphs (or sentences) of a long text."""
    end = f", {options}" if options else ""
    long = len(text) > SETTINGS.tokens and not pair.strip()
    end_of = gate.run(documents.code, model, text, part) if long else ""
    return (
        f"import ctxmix_hf as cm\n\n{load_line(model)}"
        f"m = cm.explain(model, {_text(text, pair)}, {code(method, settings)}{end_of})\n"
        f'm.show({options})    # the same picture\nm.to_html("map.html"{end})    # one file, opens by double click\n'
    )


def of_comparison(a: Asked) -> str:
    mode, model, method, text = a.get("mode", ""), a["model"], a["method"], a["text"]
    other = a.get("other_model", model) if mode == "two models" else model
    method_2 = a.get("other_method", method) if mode in ("", "two methods") else method
    text_2 = a.get("other_text", text) if mode == "two sentences" else text
    second = "model" if other == model else "other"
    settings = a.get("other_options" if mode in ("", "two methods") else "options", "")
    ways = code(method, a.get("options", "")), code(method_2, settings)
    options = display(a, "c.")
    return (
        f"import ctxmix_hf as cm\n\n{load_line(model)}{'' if other == model else load_line(other, 'other')}"
        f"first = cm.explain(model, {_text(text, a.get('pair', ''))}, {ways[0]}).words()\n"
        f"second = cm.explain({second}, {_text(text_2, a.get('pair', ''))}, {ways[1]}).words()\n"
        f"gap = second.difference(first, row_shares={ways[0] != ways[1] or model != other})\n"
        f'print(gap)\ngap.to_html("difference.html"{", " + options if options else ""})    # one '
        "file, opens by double click\n"
    )


def of_similarity(a: Asked) -> str:
    query, documents = a.get("a") or TEXTS[0], (a.get("documents") or "").splitlines()
    texts = [text for text in documents if text.strip()] or list(DOCUMENTS)
    return (
        f"import ctxmix_hf as cm\n\n{load_line(a['model'])}"
        f"s = cm.similarity(model, {query!r}, {a.get('b') or TEXTS[1]!r})\n"
        'print(s.finding())\ns.show()    # the same picture\ns.to_html("similarity.html")\n\n'
        f"r = cm.rank(model, {query!r}, {texts!r})\nprint(r)    # the order, and why\n"
    )


def of_reasons(a: Asked) -> str:
    """The ledger of the prediction, and the others beside it."""
    word, foil = examples.reason(a, a["model"], a["text"])
    given = {"class_index": word, "foil": foil}
    said = "".join(f", {name}={text.strip()!r}" for name, text in given.items() if text.strip())
    rule = f", rule={a['rule'].strip()!r}" if a.get("rule", "").strip() else ""
    return (
        f"import ctxmix_hf as cm\n\n{load_line(a['model'])}"
        f"text = {_text(a['text'], a.get('pair', ''))}\n"
        f"l = cm.ledger(model, text{said}{rule})\n"
        'print(l.finding())\nl.show()    # the same picture\nl.to_html("ledger.html")\n'
        'for name in ("blank_out", "grad_x_input", "integrated_gradients"):\n'
        f"    print(cm.attribute(model, text, name{said}).words())\n"
    )


def of_picture(a: Asked) -> str:
    pins, layer = (
        [pin for pin in a.get("i.pin", "").split(".") if pin.isdecimal()],
        a.get("i.layer", ""),
    )
    target = f"target=[{', '.join(pins)}]" if len(pins) > 1 else f"target={pins[0] if pins else 0}"
    target += f", layer={layer}" if layer.isdecimal() else ""
    method, vision = a.get("vision_method", cm.DEFAULT_METHOD), a.get("vision", "")
    source = "model.config._name_or_path" if vision in VISION else repr(vision)
    return (
        "from PIL import Image\nfrom transformers import AutoImageProcessor\n\nimport ctxmix_hf as cm\n\n"
        f"{load_line(a.get('vision', ''))}image = Image.open('picture.png').convert('RGB')    # your picture\n"
        f"pixels = AutoImageProcessor.from_pretrained({source})(images=image, return_tensors='pt')\n"
        f"m = model(**pixels, output_context_mixing=[{method!r}]).context_mixing[{method!r}]\n"
        f"m.plot_image(image, {target})\n"
    )


def of_stored(a: Asked) -> str:
    name = a.get("store", "")
    if name == library.NAME:
        opened = 'cm.MapStore.open(files("ctxmix_hf") / "demo" / "maps")'
        return (
            "from importlib.resources import files\n\nimport ctxmix_hf as cm\n\n"
            f"store = {opened}\n"
            f"store[{a.get('id', '')!r}, {a.get('store_method', '')!r}].show({display(a, 'p.')})\n"
        )
    way = "open" if name.startswith(("/", ".", "~")) else "from_hub"
    return (
        f"import ctxmix_hf as cm\n\nstore = cm.MapStore.{way}({name!r})\n"
        f"store[{a.get('id', '')!r}, {a.get('store_method', '')!r}].show({display(a, 'p.')})\n"
    )


def of_view(query: str, default: Asked) -> str:
    """The code of the view that an address opens."""
    a = {**default, **dict(parse_qsl(query.lstrip("?")))}
    others = {
        "why": of_reasons,
        "compare": of_comparison,
        "embeddings": of_similarity,
        "image": of_picture,
        "precomputed": of_stored,
    }
    tab = a.get("tab", "map")
    if (
        tab in others
        and (tab != "image" or a.get("vision"))
        and (tab != "precomputed" or a.get("id"))
    ):
        return others[tab](a)
    return of_map(
        a["model"],
        a["method"],
        a["text"],
        a.get("pair", ""),
        display(a),
        a.get("options", ""),
        a.get("part", ""),
    )
