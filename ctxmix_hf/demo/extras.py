"""Tabs beside the map: images, precomputed maps, sharing."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr

import ctxmix_hf as cm
from ctxmix_hf.demo import downloads, gate, handlers, panels, parts, pictures, snippets, stores
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.viz.names import people_name

FOLDERS = "ctxmix-files-"
FIRST = "digit 4"  # the picture the tab opens with
TYPED = """(now, ...fields) => {
  const at = document.activeElement;
  const typed = at && at.closest('#store-search');
  const serial = typed ? window.ctxmixSpace.ask('precomputed') : '';
  return [typed ? 'typed' : now, ...fields.slice(0, -1), serial];
}"""


# ---- images ---------------------------------------------------------------------------------------------------
def image_tab(top: dict[str, Any], private: dict[str, Any]) -> dict[str, Any]:
    with gr.Tab("Images", id="image") as tab, gr.Row():
        with gr.Column(scale=6, min_width=320):
            parts.html("image-box", "<div id='image-message'></div>")
            widget = parts.heatmap("image")
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
                handlers.method_choices(flow=False),
                value=cm.DEFAULT_METHOD,
                label="Method",
                elem_id="vision-method",
            )
            image = gr.Image(
                pictures.example(FIRST),
                type="filepath",
                image_mode=None,
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
    asked = [image, model, method, picture, top["serial"]]
    stamped: dict[str, Any] = {
        **private,
        "concurrency_id": "model",
        "preprocess": False,  # or the server itself would decode the picture
        "js": parts.stamped("image", 4),
    }
    picture.input(pictures.example, picture, image, **private).then(
        parts.show_image, asked, widget, **stamped
    )
    image.upload(lambda: None, None, picture, queue=False, **private).then(
        parts.show_image, asked, widget, **stamped
    )
    gr.on([go.click, model.submit, method.input], parts.show_image, asked, widget, **stamped)
    tab.select(
        parts.when("image", parts.show_image, 1),
        [top["now"], *asked],
        widget,
        js=parts.opening("image", "image"),
        concurrency_id="model",
        preprocess=False,
        **private,
    )
    return {
        "image_tab": tab,
        "image": image,
        "picture": picture,
        "vision": model,
        "vision_method": method,
        "image_map": widget,
    }


# ---- precomputed ----------------------------------------------------------------------------------------------
def precomputed_tab(top: dict[str, Any], private: dict[str, Any]) -> dict[str, Any]:
    what = "Dataset repo or folder" if SETTINGS.local_paths else "Dataset repo"
    with gr.Tab("Library", id="precomputed") as tab, gr.Row():
        with gr.Column(scale=7, min_width=320):
            parts.html("store-box", "<div id='store-message'></div>")
            widget = parts.heatmap("precomputed")
        with gr.Column(scale=3, min_width=280):
            search = gr.Textbox(
                "", label="Search the text", placeholder="boys", elem_id="store-search"
            )
            # custom values: what a search narrowed while an answer was on its way is no error
            rows = gr.Dropdown(
                [], label="Example", elem_id="store-example", allow_custom_value=True
            )
            method = gr.Dropdown(
                [], label="Method", elem_id="store-method", allow_custom_value=True
            )
            split = gr.Dropdown(["all"], value="all", label="Split", elem_id="store-split")
            repo = gr.Textbox(
                stores.DEFAULT,
                label=f"{what}: press Enter",
                placeholder="user/name",
                elem_id="store",
            )
            gr.Markdown(
                "Maps computed before, browsed without loading a model: 34 bundled sentences, or a "
                "dataset repo made with `MapStore`."
            )
    serial = top["serial"]
    asked, listed = [repo, split, search, method, rows, serial], [split, rows, method, widget]
    gr.on(
        [repo.submit, split.input, search.submit],
        found,
        asked,
        listed,
        trigger_mode="multiple",
        js=parts.stamped("precomputed", 5),
        **private,
    )
    search.change(  # letters, Backspace, paste; not when a link fills the field
        parts.when("typed", found, 4),
        [top["now"], *asked],
        listed,
        js=TYPED,
        trigger_mode="multiple",
        **private,
    )
    tab.select(
        parts.when("precomputed", found, 4),
        [top["now"], *asked],
        listed,
        js=parts.opening("precomputed", "precomputed"),
        **private,
    )
    gr.on(
        [rows.input, method.input],
        opened,
        [repo, rows, method, split, search, serial],
        widget,
        trigger_mode="always_last",
        js=parts.stamped("precomputed", 5),
        **private,
    )
    return {
        "precomputed_tab": tab,
        "store": repo,
        "split": split,
        "search": search,
        "id": rows,
        "store_method": method,
        "stored": widget,
    }


def listing(
    name: str, split: str, words: str, method: Any = "", key: Any = "", serial: str = ""
) -> tuple[Any, Any, Any, Any]:
    """Choices of split, example and method (what was chosen stays where it still exists), and for the
    widget why there is nothing to choose.
    """
    try:
        splits, methods, found = gate.latest(
            "precomputed", stores.choices, name, split, words, order=serial
        )
    except gate.Overtaken:
        return gr.skip(), gr.skip(), gr.skip(), gr.skip()
    except cm.CtxmixError as error:
        return gr.skip(), gr.skip(), gr.skip(), {"error": panels.message(str(error))}
    none = {"error": panels.message("No example contains these words.", "warn")}
    keys = [place for _, place in found]
    return (
        gr.update(choices=["all", *splits], value=split or "all"),
        gr.update(choices=found, value=key if key in keys else next(iter(keys), None)),
        gr.update(
            choices=[(people_name(each), each) for each in methods],
            value=method if method in methods else next(iter(methods), None),
        ),
        gr.skip() if found else none,
    )


def found(
    name: str, split: str, words: str, method: Any = "", key: Any = "", serial: str = ""
) -> tuple[Any, Any, Any, Any]:
    """The choices, and the map of the one that stands there then."""
    *choices, wrong = listing(name, split, words, method, key, serial)
    if "choices" not in choices[1] and "error" not in wrong:
        return (*choices, wrong)  # overtaken
    if "error" in wrong:
        asked = parts.fields(store=name, store_split=split, store_search=words)
        return (*choices, {**wrong, "serial": serial, "fields": asked})
    key, method = (choice["value"] for choice in choices[1:])
    return (*choices, opened(name, key, method, split, words, serial))


def opened(
    name: str, key: Any, method: Any, split: str = "all", words: str = "", serial: str = ""
) -> Any:
    """The chosen example's map."""
    asked = parts.fields(store=name, store_split=split or "all", store_search=words)
    stamp: dict[str, Any] = {"serial": serial, "fields": asked}
    if not key:
        return {**stamp, "error": panels.message("Choose an example.", "warn")}
    try:
        shown = gate.latest(
            "precomputed", stores.view, name, str(key), str(method or ""), order=serial
        )
    except gate.Overtaken:
        return gr.skip()
    except cm.CtxmixError as error:
        return {**stamp, "error": panels.message(str(error))}
    asked |= parts.fields(
        store_example=(shown.get("text") or str(key))[:120],
        store_method=people_name(shown["method"]),
    )
    query = {
        "tab": "precomputed",
        "store": name.strip(),
        "split": "" if split == "all" else split,
        "search": words.strip(),
        "id": str(key),
        "store_method": shown["method"],
    }
    return {**shown, **stamp, "query": query}


# ---- sharing --------------------------------------------------------------------------------------------------
def files(
    address: str, view: str = "{}", image: Any = None, default: Any = None
) -> tuple[Any, str]:
    """What an address shows, as its tab shows it, in every format it has; in a folder of its own."""
    try:
        tidy()
        folder = tempfile.mkdtemp(prefix=FOLDERS)
        asked = _asked(address, default or {})
        made = gate.latest("files", downloads.write, folder, asked, _view(view), image)
        return gr.update(value=made, visible=True), ""
    except gate.Overtaken:
        return gr.skip(), ""
    except cm.CtxmixError as error:
        return gr.skip(), panels.message(str(error))


def _asked(address: str, default: dict[str, str]) -> dict[str, str]:
    return {**default, **dict(parse_qsl(address.lstrip("?")))}


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
    names = ("model", "method", "text", "other_model", "other_method", "other_text")
    default = {name: top[name].value for name in names}
    with gr.Tab("Share & code", id="share") as tab:
        held = "Link to the view you came from (everything is in the address, except an uploaded picture)"
        link = gr.Textbox("", label=held, elem_id="share-link", buttons=["copy"], interactive=False)
        snippet = gr.Code(
            snippets.of_view("", default),
            language="python",
            label="The same with the library",
            elem_id="snippet",
        )
        go = gr.Button(downloads.label(default), elem_id="files-button")
        message = parts.html("files-message")
        made = gr.File(
            label="Files", file_count="multiple", elem_id="files", interactive=False, visible=False
        )
        gr.Markdown(
            "PNG and SVG of exactly what a map shows: under *Options* above it. Every function "
            "of this page is an endpoint: "
            "see *Use via API* below (`gradio_client`)."
        )
    tab.select(None, None, link, js="() => window.ctxmixSpace.link()", **private)
    tab.select(
        lambda query: (
            snippets.of_view(query, default),
            downloads.label(_asked(query, default)),
            gr.update(value=None, visible=False),
            "",
        ),
        [link],
        [snippet, go, made, message],
        js="() => window.ctxmixSpace.asked()",
        queue=False,
        **private,
    )
    go.click(
        lambda address, view, image: files(address, view, image, default),
        [link, top["serial"], top["image"]],
        [made, message],
        js="(link, view, image) => [window.ctxmixSpace.prepare(), window.ctxmixSpace.view(), image]",
        **private,
    ).then(None, None, None, js="() => window.ctxmixSpace.prepared()", **private)
    return {"share_tab": tab}
