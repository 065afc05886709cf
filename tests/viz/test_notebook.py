"""The live widget: the real anywidget, its module in a real browser, a real kernel; and what is shown without them."""

from __future__ import annotations

import gc
import json
import pickle
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctxmix_hf as cm
from ctxmix_hf.errors import InputError, MissingDependencyError, OptionError
from ctxmix_hf.viz import notebook

ROOT = Path(__file__).parents[2]
TEXT = "The keys to the cabinet [MASK] on the table."
PAGE = """<!doctype html><meta charset="utf-8"><style>%s</style><div id="cell"></div><script type="module">
const said = %s, listeners = [];
window.sent = [];
window.model = {
  get: (key) => said[key],
  set: (key, value) => { said[key] = value; },
  save_changes: () => window.sent.push(said.state),
  on: (_, f) => listeners.push(f),
  off: () => {},
  arrives: (state) => { said.state = state; listeners.forEach((f) => f()); },
};
const made = await import(URL.createObjectURL(new Blob([%s], { type: "text/javascript" })));
made.default.render({ model: window.model, el: document.getElementById("cell") });
window.done = true;
</script>"""


@pytest.fixture
def m() -> Any:
    model, tokenizer = cm.load_default()
    return cm.explain(model, TEXT, "alti", tokenizer=tokenizer)


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    made = browser.new_page()
    yield made
    made.close()


def chosen(m: Any) -> list[int]:
    return [m.target] if isinstance(m.target, int) else m.target


def need() -> Any:
    return pytest.importorskip("anywidget", reason="anywidget is not installed (extra notebook)")


def test_a_click_sets_the_target_and_the_target_moves_the_picture(m: Any, page: Any) -> None:
    need()
    assert m.target is None
    widget = m.widget(layer=1)
    assert isinstance(widget, need().AnyWidget)
    first = {"payload": widget.payload, "state": widget.state}
    page.set_content(PAGE % (widget._css, json.dumps(first), json.dumps(widget._esm)))
    page.wait_for_function("window.done && document.querySelector('.cmx canvas')")
    keys = page.locator(".cmx-token", has_text="keys")
    keys.click()
    sent = page.evaluate("window.sent[window.sent.length - 1]")
    widget.set_state({"state": sent})  # what the kernel does with a message of the page
    assert chosen(m) == m.position(["keys"]) and sent["layer"] == 1
    assert np.array_equal(m.attribution(m.target).scores, m.attribution("keys").scores)

    count = page.evaluate("window.sent.length")
    widget.target = "cabinet"
    page.evaluate("(state) => window.model.arrives(state)", dict(widget.state))
    assert page.locator(".cmx-target").inner_text() == "cabinet"
    assert page.evaluate("window.sent.length") == count  # no echo
    assert chosen(m) == m.position(["cabinet"])
    widget.target = None
    page.evaluate("(state) => window.model.arrives(state)", dict(widget.state))
    assert page.locator(".cmx-target").count() == 0 and m.target is None


def test_the_target_is_a_word_with_all_its_pieces(m: Any) -> None:
    need()
    model, tokenizer = cm.load_default()
    made = cm.explain(model, "The unbelievable cats sleep.", "alti", tokenizer=tokenizer)
    groups = made.tokens[0].groups()
    several = next(group for group in groups if len(group) > 1)
    widget = made.widget()
    widget.target = several[0]
    assert made.target == several
    widget.state = {**widget.state, "unit": "piece"}
    assert made.target == several[0]
    with pytest.raises(InputError):
        widget.target = "elephant"
    with pytest.raises(OptionError, match="There is no display option 'colour'"):
        made.widget(colour="red")


def test_a_map_with_a_widget_is_still_a_map(m: Any) -> None:
    need()
    m.widget()
    assert pickle.loads(pickle.dumps(m)) == m and pickle.loads(pickle.dumps(m)).target is None
    made = m[0]
    made.widget()
    key, gone = id(made), weakref.ref(made)
    assert key in notebook._shown
    del made
    gc.collect()
    assert gone() is None and key not in notebook._shown


def test_without_anywidget_the_extra_is_named(m: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.setattr(notebook, "in_notebook", lambda: True)
    notebook.widget_class.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"needs anywidget.*ctxmix-hf\[notebook\]"):
        m.widget()
    assert m._repr_mimebundle_() == {} and "<script>" in m._repr_html_()  # static HTML
    notebook.widget_class.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("live", [True, False], ids=["anywidget", "static"])
def test_a_kernel_shows_the_map(
    live: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(package, reason="the test extra is not installed")
    if live:
        need()
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    hide = "" if live else "import sys; sys.modules['anywidget'] = None\n"
    cells = [
        f"{hide}import ctxmix_hf as cm\nmodel, tokenizer = cm.load_default()\n"
        f"m = cm.explain(model, {TEXT!r}, 'alti', tokenizer=tokenizer)\nm",
        "m.show(layer=1)",
        "print(m.target)",
    ]
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(made, timeout=120, kernel_name="python3").execute()
    view = "application/vnd.jupyter.widget-view+json"
    for cell in made.cells[:2]:
        data = cell.outputs[-1].data
        assert (view in data) == live and "<script>" in data["text/html"]
    assert made.cells[2].outputs[0].text.strip() == ("10" if live else "None")
    # 10 is [MASK]: what the picture starts with
