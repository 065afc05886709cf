"""Datasets in every form; bad rows are counted, missing columns are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas
import pytest

from ctxmix_hf.errors import InputError, InputTypeError
from ctxmix_hf.evaluation.bench import Bench
from ctxmix_hf.evaluation.data import read_data
from ctxmix_hf.evaluation.heldout import is_heldout, normalised
from ctxmix_hf.evaluation.samples import Sample
from ctxmix_hf.precompute.job import Job
from ctxmix_hf.precompute.rows import read_rows

CUE = {
    "uid": "x",
    "words": ["The", "keys", "are", "old", "."],
    "target_index": 2,
    "cue_indices": [1],
    "good_word": "are",
    "bad_word": "is",
    "label": "plural",
}
TEXTS = [{"text": "a good film", "label": 1}, {"text": "a bad film", "label": 0}]


def test_cue_rows(write: Callable[..., str]) -> None:
    sample = read_data(write([CUE])).kept[0]
    assert sample.cues == (1,) and sample.target == 2 and sample.group == "x"
    text, spans = sample.written("[MASK]")
    assert text == "The keys [MASK] old." and [text[a:b] for a, b in spans] == [
        "The",
        "keys",
        "[MASK]",
        "old",
        ".",
    ]


def test_minimal_pairs_are_recognised() -> None:
    rows = [
        {
            "sentence_good": "The cats don't sleep.",
            "sentence_bad": "The cats doesn't sleep.",
            "UID": "u",
        },
        {
            "sentence_good": "Who should Derek hug after shocking Richard?",
            "sentence_bad": "Who should Derek hug Richard after shocking?",
        },
        {"sentence_good": "Same.", "sentence_bad": "Same."},
    ]
    read = read_data(rows)
    assert (
        read.kept[0].target == 2
        and read.kept[0].good == "don't"
        and read.kept[0].bad == "doesn't"
        and read.kept[0].group == "u"
    )
    assert read.kept[0].written("[MASK]")[0] == "The cats [MASK] sleep."
    assert dict(read.skipped) == {
        "the pair differs in more than one word": 1,
        "the two sentences of the pair are the same": 1,
    }


@pytest.mark.parametrize(
    "kind", ["csv", "tsv", "jsonl", "json", "parquet", "frame", "dataset", "dict", "list"]
)
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
        given = {
            "frame": frame,
            "dataset": whole,
            "dict": datasets.DatasetDict({"validation": whole}),
            "list": TEXTS,
        }[kind]
    kept = read_data(given).kept
    assert [(" ".join(s.words), s.label) for s in kept] == [("a good film", 1), ("a bad film", 0)]


def test_lists_inside_csv(tmp_path: Path) -> None:
    path = tmp_path / "cues.csv"
    pandas.DataFrame([{**CUE, "words": json.dumps(CUE["words"]), "cue_indices": "1"}]).to_csv(
        path, index=False
    )
    assert read_data(str(path)).kept[0].cues == (1,)


def test_missing_columns_are_listed() -> None:
    with pytest.raises(InputError, match="Its columns: headline, stars"):
        read_data([{"headline": "x", "stars": 1}])
    with pytest.raises(InputError, match=r"no column .body..*headline, stars"):
        read_data([{"headline": "x", "stars": 1}], {"text": "body"})
    assert (
        read_data([{"headline": "x y", "stars": 1}], {"text": "headline", "label": "stars"})
        .kept[0]
        .label
        == 1
    )


def test_bad_rows_are_counted() -> None:
    rows = [
        CUE,
        {**CUE, "target_index": 9},
        {**CUE, "cue_indices": [7]},
        {**CUE, "words": []},
        {**CUE, "target_index": "two"},
    ]
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
    with pytest.raises(InputError, match="cannot be read"):
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
    long = {
        **CUE,
        "words": [*["very"] * 200, "keys", "are"],
        "target_index": 201,
        "cue_indices": [200],
    }
    rare = {**CUE, "good_word": "zyzzyvas"}
    ready, skipped = box.prepare(read_data([CUE, long, rare, {"text": "nothing to mask"}]).kept)
    assert len(ready) == 1
    assert skipped == {
        "cue or target cut off by truncation": 1,
        "target or foil word is not one piece of the tokenizer": 1,
        "no target word to mask": 1,
    }
    _, skipped = sentiment.prepare(
        read_data([*TEXTS, {"text": "so so", "label": 7}, {"text": "hm", "label": "neutral"}]).kept
    )
    assert skipped == {"label outside the model's classes": 2}


def test_words_own_their_pieces(box: Bench) -> None:
    (item,), _ = box.prepare(
        read_data([{**CUE, "words": ["The", "zyzzyvas", "are", "old", "."]}]).kept
    )
    assert (
        len(item.words[1]) > 1
        and "".join(item.pieces[i].removeprefix("##") for i in item.words[1]) == "zyzzyvas"
    )
    assert item.unit_mask([1]) == [0, 0, 1, 0, 0, 0, 0] and len(item.units()) == 7


PAIRS = [
    {"sentence1": "the keys are old", "sentence2": "the cabinet is old .", "label": 1},
    {"sentence1": "the keys to the cabinet", "sentence2": "are old", "label": 0},
    {"sentence1": "the keys", "sentence2": "", "label": 0},
]


@pytest.mark.parametrize(
    "names",
    [
        ("sentence1", "sentence2"),
        ("premise", "hypothesis"),
        ("question", "sentence"),
        ("text", "text_pair"),
        ("#1 String", "#2 String"),
    ],
    ids=str,
)
def test_pairs_are_read_as_pairs(names: tuple[str, str], write: Callable[..., str]) -> None:
    """The second sentence was dropped without a word."""
    rows = [
        {names[0]: row["sentence1"], names[1]: row["sentence2"], "label": row["label"]}
        for row in PAIRS
    ]
    read = read_data(write(rows))
    first = read.kept[0]
    assert (
        first.second == 4
        and first.texts(None)[0] == ("the keys are old", "the cabinet is old .")
        and read.kept[2].second is None
    )
    assert "2 of 3 rows are pairs" in " ".join(read.notes())
    text, spans = first.written(None)
    assert [text[a:b] for a, b in spans] == list(first.words)
    renamed = read_data(
        [{"a": "the keys", "b": "are old"}], columns={"text": "a", "pair": "b"}
    ).kept[0]
    assert renamed.texts(None)[0] == ("the keys", "are old")


def test_a_pair_reaches_the_model_in_two_segments() -> None:
    import torch

    from ctxmix_hf.evaluation import evaluate
    from ctxmix_hf.evaluation.bench import open_bench
    from tests import small

    tokenizer = small.wordpiece()
    model = small.build("BertForSequenceClassification", tokenizer, **small.BERT, num_labels=2)
    bench = open_bench(model, tokenizer, "classifier", "-")
    ready, skipped = bench.prepare(read_data(PAIRS).kept)
    wanted = tokenizer(
        [row["sentence1"] for row in PAIRS[:2]],
        [row["sentence2"] for row in PAIRS[:2]],
        padding=True,
        return_tensors="pt",
    )
    inputs = bench.inputs_of(ready[:2])
    assert not skipped and all(torch.equal(inputs[key], wanted[key]) for key in wanted)
    words = [[ready[0].pieces[i] for i in word] for word in ready[0].words]
    assert words == [
        ["the"],
        ["keys"],
        ["are"],
        ["old"],
        ["the"],
        ["cabinet"],
        ["is"],
        ["old"],
        ["."],
    ]
    table = evaluate(
        "faithfulness", model, tokenizer, data=PAIRS, methods=["attention"], progress=False
    )
    assert any("2 of 3 rows are pairs" in note for note in table.notes)
    erased = evaluate(
        "erasure", model, tokenizer, data=PAIRS[:2], methods=["attention"], progress=False
    )
    assert len(erased) > 0
    alone = [{"text": row["sentence1"], "label": row["label"]} for row in PAIRS[:2]]
    other = evaluate("erasure", model, tokenizer, data=alone, methods=["attention"], progress=False)
    assert other.rows != erased.rows and not any("pairs" in note for note in other.notes)


def test_single_sentences_keep_their_identity() -> None:
    """Partial results of runs before pairs existed are still found."""
    assert Sample(("a", "b"), ("", " ")).key == "623d46eb575181078b96898a"


def test_evaluations_compare_absolute_scores() -> None:
    from ctxmix_hf.evaluation.scores import REFERENCES, MethodSet

    made = MethodSet.of(["attention"], REFERENCES).attributions
    assert [
        getattr(made[name], "signed", None)
        for name in ("integrated_gradients", "deeplift", "grad_dot_input")
    ] == [False] * 3


def test_the_row_of_a_causal_classifier_is_its_last_token() -> None:
    from ctxmix_hf.evaluation.bench import open_bench
    from tests import small

    tokenizer = small.llama()
    model = small.build("GPT2ForSequenceClassification", tokenizer, **small.GPT2)
    ready, _ = open_bench(model, tokenizer, "classifier", "-").prepare(
        read_data(["The keys are old"]).kept
    )
    assert ready[0].position == len(ready[0].ids) - 1


@pytest.mark.parametrize(
    "name, data",
    [
        ("rows.csv", b"text,label\n\xff old,1\n"),
        ("rows.jsonl", b"3\n"),
        ("rows.jsonl", b"\xff"),
        ("rows.jsonl", b"[" * 100_000),
        ("rows.json", b'["text"]'),
    ],
)
def test_files_that_hold_no_rows_are_refused_in_a_sentence(
    tmp_path: Path, name: str, data: bytes
) -> None:
    """Found by the fuzzer: each raised an error of the reader below."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match="cannot be read as"):
        read_data(str(tmp_path / name))


def test_a_long_field_is_a_text_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"\xef\xbb\xbftext,label\n" + b"x" * 200_000 + b",1\n")
    (kept,) = read_data(str(tmp_path / "rows.csv")).kept
    assert len(kept.words[0]) == 200_000 and str(kept.label) == "1"


@pytest.mark.parametrize("suffix", [".txt", ".json", ".jsonl", ".csv", ".tsv", ".parquet"])
def test_evaluate_and_precompute_read_the_same_files(suffix: str, tmp_path: Path) -> None:
    texts = ["The cats sleep.", 'A "quoted" one, with a comma.', "Ünïcode 猫"]
    path, frame = tmp_path / f"rows{suffix}", pandas.DataFrame({"text": texts})
    if suffix == ".txt":
        path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    elif suffix == ".parquet":
        frame.to_parquet(path)
    elif suffix in (".json", ".jsonl"):
        frame.to_json(path, orient="records", lines=suffix == ".jsonl")
    elif suffix == ".tsv":
        path.write_text("\n".join(["text", *texts]) + "\n", encoding="utf-8")
    else:
        frame.to_csv(path, index=False)
    job = Job(dataset=str(path), out=str(tmp_path / "out"), methods=("alti",))
    assert [row.text for row in read_rows(job)] == texts
    joined = ["".join(sample.words) for sample in read_data(str(path)).kept]
    assert joined == [text.replace(" ", "") for text in texts]


def test_one_syntax_of_datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def load(name: str, config: str | None, split: str | None, streaming: bool) -> Any:
        asked.append((name, config, split))
        return [{"text": "The cats sleep."}]

    monkeypatch.setattr(datasets, "load_dataset", load)
    job = lambda name: Job(dataset=name, out=str(tmp_path), methods=("alti",), split="train")
    for name in ("a/b", "a/b:c", "a/b:c:test", "a/b::test"):
        list(read_rows(job(name)))
        read_data(name)
    splits = [("a/b", None), ("a/b", "c"), ("a/b", "c", "test"), ("a/b", None, "test")]
    want = [(*s, None)[:3] for s in splits for _ in range(2)]
    want[0], want[2] = ("a/b", None, "train"), ("a/b", "c", "train")
    assert asked == want
