"""`similarity` explains the number the model's own users see: its pooling, its final norm; or it
refuses, or says what it assumed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.errors import InputError, OptionError, UnsupportedMethodError
from tests import small

A, B = "The keys to the cabinet are old.", "the bleaching keys"


def cosine(model, pool) -> float:
    tokenizer, sides = small.wordpiece(segments=hasattr(model.config, "type_vocab_size")), []
    for text in (A, B):
        with torch.no_grad():
            sides.append(
                pool(model.base_model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0])
            )
    return float(torch.nn.functional.cosine_similarity(*sides, dim=0))


POOLS = {
    "mean": lambda h: h.mean(0),
    "cls": lambda h: h[0],
    "last": lambda h: h[-1],
    "max": lambda h: h.amax(0),
}


def sentence_encoder(folder: Path, mode: dict, *more: str, **files: dict) -> Path:
    """A folder as sentence-transformers leaves it."""
    tokenizer = small.wordpiece()
    small.saved(folder, small.build("BertModel", tokenizer, **small.BERT), tokenizer)
    kinds = ["Transformer", "Pooling", *more]
    modules = [
        {"idx": i, "type": f"sentence_transformers.models.{k}", "path": f"{i}_{k}" if i else ""}
        for i, k in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, **mode})
    )
    for name, body in files.items():
        (folder / f"{name}.json").write_text(json.dumps(body))
    return folder


@pytest.mark.parametrize(
    ("mode", "pooling"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
    ids=str,
)
def test_the_models_own_pooling(tmp_path: Path, mode: dict, pooling: str) -> None:
    model = cm.AutoContextMixingModel.from_pretrained(sentence_encoder(tmp_path, mode, "Normalize"))
    found = cm.similarity(model, A, B)
    assert found.cosine == pytest.approx(cosine(model, POOLS[pooling]), abs=1e-6)
    assert (found.pooling, found.assumed) == (
        pooling,
        False,
    ) and f"({pooling} pooling)" in found.a.target
    for side, bias in zip((found.a, found.b), found.meta["biases"], strict=True):
        assert float(side.scores.sum()) + bias == pytest.approx(found.cosine, abs=1e-5)
    shares = cm.similarity(model, A, B, "alti")  # by a map whose rows sum to 1
    assert shares.cosine == pytest.approx(found.cosine, abs=1e-6) and shares.pooling == pooling
    for side in (shares.a, shares.b):
        assert float(side.scores.sum()) == pytest.approx(found.cosine, abs=1e-5)


@pytest.mark.parametrize("pooling", list(POOLS))
def test_pooling_by_hand(pooling: str) -> None:
    tokenizer = small.wordpiece()
    model = cm.instrument(small.build("BertModel", tokenizer, **small.BERT), tokenizer)
    found = cm.similarity(model, A, B, pooling=pooling)
    assert (
        found.cosine == pytest.approx(cosine(model, POOLS[pooling]), abs=1e-6) and not found.assumed
    )
    assert float(found.a.scores.sum()) == pytest.approx(found.cosine, abs=1e-5)
    with pytest.raises(OptionError, match="'mean', 'cls'"):
        cm.similarity(model, A, B, pooling="meen")


def test_a_plain_encoder_says_what_was_assumed() -> None:
    tokenizer = small.wordpiece()
    model = cm.instrument(small.build("BertModel", tokenizer, **small.BERT), tokenizer)
    found = cm.similarity(model, A, B)
    assert (
        found.assumed
        and found.pooling == "mean"
        and "mean pooling, assumed" in found.a.target
        and "assumed" in str(found)
    )


def test_a_class_token_that_is_not_there_is_not_pooled() -> None:
    tokenizer = small.llama()
    model = cm.instrument(small.build("GPT2Model", tokenizer, **small.GPT2), tokenizer)
    with pytest.raises(InputError, match="no class token"):
        cm.similarity(model, "The keys", "The old", pooling="cls")
    assert cm.similarity(model, "The keys", "The old", pooling="last").pooling == "last"


@pytest.mark.parametrize(
    ("more", "files", "words"),
    [
        (("Dense",), {}, "Dense"),
        (
            (),
            {
                "config_sentence_transformers": {
                    "prompts": {"query": "query: "},
                    "default_prompt_name": "query",
                }
            },
            "query: ",
        ),
    ],
)
def test_what_else_the_vector_goes_through_is_refused(
    tmp_path: Path, more, files, words: str
) -> None:
    model = cm.AutoContextMixingModel.from_pretrained(
        sentence_encoder(tmp_path, {"pooling_mode_cls_token": True}, *more, **files)
    )
    with pytest.raises(UnsupportedMethodError, match=words):
        cm.similarity(model, A, B)
    assert cm.similarity(model, A, B, pooling="cls").pooling == "cls"  # the advice


def test_unknown_and_joined_poolings_are_refused(tmp_path: Path) -> None:
    joined = {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}
    for i, mode in enumerate([{"pooling_mode_weightedmean_tokens": True}, joined]):
        model = cm.AutoContextMixingModel.from_pretrained(sentence_encoder(tmp_path / str(i), mode))
        with pytest.raises(UnsupportedMethodError, match="pooling"):
            cm.similarity(model, A, B)


def test_a_text_that_would_be_cut_is_refused(tmp_path: Path) -> None:
    files = {"sentence_bert_config": {"max_seq_length": 6, "do_lower_case": False}}
    model = cm.AutoContextMixingModel.from_pretrained(
        sentence_encoder(tmp_path, {"pooling_mode_mean_tokens": True}, **files)
    )
    with pytest.raises(InputError, match="first 6"):
        cm.similarity(model, A, B)


@pytest.mark.parametrize("cls", ["ModernBertForMaskedLM", "ModernBertModel"])
def test_the_final_norm_is_part_of_the_vector(cls: str) -> None:
    """Under a masked-LM head the state before the last norm was pooled."""
    tokenizer = small.wordpiece(segments=False)
    config = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "global_attn_every_n_layers": 1,
        "cls_token_id": 2,
        "sep_token_id": 3,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    model = small.build(cls, tokenizer, **config)
    with torch.no_grad():
        model.base_model.final_norm.weight.copy_(torch.linspace(0.1, 3, 32))
    cm.instrument(model, tokenizer)
    assert cm.similarity(model, A, B, "attention", pooling="mean").cosine == pytest.approx(
        cosine(model, POOLS["mean"]), abs=1e-6
    )


def test_a_file_whose_sides_differ_in_precision_is_refused(box) -> None:
    """Found by the fuzzer: it was read, and printing it failed."""
    model, _ = box
    held = json.loads(
        cm.similarity(model, "The cats sleep.", "The dogs run.", pooling="mean").to_json()
    )
    cm.Similarity.from_json(json.dumps(held))
    held["side_b"]["dtype"] = "float64"
    with pytest.raises(InputError, match="sides are in float32 and float64"):
        cm.Similarity.from_json(json.dumps(held))


@pytest.mark.parametrize("name", ["bias column", "bias row"])
def test_a_file_whose_lines_do_not_fit_its_pairs_is_refused(box, name: str) -> None:
    """Found by the fuzzer: a file without its bias column was read, and its words were a KeyError."""
    model, _ = box
    made = cm.similarity(model, "The keys are old.", "The dogs run.", pooling="mean")
    held = json.loads(made.to_json())
    shapes = held["line_shapes"]
    shapes["another line"] = shapes.pop(name)
    with pytest.raises(InputError, match="do not fit"):
        cm.Similarity.from_json(json.dumps(held))
