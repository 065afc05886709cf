"""Bytes of a store on the Hub: the index is a file in the local cache, an example is one ranged request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import constants, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_backoff  # type: ignore[attr-defined]

from ctxmix_hf.errors import CtxmixError, StoreError
from ctxmix_hf.hub.index import Place, Row
from ctxmix_hf.hub.keys import is_commit
from ctxmix_hf.hub.layout import examples_file, shard_file
from ctxmix_hf.hub.manifest import Manifest, Part
from ctxmix_hf.hub.reading import FolderSource, checked

_CLIENT_ERRORS: tuple[Any, ...] = (*HfHubHTTPError.__bases__, OSError, ValueError)  # the HTTP library's own, whichever it is
_SECRET = re.compile(r"hf_[A-Za-z0-9]{4,}|(?i:bearer)\s+\S+")


def without_secrets(text: str) -> str:
    """A text that can be shown: access tokens are taken out."""
    return _SECRET.sub("***", text)


@contextmanager
def hub_errors(what: str, revision: Any = None) -> Iterator[None]:
    """The client's many errors as one clear line each, without credentials; the original is the cause."""
    try:
        yield
    except CtxmixError:
        raise
    except _CLIENT_ERRORS as error:
        raise StoreError(without_secrets(f"{what}: {_reason(error, revision)}")) from error


def _reason(error: Exception, revision: Any) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, HFValidationError):
        return "this is not a repository name like 'me/maps'"
    if isinstance(error, GatedRepoError):
        return "access to this repository has to be asked for on the Hub"
    if isinstance(error, RepositoryNotFoundError):
        return f"no such repository, or it is private and the token does not open it ({status})"
    if isinstance(error, RevisionNotFoundError):
        return f"the revision {str(revision)!r:.80} does not exist"
    if isinstance(error, LocalEntryNotFoundError) or constants.HF_HUB_OFFLINE:
        return "the Hub cannot be reached and the file is not in the local cache"
    if isinstance(error, EntryNotFoundError):
        return "there is no such file in the repository"
    known = {401: "the Hub refused the token (401)", 403: "the token may not do this (403)",
             409: "the name is taken (409)", 412: "somebody else pushed meanwhile (412): run it again"}  # fmt: skip
    return known.get(status or 0, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no answer'}")


class HubSource:
    """A dataset repository at one commit. Shards that were downloaded are read from the cache."""

    def __init__(self, repo_id: str, sha: str, manifest: Manifest, where: dict[str, Any]) -> None:
        self.repo_id, self.sha, self.manifest = repo_id, sha, manifest
        self._where = where  # endpoint, token, cache_dir

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_where": {**self._where, "token": None}}

    def __repr__(self) -> str:
        return f"HubSource({self.repo_id!r}, {self.sha!r})"

    def fetch(self, name: str) -> Path:
        """A whole file, from the cache where it is there already."""
        with hub_errors(f"{self.repo_id}: {name}", self.sha):
            return Path(hf_hub_download(self.repo_id, name, repo_type="dataset", revision=self.sha, **self._where))

    def is_cached(self, name: str) -> Path | None:
        """The file in the local cache, if it was downloaded."""
        found = try_to_load_from_cache(self.repo_id, name, self._where["cache_dir"], self.sha, "dataset")
        return Path(found) if isinstance(found, str) else None

    def read(self, part: Part, place: Place) -> bytes:
        shard, name = part.shards[place.shard], shard_file(part.folder, place.shard)
        cached = self.is_cached(name)
        if cached is not None and cached.stat().st_size == shard.size:
            return FolderSource(cached.parents[2], self.manifest).read(part, place)
        begin = shard.data + place.begin
        return checked(self._range(name, begin, shard.data + place.end, shard.size), part, place)

    def _range(self, name: str, begin: int, end: int, size: int) -> bytes:
        """Bytes `[begin, end)` of a file in one request; the client drops the token where it is sent on to the storage."""
        with hub_errors(f"{self.repo_id}: {name}", self.sha):
            url = hf_hub_url(self.repo_id, name, repo_type="dataset", revision=self.sha, endpoint=self._where["endpoint"])
            headers = build_hf_headers(token=self._where["token"])
            headers |= {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
            response = http_backoff("GET", url, headers=headers, max_retries=3, base_wait_time=0.2, max_wait_time=2)
            hf_raise_for_status(response)
        data: bytes = response.content
        if response.status_code == 206 and len(data) == end - begin:
            return data
        if response.status_code == 200 and len(data) == size:  # a mirror that knows no ranges
            return data[begin:end]
        raise StoreError(f"{self.repo_id}: asked for {end - begin} bytes of {name}, got {len(data)} (status {response.status_code}).")

    def line(self, row: Row) -> bytes:
        with self.fetch(examples_file(row.split)).open("rb") as file:
            file.seek(row.line[0])
            return file.read(row.line[1] - row.line[0])


def fetch_first(repo_id: str, name: str, revision: str | None, where: dict[str, Any], repo_type: str = "dataset") -> tuple[Path, str]:
    """A file and the 40-hex commit a revision stands for now. Everything else is then asked for by that commit."""
    with hub_errors(f"{repo_id}: {name}", revision):
        path = Path(hf_hub_download(repo_id, name, repo_type=repo_type, revision=revision, **where))
    sha = path.parent.name
    if not is_commit(sha):
        raise StoreError(f"{repo_id}: the commit of revision {revision or 'main'!r} is unknown.")
    return path, sha
