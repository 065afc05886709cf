"""The page's building blocks: the heatmap as a Gradio component, and what each event returns."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from importlib import resources
from typing import Any

import gradio as gr

import ctxmix_hf as cm
from ctxmix_hf.demo import examples, gate, handlers, options, panels, pictures
from ctxmix_hf.viz.canvas import as_json, bundle, script, style

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
    """HTML of ours with the number of the request it answers; a late answer is not shown."""
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
    names = f"Object.assign(window.ctxmixSpace, {as_json({'methods': methods, 'options': known})});"
    return gr.HTML(
        f"<style>{style()}\n{asset('page.css')}</style>",
        js_on_load=f"{script()}\n{page_script()}\n{names}",
        elem_id="ctxmix-assets",
        padding=False,
        apply_default_css=False,
    )


def say(text: str) -> str:
    return panels.message(text, "warn")


def answer(
    model: str, method: str, text: str, pair: str = "", settings: str = "", serial: str = ""
) -> dict[str, Any]:
    """Everything the map tab shows of one request, with the request and its number; or why there is nothing."""
    asked = (model, method, text, pair or "", settings or "")
    query = dict(zip(("model", "method", "text", "pair", "options"), map(str, asked), strict=True))
    try:
        # a stored example waits for nobody
        stored = (
            isinstance(text, str)
            and not settings
            and examples.holds(model, method, text.strip(), (pair or "").strip())
        )
        if stored:
            gate.cancel("main")
            made = handlers.answer(*asked)
        else:
            made = gate.latest("main", handlers.answer, *asked)
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


def score(model: str, text: str, pair: str = "") -> str:
    try:
        made = {
            name: gate.run(handlers.scores, model, text, name, pair) for name in handlers.SCORES
        }
    except cm.CtxmixError as error:
        return panels.message(str(error), "warn")
    return panels.score_lines(made)


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
    try:
        account, others = gate.latest(
            "why", handlers.why, model, text, pair, word or "", foil or "", rule or ""
        )
        return {"serial": serial, "html": panels.why_panel(account, others)}
    except cm.CtxmixError as error:
        return {"serial": serial, "html": panels.message(str(error), "warn")}


def similar(model: str, text_a: str, text_b: str, serial: str = "") -> dict[str, Any]:
    try:
        return {
            "serial": serial,
            "html": gate.latest("similarity", handlers.similar, model, text_a, text_b),
        }
    except cm.CtxmixError as error:
        return {"serial": serial, "html": panels.message(str(error))}


def ranked(model: str, query: str, documents: str, serial: str = "") -> dict[str, Any]:
    try:
        return {
            "serial": serial,
            "html": gate.latest("ranking", handlers.ranked, model, query, documents or ""),
        }
    except cm.CtxmixError as error:
        return {"serial": serial, "html": panels.message(str(error))}


def stamped(slot: str, count: int) -> str:
    """JavaScript: the last of `count` + 1 fields becomes the number of this request."""
    names = ", ".join(f"f{k}" for k in range(count))
    return f"({names}) => [{names}, window.ctxmixSpace.ask('{slot}', {names})]"


MODES = ("two methods", "two models", "two sentences")


def compare(
    mode: str,
    model: str,
    method: str,
    text: str,
    pair: str,
    other_model: str,
    other_method: str,
    other_text: str,
    serial: str = "",
) -> tuple[Any, Any, Any, str]:
    """Three widgets: first, second, and second minus first."""
    second = {
        "two methods": (model, other_method, text),
        "two models": (other_model, method, text),
        "two sentences": (model, method, other_text),
    }
    wanted = second.get(mode) or (other_model, other_method, other_text)
    query = {"mode": mode, "model": model, "method": method, "text": text, "pair": pair or ""}
    query |= {"other_model": other_model, "other_method": other_method, "other_text": other_text}
    try:
        made = gate.latest("compare", handlers.compared, (model, method, text), wanted, query)
        first, second_view, gap = ({**view, "serial": serial} for view in made)
        return first, second_view, gap, ""
    except cm.CtxmixError as error:
        return gr.skip(), gr.skip(), gr.skip(), panels.message(str(error))


def _key(asked: tuple[Any, ...]) -> str:
    return sha256(repr(asked).encode()).hexdigest()[:16]


def compare_once(*fields: Any) -> tuple[Any, ...]:
    """The same, unless exactly this stands there already: the last fields are the key of what does,
    and the number of the request.
    """
    *asked, seen, serial = fields
    key = _key(tuple(asked))
    if key == seen:
        return tuple(gr.skip() for _ in range(5))
    made = compare(*(*asked, serial))
    return (*made, "" if made[3] else key)


def agree(model: str, text: str, pair: str, target: int) -> str:
    """The table of agreement, whole."""
    *_, last = agree_steps(model, text, pair, target)
    return last


def agree_steps(model: str, text: str, pair: str, target: int) -> Iterator[str]:
    """The same, method by method: how far it is, then the table. Each step is a turn at the gate, so
    others are not kept waiting, and what nobody waits for any more is not computed.
    """
    yield panels.progress(0, 0)
    try:
        place, rows = int(target or 0), dict[str, Any]()
        quick, left_out = gate.latest("agreement", handlers.quick_methods, model, text, pair)
        for name in quick:
            yield panels.progress(len(rows), len(quick), name)
            rows |= gate.latest("agreement", handlers.target_row, model, text, [name], place, pair)
        yield panels.agreement_table(handlers.correlations(rows, place, left_out))
    except cm.CtxmixError as error:
        yield panels.message(str(error))


def show_image(
    image: Any, model: str, method: str, name: str | None = "", serial: str = ""
) -> tuple[Any, str]:
    try:
        made = gate.latest("image", pictures.view, image, model.strip(), method, name or "")
        return {**made, "serial": serial}, ""
    except cm.CtxmixError as error:
        return gr.skip(), panels.message(str(error))


def when(tab: str, function: Any, count: int) -> Any:
    """Only while that tab is open."""
    return lambda now, *fields: (
        function(*fields)
        if now == tab
        else (tuple(gr.skip() for _ in range(count)) if count > 1 else gr.skip())
    )


def opening(tab: str, slot: str = "") -> str:
    """JavaScript: the first field is the tab, or "link" while a link is opening it; with a slot the
    last one is the number of the request.
    """
    fields = f"...fields.slice(0, -1), window.ctxmixSpace.ask('{slot}')" if slot else "...fields"
    return f"(now, ...fields) => [window.ctxmixSpace.opening('{tab}'), {fields}]"
