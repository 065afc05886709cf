"""Stores on the loopback Hub, by the real client: push, lazy reading, download, and everything that
goes wrong on the way.
"""

from __future__ import annotations

import logging
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi

from ctxmix_hf.errors import CtxmixError, StoreError
from ctxmix_hf.hub.folders import INDEX, MANIFEST
from ctxmix_hf.hub.store import MapStore

from .loopback import LoopbackHub
from .samples import TEXTS, filled
from .synthetic import add_number, contents, manifest

SHARD = "matrices/alti/shard-00000.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "maps"
    filled(path)
    return path


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A closed store of its own for every test."""
    return Path(shutil.copytree(made, tmp_path / "maps"))


@pytest.fixture
def access(server: LoopbackHub, tmp_path: Path) -> dict[str, Any]:
    """Where and how to read."""
    return {"endpoint": server.url, "token": server.token, "cache_dir": tmp_path / "cache"}


def push(server: LoopbackHub, folder: Path, repo_id: str, **options: Any) -> str:
    return MapStore.open(folder).push_to_hub(
        repo_id, endpoint=server.url, **{"token": server.token, **options}
    )


def test_one_example_is_one_request_of_its_bytes(
    server: LoopbackHub, folder: Path, repo_id: str, access: dict[str, Any]
) -> None:
    sha = push(server, folder, repo_id, private=True, tag="v1")
    local = MapStore.open(folder)
    store = MapStore.from_hub(repo_id, revision="v1", **access)
    assert store.revision == sha and store.ids() == local.ids() and store.methods == local.methods
    assert server.bytes_sent(SHARD) == 0
    server.requests.clear()
    m = store["validation-3", "alti"]
    assert (
        torch.equal(m.layers, local["validation-3", "alti"].layers)
        and m.tokens == local["validation-3", "alti"].tokens
    )
    gets = [one for one in server.requests if one.range]
    place = store.index.rows["validation-3"].places[0]
    assert (
        sum(one.bytes_sent for one in server.requests) == place.end - place.begin == 2 * 13 * 13 * 4
    )
    assert (
        len({one.range for one in gets}) == 1 and len(server.requests) <= 2
    )  # the Hub, and where it sends the client on to
    assert not any(one.authorized for one in server.requests if one.host == "localhost")


def test_card_and_files_on_the_hub(
    server: LoopbackHub, api: HfApi, folder: Path, repo_id: str
) -> None:
    (folder / "secret.txt").write_text("not part of the store")
    sha = push(server, folder, repo_id)
    there = api.list_repo_files(repo_id, repo_type="dataset")
    assert {MANIFEST, INDEX, "README.md", SHARD, "examples/validation.jsonl"} < set(there)
    assert "secret.txt" not in there and not any(
        ".lock" in name or "pending" in name for name in there
    )
    info = api.dataset_info(repo_id)
    assert (
        info.sha == sha
        and info.card_data is not None
        and "context-mixing" in info.card_data["tags"]
    )
    assert api.list_repo_commits(repo_id, repo_type="dataset")[0].commit_id == sha


def test_pushing_twice_makes_one_commit_and_more_examples_another(
    server: LoopbackHub, api: HfApi, repo_id: str, tmp_path: Path, access: dict[str, Any]
) -> None:
    with MapStore.from_manifest(tmp_path / "m", manifest()) as store:
        for number in range(12):
            add_number(store, number)
    first = push(server, tmp_path / "m", repo_id)
    assert push(server, tmp_path / "m", repo_id) == first
    old = MapStore.from_hub(repo_id, **access)
    with MapStore.open(tmp_path / "m", append=True) as store:
        for number in range(12, 20):
            add_number(store, number)
    second = push(server, tmp_path / "m", repo_id)
    assert second != first and len(MapStore.from_hub(repo_id, **access)) == 40
    assert torch.equal(
        old["11b", "alti"].layers, store["11b", "alti"].layers
    )  # pinned to its commit
    with MapStore.from_manifest(tmp_path / "small", manifest(methods=["attention"])) as store:
        store.add_maps(["x"], {"attention": MapStore.open(tmp_path / "m")["0a", "attention"]})
    push(server, tmp_path / "small", repo_id)
    there = api.list_repo_files(repo_id, repo_type="dataset")
    assert not any(
        name.startswith("matrices/alti") for name in there
    )  # nothing stale is left beside it
    assert MapStore.from_hub(repo_id, **access).ids() == ["x"]


def test_download_and_read_without_the_hub(
    server: LoopbackHub, folder: Path, repo_id: str, access: dict[str, Any], tmp_path: Path
) -> None:
    push(server, folder, repo_id)
    store = MapStore.from_hub(repo_id, **access)
    assert store.download(methods=["alti"]).is_dir()
    server.requests.clear()
    assert store["validation-1", "alti"].size == 6 and server.requests == []
    assert store["validation-1", "value_zeroing"].size == 6 and server.requests != []
    store.download()
    server.down()
    assert [m.meta["id"] for m in store.iter("value_zeroing")] == store.ids()
    store.verify()
    server.up()
    elsewhere = MapStore.from_hub(repo_id, **access)
    elsewhere.download(tmp_path / "copy")
    copied = {
        name: value
        for name, value in contents(tmp_path / "copy").items()
        if not name.startswith(".")
    }
    assert copied == {k: v for k, v in contents(folder).items() if not k.startswith(".")}
    copy = MapStore.open(tmp_path / "copy")
    assert copy["validation-2", "alti"].size == 4
    fresh, to = (
        MapStore.from_hub(repo_id, **{**access, "cache_dir": tmp_path / "cache"}),
        {"endpoint": server.url, "token": server.token},
    )
    for call in (fresh.verify, lambda: fresh.push_to_hub(f"{repo_id}-again", **to)):
        with pytest.raises(StoreError, match="download"):
            call()
    with pytest.raises(CtxmixError, match=r"to_parquet\(folder\)"):
        fresh.to_parquet()
    assert fresh.to_parquet(tmp_path / "parquet")  # the advice
    copy.verify()  # the advice
    assert len(copy.push_to_hub(f"{repo_id}-again", **to)) == 40


def test_branches_and_revisions(
    server: LoopbackHub, folder: Path, repo_id: str, access: dict[str, Any]
) -> None:
    sha = push(server, folder, repo_id, revision="try/slash")
    assert MapStore.from_hub(repo_id, revision="try/slash", **access).revision == sha
    assert len(MapStore.from_hub(repo_id, revision=sha, **access)) == len(TEXTS)
    with pytest.raises(StoreError, match="no such file"):
        MapStore.from_hub(repo_id, **access)  # main is empty
    with pytest.raises(StoreError, match="the revision 'v9' does not exist"):
        MapStore.from_hub(repo_id, revision="v9", **access)


def test_who_may_read_and_write(
    server: LoopbackHub,
    folder: Path,
    repo_id: str,
    access: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    caplog.set_level(logging.DEBUG)
    push(server, folder, repo_id, private=True)
    with pytest.raises(StoreError, match="no such repository, or it is private"):
        MapStore.from_hub(repo_id, **{**access, "token": False})
    wrong = "hf_wrong" + "x" * 20
    with pytest.raises(StoreError, match="401") as caught:
        MapStore.from_hub(repo_id, **{**access, "token": wrong})
    assert wrong not in str(caught.value)
    with pytest.raises(StoreError, match="401") as caught:
        push(server, folder, repo_id, token=wrong)
    assert wrong not in str(caught.value)
    with pytest.raises(StoreError, match="no such repository"):
        MapStore.from_hub("tester/nothing-here", **access)
    with pytest.raises(StoreError, match="not a repository name"):
        MapStore.from_hub("a/b/c", **access)
    store = MapStore.from_hub(repo_id, **access)
    store["validation-0", "alti"]
    secrets = (server.token, wrong)
    assert not any(secret in caplog.text or secret in repr(store.source) for secret in secrets)
    assert server.token.encode() not in pickle.dumps(store.source)
    written = b"".join(
        path.read_bytes()
        for path in [*folder.rglob("*"), *(tmp_path / "cache").rglob("*")]
        if path.is_file()
    )
    assert not any(secret.encode() in written for secret in secrets)


def test_somebody_else_pushes_meanwhile(
    server: LoopbackHub, api: HfApi, folder: Path, repo_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(server, folder, repo_id)
    (folder / "README.md").write_text("---\nlicense: mit\n---\nmy own card")
    real = HfApi.list_repo_files

    def and_then(self: HfApi, *args: Any, **options: Any) -> Any:
        found = real(self, *args, **options)
        api.upload_file(
            repo_id=repo_id, repo_type="dataset", path_in_repo="other.txt", path_or_fileobj=b"1"
        )
        return found

    monkeypatch.setattr(HfApi, "list_repo_files", and_then)
    with pytest.raises(StoreError, match="somebody else pushed meanwhile"):
        push(server, folder, repo_id)
    monkeypatch.undo()
    push(server, folder, repo_id)
    assert "my own card" in (folder / "README.md").read_text()  # a card that people wrote is kept


def test_ranges_survive_a_cut_connection_and_a_busy_server(
    server: LoopbackHub, folder: Path, repo_id: str, access: dict[str, Any]
) -> None:
    push(server, folder, repo_id)
    store, local = MapStore.from_hub(repo_id, **access), MapStore.open(folder)
    server.cut_after_bytes = 100
    assert torch.equal(store["validation-3", "alti"].layers, local["validation-3", "alti"].layers)
    server.fail_next(503, SHARD)
    assert torch.equal(store["validation-2", "alti"].layers, local["validation-2", "alti"].layers)
    server.ignore_ranges = True  # a mirror that sends everything
    assert torch.equal(store["validation-1", "alti"].layers, local["validation-1", "alti"].layers)
    server.ignore_ranges = False
    server.fail_next(404, SHARD)
    with pytest.raises(StoreError, match="404"):
        store["validation-1", "alti"]
    server.down()
    with pytest.raises(StoreError, match=repo_id):
        store["validation-1", "alti"]


def test_interrupted_push_goes_on(
    server: LoopbackHub, api: HfApi, repo_id: str, tmp_path: Path, access: dict[str, Any]
) -> None:
    with MapStore.from_manifest(tmp_path / "m", manifest()) as store:
        for number in range(30):
            add_number(store, number)
    server.fail_next(400, "/commit/")
    with pytest.raises(StoreError):
        push(server, tmp_path / "m", repo_id)
    sent = [one.path for one in server.requests if one.method == "PUT"]
    with pytest.raises(StoreError, match="no such file"):
        MapStore.from_hub(repo_id, **access)  # nothing is there by half
    server.requests.clear()
    push(server, tmp_path / "m", repo_id)
    again = [one.path for one in server.requests if one.method == "PUT"]
    assert sent and not again  # the large files had arrived
    assert len(MapStore.from_hub(repo_id, **access)) == 60


def test_interrupted_download_goes_on(
    server: LoopbackHub, repo_id: str, tmp_path: Path, access: dict[str, Any]
) -> None:
    with MapStore.from_manifest(tmp_path / "m", manifest()) as store:
        for number in range(30):
            add_number(store, number)
    push(server, tmp_path / "m", repo_id)
    store = MapStore.from_hub(repo_id, **access)
    server.fail_next(404, "shard-00001.safetensors", times=50)
    with pytest.raises(StoreError):
        store.download(tmp_path / "copy")
    names = [
        path for path in (tmp_path / "copy").rglob("*.safetensors") if ".cache" not in path.parts
    ]
    for path in names:  # what is in place is whole
        assert (
            path.read_bytes() == (tmp_path / "m" / path.relative_to(tmp_path / "copy")).read_bytes()
        )
    server.reset()
    store.download(tmp_path / "copy")
    MapStore.open(tmp_path / "copy").verify()


def test_other_bytes_on_the_hub_are_noticed(
    server: LoopbackHub, api: HfApi, folder: Path, repo_id: str, access: dict[str, Any]
) -> None:
    push(server, folder, repo_id)
    data = bytearray((folder / SHARD).read_bytes())
    data[-3] ^= 1

    def put(name: str, content: bytes) -> None:
        api.upload_file(
            repo_id=repo_id, repo_type="dataset", path_in_repo=name, path_or_fileobj=content
        )

    put(SHARD, bytes(data))
    store = MapStore.from_hub(repo_id, **access)
    with pytest.raises(StoreError, match="checksum does not fit"):
        store["validation-5", "alti"]
    server.requests.clear()
    with pytest.raises(StoreError, match="is not the file the manifest describes"):
        store.download()
    assert server.bytes_sent(SHARD) == 0  # nothing large was fetched for it
    put(SHARD, bytes(data[:-40]))
    with pytest.raises(StoreError, match=r"truncated|got|416"):
        MapStore.from_hub(repo_id, **access)["validation-5", "alti"]
    put(INDEX, (folder / INDEX).read_bytes().replace(b"validation-0", b"validation-9"))
    with pytest.raises(StoreError, match=r"index\.jsonl is damaged"):
        MapStore.from_hub(repo_id, **access)
    put(MANIFEST, b'{"kind": "other"}')
    with pytest.raises(StoreError, match="does not describe a map store"):
        MapStore.from_hub(repo_id, **access)


def test_only_closed_whole_stores_are_pushed(
    server: LoopbackHub, folder: Path, repo_id: str, tmp_path: Path
) -> None:
    with MapStore.from_manifest(tmp_path / "open", manifest()) as store:
        add_number(store, 0)
        with pytest.raises(StoreError, match="Only a store in a folder"):
            MapStore.open(tmp_path / "open").push_to_hub(
                repo_id, endpoint=server.url, token=server.token
            )
    data = bytearray((folder / SHARD).read_bytes())
    data[-3] ^= 1
    (folder / SHARD).write_bytes(data)
    with pytest.raises(StoreError, match="checksum"):
        push(server, folder, repo_id)
    assert server.requests == []
