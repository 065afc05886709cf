"""Words and targets: real words from every tokenizer, one meaning for each name, and never a row nobody asked for."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ctxmix_hf as cm
from ctxmix_hf.errors import InputError, UnknownTokensWarning
from ctxmix_hf.text.tokens import Tokens, read_encoding, read_tokens
from tests import small, zoo

TEXT = "The keys are bleaching and old."


@pytest.fixture(scope="module")
def bert():
    tokenizer = small.wordpiece()
    return cm.instrument(small.build("BertModel", tokenizer, **small.BERT), tokenizer)


@pytest.fixture(scope="module")
def decoder():
    tokenizer = small.llama()
    return cm.instrument(small.build("GPT2LMHeadModel", tokenizer, **small.GPT2), tokenizer)


# ---- words
# ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TEXT, ["<s>", "The", "keys", "are", "bleaching", "and", "old."]),
        ("你好世界", ["<s>", "你", "好", "世", "界"]),
        (("The keys", "are old."), ["<s>", "The", "keys", "are", "old."]),
    ],
    ids=["a sentence", "a script without spaces", "a pair"],
)
def test_a_tokenizer_without_pre_tokenizer_gives_words(decoder, text, words) -> None:
    """Llama and Gemma number every piece 0: the sentence was one word."""
    made = cm.explain(decoder, text, "attention")
    assert made.words().tokens[0].shown() == words
    ids_alone = read_tokens([made.tokens[0].ids], small.llama())[0]
    assert [
        piece for piece in ids_alone.merged().shown() if piece != "▁"
    ] == words  # also where only the ids are known


def test_words_of_an_encoding_without_its_text() -> None:
    tokenizer = small.llama()
    tokens = read_encoding(tokenizer([TEXT]), tokenizer, [None])[0]
    assert tokens.merged().shown() == ["<s>", "The", "keys", "are", "bleaching", "and", "old."]


@pytest.mark.parametrize(
    "target",
    ["mean_pool", "bleaching", ["keys", "bleaching"], ["bleaching", "bleaching", "old"], "[CLS]"],
    ids=str,
)
@pytest.mark.parametrize("method", ["attention", "alti"])
def test_the_order_of_words_and_attribution_does_not_matter(bert, target, method) -> None:
    """The mean of all pieces is not the mean of all words: a word counts as often as it has pieces."""
    made = cm.explain(bert, ["The keys are bleaching.", "the old keys"], method)
    if target not in ("mean_pool", "[CLS]"):
        made = (
            made[0] if "old" not in target else cm.explain(bert, "the bleaching old keys", method)
        )
    one, other = made.words().attribution(target), made.attribution(target).words()
    assert torch.allclose(one.scores, other.scores, atol=1e-7) and one.target == other.target
    by_hand = made.input[0, -1][made.position(target)].mean(dim=0)
    assert torch.allclose(made.attribution(target).scores[0], by_hand, atol=1e-7)


def test_the_weights_of_words_survive_a_file(bert, tmp_path: Path) -> None:
    words = cm.explain(bert, "The keys are bleaching.", "attention").words()
    for name in ("w.json", "w.npz", "w.safetensors"):
        back = cm.ContextMixingMap.load(words.save(tmp_path / name))
        assert torch.equal(
            back.attribution("mean_pool").scores, words.attribution("mean_pool").scores
        )


def test_layers_of_a_picture_are_weighted_too(bert) -> None:
    made = cm.explain(bert, "The keys are bleaching.", "attention")
    drawn = (
        made.plot_layers("mean_pool").axes[0].images[0].get_array()[0]
    )  # the last layer is on top
    assert list(drawn) == pytest.approx(
        made.attribution("mean_pool").words().scores[0].tolist(), abs=1e-6
    )


# ---- names
# ------------------------------------------------------------------------------------------------------------
def test_a_word_in_pieces_is_a_target(bert) -> None:
    made = cm.explain(bert, "The Bleaching keys", "attention")
    assert made.position("Bleaching") == made.position("bleaching") == [2, 3] and made.position(
        "##aching"
    ) == [3]
    assert made.words().position("bleaching") == [2]
    with pytest.raises(InputError, match="Did you mean 'Bleaching'"):
        made.attribution("Bleeching")


def test_reserved_names_win_over_words(bert) -> None:
    made = cm.explain(bert, "The embedding and embedding", "attention")
    whole = made.attribution("mean_pool").scores
    assert torch.allclose(whole[0], made.input[0, -1].mean(dim=0), atol=1e-7)
    with pytest.raises(InputError, match="pools its tokens"):
        made.attribution("embedding")  # the model's own pooling, which no file names here
    assert made.position("embedding#1") != made.position("embedding#2")
    named = replace(
        made, tokens=[Tokens(("[CLS]", "the", "mean_pool", "and", "mean_pool", "[SEP]"))]
    )
    assert named.position("mean_pool") == list(range(6)) and named.position("mean_pool#2") == [4]
    with pytest.raises(InputError, match="no occurrence 3"):
        made.attribution("embedding#3")


def test_the_mask_has_one_name() -> None:
    tokens = Tokens(("<s>", "▁the", "<mask>", "▁is", "<mask>", "</s>"))
    assert tokens.find("[MASK]#2") == [4] and tokens.find("<mask>#1") == [2]
    with pytest.raises(InputError, match="occurs 2 times"):
        tokens.find("[MASK]")


@pytest.mark.parametrize(
    "wrong", [2.5, object(), [], [1, None]], ids=lambda value: type(value).__name__
)
def test_what_is_no_target(bert, wrong) -> None:
    with pytest.raises(cm.CtxmixError):
        cm.explain(bert, "the keys", "attention").attribution(
            wrong if wrong != [1, None] else [1, 99]
        )


# ---- which row where nothing is asked for
# ---------------------------------------------------------------------------------
def test_the_default_target_of_an_encoder_is_its_class_token(bert) -> None:
    row = cm.explain(bert, "the keys", "attention").attribution()
    assert row.target == "[CLS]" and torch.equal(
        row.scores, cm.explain(bert, "the keys", "attention").attribution(0).scores
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_default_target_of_a_causal_model_is_its_last_token(side: str) -> None:
    """Token 0 of a decoder has read nothing: its row is [1, 0, 0, ...]."""
    tokenizer = small.llama()
    tokenizer.padding_side = side
    model = cm.instrument(small.build("GPT2LMHeadModel", tokenizer, **small.GPT2), tokenizer)
    made = cm.explain(model, [TEXT, "The keys"], "attention")
    assert (
        made.attribution().target == "last token"
        and made[1].attribution().target == "keys (last token)"
    )
    for b in (0, 1):
        assert made.position(None, b) == [made.mask[b].nonzero().max()]
        assert torch.equal(
            made.attribution().scores[b], made.input[b, -1, made.position(None, b)[0]]
        )
    with pytest.raises(InputError, match="no class token"):
        made.attribution("[CLS]")  # "<s>" is only where a decoder starts
    assert made.to_view()["pin"] == str(int(made.mask[0].sum()) - 1)


@pytest.mark.parametrize("family", ["t5", "wav2vec2", "siglip_vision_model"])
def test_without_a_class_token_all_tokens_are_the_target(family: str) -> None:
    model, inputs = zoo.build(family)
    with torch.no_grad():
        made = cm.instrument(model)(**inputs, output_context_mixing=["attention"]).context_mixing[
            "attention"
        ]
    assert made.attribution().target == "mean_pool" and torch.equal(
        made.attribution().scores, made.attribution("mean_pool").scores
    )
    with pytest.raises(InputError, match="no class token"):
        made.attribution("[CLS]")


@pytest.mark.parametrize(
    "family", ["vit", "clip_vision_model", "dinov2", "beit", "audio-spectrogram-transformer"]
)
def test_images_have_a_class_token_where_the_model_learned_one(family: str) -> None:
    model, inputs = zoo.build(family)
    with torch.no_grad():
        made = cm.instrument(model)(**inputs, output_context_mixing=["attention"]).context_mixing[
            "attention"
        ]
    row = made.attribution()
    assert (
        row.target == "[CLS]"
        and torch.equal(row.scores, made.attribution(0).scores)
        and made.tokens[0][1] == "1"
    )


def test_the_own_pooling_is_a_target(tmp_path: Path) -> None:
    tokenizer = small.wordpiece()
    folder = Path(
        small.saved(tmp_path / "m", small.build("BertModel", tokenizer, **small.BERT), tokenizer)
    )
    (folder / "modules.json").write_text(
        json.dumps(
            [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
        )
    )
    (folder / "1_Pooling").mkdir()
    model = cm.AutoContextMixingModel.from_pretrained(folder)
    for mode, same in [
        ("pooling_mode_mean_tokens", "mean_pool"),
        ("pooling_mode_cls_token", 0),
        ("pooling_mode_lasttoken", -1),
    ]:
        (folder / "1_Pooling" / "config.json").write_text(
            json.dumps({mode: True, "pooling_mode_max_tokens": False})
        )
        made = cm.explain(model, "the keys are old", "attention")
        assert torch.equal(made.attribution("embedding").scores, made.attribution(same).scores)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    made = cm.explain(
        model, "the keys are old", "attention"
    )  # rows by the number of coordinates each token wins
    with torch.no_grad():
        hidden = model(**tokenizer("the keys are old", return_tensors="pt")).last_hidden_state[0]
    won = torch.bincount(hidden.argmax(0), minlength=len(hidden)) / hidden.shape[1]
    assert torch.allclose(
        made.attribution("embedding").scores[0], won @ made.input[0, -1], atol=1e-6
    )
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True})
    )
    with pytest.raises(InputError, match="pooling"):
        cm.explain(model, "the keys are old", "attention").attribution("embedding")


# ---- words the model cannot read
# ------------------------------------------------------------------------------------------
def test_unknown_words_are_said_and_marked(bert, tmp_path: Path) -> None:
    with pytest.warns(UnknownTokensWarning, match="3 of 5 tokens"):
        made = cm.explain(bert, "Zebras graze the keys quietly", "attention")
    words = made.words()
    assert words.tokens[0].shown() == [
        "[CLS]",
        "[UNK] Zebras",
        "[UNK] graze",
        "the",
        "keys",
        "[UNK] quietly",
        "[SEP]",
    ]
    assert (
        "[UNK] qu" in str(made)
        and "[UNK] Zebras" in str(words.attribution("Zebras"))
        and "[UNK] graze" in made.to_html()
    )
    assert (
        "[UNK] graze" in words.to_csv()
        and "[UNK] graze" in made.to_view()["words"]
        and "[UNK]" in made.to_latex()
    )
    assert words.attribution().top(7)[0][0] in words.tokens[0].shown()
    back = cm.ContextMixingMap.load(words.save(tmp_path / "u.json"))
    assert back.tokens[0].shown() == words.tokens[0].shown()
    assert made.position("graze") == [2] and words.position("graze") == [2]


def test_few_unknown_words_are_marked_without_a_warning(bert) -> None:
    made = cm.explain(bert, "the keys to the cabinet are quaint and old .", "attention")
    assert "[UNK] quaint" in made.words().tokens[0].shown()


def test_the_end_of_text_is_no_unknown_word() -> None:
    """GPT-2 has one token for both."""
    tokenizer = small.llama()
    tokenizer.unk_token = "</s>"
    assert not any(read_tokens([tokenizer("The keys</s>")["input_ids"]], tokenizer)[0].unknown)


def test_a_folder_without_a_tokenizer_is_noticed(tmp_path: Path) -> None:
    folder = small.saved(
        tmp_path / "bare", small.build("BertModel", small.wordpiece(), **small.BERT)
    )
    model = cm.AutoContextMixingModel.from_pretrained(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            cm.explain(model, "the keys are old", "attention")
        except (
            InputError
        ) as error:  # where transformers itself does not make a tokenizer out of nothing
            assert "No tokenizer is known" in str(error)
        else:
            assert any(issubclass(item.category, UnknownTokensWarning) for item in caught)
