"""Tabs beside the map: images, precomputed maps, sharing; and links that reopen a view."""

from __future__ import annotations

import base64
import io
import tempfile
from pathlib import Path
from typing import Any

import gradio as gr

import ctxmix_hf as cm
from ctxmix_hf.demo import handlers, panels, parts, stores
from ctxmix_hf.demo.limits import check_text
from ctxmix_hf.demo.shelf import SHELF
from ctxmix_hf.errors import InputError
from ctxmix_hf.viz.signals import patch_grid


# ---- images ---------------------------------------------------------------------------------------------------
def image_view(image: Any, model: str, method: str) -> dict[str, Any]:
    """A vision model's map with the picture it belongs to."""
    if image is None:
        raise InputError("Choose a picture first.")
    held = SHELF.get(model)
    if "pixel_values" not in getattr(held.model, "main_input_name", "pixel_values"):
        raise InputError(f"{model} does not read pictures: type the name or path of a vision model.")
    from transformers import AutoImageProcessor

    reader: Any = AutoImageProcessor
    try:
        processor = reader.from_pretrained(held.model.config._name_or_path)
    except (OSError, ValueError) as error:
        raise InputError(f"{model} has no image processor: {str(error).splitlines()[0]}") from error
    with held.lock:
        out = held.model(**processor(images=image.convert("RGB"), return_tensors="pt"), output_context_mixing=[method])
    made = next(iter(out.context_mixing.values()))[0]
    grid, before = patch_grid(made.size)
    small = image.convert("RGB").resize((448, 448))
    file = io.BytesIO()
    small.save(file, format="JPEG", quality=85)
    source = "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
    view = made.to_view(title=f"{method} · {model}")
    return {**view, "pin": "0", "image": {"src": source, "grid": list(grid), "offset": before, "ratio": 1.0}}


def show_image(image: Any, model: str, method: str) -> tuple[Any, str]:
    try:
        return image_view(image, model, method), ""
    except cm.CtxmixError as error:
        return gr.skip(), panels.message(str(error))


def image_tab(private: dict[str, Any]) -> None:
    with gr.Tab("Image", id="image"):
        gr.Markdown("For vision models: the map laid over the picture's patches; click a patch to make it the target.")
        with gr.Row():
            image = gr.Image(type="pil", label="Picture", height=260, sources=["upload", "clipboard"], elem_id="map-image-upload")
            with gr.Column():
                model = gr.Textbox(
                    "", label="Vision model", placeholder="a Hub id or a path, e.g. google/vit-base-patch16-224", elem_id="vision-model"
                )
                method = gr.Dropdown(handlers.map_methods(), value="attention_rollout", label="Method")
                go = gr.Button("Show", variant="primary")
        message = gr.HTML("", elem_id="image-message", apply_default_css=False)
        widget = parts.heatmap("image")
    gr.on([go.click, model.submit], show_image, [image, model, method], [widget, message], concurrency_id="model", **private)


# ---- precomputed ----------------------------------------------------------------------------------------------
def precomputed_tab(private: dict[str, Any]) -> None:
    with gr.Tab("Precomputed", id="precomputed"):
        gr.Markdown("Maps somebody computed before (a dataset repo made with `MapStore`): browsed without loading a model.")
        with gr.Row():
            repo = gr.Textbox(stores.DEFAULT, label="Dataset repo or folder", elem_id="store", scale=3)
            split = gr.Dropdown(["all"], value="all", label="Split", elem_id="store-split")
            search = gr.Textbox("", label="Search the text", elem_id="store-search", scale=2)
        message = gr.HTML("", elem_id="store-message", apply_default_css=False)
        with gr.Row():
            rows = gr.Dropdown([], label="Example", elem_id="store-example", scale=3)
            method = gr.Dropdown([], label="Method", elem_id="store-method")
        widget = parts.heatmap("precomputed")
    gr.on([repo.submit, split.input, search.submit, search.input], stores.listing, [repo, split, search], [split, rows, method, message],
          trigger_mode="always_last", **private)  # fmt: skip
    gr.on([rows.change, method.input], stores.opened, [repo, rows, method], [widget, message], trigger_mode="always_last", **private)


# ---- sharing --------------------------------------------------------------------------------------------------
def files(model: str, method: str, text: str) -> tuple[Any, str]:
    """JSON, CSV, HTML and figures of the map above, in a folder of their own."""
    try:
        made = handlers.map_of(model, method, check_text(text))
        folder = Path(tempfile.mkdtemp(prefix="ctxmix-"))
        names = ["map.json", "map.csv", "map.html", "map.svg", "map.png", "map.safetensors"]
        return [str(made.save(folder / name)) for name in names], ""
    except cm.CtxmixError as error:
        return gr.skip(), panels.message(str(error))


def code(model: str, method: str, text: str) -> str:
    return handlers.snippet(model, method, text or "")


def share_tab(top: Any, private: dict[str, Any]) -> None:
    asked = [top.model, top.method, top.text]
    with gr.Tab("Share & code", id="share") as tab:
        link = gr.Textbox(
            "", label="Link to this view (everything is in the address)", elem_id="share-link", buttons=["copy"], interactive=False
        )
        first = handlers.snippet(top.model.value, top.method.value, top.text.value)
        snippet = gr.Code(first, language="python", label="The same with the library", elem_id="snippet")
        go = gr.Button("Prepare files: JSON, CSV, HTML, SVG, PNG, safetensors", elem_id="files-button")
        message = gr.HTML("", elem_id="files-message", apply_default_css=False)
        made = gr.File(label="Files", file_count="multiple", elem_id="files", interactive=False)
        gr.Markdown("PNG and SVG of exactly what the map shows: the buttons above the map. Every function of this page is an endpoint: "
                    "see *Use via API* below (`gradio_client`).")  # fmt: skip
    tab.select(code, asked, snippet, queue=False, **private)
    tab.select(None, None, link, js="() => window.ctxmixSpace.link()", **private)
    go.click(files, asked, [made, message], **private)


# ---- links ----------------------------------------------------------------------------------------------------
def deep_links(page: Any, top: Any, main: Any, tabs: Any, compared: list[Any], private: dict[str, Any]) -> None:
    """`?model=&method=&text=` (and `tab=compare&...`) reopens the view; without them nothing is touched."""
    outputs = [top.model, top.method, top.text, main, top.message, tabs, *compared[:1], *compared[4:]]

    def reopen(request: gr.Request) -> list[Any]:
        asked = dict(request.query_params) if request else {}
        untouched = [gr.skip() for _ in outputs]
        if not {"model", "method", "text"} & set(asked):
            return untouched
        model, method = asked.get("model", top.model.value), asked.get("method", top.method.value)
        text = asked.get("text", top.text.value)
        view, message = parts.show(model, method, text)
        opened = [model, method, text, view, message]
        if asked.get("tab") != "compare":
            return opened + untouched[5:]
        mode = asked.get("mode", parts.MODES[0])
        second = [asked.get(f"other_{name}", value) for name, value in (("model", model), ("method", method), ("text", text))]
        sides = parts.compare(mode, model, method, text, *second)
        return [*opened, gr.Tabs(selected="compare"), mode if mode in parts.MODES else gr.skip(), *second, *sides]

    page.load(reopen, None, outputs, **{**private, "show_progress": "hidden"})
