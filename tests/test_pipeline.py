"""`transformers.pipeline("context-mixing")`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import pipeline

import ctxmix_hf as cm
import ctxmix_hf.pipeline
from ctxmix_hf.errors import InputError, OptionError, UnknownNameError

TEXTS = [
    "The keys to the cabinet [MASK] on the table.",
    "Many girls insulted [MASK].",
    "The boys [MASK] tired.",
]


@pytest.fixture(scope="module")
def mix(box: Any) -> Any:
    return pipeline("context-mixing", model=box[0], tokenizer=box[1], method="alti")


def test_one_text_is_one_map(mix: Any, box: Any) -> None:
    made, wanted = mix(TEXTS[0]), cm.explain(box[0], TEXTS[0], "alti", tokenizer=box[1])
    assert torch.equal(made.input, wanted.input)
    assert made.tokens[0].words == wanted.tokens[0].words


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_batches_give_the_same(mix: Any, box: Any, batch_size: int) -> None:
    made = mix(TEXTS, batch_size=batch_size)
    for one, text in zip(made, TEXTS, strict=True):
        wanted = cm.explain(box[0], text, "alti", tokenizer=box[1])
        assert torch.allclose(one.input, wanted.input, atol=1e-5)
        assert one.tokens == wanted.tokens


def test_streams(mix: Any) -> None:
    seen: list[str] = []

    def texts() -> Iterator[str]:
        for text in TEXTS:
            seen.append(text)
            yield text

    first = next(iter(mix(texts())))
    assert first.tokens[0].text == TEXTS[0]
    assert len(seen) < 4


def test_target_layer_and_words(mix: Any, box: Any) -> None:
    row = mix(TEXTS[0], target="[MASK]", layer=3, words=True, method="value_zeroing")
    assert row == cm.explain(
        box[0], TEXTS[0], "value_zeroing", tokenizer=box[1]
    ).words().attribution("[MASK]", 3)
    assert row.method == "value_zeroing"
    assert row.tokens[0].pieces[:3] == ("[CLS]", "The", "keys")
    assert row.scores.sum().item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("method", ["ledger", "integrated_gradients", "blank_out"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_methods_that_explain_a_prediction(
    mix: Any, box: Any, method: str, batch_size: int
) -> None:
    made = mix(TEXTS, method=method, class_index="are", foil="is", batch_size=batch_size)
    for one, text in zip(made, TEXTS, strict=True):
        assert one == cm.attribute(
            box[0], text, method, class_index="are", foil="is", tokenizer=box[1]
        )
        assert one.tokens[0].text == text
    own = mix(TEXTS, method=method, batch_size=batch_size)  # each its own prediction
    wanted = [cm.attribute(box[0], text, method, tokenizer=box[1]) for text in TEXTS]
    assert [one.target for one in own] == [one.target for one in wanted]
    assert mix(TEXTS[0], method=method, words=True) == wanted[0].words()


def test_options_of_the_other_kind_are_refused(mix: Any) -> None:
    with pytest.raises(OptionError, match=r"ledger scores the input tokens.*leave target out"):
        mix(TEXTS[0], method="ledger", target="[MASK]")
    with pytest.raises(OptionError, match="alti makes maps: leave class_index and foil out"):
        mix(TEXTS[0], class_index="are", foil="is")


def test_wrong_input_is_said_at_once(mix: Any, box: Any) -> None:
    with pytest.raises(InputError, match="not empty"):
        mix(" ")
    with pytest.raises(UnknownNameError, match="alti"):
        pipeline("context-mixing", model=box[0], tokenizer=box[1], method="alty")


def test_a_plain_model_is_instrumented(tmp_path: Any, box: Any) -> None:
    box[0].save_pretrained(tmp_path)
    box[1].save_pretrained(tmp_path)
    made = pipeline("context-mixing", model=str(tmp_path), method="attention")(TEXTS[1])
    assert made.method == "attention"
    assert ctxmix_hf.pipeline.TASK in str(made) or made.depth == 6
