"""The loopback Hub against code that reads its endpoint from the environment, in processes of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.utils import get_session

from .conftest import BIG, SHARD, RunPython
from .loopback import LoopbackHub


@pytest.mark.usefixtures("sample_commit")
def test_file_system_reads_a_slice(
    server: LoopbackHub, repo_id: str, run_python: RunPython
) -> None:
    script = """
        import os
        from huggingface_hub import HfFileSystem
        with HfFileSystem().open(os.environ["FILE"], block_size=1) as file:
            file.seek(5_000_000)
            print(file.read(100).hex())
    """
    server.requests.clear()
    assert (
        run_python(script, {"FILE": f"datasets/{repo_id}/{SHARD}"}).strip()
        == BIG[5_000_000:5_000_100].hex()
    )
    assert server.bytes_sent("/storage/") < 1000


def test_offline_after_download(
    server: LoopbackHub, repo_id: str, sample_commit: str, run_python: RunPython
) -> None:
    script = """
        import os
        from huggingface_hub import snapshot_download
        print(snapshot_download(os.environ["REPO"], repo_type="dataset", revision=os.environ["SHA"]))
    """
    env = {"REPO": repo_id, "SHA": sample_commit}
    online = run_python(script, env)
    server.down()
    assert run_python(script, env | {"HF_HUB_OFFLINE": "1"}) == online


@pytest.mark.usefixtures("sample_commit")
def test_load_dataset_follows_the_card(
    server: LoopbackHub, repo_id: str, run_python: RunPython
) -> None:
    script = """
        import os
        from datasets import load_dataset
        print(*load_dataset(os.environ["REPO"], split="test")["text"], sep=",")
    """
    printed = run_python(script, {"REPO": repo_id})
    assert printed.strip() == "sentence 0,sentence 1,sentence 2"
    assert server.bytes_sent("/storage/") == 0


def test_transformers_push_and_load(
    server: LoopbackHub, api: HfApi, repo_id: str, run_python: RunPython
) -> None:
    script = """
        import os
        import torch
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast
        torch.set_num_threads(1)
        words = {"[UNK]": 0, "[PAD]": 1, "a": 2, "b": 3}
        backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
        size = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        model, repo = BertModel(BertConfig(vocab_size=4, **size)).eval(), os.environ["REPO"]
        model.push_to_hub(repo)
        tokenizer.push_to_hub(repo)
        ids = AutoTokenizer.from_pretrained(repo)("a b c", return_tensors="pt").input_ids
        assert ids.tolist() == [[2, 3, 0]]
        loaded = AutoModel.from_pretrained(repo).eval()
        assert torch.equal(loaded(ids).last_hidden_state, model(ids).last_hidden_state)
    """
    run_python(script, {"REPO": repo_id})
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(
        api.list_repo_files(repo_id)
    )


@pytest.mark.skipif(importlib.util.find_spec("hf_xet") is None, reason="hf_xet is not installed")
def test_upload_and_download_by_xet(
    server: LoopbackHub, repo_id: str, sample_folder: Path, run_python: RunPython
) -> None:
    script = """
        import os
        from pathlib import Path
        from huggingface_hub import HfApi, snapshot_download
        api, repo, folder = HfApi(), os.environ["REPO"], Path(os.environ["FOLDER"])
        api.create_repo(repo, repo_type="dataset")
        api.upload_folder(repo_id=repo, repo_type="dataset", folder_path=folder)
        got = Path(snapshot_download(repo, repo_type="dataset"))
        for path in folder.rglob("*.*"):
            assert (got / path.relative_to(folder)).read_bytes() == path.read_bytes(), path
    """
    run_python(script, {"REPO": repo_id, "FOLDER": str(sample_folder), "HF_HUB_DISABLE_XET": "0"})
    assert any("/xet-write-token/" in one.path for one in server.requests)
    assert (
        not any(one.method == "PUT" for one in server.requests)
        and server.bytes_sent("/storage/") == 0
    )
    url = hf_hub_url(repo_id, SHARD, repo_type="dataset", endpoint=server.url)
    assert get_session().get(url, headers={"Range": "bytes=7-9"}).content == BIG[7:10]
