"""Tabs beside the map: images, precomputed maps, sharing."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import gradio as gr

import ctxmix_hf as cm
from ctxmix_hf.demo import gate, handlers, panels, parts, pictures, snippets, stores
from ctxmix_hf.demo.settings import SETTINGS

FOLDERS = "ctxmix-files-"
FIRST = "digit 4"  # the picture the tab opens with
TYPED = """(now, ...fields) => {
  const at = document.activeElement;
  return [at && at.closest('#store-search') ? 'typed' : now, ...fields];
}"""


# ---- images ---------------------------------------------------------------------------------------------------
def image_tab(top: dict[str, Any], private: dict[str, Any]) -> dict[str, Any]:
    with gr.Tab("Images", id="image") as tab, gr.Row():
        with gr.Column(scale=6, min_width=320):
            widget = parts.heatmap("image")
            message = parts.html("image-message")
        with gr.Column(scale=4, min_width=280):
            picture = gr.Radio(
                list(pictures.EXAMPLES),
                value=FIRST,
                label="Example picture",
                elem_id="picture",
            )
            hint = "a Hub id or a path, e.g. google/vit-base-patch16-224"
            model = gr.Textbox(
                "ctxmix/digits",
                label="Vision model: ctxmix/digits is bundled",
                placeholder=hint,
                elem_id="vision-model",
            )
            method = gr.Dropdown(
                handlers.map_methods(),
                value=cm.DEFAULT_METHOD,
                label="Method",
                elem_id="vision-method",
            )
            image = gr.Image(
                pictures.example(FIRST),
                type="pil",
                label="Picture",
                height=200,
                sources=["upload", "clipboard"],
                elem_id="map-image-upload",
                min_width=280,
            )
            go = gr.Button("Show", variant="primary", elem_id="image-button")
            gr.Markdown(
                "Click a patch to make it the target. A link holds the model, the method, the target and the "
                "name of an example picture; **a picture you upload cannot be in a link**."
            )
    asked, shown = [image, model, method, picture, top["serial"]], [widget, message]
    stamped: dict[str, Any] = {
        **private,
        "concurrency_id": "model",
        "js": parts.stamped("image", 4),
    }
    picture.input(pictures.example, picture, image, **private).then(
        _if_model(parts.show_image), asked, shown, **stamped
    )
    image.upload(lambda: None, None, picture, queue=False, **private)
    gr.on([go.click, model.submit], parts.show_image, asked, shown, **stamped)
    tab.select(
        parts.when("image", parts.show_image, 2),
        [top["now"], *asked],
        shown,
        js=parts.opening("image", "image"),
        concurrency_id="model",
        **private,
    )
    method.input(_if_model(parts.show_image), asked, shown, **stamped)
    return {
        "image_tab": tab,
        "image": image,
        "picture": picture,
        "vision": model,
        "vision_method": method,
        "image_message": message,
        "image_map": widget,
    }


def _if_model(function: Any) -> Any:
    """Before a model is named there is nothing to say."""
    return lambda image, model, method, name, serial: (
        function(image, model, method, name, serial) if model.strip() else (gr.skip(), "")
    )


# ---- precomputed ----------------------------------------------------------------------------------------------
def precomputed_tab(top: dict[str, Any], private: dict[str, Any]) -> dict[str, Any]:
    with gr.Tab("Library", id="precomputed") as tab:
        gr.Markdown(
            "Maps computed before, browsed without loading a model: 34 bundled sentences, or a "
            "dataset repo made with `MapStore`."
        )
        with gr.Row():
            what = "Dataset repo or folder" if SETTINGS.local_paths else "Dataset repo"
            repo = gr.Textbox(
                stores.DEFAULT,
                label=f"{what}: press Enter",
                placeholder="user/name",
                elem_id="store",
                scale=3,
            )
            split = gr.Dropdown(
                ["all"], value="all", label="Split", elem_id="store-split", min_width=130
            )
            search = gr.Textbox("", label="Search the text", elem_id="store-search", scale=2)
        message = parts.html("store-message")
        with gr.Row():
            # custom values: what a search narrowed while an answer was on its way is no error
            rows = gr.Dropdown(
                [],
                label="Example",
                elem_id="store-example",
                scale=3,
                min_width=260,
                allow_custom_value=True,
            )
            method = gr.Dropdown(
                [], label="Method", elem_id="store-method", allow_custom_value=True
            )
        widget = parts.heatmap("precomputed")
    asked = [repo, split, search, method, rows]
    listed = [split, rows, method, message, widget]
    chosen, shown = [repo, rows, method, split, search], [widget, message]
    gr.on(
        [repo.submit, split.input, search.submit],
        found,
        asked,
        listed,
        trigger_mode="multiple",
        **private,
    )
    search.change(  # letters, Backspace, paste; not when a link fills the field
        parts.when("typed", found, 5),
        [top["now"], *asked],
        listed,
        js=TYPED,
        trigger_mode="multiple",
        **private,
    )
    tab.select(
        parts.when("precomputed", first_found, 5),
        [top["now"], *asked],
        listed,
        js=parts.opening("precomputed"),
        **private,
    )
    gr.on([rows.input, method.input], opened, chosen, shown, trigger_mode="always_last", **private)
    return {
        "precomputed_tab": tab,
        "store": repo,
        "split": split,
        "search": search,
        "id": rows,
        "store_method": method,
        "store_message": message,
        "stored": widget,
    }


def listing(
    name: str, split: str, words: str, method: Any = "", key: Any = ""
) -> tuple[Any, Any, Any, str]:
    """Choices of split, example and method; what was chosen stays where it still exists."""
    try:
        splits, methods, found = gate.run(stores.choices, name, split, words)
    except cm.CtxmixError as error:
        return gr.skip(), gr.skip(), gr.skip(), panels.message(str(error))
    said = "" if found else panels.message("No example contains these words.", "warn")
    keys = [place for _, place in found]
    return (
        gr.update(choices=["all", *splits], value=split or "all"),
        gr.update(choices=found, value=key if key in keys else next(iter(keys), None)),
        gr.update(
            choices=methods, value=method if method in methods else next(iter(methods), None)
        ),
        said,
    )


def found(
    name: str, split: str, words: str, method: Any = "", key: Any = ""
) -> tuple[Any, Any, Any, Any, Any]:
    """The choices, and the map of the one that stands there then."""
    *choices, said = listing(name, split, words, method, key)
    if said:
        return (*choices, said, gr.skip())
    shown, wrong = opened(name, choices[1]["value"], choices[2]["value"], split, words)
    return (*choices, wrong if isinstance(wrong, str) else "", shown)


def first_found(name: str, split: str, words: str, method: Any, key: Any) -> tuple[Any, ...]:
    """Opening the tab shows what the server's own store holds."""
    if key or not name.strip():
        return tuple(gr.skip() for _ in range(5))
    return found(name, split, words, method, key)


def opened(
    name: str, key: Any, method: Any, split: str = "all", words: str = ""
) -> tuple[Any, Any]:
    """The chosen example's map."""
    if not key:
        return gr.skip(), gr.skip()
    try:
        shown = gate.run(stores.view, name, str(key), str(method or ""))
        query = {
            "tab": "precomputed",
            "store": name.strip(),
            "split": "" if split == "all" else split,
            "search": words.strip(),
        }
        return {
            **shown,
            "query": {**query, "id": str(key), "store_method": shown["title"].split(" · ")[0]},
        }, ""
    except cm.CtxmixError as error:
        return gr.skip(), panels.message(str(error))


# ---- sharing --------------------------------------------------------------------------------------------------
def files(
    model: str, method: str, text: str, pair: str = "", settings: str = "", view: str = "{}"
) -> tuple[Any, str]:
    """JSON, CSV, HTML and figures of the map as it is shown, in a folder of their own."""
    try:
        tidy()
        folder = tempfile.mkdtemp(prefix=FOLDERS)
        state = _view(view)
        made = gate.run(handlers.files, folder, model, method, text, pair, settings or "", state)
        return gr.update(value=made, visible=True), ""
    except cm.CtxmixError as error:
        return gr.skip(), panels.message(str(error))


def _view(sent: str) -> dict[str, Any]:
    """What the page says it shows; anything else shows the map as it opens."""
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        state = json.loads(sent)
        return state if isinstance(state, dict) else {}
    return {}


def tidy(seconds: float = 600) -> None:
    """Folders that were served long ago go."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*"):
        with contextlib.suppress(OSError):  # a link to nowhere, or gone meanwhile
            if not folder.is_symlink() and folder.stat().st_mtime < time.time() - seconds:
                shutil.rmtree(folder, ignore_errors=True)


def share_tab(top: dict[str, Any], private: dict[str, Any]) -> dict[str, Any]:
    asked = [top[name] for name in ("model", "method", "text", "pair", "options", "serial")]
    default = {name: top[name].value for name in ("model", "method", "text")}
    with gr.Tab("Share & code", id="share") as tab:
        held = "Link to the view you came from (everything is in the address, except an uploaded picture)"
        link = gr.Textbox("", label=held, elem_id="share-link", buttons=["copy"], interactive=False)
        snippet = gr.Code(
            snippets.of_view("", default),
            language="python",
            label="The same with the library",
            elem_id="snippet",
        )
        go = gr.Button(
            "Prepare files of the map as it is shown: HTML, SVG, PNG, CSV, JSON, safetensors",
            elem_id="files-button",
        )
        message = parts.html("files-message")
        made = gr.File(
            label="Files", file_count="multiple", elem_id="files", interactive=False, visible=False
        )
        gr.Markdown(
            "PNG and SVG of exactly what the map shows: under *Options* above the map. Every function "
            "of this page is an endpoint: "
            "see *Use via API* below (`gradio_client`)."
        )
    tab.select(None, None, link, js="() => window.ctxmixSpace.link()", **private)
    tab.select(
        lambda query: snippets.of_view(query, default),
        [link],
        snippet,
        js="() => window.ctxmixSpace.asked()",
        queue=False,
        **private,
    )
    view = "(...fields) => [...window.ctxmixSpace.shown(fields.slice(0, -1)), window.ctxmixSpace.view()]"
    go.click(files, asked, [made, message], js=view, **private)
    return {"share_tab": tab}
