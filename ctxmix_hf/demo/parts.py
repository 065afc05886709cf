"""The page's building blocks: the heatmap as a Gradio component, and what each event returns."""

from __future__ import annotations

from importlib import resources
from typing import Any

import gradio as gr

import ctxmix_hf as cm
from ctxmix_hf.demo import handlers, panels
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


def asset(name: str) -> str:
    return (resources.files("ctxmix_hf") / "demo" / name).read_text(encoding="utf-8")


def head() -> str:
    """Scripts and styles, inline: the page fetches nothing from elsewhere."""
    return f"<style>{style()}\n{asset('page.css')}</style><script>{script()}\n{asset('glue.js')}</script>"


def show(model: str, method: str, text: str) -> tuple[Any, str]:
    """The map, or why there is none."""
    try:
        return handlers.view_of(model, method, text), ""
    except cm.CtxmixError as error:
        return gr.skip(), panels.message(str(error))


def info(model: str, method: str, text: str) -> str:
    try:
        return panels.method_info(method, handlers.slow_note(model, method, text or ""))
    except cm.CtxmixError as error:
        return panels.message(str(error))


def predict(model: str, text: str) -> str:
    """Probabilities; a text that gave no map gives nothing here either."""
    try:
        return panels.prediction_bars(handlers.predictions(model, text))
    except cm.CtxmixError:
        return ""


def score(model: str, text: str) -> str:
    try:
        made = {name: handlers.scores(model, text, name) for name in handlers.SCORES}
    except cm.CtxmixError as error:
        return panels.message(str(error), "warn")
    return panels.score_lines(made)


MODES = ("two methods", "two models", "two sentences")


def compare(
    mode: str, model: str, method: str, text: str, other_model: str, other_method: str, other_text: str
) -> tuple[Any, Any, Any, str]:
    """Three widgets: first, second, and second minus first."""
    second = {
        "two methods": (model, other_method, text), "two models": (other_model, method, text), "two sentences": (model, method, other_text),
    }  # fmt: skip
    try:
        wanted = second.get(mode) or (other_model, other_method, other_text)
        first, other, gap = handlers.compare(model, method, text, *wanted)
    except cm.CtxmixError as error:
        return gr.skip(), gr.skip(), gr.skip(), panels.message(str(error))
    query = {"tab": "compare", "mode": mode, "model": model, "method": method, "text": text}
    query |= {"other_model": wanted[0], "other_method": wanted[1], "other_text": wanted[2]}
    sides = [
        made.to_view(title=f"{n}: {m_} · {mo.rsplit('/', 1)[-1]}")
        for made, n, m_, mo in ((first, "first", method, model), (other, "second", wanted[1], wanted[0]))
    ]
    return sides[0], sides[1], {**gap.payload(), "title": "second − first", "pairs": gap.pairs, "query": query}, ""


def agree(model: str, text: str, target: int) -> str:
    try:
        return panels.agreement_table(handlers.agreement(model, text, int(target or 0)))
    except cm.CtxmixError as error:
        return panels.message(str(error))


def similar(model: str, method: str, text_a: str, text_b: str) -> str:
    try:
        return panels.similarity_panel(handlers.similarity(model, text_a, text_b, method))
    except cm.CtxmixError as error:
        return panels.message(str(error))
