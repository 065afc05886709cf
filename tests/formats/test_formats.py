"""A file format is one file: what is entered under a suffix can be saved, and every format keeps its promise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.errors import InputError
from ctxmix_hf.formats import FORMATS, Format, formats
from ctxmix_hf.registry import VIEWS
from ctxmix_hf.text.tokens import Tokens


@pytest.fixture
def shout() -> Iterator[str]:
    """The format of CONTRIBUTING.md, under another suffix."""
    FORMATS.register(".shout")(
        Format(write=lambda result, path: path.write_text(str(result).upper()))
    )
    yield ".shout"
    FORMATS.unregister(".shout")


def row() -> cm.Attribution:
    tokens = Tokens(("[CLS]", "ke|ys", "<b>"), (0, 1, 2), (True, False, False))
    scores = torch.tensor([[0.25, 0.5, 0.25]], dtype=torch.float64)
    return cm.Attribution(scores, [tokens], torch.ones(1, 3, dtype=torch.bool), "alti", "[CLS]")


def test_a_new_format_is_one_entry(shout: str, tmp_path: Path) -> None:
    path = row().save(tmp_path / f"row{shout}")
    assert path.read_text() == str(row()).upper()
    with pytest.raises(InputError, match=r"Cannot load '.shout': .json, .npz and .safetensors"):
        cm.Attribution.load(path)


def test_unknown_suffixes_name_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"name it .*\.csv.*\.json.* or "):
        row().save(tmp_path / "row.doc")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [name for name in formats() if formats().get(name).read])
def test_what_can_be_read_is_equal(suffix: str, tmp_path: Path) -> None:
    assert cm.Attribution.load(row().save(tmp_path / f"row{suffix}")) == row()


def test_markdown_is_a_table_of_one_line_per_token(tmp_path: Path) -> None:
    lines = row().save(tmp_path / "row.md").read_text().splitlines()
    assert lines[0] == "| example | index | token | score |" and len(lines) == 5
    assert lines[3] == "| 0 | 1 | ke\\|ys | 0.5000 |" and "<b>" not in lines[4]


def test_latex_by_suffix(tmp_path: Path) -> None:
    assert row().save(tmp_path / "row.tex").read_text() == row().to_latex()


def test_every_view_of_every_kind_can_be_found() -> None:
    """Names in the table that lead nowhere would fail only for the user who asks."""
    for name in VIEWS.names():
        assert callable(VIEWS.get(name)), name
