"""Install once, record per call, remove: the only code that adds anything to a model, and takes it away again.

All hooks are instances of module-level classes (so the model still pickles and deep-copies) and sleep until a
context variable wakes them: inert they cost a dictionary look-up, in other threads they never wake.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

from ctxmix_hf.errors import NotATransformersModelError, NotInstrumentedError, UnsupportedModelError
from ctxmix_hf.instrumentation.injection import Injection
from ctxmix_hf.instrumentation.overrides import REFUSED, Span, span_of
from ctxmix_hf.instrumentation.recorder import ACTIVE, Recorder
from ctxmix_hf.records import ModelRecord
from ctxmix_hf.tokens import Tokens, numbered, read_tokens


@dataclass
class Instrumentation:
    """What is known about one instrumented model; shared by its hooks, copied and pickled with them."""

    family: str
    dtype: torch.dtype
    proofs: dict[int, bool] = field(default_factory=dict)  # layers whose parts were proved to add up; True: and their feed-forward
    scalings: dict[int, float | None] = field(default_factory=dict)  # layer index -> proved attention scaling
    replicas: dict[str, bool] = field(default_factory=dict)  # layer name -> replay in replicas is exact
    tokenizer: Any = None
    source: str | None = None  # where the model came from
    spans: bool = False  # layers are spans between modules, not modules
    root: nn.Module | None = None  # where the layers are
    embeddings: nn.Module | None = None  # the embedding norm, found in the first recorded call

    def read_tokens(self, record: ModelRecord) -> list[Tokens]:
        """Names for the record's tokens: pieces where a tokenizer is known or lies beside the model, else numbers."""
        if record.input_ids is None:
            return [numbered(record.mask.shape[1]) for _ in range(len(record.mask))]
        tokenizer = self.load_tokenizer()
        ids = record.input_ids.tolist()
        return read_tokens(ids, tokenizer) if tokenizer is not None else [Tokens(tuple(map(str, row))) for row in ids]

    def load_tokenizer(self) -> Any:
        """The tokenizer given to `instrument`, or the one beside the weights if it is on this machine."""
        if self.tokenizer is None and self.source:
            try:
                self.tokenizer = AutoTokenizer.from_pretrained(self.source, local_files_only=True)
            except (OSError, ValueError, ImportError, KeyError, AttributeError):
                self.source = None  # none there: do not look again
        return self.tokenizer

    def remember_embeddings(self, norm: nn.Module | None) -> None:
        """Install the one hook that can only be placed once a forward has shown where the embedding norm is."""
        if norm is not None and not any(isinstance(h, StartAtNorm) for h in norm._forward_pre_hooks.values()):
            norm.register_forward_pre_hook(StartAtNorm(self))
            norm.register_forward_hook(StartAfterNorm(self))
        self.embeddings = norm

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Hooks stay inert inside, also within a recorded call."""
        token = ACTIVE.set(None)
        try:
            yield
        finally:
            ACTIVE.reset(token)


class _Hook:
    """Base of all our hooks: found by type when they are to be removed."""

    def __init__(self, owner: Instrumentation) -> None:
        self.owner = owner

    def active(self) -> Recorder | Injection | None:
        """What wakes this hook in the running thread, if anything does."""
        if torch.compiler.is_compiling():
            return None
        active = ACTIVE.get()
        return active if active is not None and active.owner is self.owner else None


class EnterLayer(_Hook):
    def __init__(self, owner: Instrumentation, name: str) -> None:
        super().__init__(owner)
        self.name = name

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        active = self.active()
        return None if active is None else active.enter(module, self.name, args, kwargs)


class LeaveLayer(_Hook):
    def __init__(self, owner: Instrumentation, name: str) -> None:
        super().__init__(owner)
        self.name = name

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        active = self.active()
        return None if active is None else active.leave(self.name, output)


class SeeModule(_Hook):
    """Reports a leaf module's input and output: it may turn out to be a norm or an activation."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        active = self.active()
        if active is None or len(args) != 1 or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
            return None
        return active.module(module, args[0], output)


class StartAtNorm(_Hook):
    """Puts another sum of embeddings before the embedding norm."""

    def __call__(self, module: nn.Module, args: Any) -> Any:
        active = self.active()
        altered = active.embedding_sum() if isinstance(active, Injection) else None
        return None if altered is None else (altered.to(args[0].dtype), *args[1:])


class StartAfterNorm(_Hook):
    """Puts another e^0 behind the embedding norm, for families whose first layer has no module to enter."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        active = self.active()
        return active.first_hidden(output) if isinstance(active, Injection) else None


# Their torch functions tell the tap everything already.
_TOLD_BY_TAP = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout, nn.Identity)


def attach(model: nn.Module, before: Any, after: Any) -> None:
    """Add all hooks. `before` and `after` are the top-level hooks (the request and the extended output)."""
    base = base_model(model)
    owner = before.owner
    root = owner.root = encoder_of(base)
    span = span_of(base)
    for module in root.modules():
        if not any(True for _ in module.children()) and not isinstance(module, _TOLD_BY_TAP):
            module.register_forward_hook(SeeModule(owner))
    if span is not None:
        _attach_span(base, span, owner)
    else:
        for name, module in _layer_candidates(root):
            module.register_forward_pre_hook(EnterLayer(owner, name), with_kwargs=True)
            module.register_forward_hook(LeaveLayer(owner, name))
    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, with_kwargs=True, always_call=True)


def _layer_candidates(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """Members of module lists: which of them are layers is decided by what they do."""
    found = [
        (f"{name}.{key}", child)
        for name, parent in root.named_modules()
        if isinstance(parent, nn.ModuleList | nn.Sequential | nn.ModuleDict)
        for key, child in parent.named_children()
        if any(True for _ in child.children())
    ]
    seen: set[int] = set()
    return [(n, m) for n, m in found if id(m) not in seen and not seen.add(id(m))]  # type: ignore[func-returns-value]


def _attach_span(base: PreTrainedModel, span: Span, owner: Instrumentation) -> None:
    """A layer that has no module of its own: opened by one module, closed by another."""
    inner = base.base_model
    names = dict(inner.named_modules())
    for i in range(len(names)):
        first, last = (names.get(path.format(i=i)) for path in (span.first, span.last))
        if first is None or last is None:
            break
        name = span.first.format(i=i)
        first.register_forward_pre_hook(EnterLayer(owner, name), with_kwargs=True)
        last.register_forward_hook(LeaveLayer(owner, name))
    owner.spans = True


def detach(model: nn.Module) -> None:
    """Remove every hook of ours, also from a copy or an unpickled model."""
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(hook, _Hook)]:
                del hooks[key]
                for extra in (
                    module._forward_pre_hooks_with_kwargs,
                    module._forward_hooks_with_kwargs,
                    module._forward_hooks_always_called,
                ):
                    extra.pop(key, None)


def instrumentation_of(model: nn.Module) -> Instrumentation | None:
    """The instrumentation of this model, or None."""
    model = getattr(model, "_orig_mod", model)
    hooks = getattr(model, "_forward_pre_hooks", {}).values()
    return next((h.owner for h in hooks if isinstance(h, _Hook) and not isinstance(h, EnterLayer)), None)


def require_instrumentation(model: nn.Module) -> Instrumentation:
    owner = instrumentation_of(model)
    if owner is None:
        raise NotInstrumentedError("This model is not instrumented: call ctxmix_hf.instrumentation(model) first.")
    return owner


def base_model(model: Any) -> PreTrainedModel:
    """The transformers model inside what the user gave: itself, a PEFT wrapper's base, a compiled module's original."""
    model = getattr(model, "_orig_mod", model)
    unwrap = getattr(model, "get_base_model", None)
    base = unwrap() if callable(unwrap) and not isinstance(model, PreTrainedModel) else model
    if not isinstance(base, PreTrainedModel):
        raise NotATransformersModelError(
            f"Expected a Hugging Face transformers model, got {type(model).__name__}: load it with "
            "AutoModel.from_pretrained(...) or ctxmix_hf.AutoContextMixingModel.from_pretrained(...)."
        )
    return base


def encoder_of(base: PreTrainedModel) -> nn.Module:
    """Where the layers are looked for: the encoder of an encoder-decoder, else the whole model."""
    if getattr(base.config, "is_encoder_decoder", False):
        encoder = base.get_encoder() if hasattr(base, "get_encoder") else None
        if isinstance(encoder, nn.Module):
            return encoder
    return base


def check_family(base: PreTrainedModel) -> None:
    """Families whose attention is known not to be a softmax over the whole sequence are refused before any change."""
    reason = REFUSED.get(base.config.model_type)
    if reason is not None and reason.applies(base.config):
        raise UnsupportedModelError(f"{base.config.model_type} cannot be decomposed: {reason.text}")
    if span_of(base) is None and not _layer_candidates(encoder_of(base)):
        raise UnsupportedModelError(
            f"{base.config.model_type}: no list of layers was found in {type(base).__name__}; declare where its layers "
            "start and end in ctxmix_hf/instrumentation/overrides.py."
        )
