"""The loopback Hub against the real client: downloads, and what goes wrong with them."""

from __future__ import annotations

import time
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import HfApi, hf_hub_download, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, get_session, http_backoff

from .conftest import BIG, SHARD, sha256
from .loopback import LoopbackHub

# ---- downloads


def test_snapshot_has_the_same_bytes(
    server: LoopbackHub, repo_id: str, sample_folder: Path, sample_commit: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    got = Path(
        snapshot_download(
            repo_id, repo_type="dataset", endpoint=server.url, token=False, cache_dir=cache
        )
    )
    assert got.name == sample_commit
    for path in sample_folder.rglob("*.*"):
        assert sha256(got / path.relative_to(sample_folder)) == sha256(path)


@pytest.mark.usefixtures("plain_uploads", "sample_commit")
def test_token_stays_with_the_hub(
    server: LoopbackHub, api: HfApi, repo_id: str, tmp_path: Path
) -> None:
    server.requests.clear()
    api.hf_hub_download(repo_id, SHARD, repo_type="dataset", cache_dir=tmp_path / "cache")
    assert [(one.host, one.authorized) for one in server.requests] == [
        ("127.0.0.1", True),
        ("localhost", False),
    ]
    leaked = get_session().get(
        f"{server.storage_url}/storage/{'0' * 64}", headers=build_hf_headers(token=server.token)
    )
    assert leaked.status_code == 400


@pytest.mark.parametrize("file, host", [(SHARD, "localhost"), ("README.md", "127.0.0.1")])
def test_one_range_at_a_pinned_sha(
    server: LoopbackHub, repo_id: str, sample_commit: str, sample_folder: Path, file: str, host: str
) -> None:
    url = hf_hub_url(
        repo_id, file, repo_type="dataset", revision=sample_commit, endpoint=server.url
    )
    headers = build_hf_headers(token=server.token) | {"Range": "bytes=10-59"}
    server.requests.clear()
    answer = get_session().get(url, headers=headers)
    assert (
        answer.status_code == 206 and answer.content == (sample_folder / file).read_bytes()[10:60]
    )
    assert (server.bytes_sent(), server.requests[-1].host) == (50, host)
    headers["Range"] = "bytes=99999999-"
    assert get_session().get(url, headers=headers).status_code == 416
    headers["Range"] = "bytes=-5"
    assert (
        get_session().get(url, headers=headers).content == (sample_folder / file).read_bytes()[-5:]
    )
    server.ignore_ranges = True
    assert (
        len(get_session().get(url, headers=headers).content)
        == (sample_folder / file).stat().st_size
    )


def test_missing_things_are_told_apart(
    server: LoopbackHub, api: HfApi, repo_id: str, tmp_path: Path
) -> None:
    api.create_repo(repo_id)
    with pytest.raises(RepositoryNotFoundError):
        api.hf_hub_download("tester/nowhere", "a.txt", cache_dir=tmp_path)
    with pytest.raises(RepositoryNotFoundError):
        hf_hub_download("nowhere", "a.txt", endpoint=server.url, token=False, cache_dir=tmp_path)
    with pytest.raises(RevisionNotFoundError):
        api.hf_hub_download(repo_id, ".gitattributes", revision="v9", cache_dir=tmp_path)
    with pytest.raises(RevisionNotFoundError):
        api.model_info(repo_id, revision="v9")
    with pytest.raises(EntryNotFoundError):
        api.hf_hub_download(repo_id, "a.txt", cache_dir=tmp_path)


# ---- faults


@pytest.mark.usefixtures("plain_uploads")
@pytest.mark.parametrize("cut, resumed", [(11_000_000, f"bytes={10 * 2**20}-"), (3_000_000, None)])
def test_cut_download_completes(
    server: LoopbackHub,
    api: HfApi,
    repo_id: str,
    sample_commit: str,
    tmp_path: Path,
    cut: int,
    resumed: str | None,
) -> None:
    server.cut_after_bytes = cut
    got = api.hf_hub_download(repo_id, SHARD, repo_type="dataset", cache_dir=tmp_path / "cache")
    assert Path(got).read_bytes() == BIG
    gets = [one for one in server.requests if one.path.startswith("/storage/")]
    assert [one.range for one in gets] == [None, resumed]
    assert gets[0].bytes_sent == cut


@pytest.mark.usefixtures("plain_uploads")
def test_cut_range_is_asked_for_again(
    server: LoopbackHub, repo_id: str, sample_commit: str
) -> None:
    url = hf_hub_url(
        repo_id, SHARD, repo_type="dataset", revision=sample_commit, endpoint=server.url
    )
    server.cut_after_bytes = 100
    with pytest.raises(httpx2.RemoteProtocolError):
        get_session().get(url, headers={"Range": "bytes=10-1009"})
    server.cut_after_bytes = 100
    answer = http_backoff("GET", url, headers={"Range": "bytes=10-1009"}, base_wait_time=0.01)
    assert answer.content == BIG[10:1010]


def test_down_is_an_error_soon_and_cached_files_stay(
    server: LoopbackHub, api: HfApi, repo_id: str, tmp_path: Path
) -> None:
    api.create_repo(repo_id)
    sha = api.upload_file(repo_id=repo_id, path_in_repo="a.txt", path_or_fileobj=b"a").oid
    cached = api.hf_hub_download(repo_id, "a.txt", cache_dir=tmp_path)
    server.down()
    began = time.monotonic()
    with pytest.raises(httpx2.ConnectError):
        api.model_info(repo_id)
    assert api.hf_hub_download(repo_id, "a.txt", revision=sha, cache_dir=tmp_path) == cached
    assert api.hf_hub_download(repo_id, "a.txt", cache_dir=tmp_path) == cached
    assert time.monotonic() - began < 10
    server.up()
    assert api.model_info(repo_id).sha == sha


def test_ordered_failure_happens_once(server: LoopbackHub, api: HfApi, repo_id: str) -> None:
    api.create_repo(repo_id)
    server.fail_next(503, "/api/models/")
    assert api.whoami()["name"] == server.user
    with pytest.raises(HfHubHTTPError) as caught:
        api.model_info(repo_id)
    assert caught.value.response.status_code == 503
    assert api.model_info(repo_id).id == repo_id
