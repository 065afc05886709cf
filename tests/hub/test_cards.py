"""Cards: valid headers, the saliency card's headings with measured values, citations, and their place in the wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from huggingface_hub import DatasetCard, ModelCard, SpaceCard

from ctxmix_hf.hub import cards
from ctxmix_hf.hub.store import MapStore

from .conftest import ROOT
from .samples import METHODS, filled, model, tokenizer
from .synthetic import manifest

HEADINGS = ("Determinism", "Hyper-parameters", "Cost", "Sensitivity", "What is left out")


def header(text: str) -> dict[str, object]:
    _, front, _ = text.split("---\n", 2)
    return dict(yaml.safe_load(front))


def test_dataset_card(tmp_path: Path) -> None:
    filled(tmp_path / "m")
    store = MapStore.open(tmp_path / "m", model=model(), tokenizer=tokenizer())
    text = store.render_card("me/maps", license="mit")
    about = header(text)
    assert about["license"] == "mit" and about["configs"] == [
        {
            "config_name": "default",
            "data_files": [{"split": "validation", "path": "examples/validation.jsonl"}],
            "default": True,
        }
    ]
    for name in METHODS:
        assert f"### {name}" in text
    for heading in HEADINGS:
        assert text.count(f"**{heading}:**") == len(METHODS)
    assert (
        text.count("times a plain forward")
        == text.count("changes a map by at most") // 2
        == len(METHODS)
    )  # measured
    assert (
        all(citation in text for citation in cards.CITATIONS)
        and 'MapStore.from_hub("me/maps")' in text
    )
    assert store.manifest.fingerprint in text and DatasetCard(text).data.license == "mit"
    assert "{{" not in text and "{%" not in text and str(tmp_path) not in text


def test_card_without_a_model_says_nothing_was_measured() -> None:
    text = cards.dataset_card(manifest(), "me/maps", 3, {}, [])
    assert "no random numbers" in text and "measured" not in text and "configs" not in header(text)


def test_space_card() -> None:
    text = cards.space_card(
        title="Context mixing", sdk_version="6.31.0", short_description="Which tokens?"
    )
    about = header(text)
    assert (about["sdk"], about["sdk_version"], about["app_file"]) == ("gradio", "6.31.0", "app.py")
    assert {"title", "emoji", "colorFrom", "colorTo", "license", "short_description"} < set(about)
    assert "| `value_zeroing` |" in text and SpaceCard(text).data.title == "Context mixing"


def test_own_cards_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    assert cards.new_card(path, lambda: "1") == "1"
    path.write_text(f"{cards.MARK} 1")
    assert cards.new_card(path, lambda: "2") == "2"
    path.write_text("mine")
    assert cards.new_card(path, lambda: "3") is None


@pytest.mark.slow
def test_wheel_holds_the_templates(tmp_path: Path) -> None:
    source = tmp_path / "source"  # building leaves traces
    for name in ("ctxmix_hf", "hub_cards"):
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "models")
        )
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source / name)
        else:
            (source / name).write_text("")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        packed = {name for name in wheel.namelist() if "hub_cards" in name}
        assert packed == {
            f"ctxmix_hf/hub_cards/{path.name}" for path in (ROOT / "hub_cards").glob("*.jinja")
        }
        wheel.extractall(tmp_path / "installed")
    script = (
        "from ctxmix_hf.hub import cards; print(len(cards.template('model_card.md.jinja')) > 100)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path / "installed",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize(
    "name",
    [
        "x\nlicense: mit\nextra: 1",
        "--- \n...\n---",
        "!!python/object/apply:os.system ['true']",
        "&a [*a]",
        "{{ 7 * 7 }}",
        "a: b: c # d",
        "\x07\u2028",
    ],
)
def test_hostile_values_stay_values_in_the_header(name: str, tmp_path: Path) -> None:
    """Whatever a model is called, the header says that and nothing else, and the template runs none of it."""
    filled(tmp_path / "m")
    store = MapStore.open(tmp_path / "m", model=model(), tokenizer=tokenizer())
    plain = header(store.render_card("me/maps", license="mit"))
    text = store.render_card("me/maps", license=name)
    about = dict(DatasetCard(text, ignore_metadata_errors=False).data.to_dict())
    assert set(about) == set(plain) and about["license"] == name
    made = manifest()
    called = replace(made, origin={**made.origin, "model_id": name})
    pointer = {
        **called.origin,
        "base_model": name,
        "revision": "0" * 40,
        "model_class": "BertModel",
    }
    for kind, card in (
        (DatasetCard, cards.dataset_card(called, "me/maps", 3, {}, [], license="mit")),
        (ModelCard, cards.model_card(pointer, "me/model", [], license="mit")),
        (SpaceCard, cards.space_card(title=name, license="mit")),
    ):
        about = dict(kind(card, ignore_metadata_errors=False).data.to_dict())
        assert about["license"] == "mit" and "extra" not in about
        assert name in (
            about.get("pretty_name", ""),
            about.get("base_model"),
            about.get("title"),
        ) or (about["pretty_name"].endswith(name))
