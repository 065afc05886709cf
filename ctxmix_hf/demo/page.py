"""The page: widgets and which function each event calls."""

from __future__ import annotations

from typing import Any

import gradio as gr

import ctxmix_hf as cm
from ctxmix_hf.demo import api, examples, extras, handlers, links, parts
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.demo.shelf import BOX

DEFAULT = (examples.SENTENCES[0][1], examples.METHODS[0], examples.SENTENCES[0][2])
Parts = dict[str, Any]
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
FORGET = "() => window.ctxmixSpace.put({scores: '', agree: ''})"  # they belong to the text before
HEAD = """<div class='ctxmix-head'><h1>Which tokens was each representation made from?</h1>
<p>Type a sentence, choose a model and a method. Rows are targets, columns the sources they were mixed from; click a row or a word.</p>
</div>"""


def method_choices() -> list[tuple[str, str]]:
    from ctxmix_hf.demo.limits import info_of

    plain = [(f"{name}: {info_of(name).summary}", name) for name in handlers.map_methods()]
    flows = [f"{row.name}+flow" for row in cm.list_methods("layer")]
    return plain + [(f"{name}: maximum flow from the input instead of rollout", name) for name in flows]


def build_page() -> Any:
    with gr.Blocks(title="Context mixing", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        api.add_endpoints()  # first, so that the endpoints get their own names
        gr.HTML(HEAD, apply_default_css=False, padding=False)
        made = _top()
        with gr.Tabs(elem_id="tabs", overflow_behavior="wrap") as tabs:
            made |= {"tabs": tabs, **_map_tab(made), **_compare_tab(made), **_embeddings_tab(made)}
            made |= {**extras.image_tab(PRIVATE), **extras.precomputed_tab(made, PRIVATE), **extras.share_tab(made, PRIVATE)}
        _events(made)
        links.add(page, {name: part for name, part in made.items() if not name.endswith("_tab")}, PRIVATE)
    return page


def _top() -> Parts:
    """What every tab shares."""
    any_model = SETTINGS.any_model
    with gr.Row(elem_id="top"):
        label = f"Text: press Enter (at most {SETTINGS.characters:,} characters)"
        text = gr.Textbox(DEFAULT[2], label=label, lines=1, max_lines=4, elem_id="text", scale=5, min_width=280)
        pair = gr.Textbox("", label="Second sentence (optional: the other half of a pair)", placeholder="none", lines=1, max_lines=4,
                          elem_id="pair", scale=4, min_width=240)  # fmt: skip
        show = gr.Button("Show", variant="primary", elem_id="show", scale=0, min_width=88)
    with gr.Row():
        named = "Model (or type a Hub id)" if any_model else "Model"
        model = gr.Dropdown(list(BOX), value=DEFAULT[0], label=named, allow_custom_value=any_model, elem_id="model", scale=3, min_width=220)
        method = gr.Dropdown(method_choices(), value=DEFAULT[1], label="Method", elem_id="method", scale=6, min_width=220)
    info = parts.html("method-info", parts.info(*DEFAULT))
    message = parts.html("message")
    now = gr.Textbox("map", visible="hidden")  # the tab that is open
    return {"model": model, "method": method, "text": text, "pair": pair, "show": show, "info": info, "message": message, "now": now}


def _asked(made: Parts) -> list[Any]:
    return [made[name] for name in ("model", "method", "text", "pair")]


def _map_tab(made: Parts) -> Parts:
    with gr.Tab("Map", id="map") as tab:
        with gr.Row(elem_id="examples"):
            buttons = [gr.Button(title, size="sm", min_width=150) for title, *_ in examples.SENTENCES]
        with gr.Row():
            with gr.Column(scale=7, min_width=320):
                main = parts.heatmap("main", handlers.view_of(*DEFAULT))
            with gr.Column(scale=3, min_width=280, elem_id="beside"):
                prediction = parts.html("prediction", parts.predict(DEFAULT[0], DEFAULT[2]))
                compute = gr.Button("What did the prediction depend on?", size="sm", elem_id="scores-button")
                scores = parts.html("scores")
    outputs = [*_asked(made), main, made["message"], prediction, made["info"], scores]
    for button, (_, model, text, pair) in zip(buttons, examples.SENTENCES, strict=True):
        button.click(_opener(model, text, pair), None, outputs, **PRIVATE).then(None, None, None, js=FORGET, **PRIVATE)
    compute.click(
        parts.score, [made["model"], made["text"], made["pair"]], scores, concurrency_id="model", **PRIVATE
    ).then(None, None, None, js="() => window.ctxmixSpace.put({scores: 1})", **PRIVATE)  # fmt: skip
    return {"map_tab": tab, "main": main, "prediction": prediction, "scores": scores}


def _opener(model: str, text: str, pair: str) -> Any:
    """A cached example opens without a model."""

    def open_example() -> tuple[Any, ...]:
        asked = (model, DEFAULT[1], text, pair)
        return (*asked, *parts.show(*asked), parts.predict(model, text, pair), parts.info(*asked), "")

    return open_example


def _compare_tab(made: Parts) -> Parts:
    with gr.Tab("Compare", id="compare") as tab:
        gr.Markdown(
            "The **first** side is the model, method and text above; the second side changes one of them. "
            "In the difference blue means that the second has more, orange that the first has."
        )
        with gr.Row(elem_id="compare-row"):
            mode = gr.Radio(list(parts.MODES), value=parts.MODES[0], label="Compare", elem_id="mode", scale=4, min_width=280)
            method = gr.Dropdown(method_choices(), value="attention_rollout", label="Second method", elem_id="other-method", scale=5)
            model = gr.Dropdown(list(BOX), value="ctxmix/sentiment", label="Second model", allow_custom_value=SETTINGS.any_model,
                                visible="hidden", elem_id="other-model", scale=5)  # fmt: skip
            text = gr.Textbox(DEFAULT[2].replace("keys", "key"), label="Second sentence: press Enter", visible="hidden",
                              elem_id="other-text", scale=5)  # fmt: skip
            go = gr.Button("Compare", variant="primary", elem_id="compare-button", scale=0, min_width=110)
        message = parts.html("compare-message")
        with gr.Row():
            with gr.Column(min_width=320):
                first = parts.heatmap("first")
            with gr.Column(min_width=320):
                second = parts.heatmap("second")
        parts.html("rank", "<div id='rank-correlation' role='status' aria-live='polite'></div>")
        gap = parts.heatmap("difference")
        button = gr.Button("Agreement of all methods on this target", size="sm", elem_id="agreement-button")
        table = parts.html("agreement")
        target, compared = gr.Number(0, visible="hidden"), gr.State("")
    mode.change(
        lambda m: [gr.update(visible=True if m == name else "hidden") for name in parts.MODES], mode,
        [method, model, text], queue=False, **PRIVATE,
    )  # fmt: skip
    fields = [mode, *_asked(made), model, method, text]
    asked, shown = [*fields, compared], [first, second, gap, message, compared]
    gr.on([go.click, text.submit, mode.input, method.input, model.input], parts.compare_once, asked, shown,
          concurrency_id="model", trigger_mode="always_last", **PRIVATE)  # fmt: skip
    tab.select(parts.when("compare", parts.compare_once, 5), [made["now"], *asked], shown, js=parts.opening("compare"),
               concurrency_id="model", **PRIVATE)  # fmt: skip
    button.click(
        parts.agree, [made["model"], made["text"], made["pair"], target], table, concurrency_id="model",
        js="(model, text, pair, target) => [model, text, pair, window.ctxmixSpace.agree()]", **PRIVATE,
    )  # fmt: skip
    return {"compare_tab": tab, "mode": mode, "other_method": method, "other_model": model, "other_text": text, "first": first,
            "second": second, "gap": gap, "compare_message": message, "agreement": table, "compared": compared}  # fmt: skip


def _embeddings_tab(made: Parts) -> Parts:
    with gr.Tab("Embeddings", id="embeddings") as tab:
        gr.Markdown(
            "Which words made these two sentence vectors (mean of the token vectors) similar? Each text is coloured by its words' shares, "
            "which sum to the cosine for methods whose rows sum to 1."
        )
        with gr.Row(elem_id="embeddings-row"):
            a = gr.Textbox("The film is not good.", label="Text A", elem_id="text-a", scale=4)
            b = gr.Textbox("This movie is bad.", label="Text B", elem_id="text-b", scale=4)
            go = gr.Button("Explain", variant="primary", elem_id="similarity-button", scale=0, min_width=110)
        result = parts.html("similarity")
        seen = gr.State("")
    asked = [made["model"], made["method"], a, b, seen]
    shown = [result, seen]
    gr.on([go.click, a.submit, b.submit], parts.similar_once, asked, shown, concurrency_id="model", **PRIVATE).then(
        None, [a, b], None, js="(a, b) => window.ctxmixSpace.put({a, b})", **PRIVATE
    )
    tab.select(parts.when("embeddings", parts.similar_once, 2), [made["now"], *asked], shown, js=parts.opening("embeddings"),
               concurrency_id="model", **PRIVATE)  # fmt: skip
    return {"embeddings_tab": tab, "a": a, "b": b, "similarity": result, "alike": seen}


def _events(made: Parts) -> None:
    """A new text, model or method: the map, what stands beside it, and the open tab."""
    asked, triggers = (
        _asked(made),
        [made["text"].submit, made["pair"].submit, made["show"].click, made["method"].input, made["model"].input],
    )
    drawn = gr.on(
        triggers, parts.show, asked, [made["main"], made["message"]], concurrency_id="model", trigger_mode="always_last", **PRIVATE
    )
    drawn = drawn.then(parts.predict, [made["model"], made["text"], made["pair"]], made["prediction"], **PRIVATE)
    drawn = drawn.then(
        parts.info, asked, made["info"], **{**PRIVATE, "show_progress": "hidden"}
    )  # a model that was just loaded has a known speed
    drawn = drawn.then(lambda: ("", ""), None, [made["scores"], made["agreement"]], js=FORGET, **PRIVATE)
    gr.on(triggers, parts.info, asked, made["info"], queue=False, **PRIVATE)
    fields = [
        made[name] for name in ("now", "mode", "model", "method", "text", "pair", "other_model", "other_method", "other_text", "compared")
    ]
    shown = [made[name] for name in ("first", "second", "gap", "compare_message", "compared")]
    drawn = drawn.then(parts.when("compare", parts.compare_once, 5), fields, shown, concurrency_id="model", **PRIVATE)
    fields = [made[name] for name in ("now", "model", "method", "a", "b", "alike")]
    drawn.then(
        parts.when("embeddings", parts.similar_once, 2), fields, [made["similarity"], made["alike"]], concurrency_id="model", **PRIVATE
    )
    for name in ("map", "compare", "embeddings", "image", "precomputed"):
        made[f"{name}_tab"].select(None, None, made["now"], js=f"() => window.ctxmixSpace.tab('{name}')", **PRIVATE)
