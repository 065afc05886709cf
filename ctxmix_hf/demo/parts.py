"""The page's building blocks: the heatmap as a Gradio component, and what each event returns."""

from __future__ import annotations

from hashlib import sha256
from importlib import resources
from typing import Any

import gradio as gr

import ctxmix_hf as cm
from ctxmix_hf.demo import handlers, panels, pictures
from ctxmix_hf.viz.canvas import script, style

_ON_LOAD = """
const draw = () => {
  const host = element.querySelector('.ctxmix-host');
  if (host && window.ctxmixSpace) window.ctxmixSpace.show(host, '%s', props.value);
};
draw(); watch('value', draw);
"""


def heatmap(name: str, value: Any = None) -> Any:
    """The canvas widget as a component; its value is what `ContextMixingMap.to_view()` returns."""
    return gr.HTML(
        value, html_template="<div class='ctxmix-host'></div>", js_on_load=_ON_LOAD % name, elem_id=f"map-{name}",
        padding=False, apply_default_css=False,
    )  # fmt: skip


def html(name: str, value: str = "") -> Any:
    return gr.HTML(value, elem_id=name, elem_classes=["ctxmix-plain"], padding=False, apply_default_css=False)


def asset(name: str) -> str:
    return (resources.files("ctxmix_hf") / "demo" / name).read_text(encoding="utf-8")


def head() -> str:
    """Scripts and styles, inline: the page fetches nothing from elsewhere."""
    return f"<style>{style()}\n{asset('page.css')}</style><script>{script()}\n{asset('glue.js')}</script>"


def say(text: str) -> str:
    return panels.message(text, "warn")


def show(model: str, method: str, text: str, pair: str = "") -> tuple[Any, str]:
    """The map, or why there is none."""
    try:
        return handlers.view_of(model, method, text, pair), ""
    except cm.CtxmixError as error:
        return gr.skip(), panels.message(str(error))


def info(model: str, method: str, text: str, pair: str = "") -> str:
    try:
        return panels.method_info(method, handlers.slow_note(model, method, text or "", pair or ""))
    except cm.CtxmixError as error:
        return panels.message(str(error))


def predict(model: str, text: str, pair: str = "") -> str:
    """Probabilities; a text that gave no map gives nothing here either."""
    try:
        return panels.prediction_bars(handlers.predictions(model, text, pair))
    except cm.CtxmixError:
        return ""


def score(model: str, text: str, pair: str = "") -> str:
    try:
        made = {name: handlers.scores(model, text, name, pair) for name in handlers.SCORES}
    except cm.CtxmixError as error:
        return panels.message(str(error), "warn")
    return panels.score_lines(made)


MODES = ("two methods", "two models", "two sentences")


def compare(
    mode: str, model: str, method: str, text: str, pair: str, other_model: str, other_method: str, other_text: str
) -> tuple[Any, Any, Any, str]:
    """Three widgets: first, second, and second minus first."""
    second = {
        "two methods": (model, other_method, text), "two models": (other_model, method, text), "two sentences": (model, method, other_text),
    }  # fmt: skip
    wanted = second.get(mode) or (other_model, other_method, other_text)
    try:
        first, other, gap = handlers.compare(model, method, text, *wanted, pair)
    except cm.CtxmixError as error:
        return gr.skip(), gr.skip(), gr.skip(), panels.message(str(error))
    query = {"mode": mode, "model": model, "method": method, "text": text, "pair": pair or ""}
    query |= {"other_model": other_model, "other_method": other_method, "other_text": other_text}
    sides = [
        {**made.to_view(title=f"{n}: {m_} · {mo.rsplit('/', 1)[-1]}"), "query": query}
        for made, n, m_, mo in ((first, "first", method, model), (other, "second", wanted[1], wanted[0]))
    ]
    return sides[0], sides[1], {**gap.payload(), "title": "second − first", "pairs": gap.pairs, "query": query}, ""


def _key(asked: tuple[Any, ...]) -> str:
    return sha256(repr(asked).encode()).hexdigest()[:16]


def compare_once(*fields: Any) -> tuple[Any, ...]:
    """The same, unless exactly this stands there already (the last field is the key of what does)."""
    *asked, seen = fields
    key = _key(tuple(asked))
    if key == seen:
        return tuple(gr.skip() for _ in range(5))
    made = compare(*asked)
    return (*made, "" if made[3] else key)


def similar_once(model: str, method: str, text_a: str, text_b: str, seen: str) -> tuple[Any, str]:
    """The similarity panel, unless it stands there already."""
    key = _key((model, method, text_a, text_b))
    if key == seen:
        return gr.skip(), seen
    try:
        return panels.similarity_panel(handlers.similarity(model, text_a, text_b, method)), key
    except cm.CtxmixError as error:
        return panels.message(str(error)), ""


def agree(model: str, text: str, pair: str, target: int) -> str:
    try:
        return panels.agreement_table(handlers.agreement(model, text, int(target or 0), pair))
    except cm.CtxmixError as error:
        return panels.message(str(error))


def show_image(image: Any, model: str, method: str, name: str | None = "") -> tuple[Any, str]:
    try:
        return pictures.view(image, model.strip(), method, name or ""), ""
    except cm.CtxmixError as error:
        return gr.skip(), panels.message(str(error))


def when(tab: str, function: Any, count: int) -> Any:
    """Only while that tab is open."""
    return lambda now, *fields: function(*fields) if now == tab else tuple(gr.skip() for _ in range(count))


def opening(tab: str) -> str:
    """JavaScript: the first field is the tab, or "link" while a link is opening it."""
    return f"(now, ...fields) => [window.ctxmixSpace.opening('{tab}'), ...fields]"
