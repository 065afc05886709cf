"""The assistant's tools beside the page (`ctxmix demo --mcp`): the same questions, within the page's limits."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints
from urllib.parse import urlencode

from ctxmix_hf.assistant.tools import NAMES, Tools, checked
from ctxmix_hf.demo import api, handlers
from ctxmix_hf.demo.limits import check_cost, check_text
from ctxmix_hf.demo.shelf import SHELF, TEXT_MODELS
from ctxmix_hf.errors import OptionError

DEFAULT = next(iter(TEXT_MODELS))
TEXTS = ("text", "other_text", "a", "b", "query")
DOCUMENTS = 32  # of one ranking
SENTENCES = 20  # of one evaluation
LONGEST = 8000  # characters of a link
VERSION = {"v": "2"}  # of links: layers count from 1 (js/address.js)
MODES = ("two methods", "two sentences")  # of the page's comparison
_one_at_a_time = threading.Lock()


class PageDesk:
    """Models of the page's shelf; views are links to the page."""

    def model(self, name: str) -> tuple[Any, Any]:
        held = SHELF.get(name)
        return held.model, held.tokenizer

    def embedder(self, name: str) -> tuple[Any, dict[str, Any]]:
        model, tokenizer = self.model(name or DEFAULT)
        return model, {"pooling": None if name else "mean", "tokenizer": tokenizer}

    def link(self, tool: str, result: Any, asked: Mapping[str, Any]) -> str | None:
        """What stands behind the page's address; None for what the page does not show."""
        words = _VIEWS[tool](dict(asked)) if tool in _VIEWS else None
        if words is None:
            return None
        words["model"] = asked.get("model") or DEFAULT
        link = "?" + urlencode({name: value for name, value in words.items() if value} | VERSION)
        return link if len(link) <= LONGEST else None


Words = dict[str, Any]


def _has_map(*methods: str) -> bool:
    return {method.partition("+")[0] for method in methods} <= set(handlers.map_methods())


def _explained(asked: Words) -> Words | None:
    if _has_map(asked["method"]):
        return {"tab": "map", **asked}
    if asked["method"] not in handlers.SCORES:
        return None
    # the ledger, and these scores beside it; of what is predicted, also where the text is an example
    return {"tab": "why", "text": asked["text"], "plain": "1"}


def _accounted(asked: Words) -> Words | None:
    if asked["word"].isdigit() or asked["foil"].isdigit():
        return None  # the page takes words and labels, not their numbers
    return {"tab": "why", "plain": "" if asked["word"] or asked["foil"] else "1", **asked}


def _ranked(asked: Words) -> Words | None:
    lines, texts = "\n".join(asked["documents"]), asked["documents"]
    if lines.splitlines() != texts or not all(text.strip() for text in texts):
        return None  # the page takes a document per line
    if not 2 <= len(texts) <= handlers.MOST_DOCUMENTS:
        return None
    return {"tab": "embeddings", "a": asked["query"], "documents": lines}


def _compared(asked: Words) -> Words | None:
    if not _has_map(*(asked[name] for name in ("method", "other_method") if name in asked)):
        return None
    return {"tab": "compare", "mode": MODES["other_text" in asked], **asked}


_VIEWS: dict[str, Callable[[Words], Words | None]] = {
    "explain": _explained,
    "ledger": _accounted,
    "similarity": lambda asked: {"tab": "embeddings", **asked},
    "rank": _ranked,
    "compare": _compared,
}


TOOLS = Tools(PageDesk())


def answer(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """One tool, called in a worker."""
    function = getattr(TOOLS, name)
    asked = checked(function, given)
    with _one_at_a_time:
        _check_limits(name, asked)
        return function(**asked)  # type: ignore[no-any-return]


def _check_limits(tool: str, asked: dict[str, Any]) -> None:
    texts = [asked[name] for name in TEXTS if asked.get(name)] + asked.get("documents", [])
    if len(asked.get("documents", [])) > DOCUMENTS:
        raise OptionError(f"This page ranks at most {DOCUMENTS} documents at once.")
    if tool == "evaluate":
        if asked.get("limit", SENTENCES) > SENTENCES:
            raise OptionError(f"This page evaluates on at most {SENTENCES} sentences.")
        return
    held = SHELF.get(asked.get("model") or DEFAULT)
    methods = asked.get("methods") or [asked.get("method") or "ledger"]
    for text in texts:
        check_text(text)
        for method in methods:
            check_cost(held, method, text)


def add(blocks: Any) -> None:
    """The six tools into a page that is built; its other endpoints stay what they are, but are no tools."""
    import gradio as gr

    for held in blocks.fns.values():
        with contextlib.suppress(AttributeError):  # a tool is named by its function
            held.fn._mcp_type, held.fn.__name__ = "page", f"page_{held.fn.__name__}"
    with blocks:
        for name in NAMES:
            gr.events.api(_tool(name), api_name=f"tool_{name}", concurrency_id="model")


def _tool(name: str) -> Callable[..., Any]:
    function = getattr(TOOLS, name)
    behind = api.gated(answer)
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args)), **kwargs}
        made = behind(name, given)
        if "view" in made:
            made["view"] = f"{_page()}/{made['view']}"
        return json.dumps(made, ensure_ascii=False, allow_nan=False)

    call.__annotations__ = {**get_type_hints(function), "return": str}
    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return call


def _page() -> str:
    """The address under which the client reached this server."""
    from gradio.context import LocalContext

    request = LocalContext.request.get(None)
    headers = {} if request is None else request.headers
    scheme = headers.get("x-forwarded-proto", "http").split(",")[0]
    return f"{scheme}://{headers.get('host', '127.0.0.1')}"
