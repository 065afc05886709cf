"""What a polite page does: says what is wrong, keeps visitors apart, works without a mouse and for a screen reader."""

from __future__ import annotations

import urllib.request
from typing import Any
from urllib.parse import urlencode

import pytest

import ctxmix_hf as cm
from tests.demo.conftest import KEYS, Server

pytestmark = pytest.mark.browser

NAMELESS = """() => [...document.querySelectorAll('button, input, select, textarea, canvas')].filter((e) => e.offsetParent)
  .filter((e) => !((e.getAttribute('aria-label') || e.textContent || e.alt || e.title || '').trim()
    || (e.labels && [...e.labels].some((l) => l.textContent.trim())))).map((e) => e.outerHTML.slice(0, 120))"""  # noqa: E501
FOCUSED = """() => { const e = document.activeElement, s = getComputedStyle(e);
  return [e.tagName, e.className, s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2]; }"""


def choose_model(page: Any, name: str) -> None:
    page.page.fill("#model input", name)
    page.page.keyboard.press("Enter")


def test_models_that_cannot_be_used_are_named_with_the_reason(opened: Any, server: Server) -> None:
    """Typed into the model's box: not bundled, not on this machine, not supported, no place for
    a second sentence.
    """
    page = opened
    for name, said in {
        "ctxmix/nothing": "bundled model",
        "nobody/nothing": "nobody/nothing is not on this server",
        server.unsupported: "has no softmax attention",
        server.vision: "reads no text",
    }.items():
        choose_model(page, name)
        page.page.wait_for_selector(f"#message .ctxmix-error >> text={said}")
        assert page.js("w.p.text") == KEYS  # the last good map stays
    page.page.click("#pair-button")
    page.page.fill("#pair textarea", "they sleep")
    choose_model(page, server.plain)
    page.page.wait_for_selector("#message .ctxmix-error >> text=marks no second sentence")
    page.shot("no-pair")
    page.page.fill("#pair textarea", "")
    page.ask("the boys sleep")
    page.wait("w.p.text === 'the boys sleep'")
    page.page.wait_for_function("!document.querySelector('#message .ctxmix-error')")
    page.page.wait_for_selector("#prediction >> text=No prediction")
    choose_model(page, "ctxmix/agreement")
    page.wait("w.p.query.model === 'ctxmix/agreement'")


def walked(page: Any) -> list[str]:
    """The stops of Tab from the sentence to two behind the picture, each with a ring."""
    page.focus("#text textarea")
    reached: list[str] = []
    while "CANVAS" not in reached[:-2] and len(reached) < 40:
        page.keyboard.press("Tab")
        tag, classes, ring = page.evaluate(FOCUSED)
        reached.append(tag if not classes.startswith("cmx-token") else "token")
        assert ring or tag == "BODY", (tag, classes)
    return reached


def test_every_tab_can_be_walked_by_keyboard_and_named_by_a_screen_reader(opened: Any) -> None:
    page = opened.page
    page.wait_for_selector("#map-main canvas[aria-busy=false]")
    for _ in range(3):  # gradio may still be drawing, which takes the focus away
        page.wait_for_timeout(700)
        reached = walked(page)
        if "token" in reached:
            break
    # the picture, then the sentence under it: one stop, arrows within, and on to the controls
    assert reached[-3:-1] == ["CANVAS", "token"] and reached.count("token") == 1, reached
    page.focus("#map-main .cmx-token[tabindex='0']")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert "Target “" in page.text_content("#map-main [aria-live=polite]")
    for tab in (
        "Why this output?",
        "Compare",
        "Similarity",
        "Images",
        "Library",
        "Share & code",
        "Map",
    ):
        page.get_by_role("tab", name=tab, exact=True).focus()
        page.keyboard.press("Enter")
        page.wait_for_timeout(300)
        assert page.evaluate(NAMELESS) == [], tab
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.locator("h1").count() == 1


def test_two_visitors_never_see_one_another(visit: Any, server: Server) -> None:
    """Two at the same time, and a third who comes later."""
    pages = {secret: visit() for secret in ("zanzibar", "quixotic")}
    for secret, page in pages.items():
        page.ask(f"The {secret} boys [MASK] tired.")
    for secret, page in pages.items():
        page.wait(f"w.p.text.includes('{secret}')")
    with urllib.request.urlopen(server.url, timeout=20) as later:
        fresh = later.read().decode()
    assert KEYS in fresh
    for secret in pages:
        assert all(
            secret not in text
            for text in [
                fresh,
                *(page.page.content() for own, page in pages.items() if own != secret),
            ]
        )


def test_the_tabs_have_no_empty_state(opened: Any) -> None:
    """Opening a tab shows something at once: a comparison, a similarity, the server's own store."""
    page = opened
    page.ask("Many girls insulted [MASK].")
    page.wait("w.p.text === 'Many girls insulted [MASK].'")
    page.page.get_by_role("tab", name="Compare").click()
    page.wait("w.p.pairs", "difference")
    page.page.get_by_label("two models").check()
    page.wait("w.p.query.mode === 'two models'", "difference")
    page.ask("The boys [MASK] tired.")  # the open tab follows the text
    page.wait("w.p.query.text === 'The boys [MASK] tired.'", "difference")
    assert page.js("w.p.title", "second") == "second: ALTI · sentiment"
    page.page.get_by_role("tab", name="Library").click()
    page.wait("w.p.text === 'Many girls insulted [MASK].'", "precomputed")
    page.page.get_by_role("tab", name="Map", exact=True).click()


def test_stored_text_is_shown_as_text(visit: Any, box: Any, tmp_path: Any) -> None:
    """A store somebody else made: its texts, ids, splits and tokens are no markup on the page."""
    evil = "<img src=x onerror='window.hit=1'> <script>window.hit=1</script> </div>"
    with cm.MapStore.create(
        tmp_path / "maps", model=box[0], tokenizer=box[1], methods=["alti"]
    ) as made:
        made.add([f"one {evil}"], [f"The boys {evil} [MASK] tired."])
    page = visit(
        "?"
        + urlencode(
            {
                "tab": "precomputed",
                "store": str(tmp_path / "maps"),
                "id": f"one {evil}",
                "store_method": "alti",
                "v": "2",
            }
        )
    )
    page.wait("w.p.query.id.startsWith('one <img')", "precomputed")
    assert "onerror" in page.page.input_value("#store-example input")
    assert page.page.evaluate("window.hit") is None
    assert page.page.evaluate("document.querySelectorAll('img[src=x]').length") == 0
