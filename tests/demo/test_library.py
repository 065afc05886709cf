"""The bundled maps: enough of them, small, and what the library computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.demo import library, pictures, snippets, stores


def test_the_store_in_the_box_holds_what_is_computed(box: Any) -> None:
    store = stores.open_store(library.NAME)
    texts = [text for split in library.SENTENCES.values() for text in split]
    assert len(texts) >= 30 and tuple(store.methods) == library.METHODS
    assert [text for text, _ in stores.search(library.NAME)] == texts
    key = stores.search(library.NAME, "clause", "that like the girl")[0][1]
    for method in library.METHODS:
        made = cm.explain(
            box[0], "The boys that like the girl [MASK] tired.", method, tokenizer=box[1]
        )
        assert torch.allclose(store[key, method].input, made.input, atol=1e-5), method


@pytest.mark.parametrize(
    ("folder", "most"),
    [(library.folder(), 2e6), (library.folder().parents[1] / "models" / "digits", 1e6)],
)
def test_what_is_bundled_is_small(folder: Path, most: float) -> None:
    assert 0 < sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < most


def test_the_vision_model_reads_digits_it_has_not_seen() -> None:
    said = [
        pictures.map_of(pictures.example(f"digit {k}"), "ctxmix/digits", "attention")[2]
        for k in range(10)
    ]
    assert sum(f"sees {k} " in text for k, text in enumerate(said)) >= 8


@pytest.mark.parametrize(
    "asked",
    [
        "tab=embeddings",
        "tab=why&word=are&foil=is",
        "tab=precomputed&store=ctxmix/library&id=agreement-01&store_method=alti&p.layer=2",
        "tab=image&vision=ctxmix/digits&picture=digit 4",
        "layer=2&range=layer",
    ],
)
def test_code_of_every_tab_runs(asked: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    pictures.example("digit 4").save("picture.png")
    default = {
        "model": "ctxmix/agreement",
        "method": "alti",
        "text": "The books about the boy [MASK] old.",
    }
    exec(snippets.of_view(asked, default), {})
    if asked.startswith("layer=2"):
        assert "layer 2" in capsys.readouterr().out
