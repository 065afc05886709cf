"""The loopback Hub against the real client: repositories, uploads, revisions, and who may do what."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
)
from huggingface_hub.hf_api import RepoFile, RepoFolder

from .conftest import BIG, SHARD, sha256
from .loopback import LoopbackHub

# ---- repositories


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_create_answers_409_and_exist_ok_accepts_it(api: HfApi, repo_id: str, kind: str) -> None:
    url = api.create_repo(repo_id, repo_type=kind)
    assert (url.repo_id, url.repo_type) == (repo_id, kind)
    with pytest.raises(HfHubHTTPError) as caught:
        api.create_repo(repo_id, repo_type=kind)
    assert caught.value.response.status_code == 409
    assert api.create_repo(repo_id, repo_type=kind, exist_ok=True) == url


def test_deleted_repo_is_gone(api: HfApi, repo_id: str) -> None:
    api.create_repo(repo_id)
    assert api.repo_exists(repo_id)
    api.delete_repo(repo_id)
    assert not api.repo_exists(repo_id)
    with pytest.raises(RepositoryNotFoundError):
        api.delete_repo(repo_id)


def test_space_repo_takes_files(api: HfApi, repo_id: str, tmp_path: Path) -> None:
    api.create_repo(repo_id, repo_type="space", space_sdk="gradio")
    (tmp_path / "app.py").write_text("print('app')\n")
    (tmp_path / "README.md").write_text("---\ntitle: Maps\nsdk: gradio\napp_file: app.py\n---\n")
    api.upload_folder(repo_id=repo_id, repo_type="space", folder_path=tmp_path)
    info = api.space_info(repo_id)
    assert info.sdk == "gradio" and info.card_data is not None and info.card_data.title == "Maps"
    assert {"app.py", "README.md"} < set(api.list_repo_files(repo_id, repo_type="space"))


def test_bad_card_is_refused_before_anything_is_sent(
    server: LoopbackHub, api: HfApi, repo_id: str
) -> None:
    api.create_repo(repo_id)
    with pytest.raises(ValueError, match="Invalid metadata in README"):
        api.upload_file(
            repo_id=repo_id, path_in_repo="README.md", path_or_fileobj=b"---\na: [1\n---\n"
        )
    assert not any("/commit/" in one.path for one in server.requests)


# ---- uploads


@pytest.mark.usefixtures("plain_uploads")
def test_upload_folder_then_again_makes_one_commit(
    server: LoopbackHub, api: HfApi, repo_id: str, sample_folder: Path, sample_commit: str
) -> None:
    assert [one.path for one in server.requests if one.method == "PUT"] == [
        f"/lfs/datasets/{repo_id}/upload/{sha256(sample_folder / SHARD)}"
    ]
    again = api.upload_folder(repo_id=repo_id, repo_type="dataset", folder_path=sample_folder)
    assert again.oid == sample_commit
    assert sum("/commit/" in one.path for one in server.requests) == 1
    history = api.list_repo_commits(repo_id, repo_type="dataset")
    assert history[0].commit_id == sample_commit and len(history) == 2


@pytest.mark.usefixtures("plain_uploads")
def test_upload_in_parts(server: LoopbackHub, api: HfApi, repo_id: str, tmp_path: Path) -> None:
    server.multipart_bytes = 1_000_000
    api.create_repo(repo_id)
    api.upload_file(repo_id=repo_id, path_in_repo="a.bin", path_or_fileobj=BIG[:3_500_000])
    assert sum("/part/" in one.path for one in server.requests) == 4
    got = hf_hub_download(repo_id, "a.bin", endpoint=server.url, token=False, cache_dir=tmp_path)
    assert Path(got).read_bytes() == BIG[:3_500_000]


def test_commit_deletes_files_and_folders(api: HfApi, repo_id: str, sample_commit: str) -> None:
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationAdd("new.txt", b"new"),
        CommitOperationDelete("ctxmix.json"),
        CommitOperationDelete("matrices/"),
    ]
    api.create_commit(repo_id, operations, repo_type="dataset", commit_message="tidy")
    present = api.list_repo_files(repo_id, repo_type="dataset")
    assert present == [".gitattributes", "README.md", "examples/test.jsonl", "new.txt"]
    assert SHARD in api.list_repo_files(repo_id, repo_type="dataset", revision=sample_commit)
    with pytest.raises(EntryNotFoundError):
        api.delete_file("ctxmix.json", repo_id, repo_type="dataset")


def test_stale_parent_is_refused(api: HfApi, repo_id: str) -> None:
    api.create_repo(repo_id)
    first = api.upload_file(repo_id=repo_id, path_in_repo="a.txt", path_or_fileobj=b"1").oid
    api.upload_file(
        repo_id=repo_id, path_in_repo="a.txt", path_or_fileobj=b"2", parent_commit=first
    )
    with pytest.raises(HfHubHTTPError) as caught:
        api.upload_file(
            repo_id=repo_id, path_in_repo="a.txt", path_or_fileobj=b"3", parent_commit=first
        )
    assert caught.value.response.status_code == 412


# ---- revisions and listings


def test_tags_and_branches_pin_what_main_leaves_behind(
    server: LoopbackHub, api: HfApi, repo_id: str, tmp_path: Path
) -> None:
    api.create_repo(repo_id)
    old = api.upload_file(repo_id=repo_id, path_in_repo="a.txt", path_or_fileobj=b"old").oid
    api.create_tag(repo_id, tag="v1")
    api.create_branch(repo_id, branch="try/slash")
    api.upload_file(repo_id=repo_id, path_in_repo="a.txt", path_or_fileobj=b"new")
    branched = api.upload_file(
        repo_id=repo_id, path_in_repo="b.txt", path_or_fileobj=b"b", revision="try/slash"
    ).oid

    def read(revision: str) -> str:
        return Path(
            api.hf_hub_download(repo_id, "a.txt", revision=revision, cache_dir=tmp_path)
        ).read_text()

    assert [read(name) for name in ("v1", old, "try/slash", branched, "main")] == ["old"] * 4 + [
        "new"
    ]
    assert api.resolve_revision(repo_id, revision="v1", cache_dir=tmp_path).resolved == old
    refs = api.list_repo_refs(repo_id)
    assert {ref.name for ref in refs.branches} == {"main", "try/slash"}
    assert [(ref.name, ref.target_commit) for ref in refs.tags] == [("v1", old)]
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_tag(repo_id, tag="v1")
    api.create_tag(repo_id, tag="v1", exist_ok=True)
    api.delete_tag(repo_id, tag="v1")
    api.delete_branch(repo_id, branch="try/slash")
    assert not api.revision_exists(repo_id, "v1") and not api.revision_exists(repo_id, "try/slash")
    assert any("try%2Fslash" in one.path for one in server.requests)


def test_listings_come_in_pages(
    server: LoopbackHub, api: HfApi, repo_id: str, sample_folder: Path, sample_commit: str
) -> None:
    expected = {str(path.relative_to(sample_folder)) for path in sample_folder.rglob("*")} | {
        ".gitattributes"
    }
    server.tree_page_size = 2
    rows = list(api.list_repo_tree(repo_id, recursive=True, repo_type="dataset"))
    assert {row.path for row in rows} == expected and len(rows) == len(expected)
    top = {
        row.path
        for row in api.list_repo_tree(repo_id, "matrices", repo_type="dataset", expand=True)
    }
    assert top == {"matrices/tiny"}
    assert sum("/tree/" in one.path for one in server.requests) > 5


def test_paths_info_names_size_and_hash(
    api: HfApi, repo_id: str, sample_folder: Path, sample_commit: str
) -> None:
    names = [SHARD, "README.md", "matrices", "nothing"]
    shard, card, matrices = api.get_paths_info(repo_id, names, repo_type="dataset", expand=True)
    assert (
        isinstance(shard, RepoFile)
        and isinstance(card, RepoFile)
        and isinstance(matrices, RepoFolder)
    )
    assert shard.lfs is not None and shard.lfs.sha256 == sha256(sample_folder / SHARD)
    assert shard.size == len(BIG) and matrices.path == "matrices"
    assert (
        card.lfs is None and card.last_commit is not None and card.last_commit.oid == sample_commit
    )


def test_info_lists_files_with_sizes(api: HfApi, repo_id: str, sample_commit: str) -> None:
    info = api.dataset_info(repo_id, files_metadata=True)
    assert (
        info.sha == sample_commit
        and info.card_data is not None
        and info.card_data["license"] == "mit"
    )
    assert {one.rfilename: one.size for one in info.siblings or []}[SHARD] == len(BIG)


# ---- who may do what


def test_wrong_token_is_401_even_on_a_public_repo(
    server: LoopbackHub, api: HfApi, repo_id: str, tmp_path: Path
) -> None:
    api.create_repo(repo_id)
    wrong = HfApi(endpoint=server.url, token="hf_wrong")
    assert api.whoami()["name"] == server.user
    for call in (
        lambda: wrong.whoami(),
        lambda: wrong.model_info(repo_id),
        lambda: wrong.hf_hub_download(repo_id, ".gitattributes", cache_dir=tmp_path),
        lambda: wrong.upload_file(repo_id=repo_id, path_in_repo="a.txt", path_or_fileobj=b"a"),
    ):
        with pytest.raises(HfHubHTTPError) as caught:
            call()
        assert caught.value.response.status_code == 401


def test_private_repo_is_hidden_from_the_anonymous(
    server: LoopbackHub, api: HfApi, repo_id: str, tmp_path: Path
) -> None:
    api.create_repo(repo_id, private=True)
    anonymous = HfApi(endpoint=server.url, token=False)
    with pytest.raises(RepositoryNotFoundError):
        anonymous.model_info(repo_id)
    with pytest.raises(RepositoryNotFoundError):
        anonymous.hf_hub_download(repo_id, ".gitattributes", cache_dir=tmp_path)
    assert api.model_info(repo_id).private
    api.update_repo_settings(repo_id, private=False)
    assert anonymous.model_info(repo_id).id == repo_id
    with pytest.raises(HfHubHTTPError) as caught:
        anonymous.upload_file(repo_id=repo_id, path_in_repo="a.txt", path_or_fileobj=b"a")
    assert caught.value.response.status_code == 401
