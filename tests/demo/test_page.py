"""The page in a real browser: what a person sees and does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlparse

import numpy as np
import pytest

import ctxmix_hf as cm
from tests.demo.conftest import ARTIFACTS, KEYS, Server

pytestmark = pytest.mark.browser
MODEL = "ctxmix/agreement"
NEW = "The sisters that the old waiter near the school likes [MASK] very tired of it."


def shown(visit: Any, name: str = "main") -> Any:
    """The matrix the canvas shows."""
    values = np.array(visit.js("Array.from(w.matrix)", name))
    return values.reshape(int(len(values) ** 0.5), -1)


def test_the_page_is_useful_at_once(visit: Any, server: Server) -> None:
    start = time.monotonic()
    page = visit()
    took = time.monotonic() - start
    page.page.wait_for_selector("#prediction table")
    (ARTIFACTS / "times.txt").write_text(f"first map: {took:.2f} s after opening the page\n")
    assert page.js("w.p.method") == "alti"


def test_the_map_shows_the_librarys_values(desk: Any, keys: Any) -> None:
    page = desk
    assert np.allclose(shown(page), keys.words().input[0, -1].numpy(), atol=2e-3)
    page.page.select_option(f"{page.widget()} select[data-key=scope]", "layer")
    for layer in range(6):
        page.page.fill(f"{page.widget()} input[data-key=layer]", str(layer + 1))
        assert page.page.get_attribute(page.widget(), "data-layer") == str(layer + 1)
        assert np.allclose(shown(page), keys.words().layers[0, layer].numpy(), atol=1e-3)


def test_a_layer_change_redraws_without_the_server(desk: Any) -> None:
    page = desk
    page.page.wait_for_timeout(1500)
    calls: list[str] = []
    page.page.on("request", lambda request: calls.append(request.url))
    times = page.js(
        "[1,2,3,4,5,6,1,2,3].map((l) => { const t = performance.now(); w.set({layer: l}); return "
        "performance.now() - t; })"
    )
    with (ARTIFACTS / "times.txt").open("a") as file:
        file.write(
            f"layer redraw: {sorted(times)[len(times) // 2]:.1f} ms (median), {max(times):.1f} ms (most)\n"
        )
    assert calls == []


def test_256_tokens_are_drawn(desk: Any) -> None:
    page = desk
    times, tokens, colours = page.page.evaluate(
        """() => { const n = 256, data = new Uint16Array(6 * n * n).map((_, i) => 0x2c00 + (i * 7919) % 2048);
        const bytes = new Uint8Array(data.buffer); let text = ''; for (const b of bytes) text += String.fromCharCode(b);
        const words = Array.from({length: n}, (_, i) => 'word' + i), host = document.createElement('div'); document.body.append(host);
        const w = ctxmix.mount(host, {version: 1, method: 'x', title: 'x', depth: 6, tokens: words, words, groups: words.map((_, i) => [i]),
          special: words.map(() => false), maps: {layer: {data: btoa(text), scale: [1, 1, 1, 1, 1, 1]}}, pin: '3', signed: false});
        const times = [1, 2, 3, 4, 5].map((l) => { const t = performance.now(); w.set({layer: l}); return performance.now() - t; });
        const canvas = host.querySelector('canvas');
        const drawn = new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer);
        const seen = [times, w.model.n, new Set(drawn).size]; host.remove(); return seen; }"""  # noqa: E501
    )
    assert tokens == 256 and colours > 50
    with (ARTIFACTS / "times.txt").open("a") as file:
        file.write(f"layer redraw at 256 tokens: {sorted(times)[2]:.0f} ms (median)\n")


def test_hover_reads_out_both_tokens_and_the_value(desk: Any, keys: Any) -> None:
    page = desk
    words = keys.words()
    pieces = list(words.tokens[0])
    row, col = pieces.index("[MASK]"), pieces.index("books")
    x, y = page.js(
        f"[w.geometry.x + {col + 0.5} * w.geometry.cw, w.geometry.y + {row + 0.5} * w.geometry.ch]"
    )
    page.page.hover(f"{page.widget()} canvas", position={"x": x, "y": y})
    text = page.page.text_content(f"{page.widget()} .cmx-readout")
    assert text.startswith("books → [MASK]: ")
    assert float(text.rsplit(" ", 1)[1]) == pytest.approx(
        words.input[0, -1, row, col].item(), abs=2e-3
    )


def test_clicking_rows_pins_targets_and_sums_them(desk: Any, keys: Any) -> None:
    page = desk
    words = keys.words().input[0, -1].numpy()
    canvas = page.page.locator(f"{page.widget()} canvas")
    place = lambda row: dict(
        zip(
            "xy",
            page.js(f"[w.geometry.x + 5, w.geometry.y + {row + 0.5} * w.geometry.ch]"),
            strict=True,
        )
    )
    canvas.click(position=place(2))
    values = [
        float(v)
        for v in page.page.eval_on_selector_all(
            f"{page.widget()} .cmx-token", "all => all.map((t) => t.dataset.value)"
        )
    ]
    assert values == pytest.approx(words[2].tolist(), abs=2e-3)
    canvas.click(position=place(5), modifiers=["Shift"])
    assert np.allclose(page.js("Array.from(w.row)"), words[2] + words[5], atol=4e-3)
    assert "sum of rows" in page.page.text_content(f"{page.widget()} .cmx-status")
    page.page.click(f"{page.widget()} .cmx-token >> nth=0")
    assert page.js("w.pins") == [0]


def test_display_options_change_the_picture_not_the_values(desk: Any, keys: Any) -> None:
    page = desk
    words = keys.words()
    keep = [i for i in range(len(words.tokens[0])) if not words.tokens[0].special[i]]
    page.page.uncheck(f"{page.widget()} input[data-key=specials]")
    assert np.allclose(shown(page), words.input[0, -1].numpy()[np.ix_(keep, keep)], atol=2e-3)
    assert "hidden from the picture only" in page.page.text_content(f"{page.widget()} .cmx-note")
    page.page.check(f"{page.widget()} input[data-key=specials]")
    page.page.select_option(f"{page.widget()} select[data-key=norm]", "row")
    assert np.allclose(shown(page).sum(axis=1), 1, atol=3e-3)
    page.page.select_option(f"{page.widget()} select[data-key=norm]", "max")
    assert shown(page).max() == pytest.approx(1.0)
    page.page.select_option(f"{page.widget()} select[data-key=cmap]", "cividis")
    assert page.js("w.s.cmap") == "cividis"


def test_keyboard_alone_is_enough(desk: Any) -> None:
    page = desk
    page.page.focus(f"{page.widget()} canvas")
    page.page.keyboard.press("Home")
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowDown")
    assert "Target “books”" in page.page.text_content(f"{page.widget()} [aria-live=polite]")
    page.page.keyboard.press("ArrowLeft")
    assert page.page.get_attribute(page.widget(), "data-layer") == "5"
    page.page.keyboard.press("Shift+ArrowDown")
    assert len(page.js("w.pins")) == 2
    page.page.keyboard.press("Escape")
    assert "No target" in page.page.text_content(f"{page.widget()} .cmx-status")


def test_pieces_of_words(typing: Any, box: Any) -> None:
    """A word of several pieces says so, and the pieces can be seen."""
    page = typing
    page.page.get_by_role("button", name="Keys and cabinet").click()
    page.wait("w.p.text.includes('cabinet')")
    made = cm.explain(
        box[0], "The keys to the cabinet [MASK] on the table.", "alti", tokenizer=box[1]
    )
    pieces = list(made.words().tokens[0])
    row, col = pieces.index("[MASK]"), pieces.index("cabinet")
    x, y = page.js(
        f"[w.geometry.x + {col + 0.5} * w.geometry.cw, w.geometry.y + {row + 0.5} * w.geometry.ch]"
    )
    page.page.hover(f"{page.widget()} canvas", position={"x": x, "y": y})
    assert "(4 pieces, " in page.page.text_content(f"{page.widget()} .cmx-readout")
    page.js("w.unfold(true)")
    page.page.select_option(f"{page.widget()} select[data-key=unit]", "piece")
    assert np.allclose(shown(page), made.input[0, -1].numpy(), atol=2e-3)
    page.page.select_option(f"{page.widget()} select[data-key=unit]", "word")


def test_what_the_picture_says_is_computed(desk: Any, keys: Any) -> None:
    """The sentence over the picture quotes the library's numbers, and follows layer and target."""
    page, words = desk, keys.words()
    names = list(words.tokens[0])

    def share(layer: int, target: str) -> tuple[str, str]:
        row = words.input[0, layer - 1, names.index(target)].clone()
        row[names.index(target)] = 0
        best = int(row.argmax())
        said = f"{100 * row[best]:.{0 if row[best] >= 0.1 else 1}f} %"
        return f"{target} took {said}", f"from {names[best]}"

    said = lambda: page.page.text_content(f"{page.widget()} .cmx-finding")
    for part in (*share(6, "[MASK]"), "(ALTI, all six layers)"):
        assert part in said()
    page.page.fill(f"{page.widget()} input[data-key=layer]", "2")
    page.js("(w.pins = [2], w.set({}))")
    for part in (*share(2, "books"), "(ALTI, layers 1 to 2)"):
        assert part in said()


def test_one_scale_for_all_layers_without_the_diagonal(desk: Any, keys: Any) -> None:
    page, layers = desk, keys.words().input[0].clone()
    for layer in layers:
        layer.fill_diagonal_(0)
    assert page.js("w.top") == pytest.approx(layers.max().item(), abs=2e-3)
    page.page.fill(f"{page.widget()} input[data-key=layer]", "1")
    assert page.js("w.top") == pytest.approx(layers.max().item(), abs=2e-3)
    page.page.select_option(f"{page.widget()} select[data-key=range]", "layer")
    assert page.js("w.top") == pytest.approx(layers[0].max().item(), abs=2e-3)
    page.page.check(f"{page.widget()} input[data-key=diagonal]")
    assert page.js("w.top") == pytest.approx(keys.words().input[0, 0].max().item(), abs=2e-3)


def test_play_runs_through_the_layers(desk: Any) -> None:
    page = desk
    page.page.click(f"{page.widget()} .cmx-play")
    page.wait("w.s.layer === 3")
    page.page.click(f"{page.widget()} .cmx-play")
    assert page.js("w.timer") is None


def test_layers_and_paths_of_the_target(desk: Any, keys: Any) -> None:
    page = desk
    page.page.click(f"{page.widget()} [data-view=layers]")
    row = list(keys.words().tokens[0]).index("[MASK]")
    assert np.allclose(
        page.js("w.stack.map((r) => Array.from(r))"),
        keys.words().input[0, :, row].numpy(),
        atol=2e-3,
    )
    page.shot("layers")
    page.page.click(f"{page.widget()} [data-view=paths]")
    found = page.js("ctxmix.paths(w)")
    shares = [layer / layer.sum(axis=1, keepdims=True) for layer in keys.words().layers[0].numpy()]
    whole = np.zeros(len(shares[0]))
    whole[row] = 1.0
    best = whole.copy()  # the strongest path, by dynamic programming
    for layer in reversed(shares):
        best = (best[:, None] * layer).max(axis=0)
    assert found["paths"] == 24 and best.max() < found["share"] < 1
    for level in range(6):  # whole paths: every layer carries the same
        carried = sum(e["v"] for e in found["edges"] if e["l"] == level)
        assert carried == pytest.approx(found["share"], abs=1e-6)
    assert {e["i"] for e in found["edges"] if e["l"] == 5} == {row}
    page.shot("paths")


def test_a_new_sentence_shows_its_map(typing: Any, box: Any) -> None:
    page = typing
    page.ask("The boys [MASK] warm.")
    page.wait("w.p.text.includes('warm')", timeout=60000)
    page.page.wait_for_timeout(500)
    start = time.monotonic()
    page.ask(NEW)
    page.wait("w.p.text.includes('sisters')")
    took = time.monotonic() - start
    with (ARTIFACTS / "times.txt").open("a") as file:
        file.write(f"new sentence of {page.js('w.model.n')} tokens: {took:.2f} s\n")
    wanted = cm.explain(box[0], NEW, "alti", tokenizer=box[1]).words()
    assert np.allclose(shown(page), wanted.input[0, -1].numpy(), atol=2e-3)
    page.page.wait_for_function("document.querySelector('#prediction').textContent.includes('are')")
    page.page.click("#scores-button")
    page.page.wait_for_selector("#scores .ctxmix-scores >> nth=2")
    page.shot("new-sentence")


def test_examples_open_from_the_cache(typing: Any) -> None:
    page = typing
    page.page.get_by_role("button", name="Negation").click()
    page.wait("w.p.text === 'The film is not good.'")
    page.page.wait_for_selector("#prediction >> text=negative")
    assert page.page.input_value("#model input") == "ctxmix/sentiment"
    page.page.get_by_role("button", name="A pair", exact=True).click()
    page.wait("w.p.second")
    assert page.page.input_value("#pair textarea") == "The boys [MASK] tired."
    page.page.get_by_role("button", name="Agreement", exact=True).click()
    page.wait(f"w.p.text === {KEYS!r}")


def test_what_cannot_be_shown_is_said(typing: Any) -> None:
    page = typing
    before = page.js("w.p.text")
    wrong = {
        "   ": "empty",
        "x " * 15000: "30,000 characters",
        "one two three four " * 60: "tokens; with this model",
    }
    for text, said in wrong.items():
        page.ask(text)
        page.page.wait_for_function(
            f"document.querySelector('#message').textContent.includes({said!r})"
        )
        assert page.js("w.p.text") == before  # the last good map stays
    page.shot("refused")


TEXTS = (
    "<img src=x onerror=window.hacked=1> <script>window.hacked=1</script> [MASK]",
    "😀 👩‍👩‍👧 [MASK] happy 漢字",
    "שלום [MASK] עולם",
    "a\x07b {{value}} ${1+1}",
)


def test_any_text_is_shown_as_text(typing: Any) -> None:
    page = typing
    for number, text in enumerate(TEXTS):
        page.ask(text)
        page.wait(
            f"w.p.text === {text!r}"
            if "\x07" not in text
            else "w.p.text.includes('{{value}} ${1+1}')"
        )
        assert page.page.evaluate("window.hacked") is None
        assert page.page.locator("#map-main img, #map-main script").count() == 0
        page.shot(f"text-{number}")


def test_a_slow_method_is_refused_beforehand(visit: Any) -> None:
    asked = {"model": MODEL, "method": "hta", "text": f"{NEW} " * 7}
    page = visit("?" + urlencode(asked), wait=False)
    page.page.wait_for_selector("#message .ctxmix-error >> text=would take about")


def test_a_link_reopens_the_same_view(visit: Any, typing: Any) -> None:
    page = typing
    page.ask("the boys sleep")  # another text, so that the example's own answer is waited for
    page.wait("w.p.text === 'the boys sleep'")
    page.page.get_by_role(
        "button", name="Agreement", exact=True
    ).click()  # the model of the first example
    page.wait(f"w.p.text === {KEYS!r}")
    page.ask(NEW)
    page.wait("w.p.text.includes('sisters')")
    page.js("w.unfold(true)")
    page.page.fill(f"{page.widget()} input[data-key=layer]", "3")
    page.page.select_option(f"{page.widget()} select[data-key=scope]", "layer")
    page.page.click(f"{page.widget()} .cmx-token >> nth=2")
    asked = parse_qs(urlparse(page.page.url).query)
    assert (asked["text"], asked["layer"], asked["scope"], asked["pin"]) == (
        [NEW],
        ["3"],
        ["layer"],
        ["2"],
    )
    again = visit("?" + urlparse(page.page.url).query)
    again.wait("w.p.text.includes('sisters')")
    assert again.js("[w.s.layer, w.s.scope, w.pins[0]]") == [3, "layer", 2]
    assert np.allclose(shown(again), shown(page), atol=1e-6)
    assert again.page.input_value("#text textarea") == NEW


def test_the_standalone_file_opens_offline(browser: Any, keys: Any, tmp_path: Path) -> None:
    keys.to_html(tmp_path / "map.html")
    page = browser.new_page(color_scheme="dark")
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None,
    )
    page.goto(f"file://{tmp_path}/map.html")
    page.wait_for_selector("[data-ready]")
    assert page.locator(".cmx-dark").count() == 1
    assert wrong == []
    page.close()


def test_one_layer_in_a_file_keeps_its_number_and_its_numbers(
    browser: Any, keys: Any, tmp_path: Path
) -> None:
    """`m.layer(3).to_html()`: the browser must not take the one layer it has for the whole stack."""
    keys.layer(3).to_html(tmp_path / "map.html")
    page = browser.new_page()
    page.goto(f"file://{tmp_path}/map.html")
    page.wait_for_selector("[data-ready]")
    assert page.get_attribute(".cmx", "data-layer") == "3"
    assert page.text_content(".cmx-title").endswith("layer 3, from the input")
    values = page.evaluate("Array.from(document.querySelector('.cmx').ctxmix.matrix)")
    assert np.allclose(values, keys.words().input[0, 2].flatten().numpy(), atol=2e-3)
    # a page saved before the widget counted from 1, under the script of now
    old = {key: value for key, value in keys.to_view().items() if key != "layers"} | {
        "version": 1,
        "state": {"layer": 1},
    }
    shown_layer = page.evaluate(
        "(p) => ctxmix.mount(document.createElement('div'), p).s.layer", old
    )
    assert shown_layer == 2
    assert (
        page.evaluate(
            "(p) => ctxmix.mount(document.createElement('div'), p).s.layer", keys.to_view(layer=2)
        )
        == 2
    )
    page.close()


@pytest.mark.parametrize(
    ("width", "theme"), [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")]
)
def test_looks(visit: Any, width: int, theme: str) -> None:
    query = urlencode({"__theme": theme})
    page = visit(f"?{query}", width=width, scheme=theme)
    page.page.wait_for_timeout(400)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.page.locator(".cmx-dark").count() == (1 if theme == "dark" else 0)
    page.shot(
        f"main-{width}-{theme}"
    )  # scripts/pictures.py makes docs/images/space.png of main-1440-light
