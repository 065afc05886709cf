"""The top of an instrumented model: takes our keywords out of the call, records, and extends the output."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

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

class Maps(Protocol):
    """How maps of a request are made; given by the layer above (modeling), so that imports point down."""

    def gather(self, methods: Any, options: dict[str, Any]) -> Any | None:
        """Something that takes layers one by one (`add`, then `finish(record)`), if these methods allow it."""
        ...

    def of_record(self, record: ModelRecord, methods: Any, options: dict[str, Any]) -> Any:
        """From the whole record."""
        ...


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

    def __init__(self, owner: Instrumentation, maps: Maps, defaults: Any = None) -> None:
        super().__init__(owner)
        self.maps, self.defaults = maps, defaults

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
        if request.methods and not request.decomposition and not keep_graph:
            recorder.gather = self.maps.gather(request.methods, request.options)
        recorder.__enter__()
        return args, kwargs


class AfterCall(_Hook):
    """Puts everything back, also after an exception, and adds what was asked for to the output."""

    def __init__(self, owner: Instrumentation, maps: Maps) -> None:
        super().__init__(owner)
        self.maps = maps

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        recorder = self.active()
        if not isinstance(recorder, Recorder) or recorder.top is not module:
            return None
        recorder.__exit__(None, None, None)
        if output is None:  # the forward raised: its own error is on its way
            return None
        with torch.set_grad_enabled(recorder.keep_graph):
            record = model_record(recorder, module, args, kwargs)
            request = recorder.request
            maps = None
            if recorder.gather is not None:
                maps = recorder.gather.finish(record)
            elif request.methods:
                maps = self.maps.of_record(record, request.methods, request.options)
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
    return ModelRecord(
        layers=tuple(layers),
        mask=recorder.mask,
        input_ids=None if ids is None else ids.detach(),
        causal=tokens > 1 and recorder.causal,
        model_dtype=base.dtype,
        embedding_sum=recorder.embedding_sum,
        replay=None if recorder.gather is not None else ModelReplay.of(module, args, kwargs, recorder.owner, layers),
        read_tokens=recorder.owner.read_tokens,
        origin={"model": base.config._name_or_path or type(base).__name__, "model_type": base.config.model_type},
    )
