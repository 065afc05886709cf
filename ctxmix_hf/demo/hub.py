"""Well-known models of the Hub, with licence and size where it can be reached, greyed with the reason where not."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import urlencode

from huggingface_hub import HfApi, constants

from ctxmix_hf.demo.settings import SETTINGS

MODELS = {  # what it is good for on this page
    "google-bert/bert-base-uncased": "fills gaps",
    "FacebookAI/roberta-base": "fills gaps, mask is <mask>",
    "distilbert/distilbert-base-uncased-finetuned-sst-2-english": "good or bad review",
    "sentence-transformers/all-MiniLM-L6-v2": "similarity",
    "answerdotai/ModernBERT-base": "fills gaps, long texts",
}
AGAIN = 600.0  # seconds after which the Hub is asked again
WAIT = 3.0  # for one model


@dataclass(frozen=True)
class Row:
    """One model: what the Hub says of it, or why it cannot be had."""

    name: str
    use: str
    licence: str = ""
    megabytes: float = 0.0
    reason: str = ""


def ask(name: str) -> tuple[str, float]:
    """Licence and size in MB, from the Hub's description of the repository; nothing else is fetched."""
    info = HfApi().model_info(name, timeout=WAIT, files_metadata=True)
    card: Any = info.card_data or {}
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    weights = sizes.get("model.safetensors") or sizes.get("pytorch_model.bin") or 0
    return str(card.get("license") or "not stated"), weights / 1e6


def rows() -> list[Row]:
    """Every model, in one go; the first that cannot be reached speaks for all."""
    found: list[Row] = []
    reason = "" if SETTINGS.any_model else "this server loads only its own models"
    if not reason and constants.HF_HUB_OFFLINE:
        reason = "not now: this server works offline"
    for name, use in MODELS.items():
        if not reason:
            try:
                licence, size = ask(name)
                found.append(Row(name, use, licence, size))
                continue
            except Exception:  # a network has no list of what it may raise
                reason = "not now: the Hub cannot be reached"
        found.append(Row(name, use, reason=reason))
    return found


_known: list[Row] = []
_when = 0.0
_asking = threading.Lock()


def listed() -> list[Row]:
    """What is known; asked again in the background when it is old, so that nobody waits for the Hub."""
    global _when
    if time.monotonic() - _when > AGAIN or not _when:
        _when = time.monotonic()
        threading.Thread(target=_refresh, daemon=True).start()
    return _known or [Row(name, use, reason="asking the Hub") for name, use in MODELS.items()]


def _refresh() -> None:
    with _asking:
        made = rows()
        _known[:] = made


def panel(text: str) -> str:
    """The list as HTML: a model that can be had is a link that opens the page with it."""
    lines = []
    for row in listed():
        size = f"{row.megabytes:,.0f} MB" if row.megabytes else ""
        about = row.reason or ", ".join(filter(None, (size, f"licence {row.licence}", row.use)))
        named = (
            f"<span aria-disabled='true'>{escape(row.name)}</span>"
            if row.reason
            else f"<a href='?{escape(urlencode({'model': row.name, 'text': text}))}'>{escape(row.name)}</a>"
        )
        kind = " class='ctxmix-grey'" if row.reason else ""
        lines.append(f"<li{kind}>{named} <small>{escape(about)}</small></li>")
    title = "<summary>Models of the Hub</summary>"
    return f"<details class='ctxmix-info'>{title}<ul class='ctxmix-hub'>{''.join(lines)}</ul></details>"
