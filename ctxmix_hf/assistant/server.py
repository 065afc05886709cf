"""The tools over stdio, for an assistant that starts `ctxmix mcp` as its own process."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from ctxmix_hf import __version__, loading
from ctxmix_hf.assistant.tools import NAMES, Tools, called, describe
from ctxmix_hf.errors import CtxmixError, MissingDependencyError, first_line

KEPT = 3  # models in memory
INSTRUCTIONS = (
    "ctxmix shows how Hugging Face encoders mix context. Ask `ledger` why a model said something, `explain` which "
    "words a representation was made from, `similarity` and `rank` why texts match, `compare` whether methods agree, "
    "`evaluate` which method to believe. Every answer has a `finding` in words; `view` is a picture for the user."
)


class LocalDesk:
    """Models of this machine or the Hub, the last few kept; views are HTML files in a folder."""

    def __init__(self, views: str | Path | None = None, trusted: Sequence[str] = ()) -> None:
        self._folder = Path(views) if views is not None else None
        self._models: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._written = 0
        self._trusted = frozenset(trusted)  # models whose own code the user lets run

    def model(self, name: str) -> tuple[Any, Any]:
        return self._kept("model", name, loading.load, name)  # type: ignore[no-any-return]

    def embedder(self, name: str) -> tuple[Any, dict[str, Any]]:
        return self._kept("embedder", name, loading.load_embedder, name or None)  # type: ignore[no-any-return]

    def _kept(self, kind: str, name: str, load: Callable[..., Any], asked: str | None) -> Any:
        key = (kind, name)
        if key not in self._models:
            self._models[key] = load(asked, trust_remote_code=name in self._trusted)
        self._models.move_to_end(key)
        while len(self._models) > KEPT:
            self._models.popitem(last=False)
        return self._models[key]

    def link(self, tool: str, result: Any, asked: Mapping[str, Any]) -> str | None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="ctxmix-views-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._written += 1
        path = self._folder / f"{self._written:03d}-{tool}.html"
        result.to_html(path, **({"pin": asked["pin"]} if asked.get("pin") else {}))
        return path.resolve().as_uri()


def require_mcp() -> None:
    """The official package, of the line that gradio uses too."""
    try:
        found = importlib.metadata.version("mcp")
    except importlib.metadata.PackageNotFoundError:
        raise MissingDependencyError.of("mcp", "mcp") from None
    if int(found.partition(".")[0]) != 1:
        raise MissingDependencyError(
            f"This needs mcp 1.x, and {found} is installed: pip install 'ctxmix-hf[mcp]'."
        )


def build(tools: Tools) -> Any:
    """An `mcp.server.Server` with the six tools."""
    require_mcp()
    import anyio
    from mcp import types
    from mcp.server.lowlevel import Server

    server: Any = Server("ctxmix", version=__version__, instructions=INSTRUCTIONS)
    one_at_a_time = threading.Lock()

    def answer(name: str, given: dict[str, Any]) -> Any:
        try:
            with one_at_a_time:
                made, failed = called(tools, name, given), False
            text = json.dumps(made, ensure_ascii=False, allow_nan=False)
        except CtxmixError as error:
            made, failed, text = None, True, " ".join(str(error).split())
        except Exception as error:
            reason = first_line(error, "no reason given")
            made, failed, text = None, True, f"{name} failed: {type(error).__name__}: {reason}"
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)],
            structuredContent=made,
            isError=failed,
        )

    async def list_tools() -> list[Any]:
        found = [(name, *describe(getattr(tools, name))) for name in NAMES]
        reads_only = types.ToolAnnotations(readOnlyHint=True, idempotentHint=True)
        return [
            types.Tool(name=name, description=about, inputSchema=schema, annotations=reads_only)
            for name, about, schema in found
        ]

    async def call_tool(name: str, arguments: dict[str, Any]) -> Any:
        return await anyio.to_thread.run_sync(answer, name, arguments)

    server.list_tools()(list_tools)
    server.call_tool(validate_input=False)(call_tool)  # `checked` says it in a sentence
    return server


def serve(views: str | Path | None = None, trusted: Sequence[str] = ()) -> None:
    """Answer on stdin and stdout until the client closes them."""
    server = build(Tools(LocalDesk(views, trusted)))
    import anyio
    from mcp.server.stdio import stdio_server

    out = anyio.wrap_file(TextIOWrapper(sys.stdout.buffer, encoding="utf-8"))
    sys.stdout = sys.stderr  # whatever a library prints must not fall into the protocol

    async def run() -> None:
        async with stdio_server(stdout=out) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    anyio.run(run)
