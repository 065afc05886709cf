"""`ctxmix mcp`, spoken to by the official client over stdio: one process answers the whole conversation."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

import ctxmix_hf as cm
from ctxmix_hf.assistant import server
from ctxmix_hf.assistant.tools import NAMES, Tools, called
from ctxmix_hf.cli import main
from ctxmix_hf.errors import InputTypeError, MissingDependencyError, OptionError, UnknownNameError
from tests.alone import awaited

ROOT = Path(__file__).parents[2]
KEYS = "The keys to the cabinet [MASK] on the table."
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "explain": ("explain", {"text": KEYS, "method": "alti", "top": 3}),
    "attribution": ("explain", {"text": KEYS, "method": "grad_dot_input"}),
    "ledger": ("ledger", {"text": KEYS, "predicted": "are", "foil": "is"}),
    "similarity": ("similarity", {"a": "The cat sleeps.", "b": "A dog sleeps here."}),
    "rank": ("rank", {"query": "a cat", "documents": ["Dogs run.", "The cat sleeps.", "Rain."]}),
    "compare": ("compare", {"text": KEYS, "methods": ["alti", "attention_rollout"]}),
    "pair": ("compare", {"text": "The key [MASK] here.", "other_text": "The keys [MASK] here."}),
    "evaluate": ("evaluate", {"methods": ["alti", "attention_rollout"], "limit": 3}),
    "wrong type": ("explain", {"text": KEYS, "top": "many"}),
    "wrong list": ("rank", {"query": "a", "documents": "one text"}),
    "missing": ("ledger", {}),
    "unknown parameter": ("explain", {"text": KEYS, "methd": "alti"}),
    "unknown method": ("explain", {"text": KEYS, "method": "alty"}),
    "unknown tool": ("explainn", {"text": KEYS}),
    "unknown model": ("explain", {"text": KEYS, "model": "ctxmix/nothing"}),
    "empty": ("explain", {"text": ""}),
    "no documents": ("rank", {"query": "a", "documents": []}),
    "two questions": ("explain", {"text": KEYS, "method": "blank_out", "target": "[MASK]"}),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The listed tools under "tools", and the answer to every call."""
    pytest.importorskip("mcp", reason="the mcp extra is not installed")
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    views = tmp_path_factory.mktemp("views")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = ["-m", "ctxmix_hf", "mcp", "--views", str(views)]
    started = StdioServerParameters(command=sys.executable, args=command, env=env)
    found: dict[str, Any] = {"views": views}

    async def talk() -> None:
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123
            async with (
                stdio_client(started, errlog=nowhere) as (reading, writing),
                ClientSession(reading, writing) as session,
            ):
                found["hello"] = await session.initialize()
                found["tools"] = (await session.list_tools()).tools
                for key, (name, arguments) in CALLS.items():
                    found[key] = await session.call_tool(name, arguments)

    awaited(talk())
    return found


def read(said: dict[str, Any], key: str) -> dict[str, Any]:
    answer = said[key]
    assert not answer.isError, answer.content[0].text
    text = json.loads(answer.content[0].text)
    assert text == answer.structuredContent and len(answer.content[0].text) < 4000
    return text


def test_tools_are_described_and_typed(said: dict[str, Any]) -> None:
    assert [tool.name for tool in said["tools"]] == list(NAMES)
    assert said["hello"].serverInfo.version == cm.__version__
    for tool in said["tools"]:
        assert len(tool.description) > 60 and tool.inputSchema["additionalProperties"] is False
        for name, about in tool.inputSchema["properties"].items():
            assert about["type"] in ("string", "integer", "array"), (tool.name, name)
            assert len(about["description"]) > 10, (tool.name, name)
            assert ("default" in about) != (name in tool.inputSchema["required"])


def test_explain_gives_the_words_of_the_map(said: dict[str, Any]) -> None:
    answer = read(said, "explain")
    model, tokenizer = cm.load_default()
    row = cm.explain(model, KEYS, "alti", tokenizer=tokenizer).attribution("[MASK]").words()
    assert [one["word"] for one in answer["top"]] == [word for word, _ in row.top(3)]
    assert answer["top"][0]["score"] == pytest.approx(row.top(1)[0][1], rel=1e-3)
    assert answer["finding"].startswith("[MASK] is made most of keys 23%")
    signed = read(said, "attribution")
    assert signed["target"] and any(one["score"] < 0 for one in signed["top"])


def test_ledger_adds_up(said: dict[str, Any]) -> None:
    answer = read(said, "ledger")
    assert answer["target"] == "are minus is (logits) at [MASK]"
    assert answer["value"] == pytest.approx(3.225, abs=1e-2) and answer["gap"] < 1e-5
    assert answer["finding"].startswith("are minus is (logits) at [MASK]: keys +3.93")
    model, tokenizer = cm.load_default()
    made = cm.ledger(model, KEYS, class_index="are", foil="is", tokenizer=tokenizer)
    assert answer["biases"] == pytest.approx(float(made.bias), rel=1e-3)


def test_views_are_pages(said: dict[str, Any]) -> None:
    for key in ("explain", "attribution", "ledger", "similarity", "rank", "pair"):
        path = Path(urlparse(read(said, key)["view"]).path)
        assert path.parent == said["views"]
        assert path.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html")


def test_similarity_rank_and_compare(said: dict[str, Any]) -> None:
    assert read(said, "similarity")["top"][0]["a"] == "sleeps"
    ranked = read(said, "rank")
    scores = [row["score"] for row in ranked["documents"]]
    assert scores == sorted(scores, reverse=True) and len(scores) == 3
    compared = read(said, "compare")
    assert [one["method"] for one in compared["methods"]] == ["alti", "attention_rollout"]
    assert -1 <= compared["rank_correlation"][0]["spearman"] <= 1
    changed = read(said, "pair")
    assert changed["target"] == "[MASK]" and changed["changes"][0]["word"] == "key/keys"


def test_evaluate_gives_a_table(said: dict[str, Any]) -> None:
    (table,) = read(said, "evaluate")["tables"]
    assert table["name"] == "faithfulness" and "alti" in {
        cell for row in table["rows"] for cell in row
    }


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("wrong type", "top of explain must be a whole number, got 'many'."),
        ("wrong list", "documents of rank must be a list of texts, got 'one text'."),
        ("missing", "ledger needs text: a text."),
        ("unknown parameter", "Unknown parameter of explain 'methd'. Did you mean 'method'?"),
        ("unknown method", "Did you mean 'alti'?"),
        ("unknown tool", "Unknown tool 'explainn'. Did you mean 'explain'?"),
        ("unknown model", "ctxmix/nothing"),
        ("empty", "empty"),
        ("no documents", "give at least one"),
        ("two questions", "leave out target and layer"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(
    said: dict[str, Any], key: str, words: str
) -> None:
    answer = said[key]
    text = answer.content[0].text
    assert answer.isError and words in text and "\n" not in text and "Traceback" not in text


def test_a_missing_or_foreign_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> str:
        raise server.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(server.importlib.metadata, "version", absent)
    for command in (["mcp"], ["demo", "--mcp"]):
        if command[0] == "demo":
            pytest.importorskip("gradio", reason="the demo extra is not installed")
        assert main(command) == 2
        assert "pip install 'ctxmix-hf[mcp]'" in capsys.readouterr().err
    monkeypatch.setattr(server.importlib.metadata, "version", lambda name: "2.3.0")
    with pytest.raises(MissingDependencyError, match=r"needs mcp 1\.x, and 2\.3\.0 is installed"):
        server.require_mcp()


def test_arguments_are_checked_before_a_model_is_loaded() -> None:
    class NoDesk:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("nothing should be loaded")

    tools = Tools(NoDesk())  # type: ignore[arg-type]
    with pytest.raises(InputTypeError):
        called(tools, "explain", {"text": 3})
    with pytest.raises(OptionError):
        called(tools, "explain", {"text": "a", "top": 0})
    with pytest.raises(UnknownNameError):
        called(tools, "desk", {})
    with pytest.raises(AssertionError):  # 3.0 is a whole number
        called(tools, "explain", {"text": "a", "top": 3.0})
