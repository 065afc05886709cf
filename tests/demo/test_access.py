"""Whoever cannot see, cannot point or cannot wait: axe-core, the keyboard, contrast, motion, and the tour."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from tests.demo.conftest import ARTIFACTS, KEYS
from tests.node import modules

pytestmark = pytest.mark.browser
TABS = {  # and what each shows when it is open
    "Map": "#map-main canvas",
    "Why this output?": "#why svg >> visible=true",
    "Similarity": "#similarity b",
    "Compare": "#map-difference canvas",
    "Images": "#map-image canvas",
    "Library": "#map-precomputed canvas",
    "Share & code": "#snippet >> text=import ctxmix_hf",
}
FOCUS = "(() => { const e = document.activeElement; return e.id || e.tagName.toLowerCase(); })()"


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_axe_finds_nothing_on_any_tab(visit: Any, width: int, theme: str) -> None:
    """axe-core's own rules, contrast (AA) among them, with every menu open."""
    script = (modules() / "axe-core" / "axe.min.js").read_text()
    page = visit("?" + urlencode({"__theme": theme}), width=width, scheme=theme)
    page.page.evaluate(script)
    found = {}
    for tab, shows in TABS.items():
        page.page.get_by_role("tab", name=tab, exact=True).click()
        page.page.wait_for_selector(shows, timeout=40000)
        page.page.evaluate(
            "() => { for (const w of ctxmix.widgets) w.unfold(true); "
            "for (const d of document.querySelectorAll('details')) d.open = true; }"
        )
        page.page.wait_for_timeout(300)
        said = page.page.evaluate("() => axe.run(document)")
        assert len(said["passes"]) > 15  # it looked
        for wrong in said["violations"]:
            found[tab, wrong["id"]] = [node["html"][:120] for node in wrong["nodes"]][:3]
    assert found == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_the_ground_s_colour_in_both_themes(visit: Any, theme: str) -> None:
    """Of a ledger and of a similarity: a cell near zero looks like the page around it, as on the map."""
    from io import BytesIO

    from PIL import Image

    page = visit("?" + urlencode({"__theme": theme}), scheme=theme)
    for tab, panel, name in (
        ("Why this output?", "#why", "layers by tokens"),
        ("Similarity", "#similarity", "pairs of words"),
    ):
        page.page.get_by_role("tab", name=tab, exact=True).click()
        page.page.wait_for_selector(f"{panel} .cmx-broad svg[aria-label='{name}']", timeout=40000)
        page.page.wait_for_selector(f"{panel} .cmx-legend")
        svg = page.page.locator(f"{panel} .cmx-broad svg[aria-label='{name}']")
        svg.scroll_into_view_if_needed()
        page.page.wait_for_selector(f"{panel} [aria-busy=true]", state="detached")
        least = svg.evaluate(
            "svg => { const size = r => Math.abs(Number(r.textContent.split(': ').pop()));"
            "const r = [...svg.querySelectorAll('rect')].sort((a, b) => size(a) - size(b));"
            "const at = svg.getBoundingClientRect(), of = e => { const b = e.getBoundingClientRect();"
            "return [b.x - at.x + b.width / 2, b.y - at.y + b.height / 2]; };"
            "return [of(r[0]), of(r[r.length - 1])]; }"
        )
        shot = Image.open(BytesIO(svg.screenshot())).convert("RGB")
        back = shot.getpixel((shot.width - 2, shot.height - 2))
        near, far = (shot.getpixel((round(x), round(y))) for x, y in least)
        assert max(abs(a - b) for a, b in zip(near, back, strict=True)) < 12, (near, back)
        assert max(abs(a - b) for a, b in zip(far, back, strict=True)) > 60
    page.shot(f"similarity-{theme}")


DRAWN = {  # by tab: the panel and its drawings, as wide as the window wants them
    "Why this output?": ("#why", ["words", "waterfall", "layers by tokens", "flow"]),
    "Similarity": ("#similarity", ["links between words", "pairs of words"]),
}


@pytest.mark.parametrize("width", [1440, 390])
def test_every_number_of_a_drawing_is_told_by_keyboard_and_by_tap(visit: Any, width: int) -> None:
    """Tab to the drawing, arrows within it, or a finger on it: what the tooltip says is written and announced."""
    script = (modules() / "axe-core" / "axe.min.js").read_text()
    page = visit(width=width)
    page.page.evaluate(script)
    for tab, (panel, names) in DRAWN.items():
        page.page.get_by_role("tab", name=tab, exact=True).click()
        page.page.wait_for_selector(f"{panel} .ctxmix-host[aria-busy=false] svg", state="attached")
        for name in names:
            box = page.page.locator(f"{panel} [role=group][aria-label^='{name}']:visible").first
            box.scroll_into_view_if_needed()
            titles = box.evaluate(
                "b => [...b.querySelectorAll('svg title')].map(t => t.textContent)"
            ) or box.evaluate(
                "b => [...b.querySelectorAll('[title]')].map(e => e.textContent + ': ' + e.title)"
            )
            told = box.locator("xpath=following-sibling::*[1][@role='status']")
            box.focus()
            heard = set()
            for key in ("Home", *["ArrowRight", "ArrowDown"] * 3, "End"):
                page.page.keyboard.press(key)
                heard.add(told.text_content())
            assert len(heard) >= 4 and heard <= set(titles), (name, heard)
            assert box.locator(".cmx-at").count() == 1
            page.page.keyboard.press("Home")
            first = told.text_content()
            tapped = (
                "[title]" if name == "words" else "svg :is(rect, path):has(> title), svg g rect"
            )
            mark = box.locator(tapped).last
            if "flow" in name or "links" in name:  # thin: a finger beside it is enough
                x, y = mark.evaluate(
                    "p => { const m = p.getPointAtLength(p.getTotalLength() / 2)"
                    ".matrixTransform(p.getScreenCTM()); return [m.x + 4, m.y]; }"
                )
                page.page.mouse.click(x, y)
            else:
                mark.click()
            assert told.text_content() in titles and (len(titles) == 1 or told.text_content())
            assert told.text_content() != first or "flow" in name or "links" in name
        said = page.page.evaluate("() => axe.run(document)")
        assert [wrong["id"] for wrong in said["violations"]] == []


def test_a_file_tells_its_numbers_too(browser: Any, box: Any) -> None:
    """What is saved or shown in a notebook, without the page around it."""
    import ctxmix_hf as cm

    for made in (cm.ledger(box[0], KEYS), cm.similarity(box[0], "The boys.", "The girls.")):
        page = browser.new_page()
        page.set_content(made.to_html())
        drawing = page.locator(".cmx-wide:visible").last
        drawing.focus()
        page.keyboard.press("ArrowDown")
        told = page.text_content(".cmx-said")
        assert told in drawing.evaluate(
            "b => [...b.querySelectorAll('title')].map(t => t.textContent)"
        )
        page.close()


def test_pictures_of_ten_words_fit_a_phone(visit: Any) -> None:
    """Nothing to scroll sideways: neither in the ledger, nor in the similarity."""
    text = "The old books about the boy near us [MASK] old."
    page = visit("?" + urlencode({"text": text}), width=390)
    wide = (
        "(panel) => [...document.querySelectorAll(panel + ' .cmx-wide')].filter(e => e.offsetParent)"
        ".map(e => [e.firstChild.getAttribute('aria-label'), e.scrollWidth, e.clientWidth])"
    )
    for tab, panel, count in (("Why this output?", "#why", 3), ("Similarity", "#similarity", 2)):
        page.page.get_by_role("tab", name=tab, exact=True).click()
        page.page.wait_for_selector(f"{panel} .cmx-narrow >> nth={count - 1}", timeout=40000)
        if panel == "#similarity":
            words = "The old books about the boy near us are old."
            page.page.fill("#text-a textarea, #text-a input", words)
            page.page.fill("#text-b textarea, #text-b input", words.replace("boy", "girl"))
            page.page.click("#similarity-button")
            page.page.wait_for_function(
                "document.querySelector('#similarity').textContent.includes('girl')"
            )
        found = page.page.evaluate(wide, panel)
        assert len(found) == count
        for name, whole, seen in found:
            assert whole <= seen, (name, whole, seen)
        page.page.wait_for_timeout(300)
        page.shot(f"narrow-{count}")


def test_a_row_of_tabs_that_goes_on_says_so(visit: Any) -> None:
    page = visit(width=390)
    page.page.wait_for_selector('#tabs [role="tablist"].ctxmix-more')
    page.page.get_by_role("tab", name="Share & code").click()
    page.page.wait_for_selector('#tabs [role="tablist"].ctxmix-before')
    for name in (
        "Compare",
        "Map",
        "Share & code",
    ):  # the open one is in sight, however it was opened
        tab = page.page.get_by_role("tab", name=name, exact=True)
        tab.evaluate("tab => tab.click()")
        page.page.wait_for_selector(f'[role=tab][aria-selected=true] >> text="{name}"')
        page.page.wait_for_timeout(400)
        box = tab.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 391, (name, box)
    wide = visit()
    assert wide.page.locator(".ctxmix-more").count() == 0


def test_five_stops_of_tab_lead_to_the_picture(visit: Any) -> None:
    """Sentence, model, method, tabs, picture; and there the keys do what the mouse does."""
    page = visit()
    stops = []
    for _ in range(5):
        page.page.keyboard.press("Tab")
        stops.append(page.page.evaluate(FOCUS))
    assert stops[-1] == "canvas", stops
    assert page.page.evaluate("document.activeElement.closest('#map-main') !== null")
    page.page.keyboard.press("Home")
    page.page.keyboard.press("ArrowDown")
    assert "Target “The”" in page.page.text_content("#map-main [aria-live=polite]")  # announced
    page.page.keyboard.press("Shift+Tab")
    page.page.keyboard.press("ArrowRight")
    page.page.wait_for_selector('[role=tab][aria-selected=true] >> text="Why this output?"')
    page.page.wait_for_selector("#why svg")


def test_the_tour_teaches_and_can_be_left(visit: Any) -> None:
    page = visit()
    page.page.focus("#tour-button")
    page.page.keyboard.press("Enter")
    steps = []
    for _ in range(4):
        assert page.page.evaluate("document.activeElement.closest('#tour') !== null")
        steps.append(page.page.text_content("#tour"))
        assert page.page.locator(".ctxmix-toured").count() == 1  # what is meant is marked
        page.page.keyboard.press("ArrowRight")
    for step, words in zip(steps, ("row", "column", "layer 1 of 6", "leaves out: "), strict=True):
        assert words in step
    page.page.wait_for_selector("#tour", state="detached")
    assert page.page.evaluate(FOCUS) == "tour-button"  # back to where it was
    page.page.keyboard.press("Enter")
    page.page.wait_for_selector("#tour >> text=1 of 4")
    page.page.keyboard.press("Escape")
    page.page.wait_for_selector("#tour", state="detached")
    page.page.click("#tour-button")
    page.page.get_by_role("button", name="Skip").click()
    assert page.page.locator(".ctxmix-toured").count() == 0


@pytest.mark.parametrize(("width", "height", "theme"), [(1440, 900, "light"), (390, 844, "dark")])
def test_the_tour_never_hides_what_it_explains(
    visit: Any, width: int, height: int, theme: str
) -> None:
    """Box and mark are in the window and apart, and what is said is true of this theme."""
    page = visit("?" + urlencode({"__theme": theme}), width=width, scheme=theme)
    page.page.set_viewport_size({"width": width, "height": height})
    page.page.click("#tour-button")
    places = (
        "['#tour', '.ctxmix-toured'].map((at) => { const r = document.querySelector(at)"
        ".getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; })"
    )
    said = []
    for step in range(4):
        page.page.wait_for_selector(f"#tour >> text={step + 1} of 4")
        page.page.screenshot(path=ARTIFACTS / f"tour-{width}-{step + 1}.png")
        box, mark = page.page.evaluate(places)
        for left, top, right, bottom in (box, mark):
            assert (left >= 0, top >= 0, right <= width, bottom <= height) == (True,) * 4, step
        apart = box[0] >= mark[2] or box[2] <= mark[0] or box[1] >= mark[3] or box[3] <= mark[1]
        assert apart, (step, box, mark)
        said.append(page.page.text_content("#tour"))
        if step == 0:  # the row of the target, over the canvas
            row = page.js("w.geometry.y + w.rows()[0] * w.geometry.ch")
            top = page.page.evaluate(
                "document.querySelector('#map-main canvas').getBoundingClientRect().top"
            )
            assert mark[1] == pytest.approx(top + row, abs=2) and "[MASK]" in said[0]
        page.page.keyboard.press("ArrowRight")
    word = "darker" if theme == "light" else "lighter"
    assert f"The {word} the cell, the more" in said[1] and "here books" in said[1]
    assert page.page.locator(".ctxmix-spot").count() == 0


def test_nothing_turns_for_who_asked_for_no_motion(browser: Any, server: Any) -> None:
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector("#map-main [data-ready], #map-main .cmx[data-ready]")
    page.evaluate("window.ctxmixSpace.ask('main', 'ctxmix/agreement', 'alti', 'never answered')")
    page.wait_for_selector("#map-main .cmx-pending")
    look = (
        "getComputedStyle(document.querySelector('#map-main .cmx-stage'), '::after').animationName"
    )
    assert page.evaluate(look) == "none"
    context.close()


def mounted(page: Any, count: int, width: int = 366) -> Any:
    """A widget of `count` made-up words in a box of this width."""
    return page.page.evaluate_handle(
        """([n, width]) => { const data = new Uint16Array(2 * n * n).map((_, i) => 0x2c00 + (i * 7919) % 2048);
        let text = ''; for (const b of new Uint8Array(data.buffer)) text += String.fromCharCode(b);
        const words = Array.from({length: n}, (_, i) => 'word' + i), host = document.createElement('div');
        host.style.width = width + 'px'; document.body.prepend(host);
        return ctxmix.mount(host, {version: 2, method: 'x', title: 'x', depth: 2, layers: [1, 2], tokens: words, words,
          groups: words.map((_, i) => [i]), special: words.map(() => false), text: words.join(' '),
          maps: {layer: {data: btoa(text), scale: [1, 1]}}, pin: '3', signed: false}); }""",
        [count, width],
    )


@pytest.mark.parametrize("count", [5, 20, 60, 200])
def test_any_length_is_legible(desk: Any, count: int) -> None:
    """The canvas stays in its box at every zoom, cells scroll under headers that stay, keys bring rows into sight."""
    for width in (366, 1100):
        w = mounted(desk, count, width)
        for zoom in (1, 3):
            w.evaluate("(w, zoom) => w.set({zoom})", zoom)
            box, canvas = w.evaluate(
                "(w) => [w.stage.clientWidth, w.canvas.getBoundingClientRect().width]"
            )
            assert canvas <= box + 0.5, (width, zoom)
        sizes = w.evaluate("(w) => [w.stage.scrollHeight, w.stage.clientHeight, w.geometry.height]")
        if count >= 60:
            assert sizes[0] > sizes[1]
            w.evaluate("(w) => { w.canvas.focus(); }")
            desk.page.keyboard.press("End")
            desk.page.wait_for_function(
                "(w) => w.stage.scrollTop > 100 && w.geometry.sy > 100", arg=w
            )
            last = "(w) => (w.groups.length - 1) * w.geometry.ch - w.geometry.sy + w.geometry.y"
            assert (
                0 < w.evaluate(last) < w.evaluate("(w) => w.geometry.seenHeight - w.geometry.foot")
            )
        w.evaluate("(w) => w.root.remove()")


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_the_first_screen_holds_sentence_and_map(visit: Any, width: int, height: int) -> None:
    """On the opening example all of it, on one of 50 words enough to see what it is; on every tab with a map."""
    page = visit(width=width)
    page.page.set_viewport_size({"width": width, "height": height})
    bottom = (
        "(name) => { const c = document.querySelector(`#map-${name} canvas`), w = c.closest('.cmx').ctxmix; "
        "return c.getBoundingClientRect().top + w.geometry.y + w.geometry.rows * w.geometry.ch; }"
    )
    assert page.page.evaluate(bottom, "main") <= height
    page.page.get_by_role("tab", name="Library").click()
    page.page.wait_for_selector("#map-precomputed canvas")
    assert page.page.evaluate(bottom, "precomputed") <= height
    page.page.get_by_role("tab", name="Map", exact=True).click()
    text = "The boys like the girl and the old teacher . " * 5 + "They [MASK] here ."
    page.ask(text)
    page.wait(f"w.p.text === {text!r}", timeout=40000)
    top = page.page.evaluate(
        "document.querySelector('#map-main canvas').getBoundingClientRect().top + "
        "document.querySelector('#map-main .cmx').ctxmix.geometry.y"
    )
    assert top < height - 150


def test_words_from_right_to_left_stand_in_their_order(typing: Any) -> None:
    page = typing
    page.ask("שלום [MASK] עולם")
    page.wait("w.p.text === 'שלום [MASK] עולם'")
    places = page.page.eval_on_selector_all(
        "#map-main .cmx-token", "all => all.map((t) => t.getBoundingClientRect().left)"
    )
    assert places == sorted(places, reverse=True)
    assert page.js("w.hit(w.geometry.x + 3, w.geometry.y + 3).col") == len(places) - 1
    page.ask(KEYS)
    page.wait(f"w.p.text === {KEYS!r}")
    assert page.js("w.hit(w.geometry.x + 3, w.geometry.y + 3).col") == 0
