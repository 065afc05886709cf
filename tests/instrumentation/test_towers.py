"""Models with several towers: each is a record and a map of its own, or the refusal names them."""

from __future__ import annotations

import pytest
import torch
import transformers

import ctxmix_hf as cm
from ctxmix_hf.errors import UnsupportedModelError

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
VISION = SMALL | {"image_size": 16, "patch_size": 4}  # 16 patches and a class token


def two_towers(kind: str):
    """Texts of 17 tokens and images of 16 + 1 patches (16 in Siglip): lengths tell the towers apart in none of them."""
    torch.manual_seed(0)
    if kind == "clip":
        config = transformers.CLIPConfig(
            text_config=SMALL
            | {"vocab_size": 60, "max_position_embeddings": 20, "eos_token_id": 59},
            vision_config=VISION,
            projection_dim=16,
        )
        return transformers.CLIPModel(config).double().eval(), 17
    config = transformers.SiglipConfig(
        text_config=SMALL | {"vocab_size": 60, "max_position_embeddings": 20}, vision_config=VISION
    )
    return transformers.SiglipModel(config).double().eval(), 16


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("images", [2, 3])
def test_each_tower_is_its_own_record(kind: str, images: int) -> None:
    model, tokens = two_towers(kind)
    ids = torch.randint(5, 50, (2, tokens))
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(images, 3, 16, 16).double(),
    }
    if kind == "clip":  # padding belongs to the text only
        inputs["attention_mask"][1, -3:] = 0
    cm.instrument(model)
    with torch.no_grad():
        out = model(
            **inputs, output_decomposition=True, output_context_mixing=["alti", "value_zeroing"]
        )
        streamed = model(**inputs, output_context_mixing=["alti"])
    assert (
        set(out.decomposition) == {"text_model", "vision_model"} == set(out.context_mixing["alti"])
    )
    alone = {
        "text_model": (
            model.text_model,
            {key: inputs[key] for key in ("input_ids", "attention_mask")},
        ),
        "vision_model": (model.vision_model, {"pixel_values": inputs["pixel_values"]}),
    }
    towers = {}
    cm.uninstrument(model)
    for name, (tower, given) in alone.items():
        cm.instrument(tower)
        with torch.no_grad():
            towers[name] = tower(
                **given, output_context_mixing=["alti", "value_zeroing"]
            ).context_mixing
        cm.uninstrument(tower)
    for method in ("alti", "value_zeroing"):
        for name in alone:
            assert torch.allclose(
                out.context_mixing[method][name].layers, towers[name][method].layers, atol=1e-12
            ), (method, name)
    for name in alone:
        assert torch.equal(
            streamed.context_mixing["alti"][name].layers, out.context_mixing["alti"][name].layers
        )
    assert out.decomposition["text_model"].input_ids is not None
    assert out.decomposition["vision_model"].input_ids is None
    assert bool(out.decomposition["vision_model"].mask.all())
    assert out.context_mixing["alti"]["text_model"].meta["origin"]["tower"] == "text_model"


def test_masked_autoencoder_has_two_towers() -> None:
    torch.manual_seed(0)
    config = transformers.ViTMAEConfig(
        **VISION,
        mask_ratio=0.0,
        decoder_hidden_size=32,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=48,
    )
    model = cm.instrument(transformers.ViTMAEForPreTraining(config).double().eval())
    with torch.no_grad():
        out = model(pixel_values=torch.randn(2, 3, 16, 16).double(), output_context_mixing=["alti"])
    assert set(out.context_mixing["alti"]) == {"vit", "decoder"}


def test_vision_and_language_are_not_one_stack() -> None:
    torch.manual_seed(0)
    text = transformers.LlamaConfig(**SMALL, vocab_size=60, num_key_value_heads=2)
    vision = transformers.CLIPVisionConfig(**VISION)
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=59,
        image_seq_length=16,
        vision_feature_layer=-1,
    )
    model = cm.instrument(transformers.LlavaForConditionalGeneration(config).eval())
    ids = torch.cat(
        [torch.full((1, 16), 59), torch.randint(5, 50, (1, 1))], dim=1
    )  # 17 tokens, as many as the tower has
    with torch.no_grad():
        out = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=torch.randn(1, 3, 16, 16),
            output_context_mixing=["alti"],
        )
    assert set(out.context_mixing["alti"]) == {"vision_tower", "language_model"}
    assert out.context_mixing["alti"]["language_model"].meta["causal"]


def test_a_tower_that_cannot_be_read_is_named() -> None:
    torch.manual_seed(0)
    text = SMALL | {
        "vocab_size": 60,
        "encoder_hidden_size": 32,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "sep_token_id": 2,
        "pad_token_id": 0,
    }
    config = transformers.BlipConfig(
        text_config=text, vision_config=VISION, projection_dim=16, image_text_hidden_size=16
    )
    model = transformers.BlipForConditionalGeneration(config).eval()
    inputs = {"input_ids": torch.randint(5, 50, (1, 7)), "pixel_values": torch.randn(1, 3, 16, 16)}
    cm.instrument(model)
    with pytest.raises(UnsupportedModelError, match="several towers") as caught, torch.no_grad():
        model(**inputs, output_context_mixing=["attention"])
    advice = str(caught.value).rpartition("cm.instrument(model.")[2].partition(")")[0]
    cm.uninstrument(model)
    tower = cm.instrument(model.get_submodule(advice))  # the advice
    with torch.no_grad():
        made = tower(
            pixel_values=inputs["pixel_values"], output_context_mixing=["attention"]
        ).context_mixing["attention"]
    assert made.layers.shape == (1, 2, 17, 17)


def test_cross_attention_says_what_it_is() -> None:
    config = transformers.BertConfig(
        **SMALL, vocab_size=60, is_decoder=True, add_cross_attention=True
    )
    model = cm.instrument(transformers.BertModel(config).eval())
    inputs = {
        "input_ids": torch.randint(5, 50, (1, 7)),
        "encoder_hidden_states": torch.randn(1, 5, 32),
    }
    with (
        pytest.raises(UnsupportedModelError, match="more than one attention product"),
        torch.no_grad(),
    ):
        model(**inputs, output_context_mixing=["attention"])
