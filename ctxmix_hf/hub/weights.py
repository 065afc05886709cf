"""Are these the weights of that commit? Read from its safetensors files; files that would need
unpickling are not opened.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError
from safetensors import safe_open

from ctxmix_hf.errors import StoreError
from ctxmix_hf.hub.answers import hub_errors
from ctxmix_hf.text.kinds import Model


def weight_files(api: HfApi, repo: str, sha: str) -> list[Path]:
    """The safetensors files of a model at a commit, from the cache where they are there; none where
    it has other files.
    """
    with hub_errors(repo, sha, api.token):
        try:
            return [Path(api.hf_hub_download(repo, "model.safetensors", revision=sha))]
        except EntryNotFoundError:
            pass
        try:
            index = json.loads(
                Path(
                    api.hf_hub_download(repo, "model.safetensors.index.json", revision=sha)
                ).read_text("utf-8")
            )
        except EntryNotFoundError:
            return []
        return [
            Path(api.hf_hub_download(repo, str(name), revision=sha))
            for name in sorted(set(index["weight_map"].values()))
        ]


def cached_weights_differ(model: Model, repo: str, sha: str) -> bool:
    """Whether the local cache shows that a model is not that commit: trained since, or loaded from
    another one. No network.
    """
    path = try_to_load_from_cache(repo, "model.safetensors", revision=sha)
    return isinstance(path, str) and first_difference(model, [Path(path)]) is not None


def require_base_weights(model: Model, repo: str, sha: str, api: HfApi) -> None:
    """Raise if a tensor of the model is not what the commit holds under its name: a pointer would lose the training."""
    name = first_difference(model, weight_files(api, repo, sha))
    if name is not None:
        raise StoreError(
            f"The weights are not those of {repo} at {sha[:12]} ({name} differs), so a pointer "
            "would not give this model "
            "again: push it with include_weights=True, or name the right commit with base_revision=...."
        )


def first_difference(model: Model, files: list[Path]) -> str | None:
    """The first tensor that a file holds otherwise than the model; names may or may not begin with the base model's."""
    own = model.state_dict()
    by_name = {name: name for name in own} | {
        f"{model.base_model_prefix}.{name}": name for name in own
    }
    by_name |= {name.removeprefix(f"{model.base_model_prefix}."): name for name in own}
    for path in files:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = own.get(by_name.get(name, ""))
                if tensor is not None and not _same(tensor, file.get_tensor(name)):
                    return str(name)
    return None


def _same(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    return mine.shape == theirs.shape and torch.equal(mine.detach().cpu(), theirs.to(mine.dtype))
