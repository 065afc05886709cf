"""Stores seen by programs that read the Hub's address from their surroundings: `load_dataset`, offline runs, Xet."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ctxmix_hf.hub.store import MapStore

from .conftest import RunPython
from .loopback import LoopbackHub
from .samples import TEXTS, filled
from .synthetic import add_number, manifest


def test_load_dataset_reads_examples_and_parquet(
    server: LoopbackHub, repo_id: str, tmp_path: Path, run_python: RunPython
) -> None:
    pytest.importorskip("datasets")
    store = filled(tmp_path / "m")
    store.to_parquet(methods=["alti"])
    store.push_to_hub(repo_id, endpoint=server.url, token=server.token)
    script = """
        import os, numpy
        from datasets import load_dataset
        rows = load_dataset(os.environ["REPO"], split="validation")
        print(rows["text"][:], rows["label"][:2], rows["tokens"][2], sep="|")
        maps = load_dataset(os.environ["REPO"], "alti", split="validation")
        print(maps["id"][:2], numpy.array(maps[3]["map"]).shape, sep="|")
    """
    first, second = run_python(script, {"REPO": repo_id}).splitlines()
    assert first == f"{TEXTS}|[0, 1]|['[CLS]', 'not', 'bad', '[SEP]']"
    assert second == "['validation-0', 'validation-1']|(2, 13, 13)"


def test_offline_after_download(
    server: LoopbackHub, repo_id: str, tmp_path: Path, run_python: RunPython
) -> None:
    filled(tmp_path / "m").push_to_hub(repo_id, endpoint=server.url, token=server.token, tag="v1")
    script = """
        import os
        import ctxmix_hf as cm
        store = cm.MapStore.from_hub(os.environ["REPO"], revision="v1")
        if "DOWNLOAD" in os.environ:
            store.download()
        print(store.revision, store["validation-3", "alti"].layers.sum().item())
        try:
            cm.MapStore.from_hub("me/other")
        except cm.CtxmixError as error:
            print(error)
    """
    online = run_python(script, {"REPO": repo_id, "DOWNLOAD": "1"}).splitlines()
    server.down()
    offline = run_python(script, {"REPO": repo_id, "HF_HUB_OFFLINE": "1"}).splitlines()
    assert offline[0] == online[0] and "cannot be reached" in offline[1]


@pytest.mark.skipif(importlib.util.find_spec("hf_xet") is None, reason="hf_xet is not installed")
def test_push_and_read_by_xet(
    server: LoopbackHub, repo_id: str, tmp_path: Path, run_python: RunPython
) -> None:
    with MapStore.from_manifest(tmp_path / "m", manifest(1 << 20)) as store:
        for number in range(40):
            add_number(store, number)
    script = """
        import os, torch
        import ctxmix_hf as cm
        local = cm.MapStore.open(os.environ["FOLDER"])
        sha = local.push_to_hub(os.environ["REPO"])
        store = cm.MapStore.from_hub(os.environ["REPO"])
        assert store.revision == sha and torch.equal(store["17b", "alti"].layers, local["17b", "alti"].layers)
        store.download()
        assert all(torch.equal(a.layers, b.layers) for a, b in zip(store.iter("alti"), local.iter("alti"), strict=True))
    """
    run_python(script, {"REPO": repo_id, "FOLDER": str(tmp_path / "m"), "HF_HUB_DISABLE_XET": "0"})
    assert any("/xet-write-token/" in one.path for one in server.requests)
