"""Instrumented models on the Hub: pointers to a pinned base, copies with weights, and the attribute
that pushes them.
"""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi

import ctxmix_hf as cm
from ctxmix_hf.errors import OptionError, StoreError
from ctxmix_hf.hub.pointers import POINTER, find_pointer
from ctxmix_hf.modeling import PushToHub
from ctxmix_hf.recipes import methods_from_json, methods_to_json

from .conftest import RunPython
from .loopback import LoopbackHub
from .samples import fresh_model, tokenizer

SCRIPT = """
    import os, sys, torch
    sys.path.insert(0, os.environ["PYTHONPATH"])
    torch.set_num_threads(1)
    import ctxmix_hf as cm
    import transformers
    transformers.utils.logging.set_verbosity_error()
    from huggingface_hub import HfApi
    from tests.hub.samples import fresh_model, tokenizer
    base, repo = os.environ["REPO"] + "-base", os.environ["REPO"]
"""


def test_a_pointer_pins_its_base(
    server: LoopbackHub, api: HfApi, repo_id: str, run_python: RunPython
) -> None:
    run_python(
        SCRIPT
        + """
    fresh_model().push_to_hub(base); tokenizer().push_to_hub(base)
    Auto = cm.AutoContextMixingModelForSequenceClassification
    methods = ["alti", cm.method("value_zeroing", distance="euclidean")]
    model = Auto.from_pretrained(base, methods=methods)
    sha = model.push_to_hub(repo, private=True)
    assert sha == HfApi().model_info(repo).sha
    inputs = tokenizer()("good film", return_tensors="pt")
    wanted = model(**inputs, output_context_mixing=True)
    fresh_model(1).push_to_hub(base)  # the base moves on
    loaded = Auto.from_pretrained(repo, tokenizer=tokenizer())
    got = loaded(**inputs, output_context_mixing=True)
    assert torch.equal(got.logits, wanted.logits) and list(got.context_mixing) == ["alti", "value_zeroing"]
    assert got.context_mixing["value_zeroing"].meta["options"]["distance"] == "euclidean"
    assert torch.equal(got.context_mixing["alti"].input, wanted.context_mixing["alti"].input)
    assert list(got.context_mixing["alti"].tokens[0]) == ["[CLS]", "good", "film", "[SEP]"]
    assert not torch.equal(Auto.from_pretrained(base)(**inputs).logits, wanted.logits)  # a plain id is what it was
    assert loaded.push_to_hub(repo) == sha  # the same pointer: no new commit
    again = cm.instrument(transformers.AutoModelForSequenceClassification.from_pretrained(base))
    head = HfApi().model_info(base).sha
    def pinned(name, model):
        with cm.MapStore.create(name, model=model, methods=["alti"]) as store:
            return store.manifest.origin["revision"]
    assert pinned("plain", again) == head and pinned("pinned", loaded) != head and len(pinned("pin2", loaded)) == 40
    assert pinned("old", cm.instrument(transformers.AutoModelForSequenceClassification.from_pretrained(
        base, revision=loaded.push_to_hub.owner.revision))) is None  # not what main is, and nobody said which
    assert again.push_to_hub(repo + "-two") and Auto.from_pretrained(repo + "-two")(**inputs).logits is not None
    """,
        {"REPO": repo_id},
    )
    files = api.list_repo_files(repo_id)
    assert set(files) == {".gitattributes", "README.md", POINTER}
    body = json.loads(Path(api.hf_hub_download(repo_id, POINTER)).read_text())
    first = api.list_repo_commits(f"{repo_id}-base")[
        2
    ].commit_id  # model, then tokenizer, then the other model
    assert body["base_model"] == f"{repo_id}-base" and len(body["revision"]) == 40
    assert body["methods"][0] == "alti" and body["methods"][1]["options"]["distance"] == "euclidean"
    assert body["revision"] != api.model_info(f"{repo_id}-base").sha and first
    assert api.model_info(repo_id).card_data["base_model"] == f"{repo_id}-base"


def test_refusals_weights_and_offline(
    server: LoopbackHub, api: HfApi, repo_id: str, run_python: RunPython
) -> None:
    run_python(
        SCRIPT
        + """
    from ctxmix_hf.errors import StoreError, OptionError
    fresh_model().push_to_hub(base)
    Auto = cm.AutoContextMixingModelForSequenceClassification
    model = Auto.from_pretrained(base, methods=["alti"])
    model.push_to_hub(repo)
    Auto.from_pretrained(repo)
    def refused(call, words, kind=StoreError):
        try:
            call()
        except kind as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)
    refused(lambda: Auto.from_pretrained(repo, trust_remote_code=True), "runs no code", OptionError)
    refused(lambda: Auto.from_pretrained(repo + "-nothing"), "nothing", OSError)
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight.add_(1)
    refused(lambda: model.push_to_hub(repo), "include_weights=True")
    refused(lambda: cm.instrument(fresh_model()).push_to_hub(repo + "-local"), "include_weights=True")
    cm.instrument(fresh_model()).push_to_hub(repo + "-local", include_weights=True)  # the advice
    sha = model.push_to_hub(repo + "-full", include_weights=True, tokenizer=tokenizer())  # the advice
    inputs = tokenizer()("good film", return_tensors="pt")
    for loaded in (Auto.from_pretrained(repo + "-full"), transformers.AutoModelForSequenceClassification.from_pretrained(repo + "-full")):
        assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    assert list(Auto.from_pretrained(repo + "-full")(**inputs, output_context_mixing=True).context_mixing) == ["alti"]
    """,  # noqa: E501
        {"REPO": repo_id},
    )
    assert {"config.json", "model.safetensors", "tokenizer.json", POINTER} < set(
        api.list_repo_files(f"{repo_id}-full")
    )
    server.down()
    out = run_python(
        SCRIPT
        + """
    model = cm.AutoContextMixingModelForSequenceClassification.from_pretrained(repo)
    print(model.push_to_hub.methods)
    """,
        {"REPO": repo_id, "HF_HUB_OFFLINE": "1"},
    )
    assert out.strip() == "['alti']"


def test_the_attribute_comes_and_goes_with_the_instrumentation() -> None:
    model = cm.instrument(fresh_model(), tokenizer=tokenizer(), methods=["alti"])
    assert isinstance(model.push_to_hub, PushToHub) and model.config.context_mixing == {
        "methods": ["alti"]
    }
    twin = copy.deepcopy(model)
    assert twin.push_to_hub.model is twin and isinstance(twin.push_to_hub, PushToHub)
    thawed = pickle.loads(pickle.dumps(model))
    assert thawed.push_to_hub.model is thawed
    inputs = tokenizer()("good film", return_tensors="pt")
    wanted = model(**inputs, output_context_mixing=True).context_mixing["alti"].layers
    for other in (twin, thawed):
        assert torch.equal(
            other(**inputs, output_context_mixing=True).context_mixing["alti"].layers, wanted
        )
    names = set(fresh_model().__dict__)
    for other in (model, twin, thawed):
        cm.uninstrument(other)
        assert "push_to_hub" not in other.__dict__ and set(other.__dict__) == names
        assert other.push_to_hub.__func__ is type(other).push_to_hub and not hasattr(
            other.config, "context_mixing"
        )
    cm.instrument(model)
    assert not hasattr(model.config, "context_mixing")


def test_saved_models_stay_ordinary(tmp_path: Path) -> None:
    method = cm.method("alti", norm=2)
    model = cm.instrument(fresh_model(), methods=["value_zeroing", method])
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    again = cm.AutoContextMixingModelForSequenceClassification.from_pretrained(tmp_path)
    inputs = tokenizer()("good film", return_tensors="pt")
    got = again(**inputs, output_context_mixing=True).context_mixing
    assert list(got) == ["value_zeroing", "alti"] and got["alti"].meta["options"]["norm"] == 2
    with pytest.raises(StoreError, match="include_weights=True"):
        again.push_to_hub("me/x")
    with pytest.raises(StoreError, match="include_weights=True"):
        model.push_to_hub("me/x")


def test_methods_survive_json() -> None:
    methods = ["alti", "globenc", "alti+flow", cm.method("value_zeroing", distance="euclidean")]
    again = methods_from_json(json.loads(json.dumps(methods_to_json(methods))))
    assert (
        methods_to_json(again) == methods_to_json(methods)
        and again is not None
        and again[:3] == methods[:3]
    )
    assert methods_to_json(None) == [] and methods_from_json([]) is None
    with pytest.raises(StoreError, match="not a method"):
        methods_from_json([7])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_model": "../../etc"}, "names no base model"),
        ({"base_model": "/etc/passwd"}, "names no base model"),
        ({"base_model": None}, "names no base model"),
        ({"revision": "main"}, "does not pin"),
        ({"kind": "x"}, "names no base model"),
        ({"methods": [{"name": "alti"}]}, "not a method"),
    ],
)
def test_hostile_pointers(tmp_path: Path, change: dict[str, object], message: str) -> None:
    body = {
        "kind": "ctxmix-model",
        "base_model": "a/b",
        "revision": "0" * 40,
        "methods": ["alti"],
        **change,
    }
    (tmp_path / POINTER).write_text(json.dumps(body))
    with pytest.raises(StoreError, match=message):
        find_pointer(tmp_path, {})


def test_local_pointer_folders_are_read(tmp_path: Path) -> None:
    body = {"kind": "ctxmix-model", "base_model": "a/b", "revision": "0" * 40, "methods": ["alti"]}
    (tmp_path / POINTER).write_text(json.dumps(body))
    assert find_pointer(tmp_path, {"token": "t"}) == (
        "a/b",
        {"token": "t", "revision": "0" * 40},
        ["alti"],
    )
    with pytest.raises(OptionError, match="no code"):
        find_pointer(tmp_path, {"trust_remote_code": True})
    (tmp_path / POINTER).write_text(json.dumps({**body, "revision": None}))
    assert find_pointer(tmp_path, {}) is None
    assert find_pointer(tmp_path / "..", {}) is None
