"""Files of what the page shows: of the tab a person came from, as its address says, in a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ctxmix_hf as cm
from ctxmix_hf.demo import examples, handlers, library, pictures, snippets, stores
from ctxmix_hf.errors import InputError
from ctxmix_hf.viz.canvas import page
from ctxmix_hf.viz.names import people_name
from ctxmix_hf.viz.payload import check_state

Asked = Mapping[str, str]
View = Mapping[str, Any]
ALL = ("html", "svg", "png", "csv", "json", "safetensors")
KINDS = {
    "map": ALL,
    "why": ALL,
    "embeddings": ("html", "svg", "png", "csv", "json"),
    "compare": ("html", "svg", "png", "json"),
    "image": ALL,
    "precomputed": ALL,
}
_WRITTEN = {"html": "HTML", "svg": "SVG", "png": "PNG", "csv": "CSV", "json": "JSON"}


def tab_of(a: Asked) -> str:
    return a["tab"] if a.get("tab") in KINDS else "map"


def label(a: Asked) -> str:
    """What the button offers: of which view, and in which formats."""
    model = _short(a["model"])
    what = {
        "map": f"the map of “{_cut(a['text'])}” ({people_name(a['method'])})",
        "why": f"the ledger of “{_cut(a['text'])}” (Why this output?)",
        "embeddings": f"the similarity and the ranking of “{_cut(_texts(a)[0])}” ({model})",
        "compare": "the comparison, second minus first",
        "image": f"the picture “{a.get('picture') or 'uploaded'}”",
        "precomputed": f"the stored map {a.get('id', '')}",
    }[tab_of(a)]
    kinds = ", ".join(_WRITTEN.get(kind, kind) for kind in KINDS[tab_of(a)])
    return f"Prepare files of {what}: {kinds}"


def write(folder: str, a: Asked, view: View, image: Any = None) -> list[str]:
    """The view of an address (`tab` says which one) in every format it has; pictures of maps as the
    page shows them (layer, colours, target, words), the whole result as data.
    """
    makers = {
        "map": _map,
        "why": _why,
        "embeddings": _embeddings,
        "compare": _compare,
        "precomputed": _stored,
    }
    tab = tab_of(a)
    if tab == "image":
        return _image(folder, a, view, image)
    return makers[tab](folder, a, view)


def _cut(text: str, most: int = 40) -> str:
    return text.strip() if len(text.strip()) <= most else f"{text.strip()[: most - 1]}…"


def _short(model: str) -> str:
    return model.rstrip("/").rsplit("/", 1)[-1]


def _stem(*said: str) -> str:
    joined = "-".join(part[:40] for part in ("ctxmix", *said) if part)
    return re.sub(r"[^\w.+=-]+", "_", joined).strip("_.")


def _texts(a: Asked) -> tuple[str, str]:
    return a.get("a") or snippets.TEXTS[0], a.get("b") or snippets.TEXTS[1]


def _both(a: Asked) -> str:
    pair = a.get("pair", "").strip()
    return f"{a['text'].strip()}{' / ' + pair if pair else ''}"


def _map(folder: str, a: Asked, view: View) -> list[str]:
    model, method, settings = a["model"], a["method"], a.get("options", "")
    made = handlers.map_of(model, method, a["text"], a.get("pair", ""), settings, a.get("part", ""))
    said = f"{_short(model)}, {people_name(method)}{f' ({settings})' if settings else ''}"
    return _of_map(folder, made, view, _both(a), said, (_short(model), method, settings, a["text"]))


def _stored(folder: str, a: Asked, view: View) -> list[str]:
    name, key = a.get("store", library.NAME), a.get("id", "")
    if not key:
        raise InputError("Choose an example of the library first.")
    method = a.get("store_method") or stores.open_store(name).methods[0]
    made = stores.map_of(name, key, method)
    made = made.to_map() if hasattr(made, "to_map") else made
    text = made.tokens[0].text or key
    names = (_short(name), method, "", f"{key}-{text}")
    return _of_map(folder, made, view, text, f"{_short(name)}, {people_name(method)}", names)


def _of_map(
    folder: str, made: Any, view: View, text: str, said: str, names: tuple[str, str, str, str]
) -> list[str]:
    """A map as the widget shows it; its tables and data whole. `names`: model, method, options, text."""
    scopes = ("input",) if made.layers is None else ("input", "layer")
    state = check_state(view, made.layer_numbers, scopes)
    layer, scope = state.get("layer", -1), state.get("scope", "input")
    pieces = state.get("unit") == "piece"
    unit = made if pieces else made.words()
    pins = {int(pin) for pin in str(state.get("pin", "")).split(".") if pin.isdecimal()}
    rows = [[place] for place in range(made.size)] if pieces else made.tokens[0].groups()
    number = made.layer_numbers[-1] if layer < 0 else layer
    title = f"{text.strip()}\n{said}, {made.where(layer, scope)}"
    stem = _stem(*names[:3], f"layer{number}", names[3].strip())
    path = lambda kind: Path(folder) / f"{stem}.{kind}"
    made.to_html(path("html"), title=title.replace("\n", " · "), **state)
    figure = unit.plot(
        layer,
        scope,
        words=False,
        cmap=state.get("cmap"),
        title=title,
        marked=[k for k, places in enumerate(rows) if pins & set(places)],
        diagonal=bool(state.get("diagonal")),
    )
    for kind in ("svg", "png"):
        figure.savefig(path(kind))
    path("csv").write_text(unit.layer(layer).to_csv(), encoding="utf-8")
    made.save(path("json"))
    made.save(path("safetensors"))
    return [str(path(kind)) for kind in ALL]


def _saved(folder: str, made: Any, stem: str, title: str, kinds: tuple[str, ...]) -> list[str]:
    paths = [Path(folder) / f"{stem}.{kind}" for kind in kinds]
    for path in paths:
        if path.suffix == ".html":
            made.to_html(path, title=title)
        else:
            made.save(path)
    return list(map(str, paths))


def _why(folder: str, a: Asked, view: View) -> list[str]:
    word, foil = examples.reason(a, a["model"], a["text"])
    made = handlers.ledger(a["model"], a["text"], a.get("pair", ""), word, foil, a.get("rule", ""))
    title = f"{_both(a)} · {_short(a['model'])}, Ledger, {made.target}"
    stem = _stem(_short(a["model"]), "ledger", word, foil and f"not-{foil}", a["text"].strip())
    return _saved(folder, made, stem, title, KINDS["why"])


def _embeddings(folder: str, a: Asked, view: View) -> list[str]:
    model, (first, second) = a["model"], _texts(a)
    documents = (a.get("documents") or "\n".join(snippets.DOCUMENTS)).splitlines()
    similar, ranking = (
        handlers.similarity(model, first, second),
        handlers.rank(model, first, documents),
    )
    texts = f"{first.strip()} / {second.strip()} · {_short(model)}, Similarity"
    stem = _stem(_short(model), "similarity", first.strip(), second.strip())
    ranked = f"{first.strip()} · {_short(model)}, Ranking of {len(ranking)} texts"
    return [
        *_saved(folder, similar, stem, texts, KINDS["embeddings"]),
        *_saved(
            folder,
            ranking,
            _stem(_short(model), "ranking", first.strip()),
            ranked,
            KINDS["embeddings"],
        ),
    ]


def _compare(folder: str, a: Asked, view: View) -> list[str]:
    """The difference as pictures, and both sides as data."""
    mode, model, method, text = a.get("mode", ""), a["model"], a["method"], a["text"]
    other_model = a.get("other_model", model) if mode == "two models" else model
    methods = mode in ("", "two methods")
    other_method = a.get("other_method", method) if methods else method
    other_text = a.get("other_text", text) if mode == "two sentences" else text
    settings = a.get("options", ""), a.get("other_options" if methods else "options", "")
    first, second, gap = handlers.compare(
        model, method, text, other_model, other_method, other_text, a.get("pair", ""), *settings
    )
    scopes = ("input",) if gap.layers is None else ("input", "layer")
    state = check_state(view, gap.layer_numbers, scopes)
    layer, scope = state.get("layer", -1), state.get("scope", "input")
    number = gap.layer_numbers[-1] if layer < 0 else layer
    sides = [(_short(model), method, settings[0]), (_short(other_model), other_method, settings[1])]
    differ = ["-".join(filter(None, side)) for side in sides]
    if mode == "two models":
        names = [side[0] for side in sides]
    elif mode == "two sentences":
        names = [text.strip(), other_text.strip()]
    else:
        names = ["-".join(filter(None, side[1:])) for side in sides]
    stem = _stem(names[1], "minus", names[0], f"layer{number}", text.strip())
    path = lambda kind: Path(folder) / f"{stem}{kind}"
    texts = text.strip() if text == other_text else f"{other_text.strip()} − {text.strip()}"
    said = f"{texts} · second − first: {differ[1]} − {differ[0]}"
    data = {**gap.to_view(**state), "title": said}
    path(".html").write_text(page(data, f"{said}, {gap.where(layer, scope)}"), encoding="utf-8")
    figure = gap.plot(layer, scope)
    for kind in (".svg", ".png"):
        figure.savefig(path(kind))
    first.save(path("-first.json"))
    second.save(path("-second.json"))
    return [str(path(kind)) for kind in (".html", ".svg", ".png", "-first.json", "-second.json")]


def _image(folder: str, a: Asked, view: View, image: Any) -> list[str]:
    """The picture under its map; an uploaded one comes from the page, an example from its name."""
    name, model = a.get("picture", ""), a.get("vision", "")
    method = a.get("vision_method", cm.DEFAULT_METHOD)
    picture = pictures.example(name) if name else image
    made, seen, _ = pictures.map_of(picture, model, method)
    scopes = ("input",) if made.layers is None else ("input", "layer")
    state = check_state(view, made.layer_numbers, scopes)
    layer = state.get("layer", -1)
    pins = [int(pin) for pin in str(state.get("pin", "")).split(".") if pin.isdecimal()]
    number = made.layer_numbers[-1] if layer < 0 else layer
    where = made.where(layer, state.get("scope", "input"))
    title = f"{name or 'picture'} · {_short(model)}, {people_name(method)}, {where}"
    stem = _stem(_short(model), method, f"layer{number}", name or "picture")
    path = lambda kind: Path(folder) / f"{stem}.{kind}"
    data = pictures.view(picture, model, method, name)
    path("html").write_text(page({**data, "state": state}, title), encoding="utf-8")
    figure = made.plot_image(seen, pins or 0, layer=layer)
    for kind in ("svg", "png"):
        figure.savefig(path(kind))
    path("csv").write_text(made.layer(layer).to_csv(), encoding="utf-8")
    made.save(path("json"))
    made.save(path("safetensors"))
    return [str(path(kind)) for kind in KINDS["image"]]
