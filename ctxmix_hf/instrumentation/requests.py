"""The top of an instrumented model: takes our keywords out of the call, records, and extends the output."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback

from ctxmix_hf.errors import RecordError
from ctxmix_hf.instrumentation.injection import ModelReplay
from ctxmix_hf.instrumentation.inputs import check_call, main_input, padding_mask
from ctxmix_hf.instrumentation.recorder import Recorder
from ctxmix_hf.instrumentation.session import Instrumentation, _Hook, base_model
from ctxmix_hf.outputs import extend
from ctxmix_hf.records import ModelRecord

KEYWORDS = ("output_decomposition", "output_context_mixing", "cache", "max_memory", "create_graph")

COMPILED = "A compiled model hides its operations: call ctxmix_hf.instrument(compiled_model), then such calls run the original."
STANCE: ContextVar[Any] = ContextVar("ctxmix_stance", default=None)

# Computes the maps of a request from a record; set by the layer above (modeling), so that imports point down.
ComputeMaps = Callable[[ModelRecord, Any, dict[str, Any]], Any]


@dataclass
class Request:
    """What one call asked for beside the ordinary outputs."""

    decomposition: bool
    methods: Any
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def take(cls, kwargs: dict[str, Any], defaults: Any) -> Request | None:
        asked = {key: kwargs.pop(key) for key in KEYWORDS if key in kwargs}
        methods = asked.pop("output_context_mixing", None)
        methods = defaults if methods is True else methods
        decomposition = bool(asked.pop("output_decomposition", False))
        return cls(decomposition, methods, asked) if decomposition or methods else None


class BeforeCall(_Hook):
    """Wakes the hooks if the call asks for something of ours."""

    def __init__(self, owner: Instrumentation, defaults: Any = None) -> None:
        super().__init__(owner)
        self.defaults = defaults

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if not any(key in kwargs for key in KEYWORDS):
            return None
        if torch.compiler.is_compiling() or _being_compiled():
            raise RecordError(COMPILED)
        kwargs = dict(kwargs)
        request = Request.take(kwargs, self.defaults)
        if request is None:
            return args, kwargs
        base = base_model(module)
        check_call(base, module, args, kwargs)
        batch = main_input(base, args, kwargs).shape[0]
        self.owner.dtype = base.dtype
        keep_graph = bool(request.options.get("create_graph"))
        recorder = Recorder(self.owner, module, batch, padding_mask(args, kwargs), keep_graph)
        recorder.request = request
        recorder.__enter__()
        return args, kwargs


class AfterCall(_Hook):
    """Puts everything back, also after an exception, and adds what was asked for to the output."""

    def __init__(self, owner: Instrumentation, compute_maps: ComputeMaps) -> None:
        super().__init__(owner)
        self.compute_maps = compute_maps

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        recorder = self.active()
        if not isinstance(recorder, Recorder) or recorder.top is not module:
            return None
        recorder.__exit__(None, None, None)
        if output is None:  # the forward raised: its own error is on its way
            return None
        record = model_record(recorder, module, args, kwargs)
        request = recorder.request
        maps = self.compute_maps(record, request.methods, request.options) if request.methods else None
        return extend(output, decomposition=record if request.decomposition else None, context_mixing=maps)


def _being_compiled() -> bool:
    """Is this frame run on behalf of a compiled wrapper, frame by frame? Then our hooks would be compiled asleep."""
    return callable(get_eval_frame_callback())


class EagerBefore(_Hook):
    """On a compiled wrapper: a call that asks for something of ours runs the original module."""

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if any(key in kwargs for key in KEYWORDS):
            STANCE.set(torch.compiler.set_stance("force_eager"))


class EagerAfter(_Hook):
    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        stance = STANCE.get()
        if stance is not None:
            stance.__exit__(None, None, None)
            STANCE.set(None)


def model_record(recorder: Recorder, module: nn.Module, args: Any, kwargs: Any) -> ModelRecord:
    layers, base = recorder.finished(), base_model(module)
    x = main_input(base, args, kwargs)
    tokens = layers[0].attention.shape[-1]
    ids = x if not x.is_floating_point() and x.dim() == 2 and x.shape[1] == tokens else None
    if recorder.mask is None:
        raise RecordError("The padding of the batch is unknown.")
    upper = torch.ones(tokens, tokens, dtype=torch.bool, device=layers[0].attention.device).triu(1)
    causal = tokens > 1 and all(not bool((layer.attention * upper).any()) for layer in layers)
    return ModelRecord(
        layers=tuple(layers),
        mask=recorder.mask,
        input_ids=None if ids is None else ids.detach(),
        causal=causal,
        model_dtype=base.dtype,
        embedding_sum=recorder.embedding_sum,
        replay=ModelReplay.of(module, args, kwargs, recorder.owner, layers),
        read_tokens=recorder.owner.read_tokens,
        origin={"model": base.config._name_or_path or type(base).__name__, "model_type": base.config.model_type},
    )
