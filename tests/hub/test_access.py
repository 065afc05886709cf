"""Models as they lie on the Hub: gated, private, in shards, quantised; real clients, a sentence where it cannot be."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi
from transformers import (
    AutoBackbone,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    Dinov2Config,
    ResNetConfig,
    VitDetConfig,
)

import ctxmix_hf as cm
from ctxmix_hf import loading
from ctxmix_hf.auto import model_path
from ctxmix_hf.cli import main
from ctxmix_hf.errors import UnsupportedModelError

from .conftest import RunPython
from .loopback import LoopbackHub

TEXT = "The keys to the cabinet [MASK] here."
LOAD = """
    import os
    import ctxmix_hf as cm
    from ctxmix_hf import loading
    for repo, token in {asked!r}:
        os.environ["HF_TOKEN"] = token
        try:
            model, tokenizer = loading.load(repo)
            made = cm.explain(model, {text!r}, "alti", tokenizer=tokenizer)
            print(float(made.attribution("[MASK]").scores.sum()))
        except cm.CtxmixError as error:
            print(type(error).__name__, error)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small masked language model with its tokenizer."""
    path = tmp_path / "model"
    tokenizer = AutoTokenizer.from_pretrained(model_path("ctxmix/agreement"))
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(tokenizer), intermediate_size=32, **size)
    BertForMaskedLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def put(api: HfApi, repo: str, folder: Path, **options: bool) -> str:
    api.create_repo(repo, **options)
    api.upload_folder(repo_id=repo, folder_path=folder)
    return repo


def loaded(run_python: RunPython, *asked: tuple[str, str], **env: str) -> list[str]:
    """What came of loading each of these (repository, token) and explaining a sentence: one line each."""
    lines = run_python(LOAD.format(asked=asked, text=TEXT), env).splitlines()
    assert len(lines) == len(asked), lines
    return lines


def test_a_gated_model(
    server: LoopbackHub, api: HfApi, repo_id: str, folder: Path, run_python: RunPython
) -> None:
    repo, open_to_us = put(api, repo_id, folder), put(api, f"{repo_id}-granted", folder)
    for name in (repo, open_to_us):
        server.repos["model", name].gated = True
    server.repos["model", open_to_us].granted = True
    anonymous, waiting, granted = loaded(
        run_python, (repo, ""), (repo, server.token), (open_to_us, server.token)
    )
    assert anonymous == (
        f"InputError The model {repo!r} is gated: ask for access on its page of the Hub, then sign in "
        "(hf auth login) or set HF_TOKEN."
    )
    assert waiting == (
        f"InputError The model {repo!r} is gated, and your token was not given access to it yet: ask for it on "
        "its page of the Hub."
    )
    assert float(granted) == pytest.approx(1, abs=1e-5)


def test_a_private_model_and_its_token(
    server: LoopbackHub, api: HfApi, repo_id: str, folder: Path, run_python: RunPython
) -> None:
    repo = put(api, repo_id, folder, private=True)
    anonymous, wrong, right = loaded(
        run_python, (repo, ""), (repo, "hf_wrong"), (repo, server.token)
    )
    assert (
        anonymous
        == wrong
        == (
            f"InputError There is no model {repo!r} on the Hub, or it is private: check the name, and sign in "
            "(hf auth login) or set HF_TOKEN to a token that may read it."
        )
    )
    assert float(right) == pytest.approx(1, abs=1e-5)


def test_no_network_is_one_sentence(run_python: RunPython) -> None:
    (said,) = loaded(run_python, ("somebody/model", ""), HF_HUB_OFFLINE="1")
    assert said == (
        "InputError Could not load the model 'somebody/model': the Hub cannot be reached, and it is not in the "
        "local cache."
    )


@pytest.mark.parametrize("call", ["load", "load_embedder"])
def test_a_hub_that_does_not_answer_is_asked_once(call: str, run_python: RunPython) -> None:
    """Its client would ask six times for each of several files, a minute and a half in all, and say so each time."""
    said = run_python(
        f"""
        import socket, time
        from ctxmix_hf import loading
        asked = []
        time.sleep = lambda seconds: print("waited", seconds)
        refuse = socket.socket.connect
        socket.socket.connect = lambda *to: (asked.append(to), refuse(*to))
        try:
            loading.{call}("somebody/model")
        except Exception as error:
            print(type(error).__name__, error)
        print(len(asked))
        """,
        {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": ""},
    ).splitlines()
    sentence = "the Hub cannot be reached, and it is not in the local cache."
    assert said[:-1] == [f"InputError Could not load the model 'somebody/model': {sentence}"]
    assert int(said[-1]) <= 2  # for an embedder, the bare encoder is looked for as well


def test_a_checkpoint_in_shards(
    api: HfApi, repo_id: str, folder: Path, run_python: RunPython, tmp_path: Path
) -> None:
    model = BertForMaskedLM.from_pretrained(folder)
    model.save_pretrained(tmp_path / "shards", max_shard_size="100KB")
    (folder / "model.safetensors").unlink()
    shards = sorted((tmp_path / "shards").glob("model-*.safetensors"))
    assert len(shards) > 1
    for path in (*shards, tmp_path / "shards" / "model.safetensors.index.json"):
        path.rename(folder / path.name)
    repo = put(api, repo_id, folder)
    script = f"""
        import ctxmix_hf as cm
        from ctxmix_hf import loading
        model, tokenizer = loading.load({repo!r})
        cm.explain(model, {TEXT!r}, "alti", tokenizer=tokenizer).save("made.json")
        print(len(cm.verify(model, {TEXT!r}, tokenizer).layers))
    """
    assert run_python(script).splitlines()[-1] == "2"
    wanted = cm.explain(
        cm.instrument(model.eval()), TEXT, "alti", tokenizer=AutoTokenizer.from_pretrained(folder)
    )
    assert cm.ContextMixingMap.load(tmp_path / "made.json").input.equal(wanted.input)


@pytest.mark.parametrize(
    ("method", "package", "more"),
    [("bitsandbytes", "bitsandbytes", {"load_in_8bit": True}), ("gptq", "gptqmodel", {"bits": 4})],
    ids=["bitsandbytes", "gptq"],
)
def test_a_quantised_checkpoint_names_what_it_needs(
    method: str,
    package: str,
    more: dict[str, int],
    api: HfApi,
    repo_id: str,
    folder: Path,
    run_python: RunPython,
) -> None:
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed: this test is about a machine without it")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, **more}
    (folder / "config.json").write_text(json.dumps(config))
    (said,) = loaded(run_python, (put(api, repo_id, folder), ""))
    assert said.startswith(
        f"InputError The model {repo_id!r} is quantised with {method}, and what reads that is not here: "
    )
    assert said.endswith("Install it, or load the checkpoint that is not quantised.")


def test_a_certificate_names_the_commit(
    api: HfApi, repo_id: str, folder: Path, run_python: RunPython
) -> None:
    repo = put(api, repo_id, folder)
    commit = api.model_info(repo).sha
    made, held = run_python(f"""
        import json
        import ctxmix_hf as cm
        made = cm.certify({repo!r}, revision="main")
        with open("made.json", "w") as file:
            json.dump(made, file)
        print(made["model"]["revision"])
        print(cm.check_certificate("made.json"))
    """).splitlines()
    assert made == commit and held == "[]"
    model = BertForMaskedLM.from_pretrained(folder)
    model.bert.encoder.layer[0].output.dense.bias.data += 1
    model.save_pretrained(folder)
    api.upload_folder(repo_id=repo, folder_path=folder)
    check = """
        import contextlib, io
        from ctxmix_hf.cli import main
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(["certify", "--check", "made.json"])
        print(code, said.getvalue().strip())
    """
    assert run_python(check).strip() == f"0 The certificate holds for {repo}."  # of that commit
    away = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder.parent / "empty")}
    assert run_python(check, away).strip() == (
        f"2 ctxmix: Could not load the model {repo!r}: the Hub cannot be reached, and it is not in the local cache."
    )


TIMM = {
    "timm_wrapper": {"model_type": "timm_wrapper", "architectures": ["TimmWrapperModel"]},
    "timm_backbone": {"model_type": "timm_backbone", "architectures": ["TimmBackbone"]},
    "timm's own": {"architecture": "resnet18", "pretrained_cfg": {"tag": "a1"}},
}


@pytest.mark.parametrize("kind", TIMM)
def test_a_model_of_timm_is_refused_before_timm_is_asked_for(
    kind: str,
    api: HfApi,
    repo_id: str,
    run_python: RunPython,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if importlib.util.find_spec("timm") is not None:
        pytest.skip("timm is installed: this test is about a machine without it")
    folder = tmp_path / "wrapped"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**TIMM[kind], "num_classes": 10}))
    named = kind if "_" in kind else "timm_wrapper"
    wanted = (
        f"{named} cannot be decomposed: it wraps a model of timm, whose layers are not read: load the same "
        "architecture with its own class of transformers (ViT, DeiT, BEiT, DINOv2, ...)."
    )
    (said,) = loaded(run_python, (put(api, repo_id, folder), ""))
    assert said == f"UnsupportedModelError {wanted}"
    with pytest.raises(UnsupportedModelError) as local:
        loading.load(str(folder))
    assert str(local.value) == wanted
    assert main(["doctor", str(folder)]) == 2
    assert capsys.readouterr().err == f"ctxmix: {wanted}\n"


def test_timm_and_backbones_are_told_apart() -> None:
    """A wrapper of timm is refused in words; a backbone that is an encoder is explained as the encoder it is."""

    class Wrapper(BertModel):
        """timm itself cannot be installed beside this torch (it wants torchvision): a model that says it is one."""

    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    for kind in ("timm_wrapper", "timm_backbone"):
        config = BertConfig(vocab_size=9, intermediate_size=32, **size)
        model = Wrapper(config)
        model.config.model_type = kind
        with pytest.raises(
            UnsupportedModelError, match=rf"{kind} cannot be decomposed: it wraps.*timm"
        ):
            cm.instrument(model)
    pixels = torch.randn(1, 3, 16, 16)
    dino = AutoBackbone.from_config(
        Dinov2Config(image_size=16, patch_size=8, out_features=["stage2"], **size)
    )
    assert type(dino).__name__ == "Dinov2Backbone"
    made = cm.explain(cm.instrument(dino.eval()), pixels, "alti")
    assert made.depth == 2 and torch.allclose(made.input.sum(-1), torch.ones(1, 2, 5), atol=1e-5)
    assert cm.verify(dino, {"pixel_values": pixels}).exact
    for refused, words in (
        (ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1]), "no softmax attention"),
        (VitDetConfig(image_size=16, patch_size=8, **size), "local windows"),
    ):
        with pytest.raises(UnsupportedModelError, match=words):
            cm.instrument(AutoBackbone.from_config(refused))


def test_a_bitsandbytes_model_is_exact() -> None:
    pytest.importorskip(
        "bitsandbytes", reason="bitsandbytes is not installed (it needs a GPU build to be of use)"
    )
    from transformers import BitsAndBytesConfig

    model = cm.AutoContextMixingModelForMaskedLM.from_pretrained(
        "ctxmix/agreement", quantization_config=BitsAndBytesConfig(load_in_8bit=True)
    )
    assert cm.verify(
        model, TEXT, AutoTokenizer.from_pretrained(model_path("ctxmix/agreement"))
    ).exact
