"""Slices, differences, text in the terminal, HTML and LaTeX."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np
import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.errors import InputError, OptionError, UnknownNameError
from ctxmix_hf.results.differences import align
from ctxmix_hf.text.tokens import Tokens
from tests.viz.conftest import TEXT, tiny


def test_a_layer_and_a_token(small: Any) -> None:
    assert torch.equal(small.layer(2).layers[0, 0], small.layers[0, 1])
    assert torch.equal(small.layer(-1).input[0, 0], small.input[0, 1])
    assert torch.equal(small.token("play").scores[0], small.input[0, 1, 1])
    assert torch.equal(small.select("[CLS]", 2).input[0, 0], small.input[0, 0][[0, 2]][:, [0, 2]])
    with pytest.raises(InputError, match="There is no layer 3"):
        small.layer(3)


def test_a_word_is_the_mean_of_its_rows_and_the_sum_of_its_columns(small: Any) -> None:
    layer = small.layer(2).layers[0, 0]
    word = small.layer(2).word("playing", scope="layer").scores[0]
    assert word[1].item() == pytest.approx((layer[1, 1:].sum() + layer[2, 1:].sum()).item() / 2)
    assert small.attribution(0).words().scores[0].tolist() == pytest.approx(
        [small.input[0, 1, 0, 0].item(), small.input[0, 1, 0, 1:].sum().item()]
    )


def test_a_target_that_occurs_twice_says_how_to_choose(real: Any) -> None:
    with pytest.raises(InputError, match="'the#1'"):
        real.token("the")
    assert torch.equal(
        real.token("the#2").scores, real.token(real.tokens[0].pieces.index("the", 2)).scores
    )


def test_top_and_rank_correlation(small: Any) -> None:
    row = small.token("play", scope="layer")
    assert row.top(2) == [("play", pytest.approx(0.6)), ("##ing", pytest.approx(0.3))]
    assert row.rank_correlation(row) == pytest.approx(1.0)
    assert row.rank_correlation(small.token(0, scope="layer")) == pytest.approx(
        0.866, abs=1e-3
    )  # ranks 1,3,2 and 1,2.5,2.5


# ---- differences ----------------------------------------------------------------------------------------------
def test_alignment_of_a_minimal_pair() -> None:
    assert align(["the", "key", "is"], ["the", "keys", "are"]) == [(0, 0), (1, 1), (2, 2)]
    assert align(["a", "b", "c"], ["a", "c"]) == [(0, 0), (2, 1)]


def test_the_difference_of_two_maps_is_signed() -> None:
    a = tiny([[[0.5, 0.5], [0.25, 0.75]]], ("key", "is"))
    b = tiny([[[1.0, 0.0], [0.5, 0.5]]], ("keys", "are"))
    gap = b - a
    assert gap.input[0].tolist() == [[0.5, -0.5], [0.25, -0.25]]
    assert list(gap.tokens) == ["key/keys", "is/are"]
    assert gap.attribution(0).scores.tolist() == [[0.5, -0.5]]
    assert "+0.5000" in str(gap)
    assert '"signed":true' in gap.to_html()


def test_words_without_counterpart_are_left_out_and_said() -> None:
    a = tiny([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]], ("the", "old", "cat"))
    b = tiny([[[1.0, 0.0], [0.0, 1.0]]], ("the", "cat"))
    gap = b.difference(a)
    assert gap.left_out == (["old"], [])
    assert "old" in gap.to_view()["notes"][0]


def test_maps_that_do_not_match_are_refused(small: Any) -> None:
    with pytest.raises(InputError, match="layers"):
        small - small.layer(1)
    with pytest.raises(InputError, match="no token in common"):
        tiny([[[1.0]]], ("a",)) - tiny([[[1.0, 0.0], [0.0, 1.0]]], ("b", "c"))


def test_a_minimal_pair_with_the_model(box: Any, real: Any) -> None:
    other = cm.explain(box[0], TEXT.replace("keys", "key"), "alti", tokenizer=box[1])
    gap = real - other
    place = list(gap.tokens).index("[MASK]")
    wanted = (
        real.words().attribution("[MASK]").scores[0] - other.words().attribution("[MASK]").scores[0]
    )
    assert torch.allclose(gap.input[-1, place], wanted, atol=1e-6)


# ---- terminal -------------------------------------------------------------------------------------------------
def test_print_respects_no_color(real: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = str(real)
    assert "\x1b" not in text
    assert "keys" in text
    assert all(len(line) <= 140 for line in text.splitlines())


def test_print_shows_shares_of_the_largest_value(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(small))
    values = small.words().input[0, -1]
    assert f"{min(99, round(100 * (values[0, 1] / values.max()).item()))}" in next(
        line for line in plain.splitlines() if line.startswith("[CLS]")
    )
    assert "\x1b[48;2;" in str(small)


def test_print_of_an_attribution_lists_the_strongest(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    lines = str(small.token("play", scope="layer")).splitlines()
    assert "play" in lines[2]
    assert "0.6000" in lines[2]


def test_print_of_many_tokens_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    n = 90
    made = cm.ContextMixingMap("alti", torch.rand(1, 1, n, n), torch.ones(1, n, dtype=torch.bool))
    assert f"of {n} tokens" in str(made)


# ---- HTML -----------------------------------------------------------------------------------------------------
def decoded(block: dict[str, Any], depth: int, size: int) -> np.ndarray[Any, Any]:
    halves = np.frombuffer(base64.b64decode(block["data"]), dtype="<f2").reshape(depth, size, size)
    return halves.astype(np.float64) * np.array(block["scale"])[:, None, None]


def test_the_payload_holds_the_values(real: Any) -> None:
    view = real.to_view()
    assert np.allclose(
        decoded(view["maps"]["layer"], real.depth, real.size), real.layers[0].numpy(), atol=5e-4
    )
    assert view["words"][:3] == ["[CLS]", "The", "keys"]
    assert view["pin"] == str(real.tokens[0].pieces.index("[MASK]"))


def test_64_tokens_and_6_layers_travel_in_tens_of_kilobytes() -> None:
    made = cm.ContextMixingMap(
        "alti", torch.rand(1, 6, 64, 64), torch.ones(1, 64, dtype=torch.bool)
    )
    assert len(json.dumps(made.to_view())) < 80_000
    assert len(made._repr_html_()) < 140_000


def test_html_needs_nothing_from_outside(real: Any) -> None:
    html = real.to_html()
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in html
    assert "import(" not in html


@pytest.mark.parametrize(
    "text",
    ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "a\u2028b & 'c' \"d\""],
)
def test_html_in_tokens_stays_text(text: str) -> None:
    made = tiny([[[1.0]]], (text,))
    html = made._repr_html_()
    assert html.count("<script>") == 1
    assert html.count("</script>") == 1
    assert "<img" not in html
    assert "<img" not in made.attribution(0)._repr_html_()


def test_an_attribution_is_coloured_text(small: Any) -> None:
    html = small.token("play", scope="layer")._repr_html_()
    assert html.count("<span class='cmx-w' title=") == 3
    assert "title='0.6'" in html
    assert html.count("background:#2f7fbc99") == 1  # the largest score has the most of the colour
    assert ";color:#" not in html  # letters are the page's own, in any theme
    assert "#062a5e" not in html and "#fcfdbf" in small.token("play", scope="layer").view(
        "fragment", cmap="magma"
    )


def test_display_options_are_checked(small: Any) -> None:
    with pytest.raises(UnknownNameError, match="Unknown colour map 'rainbow'"):
        small.to_html(cmap="rainbow")
    with pytest.raises(OptionError, match="no display option 'colour'"):
        small.to_html(colour="red")
    assert '"unit":"piece"' in small.to_html(unit="piece")


def test_an_empty_map_cannot_be_drawn() -> None:
    empty = cm.ContextMixingMap(
        "alti", torch.zeros(0, 1, 0, 0), torch.zeros(0, 0, dtype=torch.bool)
    )
    assert "empty" in str(empty)
    for call in (empty.to_html, empty.plot, empty.to_latex):
        with pytest.raises(InputError, match="empty"):
            call()


# ---- LaTeX ----------------------------------------------------------------------------------------------------
def test_latex_escapes_and_colours() -> None:
    made = tiny([[[0.75, 0.25], [0.5, 0.5]]], ("50%_$&#{}~^\\", "ok"))
    text = made.to_latex(0, words=False)
    assert r"50\%\_\$\&\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}" in text
    assert r"\colorbox[RGB]{6,42,94}{\strut \textcolor{white}{50" in text
    assert text.count(r"\colorbox") == 2


def test_words_are_the_default_in_latex(real: Any) -> None:
    assert "{cabinet}" in real.to_latex("[MASK]") or "cabinet}" in real.to_latex("[MASK]")
    assert "##" not in real.to_latex("[MASK]")


def test_control_characters_become_visible() -> None:
    made = cm.ContextMixingMap(
        "alti", torch.ones(1, 1, 1, 1), torch.ones(1, 1, dtype=torch.bool), [Tokens(("a\x07\x00",))]
    )
    assert made.to_view()["tokens"] == ["a␇␀"]
