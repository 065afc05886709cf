"""The command line reads what the model reads: text through every kind of model, images and sound from their files."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable

import numpy as np
import pytest
import transformers
from PIL import Image

import ctxmix_hf as cm
from ctxmix_hf.errors import InputError
from ctxmix_hf.loading import load
from ctxmix_hf.verification import noise_for
from tests import small
from tests.cli.conftest import Result
from tests.text.test_batch import MARIAN, T5, VIT, WAVE

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Models as they are saved, each with what reads its input, and something to read."""
    root, tokenizer = tmp_path_factory.mktemp("readers"), small.llama(start=False)
    made = {
        "t5": small.saved(
            root / "t5", small.build("T5ForConditionalGeneration", tokenizer, **T5), tokenizer
        ),
        "marian": small.saved(
            root / "marian", small.build("MarianMTModel", tokenizer, **MARIAN), tokenizer
        ),
        "gpt2": small.saved(
            root / "gpt2", small.build("GPT2LMHeadModel", tokenizer, **small.GPT2), tokenizer
        ),
        "bert": small.saved(
            root / "bert",
            small.build("BertForMaskedLM", small.wordpiece(), **small.BERT),
            small.wordpiece(),
        ),
        "vit": small.saved(root / "vit", small.build("ViTForImageClassification", **VIT)),
        "wave": small.saved(
            root / "wave",
            small.build("Wav2Vec2Model", **WAVE),
            transformers.Wav2Vec2FeatureExtractor(),
        ),
    }
    about = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
    (root / "vit" / "preprocessor_config.json").write_text(json.dumps(about))
    for name in (
        "t5",
        "marian",
        "gpt2",
        "bert",
    ):  # what AutoTokenizer takes where the family's own needs other files
        path = root / name / "tokenizer_config.json"
        path.write_text(
            json.dumps(
                {**json.loads(path.read_text()), "tokenizer_class": "PreTrainedTokenizerFast"}
            )
        )
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 24, 3), dtype=np.uint8)).save(
        root / "p.png"
    )
    with wave.open(str(root / "s.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 400, "NONE", ""))
        file.writeframes(
            np.random.default_rng(0).integers(-9000, 9000, 400, dtype=np.int16).tobytes()
        )
    return {**made, "picture": str(root / "p.png"), "sound": str(root / "s.wav"), "root": str(root)}


@pytest.mark.parametrize(
    ("name", "given", "target"),
    [
        ("t5", "The keys are old", "mean_pool"),
        ("marian", "The keys are old", "mean_pool"),
        ("gpt2", "The keys are old", "old (last token)"),
        ("vit", "picture", "[CLS]"),
        ("wave", "sound", "mean_pool"),
    ],
)
def test_explain_of_every_kind(
    run: Run, folders: dict[str, str], name: str, given: str, target: str
) -> None:
    text = folders.get(given, given)
    done = run("explain", text, "--model", folders[name], "--method", "attention", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["attribution"]["target"] == target
    shown = run("explain", text, "--model", folders[name], "--method", "attention").out
    assert ("(encoder)" in shown) == (name in ("t5", "marian"))
    assert (
        run(
            "explain",
            text,
            "--model",
            folders[name],
            "--method",
            "attention",
            "--out",
            f"{folders['root']}/{name}.png",
        ).code
        == 0
    )


@pytest.mark.parametrize(
    ("name", "method"), [("t5", "blank_out"), ("gpt2", "integrated_gradients"), ("vit", "grad_l2")]
)
def test_scores_of_every_kind(run: Run, folders: dict[str, str], name: str, method: str) -> None:
    text = folders["picture"] if name == "vit" else "The keys are old"
    done = run("explain", text, "--model", folders[name], "--method", method)
    assert done.code == 0 and method in done.out, done.err


def test_what_a_model_does_not_read(run: Run, folders: dict[str, str]) -> None:
    for args, words in [
        ((), "give the path of a file"),
        (("a text",), "cannot be opened as an image"),
        ((folders["sound"],), "cannot be opened as an image"),
    ]:
        done = run("explain", *args, "--model", folders["vit"])
        assert done.code == 2 and words in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize("name", ["t5", "marian", "gpt2", "bert", "vit", "wave"])
def test_doctor_of_every_kind(run: Run, folders: dict[str, str], name: str) -> None:
    done = run("doctor", folders[name])
    assert done.code == 0 and "every layer is exact" in done.out, done.err
    if name == "vit":
        assert run("doctor", folders[name], "--text", "a").code == 2
    if name == "bert":
        assert run("doctor", folders[name], "--text", "the keys").code == 0  # the advice


def test_doctor_points_to_verify(folders: dict[str, str]) -> None:
    model, _ = load(folders["vit"])
    model.main_input_name = "videos"
    with pytest.raises(InputError, match=r"ctxmix_hf\.verify\(model, batch\)"):
        noise_for(model, "v")
    model.main_input_name = "pixel_values"
    assert cm.verify(model, noise_for(model, "v")).exact  # the advice


def test_warnings_of_ours_reach_the_terminal(run: Run, folders: dict[str, str]) -> None:
    done = run(
        "explain", "zebras graze quietly", "--model", folders["bert"], "--method", "attention"
    )
    assert (
        done.code == 0
        and done.err.startswith("ctxmix: 3 of 3 tokens are unknown")
        and done.err.count("\n") == 1
    )
    assert "[UNK]" in done.out
