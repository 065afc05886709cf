"""What the Hub answers, in words: its client's errors as one clear line each, and whether a push will be accepted.

Imports neither torch nor the rest of the package: a job asks before it loads anything.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ctxmix_hf.errors import CtxmixError, StoreError, first_line
from ctxmix_hf.hub.ranges import CLIENT_ERRORS

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
    return known.get(status or 0, f"{type(error).__name__}: {first_line(error, 'no answer')}")


def require_token(repo_id: str, token: str | None = None) -> None:
    """Raise a StoreError unless there is a token to write with."""
    if not (token or get_token()):
        raise StoreError(
            f"There is no Hub token, so nothing can be written to {repo_id}: run hf auth login, or set HF_TOKEN."
        )


def ready_to_push(repo_id: str, *, private: bool | None = None) -> None:
    """Asked before hours of computing: the dataset repository is there, made if it was not, and the
    token that is signed in may write to it.

    Raises:
        StoreError: The Hub cannot be reached, or refuses.
    """
    api = HfApi()
    try:
        with hub_errors(repo_id):
            made = api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
            if "write" in inspect.signature(api.auth_check).parameters:  # newer clients ask
                api.auth_check(made.repo_id, repo_type="dataset", write=True)
    except StoreError as error:
        raise StoreError(
            f"Nothing was computed, because the result could not be pushed to {error}; check the "
            "name, the token (HF_TOKEN) and the network, and start it again."
        ) from error
