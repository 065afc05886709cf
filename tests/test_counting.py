"""Layers count from 1 to L (-1 is the last) in every call, file, link, title and message; tensor
axes count from 0. The scope is said.
"""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.cli import main
from ctxmix_hf.errors import InputError, InputTypeError, OptionError, UnsupportedMethodError
from ctxmix_hf.recipes import method

TEXT = "The keys to the cabinet [MASK] on the table."
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def real(box: Any) -> cm.ContextMixingMap:
    return cm.explain(box[0], TEXT, "attention", tokenizer=box[1])  # type: ignore[no-any-return]


def titles(figure: Any) -> str:
    found = [panel.get_title() for panel in figure.axes]
    return "\n".join([*found, figure.get_suptitle()])


# ---- calls ----------------------------------------------------------------------------------------------------
CALLS = {
    "attribution": lambda m, layer: m.attribution("[MASK]", layer).scores[0],
    "token": lambda m, layer: m.token("[MASK]", layer).scores[0],
    "layer": lambda m, layer: m.layer(layer).attribution("[MASK]").scores[0],
    "difference": lambda m, layer: (
        (m - replace(m, layers=0 * m.layers, given_input=0 * m.input))
        .attribution("[MASK]", layer)
        .scores[0]
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("layer", [1, 3, 6, -1, -6, np.int64(2)])
def test_layers_count_from_1(real: Any, name: str, layer: int) -> None:
    place = real.position("[MASK]")[0]
    axis = layer - 1 if layer > 0 else layer
    assert torch.equal(CALLS[name](real, layer), real.input[0, axis, place])


OTHERS = {
    "word": lambda m, layer: m.word("keys", layer),
    "plot": lambda m, layer: m.plot(layer),
    "plot_image": lambda m, layer: m.plot_image(torch.rand(3, 8, 8), layer=layer, grid=(4, 4)),
    "plot_speech": lambda m, layer: m.plot_speech(np.sin(np.arange(400.0)), layer=layer),
    "plot_methods": lambda m, layer: cm.plot_methods({"a": m}, layer),
    "plot_difference": lambda m, layer: (m - m).plot(layer),
    "to_latex": lambda m, layer: m.to_latex("[MASK]", layer),
    "to_html": lambda m, layer: m.to_html(layer=layer),
    "to_view": lambda m, layer: m.to_view(layer=layer),
    "show": lambda m, layer: m.show(layer=layer),
    "difference.to_html": lambda m, layer: (m - m).to_html(layer=layer),
    "head_rollout": lambda m, layer: replace(m, heads=m.layers[:, :, None]).head_rollout(layer, 0),
}


@pytest.mark.parametrize("name", [*CALLS, *OTHERS])
def test_layer_0_is_an_error_that_says_how_layers_count(real: Any, name: str) -> None:
    call = {**CALLS, **OTHERS}[name]
    with pytest.raises(
        InputError,
        match=r"There is no layer 0: layers count from 1 to 6 \(-1 is the last\); 0 is the embedding output",
    ):
        call(real, 0)
    for wrong in (7, -7):
        with pytest.raises(
            InputError, match=f"There is no layer {wrong}: layers count from 1 to 6"
        ):
            call(real, wrong)
    for strange in (True, 1.5, "3", None):
        with pytest.raises(InputTypeError, match="whole number"):
            call(real, strange)


def test_what_is_drawn_is_the_layer_asked_for(real: Any) -> None:
    words = real.words()
    assert np.allclose(real.plot(2).axes[0].images[0].get_array(), words.input[0, 1])
    assert np.allclose(
        real.plot(2, scope="layer").axes[0].images[0].get_array(), words.layers[0, 1]
    )
    shares = words.input[0, 1] / words.input[0, 1].max()
    assert np.allclose(cm.plot_methods({"a": real}, 2).axes[0].images[0].get_array(), shares)
    gap = replace(real, layers=2 * real.layers, given_input=2 * real.input) - real
    assert np.allclose(gap.plot(2).axes[0].images[0].get_array(), real.input[0, 1])
    assert np.allclose(gap.plot(2, scope="layer").axes[0].images[0].get_array(), real.layers[0, 1])
    one = real.plot_image(torch.rand(3, 8, 8), layer=2, grid=(4, 4))
    assert np.allclose(one.axes[1].images[1].get_array().ravel(), real.input[0, 1, 0, 1:])
    assert real.to_latex("[MASK]", 2) == real.attribution("[MASK]", 2).words().to_latex()
    assert real.to_latex("[MASK]", 2) != real.to_latex("[MASK]", 3)


def test_in_attribute_0_is_the_embedding_output(box: Any) -> None:
    inputs = box[1](TEXT, return_tensors="pt")
    rows = {layer: cm.attribute(box[0], inputs, "grad_l2", layer=layer) for layer in (0, 1, 6, -1)}
    assert torch.equal(rows[0].scores, cm.attribute(box[0], inputs, "grad_l2").scores)
    assert torch.equal(rows[6].scores, rows[-1].scores) and not torch.equal(
        rows[0].scores, rows[1].scores
    )
    assert [rows[layer].meta["layer"] for layer in (0, 6, -1)] == [0, 6, 6]
    with pytest.raises(InputError, match=r"e\^0 \(the embedding output\) ... e\^6"):
        cm.attribute(box[0], inputs, "grad_l2", layer=7)


# ---- a part of a map keeps the model's numbers ----------------------------------------------------------------
def test_one_layer_is_known_by_its_number_everywhere(
    real: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    third = real.layer(3)
    assert torch.equal(third.attribution("[MASK]", 3).scores, real.attribution("[MASK]", 3).scores)
    assert torch.equal(third.layer(3).input, third.input)
    with pytest.raises(InputError, match="this map holds only layer 3"):
        third.attribution("[MASK]", 1)
    assert {row["layer"] for row in csv.DictReader(io.StringIO(third.to_csv()))} == {"3"}
    assert set(third.to_pandas()["layer"]) == {3}
    assert third.to_xarray()["layer"].values.tolist() == [3]
    assert "layer 3 of 6, from the input" in str(third)
    assert "layer 3, from the input" in titles(third.plot())
    assert third.to_view()["layers"] == [3]
    back = cm.ContextMixingMap.load(third.save(tmp_path / "m.json"))
    assert torch.equal(back.attribution("[MASK]", 3).scores, third.attribution("[MASK]", 3).scores)
    assert "layer 3" in str(real.layer(3) - real.layer(3))


@pytest.mark.parametrize("part", [lambda m: m.layer(3), lambda m: m.select(1, 2, 3)])
def test_the_browser_never_rolls_out_a_part(real: Any, part: Any) -> None:
    """A part's input map is the part of the whole's: the product of its own layers is another map."""
    made = part(real)
    assert "data" in made.to_view()["maps"]["input"]
    assert "data" not in real.to_view()["maps"]["input"]


# ---- files ----------------------------------------------------------------------------------------------------
def test_tables_count_from_1(real: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(real.to_csv())))
    assert {row["layer"] for row in rows} == {"1", "2", "3", "4", "5", "6"}
    first = next(row for row in rows if row["scope"] == "layer" and row["layer"] == "2")
    assert float(first["value"]) == pytest.approx(real.layers[0, 1, 0, 0].item())
    assert real.to_xarray().sel(layer=2)["layers"].values[0, 0] == pytest.approx(
        real.layers[0, 1, 0, 0].item()
    )


@pytest.mark.parametrize(("layer", "number"), [(2, 2), (-1, 6)])
@pytest.mark.parametrize("suffix", [".json", ".npz", ".safetensors"])
def test_an_attributions_file_holds_its_layer_and_scope(
    real: Any, tmp_path: Path, suffix: str, layer: int, number: int
) -> None:
    row = real.attribution("[MASK]", layer, "layer")
    back = cm.Attribution.load(row.save(tmp_path / f"a{suffix}"))
    assert (
        (row.meta["layer"], row.meta["scope"])
        == (back.meta["layer"], back.meta["scope"])
        == (number, "layer")
    )
    assert back == row


def test_files_of_version_1_counted_from_0(real: Any, box: Any) -> None:
    row = json.loads(real.attribution("[MASK]", 3).to_json())
    row["version"], row["meta"]["layer"] = 1, 2
    del row["meta"]["scope"]
    assert cm.Attribution.from_json(json.dumps(row)).meta["layer"] == 3
    row["meta"]["layer"] = -1
    assert cm.Attribution.from_json(json.dumps(row)).meta["layer"] == -1
    one = json.loads(real.layer(3).to_json())
    one["version"], one["meta"]["layer"] = 1, 2
    assert cm.ContextMixingMap.from_json(json.dumps(one)).attribution("[MASK]", 3) == real.layer(
        3
    ).attribution("[MASK]", 3)
    scores = json.loads(
        cm.attribute(box[0], box[1](TEXT, return_tensors="pt"), "grad_l2").to_json()
    )
    scores["version"] = 1
    assert cm.Attribution.from_json(json.dumps(scores)).meta["layer"] == 0  # e^0 was e^0 then too


# ---- the command line -----------------------------------------------------------------------------------------
def test_the_command_line_counts_from_1(
    real: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    for layer, aggregate in ((3, None), (1, "none"), (-1, None)):
        extra = ["--aggregate", aggregate] if aggregate else []
        asked = [
            "explain",
            TEXT,
            "--method",
            "attention",
            "--target",
            "[MASK]",
            "--layer",
            str(layer),
            *extra,
        ]
        assert main([*asked, "--json"]) == 0
        row = json.loads(capsys.readouterr().out)["attribution"]
        scope, number = "layer" if aggregate else "input", layer if layer > 0 else 6
        assert row["scores"][0] == pytest.approx(
            real.attribution("[MASK]", layer, scope).scores[0].tolist(), abs=1e-6
        )
        assert (row["meta"]["layer"], row["meta"]["scope"]) == (number, scope)
        assert main(asked) == 0
        said = capsys.readouterr().out
        assert said.count(f"within layer {number}" if aggregate else f"layer {number}") >= 2
        assert ("from the input" in said) is (aggregate is None)
    assert main(["explain", TEXT, "--layer", "0"]) == 2
    assert "layers count from 1 to 6" in capsys.readouterr().err
    assert (
        main(
            [
                "compare",
                "The key [MASK].",
                "The keys [MASK].",
                "--method",
                "attention",
                "--layer",
                "2",
            ]
        )
        == 0
    )
    assert "layer 2, from the input" in capsys.readouterr().out
    assert main(["compare", "The key [MASK].", "--methods", "attention,alti", "--layer", "2"]) == 0
    assert "layer 2, from the input" in capsys.readouterr().out


def test_doctor_counts_from_1(capsys: Any) -> None:
    assert main(["doctor", "--json"]) == 0
    assert [row["layer"] for row in json.loads(capsys.readouterr().out)["layers"]] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]


# ---- messages -------------------------------------------------------------------------------------------------
def test_messages_about_a_layer_count_from_1(box: Any) -> None:
    with torch.no_grad():
        record = box[0](
            **box[1](TEXT, return_tensors="pt"), output_decomposition=True
        ).decomposition
    layer = record[2]
    assert layer.index == 2  # the tensor's axis
    blind = replace(layer.refuted("no reason."), replay=None, refused=False)
    record = replace(record, layers=(*record[:2], blind, *record[3:]))
    said = []
    for name in ("alti", "value_zeroing"):
        with pytest.raises(UnsupportedMethodError) as caught:
            from ctxmix_hf.recipes import compute_maps

            compute_maps(record, [name])
        said.append(str(caught.value))
    from ctxmix_hf.verification import _methods

    said += [row.why for row in _methods([record]) if row.status == "not applicable"]
    assert len(said) > 4
    for message in said:
        assert re.search(r"[Ll]ayer 3\b", message) and "bert.encoder.layer.2" in message, message


def test_no_message_prints_an_index() -> None:
    """Every sentence goes through `layer_number` (or `LayerRecord.title`), so an index in braces is a slip."""
    slips = subprocess.run(
        [
            "grep",
            "-rnE",
            r"[Ll]ayer \{[a-z_.]*(index|len\()",
            str(ROOT / "ctxmix_hf"),
            "--include=*.py",
        ],
        capture_output=True,
        text=True,
    ).stdout
    assert not slips


# ---- the scope --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("scope", ["Layer", None, "", "layers", 1])
def test_a_scope_that_does_not_exist_is_an_error(real: Any, scope: Any) -> None:
    calls = [
        lambda: real.attribution("[MASK]", scope=scope),
        lambda: real.token("[MASK]", scope=scope),
        lambda: real.word("keys", scope=scope),
        lambda: real.plot(scope=scope),
        lambda: real.plot_layers("[MASK]", scope=scope),
        lambda: real.plot_grid(scope=scope),
        lambda: (real - real).plot(scope=scope),
        lambda: real.to_html(scope=scope),
        lambda: real.show(scope=scope),
    ]
    for call in calls:
        with pytest.raises((OptionError, LookupError), match="scope"):
            call()


@pytest.mark.parametrize(
    ("scope", "said"), [("input", "layer 2, from the input"), ("layer", "within layer 2")]
)
def test_the_scope_is_said_everywhere(
    real: Any, scope: str, said: str, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    row = real.attribution("[MASK]", 2, scope)
    assert row.meta["scope"] == scope
    assert said in str(row).splitlines()[0]
    assert said in titles(row.plot())
    assert said in row._repr_html_()
    assert said in re.search("<title>(.*)</title>", row.to_html())[1]  # type: ignore[index]
    assert said in titles(real.plot(2, scope=scope))
    assert said in re.search("<title>(.*)</title>", real.to_html(layer=2, scope=scope))[1]  # type: ignore[index]
    assert said in titles((real - real).plot(2, scope=scope))
    real.show(layer=2, scope=scope)
    assert said.replace("layer 2", "layer 2 of 6") in capsys.readouterr().out
    both = {"input": "from the input", "layer": "within the layer"}[scope]
    assert both in titles(real.plot_layers("[MASK]", scope=scope))
    assert both in titles(real.plot_grid(scope=scope))
    assert row.words().meta["scope"] == scope


def test_a_method_without_layers_says_so_instead_of_showing_something_else(real: Any) -> None:
    from_input = replace(real, layers=None, given_input=real.input)
    for call in (
        lambda: from_input.plot_grid(scope="layer"),
        lambda: from_input.attribution("[MASK]", scope="layer"),
        lambda: (from_input - from_input).plot(scope="layer"),
        lambda: from_input.plot_layers(0, scope="layer"),
        lambda: from_input.to_html(scope="layer"),
    ):
        with pytest.raises(OptionError, match="no per-layer maps"):
            call()
    assert "from the input" in titles(from_input.plot_grid())


# ---- one head ---------------------------------------------------------------------------------------------------
def test_single_head_flow_by_hand(box: Any) -> None:
    """One head's 0.5 A_h + 0.5 I on top of the averaged maps below, as capacities; networkx finds the same flows."""
    networkx = pytest.importorskip("networkx", reason="the test extra is not installed")
    m = cm.explain(
        box[0], "Girls sleep.", method("attention_flow", per_head=True), tokenizer=box[1]
    )
    layer, head = 3, 1
    capacities = [
        *m.layers[0, : layer - 1].double().tolist(),
        m.heads[0, layer - 1, head].double().tolist(),
    ]
    graph = networkx.DiGraph()
    for level, matrix in enumerate(capacities):
        for i, row in enumerate(matrix):
            for j, value in enumerate(row):
                graph.add_edge((level + 1, i), (level, j), capacity=value)
    flows = [
        [networkx.maximum_flow_value(graph, (layer, i), (0, j)) for j in range(m.size)]
        for i in range(m.size)
    ]
    wanted = torch.tensor(flows, dtype=torch.float64)
    made = m.head_rollout(layer, head)
    assert torch.allclose(made[0].double(), wanted / wanted.sum(dim=-1, keepdim=True), atol=1e-5)
    rolled = cm.explain(
        box[0], "Girls sleep.", method("attention_rollout", per_head=True), tokenizer=box[1]
    )
    assert not torch.allclose(made, rolled.head_rollout(layer, head), atol=1e-3)


def test_head_rollout_uses_what_the_map_uses(box: Any) -> None:
    """A map whose aggregate mixes the identity in (`residual=`) does so for the head and the layers below as well."""
    plain = cm.explain(box[0], TEXT, method("attention", per_head=True), tokenizer=box[1])
    half = cm.explain(box[0], TEXT, method("attention_rollout", per_head=True), tokenizer=box[1])
    mixed = replace(plain, residual=0.5, given_input=None)
    assert torch.allclose(mixed.head_rollout(4, 2), half.head_rollout(4, 2), atol=1e-6)
    heads = torch.stack([mixed.head_rollout(4, h) for h in range(plain.heads.shape[2])]).mean(dim=0)
    assert torch.allclose(heads, mixed.input[:, 3], atol=1e-6)
    with pytest.raises(InputError, match="There is no head 99"):
        plain.head_rollout(1, 99)
    with pytest.raises(OptionError, match="rollout or flow"):
        replace(plain, aggregation="none").head_rollout(1, 0)
