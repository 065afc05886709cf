"""The other tabs in a real browser: comparison, embeddings, pictures, precomputed maps."""

from __future__ import annotations

import struct
import urllib.request
from typing import Any

import numpy as np
import pytest

import ctxmix_hf as cm
from tests.demo.conftest import KEYS, Server

pytestmark = pytest.mark.browser


def test_two_methods_side_by_side(opened: Any, box: Any) -> None:
    page = opened
    page.page.get_by_role("tab", name="Compare").click()
    page.page.click("#compare-button")
    page.wait("w.p.pairs", "difference")
    maps = [
        cm.explain(box[0], KEYS, method, tokenizer=box[1]).words()
        for method in ("alti", "attention_rollout")
    ]
    gap = maps[1].difference(maps[0], row_shares=True)
    n = len(gap.tokens)
    assert np.allclose(
        np.array(page.js("Array.from(w.matrix)", "difference")).reshape(n, n),
        gap.input[-1].numpy(),
        atol=2e-3,
    )
    page.page.click("#map-first .cmx-token >> nth=2")
    assert page.js("w.pins", "second") == [2]
    assert page.js("w.pins", "difference") == [2]
    wanted = maps[0].attribution(2).rank_correlation(maps[1].attribution(2))
    assert float(page.page.get_attribute("#rank-correlation", "data-value")) == pytest.approx(
        wanted, abs=0.02
    )
    page.page.click("#agreement-button")
    page.page.wait_for_selector("#agreement table")
    assert page.page.locator("#agreement tr").count() > 10
    assert "agrees most with the others" in page.page.text_content("#agreement .ctxmix-finding")
    page.shot("compare")


def test_a_minimal_pair(visit: Any, box: Any) -> None:
    page = visit(width=390)
    page.page.get_by_role("tab", name="Compare").click()
    page.page.get_by_label("two sentences").check()
    page.page.fill("#other-text textarea, #other-text input", KEYS.replace("books", "book"))
    page.page.click("#compare-button")
    page.wait(
        "w.p.pairs && w.p.query.mode === 'two sentences'", "difference"
    )  # opening the tab compared two methods
    maps = [
        cm.explain(box[0], text, "alti", tokenizer=box[1]).words()
        for text in (KEYS, KEYS.replace("books", "book"))
    ]
    assert np.allclose(
        page.js("Array.from(w.matrix)", "difference"),
        (maps[1] - maps[0]).input[-1].flatten().numpy(),
        atol=2e-3,
    )
    assert "books/book" in page.page.text_content("#map-difference")
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    page.shot("minimal-pair-390")


def test_which_words_made_the_similarity(opened: Any, box: Any) -> None:
    page = opened
    page.page.get_by_role("tab", name="Similarity").click()
    page.page.fill("#text-a textarea, #text-a input", "The boys are tired.")
    page.page.fill("#text-b textarea, #text-b input", "The girls are tired.")
    page.page.click("#similarity-button")
    made = cm.similarity(box[0], "The boys are tired.", "The girls are tired.", tokenizer=box[1])
    page.page.wait_for_selector(f"#similarity >> text={made.finding()}")
    assert f"{made.cosine:.4f}" in page.page.text_content("#similarity b")
    page.page.fill("#documents textarea", "The girls are tired.\nThe film is bad.")
    page.page.click("#rank-button")
    page.page.wait_for_selector("#ranking >> text=1. ")
    page.shot("embeddings")


def test_precomputed_maps(opened: Any, server: Server, box: Any) -> None:
    page = opened
    page.page.get_by_role("tab", name="Library").click()
    page.wait("w.p.text === 'Many girls insulted [MASK].'", "precomputed")
    page.page.locator("#store-search textarea, #store-search input").press_sequentially("tired")
    page.wait("w.p.text === 'The boys [MASK] tired.'", "precomputed")
    wanted = cm.explain(box[0], "The boys [MASK] tired.", "alti", tokenizer=box[1]).words()
    assert np.allclose(
        page.js("Array.from(w.matrix)", "precomputed"),
        wanted.input[0, -1].flatten().numpy(),
        atol=2e-3,
    )
    page.shot("precomputed")
    box_ = page.page.locator("#store-search textarea, #store-search input")
    for _ in "tired":
        box_.press("Backspace")
    page.page.keyboard.insert_text("teacher")  # as a paste does
    page.wait("w.p.text === 'The teacher [MASK] old.'", "precomputed")
    page.page.fill("#store textarea, #store input", "nobody/no-such-store")
    page.page.press("#store textarea, #store input", "Enter")
    page.page.wait_for_selector("#store-message .ctxmix-error")


def test_a_picture_under_its_map(opened: Any, server: Server, tmp_path: Any) -> None:
    from PIL import Image

    Image.effect_noise((64, 64), 90).convert("RGB").save(tmp_path / "noise.png")
    page = opened
    page.page.get_by_role("tab", name="Images").click()
    page.page.set_input_files("#map-image-upload input[type=file]", tmp_path / "noise.png")
    page.page.wait_for_selector("#map-image-upload img")
    page.page.fill("#vision-model textarea, #vision-model input", server.vision)
    page.page.press("#vision-model textarea, #vision-model input", "Enter")
    page.wait("w.p.image.grid[0] === 4 && w.picture", "image", timeout=40000)
    assert page.js("w.p.image.grid", "image") == [4, 4]
    page.page.click("#map-image canvas", position={"x": 5, "y": 5})
    assert page.js("w.pins", "image") == [1]
    page.shot("image")


def test_every_tab_opens_with_something_real(browser: Any, server: Server, visit: Any) -> None:
    """The ledger, the bundled vision model over a digit, and (in test_shelf) the bundled store."""
    page = visit()
    page.page.get_by_role("tab", name="Why this output?").click()
    page.page.wait_for_selector("#why svg[aria-label=waterfall]")
    assert "biases" in page.page.text_content("#why .cmx-ledger > p:nth-of-type(2)")
    assert not page.page.locator("#method").is_visible()  # this tab does not read it
    page.page.wait_for_selector("#why >> text=Integrated gradients")
    page.page.get_by_role("tab", name="Images").click()
    page.wait("w.p.image && w.picture", "image", timeout=40000)
    assert "the model sees 4" in page.js("w.p.title", "image")
    assert "[CLS] took" in page.page.text_content("#map-image .cmx-finding")
    assert not page.page.locator("#text").is_visible()
    page.shot("digits")


def test_the_ledger_follows_the_text_and_a_foil(visit: Any, box: Any) -> None:
    from urllib.parse import urlencode

    page = visit(
        "?" + urlencode({"tab": "why", "text": KEYS, "word": "are", "foil": "is"}), wait=False
    )
    wanted = cm.ledger(box[0], KEYS, "are", foil="is", tokenizer=box[1]).finding()
    page.page.wait_for_selector(f"#why >> text={wanted}", timeout=40000)
    page.page.fill("#why-foil textarea, #why-foil input", "")
    page.page.fill("#text textarea", "The boys [MASK] tired.")
    page.page.press("#text textarea", "Enter")
    wanted = cm.ledger(box[0], "The boys [MASK] tired.", "are", tokenizer=box[1]).finding()
    page.page.wait_for_selector(f"#why >> text={wanted}", timeout=40000)
    page.page.fill("#text textarea", "The boys are tired.")
    page.page.press("#text textarea", "Enter")
    page.page.wait_for_selector("#why >> text=fills gaps")


def test_the_ledgers_rule_is_a_choice_that_a_link_keeps(visit: Any, box: Any) -> None:
    page = visit()
    page.page.get_by_role("tab", name="Why this output?").click()
    page.page.wait_for_selector("#why svg[aria-label=waterfall]")
    assert page.page.locator("#why >> text=softmax remainder").count() == 0  # the frozen rule
    page.page.click("#why-rule input")
    page.page.get_by_role("option", name="through attention").click()
    wanted = cm.ledger(box[0], KEYS, "are", foil="is", rule="through", tokenizer=box[1])
    page.page.wait_for_selector(f"#why >> text={wanted.finding()}", timeout=90000)
    assert page.page.locator("#why text >> text=softmax remainder").count()
    page.page.wait_for_function("location.search.includes('rule=through')")
    again = visit("?" + page.page.url.split("?")[1], wait=False)
    again.page.wait_for_selector(f"#why >> text={wanted.finding()}", timeout=90000)
    assert again.page.input_value("#why-rule input") == "through attention"


def test_a_link_to_the_page_has_a_picture_of_its_own(visit: Any, server: Server) -> None:
    page = visit()
    said = page.page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('meta[content]')]"
        ".map((m) => [m.getAttribute('property') || m.name, m.content]))"
    )
    assert said["og:title"] == said["twitter:title"] == page.page.title()
    assert "ALTI" in said["og:description"] == said["description"]
    assert said["og:image"] == said["twitter:image"]
    with urllib.request.urlopen(said["og:image"], timeout=20) as answer:
        picture = answer.read()
    assert answer.headers["content-type"] == "image/png" and picture[1:4] == b"PNG"
    wide, high = struct.unpack(">II", picture[16:24])
    assert wide >= 1200 and 1.7 < wide / high < 2.1  # what link previews show whole


def test_embedded_the_picture_is_all_there_is(visit: Any) -> None:
    page = visit("?embed=1", width=600)
    page.page.wait_for_selector("#map-main canvas")
    for name in ("#text", "#head", "#beside", "[role=tablist]"):
        assert not page.page.locator(name).first.is_visible(), name
    assert page.page.title().startswith("Context mixing")
    head = page.page.evaluate(
        "[...document.querySelectorAll('meta')].map((m) => m.outerHTML).join(' ')"
    )
    assert "Gradio" not in head and "og:description" in head
