"""Bytes of a store on the Hub: the index is a file in the local cache, an example is one ranged request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import (
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from ctxmix_hf.errors import StoreError
from ctxmix_hf.hub.answers import hub_errors
from ctxmix_hf.hub.folders import MANIFEST, MAX_MANIFEST_BYTES, examples_file, shard_file
from ctxmix_hf.hub.index import IndexRow, Place
from ctxmix_hf.hub.keys import is_commit
from ctxmix_hf.hub.manifest import Manifest, Part
from ctxmix_hf.hub.ranges import CLIENT_ERRORS, read_range
from ctxmix_hf.hub.reading import FolderSource, checked


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

    def line(self, row: IndexRow) -> bytes:
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
