"""`ctxmix demo --mcp`: the page's server, spoken to by the official client over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from ctxmix_hf.assistant.tools import NAMES
from tests.alone import awaited

pytestmark = pytest.mark.slow  # starts the whole page
ROOT = Path(__file__).parents[2]
KEYS = "The keys to the cabinet [MASK] on the table."
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "explain": ("explain", {"text": KEYS, "method": "alti"}),
    "ledger": ("ledger", {"text": KEYS, "predicted": "are", "foil": "is"}),
    "similarity": ("similarity", {"a": "The cat sleeps.", "b": "A dog sleeps here."}),
    "rank": ("rank", {"query": "a cat", "documents": ["Dogs run.", "The cat sleeps.", "Rain."]}),
    "compare": ("compare", {"text": KEYS, "methods": ["alti", "attention_rollout"]}),
    "evaluate": ("evaluate", {"methods": ["alti"], "limit": 2}),
    "wrong type": ("explain", {"text": KEYS, "top": "many"}),
    "too long": ("explain", {"text": "word " * 1000}),
    "too many": ("rank", {"query": "a cat", "documents": ["a dog"] * 33}),
    "foreign": ("explain", {"text": KEYS, "model": "ctxmix/nothing"}),
}


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    pytest.importorskip("mcp", reason="the mcp extra is not installed")
    pytest.importorskip("gradio", reason="the demo extra is not installed")
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "CTXMIX_DEMO_CONCURRENCY": "1",
    }
    command = [sys.executable, "-m", "ctxmix_hf", "demo", "--mcp", "--json"]
    running = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    found: dict[str, Any] = {}
    assert running.stdout is not None
    try:
        lines = iter(running.stdout.readline, "}\n")
        found["where"] = json.loads("".join(lines) + "}")

        async def talk() -> None:
            async with (
                streamablehttp_client(found["where"]["mcp"]) as (reading, writing, _),
                ClientSession(reading, writing) as session,
            ):
                await session.initialize()
                found["tools"] = (await session.list_tools()).tools
                for key, (name, arguments) in CALLS.items():
                    found[key] = await session.call_tool(name, arguments)

        awaited(talk())
    finally:
        running.send_signal(signal.SIGINT)
        try:
            running.wait(60)
        finally:
            running.kill()
            running.stdout.close()
    return found


def test_the_six_tools_and_no_other_endpoint(said: dict[str, Any]) -> None:
    assert [tool.name for tool in said["tools"]] == list(NAMES)
    for tool in said["tools"]:
        for about in tool.inputSchema["properties"].values():
            assert about["type"] in ("string", "integer", "array") and about["description"]


def test_answers_are_json_with_a_link_to_the_page(said: dict[str, Any]) -> None:
    answer = json.loads(said["explain"].content[0].text)
    assert answer["finding"].startswith("[MASK] is made most of keys 23%")
    address = urlparse(answer["view"])
    assert answer["view"].startswith(said["where"]["url"])
    asked = parse_qs(address.query)
    assert asked["text"] == [KEYS] and asked["method"] == ["alti"]
    account = json.loads(said["ledger"].content[0].text)
    assert account["value"] == pytest.approx(3.225, abs=1e-2)
    assert parse_qs(urlparse(account["view"]).query)["foil"] == ["is"]


def test_the_other_tools_answer_too(said: dict[str, Any]) -> None:
    read = {
        name: json.loads(said[name].content[0].text)
        for name in ("similarity", "rank", "compare", "evaluate")
    }
    assert read["similarity"]["top"][0]["a"] == "sleeps"
    assert [row["place"] for row in read["rank"]["documents"]] == [1, 2, 3]
    assert -1 <= read["compare"]["rank_correlation"][0]["spearman"] <= 1
    assert [table["name"] for table in read["evaluate"]["tables"]] == ["faithfulness"]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("wrong type", "'many' is not of type 'integer'"),
        ("too long", "characters; this page takes at most"),
        ("too many", "ranks at most 32 documents"),
        ("foreign", "ctxmix/nothing"),
    ],
)
def test_refusals_are_one_sentence(said: dict[str, Any], key: str, words: str) -> None:
    text = said[key].content[0].text
    assert said[key].isError and words in text and "\n" not in text
