"""One state, one picture: the page never shows the answer to another question than its fields ask."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from tests.demo.conftest import KEYS, Server

pytestmark = pytest.mark.browser
NEW = "The boys near the school [MASK] tired."
OTHER = "The boys [MASK] tired."
MAIN = "#map-main canvas"


def idle(page: Any, text: str, timeout: float = 40000) -> None:
    """Until the map is that of the text, and says that it is."""
    page.page.wait_for_function(
        "(text) => { const c = document.querySelector('#map-main canvas'); return c && c.dataset.text === text && "
        "c.getAttribute('aria-busy') === 'false'; }",
        arg=text,
        timeout=timeout,
    )


def test_the_canvas_says_what_it_shows(visit: Any) -> None:
    page = visit()
    idle(page, KEYS)
    canvas = page.page.locator("canvas:visible").first
    shown = {
        name: canvas.get_attribute(f"data-{name}") for name in ("text", "model", "method", "layer")
    }
    assert shown == {"text": KEYS, "model": "ctxmix/agreement", "method": "alti", "layer": "6"}
    assert page.page.locator("textarea").first.input_value() == KEYS
    box = canvas.bounding_box()
    assert box["y"] + 200 < 900  # the map is on the first screen
    page.page.locator("textarea").first.fill(NEW)
    page.page.wait_for_selector(f"{MAIN}[aria-busy=true]")  # typed, not yet asked for
    assert page.page.locator("#map-main .cmx-pending").count() == 0
    page.page.locator("textarea").first.press("Enter")
    idle(page, NEW)
    page.page.locator("#map-main input[data-key=layer]").fill("2")
    assert canvas.get_attribute("data-layer") == "2"
    assert page.errors == []
    page.page.reload()
    idle(page, NEW)
    assert canvas.get_attribute("data-layer") == "2"
    page.page.go_back()
    idle(page, KEYS)
    assert page.page.locator("textarea").first.input_value() == KEYS
    page.errors.clear()  # gradio's own stream complains when its page is left


def first_held_back(page: Any) -> list[Any]:
    """Where the next request waits until it is let go; those after it pass."""
    held: list[Any] = []

    def hold(route: Any) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    page.page.route("**/queue/join*", hold)
    return held


def test_a_slow_map_does_not_overwrite_the_example_clicked_after_it(visit: Any) -> None:
    """The first request is held back on its way, so that its answer is the last to come."""
    page = visit()
    idle(page, KEYS)
    held = first_held_back(page)
    page.ask(NEW)
    page.page.wait_for_selector("#map-main .cmx-pending")
    page.page.get_by_role("button", name="Anaphora").click()
    idle(page, "Many girls insulted [MASK].")
    with page.page.expect_response("**/queue/join*"):
        held[0].continue_()
    page.page.wait_for_timeout(
        1500
    )  # the server computes it no more: the page asked for something else since
    idle(page, "Many girls insulted [MASK].")
    assert page.page.input_value("#text textarea") == "Many girls insulted [MASK]."
    assert page.page.get_attribute("#prediction", "data-text") == "Many girls insulted [MASK]."
    page.page.unroute("**/queue/join*")


def test_what_was_typed_after_an_example_was_clicked_stays(visit: Any) -> None:
    """The example's request reaches the server last: it stops what was asked before it, not after it."""
    page = visit()
    idle(page, KEYS)
    held = first_held_back(page)
    page.page.get_by_role("button", name="Anaphora").click()
    page.page.wait_for_function("document.querySelector('#text textarea').value.includes('girls')")
    text = "The boys like the girl and the old teacher . " * 11
    with page.page.expect_response("**/queue/join*"):
        page.ask(text)
    held[0].continue_()
    idle(page, text.strip())
    assert page.page.input_value("#text textarea") == text
    page.page.unroute("**/queue/join*")


@pytest.mark.parametrize("entered", [True, False])
def test_what_is_typed_while_a_link_opens_stays(visit: Any, entered: bool) -> None:
    """The server's answer to the link fills no field that was changed meanwhile, here or on a tab."""
    page = visit(wait=False, query="?" + urlencode({"text": OTHER, "model": "ctxmix/sentiment"}))
    held: list[Any] = []
    free: list[bool] = []
    page.page.route(
        "**/queue/join*", lambda route: route.continue_() if free else held.append(route)
    )
    page.page.reload()
    page.page.wait_for_selector("#map-main [data-ready], #map-main .cmx[data-ready]")
    page.page.fill("#text textarea", NEW)
    if entered:
        page.page.press("#text textarea", "Enter")
    page.page.wait_for_timeout(300)
    free.append(True)
    for route in held:
        route.continue_()
    if entered:
        idle(page, NEW)
    else:
        page.page.wait_for_function(
            "(text) => document.querySelector('#map-main canvas').dataset.text === text", arg=OTHER
        )
        page.page.wait_for_selector(f"{MAIN}[aria-busy=true]")  # typed, not asked for
    assert page.page.input_value("#text textarea") == NEW
    page.errors.clear()  # gradio's own stream complains when its page is left


def test_answers_in_the_wrong_order(visit: Any) -> None:
    """The second answer first: the first one, when it comes, is dropped."""
    page = visit()
    idle(page, KEYS)
    texts = page.page.evaluate(
        """() => {
        const s = window.ctxmixSpace, host = document.querySelector('#map-main .ctxmix-host'), p = s.widgets.main.p;
        const [one, two] = ['one', 'two'].map((text) => s.ask('main', p.query.model, 'alti', text));
        const answer = (serial, text) => {
          s.show(host, 'main', {...p, serial, text, query: {...p.query, text}});
          return host.querySelector('canvas').dataset.text;
        };
        return [answer(two, 'two'), answer(one, 'one')]; }"""
    )
    assert texts == ["two", "two"]


def test_the_prediction_is_that_of_the_map(visit: Any) -> None:
    """Opening the list of methods and leaving it with Escape asks for nothing else."""
    page = visit()
    idle(page, KEYS)
    page.ask(NEW)
    page.page.click("#method input")
    page.page.keyboard.press("Escape")
    idle(page, NEW)
    assert page.page.get_attribute("#prediction", "data-text") == NEW


def test_a_refused_model_dims_the_other_ones_map(visit: Any, server: Server) -> None:
    page = visit()
    idle(page, KEYS)
    page.page.fill("#model input", server.unsupported)
    page.page.keyboard.press("Enter")
    page.page.wait_for_selector("#message .ctxmix-error >> text=has no softmax attention")
    page.page.wait_for_selector("#map-main .cmx-stale:not(.cmx-pending)")
    assert page.page.get_attribute(MAIN, "aria-busy") == "true"
    assert page.page.get_attribute(MAIN, "data-model") == "ctxmix/agreement"


LONG_RUNS = {  # slot: tab, a field of it and what is asked there, what asks, where the answer will stand
    "main": ("Map", "#text", NEW, "#show", "#map-main canvas"),
    "why": ("Why this output?", "#why-word", "were", "#why-button", "#why .ctxmix-host"),
    "similarity": ("Similarity", "#text-b", NEW, "#similarity-button", "#similarity .ctxmix-host"),
    "ranking": ("Similarity", "#documents", "One.\nTwo.", "#rank-button", "#ranking .ctxmix-host"),
    "compare": ("Compare", "#text", NEW, "#compare-button", "#map-difference canvas"),
    "agreement": ("Compare", "", "", "#agreement-button", "#agreement .ctxmix-host"),
    "image": ("Images", "#vision-model", "nobody/nothing", "#image-button", "#map-image canvas"),
}


def test_every_long_run_says_how_long_it_takes_and_can_be_stopped(visit: Any) -> None:
    """On every tab, in one way: the time, a picture that is dimmed, and Stop, which the server is told."""
    page = visit()
    idle(page, KEYS)
    for slot, (tab, field, text, button, picture) in LONG_RUNS.items():
        page.page.get_by_role("tab", name=tab, exact=True).click()
        if slot != "agreement":
            page.page.wait_for_selector(f"{picture}[aria-busy=false]", timeout=40000)
        page.page.route("**/queue/join*", lambda route: None)  # nothing is ever answered
        if field:
            box = page.page.locator(f"{field} textarea, {field} input").first
            before = box.input_value()
            box.fill(text)
        page.page.click(button)
        line = f".ctxmix-wait[data-slot={slot}]"
        page.page.wait_for_selector(f"{line} >> text=Computing")
        page.page.wait_for_selector(f"{line} >> text=/^[1-9][0-9]* s$/")
        page.page.wait_for_selector(f"{picture}[aria-busy=true]")
        number = page.page.evaluate("(slot) => ctxmixSpace.requests.serials[slot]", slot)
        with page.page.expect_request(
            lambda r, said=f"{slot}:{number}": said in (r.post_data or "")
        ):
            page.page.click(f"{line} button")
        page.page.wait_for_selector(line, state="detached")
        assert page.page.locator(".ctxmix-pending:visible, .cmx-pending:visible").count() == 0, slot
        page.page.unroute("**/queue/join*")
        if field:
            page.page.wait_for_selector(f"{picture}[aria-busy=true]")  # not what the field says
            box.fill(before)
            page.page.wait_for_selector(f"{picture}[aria-busy=false]")


def test_files_that_take_long_can_be_stopped_too(visit: Any) -> None:
    page = visit()
    idle(page, KEYS)
    page.page.get_by_role("tab", name="Share & code").click()
    page.page.wait_for_selector("#snippet >> text=import ctxmix_hf")
    page.page.route("**/queue/join*", lambda route: None)
    page.page.click("#files-button")
    page.page.wait_for_selector(".ctxmix-wait[data-slot=files] >> text=/^[1-9][0-9]* s$/")
    with page.page.expect_request(lambda r: "files:1" in (r.post_data or "")):
        page.page.click(".ctxmix-wait[data-slot=files] button")
    page.page.wait_for_selector(".ctxmix-wait", state="detached")
    page.page.unroute("**/queue/join*")
    page.page.click("#files-button")
    page.page.wait_for_selector("#files a", timeout=40000)
    page.page.wait_for_selector(".ctxmix-wait", state="detached")


def test_stop_ends_the_work(visit: Any, server: Server) -> None:
    """A ranking of long texts: once it is stopped, nothing computes any more."""
    page = visit()
    idle(page, KEYS)
    page.page.get_by_role("tab", name="Similarity").click()
    page.page.wait_for_selector("#ranking .ctxmix-host[aria-busy=false] >> text=1. ")
    long = "The boys like the girl and the old teacher . " * 11
    page.page.fill("#text-a textarea, #text-a input", long)
    page.page.fill("#documents textarea", "\n".join(f"{long}{k}" for k in range(20)))
    page.page.click("#rank-button")
    page.page.wait_for_selector(".ctxmix-wait[data-slot=ranking] >> text=/^[1-9][0-9]* s$/")
    busy = work(server.pid, 0.5)
    page.page.click(".ctxmix-wait[data-slot=ranking] button")
    page.page.wait_for_timeout(1000)
    idle_after = work(server.pid, 1.0)
    assert busy > 0.2 and idle_after < 0.2, (busy, idle_after)


def work(pid: int, seconds: float) -> float:
    """How much processor the server's workers use in a while."""

    def used() -> float:
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            if int(fields[1]) == pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(seconds)
    return used() - before


def test_the_tab_that_is_open_follows_another_text(visit: Any) -> None:
    """With the word of the new text: the example's own word goes with the example."""
    page = visit()
    idle(page, KEYS)
    page.page.get_by_role("tab", name="Why this output?").click()
    page.page.wait_for_selector("#why .ctxmix-host[aria-busy=false] svg")
    page.ask(NEW)
    page.page.wait_for_function(
        "(text) => document.querySelector('#map-main canvas').dataset.text === text", arg=NEW
    )
    page.page.wait_for_selector("#why .ctxmix-host[aria-busy=false] >> text=school")
    assert page.page.input_value("#why-word textarea, #why-word input") == ""


def test_a_text_of_unknown_words(visit: Any) -> None:
    """Without the special tokens there is still something to see, and unknown words are marked."""
    page = visit()
    idle(page, KEYS)
    page.ask("漢字 שלום")
    idle(page, "漢字 שלום")
    page.page.click("#map-main button[aria-expanded]")
    page.page.uncheck("#map-main input[data-key=specials]")
    assert page.js("w.groups.length") >= 2
    assert page.page.locator("#map-main .cmx-unknown").count() >= 2
    assert "the model saw [UNK]" in page.page.text_content("#map-main .cmx-note")
    page.page.evaluate(
        """() => { const w = document.querySelector('#map-main .cmx').ctxmix;
        w.model.p.special = w.model.p.special.map(() => true); w.set({specials: 0}); }"""
    )
    assert page.js("w.groups.length") >= 2  # nothing but special tokens: they are shown


def test_whoever_serves_the_page_gets_its_styles_and_scripts() -> None:
    from ctxmix_hf.demo import build

    config = str(build().get_config_file())
    assert "ctxmixSpace" in config and ".cmx-stage" in config


def test_the_same_answer_twice_keeps_what_was_chosen(visit: Any) -> None:
    """Gradio hands a value over again when it likes: target and layer stay."""
    page = visit()
    idle(page, KEYS)
    chosen = page.page.evaluate(
        """() => { const s = window.ctxmixSpace, w = s.widgets.main;
        const host = document.querySelector('#map-main .ctxmix-host');
        w.pins = [1]; w.set({layer: 2});
        const serial = s.ask('main', ...['model', 'method', 'text', 'pair'].map((key) => w.p.query[key]));
        for (const over of [{}, {serial}]) s.show(host, 'main', {...JSON.parse(JSON.stringify(w.p)), ...over});
        const now = s.widgets.main; return [now.pins, now.s.layer]; }"""
    )
    assert chosen == [[1], 2]


def test_each_side_of_a_comparison_says_what_it_shows(visit: Any) -> None:
    page = visit()
    idle(page, KEYS)
    page.page.get_by_role("tab", name="Compare").click()
    page.wait("w.p.pairs", "difference")
    page.page.get_by_label("two models").check()
    page.wait("w.p.query.mode === 'two models'", "difference")
    shown = {
        name: page.page.get_attribute(f"#map-{name} canvas", "data-model")
        for name in ("first", "second", "difference")
    }
    first, second = shown["first"], shown["second"]
    assert first == "ctxmix/agreement" and second == "ctxmix/sentiment"
    assert shown["difference"] == f"{second} − {first}"
    assert "sentiment" in page.js("w.fileName()", "second")


def test_files_are_of_what_is_shown_not_of_what_is_being_typed(visit: Any) -> None:
    page = visit()
    idle(page, KEYS)
    page.page.locator("textarea").first.fill(NEW)  # without Enter
    sent = dict(parse_qsl(page.page.evaluate("window.ctxmixSpace.asked()")))
    assert sent == {"model": "ctxmix/agreement", "method": "alti", "text": KEYS, "v": "2"}


def test_late_scores_of_another_sentence_are_dropped(visit: Any) -> None:
    page = visit()
    idle(page, KEYS)
    serial = page.page.evaluate("window.ctxmixSpace.ask('scores-panel')")
    page.ask(NEW)
    idle(page, NEW)
    late = page.page.evaluate(
        "(serial) => window.ctxmixSpace.requests.late('scores-panel', serial)", serial
    )
    again = page.page.evaluate(
        "window.ctxmixSpace.requests.late('scores-panel', window.ctxmixSpace.ask('scores-panel'))"
    )
    assert late is True and again is False


def test_the_tour_goes_to_the_map(visit: Any) -> None:
    page = visit()
    idle(page, KEYS)
    page.page.get_by_role("tab", name="Why this output?").click()
    page.page.wait_for_selector("#why svg[aria-label=waterfall]")
    page.page.click("#tour-button")
    page.page.wait_for_selector("#tour")
    assert page.page.locator("#map-main canvas").is_visible()
    page.page.keyboard.press("Escape")


def test_a_narrowing_search_is_no_error(visit: Any, server: Server) -> None:
    """Letter by letter, faster than the answers come."""
    page = visit()
    page.page.get_by_role("tab", name="Library").click()
    page.wait("w.p.text", "precomputed")
    for word in ("boys", "girls", "teacher"):
        page.page.fill("#store-search textarea, #store-search input", "")
        page.page.locator("#store-search textarea, #store-search input").press_sequentially(word)
    page.page.wait_for_timeout(1500)
    toasts = page.page.locator(".toast-body.error, .toast-wrap .error")
    assert toasts.count() == 0, toasts.first.text_content()


BUSY = {  # tab: (a field of it, pictures that no longer say what the field says)
    "Why this output?": ("#why-word", ["#why .ctxmix-host"]),
    "Similarity": ("#text-a", ["#similarity .ctxmix-host", "#ranking .ctxmix-host"]),
    "Compare": ("#text", [f"#map-{name} canvas" for name in ("first", "second", "difference")]),
    "Images": ("#vision-model", ["#map-image canvas"]),
    "Library": ("#store", ["#map-precomputed canvas"]),
}


def test_every_tab_dims_what_its_fields_no_longer_say(visit: Any) -> None:
    page = visit()
    idle(page, KEYS)
    for tab, (field, pictures) in BUSY.items():
        page.page.get_by_role("tab", name=tab, exact=True).click()
        for picture in pictures:
            page.page.wait_for_selector(f"{picture}[aria-busy=false]", timeout=40000)
        box = page.page.locator(f"{field} textarea, {field} input").first
        before = box.input_value()
        box.fill("something else")  # typed, not asked for
        for picture in pictures:
            page.page.wait_for_selector(f"{picture}[aria-busy=true]")
        box.fill(before)
        for picture in pictures:
            page.page.wait_for_selector(f"{picture}[aria-busy=false]")


def test_an_answer_that_does_not_come_leaves_its_tab_dimmed_and_turning(visit: Any) -> None:
    page = visit()
    idle(page, KEYS)
    page.page.get_by_role("tab", name="Why this output?").click()
    page.page.wait_for_selector("#why .ctxmix-host[aria-busy=false] svg")
    page.page.route("**/queue/join*", lambda route: None)  # nothing is ever answered
    page.page.fill("#why-word textarea, #why-word input", "were")
    page.page.click("#why-button")
    page.page.wait_for_selector("#why .ctxmix-host.ctxmix-pending[aria-busy=true]")
    page.page.unroute("**/queue/join*")


def test_an_error_dims_the_comparison_before_it(visit: Any, server: Server) -> None:
    page = visit()
    idle(page, KEYS)
    page.page.get_by_role("tab", name="Compare").click()
    page.page.wait_for_selector("#map-difference canvas[aria-busy=false]")
    page.page.get_by_label("two models").check()
    page.wait("w.p.query.mode === 'two models'", "difference")
    page.page.fill("#other-model input", server.unsupported)
    page.page.keyboard.press("Enter")
    page.page.wait_for_selector("#compare-message .ctxmix-error >> text=has no softmax attention")
    for name in ("first", "second", "difference"):
        page.page.wait_for_selector(f"#map-{name} .cmx-stale:not(.cmx-pending)")


def test_the_ranking_follows_the_model(visit: Any) -> None:
    """It opens with one, and another model ranks again."""
    page = visit()
    idle(page, KEYS)
    page.page.get_by_role("tab", name="Similarity").click()
    page.page.wait_for_selector("#ranking .ctxmix-host[aria-busy=false] >> text=1. ")
    before = page.page.text_content("#ranking")
    page.page.click("#model input")
    page.page.get_by_role("option", name="ctxmix/sentiment").click()
    page.page.wait_for_function(
        "(before) => { const r = document.querySelector('#ranking .ctxmix-host'); "
        "return r.getAttribute('aria-busy') === 'false' && r.textContent.trim() && r.textContent !== before; }",
        arg=before,
        timeout=40000,
    )
