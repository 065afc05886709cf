"""One default method, defined once; options that would do nothing are refused."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import pipeline

import ctxmix_hf as cm
import ctxmix_hf.pipeline
from ctxmix_hf.cli import main
from ctxmix_hf.errors import OptionError
from ctxmix_hf.recipes import method

TEXT = "The keys to the cabinet [MASK] on the table."
DEFAULT_METHOD = cm.DEFAULT_METHOD
PACKAGE = Path(cm.__file__).parent


def test_every_way_in_uses_the_same_default(box: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cm.explain(box[0], TEXT, tokenizer=box[1]).method == DEFAULT_METHOD
    assert (
        pipeline(ctxmix_hf.pipeline.TASK, model=box[0], tokenizer=box[1])(TEXT).method
        == DEFAULT_METHOD
    )
    assert (
        cm.similarity(box[0], "The cat sleeps.", "A dog sleeps.", tokenizer=box[1]).pairs
        is not None
    )  # exact: no map's default
    assert main(["explain", TEXT, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == DEFAULT_METHOD


def test_the_page_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gradio", reason="the extra [demo] is not installed")
    from ctxmix_hf.demo import api, page

    assert page.DEFAULT[1] == DEFAULT_METHOD
    for name, function in api.ENDPOINTS.items():
        default = inspect.signature(function).parameters.get("method")
        others = {"similarity": "", "attribution": "blank_out"}  # "": exact; blank_out: for a class
        assert default is None or default.default in (
            inspect.Parameter.empty,
            DEFAULT_METHOD,
            others.get(name, "blank_out"),
        )


def test_it_is_written_once() -> None:
    """No other default names a method of maps: neither a keyword's nor an option's."""
    names = "|".join(
        map(
            re.escape,
            sorted({info.name for info in cm.list_methods() if info.kind != "attribution"}),
        )
    )
    pattern = re.compile(
        rf"""(methods?(: [\w\[\]., |]+)? = |default=)\[?["']({names})(\+\w+)?["']"""
    )
    lines = [
        (path.name, line.strip())
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
    ]
    found = [f"{name}: {line}" for name, line in lines if pattern.search(line)]
    assert not found


@pytest.mark.parametrize("distance", ["cosine", "spearman"])
def test_normalised_is_refused_where_it_does_nothing(distance: str) -> None:
    with pytest.raises(OptionError, match="normalised=True belongs to distance='euclidean'"):
        method("value_zeroing", distance=distance, normalised=True)
    method("value_zeroing", distance=distance)


def test_normalised_euclidean_is_the_chord(box: Any) -> None:
    """|a/|a| - b/|b||^2 = 2 (1 - cos): the square of the one is twice the other."""
    text = "The boys sleep."
    chord = cm.explain(
        box[0],
        text,
        method("value_zeroing", distance="euclidean", normalised=True, row_shares=False),
        tokenizer=box[1],
    )
    cosine = cm.explain(box[0], text, method("value_zeroing", row_shares=False), tokenizer=box[1])
    plain = cm.explain(
        box[0],
        text,
        method("value_zeroing", distance="euclidean", row_shares=False),
        tokenizer=box[1],
    )
    assert (chord.layers.square() / 2 - cosine.layers).abs().max() < 1e-6
    assert not (chord.layers - plain.layers).abs().max() < 1e-3
