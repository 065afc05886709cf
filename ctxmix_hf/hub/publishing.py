"""A store goes to the Hub in one commit, and comes back: lazily, or whole and verified."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, snapshot_download
from huggingface_hub.hf_api import RepoFile

from ctxmix_hf.errors import StoreError
from ctxmix_hf.hub import cards, parquet, reading
from ctxmix_hf.hub.answers import hub_errors
from ctxmix_hf.hub.index import Index, load_index
from ctxmix_hf.hub.layout import (
    CARD,
    INDEX,
    MANIFEST,
    file_digest,
    is_cached,
    shard_file,
    write_atomic,
)
from ctxmix_hf.hub.manifest import Manifest, load_manifest
from ctxmix_hf.hub.measuring import measure
from ctxmix_hf.hub.reading import FolderSource, Source
from ctxmix_hf.hub.remote import HubSource, fetch_first

if TYPE_CHECKING:
    from typing_extensions import Self


class StoreOnHub:
    """The half of `MapStore` that knows the Hub."""

    manifest: Manifest
    index: Index
    source: Source
    root: Path | None
    model: Any
    tokenizer: Any

    def __init__(
        self, manifest: Manifest, index: Index, source: Source, root: Path | None = None
    ) -> None:
        raise NotImplementedError

    @classmethod
    def from_hub(
        cls,
        repo_id: str,
        revision: str | None = None,
        *,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        endpoint: str | None = None,
        max_bytes: int | None = None,
    ) -> Self:
        """A store on the Hub at a tag, branch or commit. Only index and examples are fetched; maps
        come one by one when asked for.

        `max_bytes` is the most that index and examples may have together: a larger store is refused
        before they are fetched.
        """
        where = {"token": token, "cache_dir": cache_dir, "endpoint": endpoint}
        path, sha = fetch_first(repo_id, revision, where)
        manifest = load_manifest(path)
        if not manifest.complete:
            raise StoreError(f"{repo_id}: this store was pushed before it was closed.")
        source = HubSource(repo_id, sha, manifest, where)
        total = sum(about["size"] for about in manifest.files.values())
        if max_bytes is not None and total > max_bytes:
            raise StoreError(
                f"{repo_id}: index and examples have {total:,} bytes; at most {max_bytes:,} bytes are read here."
            )
        compare(
            source,
            {name: (about["size"], about["sha256"]) for name, about in manifest.files.items()},
        )
        for name, about in manifest.files.items():
            fetched = source.fetch(name)
            if fetched.stat().st_size != about["size"] or file_digest(fetched) != about["sha256"]:
                raise StoreError(
                    f"{repo_id}: {name} is damaged: its checksum does not fit the manifest."
                )
        return cls(manifest, load_index(path.parent, manifest), source, None)

    @property
    def revision(self) -> str | None:
        """The commit this store was read from; None for a folder."""
        return self.source.sha if isinstance(self.source, HubSource) else None

    def download(
        self, folder: str | Path | None = None, *, methods: list[str] | None = None
    ) -> Path:
        """Fetch everything (or some methods) into the cache or a folder, verified; the folder.
        Called again after a stop, it goes on.
        """
        if not isinstance(self.source, HubSource):
            if self.root is None:
                raise StoreError("This store is nowhere.")
            return self.root
        source = self.source
        entries = [
            entry
            for key, entry in self.manifest.methods.items()
            if methods is None or key in methods
        ]
        parts = {part.folder: part for entry in entries for part in entry.parts.values()}
        shards = {
            shard_file(p.folder, n): shard
            for p in parts.values()
            for n, shard in enumerate(p.shards)
        }
        compare(source, {name: (shard.size, shard.sha256) for name, shard in shards.items()})
        names = [MANIFEST, CARD, *self.manifest.files, *shards]
        with hub_errors(source.repo_id, source.sha, source._where["token"]):
            got = Path(
                snapshot_download(
                    source.repo_id,
                    repo_type="dataset",
                    revision=source.sha,
                    allow_patterns=names,
                    local_dir=folder,
                    **source._where,
                )
            )
        reading.verify(got, self.manifest, self.index, set(parts))
        if methods is None:
            self.root, self.source = (
                got,
                source if folder is None else FolderSource(got, self.manifest),
            )
        return got

    def close(self) -> None:
        raise NotImplementedError

    def to_parquet(
        self, folder: str | Path | None = None, methods: list[str] | None = None
    ) -> list[Path]:
        """Matrices as Parquet beside the shards (or elsewhere): one `load_dataset` config per
        method. Needs the extra `data`.
        """
        target = Path(folder) if folder is not None else self.root
        if target is None or (folder is None and is_cached(target)):
            raise StoreError("Say where: to_parquet(folder).")
        return parquet.export(self, target, methods)

    def render_card(self, repo_id: str = "me/maps", **fields: Any) -> str:
        """The dataset card this store would be pushed with, filled with measured values where its model is at hand."""
        measured = measure(self) if self.model is not None and len(self.index) else {}
        return cards.dataset_card(
            self.manifest, repo_id, len(self.index), measured, parquet.present(self.root), **fields
        )

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        revision: str | None = None,
        tag: str | None = None,
        token: str | bool | None = None,
        endpoint: str | None = None,
        commit_message: str = "Context mixing maps",
        license: str = "unknown",
        card: str | None = None,
    ) -> str:
        """Push to a dataset repository in one commit, with a card; the commit's 40-hex sha.

        Closes the store first. Pushed again after a stop, it sends only what is missing; unchanged,
        it makes no commit. A README.md that is not ours is left alone. `revision` is a branch,
        `tag` is put on the commit.
        """
        self.close()
        if self.root is None or not self.manifest.complete:
            raise StoreError("Only a store in a folder can be pushed: download() it first.")
        reading.verify(self.root, self.manifest, self.index)
        text = cards.new_card(
            self.root / CARD, lambda: card or self.render_card(repo_id, license=license)
        )
        if text is not None and not is_cached(self.root):
            write_atomic(self.root / CARD, text)
        given = {} if text is None else {CARD: text.encode()}
        api = HfApi(endpoint=endpoint, token=token)
        with hub_errors(repo_id, revision, token):
            repo = api.create_repo(
                repo_id, repo_type="dataset", private=private, exist_ok=True
            ).repo_id
            if revision is not None:
                api.create_branch(repo, branch=revision, repo_type="dataset", exist_ok=True)
            sha = commit_files(
                api, repo, "dataset", self.root, self._files(), revision, commit_message, given
            )
            if tag is not None:
                api.create_tag(repo, tag=tag, revision=sha, repo_type="dataset")
        return sha

    def _files(self) -> list[str]:
        """Everything that belongs to a closed store; nothing else in the folder is ever pushed."""
        shards = [
            shard_file(part.folder, n)
            for part in self.manifest.parts
            for n in range(len(part.shards))
        ]
        exports = [
            str(path.relative_to(self.root or Path())) for path in parquet.present(self.root)
        ]
        return [
            MANIFEST,
            INDEX,
            CARD,
            *(name for name in self.manifest.files if name != INDEX),
            *shards,
            *exports,
        ]


def compare(source: HubSource, files: dict[str, tuple[int, str]]) -> None:
    """What the repository holds has the size and sha256 the manifest says: asked before it is
    fetched, where the Hub can be reached.
    """
    missing = [name for name in files if not source.is_cached(name)]
    if not missing:
        return
    api = HfApi(endpoint=source._where["endpoint"], token=source._where["token"])
    with hub_errors(source.repo_id, source.sha, source._where["token"]):
        found = api.get_paths_info(
            source.repo_id, missing, repo_type="dataset", revision=source.sha
        )
    there = {item.path: item for item in found if isinstance(item, RepoFile)}
    for name in missing:
        item = there.get(name)
        if item is None:
            raise StoreError(f"{source.repo_id}: {name} is missing.")
        if item.size != files[name][0] or (
            item.lfs is not None and item.lfs.sha256 != files[name][1]
        ):
            raise StoreError(f"{source.repo_id}: {name} is not the file the manifest describes.")


def commit_files(
    api: HfApi,
    repo: str,
    kind: str,
    root: Path,
    names: list[str],
    revision: str | None,
    message: str,
    given: dict[str, bytes] | None = None,
) -> str:
    """One commit with these files and without the data files of an older push; refused if somebody
    else pushes meanwhile.

    `given` are contents that take the place of a file's.
    """
    head = api.repo_info(repo, repo_type=kind, revision=revision).sha
    there = api.list_repo_files(repo, repo_type=kind, revision=head)
    stale = [
        name
        for name in there
        if name.startswith(("matrices/", "examples/", "parquet/")) and name not in names
    ]
    operations: list[Any] = [
        CommitOperationAdd(name, (given or {}).get(name, str(root / name))) for name in names
    ]
    operations += [CommitOperationDelete(name) for name in stale]
    done = api.create_commit(
        repo,
        operations,
        commit_message=message,
        repo_type=kind,
        revision=revision,
        parent_commit=head,
    )
    return str(done.oid)
