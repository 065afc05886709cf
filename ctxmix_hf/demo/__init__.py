"""The Space: a page on which a person types a sentence and sees how context mixes. `ctxmix demo`
serves the same page.
"""

from __future__ import annotations

from typing import Any

__all__ = ["build", "launch"]


def build() -> Any:
    """The `gradio.Blocks` of the page."""
    from ctxmix_hf.demo.start import build as make

    return make()


def launch(port: int | None = None, **options: Any) -> Any:
    """Serve the page; `options` go to gradio's `launch` (`prevent_thread_lock=True`,
    `server_name=...`, `quiet=True`).
    """
    from ctxmix_hf.demo.start import launch as serve

    return serve(port, **options)
