"""Whatever a user holds goes in: texts, what a tokenizer or processor returns, tensors, images,
sound; or one sentence says why not.
"""

from __future__ import annotations

import json
import wave
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import ctxmix_hf as cm
from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.calling import read_batch
from ctxmix_hf.errors import (
    CtxmixError,
    InputError,
    InputTypeError,
    OptionError,
    UnsupportedMethodError,
    UnsupportedModelError,
)
from ctxmix_hf.methods import METHODS, About, LayerMethod
from ctxmix_hf.precompute.plan import longest_of
from ctxmix_hf.records import LayerRecord
from ctxmix_hf.text.inputs import longest_input, position_limit
from tests import small, zoo

TEXT = "The keys to the cabinet are bleaching."
VIT = {**small.BERT, "image_size": 16, "patch_size": 4}
WAVE = {
    **small.BERT,
    "conv_dim": (16, 16),
    "conv_kernel": (5, 3),
    "conv_stride": (4, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}
T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
MARIAN = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "decoder_start_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(scope="module")
def bert():
    tokenizer = small.wordpiece()
    return cm.instrument(small.build("BertModel", tokenizer, **small.BERT), tokenizer)


@pytest.fixture(scope="module")
def vision(tmp_path_factory) -> str:
    """A folder with a ViT and its image processor."""
    folder = Path(
        small.saved(tmp_path_factory.mktemp("vit"), small.build("ViTForImageClassification", **VIT))
    )
    about = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 16, "width": 16},
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "rescale_factor": 1 / 255,
        "resample": 2,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    return str(folder)


@pytest.fixture(scope="module")
def speech(tmp_path_factory) -> str:
    """A folder with a wav2vec 2.0 and its feature extractor."""
    extractor = transformers.Wav2Vec2FeatureExtractor(
        feature_size=1, sampling_rate=16000, do_normalize=True
    )
    return small.saved(
        tmp_path_factory.mktemp("wave"), small.build("Wav2Vec2Model", **WAVE), extractor
    )


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("pictures") / "p.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 24, 3), dtype=np.uint8)).save(
        path
    )
    return str(path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("sounds") / "s.wav"
    samples = np.random.default_rng(0).integers(-9000, 9000, 400, dtype=np.int16)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(samples.tobytes())
    return str(path)


# ---- text
# ---------------------------------------------------------------------------------------------------------------
def test_what_a_tokenizer_returns_is_read_as_it_is(bert) -> None:
    """A dict was taken for a list of texts: its KEYS were explained."""
    tokenizer, wanted = small.wordpiece(), cm.explain(bert, TEXT, "alti")
    encoding = tokenizer(TEXT, return_tensors="pt")
    forms = {
        "BatchEncoding": encoding,
        "dict": dict(encoding),
        "lists": tokenizer(TEXT),
        "lists of lists": tokenizer([TEXT]),
        "arrays": tokenizer([TEXT], return_tensors="np"),
        "ids": encoding["input_ids"],
        "one row of ids": encoding["input_ids"][0],
        "numbers": encoding["input_ids"][0].tolist(),
        "with a None": {**encoding, "labels": None},
    }
    for name, form in forms.items():
        made = cm.explain(bert, form, "alti")
        assert torch.equal(made.layers, wanted.layers), name
        assert [w.lower() for w in made.words().tokens[0].shown()] == [
            w.lower() for w in wanted.words().tokens[0].shown()
        ], name
        assert torch.equal(cm.explain(bert, form, ["alti"])["alti"].input, wanted.input)


def test_a_padded_batch_in_every_form(bert) -> None:
    tokenizer, texts = small.wordpiece(), [TEXT, "the keys"]
    wanted = cm.explain(bert, texts, "alti")
    for form in (
        tokenizer(texts, padding=True, return_tensors="pt"),
        tokenizer(texts, padding=True),
    ):
        made = cm.explain(bert, form, "alti")
        assert torch.equal(made.mask, wanted.mask) and torch.allclose(
            made.layers, wanted.layers, atol=1e-6
        )
    with pytest.raises(InputError, match="padding=True"):
        cm.explain(bert, tokenizer(texts), "alti")
    cm.explain(bert, tokenizer(texts, padding=True), "alti")  # the advice


def test_attribute_and_verify_take_the_same_forms() -> None:
    tokenizer = small.wordpiece()
    model = cm.instrument(
        small.build("BertForSequenceClassification", tokenizer, **small.BERT), tokenizer
    )
    wanted = cm.attribute(model, TEXT, "grad_l2").scores
    for form in (
        tokenizer(TEXT, return_tensors="pt"),
        dict(tokenizer(TEXT)),
        tokenizer(TEXT, return_tensors="pt")["input_ids"],
    ):
        assert torch.equal(cm.attribute(model, form, "grad_l2").scores, wanted)
        assert cm.verify(model, form).exact


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        5,
        2.5,
        [],
        {},
        {"text": "a"},
        [None],
        ["a", 3],
        ("a", "b", "c"),
        b"bytes",
        object(),
        [["a", "b"]],
        torch.zeros(2, 3),
        torch.zeros(1, 2, 3).long(),
        ["", "a"],
        "  ",
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_text_is_refused_in_one_sentence(bert, wrong) -> None:
    with pytest.raises(CtxmixError) as caught:
        cm.explain(bert, wrong, "attention")
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def test_one_text_at_a_time_without_a_padding_token() -> None:
    tokenizer = small.llama(pad=False)
    model = cm.instrument(small.build("GPT2Model", tokenizer, **small.GPT2), tokenizer)
    with pytest.raises(InputError, match=r"tokenizer\.pad_token"):
        cm.explain(model, ["The keys", "The"], "attention")
    tokenizer.pad_token = tokenizer.eos_token  # the advice
    assert len(cm.explain(model, ["The keys", "The"], "attention")) == 2


# ---- options
# ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"max_memroy": "1GB"}, "Did you mean 'max_memory'"),
        ({"layer": 3}, r"m\.layer"),
        ({"distance": "euclidean"}, r"cm\.method"),
        ({"tokeniser": None}, "Did you mean 'tokenizer'"),
        ({"create_graph": True}, "no option"),
    ],
)
def test_unknown_options_are_not_swallowed(bert, option, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        cm.explain(bert, TEXT, "attention", **option)


def test_known_options_pass(bert) -> None:
    masked = cm.explain(
        bert, "the keys are old", "attention", attention_mask=torch.tensor([[1, 1, 1, 1, 0, 0]])
    )
    assert masked.mask.tolist() == [
        [True, True, True, True, False, False]
    ]  # the caller's own argument wins
    moved = cm.explain(
        bert, TEXT, "attention", position_ids=torch.arange(3, 14)[None], max_memory="100MB"
    )
    assert not torch.allclose(moved.layers, cm.explain(bert, TEXT, "attention").layers)


# ---- encoder-decoders
# --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("cls", "config"),
    [
        ("T5ForConditionalGeneration", T5),
        ("T5Model", T5),
        ("MarianMTModel", MARIAN),
        ("MarianModel", MARIAN),
        ("BartForConditionalGeneration", MARIAN),
        ("BartForSequenceClassification", {**MARIAN, "num_labels": 2}),
        ("T5ForSequenceClassification", {**T5, "num_labels": 2, "eos_token_id": 2}),
    ],
)
def test_encoder_decoders_are_explained_and_say_which_part(
    cls: str, config: dict, tmp_path: Path
) -> None:
    tokenizer = small.llama()
    model = cm.instrument(small.build(cls, tokenizer, **config), tokenizer)
    text = "The keys are bleaching</s>"
    made = cm.explain(model, text, "alti")
    encoder = model.base_model.get_encoder()
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        states = encoder(ids, output_hidden_states=True).hidden_states
        record = model(**read_batch(model, text).tensors, output_decomposition=True).decomposition
    assert torch.allclose(record.hidden_states[1], states[1], atol=1e-6)
    assert (
        made.meta["part"] == "encoder"
        and "(encoder)" in str(made)
        and "(encoder)" in str(made.attribution())
    )
    assert made.attribution().meta["part"] == "encoder" and cm.verify(model, text).exact
    through = transformers.pipeline(
        "context-mixing", model=model, tokenizer=tokenizer, method="alti"
    )(text)
    assert torch.allclose(through.layers, made.layers, atol=1e-6)
    with cm.MapStore.create(
        tmp_path / "maps", model=model, tokenizer=tokenizer, methods=["alti"]
    ) as store:
        store.add(["a"], [text])
    assert torch.allclose(
        cm.MapStore.open(tmp_path / "maps")["a", "alti"].layers, made.layers, atol=1e-6
    )


def test_what_the_model_itself_misses_is_one_sentence() -> None:
    model, inputs = zoo.build("bert")
    cm.instrument(model)
    with pytest.raises(InputError, match="BertModel could not be called with pixel_values"):
        cm.explain(model, {"pixel_values": torch.zeros(1, 3)}, "attention")


@pytest.mark.parametrize("needs", ["attention", "block", "replay"])
@pytest.mark.parametrize("options", [{}, {"targets": [1]}, {"top_k": 2}], ids=["map", "row", "top"])
def test_what_a_method_finds_wrong_is_its_own_error(needs: Any, options: Any) -> None:
    """The model was called as it should be; a method raises, while it runs or afterwards."""

    @METHODS.register("raising")
    @dataclass(frozen=True)
    class Raising(LayerMethod):
        about = About("raises", "-", "-", "-", needs, "nothing", "everything")

        def layer_map(self, layer: LayerRecord, budget: Budget) -> torch.Tensor:
            raise ValueError("no such norm")

    try:
        model, inputs = zoo.build("bert")
        one = {name: tensor[:1] for name, tensor in inputs.items()}
        with pytest.raises(ValueError, match=r"^no such norm$") as raised:
            cm.explain(cm.instrument(model), one, "raising", **options)
        assert not isinstance(raised.value, CtxmixError)
    finally:
        METHODS.unregister("raising")


def test_a_feed_forward_in_chunks_is_named(tmp_path: Path) -> None:
    tokenizer = small.wordpiece()
    folder = small.saved(
        tmp_path / "c",
        small.build("BertModel", tokenizer, **small.BERT, chunk_size_feed_forward=1),
        tokenizer,
    )
    with pytest.raises(UnsupportedMethodError, match="chunk_size_feed_forward=0"):
        cm.explain(cm.AutoContextMixingModel.from_pretrained(folder), TEXT, "alti")
    cm.explain(
        cm.AutoContextMixingModel.from_pretrained(folder, chunk_size_feed_forward=0), TEXT, "alti"
    )  # the advice


def test_cross_attention_is_named() -> None:
    tokenizer = small.wordpiece()
    model = cm.instrument(
        small.build(
            "BertLMHeadModel", tokenizer, **small.BERT, is_decoder=True, add_cross_attention=True
        ),
        tokenizer,
    )
    inputs = tokenizer(TEXT, return_tensors="pt")
    with pytest.raises(UnsupportedModelError, match="cross-attention"):
        cm.explain(model, {**inputs, "encoder_hidden_states": torch.randn(1, 4, 32)}, "alti")
    cm.explain(model, inputs, "alti")


# ---- images and sound
# ------------------------------------------------------------------------------------------------------
def test_an_image_in_every_form(vision: str, picture: str) -> None:
    model = cm.AutoContextMixingModelForImageClassification.from_pretrained(vision)
    with Image.open(picture) as file:
        image = file.convert("RGB")
    made = cm.explain(model, image, "alti")
    assert (
        made.size == 17
        and made.attribution().target == "[CLS]"
        and made.plot_image(image) is not None
    )
    prepared = transformers.AutoImageProcessor.from_pretrained(vision)(
        images=image, return_tensors="pt"
    )
    forms = {
        "path": picture,
        "Path": Path(picture),
        "array": np.asarray(image),
        "processor": prepared,
        "dict": dict(prepared),
        "pixel values": prepared["pixel_values"],
        "one image's": prepared["pixel_values"][0],
    }
    for name, form in forms.items():
        assert torch.equal(cm.explain(model, form, "alti").layers, made.layers), name
    cm.explain(model, image.convert("L"), "alti")
    both = cm.explain(model, [image, picture], "alti")
    assert len(both) == 2 and torch.allclose(both.layers[1], made.layers[0], atol=1e-6)
    assert cm.attribute(model, image, "grad_l2").scores.shape == (1, 17)
    assert cm.attribute(model, image).meta["notes"]["baseline"] == "zero"
    for wrong in ("a text", 5, [], None, torch.zeros(3).long()):
        with pytest.raises(CtxmixError, match="image"):
            cm.explain(model, wrong, "alti")


def test_sound_in_every_form(speech: str, sound: str) -> None:
    model = cm.AutoContextMixingModel.from_pretrained(speech)
    with wave.open(sound) as file:
        samples = np.frombuffer(file.readframes(400), "<i2").astype(np.float32) / 2**15
    made = cm.explain(model, samples, "attention")
    assert made.attribution().target == "mean_pool"
    prepared = transformers.AutoFeatureExtractor.from_pretrained(speech)(
        samples, sampling_rate=16000, return_tensors="pt"
    )
    forms = {
        "path": sound,
        "tensor": torch.from_numpy(samples),
        "list": samples.tolist(),
        "processor": prepared,
        "dict": dict(prepared),
        "input values": prepared["input_values"],
        "datasets": {"array": samples, "sampling_rate": 16000},
    }
    for name, form in forms.items():
        assert torch.allclose(
            cm.explain(model, form, "attention").layers, made.layers, atol=1e-6
        ), name
    assert len(cm.explain(model, [samples, samples], "attention")) == 2
    for wrong, words in [
        ({"array": samples, "sampling_rate": 8000}, "resample"),
        ([samples, samples[:200]], "one at a time"),
        ("absent.wav", "WAV"),
        (b"x", "reads sound"),
        ([], "one at a time"),
    ]:
        with pytest.raises(CtxmixError, match=words):
            cm.explain(model, wrong, "attention")


def test_a_missing_processor_is_named(tmp_path: Path, picture: str) -> None:
    folder = small.saved(tmp_path / "v", small.build("ViTModel", **VIT))
    model = cm.AutoContextMixingModel.from_pretrained(folder)
    with pytest.raises(InputError, match="processor="):
        cm.explain(model, picture, "attention")
    processor = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
    assert cm.explain(model, picture, "attention", processor=processor).size == 17  # the advice


def test_an_image_for_a_text_model(bert, picture: str) -> None:
    with Image.open(picture) as image, pytest.raises(InputTypeError, match="reads text"):
        cm.explain(bert, image, "attention")


# ---- how much fits


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "modernbert", "t5"])
def test_one_limit_of_positions(family: str) -> None:
    """What every part of the library takes for the longest input is what the model itself can run."""
    model, _ = zoo.build(family)
    longest = longest_input(model)
    table = position_limit(model)
    if table is None:  # relative or rotary positions: the config's word, if it has one
        assert longest == getattr(model.config, "max_position_embeddings", None)
        return
    assert longest == table
    ids = torch.full((1, longest), 7)
    model(input_ids=ids, attention_mask=torch.ones_like(ids))
    more = torch.full((1, longest + 1), 7)
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        model(input_ids=more, attention_mask=torch.ones_like(more))
    limited = SimpleNamespace(model_max_length=longest - 3)
    unlimited = SimpleNamespace(model_max_length=int(1e30))
    assert longest_input(model, limited) == longest - 3
    assert longest_input(model, unlimited) == longest
    assert longest_of(model, unlimited, None) == longest and longest_of(model, limited, 5) == 5
