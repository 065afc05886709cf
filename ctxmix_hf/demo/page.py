"""The page: widgets and which function each event calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

import ctxmix_hf as cm
from ctxmix_hf.demo import api, examples, extras, handlers, parts
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.demo.shelf import BOX

DEFAULT = (examples.SENTENCES[0][1], examples.METHODS[0], examples.SENTENCES[0][2])
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
HEAD = """<div class='ctxmix-head'><h1>Which tokens was each representation made from?</h1>
<p>Type a sentence, choose a model and a method. Rows are targets, columns the sources they were mixed from; click a row or a word.</p>
</div>"""


@dataclass(frozen=True)
class Top:
    """What every tab shares."""

    model: Any
    method: Any
    text: Any
    info: Any
    message: Any


def method_choices() -> list[tuple[str, str]]:
    from ctxmix_hf.demo.limits import info_of

    plain = [(f"{name}: {info_of(name).summary}", name) for name in handlers.map_methods()]
    flows = [f"{row.name}+flow" for row in cm.list_methods("layer")]
    return plain + [(f"{name}: maximum flow from the input instead of rollout", name) for name in flows]


def build_page() -> Any:
    with gr.Blocks(title="Context mixing", analytics_enabled=False) as page:
        api.add_endpoints()  # first, so that the endpoints get their own names
        gr.HTML(HEAD, apply_default_css=False)
        top = _top()
        with gr.Tabs(elem_id="tabs") as tabs:
            main = _map_tab(top)
            fields = _compare_tab(top)
            _embeddings_tab(top)
            extras.image_tab(PRIVATE)
            extras.precomputed_tab(PRIVATE)
            extras.share_tab(top, PRIVATE)
        extras.deep_links(page, top, main, tabs, fields, PRIVATE)
    return page


def _top() -> Top:
    any_model = SETTINGS.any_model
    with gr.Row():
        label = f"Text: press Enter (at most {SETTINGS.characters:,} characters)"
        text = gr.Textbox(DEFAULT[2], label=label, lines=1, max_lines=4, elem_id="text", submit_btn="Show", scale=5, min_width=280)
        named = "Model (or type a Hub id)" if any_model else "Model"
        model = gr.Dropdown(list(BOX), value=DEFAULT[0], label=named, allow_custom_value=any_model, elem_id="model", scale=2, min_width=220)
        method = gr.Dropdown(method_choices(), value=DEFAULT[1], label="Method", elem_id="method", scale=4, min_width=220)
    info = gr.HTML(parts.info(*DEFAULT), elem_id="method-info", apply_default_css=False)
    message = gr.HTML("", elem_id="message", apply_default_css=False)
    return Top(model, method, text, info, message)


def _map_tab(top: Top) -> Any:
    asked = [top.model, top.method, top.text]
    with gr.Tab("Map", id="map"):
        with gr.Row(elem_id="examples"):
            buttons = [gr.Button(f"Example: {title}", size="sm", min_width=150) for title, _, _ in examples.SENTENCES]
        with gr.Row():
            with gr.Column(scale=7, min_width=320):
                main = parts.heatmap("main", handlers.view_of(*DEFAULT))
            with gr.Column(scale=3, min_width=280):
                prediction = gr.HTML(parts.predict(DEFAULT[0], DEFAULT[2]), elem_id="prediction", apply_default_css=False)
                compute = gr.Button("What did the prediction depend on?", size="sm", elem_id="scores-button")
                scored = gr.HTML("", elem_id="scores", apply_default_css=False)
    drawn = gr.on(
        [top.text.submit, top.method.input, top.model.input], parts.show, asked, [main, top.message], concurrency_id="model",
        trigger_mode="always_last", **PRIVATE,
    )  # fmt: skip
    drawn.then(parts.predict, [top.model, top.text], prediction, **PRIVATE).then(lambda: "", None, scored, **PRIVATE)
    gr.on([top.method.input, top.model.input, top.text.submit], parts.info, asked, top.info, queue=False, **PRIVATE)
    compute.click(parts.score, [top.model, top.text], scored, concurrency_id="model", **PRIVATE)
    for button, (_, model, text) in zip(buttons, examples.SENTENCES, strict=True):
        button.click(_opener(model, text), None, [top.model, top.method, top.text, main, top.message, prediction, top.info], **PRIVATE)
    return main


def _opener(model: str, text: str) -> Any:
    """A cached example opens without a model."""

    def open_example() -> tuple[Any, ...]:
        method = DEFAULT[1]
        return (model, method, text, *parts.show(model, method, text), parts.predict(model, text), parts.info(model, method, text))

    return open_example


def _compare_tab(top: Top) -> list[Any]:
    with gr.Tab("Compare", id="compare"):
        gr.Markdown(
            "The **first** side is the model, method and text above; the second side changes one of them. Blue: the second has more."
        )
        mode = gr.Radio(list(parts.MODES), value=parts.MODES[0], label="Compare", elem_id="mode")
        with gr.Row():
            other_method = gr.Dropdown(method_choices(), value="attention_rollout", label="Second method", elem_id="other-method")
            other_model = gr.Dropdown(list(BOX), value="ctxmix/sentiment", label="Second model", allow_custom_value=SETTINGS.any_model,
                                      visible="hidden", elem_id="other-model")  # fmt: skip
            other_text = gr.Textbox(DEFAULT[2].replace("keys", "key"), label="Second sentence", visible="hidden", elem_id="other-text")
        go = gr.Button("Compare", variant="primary", elem_id="compare-button")
        message = gr.HTML("", elem_id="compare-message", apply_default_css=False)
        with gr.Row():
            with gr.Column(min_width=320):
                first = parts.heatmap("first")
            with gr.Column(min_width=320):
                second = parts.heatmap("second")
        gr.HTML("<div id='rank-correlation' role='status' aria-live='polite'></div>", apply_default_css=False)
        gap = parts.heatmap("difference")
        matrix = gr.Button("Agreement of all methods on the target chosen in the Map tab", size="sm", elem_id="agreement-button")
        table = gr.HTML("", elem_id="agreement", apply_default_css=False)
        target = gr.Number(0, visible="hidden")
    fields = [mode, top.model, top.method, top.text, other_model, other_method, other_text]
    mode.change(
        lambda m: [gr.update(visible=True if m == name else "hidden") for name in parts.MODES], mode,
        [other_method, other_model, other_text], queue=False, **PRIVATE,
    )  # fmt: skip
    gr.on([go.click, other_text.submit], parts.compare, fields, [first, second, gap, message], concurrency_id="model", **PRIVATE)
    matrix.click(
        parts.agree, [top.model, top.text, target], table, js="(model, text, target) => [model, text, window.ctxmixSpace.pin()]",
        concurrency_id="model", **PRIVATE,
    )  # fmt: skip
    return [*fields, first, second, gap, message]


def _embeddings_tab(top: Top) -> None:
    with gr.Tab("Embeddings", id="embeddings"):
        gr.Markdown("Which words made these two sentence vectors (mean of the token vectors) similar? Shares sum to the cosine.")
        with gr.Row():
            a = gr.Textbox("The film is not good.", label="Text A", elem_id="text-a")
            b = gr.Textbox("This movie is bad.", label="Text B", elem_id="text-b")
        go = gr.Button("Explain the similarity", variant="primary", elem_id="similarity-button")
        result = gr.HTML("", elem_id="similarity", apply_default_css=False)
    gr.on([go.click, a.submit, b.submit], parts.similar, [top.model, top.method, a, b], result, concurrency_id="model", **PRIVATE)
