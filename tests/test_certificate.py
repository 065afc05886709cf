"""`ctxmix certify`: what it says is measured, and `--check` notices what changed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import ctxmix_hf as cm
from ctxmix_hf.auto import model_path
from ctxmix_hf.certifying import FIELDS, _digest
from ctxmix_hf.cli import main
from ctxmix_hf.errors import InputError


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return cm.certify("ctxmix/agreement")


@pytest.fixture
def file(made: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    return path


def test_it_says_what_was_measured(made: dict[str, Any]) -> None:
    weights = Path(model_path("ctxmix/agreement")) / "model.safetensors"
    assert made["model"]["files_sha256"] == {
        "model.safetensors": hashlib.sha256(weights.read_bytes()).hexdigest()
    }
    assert made["exact"] and made["layers"] == made["decomposed"] == 6
    assert 0 < made["reconstruction_error"] < 1e-5 and 0 <= made["ledger"]["gap"] < 1e-5
    assert made["versions"]["ctxmix_hf"] == cm.__version__
    assert set(made["methods"]) == {info.name for info in cm.list_methods()}
    assert len(made["cases"]) == 6 and all(case["passed"] for case in made["cases"].values())
    assert len(json.dumps(made)) < 6000


def test_it_holds_for_the_model_it_was_made_of(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certify", "--check", str(file)]) == 0  # the advice
    assert capsys.readouterr().out == "The certificate holds for ctxmix/agreement.\n"


def test_a_changed_weight_is_noticed(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model_path("ctxmix/agreement"), copy)
    path = copy / "model.safetensors"
    tensors = load_file(path)
    name = next(key for key in tensors if key.endswith("attention.output.dense.bias"))
    tensors[name] = tensors[name] + torch.tensor(0.01, dtype=tensors[name].dtype)
    save_file(tensors, path, metadata={"format": "pt"})
    assert main(["certify", str(copy), "--check", str(file)]) == 1
    out = capsys.readouterr().out
    assert "weights_sha256" in out and "does not hold" in out


def test_a_changed_case_or_number_is_noticed(made: dict[str, Any]) -> None:
    claims = json.loads(json.dumps(made))
    claims["methods"]["alti"] = "approximate"
    claims["cases"]["rows are shares"]["passed"] = False
    claims["ledger"]["gap"] = None
    claims["sha256"] = _digest(claims)
    found = cm.check_certificate(claims)
    assert len(found) == 3 and any("method alti: approximate in" in line for line in found)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"schema": "ctxmix.certificate/2"}'])
def test_what_is_no_certificate_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(InputError, match="certificate"):
        cm.check_certificate(path)


def damaged(made: dict[str, Any], path: str, *value: Any) -> dict[str, Any]:
    """A copy without this field, or with another value in it, whose digest fits all the same."""
    copy = json.loads(json.dumps(made))
    *outer, last = path.split(".")
    inner = copy
    for key in outer:
        inner = inner[key]
    del inner[last]
    if value:
        inner[last] = value[0]
    if path != "sha256":
        copy["sha256"] = _digest(copy)
    return copy


@pytest.mark.parametrize("path", FIELDS)
def test_a_certificate_without_a_field_is_refused(
    made: dict[str, Any], path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "damaged.json"
    file.write_text(json.dumps(damaged(made, path)))
    assert main(["certify", "--check", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"ctxmix: {file} is not a whole certificate: it has no {path}, so make it again with ctxmix certify.\n"
    )
    with pytest.raises(InputError, match=f"its {path} cannot be"):
        cm.check_certificate(damaged(made, path, {"x": [1]} if FIELDS[path] != (dict,) else 3))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("exact", 1),
        ("layers", True),
        ("layers", "6"),
        ("reconstruction_error", "0"),
        ("model.dtype", "float33"),
        ("model.dtype", "nn"),
        ("probes", []),
        ("probes", [3]),
        ("cases.rows are shares", None),
        ("cases.rows are shares", {"passed": "yes"}),
    ],
)
def test_a_field_of_another_kind_is_refused(made: dict[str, Any], path: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"This is not a whole certificate: its {path} cannot be"):
        cm.check_certificate(damaged(made, path, value))


def test_what_json_cannot_hold_is_refused(made: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="was changed after it was made"):
        cm.check_certificate({**made, "note": {1, 2}})


def test_an_edited_certificate_is_refused(
    made: dict[str, Any], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(json.dumps({**made, "exact": False}))
    assert main(["certify", "--check", str(file)]) == 2
    assert "was changed after it was made" in capsys.readouterr().err
    assert main(["certify", "--check", str(file.parent / "nothing.json")]) == 2
    assert main(["certify", "--check", str(file), "--text", "A dog."]) == 2


def test_a_model_that_is_not_exact_gets_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made.json"
    assert main(["certify", "ctxmix/sentiment", "--dtype", "bfloat16", "--out", str(out)]) == 1
    assert json.loads(out.read_text())["exact"] is False


def test_a_vision_model_is_certified_on_noise(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = ViTConfig(**sizes, intermediate_size=32, image_size=32, patch_size=8)
    ViTForImageClassification(config).save_pretrained(tmp_path)
    made = cm.certify(str(tmp_path))
    assert made["probes"] == ["noise, seed 0"] and made["exact"]
    assert cm.check_certificate(made) == []
    with pytest.raises(InputError, match="reads images"):
        cm.certify(str(tmp_path), texts=["A dog."])
