"""Bytes of a store on the Hub: the index is a file in the local cache, an example is one ranged request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import (
    constants,
    get_hf_file_metadata,
    get_token,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from ctxmix_hf.errors import CtxmixError, StoreError
from ctxmix_hf.hub.index import Place, Row
from ctxmix_hf.hub.keys import is_commit
from ctxmix_hf.hub.layout import MANIFEST, MAX_MANIFEST_BYTES, examples_file, shard_file
from ctxmix_hf.hub.manifest import Manifest, Part
from ctxmix_hf.hub.ranges import CLIENT_ERRORS, read_range
from ctxmix_hf.hub.reading import FolderSource, checked

_SECRET = re.compile(r"hf_[A-Za-z0-9]{4,}|(?i:bearer)\s+\S+")


def without_secrets(text: str, *tokens: Any) -> str:
    """A text that can be shown: access tokens are taken out."""
    for token in tokens:
        text = text.replace(token, "***") if isinstance(token, str) and token else text
    return _SECRET.sub("***", text)


@contextmanager
def hub_errors(what: str, revision: Any = None, token: Any = None) -> Iterator[None]:
    """The client's many errors as one clear line each, without credentials; the original is the
    cause unless it repeats one.
    """
    failed: Exception | None = None
    cause: Exception | None = None
    tokens = (token, get_token())
    try:
        yield
    except CtxmixError as error:
        if not _tells(error, tokens):
            raise
        failed = StoreError(without_secrets(str(error), *tokens))
    except (*CLIENT_ERRORS, ValueError) as error:
        failed = StoreError(without_secrets(f"{what}: {_reason(error, revision)}", *tokens))
        cause = None if _tells(error, tokens) else error
    if failed is not None:
        try:
            raise failed from cause
        finally:
            # not what was being handled: that can repeat a token the server echoed
            failed.__context__ = cause


def _tells(error: BaseException | None, tokens: tuple[Any, ...]) -> bool:
    """Whether an error, or one it came from, holds a token."""
    seen: set[int] = set()
    todo = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        said = f"{one} {one.args!r} {getattr(one, '__notes__', '')}"
        if without_secrets(said, *tokens) != said:
            return True
        todo += [one.__cause__, one.__context__]
    return False


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
    known = {
        401: "the Hub refused the token (401)",
        403: "the token may not do this (403)",
        409: "the name is taken (409)",
        412: "somebody else pushed meanwhile (412): run it again",
    }
    return known.get(
        status or 0,
        f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no answer'}",
    )


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
        with hub_errors(f"{self.repo_id}: {name}", self.sha, self._where["token"]):
            return Path(
                hf_hub_download(
                    self.repo_id, name, repo_type="dataset", revision=self.sha, **self._where
                )
            )

    def is_cached(self, name: str) -> Path | None:
        """The file in the local cache, if it was downloaded."""
        found = try_to_load_from_cache(
            self.repo_id, name, self._where["cache_dir"], self.sha, "dataset"
        )
        return Path(found) if isinstance(found, str) else None

    def read(self, part: Part, place: Place) -> bytes:
        shard, name = part.shards[place.shard], shard_file(part.folder, place.shard)
        cached = self.is_cached(name)
        if cached is not None and cached.stat().st_size == shard.size:
            return FolderSource(cached.parents[2], self.manifest).read(part, place)
        begin = shard.data + place.begin
        return checked(self._range(name, begin, shard.data + place.end, shard.size), part, place)

    def _range(self, name: str, begin: int, end: int, size: int) -> bytes:
        """Bytes `[begin, end)` of a file in one request."""
        with hub_errors(f"{self.repo_id}: {name}", self.sha, self._where["token"]):
            url = hf_hub_url(
                self.repo_id,
                name,
                repo_type="dataset",
                revision=self.sha,
                endpoint=self._where["endpoint"],
            )
            headers = build_hf_headers(token=self._where["token"])
            try:
                return read_range(url, headers, begin, end, size)
            except StoreError as error:
                raise StoreError(f"{self.repo_id}: {name}: {error}.") from None

    def line(self, row: Row) -> bytes:
        return FolderSource(self.fetch(examples_file(row.split)).parents[1], self.manifest).line(
            row
        )


def fetch_first(repo_id: str, revision: str | None, where: dict[str, Any]) -> tuple[Path, str]:
    """The manifest and the 40-hex commit a revision stands for now. Everything else is then asked
    for by that commit.
    """
    with hub_errors(f"{repo_id}: {MANIFEST}", revision, where["token"]):
        if _size_on_the_hub(repo_id, revision, where) > MAX_MANIFEST_BYTES:
            raise StoreError(f"{repo_id}: {MANIFEST} is too large to be a manifest.")
        path = Path(
            hf_hub_download(repo_id, MANIFEST, repo_type="dataset", revision=revision, **where)
        )
    sha = path.parent.name
    if not is_commit(sha):
        raise StoreError(f"{repo_id}: the commit of revision {revision or 'main'!r} is unknown.")
    return path, sha


def _size_on_the_hub(repo_id: str, revision: str | None, where: dict[str, Any]) -> int:
    """Bytes of the manifest; 0 where the Hub does not say, which the download then reports in its own words."""
    try:
        url = hf_hub_url(
            repo_id, MANIFEST, repo_type="dataset", revision=revision, endpoint=where["endpoint"]
        )
        return int(
            get_hf_file_metadata(
                url, token=where["token"], timeout=constants.HF_HUB_ETAG_TIMEOUT
            ).size
            or 0
        )
    except (*CLIENT_ERRORS, ValueError):
        return 0
