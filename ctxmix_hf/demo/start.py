"""Building and serving the page."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import torch

import ctxmix_hf as cm
from ctxmix_hf.errors import MissingDependencyError

try:
    import gradio as gr
except ImportError as missing:
    raise MissingDependencyError.of("gradio", "demo") from missing

from ctxmix_hf.demo import page, parts
from ctxmix_hf.demo.settings import SETTINGS
from ctxmix_hf.demo.shelf import BOX, SHELF


def build() -> Any:
    made = page.build_page()
    made.queue(default_concurrency_limit=SETTINGS.concurrency, max_size=SETTINGS.queue)
    return made


def theme() -> Any:
    return gr.themes.Base(font=["ui-sans-serif", "system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"], primary_hue="blue")


def launch(port: int | None = None, **options: Any) -> Any:
    """Serve the page and wait, unless `prevent_thread_lock=True`."""
    defaults: dict[str, Any] = {"server_port": port, "theme": theme(), "head": parts.head(), "show_error": True, "ssr_mode": False}
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // SETTINGS.concurrency))  # visitors share the cores
    page_ = build()
    threading.Thread(target=warm, daemon=True).start()
    return page_.launch(**{**defaults, **options})


def warm() -> None:
    """Load the first model while the visitor reads: the page itself does not wait for it."""
    with contextlib.suppress(Exception):  # the page says what is wrong when the model is asked for
        held = SHELF.get(next(iter(BOX)))
        with held.lock:
            cm.explain(held.model, "Warm up.", ["value_zeroing", "alti"], tokenizer=held.tokenizer)
