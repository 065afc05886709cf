"""If a message gives advice, the advice works: every error that tells what to call, pass or say is
provoked here, and then obeyed.

`test_every_advice_is_followed` reads the messages from the source: one that names a call or an
option and has no line in CASES or FACTS fails it.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import ctxmix_hf as cm
from ctxmix_hf.cli import main
from ctxmix_hf.evaluation.data import read_data
from ctxmix_hf.hub import pointers
from tests import small, zoo

ROOT = Path(__file__).parents[1]
TEXT = "the keys are old"
CODE = re.compile(
    r"\w\([^)]*\)|\b\w+=|--\w|\bcm\.|ctxmix_hf\.|pip install|`"
)  # what an advice names


# ---- models that the cases share
# --------------------------------------------------------------------------------------------
def encoder() -> Any:
    tokenizer = small.wordpiece()
    return cm.instrument(small.build("BertModel", tokenizer, **small.BERT), tokenizer)


def masked() -> Any:
    tokenizer = small.wordpiece()
    return cm.instrument(small.build("BertForMaskedLM", tokenizer, **small.BERT), tokenizer)


def regression() -> Any:
    tokenizer = small.wordpiece()
    config = {**small.BERT, "num_labels": 2, "problem_type": "regression"}
    return cm.instrument(
        small.build("BertForSequenceClassification", tokenizer, **config), tokenizer
    )


def fails(words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(cm.CtxmixError, match=words):
        call()


def shell(words: str, wrong: list[str], right: list[str], capsys: Any) -> None:
    assert main(wrong) == 2 and re.search(words, capsys.readouterr().err)
    assert main(right) == 0


# ---- an error, then what it says
# --------------------------------------------------------------------------------------------
def not_instrumented(**_: Any) -> None:
    model, inputs = zoo.build("bert")
    fails(r"call ctxmix_hf\.instrument\(model\)", lambda: cm.explain(model, inputs, "attention"))
    cm.explain(cm.instrument(model), inputs, "attention")


def no_transformers_model(tmp_path: Path, **_: Any) -> None:
    folder = small.saved(tmp_path / "m", small.build("BertModel", small.wordpiece(), **small.BERT))
    fails("AutoModel", lambda: cm.instrument(torch.nn.Linear(2, 2)))
    cm.instrument(transformers.AutoModel.from_pretrained(folder))
    cm.AutoContextMixingModel.from_pretrained(folder)


def made_with_from_pretrained(**_: Any) -> None:
    with pytest.raises(TypeError, match="from_pretrained"):
        cm.AutoContextMixingModelForMaskedLM()
    cm.AutoContextMixingModelForMaskedLM.from_pretrained("ctxmix/agreement")


def a_text_for_a_model(**_: Any) -> None:
    model, tokenizer = encoder(), small.wordpiece()
    fails("tokenizer", lambda: model(TEXT, output_context_mixing=["attention"]))
    model(**tokenizer(TEXT, return_tensors="pt"), output_context_mixing=["attention"])


def train_mode(**_: Any) -> None:
    model, _ = zoo.build("bert")
    cm.instrument(model).train()
    fails(
        r"model\.eval\(\)",
        lambda: model(input_ids=torch.tensor([[5, 6]]), output_decomposition=True),
    )
    model.eval()
    model(input_ids=torch.tensor([[5, 6]]), output_decomposition=True)


def too_long(**_: Any) -> None:
    tokenizer = small.wordpiece()
    model = cm.instrument(
        small.build("BertModel", tokenizer, **small.BERT, max_position_embeddings=8), tokenizer
    )
    fails("max_length=8", lambda: cm.explain(model, "the keys " * 9, "attention"))
    cm.explain(
        model,
        tokenizer("the keys " * 9, truncation=True, max_length=8, return_tensors="pt"),
        "attention",
    )
    windows = tokenizer(
        "the keys " * 9,
        truncation=True,
        max_length=8,
        return_overflowing_tokens=True,
        stride=2,
        padding=True,
        return_tensors="pt",
    )
    windows.pop("overflow_to_sample_mapping")
    assert len(cm.explain(model, windows, "attention")) > 1


def a_number_is_no_probability(**_: Any) -> None:
    fails(
        "of='logit'", lambda: cm.attribute(regression(), TEXT, "grad_l2", class_index=0, of="prob")
    )
    cm.attribute(regression(), TEXT, "grad_l2", class_index=0, of="logit")


def which_number(**_: Any) -> None:
    fails("class_index=", lambda: cm.attribute(regression(), TEXT, "grad_l2"))
    cm.attribute(regression(), TEXT, "grad_l2", class_index=1)


def special_ids(**_: Any) -> None:
    model, inputs = zoo.build("bert")
    model = cm.instrument(transformers.BertForSequenceClassification(model.config).eval())
    inputs = {key: value[:1] for key, value in inputs.items()}
    fails("unk_token_id=", lambda: cm.attribute(model, inputs, "blank_out"))
    cm.attribute(model, inputs, "blank_out", unk_token_id=3)
    cm.attribute(model, inputs, "blank_out", replace_with=3)
    fails(
        "mask_token_id=",
        lambda: cm.attribute(model, inputs, "integrated_gradients", baseline="mask"),
    )
    cm.attribute(model, inputs, "integrated_gradients", baseline="mask", mask_token_id=3, steps=2)


def shares_of_signed(**_: Any) -> None:
    fails(
        "signed=False", lambda: cm.attribute(masked(), "the [MASK]", "grad_dot_input", shares=True)
    )
    cm.attribute(masked(), "the [MASK]", "grad_dot_input", shares=True, signed=False)


def baseline_of_an_image(**_: Any) -> None:
    model, inputs = zoo.build("vit")
    model = cm.instrument(transformers.ViTForImageClassification(model.config).eval())
    fails("baseline='zero'", lambda: cm.attribute(model, inputs, baseline="mask", steps=2))
    cm.attribute(model, inputs, baseline="zero", steps=2)


def position_of_a_token(**_: Any) -> None:
    tokenizer = small.wordpiece()
    tagger = cm.instrument(
        small.build("BertForTokenClassification", tokenizer, **small.BERT), tokenizer
    )
    fails("position=", lambda: cm.attribute(tagger, TEXT, "grad_l2"))
    cm.attribute(tagger, TEXT, "grad_l2", position=1)
    fails(r"\[MASK\]", lambda: cm.attribute(masked(), TEXT, "grad_l2"))
    cm.attribute(masked(), "the keys [MASK] old", "grad_l2")
    cm.attribute(masked(), TEXT, "grad_l2", position=2)


def maps_and_attributions(**_: Any) -> None:
    fails(r"cm\.explain\(model, text, 'alti'\)", lambda: cm.attribute(masked(), TEXT, "alti"))
    cm.explain(masked(), TEXT, "alti")
    fails(
        r"cm\.attribute\(model, text, 'grad_l2'\)",
        lambda: cm.explain(masked(), "the [MASK]", "grad_l2"),
    )
    cm.attribute(masked(), "the [MASK]", "grad_l2")


def options_of_explain(**_: Any) -> None:
    fails(
        r"cm\.method\(name, distance=",
        lambda: cm.explain(encoder(), TEXT, "value_zeroing", distance="euclidean"),
    )
    cm.explain(encoder(), TEXT, cm.method("value_zeroing", distance="euclidean"))
    fails(
        r"m\.layer\(\.\.\.\), m\.attribution",
        lambda: cm.explain(encoder(), TEXT, "attention", layer=1),
    )
    made = cm.explain(encoder(), TEXT, "attention")
    made.layer(1)
    made.attribution("keys")


def no_tokenizer(**_: Any) -> None:
    model = cm.instrument(small.build("BertModel", small.wordpiece(), **small.BERT))
    fails("tokenizer=", lambda: cm.explain(model, TEXT, "attention"))
    cm.explain(model, TEXT, "attention", tokenizer=small.wordpiece())
    fails("tokenizer=", lambda: cm.evaluate("mixing", model, data=[TEXT, "the old keys"]))
    cm.evaluate(
        "mixing_own",
        model,
        small.wordpiece(),
        data=[TEXT, "the old keys"],
        methods=["attention"],
        progress=False,
    )


def no_per_layer_maps(**_: Any) -> None:
    made = cm.explain(encoder(), TEXT, "hta")
    fails("scope='input'", lambda: made.attribution(1, scope="layer"))
    made.attribution(1, scope="input")
    fails("scope='input'", lambda: made.to_view(scope="layer"))
    made.to_view(scope="input")
    gap = made - made
    fails("scope='input'", lambda: gap.plot(scope="layer"))
    gap.plot(scope="input")


def single_heads(**_: Any) -> None:
    fails("per_head=True", lambda: cm.explain(encoder(), TEXT, "attention").head_rollout(2, 0))
    cm.explain(encoder(), TEXT, cm.method("attention", per_head=True)).head_rollout(2, 0)


def value_bias(**_: Any) -> None:
    model, inputs = zoo.build("deberta")
    cm.instrument(model)
    fails(
        "value_bias=True",
        lambda: cm.explain(model, inputs, cm.method("effective_attention", value_bias=False)),
    )
    cm.explain(model, inputs, cm.method("effective_attention", value_bias=True))


def normalised_cosine(**_: Any) -> None:
    fails(
        "distance='euclidean'",
        lambda: cm.method("value_zeroing", distance="cosine", normalised=True),
    )
    cm.method("value_zeroing", distance="euclidean", normalised=True)
    cm.method("value_zeroing", distance="cosine")


def probes(**_: Any) -> None:
    fails("at least 2 probes", lambda: cm.method("hta", sketch=1))
    cm.method("hta", sketch=2)
    cm.method("hta", sketch=0)


def graphs(**_: Any) -> None:
    model, inputs = zoo.build("bert")
    cm.instrument(model)
    fails(
        "create_graph=True",
        lambda: model(**inputs, output_context_mixing=["value_zeroing"], create_graph=True),
    )
    model(**inputs, output_context_mixing=["value_zeroing"])


def two_depths(**_: Any) -> None:
    tokenizer = small.wordpiece()
    deep = cm.instrument(
        small.build("BertModel", tokenizer, **{**small.BERT, "num_hidden_layers": 3}), tokenizer
    )
    a, b = cm.explain(encoder(), TEXT, "attention"), cm.explain(deep, TEXT, "attention")
    fails(r"m\.layer\(\.\.\.\)", lambda: a - b)
    a.layer(-1) - b.layer(-1)


def pictures_of_methods(**_: Any) -> None:
    fails("explain", lambda: cm.plot_methods({}))
    cm.plot_methods(cm.explain(encoder(), TEXT, ["attention", "alti"]))
    a, b = cm.explain(encoder(), TEXT, "alti"), cm.explain(encoder(), "the keys is old", "alti")
    fails(r"difference\(\)", lambda: cm.plot_methods({"a": a, "b": b}))
    a.difference(b)


def patches(**_: Any) -> None:
    model, inputs = zoo.build("vit")
    made = cm.explain(cm.instrument(model), inputs, "attention")[0]
    cut = made.select(*range(1, 16))
    image = torch.zeros(3, 16, 16)
    fails(r"grid=\(rows, columns\)", lambda: cut.plot_image(image))
    cut.plot_image(image, grid=(3, 5))


def too_many_tokens(**_: Any) -> None:
    size = 1025
    made = cm.ContextMixingMap(
        "alti", torch.eye(size)[None, None], torch.ones(1, size, dtype=torch.bool)
    )
    fails(r"m\.plot\(\)", made.to_view)
    made.plot()


def occurrences(**_: Any) -> None:
    made = cm.explain(encoder(), "the keys and the old keys", "attention")
    fails("keys#1", lambda: made.attribution("keys"))
    assert made.attribution("keys#1") != made.attribution("keys#2")


def other_columns(**_: Any) -> None:
    fails(r"columns=\{\"text\": \.\.\.\}", lambda: read_data([{"headline": "a b"}]))
    assert read_data([{"headline": "a b"}], columns={"text": "headline"}).kept


def two_models(**_: Any) -> None:
    tokenizer = small.wordpiece()
    fails(
        r"model=\(first, second\)",
        lambda: cm.evaluate("model_consistency", masked(), tokenizer, data=["the keys [MASK] old"]),
    )
    pair = (masked(), masked())
    cm.evaluate(
        "model_consistency",
        pair,
        tokenizer,
        data=["the keys [MASK] old"],
        methods=["attention"],
        progress=False,
    )


def stores(tmp_path: Path, **_: Any) -> None:
    model, tokenizer, path = encoder(), small.wordpiece(), tmp_path / "s"
    with cm.MapStore.create(tmp_path / "without", model=model, methods=["attention"]) as store:
        fails("tokenizer=", lambda: store.add(["a"], [TEXT]))
    with cm.MapStore.create(path, model=model, tokenizer=tokenizer, methods=["attention"]) as store:
        store.add(["0"], [TEXT])
    with cm.MapStore.open(path, append=True, model=model) as store:
        fails("tokenizer=", lambda: store.add(["a"], [TEXT]))
    again = {"model": model, "tokenizer": tokenizer, "methods": ["attention"]}
    fails(r"MapStore\.open\(path, append=True, model=", lambda: cm.MapStore.create(path, **again))
    with cm.MapStore.open(path, append=True, model=model, tokenizer=tokenizer) as store:
        store.add(["a"], [TEXT])
    made = {"attention": cm.explain(model, TEXT, "attention")}
    fails(r"append=True\)", lambda: cm.MapStore.open(path).add_maps(["b"], made))
    with cm.MapStore.open(path, append=True) as store:
        store.add_maps(["b"], made)
        fails(r"model=\.\.\., tokenizer=\.\.\.", lambda: store.add(["c"], [TEXT]))
    fails(
        "create_graph",
        lambda: model(
            **tokenizer(TEXT, return_tensors="pt"),
            output_context_mixing=["attention"],
            create_graph=True,
            cache=cm.MapStore.open(path),
        ),
    )
    model(
        **tokenizer(TEXT, return_tensors="pt"),
        output_context_mixing=["attention"],
        create_graph=True,
    )


def base_commits(**_: Any) -> None:
    nobody: Any = SimpleNamespace(model_info=lambda *_, **__: SimpleNamespace(sha=None), token=None)
    fails("base_revision=", lambda: pointers._commit(nobody, "a/b", None))
    assert pointers._commit(nobody, "a/b", "0" * 40) == "0" * 40


def the_task(**_: Any) -> None:
    fails("model=", lambda: transformers.pipeline("context-mixing"))
    transformers.pipeline("context-mixing", model=encoder(), tokenizer=small.wordpiece())


def half_floats(tmp_path: Path, **_: Any) -> None:
    model, tokenizer = encoder(), small.wordpiece()
    with torch.no_grad():
        model.encoder.layer[0].attention.output.dense.weight.mul_(1e6)
        model.encoder.layer[0].attention.self.value.weight.mul_(1e6)
    with cm.MapStore.create(
        tmp_path / "h", model=model, tokenizer=tokenizer, methods=["norm"], dtype="float16"
    ) as store:
        fails("dtype='float32'", lambda: store.add(["a"], [TEXT]))
    with cm.MapStore.create(
        tmp_path / "f", model=model, tokenizer=tokenizer, methods=["norm"], dtype="float32"
    ) as store:
        store.add(["a"], [TEXT])


def on_the_command_line(tmp_path: Path, capsys: Any, **_: Any) -> None:
    out, scores = (
        ["--out", str(tmp_path / "m.png")],
        ["explain", "The keys [MASK] old.", "--method", "blank_out"],
    )
    shell(
        "--option class_index",
        [*scores, "--target", "are"],
        [*scores, "--option", "class_index=are"],
        capsys,
    )
    grad = ["explain", "The keys [MASK] old.", "--method", "grad_l2"]
    shell("--option layer", [*grad, "--layer", "2"], [*grad, "--option", "layer=2"], capsys)
    shell(
        "method alone",
        ["explain", "a", "--method", "attention_rollout", "--aggregate", "flow"],
        ["explain", "a", "--method", "attention", "--aggregate", "flow"],
        capsys,
    )
    shell(
        "--format",
        ["explain", "a", "--json", "--format", "html"],
        ["explain", "a", "--json", "--format", "json"],
        capsys,
    )
    shell(
        "--format",
        ["explain", "a", "--out", str(tmp_path / "m.xyz")],
        ["explain", "a", "--out", str(tmp_path / "m.xyz"), "--format", "json"],
        capsys,
    )
    (tmp_path / "t.txt").write_text("The keys.\n")
    shell(
        "not both",
        ["explain", "a", "--file", str(tmp_path / "t.txt")],
        ["explain", "--file", str(tmp_path / "t.txt")],
        capsys,
    )
    shell("KEY=VALUE", [*grad, "--option", "layer"], [*grad, "--option", "layer=1"], capsys)
    shell(
        "takes --method",
        ["compare", "The key is.", "The keys are.", "--methods", "alti"],
        ["compare", "The key is.", "The keys are.", "--method", "alti"],
        capsys,
    )
    shell(
        "--tokens",
        ["bench", "--tokens", "9999"],
        ["bench", "--tokens", "8", "--repeat", "1", "--methods", "attention"],
        capsys,
    )
    assert main(["explain", "a", *out]) == 0


def of_the_ledger(**_: Any) -> None:
    model, bare, tokenizer = masked(), encoder(), small.wordpiece()
    text = "the keys [MASK] old"
    fails(
        "leave start='embeddings' out",
        lambda: cm.ledger(model, text, checkpoint=True, start="embeddings"),
    )
    by_layer = cm.ledger(model, text, checkpoint=True)
    fails(r"cm\.ledger\(\.\.\.\)", lambda: by_layer.edges)
    assert cm.ledger(model, text).edges is not None
    fails("readout='embedding'", lambda: cm.ledger(bare, text, direction=torch.ones(32)))
    cm.ledger(bare, text, readout="embedding", direction=torch.ones(32))
    fails("question answering", lambda: cm.ledger(model, text, readout="start"))
    answers = cm.instrument(
        small.build("BertForQuestionAnswering", tokenizer, **small.BERT), tokenizer
    )
    cm.ledger(answers, (TEXT, TEXT), readout="start")
    fails("position=", lambda: cm.ledger(answers, (TEXT, TEXT), class_index=1))
    cm.ledger(answers, (TEXT, TEXT), position=1)
    fails("AutoModel", lambda: cm.ledger(model, text, readout="embedding"))
    cm.ledger(bare, text, readout="embedding")
    cm.ledger(model, text, readout=lambda outputs: outputs.logits[:, 0, 0])
    fails("of='logit'", lambda: cm.attribute(model, text, "ledger", of="prob"))
    cm.attribute(model, text, "ledger", of="logit")
    cm.attribute(model, text, "integrated_gradients", of="prob", steps=2)


def of_vectors(tmp_path: Path, **_: Any) -> None:
    embeddings = pytest.importorskip("sentence_transformers")
    tokenizer = small.wordpiece()
    folder = small.saved(
        tmp_path / "m", small.build("BertModel", tokenizer, **small.BERT), tokenizer
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = embeddings.SentenceTransformer(folder, device="cpu")
        reranker = embeddings.CrossEncoder(folder, num_labels=1, device="cpu")
    fails("direction=", lambda: cm.ledger(model, TEXT))
    cm.ledger(model, TEXT, direction=torch.ones(32))
    cm.ledger(model, TEXT, readout="embedding")
    fails(
        "transformers models", lambda: cm.ledger(model, TEXT, readout="embedding", biases="spread")
    )
    cm.ledger(encoder(), TEXT, readout="embedding", biases="spread")
    fails("leave pooling='cls' out", lambda: cm.similarity(model, TEXT, TEXT, pooling="cls"))
    cm.similarity(model, TEXT, TEXT)
    fails("without it", lambda: cm.similarity(model, TEXT, TEXT, "alti"))
    shares = cm.similarity(encoder(), TEXT, TEXT, "alti")
    fails("leave method=", lambda: shares.pairs)
    assert cm.similarity(encoder(), TEXT, TEXT).pairs is not None
    fails(r"cm\.ledger", lambda: cm.similarity(reranker, TEXT, TEXT))
    cm.ledger(reranker, (TEXT, TEXT))
    cm.rank(reranker, TEXT, [TEXT])


def of_parts(**_: Any) -> None:
    """Methods that carry parts through a whole layer, where a layer does not let them."""
    model, inputs = zoo.build("mobilebert")
    for name, instead in (("norm_ff", "norm_enc"), ("decompx", "globenc")):
        fails(r"cm\.ledger", lambda name=name: cm.explain(cm.instrument(model), inputs, name))
        cm.explain(model, inputs, instead)
    cm.ledger(model, inputs, readout=lambda outputs: outputs[0][:, 0, 0])
    other, inputs = zoo.build("xlnet")
    fails("norm_ff", lambda: cm.explain(cm.instrument(other), inputs, "decompx"))
    cm.explain(other, inputs, "norm_ff+rollout")


CASES: dict[str, Callable[..., None]] = {
    "is not instrumented": not_instrumented,
    "Expected a Hugging Face transformers model": no_transformers_model,
    "is made with": made_with_from_pretrained,
    "Expected tensors": a_text_for_a_model,
    "train mode": train_mode,
    "the model has {} positions": too_long,
    "gives a number, not a probability": a_number_is_no_probability,
    "numbers and prefers none": which_number,
    "No {} token is known": special_ids,
    "divides absolute scores": shares_of_signed,
    "A masked baseline needs": baseline_of_an_image,
    "This model scores every token": position_of_a_token,
    "A masked-word target needs": position_of_a_token,
    "maps tokens to tokens": maps_and_attributions,
    "scores tokens for a prediction": maps_and_attributions,
    "explain has no option": options_of_explain,
    "No tokenizer is known": no_tokenizer,
    "no per-layer maps": no_per_layer_maps,
    "needs per-head maps": single_heads,
    "effective_attention(value_bias=False)": value_bias,
    "normalised=True belongs": normalised_cosine,
    "at least 2 probes": probes,
    "cannot keep a graph": graphs,
    "compare models of the same depth": two_depths,
    "no maps to compare": pictures_of_methods,
    "maps are of different sentences": pictures_of_methods,
    "do not form a square of patches": patches,
    "too many for the canvas": too_many_tokens,
    "has neither words": other_columns,
    "compares two models": two_models,
    "Texts need a tokenizer": stores,
    "There is a store in {} already": stores,
    "opened without a model": stores,
    "is open for reading": stores,
    "cache= and create_graph": stores,
    "does not fit in float16": half_floats,
    "The commit of {} is unknown": base_commits,
    "has no model of its own": the_task,
    "explains a prediction: name what": on_the_command_line,
    "take gradients at a layer": on_the_command_line,
    "with its aggregation already": on_the_command_line,
    "contradict each other": on_the_command_line,
    "Cannot write {}": on_the_command_line,
    "sentences or --file": on_the_command_line,
    "is not KEY=VALUE": on_the_command_line,
    "a difference takes --method": on_the_command_line,
    "is more than {} takes": on_the_command_line,
    "A {} picture cannot be printed": on_the_command_line,
    "checkpoint=True starts at the input": of_the_ledger,
    "stored without its edges": of_the_ledger,
    "direction belongs to": of_the_ledger,
    "is for question answering": of_the_ledger,
    "scores places, not classes": of_the_ledger,
    "returns no last hidden state to pool": of_the_ledger,
    "adds up to a logit": of_the_ledger,
    "are for transformers models": of_vectors,
    "gives a vector: explain": of_vectors,
    "has its own pooling": of_vectors,
    "pass the SentenceTransformer without it": of_vectors,
    "have no pairs": of_vectors,
    "reads both texts at once": of_vectors,
    "cannot follow": of_parts,
}
# Followed elsewhere: the line that obeys says "the advice".
ELSEWHERE = {
    "leave --segments out": "test_long.py::test_a_map_of_segments_is_drawn_saved_and_asked_for_everywhere",
    "makes a map and target=... a row": "test_long.py::test_segments_and_rows_exclude_each_other_and_need_a_text",
    "makes a map of its own: leave": "test_long.py::test_a_map_of_segments_is_drawn_saved_and_asked_for_everywhere",
    "keeps the largest sources of every row": "test_long.py::test_top_k_and_other_answers_exclude_each_other",
    "made while the layers run": "test_long.py::test_top_k_needs_one_stack_of_layers",
    "is not a list of segments": "test_long.py::test_wrong_segments_are_said",
    "needs the text and where": "test_long.py::test_segments_and_rows_exclude_each_other_and_need_a_text",
    "keeps one row and column per": "precompute/test_precompute.py::test_a_store_of_segments",
    "keeps {}={}, the result of": "precompute/test_precompute.py::test_a_store_of_sparse_maps",
    "keeps the places of sources": "precompute/test_precompute.py::test_what_a_store_of_rows_cannot_keep",
    "cannot be kept: a store has one": "precompute/test_precompute.py::test_a_store_of_segments",
    "no list of layers was found": "instrumentation/test_declared_layers.py::test_declared_layers_give_the_maps",
    "brings code of its own": "hub/test_remote_code.py::test_remote_code_runs_when_the_user_says_so",
    "--check takes text, revision": "test_certificate.py::test_it_holds_for_the_model_it_was_made_of",
    "--model-repo goes with --to-hub": "hub/test_eval_results.py::test_tables_and_entries_reach_the_hub",
    "one row and targets=[...]": "test_long.py::test_the_errors_of_rows",
    "goes with target=...": "test_long.py::test_the_errors_of_rows",
    "one row is made for each": "test_long.py::test_the_errors_of_rows",
    "names no target": "test_long.py::test_the_errors_of_rows",
    "Only the last layer's rows": "test_long.py::test_the_errors_of_rows",
    "has several towers. {} cannot be read": (
        "instrumentation/test_towers.py::test_a_tower_that_cannot_be_read_is_named"
    ),
    "No {} is known for this model": "text/test_batch.py::test_a_missing_processor_is_named",
    "own similarity goes through": "test_similarities.py::test_what_else_the_vector_goes_through_is_refused",
    "holds rows of different lengths": "text/test_batch.py::test_a_padded_batch_in_every_form",
    "No probe is known": "cli/test_readers.py::test_doctor_points_to_verify",
    "--text is for models that read text": "cli/test_readers.py::test_doctor_of_every_kind",
    "is not on the Hub, so nothing": "hub/test_pointers.py::test_refusals_weights_and_offline",
    "The weights are not those of": "hub/test_pointers.py::test_refusals_weights_and_offline",
    "Only a store in a folder": "hub/test_store_hub.py::test_download_and_read_without_the_hub",
    "Say where": "hub/test_store_hub.py::test_download_and_read_without_the_hub",
    "Pass max_bytes=": "formats/test_damaged_files.py::test_a_large_result_says_how_to_open_it",
    "forgets what is damaged": "hub/test_store_power.py::test_repair_forgets_what_is_damaged",
    "repair=True writes to the store": "hub/test_store_power.py::test_repair_forgets_what_is_damaged",
    "which appending would change": "hub/test_store_cached.py::test_a_copy_can_be_appended_to",
    "--data is NAME=WHERE": "evaluation/test_papers.py::test_the_command_reads_data_by_name",
    "Figure 7 compares": "evaluation/test_papers.py::test_two_classifiers_are_compared",
    "cls_context looks around": "evaluation/test_papers.py::test_context_of_cls_needs_pairs",
    "answer='true' explains": "evaluation/test_papers.py::test_the_true_class_and_its_logit",
    "This store is on the Hub": "hub/test_store_hub.py::test_download_and_read_without_the_hub",
    "No word has a part": "evaluation/test_paper_cases.py::test_parts_of_speech_come_from_a_function_or_a_column",
    "before it was tuned": "evaluation/test_paper_cases.py::test_items_that_compare_name_both_models",
    "pronouns compares two": "evaluation/test_paper_cases.py::test_pronouns_runs_offline_and_says_what_it_needs",
    "df.dropna(subset": "test_interop.py::test_a_pandas_frame_explains_its_texts",
    "negative='clamp'": "aggregation/test_aggregation.py::test_negative_maps_are_no_capacities",
    "it has no cheap rows": (
        "test_long.py::test_rows_that_are_not_cheap_are_refused_with_an_estimate"
    ),
    "keeps every sign": (
        "aggregation/test_aggregation.py::test_effective_attention_flows_by_a_named_choice"
    ),
    "a metric that replaces tokens": "test_interop.py::test_quantus_judges_texts",
}
# Nothing to obey: what exists is listed, or the rest of the work must be repeated.
FACTS = (
    "is outside the example",
    "is not a kind of segment",
    "is not known. Choose",
    "must be",
    "give at least 1MB",
    "so there is no occurrence",
    "joins layers by rollout or flow",
    "is a file; give a folder",
    "Workers died",
    "was begun with other options",
    "now {} were asked for",
    "has maps but no plan",
    "was not made by",
    "The data changed",
    "needs inseq",
    "needs mcp 1.x",
    "needs a newer huggingface_hub",
    "no layer left a record",
    "so start='embeddings' has no start",
    "is not a coordinate of this vector",
    "gives a vector per token",
    "leave checkpoint=True out",
    "too many for this page",
    "no parameters outside its encoder",
)


@pytest.mark.parametrize("case", sorted({case.__name__ for case in CASES.values()}))
def test_the_advice_works(case: str, tmp_path: Path, capsys: Any) -> None:
    globals()[case](tmp_path=tmp_path, capsys=capsys)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return _text(node.body) + _text(node.orelse) if isinstance(node, ast.IfExp) else ""


def messages() -> list[str]:
    """Every message of a raised error that names a call or an option."""
    found = []
    for path in sorted((ROOT / "ctxmix_hf").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = _text(node.exc.args[0])
                found += [f"{path.name}: {text}"] if CODE.search(text) else []
    return found


def test_every_advice_is_followed() -> None:
    listed = [*CASES, *ELSEWHERE, *FACTS]
    said = messages()
    assert not [text for text in said if not any(part in text for part in listed)]
    assert not [part for part in listed if not any(part in text for text in said)], (
        "the message is gone: so goes its line"
    )


def test_names_in_messages_exist() -> None:
    """`ctxmix_hf.x`, `cm.x` and `MapStore.x` are callable, `--options` and `ctxmix` commands are
    the parser's, extras are in pyproject.
    """
    from ctxmix_hf.cli.parser import build_parser

    whole = " ".join(messages())
    for name in re.findall(r"\b(?:cm|ctxmix_hf)\.(\w+)\(", whole):
        assert callable(getattr(cm, name)), name
    for name in re.findall(r"\bMapStore\.(\w+)\(", whole):
        assert callable(getattr(cm.MapStore, name)), name
    commands = next(a for a in build_parser()._actions if a.dest == "command").choices
    options = {flag for command in commands.values() for flag in command._option_string_actions}
    for flag in re.findall(r"(--[a-z][a-z-]+)", whole):
        assert flag in options, flag
    for name in re.findall(r"`ctxmix (\w+)", whole):
        assert name in commands


@pytest.mark.parametrize("place", ELSEWHERE.values())
def test_what_is_followed_elsewhere_is_there(place: str) -> None:
    path, _, name = place.partition("::")
    source = (ROOT / "tests" / path).read_text("utf-8")
    body = source if not name else source[source.index(f"def {name}(") :].split("\ndef ", 1)[0]
    assert "the advice" in body, place


def test_a_result_of_an_advice_is_a_result() -> None:
    """The cases above are no empty calls: a mistake in one of them fails."""
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        fails("x", lambda: replace(cm.explain(encoder(), TEXT, "attention")))
