"""What a prediction is: every kind of head is explained in the number it really gives, and the
result says which number that was.
"""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path

import pytest
import torch
import transformers

import ctxmix_hf as cm
from ctxmix_hf import auto
from ctxmix_hf.attribution import ATTRIBUTIONS
from ctxmix_hf.errors import (
    InputError,
    OptionError,
    RandomWeightsWarning,
    UnknownNameError,
    UnsupportedMethodError,
)
from ctxmix_hf.heads import HEADS, auto_class, head_of
from ctxmix_hf.hub import cards
from tests import small

TEXT, SHORT = "The keys to the cabinet are old.", "the keys are"
LLAMA = {**small.BERT, "num_key_value_heads": 2}
LABELS = {"num_labels": 3, "id2label": {0: "toxic", 1: "insult", 2: "threat"}}


def classifier(**config):
    tokenizer = small.wordpiece()
    return cm.instrument(
        small.build("BertForSequenceClassification", tokenizer, **small.BERT, **config), tokenizer
    )


@pytest.fixture(scope="module")
def masked():
    tokenizer = small.wordpiece()
    return cm.instrument(small.build("BertForMaskedLM", tokenizer, **small.BERT), tokenizer)


@pytest.fixture(scope="module")
def decoder():
    tokenizer = small.llama()
    return cm.instrument(small.build("GPT2LMHeadModel", tokenizer, **small.GPT2), tokenizer)


def logits(model, text, tokenizer) -> torch.Tensor:
    with torch.no_grad():
        return model(**tokenizer(text, return_tensors="pt")).logits


def drops(model, text: str, score) -> list[float]:
    """Blank-out by hand: each token replaced by the unknown one, one plain forward pass each."""
    tokenizer = small.wordpiece()
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        whole, found = score(model(**inputs).logits[0]), []
        for place in range(inputs["input_ids"].shape[1]):
            ids = inputs["input_ids"].clone()
            ids[0, place] = tokenizer.unk_token_id
            found.append(float(whole - score(model(**{**inputs, "input_ids": ids}).logits[0])))
    return found


# ---- heads without softmax
# ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "config",
    [{"num_labels": 1}, {"num_labels": 1, "problem_type": "regression"}],
    ids=["reranker", "regression"],
)
@pytest.mark.parametrize("method", [name for name in ATTRIBUTIONS if name != "random"])
def test_one_output_is_explained_itself(config, method: str) -> None:
    """A softmax over one logit is always 1: all scores were 0."""
    model = classifier(**config)
    row = cm.attribute(model, TEXT, method)
    assert (
        row.scores.abs().max() > 1e-4
        and "logit" in row.target
        and row.meta["of"] == "logit"
        and row.meta["link"] == "identity"
    )
    if method == "blank_out":
        assert row.scores[0].tolist() == pytest.approx(drops(model, TEXT, lambda z: z[0]), abs=1e-5)
    with pytest.raises(OptionError, match="of='logit'"):
        cm.attribute(model, TEXT, method, of="prob")
    assert torch.equal(
        cm.attribute(model, TEXT, method, of="logit").scores, row.scores
    )  # the advice


@pytest.mark.parametrize(
    "method",
    [name for name in ATTRIBUTIONS if name != "random" and not ATTRIBUTIONS.get(name).only_logit],
)
def test_labels_of_their_own_are_sigmoids(method: str) -> None:
    model = classifier(problem_type="multi_label_classification", **LABELS)
    row = cm.attribute(model, TEXT, method, class_index="insult")
    assert "sigmoid" in row.target and "insult" in row.target and row.meta["link"] == "sigmoid"
    if method == "blank_out":
        assert row.scores[0].tolist() == pytest.approx(
            drops(model, TEXT, lambda z: z[1].sigmoid()), abs=1e-5
        )
    single = cm.attribute(classifier(**LABELS), TEXT, method, class_index="insult")
    assert single.target == "insult" and not torch.allclose(single.scores, row.scores, atol=1e-6)


def test_several_numbers_prefer_none() -> None:
    model = classifier(problem_type="regression", num_labels=2)
    with pytest.raises(InputError, match="class_index"):
        cm.attribute(model, TEXT, "blank_out")
    row = cm.attribute(model, TEXT, "blank_out", class_index=1)
    assert row.scores[0].tolist() == pytest.approx(drops(model, TEXT, lambda z: z[1]), abs=1e-5)


def test_a_setting_for_whole_texts_does_not_change_a_masked_lm() -> None:
    tokenizer = small.wordpiece()
    text = "the keys [MASK] old"
    plain = cm.instrument(small.build("BertForMaskedLM", tokenizer, **small.BERT), tokenizer)
    tuned = cm.instrument(
        small.build("BertForMaskedLM", tokenizer, **small.BERT, problem_type="regression"),
        tokenizer,
    )
    rows = [cm.attribute(model, text, "blank_out", class_index="are") for model in (plain, tuned)]
    assert torch.equal(rows[0].scores, rows[1].scores) and rows[1].meta["of"] == "prob"


# ---- signs and sums
# --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["integrated_gradients", "deeplift", "grad_dot_input"])
def test_scores_have_signs_unless_absolute_ones_are_asked_for(masked, method: str) -> None:
    """The absolute shares called "dull" the strongest word FOR positive."""
    asked = {"class_index": "are", "foil": "is"}
    signed, absolute = (
        cm.attribute(masked, "the keys [MASK] old", method, **asked, **o).scores[0]
        for o in ({}, {"signed": False})
    )
    assert (
        (signed < 0).any()
        and (absolute >= 0).all()
        and float(absolute.sum()) == pytest.approx(1, abs=1e-5)
    )
    assert torch.allclose(signed.abs() / signed.abs().sum(), absolute, atol=1e-6)
    raw = cm.attribute(
        masked, "the keys [MASK] old", method, **asked, signed=False, shares=False
    ).scores[0]
    assert torch.allclose(raw, signed.abs(), atol=1e-7)
    with pytest.raises(OptionError, match="signed=False"):
        cm.attribute(masked, "the keys [MASK] old", method, **asked, shares=True)


@pytest.mark.parametrize("of", ["prob", "logit"])
def test_the_sum_is_the_change_from_the_baseline(masked, of: str) -> None:
    tokenizer, text = small.wordpiece(), "the keys to the cabinet [MASK] old"
    are, its_foil = tokenizer.convert_tokens_to_ids(["are", "is"])
    row = cm.attribute(
        masked,
        text,
        "integrated_gradients",
        class_index="are",
        foil="is",
        of=of,
        rule="gauss_legendre",
    )
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    place = int((ids[0] == tokenizer.mask_token_id).nonzero())
    blank = ids.clone()
    blank[0, 1:-1] = tokenizer.mask_token_id

    def score(given: torch.Tensor) -> float:
        with torch.no_grad():
            pair = masked(input_ids=given, attention_mask=torch.ones_like(given)).logits[
                0, place, [are, its_foil]
            ]
        return float(pair.softmax(-1)[0] if of == "prob" else pair[0] - pair[1])

    assert float(row.scores.sum()) == pytest.approx(score(ids) - score(blank), abs=2e-4)


@pytest.mark.parametrize("method", [name for name in ATTRIBUTIONS if name != "random"])
def test_a_foil_is_never_ignored(masked, method: str) -> None:
    """of="logit" took the logit alone, whatever foil= said."""
    asked = {"class_index": "are", "of": "logit"}
    with_foil = cm.attribute(masked, "the keys [MASK] old", method, foil="is", **asked)
    assert not torch.allclose(
        with_foil.scores,
        cm.attribute(masked, "the keys [MASK] old", method, **asked).scores,
        atol=1e-6,
    )
    assert with_foil.target == "are minus is (logits) at [MASK]"
    if method == "blank_out":
        tokenizer = small.wordpiece()
        a, b = tokenizer.convert_tokens_to_ids(["are", "is"])
        expected = drops(masked, "the keys [MASK] old", lambda z: z[3, a] - z[3, b])
        assert with_foil.scores[0].tolist() == pytest.approx(expected, abs=1e-5)


# ---- which token
# ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("position", [-1, -2, 0, [1, -1]], ids=str)
def test_positions_count_real_tokens(side: str, position) -> None:
    """-1 was the padding of the shorter text."""
    tokenizer = small.llama()
    tokenizer.padding_side = side
    model = cm.instrument(
        small.build("LlamaForTokenClassification", tokenizer, **LLAMA, **LABELS), tokenizer
    )
    texts = ["The keys are bleaching and old.", "The keys are old"]
    both = cm.attribute(model, texts, "blank_out", class_index=1, position=position)
    for b, text in enumerate(texts):
        own = position[b] if isinstance(position, list) else position
        alone = cm.attribute(model, text, "blank_out", class_index=1, position=own)
        assert both[b].scores[0].tolist() == pytest.approx(alone.scores[0].tolist(), abs=1e-5)
    for wrong in (99, -99, 5.5, [0, 1, 2]):
        with pytest.raises(InputError, match="position"):
            cm.attribute(model, texts, "blank_out", position=wrong)


def test_a_position_where_there_is_none_is_an_error() -> None:
    with pytest.raises(OptionError, match="leave position out"):
        cm.attribute(classifier(num_labels=2), TEXT, "blank_out", position=3)
    tokenizer = small.wordpiece()
    tagger = cm.instrument(
        small.build("BertForTokenClassification", tokenizer, **small.BERT, **LABELS), tokenizer
    )
    with pytest.raises(InputError, match="position="):
        cm.attribute(tagger, TEXT, "blank_out")


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_causal_model_is_asked_for_the_next_word(side: str) -> None:
    tokenizer = small.llama()
    tokenizer.padding_side = side
    model = cm.instrument(small.build("LlamaForCausalLM", tokenizer, **LLAMA), tokenizer)
    texts = ["The keys are old and", "The keys"]
    both = cm.attribute(model, texts, "blank_out", class_index="are")
    assert both.meta["position"] == [int(row.nonzero().max()) for row in both.mask]
    for b, text in enumerate(texts):
        alone = cm.attribute(model, text, "blank_out", class_index="are")
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        blank = ids.clone()
        blank[0, 1] = tokenizer.unk_token_id
        with torch.no_grad():
            before, after = (
                model(input_ids=given).logits[0, -1].softmax(-1)[7] for given in (ids, blank)
            )
        assert float(alone.scores[0, 1]) == pytest.approx(float(before - after), abs=1e-6)
        assert both[b].scores[0].tolist() == pytest.approx(alone.scores[0].tolist(), abs=1e-4)


@pytest.mark.parametrize("text", ["The keys are old and", "keys"], ids=["a sentence", "one word"])
@pytest.mark.parametrize("start", [True, False], ids=["<s>", "no start"])
def test_the_last_token_of_a_decoder_has_a_score(text: str, start: bool) -> None:
    """It was kept in the masked baseline, so it always scored 0."""
    tokenizer = small.llama(start=start)
    model = cm.instrument(small.build("GPT2LMHeadModel", tokenizer, **small.GPT2), tokenizer)
    row = cm.attribute(model, text, class_index="are", baseline="mask", mask_token_id=9)
    assert float(row.scores[0, -1]) != 0 and row.meta["notes"]["baseline"] == "mask"
    assert (
        float(row.scores[0, 0]) == 0 if start else float(row.scores[0, 0]) != 0
    )  # the start token frames the sentence
    zero = cm.attribute(
        model, text, class_index="are"
    )  # no mask token: the baseline is zero, and the notes say so
    assert zero.meta["notes"]["baseline"] == "zero" and float(zero.scores[0, -1]) != 0


def test_an_encoder_decoder_is_asked_for_its_first_word() -> None:
    tokenizer = small.llama()
    config = {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
        "initializer_factor": 8.0,
    }
    model = cm.instrument(small.build("T5ForConditionalGeneration", tokenizer, **config), tokenizer)
    row = cm.attribute(model, "The keys are old", "blank_out", class_index="are")
    ids = tokenizer("The keys are old", return_tensors="pt")["input_ids"]
    blank = ids.clone()
    blank[0, 2] = tokenizer.unk_token_id
    with torch.no_grad():
        before, after = (
            model(input_ids=i, decoder_input_ids=torch.zeros(1, 1).long())
            .logits[0, 0]
            .softmax(-1)[7]
            for i in (ids, blank)
        )
    assert (
        float(row.scores[0, 2]) == pytest.approx(float(before - after), abs=1e-7)
        and row.meta["part"] == "encoder"
    )


# ---- names of classes
# -----------------------------------------------------------------------------------------------------
def test_classes_by_label_and_word(masked, decoder) -> None:
    model = classifier(**LABELS)
    by_number = cm.attribute(model, [TEXT, SHORT], "grad_l2", class_index=[1, 2])
    assert torch.equal(
        by_number.scores,
        cm.attribute(model, [TEXT, SHORT], "grad_l2", class_index=["insult", "Threat"]).scores,
    )
    assert by_number.target == "insult, threat"
    with pytest.raises(UnknownNameError, match="Did you mean 'insult'"):
        cm.attribute(model, TEXT, class_index="insalt")
    are = small.wordpiece().convert_tokens_to_ids("are")
    row = cm.attribute(masked, "the keys [MASK] old", "grad_l2", class_index="are")
    assert row.meta["class_index"] == [are] and row.target == "are at [MASK]"
    assert cm.attribute(decoder, "The keys", "grad_l2", class_index="are").meta["class_index"] == [
        7
    ]  # ▁are: the start of a word
    for wrong, words in [("cabinett", "'cabinet'"), ("bleaching", "ble, ##aching")]:
        with pytest.raises(UnknownNameError, match=words):
            cm.attribute(masked, "the keys [MASK] old", class_index=wrong)
    for wrong in (1.5, {"a": 1}, True):
        with pytest.raises(InputError, match="class_index"):
            cm.attribute(model, TEXT, class_index=wrong)


def test_one_of_several_masks_says_which(masked) -> None:
    assert (
        cm.attribute(masked, "the [MASK] [MASK] old", "grad_l2", class_index="are").target
        == "are at [MASK] (2)"
    )


# ---- the two kinds of methods
# -----------------------------------------------------------------------------------------------
def test_maps_and_attributions_point_to_each_other(masked) -> None:
    with pytest.raises(
        UnknownNameError, match=r"cm\.attribute\(model, text, 'integrated_gradients'\)"
    ):
        cm.explain(masked, TEXT, "integrated_gradients")
    with pytest.raises(UnknownNameError, match=r"cm\.attribute"), torch.no_grad():
        masked(
            **small.wordpiece()(TEXT, return_tensors="pt"),
            output_context_mixing=["alti", "blank_out"],
        )
    for name in ("alti", "attention_rollout", "value_zeroing+flow"):
        with pytest.raises(UnknownNameError, match=r"cm\.explain\(model, text"):
            cm.attribute(masked, TEXT, name)
    with pytest.raises(OptionError, match="Did you mean 'steps'"):
        cm.attribute(masked, TEXT, step=3)


# ---- heads that nobody trained
# ----------------------------------------------------------------------------------------------
def test_a_random_head_is_not_explained_without_a_word(tmp_path: Path) -> None:
    tokenizer = small.wordpiece()
    folder = small.saved(
        tmp_path / "encoder", small.build("BertModel", tokenizer, **small.BERT), tokenizer
    )
    model = cm.AutoContextMixingModelForSequenceClassification.from_pretrained(folder)
    cm.explain(model, TEXT, "attention")  # a map needs no head
    with pytest.warns(RandomWeightsWarning, match="classifier"):
        cm.attribute(model, TEXT, "grad_l2")
    with torch.no_grad():
        model.classifier.weight.mul_(2)
        model.classifier.bias.add_(1)  # whoever trains or loads a head changes it
    cm.attribute(model, TEXT, "grad_l2")
    whole = small.saved(tmp_path / "whole", model, tokenizer)
    cm.attribute(
        cm.AutoContextMixingModelForSequenceClassification.from_pretrained(whole), TEXT, "grad_l2"
    )
    again, info = cm.AutoContextMixingModelForSequenceClassification.from_pretrained(
        folder, output_loading_info=True
    )
    assert "classifier.weight" in info["missing_keys"] and type(again) is type(model)


def test_a_random_encoder_is_not_mapped_without_a_word(tmp_path: Path) -> None:
    tokenizer = small.wordpiece()
    folder = small.saved(
        tmp_path / "two", small.build("BertModel", tokenizer, **small.BERT), tokenizer
    )
    model = cm.AutoContextMixingModel.from_pretrained(folder, num_hidden_layers=3)
    with pytest.warns(RandomWeightsWarning, match=r"layer\.2"):
        cm.explain(model, TEXT, "attention")


@pytest.mark.parametrize("name", ["ctxmix/agreement", "ctxmix/sentiment"])
def test_models_in_the_box_are_whole(name: str) -> None:
    cls = "BertForMaskedLM" if name == "ctxmix/agreement" else "BertForSequenceClassification"
    loaded = getattr(cm, auto_class(cls)).from_pretrained(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cm.attribute(loaded, "The keys [MASK] old.", "grad_l2")


# ---- one table of heads
# -------------------------------------------------------------------------------------------------------
def test_every_head_has_its_class_and_the_class_its_mirror() -> None:
    for head in HEADS:
        cls = getattr(cm, f"AutoContextMixingModelFor{head}")
        assert cls.mirrors is getattr(transformers, f"AutoModelFor{head}")
    made = {
        name
        for name, value in vars(auto).items()
        if inspect.isclass(value) and name.startswith("AutoContextMixingModelFor")
    }
    assert made == {f"AutoContextMixingModelFor{head}" for head in HEADS}


def test_cards_name_classes_that_exist() -> None:
    known = {
        name
        for head in HEADS
        for names in getattr(
            transformers, f"AutoModelFor{head}"
        )._model_mapping._model_mapping.values()
        for name in ([names] if isinstance(names, str) else names)
    }
    others = {
        "BertModel",
        "BertForPreTraining",
        "T5EncoderModel",
        "DPTForDepthEstimation",
        "NewForMaskedLM",
        "CLIPModel",
    }
    for name in sorted(known | others):
        pointer = {"base_model": "a/b", "revision": "0" * 40, "model_class": name, "versions": {}}
        named = cards.auto_class(pointer["model_class"])
        assert hasattr(cm, named), name
    card = cards.model_card({**pointer, "model_class": "GPT2LMHeadModel"}, "me/x", [])
    assert "cm.AutoContextMixingModelForCausalLM.from_pretrained" in card


@pytest.mark.parametrize(
    ("cls", "head"),
    [
        ("GPT2LMHeadModel", "CausalLM"),
        ("T5ForConditionalGeneration", "Seq2SeqLM"),
        ("MarianMTModel", "Seq2SeqLM"),
        ("BartForConditionalGeneration", "Seq2SeqLM"),
        ("Wav2Vec2ForCTC", "CTC"),
        ("Wav2Vec2ForSequenceClassification", "AudioClassification"),
        ("BertForMultipleChoice", "MultipleChoice"),
        ("WhisperForConditionalGeneration", "SpeechSeq2Seq"),
        ("BertModel", None),
        ("XLMWithLMHeadModel", "MaskedLM"),
        ("CustomForCausalLM", "CausalLM"),
    ],
)
def test_the_head_of_a_class(cls: str, head: str | None) -> None:
    assert head_of(cls) == head


def test_multiple_choice_reads_its_texts_as_choices(tmp_path: Path) -> None:
    tokenizer = small.wordpiece()
    folder = small.saved(
        tmp_path / "mc", small.build("BertForMultipleChoice", tokenizer, **small.BERT), tokenizer
    )
    model = cm.AutoContextMixingModelForMultipleChoice.from_pretrained(folder)
    made = cm.explain(model, [("the keys", "are old"), ("the keys", "is")], "attention")
    plain = cm.instrument(small.build("BertModel", tokenizer, **small.BERT), tokenizer)
    plain.load_state_dict(model.bert.state_dict())
    alone = cm.explain(plain, [("the keys", "are old"), ("the keys", "is")], "attention")
    assert torch.allclose(made.layers, alone.layers, atol=1e-6) and torch.equal(
        made.mask, alone.mask
    )
    assert made.tokens[0].shown() == alone.tokens[0].shown()
    with pytest.raises(UnsupportedMethodError, match="2 sequences for 1 answers"):
        cm.attribute(model, [("the keys", "are old"), ("the keys", "is")], "grad_l2")


def test_ctc_is_asked_for_a_frame(tmp_path: Path) -> None:
    config = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "conv_dim": (16, 16),
        "conv_kernel": (5, 3),
        "conv_stride": (4, 2),
        "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 4,
        "vocab_size": 12,
    }
    folder = small.saved(tmp_path / "ctc", small.build("Wav2Vec2ForCTC", **config))
    model = cm.AutoContextMixingModelForCTC.from_pretrained(folder)
    inputs = {"input_values": torch.randn(1, 160, generator=torch.Generator().manual_seed(1))}
    with pytest.raises(InputError, match="position="):
        cm.attribute(model, inputs, "grad_l2")
    row = cm.attribute(model, inputs, "grad_l2", position=-1, class_index=3)
    assert row.scores.shape[1] == model(**inputs).logits.shape[1] and float(
        row.scores.sum()
    ) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("baseline", ["mask", "zero"])
def test_integrated_gradients_run_the_model_no_more_than_they_must(masked, baseline: str) -> None:
    """The call itself, the masked sentence's states, one chunk of steps, and the score at the start."""
    model, asked = masked, {"class_index": 7, "steps": 2, "baseline": baseline}
    ask = lambda: cm.attribute(model, "the [MASK] is", "integrated_gradients", **asked)
    first = ask()  # proves the layers, which takes runs of its own
    runs: list[int] = []
    counted = model.get_input_embeddings().register_forward_hook(
        lambda module, args, output: runs.append(len(output))
    )
    try:
        again = ask()
    finally:
        counted.remove()
    assert torch.equal(first.scores, again.scores)
    assert runs == ([1, 1, 2, 1] if baseline == "mask" else [1, 2, 1])


def test_states_of_a_baseline_are_those_of_a_recorded_call(masked) -> None:
    model, inputs = masked, small.wordpiece()("the [MASK] is", return_tensors="pt")
    other = {**inputs, "input_ids": inputs["input_ids"].flip(1)}
    states = lambda x: model(**x, output_decomposition=True).decomposition
    replay, wanted = states(inputs).replay, states(other).hidden_states
    for layer, state in enumerate(wanted):
        assert torch.equal(replay.hidden_of(other["input_ids"], layer), state)
