"""A model by name with the head it was saved with, its tokenizer, and quiet libraries."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from ctxmix_hf import auto
from ctxmix_hf.auto import DTYPE, model_path
from ctxmix_hf.bundled import AGREEMENT, SENTIMENT
from ctxmix_hf.embedders import KINDS
from ctxmix_hf.errors import (
    CtxmixError,
    CtxmixWarning,
    InputError,
    MissingDependencyError,
    first_line,
)
from ctxmix_hf.heads import LM_HEADS, head_of
from ctxmix_hf.instrumentation.session import require_instrumentation
from ctxmix_hf.pooling import MODES, model_files, read_pooling
from ctxmix_hf.text.batch import load_processor, reads
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.unwrapping import base_model


def quiet(debug: bool = False) -> None:
    """No progress bars, no chatter: what is wrong is an error, and what may be wrong one line of ours."""
    if not debug:
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", CtxmixWarning)
        warnings.showwarning = lambda message, *_, **__: print(
            f"ctxmix: {' '.join(str(message).split())}", file=sys.stderr
        )
        transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def load(
    name: str,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    tokenizer: bool = True,
    lm_head: bool = True,
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    """`(model, tokenizer)`, instrumented, in evaluation mode; `lm_head=False` leaves a language
    model's head out: maps need none.

    A model that reads images or sound comes with its processor in the tokenizer's place (None where
    none lies beside the weights).
    """
    path = model_path(name)
    keywords: dict[str, Any] = {"revision": revision} if revision else {}
    keywords["trust_remote_code"] = trust_remote_code  # left out, transformers asks at the terminal
    if _only_cached(path):
        keywords["local_files_only"] = True
    config = dict(keywords)
    if dtype:
        keywords[DTYPE] = getattr(torch, dtype)
    with in_words(name, **config):
        if "local_files_only" in config:  # transformers asks for adapters even so
            snapshot_download(path, revision=revision, local_files_only=True)
        model = _loader(path, config, lm_head).from_pretrained(name, **keywords).to(device).eval()
        if not tokenizer:
            return model, None
        if reads(model) != "text":
            return model, load_processor(base_model(model), reads(model))
        read = transformers.AutoTokenizer.from_pretrained(path, **config)
        require_instrumentation(model).tokenizer = read
        return model, read


def _only_cached(path: Any) -> bool:
    """Whether the Hub would have to be asked for a model but does not answer: its client then asks
    six times for every file, which takes minutes.
    """
    if Path(str(path)).exists():
        return False
    try:
        get_hf_file_metadata(hf_hub_url(str(path), "config.json"))
    except ValueError:  # no name of a repository: not the network's fault
        return False
    except Exception as error:  # of requests, httpx or its successor, by the version of the client
        return getattr(error, "response", None) is None
    return False


@contextmanager
def in_words(name: str, *, trust_remote_code: bool = False, **keywords: Any) -> Iterator[None]:
    """Whatever keeps a model from being loaded in this block is one sentence that says what to do."""
    try:
        yield
    except CtxmixError:
        raise
    except (OSError, ValueError, RuntimeError, AssertionError, ImportError) as error:
        if not trust_remote_code and "trust_remote_code" in str(error):
            raise InputError(
                f"The model {name!r} brings code of its own, which runs only if you say so: read it, "
                "then pass trust_remote_code=True (--trust-remote-code on the command line)."
            ) from error
        keywords["trust_remote_code"] = trust_remote_code
        raise InputError(_why_not(name, error, _quantised(model_path(name), keywords))) from error


def _quantised(path: Any, keywords: dict[str, Any]) -> str | None:
    """The way a checkpoint says it was quantised, where it was."""
    try:
        config = transformers.AutoConfig.from_pretrained(path, **keywords)
    except (OSError, ValueError, ImportError):
        return None
    written = getattr(config, "quantization_config", None) or {}
    method = written.get("quant_method") if isinstance(written, dict) else written.quant_method
    return str(getattr(method, "value", method)) if method else None


def _why_not(name: str, error: BaseException, quantised: str | None) -> str:
    """Why a model could not be loaded, and what to do: what the Hub said is at the beginning of a chain of errors."""
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    for said in chain:
        status = getattr(getattr(said, "response", None), "status_code", None)
        if isinstance(said, GatedRepoError):
            if status == 403:
                return (
                    f"The model {name!r} is gated, and your token was not given access to it yet: ask for it on "
                    "its page of the Hub."
                )
            return (
                f"The model {name!r} is gated: ask for access on its page of the Hub, then sign in "
                "(hf auth login) or set HF_TOKEN."
            )
        if isinstance(said, RepositoryNotFoundError) or status == 401:
            return (
                f"There is no model {name!r} on the Hub, or it is private: check the name, and sign in "
                "(hf auth login) or set HF_TOKEN to a token that may read it."
            )
    if any(isinstance(said, LocalEntryNotFoundError | OfflineModeIsEnabled) for said in chain):
        return f"Could not load the model {name!r}: the Hub cannot be reached, and it is not in the local cache."
    if quantised is not None:
        return (
            f"The model {name!r} is quantised with {quantised}, and what reads that is not here: "
            f"{first_line(error).rstrip('.')}. Install it, or load the checkpoint that is not quantised."
        )
    return f"Could not load the model {name!r}: {first_line(error)}"


def _loader(path: Any, keywords: dict[str, Any], lm_head: bool) -> Any:
    """The Auto class of the head the model was saved with; without a known one, the bare encoder."""
    try:
        named = transformers.AutoConfig.from_pretrained(path, **keywords).architectures or []
    except (OSError, ValueError, ImportError):  # no config in a pointer repository, no timm here
        named = []
    head = next(
        (
            head
            for head in map(head_of, named)
            if head is not None and (lm_head or head not in LM_HEADS)
        ),
        None,
    )
    return (
        getattr(auto, f"AutoContextMixingModelFor{head}") if head else auto.AutoContextMixingModel
    )


def load_embedder(
    name: str | None,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    pooling: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[Any, dict[str, Any]]:
    """A model that makes vectors of texts or ranks them, and the options `similarity` and `rank` need with it.

    sentence-transformers' models are loaded by that package unless a `pooling` asks for the bare
    encoder; without a name it is the bundled model, with mean pooling.
    """
    if name is None:
        warnings.warn(
            f"No --model was named: {AGREEMENT.name} with {pooling or 'mean'} pooling, which was not trained for this.",
            CtxmixWarning,
            stacklevel=2,
        )
        name, pooling = AGREEMENT.name, pooling or "mean"
    cached = _only_cached(model_path(name))
    kind = None if pooling is not None else _sentence_kind(model_path(name), cached)
    if kind is not None and importlib.util.find_spec("sentence_transformers") is None:
        missing = MissingDependencyError.of("sentence-transformers", "embeddings")
        found = read_pooling(str(model_path(name)), local=cached)
        if (
            kind != "SentenceTransformer"
            or found is None
            or found.further
            or found.prompt
            or found.mode not in MODES
        ):
            raise missing
        warnings.warn(
            f"{name} is read as a bare encoder with the pooling that its files name. {missing}",
            CtxmixWarning,
            stacklevel=2,
        )
        kind = None
    if kind is None:
        model, tokenizer = load(
            name,
            revision=revision,
            dtype=dtype,
            device=device,
            lm_head=False,
            trust_remote_code=trust_remote_code,
        )
        return model, {"pooling": pooling, "tokenizer": tokenizer}
    import sentence_transformers

    keywords: dict[str, Any] = {"model_kwargs": {DTYPE: getattr(torch, dtype)}} if dtype else {}
    only = {"local_files_only": True} if cached else {}
    with in_words(name, revision=revision, trust_remote_code=trust_remote_code, **only):
        return getattr(sentence_transformers, kind)(
            str(model_path(name)),
            revision=revision,
            device=device,
            trust_remote_code=trust_remote_code,
            **only,
            **keywords,
        ), {}


def _sentence_kind(path: str, cached: bool) -> str | None:
    """The class of sentence-transformers that left these files; None for a model that is none of theirs."""
    read = model_files(path, local=cached)
    named = (read("config_sentence_transformers.json") or {}).get("model_type")
    if named in KINDS:
        return str(named)
    if read("modules.json") is not None:
        return "SentenceTransformer"
    config = read("config.json") or {}
    heads = [str(head) for head in config.get("architectures") or []]
    one = len(config.get("id2label") or {}) == 1 and any(
        head.endswith("ForSequenceClassification") for head in heads
    )
    return "CrossEncoder" if one or "sentence_transformers" in config else None


def load_asked(args: Any) -> tuple[Any, Any]:
    """The model of `--model --revision --dtype --device`."""
    quiet(args.debug)
    return load(
        args.model,
        revision=args.revision,
        dtype=args.dtype,
        device=args.device,
        trust_remote_code=args.trust_remote_code,
    )


def named_reader(model: Model, reader: Any) -> dict[str, Any]:
    """What `load` gave beside the model, as `explain` and `attribute` take it."""
    return {"tokenizer" if reads(model) == "text" else "processor": reader}


def example_of(model: str, tokenizer: Tokenizer) -> str:
    """A good sentence for a model: with a mask where it has one."""
    mask = getattr(tokenizer, "mask_token", None)
    if model == SENTIMENT.name:
        return SENTIMENT.example
    return AGREEMENT.example.replace("[MASK]", mask or "are")
