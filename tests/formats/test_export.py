"""Files read back exactly."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.errors import InputError, MissingDependencyError


def same(a: cm.ContextMixingMap, b: cm.ContextMixingMap) -> None:
    assert torch.equal(a.layers, b.layers)
    assert torch.equal(a.input, b.input)
    assert torch.equal(a.mask, b.mask)
    assert [t.pieces for t in a.tokens] == [t.pieces for t in b.tokens]
    assert [(t.words, t.special, t.text, t.spans, t.ids) for t in a.tokens] == [
        (t.words, t.special, t.text, t.spans, t.ids) for t in b.tokens
    ]
    assert (a.method, a.aggregation, a.residual, a.meta) == (
        b.method,
        b.aggregation,
        b.residual,
        b.meta,
    )


@pytest.mark.parametrize("suffix", [".json", ".npz", ".safetensors"])
def test_reads_back_exactly(real: Any, tmp_path: Path, suffix: str) -> None:
    path = real.save(tmp_path / f"map{suffix}")
    same(real, cm.ContextMixingMap.load(path))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("suffix", [".json", ".npz", ".safetensors"])
def test_keeps_the_precision(small: Any, tmp_path: Path, dtype: torch.dtype, suffix: str) -> None:
    values = torch.rand(1, 2, 3, 3, dtype=torch.float64).to(dtype)
    made = cm.ContextMixingMap.load(replace(small, layers=values).save(tmp_path / f"m{suffix}"))
    assert made.layers.dtype == dtype
    assert torch.equal(made.layers, values)


def test_json_is_valid_and_versioned(real: Any) -> None:
    data = json.loads(real.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (data["schema"], data["version"], data["method"]) == ("ctxmix.map", 2, "alti")
    assert data["layers"][0][2][1][3] == pytest.approx(real.layers[0, 2, 1, 3].item(), rel=1e-6)
    assert data["tokens"][0]["text"] == real.tokens[0].text


def test_not_finite_numbers_survive_json(small: Any) -> None:
    values = small.layers.clone()
    values[0, 0, 0] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    made = cm.ContextMixingMap.from_json(
        replace(small, layers=values, given_input=values).to_json()
    )
    assert torch.equal(made.layers[0, 0, 0, 1:], values[0, 0, 0, 1:])
    assert torch.isnan(made.layers[0, 0, 0, 0])


def test_a_batch_with_padding_and_notes(box: Any) -> None:
    made = cm.explain(
        box[0],
        ["Many girls insulted [MASK].", "The boys are very tired of it."],
        "alti",
        tokenizer=box[1],
    )
    made.meta["notes"]["error"] = torch.tensor([0.25, 0.5])
    back = cm.ContextMixingMap.from_json(made.to_json())
    assert torch.equal(back.layers, made.layers)
    assert torch.equal(back.mask, made.mask)
    assert torch.equal(back.meta["notes"]["error"], torch.tensor([0.25, 0.5]))


def test_foreign_and_newer_files_are_refused(small: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no ctxmix\.map"):
        cm.ContextMixingMap.from_json('{"schema": "other"}')
    data = {**small.to_dict(), "version": 99}
    with pytest.raises(InputError, match="newer"):
        cm.ContextMixingMap.from_json(json.dumps(data))
    with pytest.raises(InputError, match="not a JSON"):
        cm.ContextMixingMap.from_json("{")
    with pytest.raises(InputError, match="There is no file"):
        cm.ContextMixingMap.load(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"name it \.csv, .*\.json"):
        small.save(tmp_path / "map.xyz")


def test_csv_has_a_row_per_value(small: Any, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(small.to_csv())))
    assert len(rows) == 2 * 2 * 9
    row = next(
        r
        for r in rows
        if (r["scope"], r["layer"], r["target_index"], r["source_index"])
        == ("layer", "2", "1", "2")
    )
    assert (row["target"], row["source"], float(row["value"])) == (
        "play",
        "##ing",
        pytest.approx(0.3),
    )
    assert small.save(tmp_path / "m.csv").read_text() == small.to_csv()


def test_pandas_has_the_same_table(small: Any) -> None:
    frame = small.to_pandas()
    assert list(frame.columns) == next(csv.reader(io.StringIO(small.to_csv())))
    assert frame["value"].sum() == pytest.approx(float(small.layers.sum() + small.input.sum()))


@pytest.mark.parametrize(
    ("package", "call", "said"),
    [
        ("pandas", "to_pandas", r"ctxmix-hf\[data\]"),
        ("xarray", "to_xarray", r"ctxmix-hf\[data\]"),
        ("matplotlib", "plot", r"ctxmix-hf\[plot\]"),
        ("inseq.data", "to_inseq", "pip install inseq"),
    ],
)
def test_a_missing_package_is_named(
    small: Any, monkeypatch: pytest.MonkeyPatch, package: str, call: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=said):
        getattr(small, call)()


def test_xarray_has_named_dimensions(small: Any) -> None:
    pytest.importorskip(
        "xarray", reason="xarray is not installed here; the missing-package test covers that"
    )
    data = small.to_xarray()
    assert data["layers"].dims == ("layer", "target", "source")
    assert float(data["layers"][1, 1, 2]) == pytest.approx(0.3)


def test_bertviz_gets_layers_of_heads_and_tokens(small: Any) -> None:
    made = small.to_bertviz()
    assert made["tokens"] == ["[CLS]", "play", "##ing"]
    assert [tuple(layer.shape) for layer in made["attention"]] == [(1, 1, 3, 3)] * 2
    assert torch.equal(made["attention"][1][0, 0], small.layers[0, 1])


def test_inseq_gets_sources_by_targets(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    coarse = SimpleNamespace(CoarseFeatureAttributionSequenceOutput=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "inseq", SimpleNamespace())
    monkeypatch.setitem(
        sys.modules, "inseq.data", SimpleNamespace(FeatureAttributionOutput=SimpleNamespace)
    )
    monkeypatch.setitem(sys.modules, "inseq.data.attribution", coarse)
    monkeypatch.setitem(sys.modules, "inseq.utils", SimpleNamespace())
    monkeypatch.setitem(
        sys.modules,
        "inseq.utils.typing",
        SimpleNamespace(TokenWithId=lambda token, id: (token, id)),
    )
    made = small.to_inseq().sequence_attributions[0]
    assert torch.equal(made.source_attributions, small.input[0, -1].T)
    assert [token for token, _ in made.source] == ["[CLS]", "play", "##ing"]


@pytest.mark.parametrize("suffix", [".json", ".npz", ".safetensors"])
def test_an_attribution_reads_back(real: Any, tmp_path: Path, suffix: str) -> None:
    row = real.attribution("[MASK]")
    back = cm.Attribution.load(row.save(tmp_path / f"a{suffix}"))
    assert torch.equal(back.scores, row.scores)
    assert (back.target, back.method) == ("[MASK]", "alti")
    assert back.tokens[0].pieces == row.tokens[0].pieces
