"""Datasets in every form; bad rows are counted, missing columns are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import datasets
import pandas
import pytest

from ctxmix_hf.errors import InputError, InputTypeError
from ctxmix_hf.evaluation.bench import Bench
from ctxmix_hf.evaluation.data import read_data
from ctxmix_hf.evaluation.heldout import is_heldout, normalised
from ctxmix_hf.evaluation.samples import Sample

CUE = {"uid": "x", "words": ["The", "keys", "are", "old", "."], "target_index": 2, "cue_indices": [1], "good_word": "are",
       "bad_word": "is", "label": "plural"}  # fmt: skip
TEXTS = [{"text": "a good film", "label": 1}, {"text": "a bad film", "label": 0}]


def test_cue_rows(write: Callable[..., str]) -> None:
    sample = read_data(write([CUE])).kept[0]
    assert sample.cues == (1,) and sample.target == 2 and sample.group == "x"
    text, spans = sample.written("[MASK]")
    assert text == "The keys [MASK] old." and [text[a:b] for a, b in spans] == ["The", "keys", "[MASK]", "old", "."]


def test_minimal_pairs_are_recognised() -> None:
    rows = [
        {"sentence_good": "The cats don't sleep.", "sentence_bad": "The cats doesn't sleep.", "UID": "u"},
        {"sentence_good": "Who should Derek hug after shocking Richard?", "sentence_bad": "Who should Derek hug Richard after shocking?"},
        {"sentence_good": "Same.", "sentence_bad": "Same."},
    ]
    read = read_data(rows)
    assert read.kept[0].target == 2 and read.kept[0].good == "don't" and read.kept[0].bad == "doesn't" and read.kept[0].group == "u"
    assert read.kept[0].written("[MASK]")[0] == "The cats [MASK] sleep."
    assert dict(read.skipped) == {"the pair differs in more than one word": 1, "the two sentences of the pair are the same": 1}


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json", "parquet", "frame", "dataset", "dict", "list"])
def test_every_form_gives_the_same(kind: str, tmp_path: Path) -> None:
    frame, path = pandas.DataFrame(TEXTS), tmp_path / f"d.{kind}"
    made: dict[str, Callable[[], object]] = {
        "csv": lambda: frame.to_csv(path, index=False),
        "tsv": lambda: frame.to_csv(path, index=False, sep="\t"),
        "jsonl": lambda: path.write_text("\n".join(map(json.dumps, TEXTS))),
        "json": lambda: path.write_text(json.dumps(TEXTS)),
        "parquet": lambda: frame.to_parquet(path),
    }
    given: object = str(path)
    if kind in made:
        made[kind]()
    else:
        whole = datasets.Dataset.from_list(TEXTS)
        given = {"frame": frame, "dataset": whole, "dict": datasets.DatasetDict({"validation": whole}), "list": TEXTS}[kind]
    kept = read_data(given).kept
    assert [(" ".join(s.words), s.label) for s in kept] == [("a good film", 1), ("a bad film", 0)]


def test_lists_inside_csv(tmp_path: Path) -> None:
    path = tmp_path / "cues.csv"
    pandas.DataFrame([{**CUE, "words": json.dumps(CUE["words"]), "cue_indices": "1"}]).to_csv(path, index=False)
    assert read_data(str(path)).kept[0].cues == (1,)


def test_missing_columns_are_listed() -> None:
    with pytest.raises(InputError, match="Its columns: headline, stars"):
        read_data([{"headline": "x", "stars": 1}])
    with pytest.raises(InputError, match=r"no column .body..*headline, stars"):
        read_data([{"headline": "x", "stars": 1}], {"text": "body"})
    assert read_data([{"headline": "x y", "stars": 1}], {"text": "headline", "label": "stars"}).kept[0].label == 1


def test_bad_rows_are_counted() -> None:
    rows = [CUE, {**CUE, "target_index": 9}, {**CUE, "cue_indices": [7]}, {**CUE, "words": []}, {**CUE, "target_index": "two"}]
    read = read_data(rows)
    assert len(read.kept) == 1 and sum(read.skipped.values()) == 4
    assert "1 of 5 rows left out: cue_indices outside the sentence." in read.notes()
    assert read_data([{"text": ""}, {"text": "a b"}]).skipped["empty text"] == 1
    wrong = read_data([{"text": "a b c", "rationale": [1, 0]}])
    assert wrong.skipped["rationale and words have different lengths"] == 1


def test_nonsense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file"):
        read_data(str(tmp_path / "absent.csv"))
    with pytest.raises(InputTypeError):
        read_data(5)
    with pytest.raises(InputTypeError):
        read_data([1, 2])
    with pytest.raises(InputError, match="no rows"):
        read_data([])
    (tmp_path / "broken.jsonl").write_text("{")
    with pytest.raises(InputError, match="not readable"):
        read_data(str(tmp_path / "broken.jsonl"))


def test_a_mask_in_the_text_is_the_target() -> None:
    sample = read_data(["The keys [MASK] old, [SEP]."]).kept[0]
    assert sample.target == 2 and sample.written("<mask>")[0] == "The keys <mask> old, [SEP]."
    assert read_data(["a [MASK] b [MASK]", "x [MASK]."]).skipped["more than one [MASK]"] == 1


def test_built_in_sentences_are_answered_right(box: Bench, sentiment: Bench) -> None:
    assert len(read_data("agreement").kept) == 40 and len(read_data("sentiment").kept) == 30
    for bench, name in ((box, "agreement"), (sentiment, "sentiment")):
        ready, skipped = bench.prepare(read_data(name).kept)
        assert not skipped and all(item.words for item in ready)


def test_heldout_rule_is_the_models_own() -> None:
    """Row 0 of the cue file is held out, row 1 is not (models/agreement/heldout.json)."""
    first = Sample(("Susan", "revealed", "herself", "."), ("", " ", " ", ""), 2)
    second = Sample(("Renee", "hasn't", "hurt", "herself", "."), ("", " ", " ", " ", ""), 3)
    assert normalised(second) == "renee has not hurt [mask]"
    assert is_heldout(first) and not is_heldout(second)


def test_truncation_labels_and_pieces_are_counted(box: Bench, sentiment: Bench) -> None:
    long = {**CUE, "words": [*["very"] * 200, "keys", "are"], "target_index": 201, "cue_indices": [200]}
    rare = {**CUE, "good_word": "zyzzyvas"}
    ready, skipped = box.prepare(read_data([CUE, long, rare, {"text": "nothing to mask"}]).kept)
    assert len(ready) == 1
    assert skipped == {
        "cue or target cut off by truncation": 1, "target or foil word is not one piece of the tokenizer": 1, "no target word to mask": 1,
    }  # fmt: skip
    _, skipped = sentiment.prepare(read_data([*TEXTS, {"text": "so so", "label": 7}, {"text": "hm", "label": "neutral"}]).kept)
    assert skipped == {"label outside the model's classes": 2}


def test_words_own_their_pieces(box: Bench) -> None:
    (item,), _ = box.prepare(read_data([{**CUE, "words": ["The", "zyzzyvas", "are", "old", "."]}]).kept)
    assert len(item.words[1]) > 1 and "".join(item.pieces[i].removeprefix("##") for i in item.words[1]) == "zyzzyvas"
    assert item.unit_mask([1]) == [0, 0, 1, 0, 0, 0, 0] and len(item.units()) == 7
