"""The page's building blocks: the heatmap as a Gradio component, and what each event returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder, is_in_or_equal

import ctxmix_hf as cm
from ctxmix_hf.demo import examples, gate, handlers, options, panels, pictures
from ctxmix_hf.errors import InputError
from ctxmix_hf.viz.canvas import aloud, as_json, bundle, script, style
from ctxmix_hf.viz.names import listed_name

_ON_LOAD = """
const draw = () => {
  const host = element.querySelector('.ctxmix-host');
  if (!host) return;
  if (window.ctxmixSpace) window.ctxmixSpace.%s(host, '%s', props.value); else setTimeout(draw, 30);
};
draw(); watch('value', draw);
"""


def _hosted(kind: str, name: str, element: str, value: Any) -> Any:
    return gr.HTML(
        value,
        html_template="<div class='ctxmix-host'></div>",
        js_on_load=_ON_LOAD % (kind, name),
        elem_id=element,
        padding=False,
        apply_default_css=False,
    )


def heatmap(name: str, value: Any = None) -> Any:
    """The canvas widget as a component; its value is what `ContextMixingMap.to_view()` returns."""
    return _hosted("show", name, f"map-{name}", value)


def panel(name: str, value: Any = None) -> Any:
    """HTML of ours with the request it answers and its number: a late answer is not shown, one to other
    fields is dimmed.
    """
    return _hosted("panel", name, name, value)


def html(name: str, value: str = "") -> Any:
    return gr.HTML(
        value, elem_id=name, elem_classes=["ctxmix-plain"], padding=False, apply_default_css=False
    )


def asset(name: str) -> str:
    return (resources.files("ctxmix_hf") / "demo" / name).read_text(encoding="utf-8")


def page_script() -> str:
    """The page around the widgets: defines `window.ctxmixSpace`."""
    return bundle(resources.files("ctxmix_hf") / "demo" / "js", "page.js", "window.ctxmixSpace")


def assets(methods: dict[str, str]) -> Any:
    """Styles and scripts as a part of the page, so that they are there whoever serves it; nothing is fetched."""
    known = {name: options.settings(name) for name in methods.values()}
    told = {
        "methods": methods,
        "options": known,
        "reasons": [[*asked, *words] for asked, words in examples.REASONS.items()],
    }
    names = f"Object.assign(window.ctxmixSpace, {as_json(told)});"
    return gr.HTML(
        f"<style>{style()}\n{asset('page.css')}</style>",
        js_on_load=f"{script()}\n{aloud()}\n{page_script()}\n{names}",
        elem_id="ctxmix-assets",
        padding=False,
        apply_default_css=False,
    )


def say(text: str) -> str:
    return panels.message(text, "warn")


def answer(
    model: str,
    method: str,
    text: str,
    pair: str = "",
    settings: str = "",
    part: str = "",
    serial: str = "",
) -> dict[str, Any]:
    """Everything the map tab shows of one request, with the request and its number; or why there is nothing."""
    asked = (model, method, text, pair or "", settings or "", part or "")
    names = ("model", "method", "text", "pair", "options", "part")
    query = dict(zip(names, map(str, asked), strict=True))
    try:
        # a stored example waits for nobody
        stored = (
            isinstance(text, str)
            and not settings
            and examples.holds(model, method, text.strip(), (pair or "").strip())
        )
        if stored:
            gate.cancel("main", serial)
            made = handlers.answer(*asked)
        else:
            made = gate.latest("main", handlers.answer, *asked, order=serial)
    except gate.Overtaken:
        return gr.skip()  # type: ignore[no-any-return]
    except cm.CtxmixError as error:
        return {
            "serial": serial,
            "query": query,
            "error": panels.message(str(error)),
            "info": panels.method_info(method),
        }
    return {
        **made["view"],
        "serial": serial,
        "prediction": panels.prediction_bars(made["prediction"]),
        "info": panels.method_info(method, made["slow"]),
    }


def filled(
    slot: str, said: dict[str, str] | None, serial: str, drawn: Callable[..., str], *asked: Any
) -> dict[str, Any]:
    """The answer for a panel: HTML, or why there is none, with its number and what the fields said."""
    try:
        html = gate.latest(slot, drawn, *asked, order=serial)
    except gate.Overtaken:
        return gr.skip()  # type: ignore[no-any-return]
    except cm.CtxmixError as error:
        html = panels.message(str(error), "warn")
    return {"serial": serial, "fields": said, "html": html}


def score(model: str, text: str, pair: str = "", serial: str = "") -> dict[str, Any]:
    """What the prediction depended on, beside the map."""
    return filled("scores-panel", None, serial, panels.scored, model, text, pair)


def fields(**said: Any) -> dict[str, str]:
    """What the page's fields say when they ask for this answer, by their ids: a picture that belongs
    to other fields is dimmed (page.js).
    """
    return {name.replace("_", "-"): str(value or "").strip() for name, value in said.items()}


def why(
    model: str,
    text: str,
    pair: str = "",
    word: str = "",
    foil: str = "",
    rule: str = "",
    serial: str = "",
) -> dict[str, Any]:
    """The ledger of the prediction, with gradients and blank-out beside it."""
    said = fields(model=model, text=text, pair=pair, why_word=word, why_foil=foil)
    said["why-rule"] = options.RULE_NAMES.get(rule, "")
    asked = (model, text, pair, word or "", foil or "", rule or "")
    return filled("why", said, serial, panels.why_panel, *asked)


def similar(model: str, text_a: str, text_b: str, serial: str = "") -> dict[str, Any]:
    said = fields(model=model, text_a=text_a, text_b=text_b)
    return filled("similarity", said, serial, handlers.similar, model, text_a, text_b)


def ranked(model: str, query: str, documents: str, serial: str = "") -> dict[str, Any]:
    said = fields(model=model, text_a=query, documents=documents)
    return filled("ranking", said, serial, handlers.ranked, model, query, documents or "")


def stamped(slot: str, count: int, tab: str = "") -> str:
    """JavaScript: the last of `count` + 1 fields becomes the number of this request. With a tab, which
    the first field names, only while that one is open and the map before it was not stopped.
    """
    names = [f"f{k}" for k in range(count)]
    given = ", ".join(names)
    number = f"window.ctxmixSpace.ask('{slot}', {given})"
    if not tab:
        return f"({given}) => [{given}, {number}]"
    rest = "".join(f", {name}" for name in names[1:])
    return (
        f"({given}) => window.ctxmixSpace.follows('{tab}', f0) "
        f"? [{given}, {number}] : [''{rest}, '']"
    )


MODES = ("two methods", "two models", "two sentences")


def compare(
    mode: str,
    model: str,
    method: str,
    text: str,
    pair: str,
    settings: str,
    other_model: str,
    other_method: str,
    other_text: str,
    other_settings: str,
    serial: str = "",
) -> tuple[Any, Any, Any]:
    """Three widgets: first, second, and second minus first; or, in each, why not."""
    settings, other_settings = settings or "", other_settings or ""
    second = {
        "two methods": (model, other_method, text, other_settings),
        "two models": (other_model, method, text, settings),
        "two sentences": (model, method, other_text, settings),
    }
    wanted = second.get(mode) or (other_model, other_method, other_text, other_settings)
    query = {"mode": mode, "model": model, "method": method, "text": text, "pair": pair or ""}
    query |= {"other_model": other_model, "other_method": other_method, "other_text": other_text}
    query |= {"options": settings, "other_options": other_settings}
    said = fields(mode=mode, model=model, text=text, pair=pair, options=settings)
    said["method"] = listed_name(method)
    said |= {
        "two methods": fields(other_method=listed_name(other_method), other_options=other_settings),
        "two models": fields(other_model=other_model),
        "two sentences": fields(other_text=other_text),
    }.get(mode, {})
    stamp = {"serial": serial, "fields": said}
    try:
        made = gate.latest(
            "compare",
            handlers.compared,
            (model, method, text, settings),
            wanted,
            query,
            order=serial,
        )
        first, second_view, gap = ({**view, **stamp} for view in made)
        return first, second_view, gap
    except gate.Overtaken:
        return gr.skip(), gr.skip(), gr.skip()
    except cm.CtxmixError as error:
        wrong = {**stamp, "error": panels.message(str(error))}
        return wrong, wrong, wrong


def agree(model: str, text: str, pair: str, target: int) -> dict[str, Any]:
    """The table of agreement, whole."""
    *_, last = agree_steps(model, text, pair, target)
    return last


def agree_steps(
    model: str, text: str, pair: str, target: int, serial: str = ""
) -> Iterator[dict[str, Any]]:
    """The same, method by method: how far it is, then the table. Each step is a turn at the gate, so
    others are not kept waiting, and what nobody waits for any more is not computed.
    """
    stamp = {"serial": serial, "fields": fields(model=model, text=text, pair=pair)}
    yield {**stamp, "progress": panels.progress(0, 0)}
    try:
        place, rows = int(target or 0), dict[str, Any]()
        quick, left_out = gate.latest(
            "agreement", handlers.quick_methods, model, text, pair, order=serial
        )
        for name in quick:
            yield {**stamp, "progress": panels.progress(len(rows), len(quick), name)}
            rows |= gate.latest(
                "agreement", handlers.target_row, model, text, [name], place, pair, order=serial
            )
        table = handlers.correlations(rows, place, left_out)
        yield {**stamp, "html": panels.agreement_table(table)}
    except gate.Overtaken:
        return
    except cm.CtxmixError as error:
        yield {**stamp, "html": panels.message(str(error))}


def show_image(
    image: Any, model: str | None, method: str, name: str | None = "", serial: str = ""
) -> dict[str, Any]:
    """The map of a picture: an image, or the file of one that a visitor chose, which a worker opens."""
    said = fields(vision_model=model, vision_method=listed_name(method), picture=name)
    try:
        if isinstance(image, dict):
            image = _uploaded(image.get("path"))
        made = gate.latest(
            "image", pictures.view, image, (model or "").strip(), method, name or "", order=serial
        )
    except gate.Overtaken:
        return gr.skip()  # type: ignore[no-any-return]
    except cm.CtxmixError as error:
        made = {"error": panels.message(str(error))}
    return {**made, "serial": serial, "fields": said}


def _uploaded(file: str | None) -> str | None:
    """The path of a visitor's file; gradio asks where it lies only of those that say they are files."""
    if file is not None and not is_in_or_equal(file, get_upload_folder()):
        raise InputError(
            "The picture was not uploaded here: choose a file, or one of the example pictures."
        )
    return file


def when(tab: str, function: Any, count: int) -> Any:
    """Only while that tab is open."""
    return lambda now, *fields: (
        function(*fields)
        if now == tab
        else (tuple(gr.skip() for _ in range(count)) if count > 1 else gr.skip())
    )


def opening(tab: str, slot: str) -> str:
    """JavaScript: the first field is the tab, unless a link is opening it or what its fields say stands
    there already; the last one is the number of the request.
    """
    return (
        f"(now, ...fields) => {{ const to = window.ctxmixSpace.opening('{tab}', '{slot}'); "
        f"return [to, ...fields.slice(0, -1), to === '{tab}' ? window.ctxmixSpace.ask('{slot}') : '']; }}"
    )
