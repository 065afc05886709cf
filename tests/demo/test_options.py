"""What can be set of a method, and what a file of the view holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

import ctxmix_hf as cm
from ctxmix_hf.demo import handlers, hub, options, snippets
from ctxmix_hf.viz.names import OPTIONS
from tests.demo.conftest import KEYS

MODEL = "ctxmix/agreement"


def test_every_option_of_every_method_is_offered_with_what_it_takes() -> None:
    """Also those of a method that is added tomorrow: a text option without its choices fails here."""
    for name in handlers.map_methods():
        for row in options.settings(name):
            values = row.get("choices") or [row["start"]]
            assert row["kind"] != "str" or "choices" in row, (name, row["name"])
            for value in values:
                read = options.read(name, f"{row['name']}={value}")
                if not (name == "value_zeroing" and row["name"] == "normalised"):
                    cm.method(name, **read)
        shown = {row["name"] for row in options.settings(name)} | set(options.UNSEEN)
        assert set(handlers.info_of(name).options) <= shown


def test_settings_speak_in_people_s_words() -> None:
    """A label and a line of help for each, and for choices that are letters and numbers in calls."""
    for name in handlers.map_methods():
        for row in options.settings(name):
            assert row["name"] in OPTIONS, row["name"]
            assert (
                row["label"].lower() != row["name"].replace("_", " ") or row["name"] == "distance"
            )
            assert row["help"].endswith(".") and len(row["help"]) < 90
            assert len(row.get("labels", ())) == len(row.get("choices", ()))
            assert not any(label.isdecimal() for label in row.get("labels", ()))


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_ticked_setting_looks_ticked(visit: Any, theme: str) -> None:
    """The tick is the browser's own, in a colour of ours; a list keeps its arrow."""
    from io import BytesIO

    from PIL import Image

    page = visit("?" + urlencode({"__theme": theme}), scheme=theme)
    page.page.click("#method-options summary")
    tick = page.page.locator("#method-options [data-option=public_code]")

    def colours() -> set[tuple[int, int, int]]:
        page.page.mouse.move(0, 0)
        shot = Image.open(BytesIO(tick.screenshot())).convert("RGB")
        return {colour for _, colour in shot.getcolors(10_000)}

    blue = lambda seen: any(b > r + 60 for r, _, b in seen)
    assert not blue(colours())
    tick.evaluate("e => { e.checked = true; }")
    assert blue(colours())
    looks = "e => [getComputedStyle(e).appearance, e.offsetHeight > 16]"
    assert page.page.locator("#method-options select").first.evaluate(looks) == ["auto", True] or (
        page.page.locator("#method-options select").first.evaluate(looks) == ["menulist", True]
    )
    said = page.page.text_content("#method-options")
    assert "As the authors' code computes it" in said and "public code" not in said
    page.shot(f"settings-{theme}")


@pytest.mark.parametrize(
    ("text", "said"),
    [("nothing=1", "has no option 'nothing'"), ("norm=x", "must be a number like 1, got 'x'")],
)
def test_wrong_options_are_named(text: str, said: str) -> None:
    with pytest.raises(cm.CtxmixError, match=said):
        options.read("alti", text)


def test_the_code_of_a_view_sets_them_too() -> None:
    asked = {"model": MODEL, "method": "value_zeroing", "text": KEYS}
    code = snippets.of_view(urlencode({**asked, "options": "distance=euclidean"}), asked)
    assert "cm.method('value_zeroing', distance='euclidean')" in code


@pytest.mark.browser
def test_settings_are_reachable_and_in_the_link(visit: Any, box: Any) -> None:
    page = visit("?" + urlencode({"model": MODEL, "method": "value_zeroing", "text": KEYS}))
    page.wait("w.p.method === 'value_zeroing'")
    page.page.click("#method-options summary")
    page.page.select_option("#method-options [data-option=distance]", "euclidean")
    page.wait("w.p.query.options === 'distance=euclidean'", timeout=40000)
    page.page.wait_for_selector("#map-main canvas[aria-busy=false]")
    wanted = cm.explain(
        box[0], KEYS, cm.method("value_zeroing", distance="euclidean"), tokenizer=box[1]
    ).words()
    shown = np.array(page.js("Array.from(w.matrix)"))
    assert np.allclose(shown, wanted.input[0, -1].flatten().numpy(), atol=2e-3)
    assert page.query()["options"] == "distance=euclidean"
    assert page.page.get_attribute("#map-main canvas", "data-method") == "value_zeroing"
    # another method: what it does not know is dropped, and its own settings are there
    again = visit("?" + urlencode(page.query() | {"method": "attention", "options": "per_head=1"}))
    again.wait("w.model.heads === 8", timeout=40000)
    again.page.click("#map-main [data-view=heads]")
    made = cm.explain(box[0], KEYS, cm.method("attention", per_head=True), tokenizer=box[1])
    value = again.js("w.model.byHead[2 * 8 + 5][3 * w.model.n + 1]")
    assert value == pytest.approx(made.heads[0, 2, 5, 3, 1].item(), abs=2e-3)
    words = made.tokens[0].shown()  # every word of the opening example is one piece
    at = words.index("[MASK]")
    rows = made.heads[0, -1, :, at].clone()
    rows[:, at] = 0
    head, source = divmod(int(rows.argmax()), len(words))
    finding = again.page.text_content("#map-main .cmx-finding")
    share = round(100 * float(rows[head, source]))
    assert finding.startswith(f"In head {head} [MASK] took {share} % from {words[source]}")
    assert "of eight heads take most from it" in finding or "no other head takes" in finding
    assert "within layer 6" in finding
    place = again.js("[w.geometry.tiles[0].x + 5, w.geometry.tiles[0].y + 5]")
    again.page.hover("#map-main canvas", position=dict(zip("xy", place, strict=True)))
    assert again.page.text_content("#map-main .cmx-readout").startswith("head 0: ")
    note = again.page.text_content("#map-main .cmx-note")
    assert "heads are counted from 0" in note and "outlined" in note
    again.shot("heads")


@pytest.mark.browser
def test_downloads_follow_the_view(desk: Any, keys: Any, tmp_path: Path) -> None:
    """Layer, colours, target and words; the title says sentence, model, method and layer, and so does the name."""
    page = desk
    page.js("(w.pins = [2], w.set({layer: 3, cmap: 'magma', diagonal: 0}))")
    name = "ctxmix-agreement-alti-layer3-The_books_about_the_boy_MASK_old"
    for kind, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        with page.page.expect_download() as download:
            page.page.get_by_role("button", name=f"Save this picture as {kind}").first.click()
        assert download.value.suggested_filename == f"{name}.{kind.lower()}"
        download.value.save_as(tmp_path / kind)
        assert (tmp_path / kind).read_bytes().startswith(start)
    drawn = (tmp_path / "SVG").read_text()
    for words in (
        KEYS,
        "agreement · ALTI · layer 3, from the input",
        "books took ",
        "contribution",
    ):
        assert words in drawn
    page.page.get_by_role("tab", name="Share & code").click()
    page.page.click("#files-button")
    page.page.wait_for_selector("#files a[download]", timeout=40000)
    files = {}
    for link in page.page.locator("#files a[download]").all():
        with page.page.expect_download() as download:
            link.click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        assert re.match(r"ctxmix-agreement-alti-layer3-The_books_about_the_boy", path.name)
        files[path.suffix] = path
    assert set(files) == {".html", ".svg", ".png", ".csv", ".json", ".safetensors"}
    made = cm.ContextMixingMap.load(files[".json"])
    assert np.allclose(made.layers, keys.layers, atol=1e-4)
    assert "ALTI, layer 3, from the input" in files[".svg"].read_text()
    rows = files[".csv"].read_text().splitlines()
    assert len(rows) - 1 in (len(keys.words().tokens[0]) ** 2, 2 * len(keys.words().tokens[0]) ** 2)
    saved = page.page.context.new_page()
    saved.goto(f"file://{files['.html']}")
    saved.wait_for_selector("[data-ready]")
    state = saved.evaluate("document.querySelector('.cmx').ctxmix.state()")
    assert (state["layer"], state["cmap"], state["pin"]) == (3, "magma", "2")
    for words in (KEYS, "agreement", "ALTI", "layer 3"):
        assert words in saved.title()
    saved.close()
    assert "cm.explain" in page.page.text_content("#snippet")
    page.shot("share")
    page.page.get_by_role("tab", name="Map", exact=True).click()


def test_models_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Licence and size where the network is there, the reason where not."""
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "ask", lambda name: ("apache-2.0", 440.5))
    rows = hub.rows()
    assert [row.name for row in rows] == list(hub.MODELS) and not any(row.reason for row in rows)
    monkeypatch.setattr(hub, "listed", lambda: rows)
    made = hub.panel("A & b")
    assert "440 MB, licence apache-2.0" in made and "ctxmix-grey" not in made
    assert "text=A+%26+b" in made

    def unreachable(name: str) -> tuple[str, float]:
        raise ConnectionError(name)

    monkeypatch.setattr(hub, "ask", unreachable)
    rows = hub.rows()
    assert {row.reason for row in rows} == {"not now: the Hub cannot be reached"}
    assert "<a " not in hub.panel("x") and "cannot be reached" in hub.panel("x")
    monkeypatch.setenv("CTXMIX_DEMO_ANY_MODEL", "0")
    assert hub.rows()[0].reason == "this server loads only its own models"


@pytest.mark.browser
def test_models_of_the_hub_are_greyed_offline(desk: Any) -> None:
    assert "works offline" in desk.page.text_content("#hub .ctxmix-grey >> nth=0")
