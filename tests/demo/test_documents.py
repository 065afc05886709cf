"""Texts too long for a map of words: paragraphs, and one of them word by word."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

import ctxmix_hf as cm
from ctxmix_hf.demo import documents, handlers, snippets
from ctxmix_hf.errors import InputError
from tests.demo.conftest import Server

ONE = "The boys near the school like the old teacher . "
TWO = "The girl likes the books about the boys . "
PARAGRAPHS = [4 * ONE + "Here .", 5 * TWO, 3 * ONE + "They [MASK] tired .", 12 * TWO, 7 * ONE]
TEXT = "\n\n".join(PARAGRAPHS)


@pytest.fixture(scope="module")
def whole(long: str) -> Any:
    """The map of every token, which the page never makes."""
    model = cm.AutoContextMixingModelForMaskedLM.from_pretrained(long).eval()
    return cm.explain(model, TEXT, "attention_rollout")


def test_a_long_text_is_shown_by_its_paragraphs(long: str, whole: Any) -> None:
    made = handlers.map_of(long, "attention_rollout", TEXT)
    assert made.size == len(PARAGRAPHS) + 2
    assert np.allclose(made.input, whole.segments("paragraphs").input, atol=1e-6)
    view = handlers.view_of(long, "attention_rollout", TEXT)
    assert view["part"] == {"unit": "paragraph", "shown": ""}
    assert [label[:3] for label in view["words"][1:-1]] == ["1. ", "2. ", "3. ", "4. ", "5. "]
    words = handlers.view_of(long, "attention_rollout", TEXT, part="3")["words"]
    numbered = [label for label in words if label[:2] in ("1.", "2.", "3.", "4.", "5.")]
    assert [words.index(label) for label in numbered] == [1, 2, len(words) - 3, len(words) - 2]
    assert [label[0] for label in numbered] == ["1", "2", "4", "5"]
    assert "part" not in handlers.view_of(long, "attention_rollout", PARAGRAPHS[0])


def test_one_paragraph_by_its_words(long: str, whole: Any) -> None:
    made = handlers.map_of(long, "attention_rollout", TEXT, part="3")
    names = made.tokens[0].shown()
    assert "[MASK]" in names and len(names) == 2 + 4 + len(PARAGRAPHS[2].split())
    wanted = whole.segments(documents.segments(handlers.SHELF.get(long), TEXT, "3"))
    assert np.allclose(made.input, wanted.input, atol=1e-6)
    for part in ("0", "6", "x"):
        with pytest.raises(InputError, match="There is no paragraph"):
            handlers.map_of(long, "attention_rollout", TEXT, part=part)


def test_two_thousand_tokens_are_not_refused(long: str) -> None:
    text = "\n\n".join(
        20 * (ONE if number % 2 else TWO) + f"Number {number} ." for number in range(10)
    )
    made = handlers.map_of(long, "attention", text)
    assert made.size == 12
    with pytest.raises(InputError, match="at most 128"):  # the model's own limit stays
        handlers.map_of("ctxmix/agreement", "attention", text)
    with pytest.raises(InputError, match="one long sentence"):
        handlers.map_of(long, "attention", "the boys " * 300)
    assert handlers.map_of(long, "attention", 40 * TWO).size == 42  # no paragraphs: sentences


@pytest.mark.parametrize("part", ["", "3"])
def test_its_code_makes_the_same(long: str, part: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    asked = {"model": long, "method": "attention_rollout", "text": TEXT, "part": part}
    scope: dict[str, Any] = {}
    exec(snippets.of_view(urlencode(asked), {}), scope)
    made = handlers.map_of(long, "attention_rollout", TEXT, part=part)
    assert np.allclose(scope["m"].input, made.input, atol=1e-6)


@pytest.mark.browser
def test_paragraphs_then_words_and_back(visit: Any, server: Server, whole: Any) -> None:
    page = visit("?" + urlencode({"model": server.long, "method": "attention_rollout"}), wait=False)
    page.wait("w.p.query.model.startsWith('/')", timeout=40000)
    page.ask(TEXT)
    page.wait("w.p.part", timeout=40000)
    page.page.wait_for_selector("#map-main canvas[aria-busy=false]")
    shown = page.js("Array.from(w.matrix)")
    assert np.allclose(shown, whole.segments("paragraphs").input[0, -1].flatten(), atol=2e-3)
    page.shot("document")
    page.js("(w.pins = [3], w.set({}))")
    page.page.get_by_role("button", name="Words of this paragraph").click()
    page.wait("w.p.query.part === '3'", timeout=40000)
    page.page.wait_for_selector("#map-main canvas[aria-busy=false]")
    assert "[MASK]" in page.js("w.labels")
    page.shot("document-words")
    assert page.query()["part"] == "3"
    page.page.reload()
    page.wait("w.p.query.part === '3'", timeout=40000)
    page.page.wait_for_selector("#map-main canvas[aria-busy=false]")
    page.page.get_by_role("button", name="All paragraphs").click()
    page.wait("w.p.part && w.p.query.part === ''", timeout=40000)
    page.ask("The boys [MASK] tired.")  # another text has no part
    page.wait("!w.p.part && w.p.text === 'The boys [MASK] tired.'", timeout=40000)
    page.page.wait_for_selector("#map-main canvas[aria-busy=false]")
    assert "part" not in page.query()
    page.errors.clear()  # gradio's own stream complains when its page is left
