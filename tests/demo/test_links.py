"""Everything the page shows is in its address: each tab's link, opened in a browser that has seen
nothing, shows the same.
"""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

import ctxmix_hf as cm
from ctxmix_hf.demo import downloads, examples, extras, handlers, snippets
from tests.demo.conftest import KEYS, Server

pytestmark = pytest.mark.browser
MODEL = "ctxmix/agreement"
FIRST, SECOND = "The girl 😀 is old.", "The boys [MASK] tired."
DISPLAY = {
    "view": "paths",
    "scope": "layer",
    "layer": "3",
    "specials": "0",
    "diagonal": "1",
    "norm": "row",
    "range": "layer",
    "cmap": "magma",
    "pin": "1.3",
    "k": "40",
}


def test_every_display_option_is_in_the_address(desk: Any) -> None:
    page, widget = desk.page, desk.widget()
    page.fill(f"{widget} input[data-key=layer]", "3")
    for key in ("scope", "norm", "range", "cmap"):
        page.select_option(f"{widget} select[data-key={key}]", DISPLAY[key])
    page.uncheck(f"{widget} input[data-key=specials]")
    page.check(f"{widget} input[data-key=diagonal]")
    page.click(f"{widget} [data-view=paths]")
    page.fill(f"{widget} input[data-key=k]", "40")
    page.click(f"{widget} .cmx-token >> nth=0")
    page.click(f"{widget} .cmx-token >> nth=2", modifiers=["Shift"])
    assert {key: value for key, value in desk.query().items() if key in DISPLAY} == DISPLAY
    page.get_by_role("tab", name="Share & code").click()
    page.wait_for_selector("#snippet >> text=view='paths'")
    page.get_by_role("tab", name="Map", exact=True).click()
    desk.js("(w.pins = [Number(w.p.pin)], w.set({...ctxmix.DEFAULTS, layer: w.model.depth}))")
    assert not set(desk.query()) & set(DISPLAY)


def test_a_pair_of_sentences(visit: Any, box: Any) -> None:
    """The second box is the tokenizer's second segment; its link brings back both boxes, the map,
    and what stands beside it.
    """
    link = {
        "model": MODEL,
        "method": "alti",
        "text": FIRST,
        "pair": SECOND,
        "scores": "1",
        "scope": "layer",
        "layer": "2",
        "pin": "12",
    }
    page = visit("?" + urlencode(link), wait=False)
    page.wait("w.p.second")
    made = cm.explain(box[0], (FIRST, SECOND), "alti", tokenizer=box[1])
    assert np.allclose(
        page.js("Array.from(w.matrix)"), made.words().layers[0, 1].flatten().numpy(), atol=1e-3
    )
    assert page.js("[w.s.layer, w.s.scope, w.pins[0]]") == [2, "layer", 12]
    assert page.js("w.p.words.slice(w.p.groups.findIndex((g) => g[0] >= w.p.second))") == [
        "The",
        "boys",
        "[MASK]",
        "tired",
        ".",
        "[SEP]",
    ]
    assert "[UNK] 😀" in page.js("w.p.words")  # an unknown word is marked in every view
    assert (page.page.input_value("#text textarea"), page.page.input_value("#pair textarea")) == (
        FIRST,
        SECOND,
    )
    page.page.wait_for_selector("#scores .ctxmix-scores >> nth=2")
    assert "are" in page.page.text_content("#prediction")
    assert page.query() == {**link, "v": "2"}
    page.shot("pair")
    page.page.fill("#pair textarea", "")
    page.page.press("#pair textarea", "Enter")
    page.wait("!w.p.second")
    assert "pair" not in page.query()


def test_a_comparison(visit: Any, box: Any) -> None:
    other = KEYS.replace("books", "book")
    link = {
        "tab": "compare",
        "mode": "two sentences",
        "model": MODEL,
        "method": "value_zeroing",
        "text": KEYS,
        "other_text": other,
        "other_method": "alti",
        "other_model": MODEL,
        "c.pin": "2.6",
        "c.layer": "4",
        "c.diagonal": "1",
        "agree": "6",
    }
    page = visit("?" + urlencode(link), wait=False)
    page.wait("w.p.pairs && w.pins.length === 2", "difference", timeout=40000)
    maps = [
        cm.explain(box[0], text, "value_zeroing", tokenizer=box[1]).words()
        for text in (KEYS, other)
    ]
    assert np.allclose(
        page.js("Array.from(w.matrix)", "difference"),
        (maps[1] - maps[0]).input[3].flatten().numpy(),
        atol=2e-3,
    )
    for name, made in (
        ("first", maps[0]),
        ("second", maps[1]),
    ):  # several targets: their sum, on both sides
        wanted = made.input[0, 3, [2, 6]].sum(dim=0).numpy()
        assert np.allclose(page.js("Array.from(w.row)", name), wanted, atol=4e-3)
    assert page.page.input_value("#other-text textarea, #other-text input") == other
    page.page.wait_for_selector("#agreement table")
    assert page.query() == {**link, "v": "2"}
    page.page.get_by_role("tab", name="Share & code").click()
    page.page.wait_for_selector("#snippet >> text=second.difference(first")
    page.page.wait_for_function(
        "document.querySelector('#share-link textarea, #share-link input').value.includes('tab=compare')"
    )


def test_an_embedding(visit: Any, box: Any) -> None:
    link = {
        "tab": "embeddings",
        "model": MODEL,
        "method": "alti",
        "a": "The boys are tired.",
        "b": "The girls sleep.",
    }
    page = visit("?" + urlencode(link), wait=False)
    page.page.wait_for_selector("#similarity b")
    made = cm.similarity(box[0], link["a"], link["b"], tokenizer=box[1])
    assert f"{made.cosine:.4f}" in page.page.text_content("#similarity b")
    assert page.page.input_value("#text-b textarea, #text-b input") == link["b"]
    assert page.query().items() >= link.items()


def test_a_picture(visit: Any, server: Server, tmp_path: Any) -> None:
    """An example's name, the model, the method and the target; an uploaded picture is said not to be there."""
    from PIL import Image
    from transformers import AutoImageProcessor

    from ctxmix_hf.demo import pictures

    link = {
        "tab": "image",
        "picture": "landscape",
        "vision": server.vision,
        "vision_method": "attention",
        "i.pin": "5",
        "i.layer": "1",
    }
    page = visit("?" + urlencode(link), width=390, wait=False)
    page.wait("w.picture", "image", timeout=40000)
    model = cm.AutoContextMixingModelForImageClassification.from_pretrained(server.vision).eval()
    seen = AutoImageProcessor.from_pretrained(server.vision)(
        images=pictures.example("landscape"), return_tensors="pt"
    )
    made = model(**seen, output_context_mixing=["attention"]).context_mixing["attention"]
    assert np.allclose(
        page.js("Array.from(w.row)", "image"), made.input[0, 0, 5].detach().numpy(), atol=2e-3
    )
    assert page.js("w.labels[w.pins[0]]", "image") == "2.1"  # row and column of the patch
    assert page.query() == {**link, "v": "2"}
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert "cannot be in a link" in page.page.text_content("#tabs")
    page.shot("image-390")
    Image.new("RGB", (40, 30), "red").save(tmp_path / "own.png")
    page.page.set_input_files("#map-image-upload input[type=file]", tmp_path / "own.png")
    page.page.wait_for_function("!document.querySelector('#picture input:checked')")
    page.page.click("#image-button")
    page.page.wait_for_function("!location.search.includes('picture=')")


def test_a_precomputed_map(visit: Any, server: Server, box: Any) -> None:
    link = {
        "tab": "precomputed",
        "store": server.store,
        "split": "train",
        "search": "boys",
        "id": "boys",
        "store_method": "attention",
        "p.layer": "2",
        "p.cmap": "cividis",
    }
    page = visit("?" + urlencode(link), wait=False)
    page.wait("w.p.text", "precomputed")
    wanted = cm.explain(box[0], "The boys [MASK] tired.", "attention", tokenizer=box[1]).words()
    assert np.allclose(
        page.js("Array.from(w.matrix)", "precomputed"),
        wanted.input[0, 1].flatten().numpy(),
        atol=2e-3,
    )
    page.page.wait_for_function(
        "document.querySelector('#store-search textarea, #store-search input').value === 'boys'"
    )
    assert page.query() == {**link, "v": "2"}


@pytest.mark.parametrize("version", [{}, {"v": "2"}], ids=["without a version", "v2"])
def test_layers_of_a_link_count_from_1(visit: Any, box: Any, version: dict[str, str]) -> None:
    """They always did (also before links had a version): the third layer is 3 in the link, the
    slider, the title and the picture's name.
    """
    page = visit(
        "?"
        + urlencode(
            {
                "model": MODEL,
                "method": "alti",
                "text": KEYS,
                "scope": "layer",
                "layer": "3",
                **version,
            }
        ),
        wait=False,
    )
    page.wait("w.s.layer === 3")
    made = cm.explain(box[0], KEYS, "alti", tokenizer=box[1]).words()
    assert np.allclose(
        page.js("Array.from(w.matrix)"), made.layers[0, 2].flatten().numpy(), atol=1e-3
    )
    assert page.page.get_attribute(page.widget(), "data-layer") == "3"
    assert page.page.input_value(f"{page.widget()} input[data-key=layer]") == "3"
    assert page.page.text_content(f"{page.widget()} .cmx-title").endswith("within layer 3")
    assert "within layer 3" in page.page.text_content(f"{page.widget()} .cmx-status")
    page.page.press(f"{page.widget()} canvas", "ArrowRight")
    assert (page.query()["layer"], page.query()["v"]) == ("4", "2")
    page.page.get_by_role("tab", name="Share & code").click()
    page.page.wait_for_selector("#snippet >> text=layer=4")


@pytest.mark.parametrize("layer", ["0", "9", "x"])
def test_a_layer_a_link_cannot_mean_is_said(visit: Any, layer: str) -> None:
    page = visit(
        "?" + urlencode({"model": MODEL, "method": "alti", "text": KEYS, "layer": layer, "v": "2"}),
        wait=False,
    )
    page.wait("w.s.layer === 6")
    assert "does not exist (1 to 6): this is layer 6" in page.page.text_content(
        f"{page.widget()} .cmx-note"
    )
    page.page.press(f"{page.widget()} canvas", "ArrowLeft")
    assert "does not exist" not in page.page.text_content(f"{page.widget()} .cmx-note")


def test_a_link_that_cannot_be_opened_says_why(visit: Any) -> None:
    page = visit(
        "?" + urlencode({"model": MODEL, "method": "alty", "text": KEYS, "tab": "nowhere"}),
        wait=False,
    )
    page.page.wait_for_selector("#message .ctxmix-error >> text=Did you mean")
    page.ask("The boys [MASK] tired.")  # and the page goes on
    page.wait("w.p.text === 'The boys [MASK] tired.'")
    assert page.query()["method"] == "alti"


DEFAULT = {"model": MODEL, "method": "alti", "text": KEYS}
VIEWS: list[tuple[dict[str, str], str]] = [
    ({}, "m"),
    ({"pair": SECOND, "layer": "2", "pin": "3"}, "m"),
    ({"tab": "compare", "other_method": "attention"}, "gap"),
    ({"tab": "compare", "mode": "two models", "other_model": "ctxmix/sentiment"}, "gap"),
    ({"method": "value_zeroing", "options": "distance=euclidean"}, "m"),
    ({"tab": "compare", "mode": "two sentences", "other_text": "The boy [MASK] old."}, "gap"),
    ({"tab": "compare", "options": "norm=2", "other_method": "alti", "other_options": ""}, "gap"),
    ({"tab": "embeddings", "a": "A.", "b": "B."}, "r"),
    ({"tab": "embeddings", "a": "A film.", "documents": "A movie.\n\nA boy.\n"}, "r"),
    ({"tab": "why"}, "l"),
    ({"tab": "why", "word": "were", "rule": "through"}, "l"),
    ({"tab": "why", "plain": "1", "pair": SECOND}, "l"),
    (
        {
            "tab": "precomputed",
            "store": "ctxmix/library",
            "id": "clause-01",
            "store_method": "alti",
        },
        "store",
    ),
    ({"tab": "compare", "other_method": "attention", "c.layer": "2", "c.pin": "1.2"}, "gap"),
]


@pytest.mark.parametrize(("asked", "name"), VIEWS)
def test_the_code_of_a_view_runs(
    asked: dict[str, str], name: str, tmp_path: Any, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(snippets.of_view("?" + urlencode(asked), DEFAULT), scope)
    assert name in scope
    said = capsys.readouterr().out
    if name == "l":  # what the page says of the same address
        word, foil = examples.reason(asked, MODEL, KEYS)
        rule = asked.get("rule", "")
        page = handlers.ledger(MODEL, KEYS, asked.get("pair", ""), word, foil, rule)
        assert page.finding() in said and "integrated_gradients" in said
    if name == "r":
        documents = asked.get("documents") or "\n".join(snippets.DOCUMENTS)
        page = handlers.rank(MODEL, asked["a"], documents.splitlines())
        assert list(page.order) == list(scope["r"].order) and page.documents == scope["r"].documents
    if "options" in asked and name == "gap":
        page = handlers.compare(MODEL, "alti", KEYS, MODEL, "alti", KEYS, "", "norm=2", "")[2]
        assert (
            np.allclose(scope["gap"].input, page.input, atol=1e-5) and page.input.abs().max() > 1e-3
        )


SHARED: list[tuple[dict[str, str], str, tuple[str, ...], set[str]]] = [  # stem, words of the title
    (
        {"text": KEYS, "method": "attention", "model": MODEL, "layer": "2"},
        "ctxmix-agreement-attention-layer2-The_books",
        (KEYS, "agreement", "Attention weights", "layer 2"),
        {".html", ".svg", ".png", ".csv", ".json", ".safetensors"},
    ),
    (
        {"tab": "why", "word": "were", "text": KEYS, "model": MODEL, "method": "alti"},
        "ctxmix-agreement-ledger-were-The_books",
        (KEYS, "agreement", "Ledger", "were"),
        {".html", ".svg", ".png", ".csv", ".json", ".safetensors"},
    ),
    (
        {"tab": "embeddings", "a": "A warm film.", "b": "A warm movie."},
        "ctxmix-agreement-similarity-A_warm_film",
        ("A warm film.", "A warm movie.", "Similarity"),
        {".html", ".svg", ".png", ".csv", ".json"},
    ),
    (
        {"tab": "compare", "other_method": "attention", "c.layer": "2"},
        "ctxmix-attention-minus-alti-layer2",
        (KEYS, "second − first", "attention"),
        {".html", ".svg", ".png", ".json"},
    ),
    (
        {"tab": "image", "picture": "digit 4", "vision": "ctxmix/digits", "vision_method": "alti"},
        "ctxmix-digits-alti-layer",
        ("digit 4", "digits", "ALTI"),
        {".html", ".svg", ".png", ".csv", ".json", ".safetensors"},
    ),
    (
        {"tab": "precomputed", "store": "ctxmix/library", "id": "clause-01"},
        "ctxmix-library-alti-layer6-clause-01",
        ("library", "ALTI", "layer 6"),
        {".html", ".svg", ".png", ".csv", ".json", ".safetensors"},
    ),
]


@pytest.mark.parametrize(("asked", "stem", "words", "kinds"), SHARED)
def test_files_are_of_the_tab_that_was_open(
    asked: dict[str, str], stem: str, words: tuple[str, ...], kinds: set[str], tmp_path: Path
) -> None:
    """Never the map's, unless the map was open: name and title say what the address says."""
    made = downloads.write(str(tmp_path), {**DEFAULT, **asked}, extras._view(_display(asked)))
    paths = [Path(path) for path in made]
    assert paths[0].name.startswith(stem) and all(path.stat().st_size for path in paths)
    assert {path.suffix for path in paths} == kinds
    title = unescape(re.findall("<title>(.*?)</title>", paths[0].read_text())[0])
    for word in words:
        assert word in title, title
    label = downloads.label({**DEFAULT, **asked})
    assert label.startswith("Prepare files of the ")
    if asked.get("tab") == "embeddings":
        assert sum("ranking" in path.name for path in paths) == 5
    if "safetensors" in label and asked.get("tab") != "why":
        saved = cm.ContextMixingMap.load(next(path for path in paths if path.suffix == ".json"))
        assert saved.method == ("attention" if "text" in asked else "alti")


def _display(asked: dict[str, str]) -> str:
    """What the widget of that tab says of itself."""
    layer = next((value for key, value in asked.items() if key.endswith("layer")), None)
    return json.dumps({"layer": int(layer)} if layer else {})


def test_prepare_gives_the_files_of_each_tab(visit: Any) -> None:
    page = visit()
    for tab, shows, label, name in (
        ("Library", "#map-precomputed canvas", "the stored map", "ctxmix-maps-alti-"),
        ("Why this output?", "#why svg", "the ledger", "ctxmix-agreement-ledger-are-not-is-The"),
        ("Similarity", "#ranking .cmx-pairs", "the similarity", "ctxmix-agreement-similarity-A_d"),
        ("Compare", "#map-difference canvas", "the comparison", "ctxmix-attention_rollout-minus-"),
        ("Images", "#map-image canvas", "the picture “digit 4”", "ctxmix-digits-alti-layer"),
        ("Map", "#map-main canvas", "the map of", "ctxmix-agreement-alti-layer6-The_books"),
    ):
        page.page.get_by_role("tab", name=tab, exact=True).click()
        page.page.wait_for_selector(shows, timeout=40000)
        if tab == "Compare":
            page.wait("w.p.pairs", "difference")
        page.page.get_by_role("tab", name="Share & code").click()
        page.page.wait_for_selector(f"#files-button >> text=Prepare files of {label}")
        page.page.wait_for_selector("#files a[download]", state="detached")
        page.page.click("#files-button")
        page.page.wait_for_selector(f"#files a[download^='{name}']", timeout=60000)


def test_the_code_of_a_stored_map_and_a_picture_runs(
    server: Server, tmp_path: Any, monkeypatch: Any, capsys: Any
) -> None:
    from ctxmix_hf.demo import pictures

    monkeypatch.chdir(tmp_path)
    pictures.example("shapes").save("picture.png")
    scope: dict[str, Any] = {}
    exec(
        snippets.of_view(
            urlencode(
                {"tab": "precomputed", "store": server.store, "id": "boys", "store_method": "alti"}
            ),
            DEFAULT,
        ),
        scope,
    )
    for asked in ({"i.pin": "3"}, {"i.pin": "3.4", "i.layer": "1"}):
        exec(
            snippets.of_view(
                urlencode({"tab": "image", "vision": server.vision, **asked}), DEFAULT
            ),
            scope,
        )
    assert scope["m"].depth == 2
