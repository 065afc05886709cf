"""The page: widgets and which function each event calls."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from ctxmix_hf.addresses import PROJECT_URLS
from ctxmix_hf.demo import (
    api,
    examples,
    extras,
    gate,
    handlers,
    hub,
    links,
    options,
    parts,
    snippets,
)
from ctxmix_hf.demo.door import TITLE
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.demo.shelf import TEXT_MODELS

DEFAULT = (examples.SENTENCES[0][1], examples.METHODS[0], examples.SENTENCES[0][2])
REASON = examples.REASONS[DEFAULT[0], DEFAULT[2]]
Parts = dict[str, Any]
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
HEAD = """<div class='ctxmix-head'><h1>Which tokens was each representation made from?</h1>
<p>Rows are targets, columns the sources they were mixed from. Click a row or a word.</p></div>"""
PAPERS = {
    "ALTI": "2203.04212",
    "Value Zeroing": "2301.12971",
    "GlobEnc": "2205.03286",
    "vector norms": "2004.10102",
    "attention rollout and flow": "2005.00928",
    "hidden token attribution": "1908.04211",
}
FOOT = "<p class='ctxmix-foot'>Papers: {papers} · {ours}</p>".format(
    papers=", ".join(
        f"<a href='https://arxiv.org/abs/{paper}'>{name}</a>" for name, paper in PAPERS.items()
    ),
    ours=" · ".join(
        f"<a href='{PROJECT_URLS[name]}'>{name}</a>" for name in ("Documentation", "Repository")
    ),
)
TABS = ("map", "why", "embeddings", "compare", "image", "precomputed", "share")


def build_page() -> Any:
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 3600)) as page:
        api.add_endpoints()  # first, so that the endpoints get their own names
        parts.assets(dict(handlers.method_choices()))
        gr.HTML(HEAD, apply_default_css=False, padding=False, elem_id="head")
        made = _top()
        with gr.Tabs(elem_id="tabs", overflow_behavior="wrap") as tabs:
            made |= {"tabs": tabs, **_map_tab(made), **_why_tab(made), **_similarity_tab(made)}
            made |= {**_compare_tab(made), **extras.image_tab(made, PRIVATE)}
            made |= {
                **extras.precomputed_tab(made, PRIVATE),
                **extras.share_tab(made, PRIVATE),
            }
        made |= _examples()
        gr.HTML(FOOT, apply_default_css=False, padding=False, elem_id="foot")
        _events(made)
        page.load(lambda: hub.panel(DEFAULT[2]), None, made["hub"], queue=False, **PRIVATE)
        links.add(
            page, {name: part for name, part in made.items() if not name.endswith("_tab")}, PRIVATE
        )
    return page


def _top() -> Parts:
    """What the tabs share: one bar, and the examples under it."""
    any_model = SETTINGS.any_model
    with gr.Row(elem_id="top", equal_height=True):
        text = gr.Textbox(
            DEFAULT[2],
            label=f"Sentence or text, at most {SETTINGS.document_characters:,} characters",
            placeholder="Type a sentence and press Enter",
            lines=1,
            max_lines=4,
            elem_id="text",
            scale=6,
            min_width=280,
            container=False,
        )
        model = gr.Dropdown(
            list(TEXT_MODELS),
            value=DEFAULT[0],
            label="Model (or type a Hub id)" if any_model else "Model",
            allow_custom_value=any_model,
            elem_id="model",
            scale=2,
            min_width=140,
            container=False,
        )
        method = gr.Dropdown(
            handlers.method_choices(),
            value=DEFAULT[1],
            label="Method",
            elem_id="method",
            scale=3,
            min_width=140,
            container=False,
        )
        show = gr.Button("Show", variant="primary", elem_id="show", scale=0, min_width=72)
    pair = gr.Textbox(
        "",
        label="Second sentence (optional: the other half of a pair)",
        placeholder="Second sentence: the other half of a pair",
        lines=1,
        max_lines=4,
        elem_id="pair",
        container=False,
    )
    parts.html("message-box", "<div id='message'></div>")
    settings = gr.Textbox("", label="Options of the method", elem_id="options", visible="hidden")
    part = gr.Textbox("", label="Paragraph shown by words", elem_id="part", visible="hidden")
    stop = gr.Button("Stop", elem_id="stop", visible="hidden")
    now = gr.Textbox("map", visible="hidden")  # the tab that is open
    serial = gr.Textbox("", visible="hidden")  # the number of a request, filled in by the browser
    return {
        "model": model,
        "method": method,
        "text": text,
        "pair": pair,
        "options": settings,
        "part": part,
        "show": show,
        "now": now,
        "serial": serial,
        "stop": stop,
    }


def _examples() -> Parts:
    """Below the picture for the keyboard, above it for the eye (page.css)."""
    with gr.Row(elem_id="examples"):
        buttons = [
            gr.Button(title, size="sm", min_width=90, scale=0) for title, *_ in examples.SENTENCES
        ]
        gr.Button("+ second sentence", size="sm", min_width=90, scale=0, elem_id="pair-button")
        gr.Button("Take the tour", size="sm", min_width=90, scale=0, elem_id="tour-button")
    return {"examples_tab": buttons}


FIELDS = ("model", "method", "text", "pair", "options")


def _map_tab(made: Parts) -> Parts:
    with gr.Tab("Map", id="map") as tab, gr.Row():
        with gr.Column(scale=7, min_width=320):
            parts.html("part-place", "<div id='part-box'></div>")
            main = parts.heatmap("main", parts.answer(*DEFAULT))
        with gr.Column(scale=3, min_width=280, elem_id="beside"):
            places = ("prediction", "method-info", "method-options")
            parts.html("beside-box", "".join(f"<div id='{name}'></div>" for name in places))
            models = parts.html("hub", hub.panel(DEFAULT[2]))
            compute = gr.Button(
                "What did the prediction depend on?", size="sm", elem_id="scores-button"
            )
            scores = parts.panel("scores-panel")
    compute.click(
        parts.score,
        [made["model"], made["text"], made["pair"], made["serial"]],
        scores,
        concurrency_id="model",
        js=parts.stamped("scores-panel", 3),
        **PRIVATE,
    ).then(None, None, None, js="() => window.ctxmixSpace.put({scores: 1})", **PRIVATE)
    return {"map_tab": tab, "main": main, "scores": scores, "hub": models}


def _why_tab(made: Parts) -> Parts:
    with gr.Tab("Why this output?", id="why") as tab:
        with gr.Row(elem_id="why-row", equal_height=True):
            word = gr.Textbox(
                REASON[0],
                label="Explain this word or class",
                placeholder="what the model predicts",
                elem_id="why-word",
                container=False,
                min_width=140,
            )
            foil = gr.Textbox(
                REASON[1],
                label="Rather than this one",
                placeholder="(nothing)",
                elem_id="why-foil",
                container=False,
                min_width=140,
            )
            rule = gr.Dropdown(
                [(label, name) for name, label in options.RULE_NAMES.items()],
                value=options.RULES[0],
                label="Rule",
                elem_id="why-rule",
                container=False,
                min_width=190,
                scale=0,
            )
            go = gr.Button("Explain", elem_id="why-button", scale=0, min_width=90)
        account = parts.panel("why")
    asked = [made[name] for name in ("model", "text", "pair")] + [word, foil, rule, made["serial"]]
    gr.on(
        [go.click, word.submit, foil.submit, rule.input],
        parts.why,
        asked,
        account,
        concurrency_id="model",
        trigger_mode="multiple",
        js=parts.stamped("why", 6),
        **PRIVATE,
    ).then(
        None,
        [word, foil, rule],
        None,
        js="(word, foil, rule) => window.ctxmixSpace.put({word, foil, plain: word || foil ? '' : 1, "
        f"rule: rule === '{options.RULES[0]}' ? '' : rule}})",
        **PRIVATE,
    )
    tab.select(
        parts.when("why", parts.why, 1),
        [made["now"], *asked],
        account,
        js=parts.opening("why", "why"),
        concurrency_id="model",
        **PRIVATE,
    )
    return {"why_tab": tab, "word": word, "foil": foil, "rule": rule, "why": account}


def _similarity_tab(made: Parts) -> Parts:
    with gr.Tab("Similarity", id="embeddings") as tab:
        with gr.Row(elem_id="embeddings-row", equal_height=True):
            a = gr.Textbox(
                snippets.TEXTS[0],
                label="First text",
                elem_id="text-a",
                container=False,
                min_width=240,
            )
            b = gr.Textbox(
                snippets.TEXTS[1],
                label="Second text",
                elem_id="text-b",
                container=False,
                min_width=240,
            )
            go = gr.Button(
                "Explain", variant="primary", elem_id="similarity-button", scale=0, min_width=90
            )
        result = parts.panel("similarity")
        documents = gr.Textbox(
            "\n".join(snippets.DOCUMENTS),
            label="Rank these by their similarity to the first text, one per line",
            lines=3,
            max_lines=8,
            elem_id="documents",
        )
        order = gr.Button("Rank", elem_id="rank-button", size="sm")
        ranking = parts.panel("ranking")
    asked = [made["model"], a, b, made["serial"]]
    gr.on(
        [go.click, a.submit, b.submit],
        parts.similar,
        asked,
        result,
        concurrency_id="model",
        trigger_mode="multiple",
        js=parts.stamped("similarity", 3),
        **PRIVATE,
    ).then(None, [a, b], None, js="(a, b) => window.ctxmixSpace.put({a, b})", **PRIVATE)
    rank = [made["model"], a, documents, made["serial"]]
    gr.on(
        [order.click, documents.submit, a.submit],
        parts.ranked,
        rank,
        ranking,
        concurrency_id="model",
        trigger_mode="multiple",
        js=parts.stamped("ranking", 3),
        **PRIVATE,
    ).then(
        None,
        [a, documents],
        None,
        js="(a, documents) => window.ctxmixSpace.put({a, documents})",
        **PRIVATE,
    )
    tab.select(
        parts.when("embeddings", parts.similar, 1),
        [made["now"], *asked],
        result,
        js=parts.opening("embeddings", "similarity"),
        concurrency_id="model",
        **PRIVATE,
    ).then(
        parts.when("embeddings", parts.ranked, 1),
        [made["now"], *rank],
        ranking,
        js=parts.opening("embeddings", "ranking"),
        concurrency_id="model",
        **PRIVATE,
    )
    found = {"a": a, "b": b, "similarity": result, "documents": documents, "ranking": ranking}
    return {"embeddings_tab": tab, **found}


def _compare_tab(made: Parts) -> Parts:
    with gr.Tab("Compare", id="compare") as tab:
        with gr.Row(elem_id="compare-row", equal_height=True):
            mode = gr.Radio(
                list(parts.MODES),
                value=parts.MODES[0],
                label="Compare what stands above with a second",
                elem_id="mode",
                scale=4,
                min_width=280,
                container=False,
                show_label=False,
            )
            method = gr.Dropdown(
                handlers.method_choices(),
                value="attention_rollout",
                label="Second method",
                elem_id="other-method",
                container=False,
                scale=5,
            )
            model = gr.Dropdown(
                list(TEXT_MODELS),
                value="ctxmix/sentiment",
                label="Second model",
                allow_custom_value=SETTINGS.any_model,
                visible="hidden",
                elem_id="other-model",
                container=False,
                scale=5,
            )
            text = gr.Textbox(
                "The book about the boy [MASK] old.",
                label="Second sentence: press Enter",
                visible="hidden",
                elem_id="other-text",
                container=False,
                scale=5,
            )
            go = gr.Button(
                "Compare", variant="primary", elem_id="compare-button", scale=0, min_width=110
            )
        settings = gr.Textbox(
            "", label="Options of the second method", elem_id="other-options", visible="hidden"
        )
        places = ("compare-message", "other-method-options", "rank-correlation")
        parts.html("compare-box", "".join(f"<div id='{name}'></div>" for name in places))
        with gr.Row(elem_id="sides"):
            with gr.Column(min_width=320):
                first = parts.heatmap("first")
            with gr.Column(min_width=320):
                second = parts.heatmap("second")
            with gr.Column(min_width=320):
                gap = parts.heatmap("difference")
        button = gr.Button(
            "Agreement of all methods on this target", size="sm", elem_id="agreement-button"
        )
        table = parts.panel("agreement")
        target = gr.Number(0, visible="hidden")
    mode.change(
        lambda m: [gr.update(visible=True if m == name else "hidden") for name in parts.MODES],
        mode,
        [method, model, text],
        queue=False,
        **PRIVATE,
    )
    second_side = [model, method, text, settings]
    asked = [mode, *(made[name] for name in FIELDS), *second_side, made["serial"]]
    shown = [first, second, gap]
    gr.on(
        [go.click, text.submit, mode.input, method.input, model.input, settings.submit],
        parts.compare,
        asked,
        shown,
        concurrency_id="model",
        trigger_mode="multiple",
        js=parts.stamped("compare", len(asked) - 1),
        **PRIVATE,
    )
    tab.select(
        parts.when("compare", parts.compare, 3),
        [made["now"], *asked],
        shown,
        js=parts.opening("compare", "compare"),
        concurrency_id="model",
        **PRIVATE,
    )
    agreeing = button.click(
        parts.agree_steps,
        [made["model"], made["text"], made["pair"], target, made["serial"]],
        table,
        concurrency_id="model",
        js="(model, text, pair) => [model, text, pair, window.ctxmixSpace.agree(), "
        "window.ctxmixSpace.ask('agreement')]",
        **PRIVATE,
    )
    return {
        "compare_tab": tab,
        "mode": mode,
        "other_method": method,
        "other_model": model,
        "other_text": text,
        "other_options": settings,
        "first": first,
        "second": second,
        "gap": gap,
        "agreement": table,
        "agreeing_tab": agreeing,
    }


def stopped(asked: str) -> None:
    """A part of the page and the number of its last request: neither it nor one before it is computed."""
    slot, _, number = str(asked).rpartition(":")
    gate.cancel(slot, number)


def _events(made: Parts) -> None:
    """A new text, model or method: the map with what stands beside it, and the open tab."""
    # the word to explain and its foil belong to an example: they go with it, before anything is asked
    gr.on(
        [made["text"].submit, made["show"].click, made["model"].input],
        None,
        [made[name] for name in ("model", "text", "word", "foil")],
        [made["word"], made["foil"]],
        js="(...fields) => window.ctxmixSpace.reason(...fields)",
        **PRIVATE,
    )
    asked = [made[name] for name in (*FIELDS, "part", "serial")]
    triggers = [
        made["text"].submit,
        made["pair"].submit,
        made["show"].click,
        made["method"].input,
        made["model"].input,
        made["options"].submit,
        made["part"].submit,
    ]
    drawn = [
        gr.on(
            triggers,
            parts.answer,
            asked,
            made["main"],
            concurrency_id="model",
            trigger_mode="multiple",
            js=f"(...fields) => window.ctxmixSpace.main(fields.slice(0, {len(FIELDS) + 1}))",
            **PRIVATE,
        )
    ]
    for button, (_, model, text, pair) in zip(
        made["examples_tab"], examples.SENTENCES, strict=True
    ):
        constants = ", ".join(map(json.dumps, (model, DEFAULT[1], text, pair, "", "")))
        words = ", ".join(map(json.dumps, examples.REASONS[model, text]))
        button.click(
            None,
            None,
            [*asked[:-1], made["word"], made["foil"]],
            js=f"() => [{constants}, {words}]",
            **PRIVATE,
        )
        drawn.append(
            button.click(
                parts.answer,
                asked,
                made["main"],
                trigger_mode="multiple",
                js=f"() => [{constants}, window.ctxmixSpace.ask('main', {constants})]",
                **PRIVATE,
            )
        )
    made["stop"].click(
        stopped,
        made["serial"],
        None,
        queue=False,
        js="() => window.ctxmixSpace.stopped",
        **PRIVATE,
    )
    # of a tab: slot, function, fields beside the tab and the number, where the answer goes
    others: dict[str, list[tuple[str, Any, list[str], list[str]]]] = {
        "compare": [
            (
                "compare",
                parts.compare,
                ["mode", *FIELDS, "other_model", "other_method", "other_text", "other_options"],
                ["first", "second", "gap"],
            )
        ],
        "why": [("why", parts.why, ["model", "text", "pair", "word", "foil", "rule"], ["why"])],
        "embeddings": [
            ("similarity", parts.similar, ["model", "a", "b"], ["similarity"]),
            ("ranking", parts.ranked, ["model", "a", "documents"], ["ranking"]),
        ],
    }
    for event in drawn:
        event.then(None, None, None, cancels=[made["agreeing_tab"]], **PRIVATE)
        for tab, slots in others.items():
            for slot, function, fields, answers in slots:
                event.then(
                    parts.when(tab, function, len(answers)),
                    [made[name] for name in ("now", *fields, "serial")],
                    [made[name] for name in answers],
                    js=parts.stamped(slot, len(fields) + 1, tab),
                    concurrency_id="model",
                    **PRIVATE,
                )
    for name in TABS[:-1]:
        made[f"{name}_tab"].select(
            None, None, made["now"], js=f"() => window.ctxmixSpace.tab('{name}')", **PRIVATE
        )
