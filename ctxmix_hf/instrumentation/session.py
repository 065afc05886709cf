"""Install once, record per call, remove: the only code that adds anything to a model, and takes it away again.

All hooks are instances of module-level classes (so the model still pickles and deep-copies) and sleep until a
context variable wakes them: inert they cost a dictionary look-up, in other threads they never wake.
"""

from __future__ import annotations

import difflib
import operator
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

from ctxmix_hf.errors import (
    CtxmixWarning,
    NotInstrumentedError,
    OptionError,
    UnsupportedModelError,
)
from ctxmix_hf.instrumentation.awake import ACTIVE
from ctxmix_hf.instrumentation.overrides import Span, refusal_of, span_of
from ctxmix_hf.records import ModelRecord
from ctxmix_hf.text.kinds import Tokenizer
from ctxmix_hf.text.tokens import Tokens, numbered, read_tokens
from ctxmix_hf.unwrapping import base_model, encoder_of, unwrapped


class Listener(Protocol):
    """Who the hooks of an awake model report to: a recorder, an injection, a probe, a ledger's start."""

    owner: Instrumentation

    def enter(
        self, module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...
    def leave(self, name: str, output: Any) -> Any: ...
    def module(self, module: nn.Module, x: Tensor, y: Tensor) -> Any: ...


@dataclass(frozen=True)
class Proof:
    """What is known of one layer's program."""

    feed_forward: bool = False  # its feed-forward reproduces what the model computed
    refused: str = ""  # why its parts are no parts
    mixing: str = ""  # what moves information between tokens beside the attention
    before: str = ""  # the same of what stands between the layer below and this one


@dataclass(frozen=True)
class Program:
    """The modules a model is made of. Where one is added, exchanged, given another forward or put into another mode,
    it is another program.
    """

    root: nn.Module
    modules: tuple[tuple[nn.Module, tuple[nn.Module | None, ...], Any, bool], ...]

    @classmethod
    def of(cls, root: nn.Module) -> Program:
        return cls(
            root,
            tuple(
                (m, tuple(m._modules.values()), m.__dict__.get("forward"), m.training)
                for m in root.modules()
            ),
        )

    def runs(self) -> bool:
        """Is it what stands there now? Asked in every call, so nothing is made."""
        for module, children, forward, training in self.modules:
            held = module._modules
            if (
                module.__dict__.get("forward") is not forward
                or module.training is not training
                or len(held) != len(children)
                or (children and not all(map(operator.is_, held.values(), children)))
            ):
                return False
        return True


@dataclass(frozen=True)
class FusedLayers:
    """Layers that recorded calls have proved, and whose attention is one torch function: to hear it, nothing else of
    them need be looked at.
    """

    names: tuple[str, ...]  # in call order
    proofs: tuple[Proof, ...]
    towers: dict[str, list[int]]  # which of them belong together
    program: Program  # that was proved


@dataclass(frozen=True)
class LayerStack:
    """The layers of a model as a recorded call found them: enough to follow another call without recording it."""

    names: tuple[str, ...]  # in call order
    order: str  # of the hidden states inside a layer
    entering: str | None  # and between layers
    causal: bool

    @classmethod
    def of(cls, record: ModelRecord) -> LayerStack:
        layout = record.replay.layout
        entering = layout.order_of(record.layers[0].replay.recorded.hidden)  # type: ignore[union-attr]
        return cls(record.replay.names, layout.order, entering, record.causal)


@dataclass
class Instrumentation:
    """What is known about one instrumented model; shared by its hooks, copied and pickled with them."""

    family: str
    dtype: torch.dtype
    # (layer index, signature of the program that ran) -> what is known of it
    proofs: dict[tuple[int, int], Proof] = field(default_factory=dict)
    fused: FusedLayers | None = None  # where every layer's attention is one torch function
    scalings: dict[tuple[int, int], float | None] = field(
        default_factory=dict
    )  # the attention's proved scaling
    replicas: dict[Any, bool] = field(
        default_factory=dict
    )  # (layer name, shape) -> replay in replicas is exact
    compiled: set[str] = field(
        default_factory=set
    )  # activation modules whose operations the tap cannot see
    warned: set[str] = field(default_factory=set)
    tokenizer: Tokenizer | None = None
    source: str | None = None  # where the model came from
    revision: str | None = None  # the commit its weights came from, where it is known
    spans: bool = False  # layers are spans between modules, not modules
    root: nn.Module | None = None  # where the layers are
    stack: LayerStack | None = None  # once recorded
    embeddings: nn.Module | None = None  # the embedding norm, found in the first recorded call
    random: dict[str, int] = field(
        default_factory=dict
    )  # weights that no checkpoint held -> their version when they were drawn

    def read_tokens(self, record: ModelRecord) -> list[Tokens]:
        """Names for the record's tokens: pieces where a tokenizer is known or lies beside the model, else numbers."""
        if record.patches is not None:  # shuffled: 0 is the class token, patch p is p + 1
            return [Tokens(("0", *(str(p + 1) for p in row))) for row in record.patches.tolist()]
        if record.input_ids is None:
            return [
                numbered(record.mask.shape[1], first=class_tokens(self.root))
                for _ in range(len(record.mask))
            ]
        tokenizer = self.load_tokenizer()
        ids = record.input_ids.tolist()
        return (
            read_tokens(ids, tokenizer)
            if tokenizer is not None
            else [Tokens(tuple(map(str, row))) for row in ids]
        )

    def load_tokenizer(self) -> Any:
        """The tokenizer given to `instrument`, or the one beside the weights if it is on this machine."""
        if self.tokenizer is None and self.source:
            try:
                self.tokenizer = AutoTokenizer.from_pretrained(self.source, local_files_only=True)
            except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError):
                self.source = None  # none there: do not look again
        return self.tokenizer

    def remember_embeddings(self, norm: nn.Module | None) -> None:
        """Install the hooks that can only be placed once a forward has shown where the embedding norm is."""
        if norm is not None:
            if not any(
                isinstance(h, StartAtNorm) and h.owner is self
                for h in norm._forward_pre_hooks.values()
            ):
                norm.register_forward_pre_hook(StartAtNorm(self))
            if not any(
                isinstance(h, StartAfterNorm) and h.owner is self
                for h in norm._forward_hooks.values()
            ):
                norm.register_forward_hook(StartAfterNorm(self))
        self.embeddings = norm

    def warn(self, record: ModelRecord) -> None:
        """Say once what makes maps of this model approximate."""
        why = record.approximate("attention")
        if why and why not in self.warned:
            self.warned.add(why)
            warnings.warn(
                f"Maps of this {self.family} model are approximate: {why}, which no map shows. "
                "hta, gradients and blank_out include it.",
                ApproximateWarning,
                stacklevel=5,
            )


class ApproximateWarning(CtxmixWarning):
    """Something beside the attention moves information between tokens."""


class _Hook:
    """Base of all our hooks: found by type when they are to be removed."""

    def __init__(self, owner: Instrumentation) -> None:
        self.owner = owner

    def active(self) -> Listener | None:
        """What wakes this hook in the running thread, if anything does."""
        if torch.compiler.is_compiling():
            return None
        active = ACTIVE.get()
        return active if active is not None and active.owner is self.owner else None


class EnterLayer(_Hook):
    def __init__(self, owner: Instrumentation, name: str) -> None:
        super().__init__(owner)
        self.name = name

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        active = self.active()
        return None if active is None else active.enter(module, self.name, args, kwargs)


class LeaveLayer(_Hook):
    def __init__(self, owner: Instrumentation, name: str) -> None:
        super().__init__(owner)
        self.name = name

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        active = self.active()
        return None if active is None else active.leave(self.name, output)


class SeeModule(_Hook):
    """Reports a leaf module's input and output: it may turn out to be a norm or an activation."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        active = self.active()
        if (
            active is None
            or len(args) != 1
            or not isinstance(args[0], Tensor)
            or not isinstance(output, Tensor)
        ):
            return None
        return active.module(module, args[0], output)


class StartAtNorm(_Hook):
    """Puts another sum of embeddings before the embedding norm."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> Any:
        injects = getattr(self.active(), "before_embedding_norm", None)  # an `Injection` does
        altered = None if injects is None else injects()
        return None if altered is None else (altered.to(args[0].dtype), *args[1:])


class StartAfterNorm(_Hook):
    """Puts another e^0 behind the embedding norm, for families whose first layer has no module to enter."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        injects = getattr(self.active(), "after_embedding_norm", None)
        return None if injects is None else injects(output)


# Their torch functions tell the tap everything already.
_TOLD_BY_TAP = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout, nn.Identity)


def attach(
    model: nn.Module,
    owner: Instrumentation,
    call: Any,
    declared: list[tuple[str, nn.Module]] | None = None,
) -> None:
    """Add all hooks, then `call`, which stands around every call of the model from now on.

    `declared` are the layers the user named; without them the members of module lists are watched.
    """
    base = base_model(model)
    root = owner.root = encoder_of(base)
    span = span_of(base) if declared is None else None
    for module in root.modules():
        if not any(True for _ in module.children()) and not isinstance(module, _TOLD_BY_TAP):
            module.register_forward_hook(SeeModule(owner))
    if span is not None:
        _attach_span(base, span, owner)
    else:
        for name, module in _layer_candidates(root) if declared is None else declared:
            module.register_forward_pre_hook(EnterLayer(owner, name), with_kwargs=True)
            module.register_forward_hook(LeaveLayer(owner, name))
    model.__dict__["_call_impl"] = call


def declared_layers(
    base: PreTrainedModel, layers: Iterable[str | nn.Module]
) -> list[tuple[str, nn.Module]]:
    """The layers a user names: dotted names (of the model or of its encoder) or modules, each proved to be there."""
    root = encoder_of(base)
    inside = dict(root.named_modules())
    by_module = {id(module): name for name, module in inside.items()}
    known = {**dict(base.named_modules()), **inside}
    found: list[tuple[str, nn.Module]] = []
    if isinstance(layers, str | nn.Module):
        layers = [layers]
    for layer in layers:
        module = layer if isinstance(layer, nn.Module) else known.get(str(layer))
        if module is None:
            near = difflib.get_close_matches(str(layer), list(known), n=3, cutoff=0.4)
            hint = f" Did you mean {', '.join(map(repr, near))}?" if near else ""
            raise OptionError(f"layers: {type(base).__name__} has no module {layer!r}.{hint}")
        name = by_module.get(id(module), "")
        if not name:
            raise OptionError(
                f"layers: this {type(module).__name__} is not inside {type(root).__name__}, "
                "where the layers are: name modules of its encoder."
            )
        if any(other is module for _, other in found):
            raise OptionError(f"layers: {name!r} is named twice; name every layer once.")
        found.append((name, module))
    if not found:
        raise OptionError("layers: name at least one module, or leave it out.")
    return found


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


def detach(model: nn.Module, owner: Instrumentation) -> None:
    """Remove the hooks of `owner`, and those only: models can share a module (openai-gpt's and
    xlm's activations are one object for all).

    What stands around the call goes last, so that a removal that was interrupted can be repeated.
    """
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [
                key
                for key, hook in hooks.items()
                if isinstance(hook, _Hook) and hook.owner is owner
            ]:
                del hooks[key]
                for extra in (
                    module._forward_pre_hooks_with_kwargs,
                    module._forward_hooks_with_kwargs,
                    module._forward_hooks_always_called,
                ):
                    extra.pop(key, None)
    model.__dict__.pop("_call_impl", None)


def instrumentation_of(model: nn.Module) -> Instrumentation | None:
    """The instrumentation of this model, or None."""
    model = unwrapped(model)
    call = getattr(model, "__dict__", {}).get("_call_impl")
    return None if call is None else call.owner  # type: ignore[no-any-return]


def require_instrumentation(model: nn.Module) -> Instrumentation:
    owner = instrumentation_of(model)
    if owner is None:
        raise NotInstrumentedError(
            "This model is not instrumented: call ctxmix_hf.instrument(model) first."
        )
    return owner


def class_tokens(root: nn.Module | None) -> tuple[str, ...]:
    """What stands before the patches of an image or the frames of a sound: a learned class token,
    where the model has one.
    """
    names = ("cls_token", "class_embedding", "class_token")
    learned = root is not None and any(
        name.rpartition(".")[2] in names for name, _ in root.named_parameters()
    )
    return ("[CLS]",) if learned else ()


def check_family(base: PreTrainedModel, declared: bool = False) -> None:
    """Families whose attention is known not to be a softmax over the whole sequence are refused before any change."""
    refusal = refusal_of(base.config)
    if refusal is not None:
        raise UnsupportedModelError(refusal)
    if not declared and span_of(base) is None and not _layer_candidates(encoder_of(base)):
        raise UnsupportedModelError(
            f"{base.config.model_type}: no list of layers was found in {type(base).__name__}. "
            "Name its layers: instrument(model, layers=['block_1', 'block_2', ...])."
        )
