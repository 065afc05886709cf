"""What a push or a download of a store asks of the Hub: one commit, and files that are what the manifest says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.hf_api import RepoFile

from ctxmix_hf.errors import StoreError
from ctxmix_hf.hub.answers import hub_errors
from ctxmix_hf.hub.remote import HubSource


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
