"""Tabs beside the map: images, precomputed maps, sharing."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import gradio as gr

import ctxmix_hf as cm
from ctxmix_hf.demo import handlers, panels, parts, pictures, snippets, stores
from ctxmix_hf.demo.settings import SETTINGS

FOLDERS = "ctxmix-files-"


# ---- images ---------------------------------------------------------------------------------------------------
def image_tab(private: dict[str, Any]) -> dict[str, Any]:
    with gr.Tab("Image", id="image") as tab:
        gr.Markdown(
            "For vision models: the map laid over the picture's patches, as the model saw it; click a patch to make it the target. "
            "A link holds the model, the method, the target and the name of an example picture; "
            "**a picture you upload cannot be in a link**."
        )
        with gr.Row():
            image = gr.Image(pictures.example("shapes"), type="pil", label="Picture", height=260, sources=["upload", "clipboard"],
                             elem_id="map-image-upload", min_width=280)  # fmt: skip
            with gr.Column(min_width=280):
                picture = gr.Radio(list(pictures.EXAMPLES), value="shapes", label="Example picture", elem_id="picture")
                hint = "a Hub id or a path, e.g. google/vit-base-patch16-224"
                model = gr.Textbox("", label="Vision model (none ships in the box)", placeholder=hint, elem_id="vision-model")
                method = gr.Dropdown(handlers.map_methods(), value="attention_rollout", label="Method", elem_id="vision-method")
                go = gr.Button("Show", variant="primary", elem_id="image-button")
        message = parts.html("image-message")
        widget = parts.heatmap("image")
    asked, shown = [image, model, method, picture], [widget, message]
    picture.input(pictures.example, picture, image, **private).then(
        _if_model(parts.show_image), asked, shown, concurrency_id="model", **private
    )
    image.upload(lambda: None, None, picture, queue=False, **private)
    gr.on([go.click, model.submit], parts.show_image, asked, shown, concurrency_id="model", **private)
    method.input(_if_model(parts.show_image), asked, shown, concurrency_id="model", **private)
    return {"image_tab": tab, "image": image, "picture": picture, "vision": model, "vision_method": method, "image_message": message,
            "image_map": widget}  # fmt: skip


def _if_model(function: Any) -> Any:
    """Before a model is named there is nothing to say."""
    return lambda image, model, method, name: function(image, model, method, name) if model.strip() else (gr.skip(), "")


# ---- precomputed ----------------------------------------------------------------------------------------------
def precomputed_tab(top: dict[str, Any], private: dict[str, Any]) -> dict[str, Any]:
    with gr.Tab("Precomputed", id="precomputed") as tab:
        gr.Markdown("Maps somebody computed before (a dataset repo made with `MapStore`): browsed without loading a model.")
        with gr.Row():
            what = "Dataset repo or folder" if SETTINGS.local_paths else "Dataset repo"
            repo = gr.Textbox(stores.DEFAULT, label=f"{what}: press Enter", placeholder="user/name", elem_id="store", scale=3)
            split = gr.Dropdown(["all"], value="all", label="Split", elem_id="store-split", min_width=130)
            search = gr.Textbox("", label="Search the text", elem_id="store-search", scale=2)
        message = parts.html("store-message")
        with gr.Row():
            rows = gr.Dropdown([], label="Example", elem_id="store-example", scale=3, min_width=260)
            method = gr.Dropdown([], label="Method", elem_id="store-method")
        widget = parts.heatmap("precomputed")
    asked, listed = [repo, split, search, method, rows], [split, rows, method, message]
    search_event = gr.on([repo.submit, split.input, search.submit, search.input], stores.listing, asked, listed,
                         trigger_mode="always_last", **private)  # fmt: skip
    first = tab.select(
        parts.when("precomputed", stores.first_listing, 4), [top["now"], *asked], listed, js=parts.opening("precomputed"), **private
    )
    chosen, shown = [repo, rows, method, split, search], [widget, message]
    search_event.success(stores.opened, [*chosen, message], shown, **private)
    first.success(stores.opened, [*chosen, message], shown, **private)
    gr.on([rows.input, method.input], stores.opened, chosen, shown, trigger_mode="always_last", **private)
    return {"precomputed_tab": tab, "store": repo, "split": split, "search": search, "id": rows, "store_method": method,
            "store_message": message, "stored": widget}  # fmt: skip


# ---- sharing --------------------------------------------------------------------------------------------------
def files(model: str, method: str, text: str, pair: str = "") -> tuple[Any, str]:
    """JSON, CSV, HTML and figures of the map above, in a folder of their own."""
    try:
        made = handlers.map_of(model, method, text, pair)
        tidy()
        folder = Path(tempfile.mkdtemp(prefix=FOLDERS))
        names = ["map.json", "map.csv", "map.html", "map.svg", "map.png", "map.safetensors"]
        return gr.File([str(made.save(folder / name)) for name in names], visible=True), ""
    except cm.CtxmixError as error:
        return gr.skip(), panels.message(str(error))


def tidy(seconds: float = 600) -> None:
    """Folders that were served long ago go."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*"):
        if folder.stat().st_mtime < time.time() - seconds:
            shutil.rmtree(folder, ignore_errors=True)


def share_tab(top: dict[str, Any], private: dict[str, Any]) -> dict[str, Any]:
    asked = [top[name] for name in ("model", "method", "text", "pair")]
    default = {name: top[name].value for name in ("model", "method", "text")}
    with gr.Tab("Share & code", id="share") as tab:
        held = "Link to the view you came from (everything is in the address, except an uploaded picture)"
        link = gr.Textbox("", label=held, elem_id="share-link", buttons=["copy"], interactive=False)
        snippet = gr.Code(snippets.of_view("", default), language="python", label="The same with the library", elem_id="snippet")
        go = gr.Button("Prepare files of the map: JSON, CSV, HTML, SVG, PNG, safetensors", elem_id="files-button")
        message = parts.html("files-message")
        made = gr.File(label="Files", file_count="multiple", elem_id="files", interactive=False, visible=False)
        gr.Markdown("PNG and SVG of exactly what the map shows: the buttons above the map. Every function of this page is an endpoint: "
                    "see *Use via API* below (`gradio_client`).")  # fmt: skip
    tab.select(None, None, link, js="() => window.ctxmixSpace.link()", **private)
    tab.select(
        lambda query: snippets.of_view(query, default), [link], snippet, js="() => window.ctxmixSpace.asked()", queue=False, **private
    )
    go.click(files, asked, [made, message], **private)
    return {"share_tab": tab}
