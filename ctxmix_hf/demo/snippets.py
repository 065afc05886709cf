"""Python that makes what the page shows, from the same words that stand in the page's address."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from ctxmix_hf.demo.shelf import BOX, SHELF

NUMBERS = ("layer", "specials", "diagonal", "k")
DISPLAY = ("view", "scope", "layer", "unit", "specials", "diagonal", "norm", "cmap", "pin", "k")
Asked = Mapping[str, str]


def load_line(model: str, name: str = "model") -> str:
    """With the head the page's model has, where that is known."""
    loader = BOX.get(model) or (type(SHELF.get(model).model).__name__ if model in SHELF.names() else "")
    kind = next((head for head in ("ForMaskedLM", "ForSequenceClassification", "ForImageClassification") if head in loader), "")
    return f"{name} = cm.AutoContextMixingModel{kind}.from_pretrained({model!r})\n"


def display(asked: Asked, prefix: str = "") -> str:
    """The widget's options in the address as keyword arguments."""
    parts = []
    for key in DISPLAY:
        value = asked.get(prefix + key, "")
        if value.isdecimal() and key in NUMBERS:
            parts.append(f"{key}={int(value) - 1 if key == 'layer' else int(value)}")
        elif value and key not in NUMBERS:
            parts.append(f"{key}={value!r}")
    return ", ".join(parts)


def _text(text: str, pair: str) -> str:
    return f"({text.strip()!r}, {pair.strip()!r})" if pair.strip() else repr(text.strip())


def of_map(model: str, method: str, text: str, pair: str = "", options: str = "") -> str:
    """A sentence or a pair."""
    end = f", {options}" if options else ""
    return (
        f"import ctxmix_hf as cm\n\n{load_line(model)}m = cm.explain(model, {_text(text, pair)}, {method!r})\n"
        f'm.show({options})    # the same picture\nm.to_html("map.html"{end})    # one file, opens by double click\n'
    )


def of_comparison(a: Asked) -> str:
    mode, model, method, text = a.get("mode", ""), a["model"], a["method"], a["text"]
    other = a.get("other_model", model) if mode == "two models" else model
    method_2 = a.get("other_method", method) if mode in ("", "two methods") else method
    text_2 = a.get("other_text", text) if mode == "two sentences" else text
    second = "model" if other == model else "other"
    return (
        f"import ctxmix_hf as cm\n\n{load_line(model)}{'' if other == model else load_line(other, 'other')}"
        f"first = cm.explain(model, {_text(text, a.get('pair', ''))}, {method!r}).words()\n"
        f"second = cm.explain({second}, {_text(text_2, a.get('pair', ''))}, {method_2!r}).words()\n"
        f"gap = second.difference(first, row_shares={method != method_2 or model != other})\n"
        f'print(gap)\ngap.to_html("difference.html")    # one file, opens by double click\n'
    )


def of_similarity(a: Asked) -> str:
    return (
        f"import ctxmix_hf as cm\n\n{load_line(a['model'])}"
        f"s = cm.similarity(model, {a.get('a', '')!r}, {a.get('b', '')!r}, {a['method']!r})\n"
        "print(s.cosine)\ns.a.show()\ns.b.show()\n"
    )


def of_picture(a: Asked) -> str:
    options = display(a, "i.").replace("pin=", "target=")
    target = next((part for part in options.split(", ") if part.startswith("target=")), "target='0'").replace("'", "")
    method = a.get("vision_method", "attention_rollout")
    return (
        "from PIL import Image\nfrom transformers import AutoImageProcessor\n\nimport ctxmix_hf as cm\n\n"
        f"{load_line(a.get('vision', ''))}image = Image.open('picture.png').convert('RGB')    # your picture\n"
        f"pixels = AutoImageProcessor.from_pretrained({a.get('vision', '')!r})(images=image, return_tensors='pt')\n"
        f"m = model(**pixels, output_context_mixing=[{method!r}]).context_mixing[{method!r}]\n"
        f"m.plot_image(image, {target})\n"
    )


def of_stored(a: Asked) -> str:
    name = a.get("store", "")
    way = "open" if name.startswith(("/", ".", "~")) else "from_hub"
    return (
        f"import ctxmix_hf as cm\n\nstore = cm.MapStore.{way}({name!r})\n"
        f"store[{a.get('id', '')!r}, {a.get('store_method', '')!r}].show({display(a, 'p.')})\n"
    )


def of_view(query: str, default: Asked) -> str:
    """The code of the view that an address opens."""
    a = {**default, **dict(parse_qsl(query.lstrip("?")))}
    others = {"compare": of_comparison, "embeddings": of_similarity, "image": of_picture, "precomputed": of_stored}
    tab = a.get("tab", "map")
    if tab in others and (tab != "image" or a.get("vision")) and (tab != "precomputed" or a.get("id")):
        return others[tab](a)
    return of_map(a["model"], a["method"], a["text"], a.get("pair", ""), display(a))
