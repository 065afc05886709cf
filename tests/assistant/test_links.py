"""A link to the page, given to the page's own reader, asks what the assistant asked."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.alone import alone

pytest.importorskip("gradio", reason="the demo extra is not installed")

ROOT = Path(__file__).parents[2]
MODEL, CLASSIFIER = "ctxmix/agreement", "ctxmix/sentiment"
KEYS = "The keys to the cabinet [MASK] on the table."
KEY = "The key to the cabinet [MASK] on the table."
DOCUMENTS = ["Dogs run.", "The cat sleeps & dreams.", "Rain."]
FILM = {"text": "A warm film.", "model": CLASSIFIER}
TWO = ["value_zeroing", "attention_rollout"]
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "map": ("explain", {"text": KEYS, "method": "value_zeroing"}),
    "word": ("explain", {"text": KEYS, "target": "keys", "layer": 2}),
    "place": ("explain", {"text": KEYS, "target": "3", "layer": -2}),
    "pool": ("explain", {"text": KEYS, "target": "mean_pool"}),
    "scores": ("explain", {"text": KEYS, "method": "blank_out"}),
    "other scores": ("explain", {"text": KEYS, "method": "grad_l2"}),
    "ledger": ("ledger", {"text": KEYS, "predicted": "are", "foil": "is"}),
    "class": ("ledger", FILM),
    "number": ("ledger", {**FILM, "predicted": "1"}),
    "similarity": ("similarity", {"a": "The cat sleeps.", "b": "A dog sleeps here."}),
    "rank": ("rank", {"query": "a cat", "documents": DOCUMENTS}),
    "one": ("rank", {"query": "a cat", "documents": ["one"]}),
    "lines": ("rank", {"query": "a cat", "documents": ["two\nlines", "one"]}),
    "sentences": ("compare", {"text": KEYS, "other_text": KEY, "methods": ["globenc", "alti"]}),
    "methods": ("compare", {"text": KEYS, "methods": TWO}),
}


def ask_and_reopen(out: Path) -> None:
    """In a process of its own (gradio leaves a loop open): of every call the link, the values that
    the page's fields get from it, and what the page would compute.
    """
    from ctxmix_hf.demo import links, page, parts, tools

    held: dict[str, Any] = {}
    links.add = lambda blocks, made, private: held.update(made)
    page.build_page()
    names = {id(part): name for name, part in held.items()}
    computed: dict[str, Any] = {}

    def stand_in(name: str, answer: Any) -> None:
        def call(*fields: Any) -> Any:
            computed[name] = fields
            return answer

        setattr(parts, name, call)

    for name in ("answer", "why", "similar", "ranked"):
        stand_in(name, None)
    stand_in("compare", (None,) * 3)
    found: dict[str, Any] = {}
    for key, (tool, given) in CALLS.items():
        link = tools.answer(tool, given).get("view")
        found[key] = {"link": link}
        if link:
            computed.clear()
            values = links.reopen(dict(parse_qsl(link.removeprefix("?"))), held)
            found[key]["values"] = {names[id(part)]: value for part, value in values.items()}
            found[key]["computed"] = dict(computed)
    out.write_text(json.dumps(found, default=str), encoding="utf-8")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("links") / "found.json"
    alone(ask_and_reopen, path)
    return dict(json.loads(path.read_text(encoding="utf-8")))


def test_a_map_is_reopened(found: dict[str, Any]) -> None:
    opened = found["map"]
    assert opened["computed"] == {"answer": [MODEL, "value_zeroing", KEYS, "", "", ""]}
    assert opened["values"]["method"] == "value_zeroing" and opened["values"]["text"] == KEYS


def test_its_layer_and_target_too(found: dict[str, Any]) -> None:
    """Read by the page's own script."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed: CI has it")
    asked = [found[key]["link"] for key in ("map", "word", "place", "pool")]
    script = (
        'import { fromLink } from "./ctxmix_hf/demo/js/address.js";'
        'import { DEFAULTS } from "./ctxmix_hf/viz/js/model.js";'
        f'const read = {json.dumps(asked)}.map((link) => fromLink("main", link, DEFAULTS));'
        "console.log(JSON.stringify(read));"
    )
    command = ["node", "--no-warnings", "--input-type=module", "-e", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [
        {},
        {"layer": "2", "pin": "2.3"},  # both pieces of the word
        {"layer": "5", "pin": "3"},
        {"pin": "none"},
    ]


def test_scores_of_a_class_are_on_the_tab_that_shows_them(found: dict[str, Any]) -> None:
    assert found["scores"]["values"]["now"] == "why"
    assert found["scores"]["computed"]["why"][:2] == [MODEL, KEYS]
    assert found["other scores"]["link"] is None


def test_a_ledger_is_reopened(found: dict[str, Any]) -> None:
    values = found["ledger"]["values"]
    assert (values["now"], values["word"], values["foil"]) == ("why", "are", "is")
    assert found["ledger"]["computed"]["why"][:5] == [MODEL, KEYS, "", "are", "is"]
    assert found["class"]["computed"]["why"][:5] == [CLASSIFIER, "A warm film.", "", "", ""]
    assert found["number"]["link"] is None


def test_a_similarity_and_a_ranking_are_reopened(found: dict[str, Any]) -> None:
    alike, ranked = found["similarity"], found["rank"]
    assert alike["values"]["now"] == ranked["values"]["now"] == "embeddings"
    assert alike["computed"]["similar"] == [MODEL, "The cat sleeps.", "A dog sleeps here."]
    assert ranked["computed"]["ranked"] == [MODEL, "a cat", "\n".join(DOCUMENTS)]
    assert ranked["values"]["documents"].splitlines() == DOCUMENTS
    assert found["one"]["link"] is None and found["lines"]["link"] is None


def test_a_comparison_is_reopened(found: dict[str, Any]) -> None:
    opened = found["sentences"]
    assert opened["values"]["now"] == "compare" and opened["values"]["method"] == "globenc"
    mode, model, method, text, *_, second, _ = opened["computed"]["compare"]
    assert (mode, model, method, text, second) == ("two sentences", MODEL, "globenc", KEYS, KEY)
    mode, model, method, text, *_, second, _, _ = found["methods"]["computed"]["compare"]
    assert (mode, model, text, [method, second]) == ("two methods", MODEL, KEYS, TWO)
