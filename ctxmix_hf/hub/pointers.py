"""Instrumented models on the Hub, as PEFT adapters are: a repository that names a base model at a
commit, and holds no weights.

`ctxmix_config.json`: base model, 40-hex revision, default methods with their options, model class.
Nothing in it is code.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from ctxmix_hf.errors import OptionError, StoreError
from ctxmix_hf.hub import cards
from ctxmix_hf.hub.answers import hub_errors
from ctxmix_hf.hub.folders import CARD, write_atomic
from ctxmix_hf.hub.keys import cached_revision, is_commit, model_origin
from ctxmix_hf.hub.publishing import commit_files
from ctxmix_hf.hub.weights import require_base_weights
from ctxmix_hf.modeling import CONFIG_KEY, write_methods
from ctxmix_hf.recipes import Specs, methods_from_json, methods_to_json, resolve
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.unwrapping import base_model

POINTER = "ctxmix_config.json"
_PASSED_ON = ("token", "cache_dir", "force_download", "local_files_only")


def push(
    model: Model,
    defaults: Any,
    loaded: str | None,
    repo_id: str,
    *,
    include_weights: bool = False,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    base_revision: str | None = None,
    methods: Specs | None = None,
    tokenizer: Tokenizer | None = None,
    endpoint: str | None = None,
    commit_message: str = "Instrumented with ctxmix_hf",
    license: str | None = None,
    **saving: Any,
) -> str:
    """Push a pointer to the base model (or, with `include_weights=True`, the model itself); the
    commit's 40-hex sha.

    A pointer is refused where it would not give this model again: weights that are not the base
    model's at that commit.
    """
    api = HfApi(endpoint=endpoint, token=token)
    asked = defaults if methods is None else methods
    wanted = base_revision or loaded
    pointer = _pointer(model, api, methods_to_json(asked), include_weights, wanted)
    rows = cards.method_rows(
        {k: (r.method.options(), r.aggregation) for k, r in resolve(asked or []).items()}
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if include_weights:
            _save(model, folder, tokenizer, pointer["methods"], saving)
        write_atomic(folder / POINTER, json.dumps(pointer, indent=1, sort_keys=True) + "\n")
        write_atomic(folder / CARD, cards.model_card(pointer, repo_id, rows, license))
        files = sorted(
            str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
        )
        with hub_errors(repo_id, revision, token):
            repo = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
            if revision is not None:
                api.create_branch(repo, branch=revision, exist_ok=True)
            return commit_files(api, repo, "model", folder, files, revision, commit_message)


def _pointer(
    model: Model, api: HfApi, methods: list[Any], include_weights: bool, wanted: str | None
) -> dict[str, Any]:
    """The content of the pointer file, checked against the model in memory."""
    base = base_model(model)
    origin = model_origin(base)
    source, sha = origin["model_id"], None
    if not include_weights:
        if origin["local"] or ("/" not in source and base.config._name_or_path != source):
            raise StoreError(
                f"{source!r} is not on the Hub, so nothing could point to it: push the model "
                "itself with include_weights=True."
            )
        sha = _commit(api, source, wanted)
        require_base_weights(base, source, sha, api)
    return {
        "kind": "ctxmix-model",
        "schema": 1,
        "base_model": source,
        "revision": sha,
        "methods": methods,
        "model_class": origin["model_class"],
        "model_type": base.config.model_type,
        "versions": origin["versions"],
    }


def _commit(api: HfApi, source: str, wanted: str | None) -> str:
    """The base model's commit: as asked for, as it was loaded, or what its main branch is in
    the cache or on the Hub.
    """
    known = (wanted if is_commit(wanted) else None) if wanted else cached_revision(source)
    if known is None:
        with hub_errors(source, wanted, api.token):
            known = api.model_info(source, revision=wanted).sha
    if not is_commit(known):
        raise StoreError(f"The commit of {source} is unknown: pass base_revision=....")
    return str(known)


def _save(
    model: Model,
    folder: Path,
    tokenizer: Tokenizer | None,
    methods: list[Any],
    saving: dict[str, Any],
) -> None:
    base = base_model(model)
    before = getattr(base.config, CONFIG_KEY, None)
    write_methods(base.config, {"methods": methods})
    try:
        base.save_pretrained(folder, **saving)
    finally:
        write_methods(base.config, before)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def loaded_revision(source: Any, kwargs: dict[str, Any]) -> str | None:
    """Which commit a model was loaded from, for pointers to it; None for a folder."""
    if Path(str(source)).exists():
        return None
    wanted = kwargs.get("revision") or "main"
    if is_commit(wanted):
        return str(wanted)
    return cached_revision(str(source), wanted, kwargs.get("cache_dir"))


def find_pointer(
    name_or_path: Any, kwargs: dict[str, Any]
) -> tuple[str, dict[str, Any], Any] | None:
    """(base model, keywords to load it with, default methods) if there is a pointer under this name, else None."""
    path = Path(str(name_or_path)) / POINTER
    if not path.is_file():
        if Path(str(name_or_path)).exists():
            return None
        passed = {key: kwargs[key] for key in _PASSED_ON if key in kwargs}
        try:
            path = Path(
                hf_hub_download(
                    str(name_or_path), POINTER, revision=kwargs.get("revision"), **passed
                )
            )
        except (OSError, ValueError):
            return None
    return _read_pointer(path, kwargs)


def _read_pointer(path: Path, kwargs: dict[str, Any]) -> tuple[str, dict[str, Any], Any] | None:
    try:
        body = json.loads(path.read_text("utf-8")) if path.stat().st_size < 1 << 20 else None
        if not isinstance(body, dict) or body.get("kind") != "ctxmix-model":
            raise ValueError("not a pointer")
        if body.get("revision") is None:
            return None  # the weights lie beside it: an ordinary model
        base, revision = body["base_model"], body["revision"]
        validate_repo_id(base if isinstance(base, str) else "")
    except (ValueError, KeyError, RecursionError, HFValidationError) as error:
        raise StoreError(f"{POINTER} is damaged: it names no base model.") from error
    if not is_commit(revision):
        raise StoreError(f"{POINTER} does not pin its base model to a commit.")
    if kwargs.get("trust_remote_code"):
        raise OptionError(
            "A pointer runs no code of the repository it names: leave trust_remote_code out."
        )
    if Path(base).exists():
        raise StoreError(
            f"The pointer names {base!r} on the Hub, but a folder of that name is here and would be loaded instead."
        )
    return base, {**kwargs, "revision": revision}, methods_from_json(body.get("methods"))
