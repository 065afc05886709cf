"""Building and serving the page."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

from ctxmix_hf.errors import MissingDependencyError

try:
    import gradio as gr
except ImportError as missing:
    raise MissingDependencyError.of("gradio", "demo") from missing

from PIL import Image
from starlette.middleware import Middleware

from ctxmix_hf.assistant.server import require_mcp
from ctxmix_hf.demo import gate, handlers, hub, page, tools, zero
from ctxmix_hf.demo.door import Door
from ctxmix_hf.demo.settings import HOST, SETTINGS


def build() -> Any:
    """The page; whoever serves it, its functions are behind the gate from now on."""
    made = page.build_page()
    # turns are given by the gate: gradio itself only hands requests on
    made.queue(default_concurrency_limit=None, max_size=4 * SETTINGS.queue, api_open=False)
    gate.open_gate()
    return made


def theme() -> Any:
    return gr.themes.Base(
        font=["ui-sans-serif", "system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
        primary_hue="blue",
    ).set(  # white on it reads at 5.2 to 1
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
    )


def launch(port: int | None = None, **options: Any) -> Any:
    """Serve the page and wait, unless `prevent_thread_lock=True`."""
    os.environ[HOST] = str(
        options.get("server_name") or os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    )
    Image.MAX_IMAGE_PIXELS = SETTINGS.pixels
    defaults: dict[str, Any] = {
        "server_port": port,
        "theme": theme(),
        "favicon_path": str(Path(__file__).with_name("icon.svg")),
        "footer_links": ["api"],
        "ssr_mode": False,
        "show_error": SETTINGS.local_paths,
        "enable_monitoring": False,
        "state_session_capacity": 50,
        "max_threads": 2 * SETTINGS.queue,
        "max_file_size": SETTINGS.upload_megabytes * 1_000_000,
        "app_kwargs": {"middleware": [Middleware(Door)]},
    }
    if options.get("mcp_server"):
        require_mcp()
    gate.open_gate().start()  # the workers start while the page is built
    hub.listed()  # asked now, so that the first visitor finds the answer
    made = build()
    if options.get("mcp_server"):
        tools.add(made)
    # a GPU is not borrowed for nobody
    for number in range(SETTINGS.concurrency if zero.lent() is None else 0):
        threading.Thread(target=warm, args=(f"warming {number}",), daemon=True).start()
    return made.launch(**{**defaults, **options})


def warm(name: str) -> None:
    """Load the first model while the visitor reads: the page itself does not wait for it."""
    with contextlib.suppress(Exception):  # the page says what is wrong when the model is asked for
        gate.open_gate().run(gate.Task(name), handlers.warm, (), {})
