"""Models and stores that a visitor of the page names on the Hub: what was weighed is what is read, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from huggingface_hub import HfApi

from .conftest import RunPython
from .loopback import LoopbackHub

SCRIPT = """
    import json, os, sys
    sys.path.insert(0, os.environ["PYTHONPATH"])
    import torch
    torch.set_num_threads(1)
    import transformers
    transformers.utils.logging.set_verbosity_error()
    from huggingface_hub import HfApi
    import ctxmix_hf as cm
    from ctxmix_hf.demo import shelf, sizes
    from tests.hub.samples import fresh_model, tokenizer
    base, repo = os.environ["REPO"] + "-base", os.environ["REPO"]
    TINY = json.dumps({"model_type": "bert", "architectures": ["BertForSequenceClassification"],
        "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8,
        "vocab_size": 15, "max_position_embeddings": 8}).encode()

    def upload(name, **files):
        api = HfApi()
        api.create_repo(name, exist_ok=True)
        for path, content in files.items():
            api.upload_file(repo_id=name, path_in_repo=path, path_or_fileobj=content)
        return api.model_info(name).sha

    def refused(name):
        try:
            return repr(shelf.load(name).model)
        except cm.CtxmixError as error:
            return str(error)
"""


def test_an_ordinary_model_is_loaded_at_the_commit_that_was_weighed(
    repo_id: str, run_python: RunPython
) -> None:
    """Its repository moves on in between; later it is read from the cache, with the network off."""
    script = (
        SCRIPT
        + """
    fresh_model().push_to_hub(base); tokenizer().push_to_hub(base)
    sha, read = HfApi().model_info(base).sha, shelf.AutoConfig.from_pretrained
    def moved(where, *args, **kwargs):
        fresh_model(1).push_to_hub(base)
        return read(where, *args, **kwargs)
    shelf.AutoConfig.from_pretrained = moved
    held = shelf.load(base)
    assert HfApi().model_info(base).sha != sha
    for name, tensor in fresh_model().state_dict().items():
        assert torch.equal(held.model.state_dict()[name], tensor), name
    assert held.tokenizer("good film")["input_ids"] == tokenizer()("good film")["input_ids"]
    assert held.model.push_to_hub.owner.revision == sha and held.kind == "classes"
    """
    )
    run_python(script, {"REPO": repo_id})
    offline = SCRIPT + "\n    assert shelf.load(base).tokenizer is not None\n"
    run_python(offline, {"REPO": repo_id, "HF_HUB_OFFLINE": "1"})


def test_a_pointer_to_another_model_is_refused(
    server: LoopbackHub, repo_id: str, run_python: RunPython
) -> None:
    """A tiny config.json beside a pointer passes every scale; the model that the pointer names was never weighed."""
    said = run_python(
        SCRIPT
        + """
    fresh_model().push_to_hub(base); tokenizer().push_to_hub(base)
    pointer = {"kind": "ctxmix-model", "base_model": base, "revision": HfApi().model_info(base).sha,
               "methods": None}
    upload(repo, **{"config.json": TINY, "ctxmix_config.json": json.dumps(pointer).encode()})
    print(refused(repo))
    upload(repo, **{"model.safetensors": b"no weights at all"})
    print(refused(repo))
    """,
        {"REPO": repo_id},
    )
    for line in said.splitlines():
        assert f"{repo_id} has no weights of its own" in line and "Give the name of" in line
    assert not [one for one in server.requests if "-base/" in one.path and "model.safe" in one.path]


def test_an_adapter_is_refused(repo_id: str, run_python: RunPython, tmp_path: Any) -> None:
    """PEFT would load what adapter_config.json names instead: a model of any size, or a folder of the server."""
    pytest.importorskip("peft", reason="the extra [test] installs PEFT")
    said = run_python(
        SCRIPT
        + """
    import peft
    secret, adapter = os.path.abspath("secret"), os.path.abspath("adapter")
    fresh_model().save_pretrained(secret); tokenizer().save_pretrained(secret)
    model = fresh_model(); model.config._name_or_path = model.name_or_path = secret
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"])).save_pretrained(adapter)
    tokenizer().save_pretrained(adapter)
    HfApi().create_repo(repo); HfApi().upload_folder(repo_id=repo, folder_path=adapter)
    upload(repo, **{"config.json": TINY})
    assert json.load(open(adapter + "/adapter_config.json"))["base_model_name_or_path"] == secret
    print(refused(repo))
    """,
        {"REPO": repo_id},
    )
    assert "PEFT adapter" in said and "Give the name of" in said and "secret" not in said


def test_a_configuration_is_weighed_before_it_is_fetched(
    server: LoopbackHub, repo_id: str, run_python: RunPython
) -> None:
    said = run_python(
        SCRIPT
        + """
    sizes.OTHERS = 10_000
    upload(repo, **{"config.json": TINY[:-1] + b"," + b" " * 20_000 + b'"x": 1}'})
    print(refused(repo))
    """,
        {"REPO": repo_id},
    )
    assert "of files; this server takes" in said
    assert server.bytes_sent(f"{repo_id}/resolve") == 0


def test_shards_under_other_names_are_not_fetched(
    server: LoopbackHub, api: HfApi, repo_id: str, run_python: RunPython
) -> None:
    """The index names a file that the scales do not know as weights."""
    said = run_python(
        SCRIPT
        + """
    names = list(fresh_model().state_dict())
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "elsewhere/large.safetensors")}
    fresh_model().save_pretrained("made")
    upload(repo, **{"config.json": open("made/config.json", "rb").read(),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "elsewhere/large.safetensors": open("made/model.safetensors", "rb").read()})
    print(refused(repo))
    """,
        {"REPO": repo_id},
    )
    assert "could not be loaded" in said
    assert server.bytes_sent("large.safetensors") == 0


def test_a_store_is_weighed_before_it_is_fetched(
    server: LoopbackHub, repo_id: str, run_python: RunPython
) -> None:
    said = run_python(
        SCRIPT
        + """
    from ctxmix_hf.demo import stores
    from tests.hub.samples import filled
    filled("made").push_to_hub(repo)
    for most in (0, 200):
        object.__setattr__(stores.SETTINGS, "store_megabytes", most)
        try:
            print(len(stores.open_store(repo).ids()))
        except cm.CtxmixError as error:
            print(error)
    """,
        {"REPO": repo_id},
    )
    first, second = said.splitlines()
    assert "index and examples have" in first and "at most 0 bytes are read here" in first
    assert int(second) == 6
