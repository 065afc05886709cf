"""The top of an instrumented model: takes our keywords out of the call, records, and extends the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from transformers import PreTrainedModel

from ctxmix_hf.errors import RecordError
from ctxmix_hf.instrumentation.awake import keeps_modes, run_awake
from ctxmix_hf.instrumentation.injection import ModelReplay
from ctxmix_hf.instrumentation.listener import AttentionListener
from ctxmix_hf.instrumentation.probe import without_caches
from ctxmix_hf.instrumentation.recorder import NeedsEvidence, Recorder
from ctxmix_hf.instrumentation.session import FusedLayers, Instrumentation
from ctxmix_hf.methods.base import Reads
from ctxmix_hf.outputs import extend
from ctxmix_hf.records import LayerRecord, ModelRecord
from ctxmix_hf.text.inputs import (
    batch_sizes,
    check_call,
    main_input,
    padding_mask,
    patch_numbers,
    reads_ids,
)
from ctxmix_hf.text.tokens import Tokens
from ctxmix_hf.unwrapping import base_model, encoder_of

KEYWORDS = (
    "output_decomposition",
    "output_context_mixing",
    "cache",
    "max_memory",
    "create_graph",
    "targets",
    "segments",
    "top_k",
    "tokens",
)

DEFER_FROM = 256  # tokens: from here on attention is made by blocks of rows where methods allow it

COMPILED = (
    "A compiled model hides its operations: call ctxmix_hf.instrument(compiled_model), then "
    "such calls run the original."
)


class Maps(Protocol):
    """The maps of one call in the making. Where it `streams`, each layer is added as it ends and nothing else of it is
    kept; else the record is whole when `finish` sees it. The caller walks one way either way.
    """

    streams: bool

    @property
    def reads(self) -> Reads: ...

    def add(self, layer: LayerRecord, layers: int = 1) -> None:
        """A layer, or (where they are read joined) several of one shape as one batch."""
        ...

    def finish(self, record: ModelRecord, places: Sequence[int], output: Any) -> dict[str, Any]:
        """Of the layers of a record; `places` are theirs among all that ran (one tower of several)."""
        ...


class MapMaker(Protocol):
    """How maps are made; given by the layer above (modeling), so that imports point down."""

    def begin(self, methods: Any, options: dict[str, Any], whole: bool, depth: int | None) -> Maps:
        """`whole`: the record is kept anyway, so nothing is gained by streaming; `depth` layers are
        expected.
        """
        ...

    def check(
        self, base: PreTrainedModel, x: Tensor, methods: Any, options: dict[str, Any]
    ) -> None:
        """Raise before anything runs where the result could not be held."""
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


class RecordedCall:
    """Takes the place of the module's `_call_impl`, so that a frame of ours stands around every
    call: a plain one is passed on, one that asks for something of ours is recorded, and nothing of
    it outlives the call, whatever raises."""

    def __init__(
        self, module: nn.Module, owner: Instrumentation, maker: MapMaker, defaults: Any = None
    ) -> None:
        self.module, self.owner, self.maker, self.defaults = module, owner, maker, defaults

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = type(self.module)._call_impl
        if not any(key in kwargs for key in KEYWORDS):
            return call(self.module, *args, **kwargs)
        if torch.compiler.is_compiling() or _being_compiled():
            raise RecordError(COMPILED)
        request = Request.take(kwargs, self.defaults)
        return (
            call(self.module, *args, **kwargs)
            if request is None
            else self._record(request, call, args, kwargs)
        )

    def _begin(
        self,
        request: Request,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        slim: bool,
        known: FusedLayers | None = None,
    ) -> tuple[Recorder | AttentionListener, Maps | None]:
        base, keep_graph = base_model(self.module), bool(request.options.get("create_graph"))
        batches, mask = batch_sizes(base, args, kwargs), padding_mask(args, kwargs)
        if not request.methods:
            return Recorder(self.owner, batches, mask, keep_graph), None
        whole = request.decomposition or keep_graph
        depth = getattr(base.config, "num_hidden_layers", None)
        depth = depth if isinstance(depth, int) else None
        maps = self.maker.begin(request.methods, request.options, whole, depth)
        defer_from = DEFER_FROM if maps.reads.rows else None
        if known is not None and maps.streams and maps.reads.attention_alone:
            return AttentionListener(self.owner, known, batches, mask, maps, defer_from), maps
        recorder = Recorder(self.owner, batches, mask, keep_graph)
        recorder.reads = maps.reads
        if maps.streams:
            recorder.gather, recorder.slim = maps, slim and maps.reads.rows
        recorder.tap.defer_from = defer_from
        return recorder, maps

    @keeps_modes
    def _record(
        self, request: Request, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        module, base = self.module, base_model(self.module)
        known = self.owner.fused
        if known is not None and not known.program.runs():
            known = None
        check_call(base, module, args, kwargs, evaluates=known.program.root if known else None)
        self.owner.dtype = base.dtype
        keep_graph = bool(request.options.get("create_graph"))
        if request.methods:
            self.maker.check(base, main_input(base, args, kwargs), request.methods, request.options)
        recorder, making = self._begin(request, args, kwargs, bool(self.owner.proofs), known)
        run = lambda: run_awake(recorder, recorder.tap, lambda: call(module, *args, **kwargs))
        try:
            output = run()
            towers = recorder.towers()
        except NeedsEvidence:
            self.owner.fused = None
            recorder, making = self._begin(request, args, kwargs, slim=False)
            output = run()
            towers = recorder.towers()
        again = without_caches(kwargs)
        recorder.settle(
            lambda: call(module, *args, **again),
            (v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)),
        )
        with torch.set_grad_enabled(keep_graph):
            records = model_records(
                recorder, towers, module, args, kwargs, output, request.options.get("tokens")
            )
            maps: Any = None
            if making is not None:
                maps = {
                    name: making.finish(record, places, output)
                    for name, (record, places) in records.items()
                }
        for record, _ in records.values():
            self.owner.warn(record)
        decomposition = {name: record for name, (record, _) in records.items()}
        if maps is not None:
            maps = (
                maps[""]
                if "" in maps
                else {
                    key: {name: maps[name][key] for name in maps}
                    for key in next(iter(maps.values()))
                }
            )
        return extend(
            output,
            decomposition=decomposition.get("", decomposition) if request.decomposition else None,
            context_mixing=maps,
        )


class EagerCall:
    """On a compiled wrapper: a call that asks for something of ours runs the original module."""

    def __init__(self, module: nn.Module, owner: Instrumentation) -> None:
        self.module, self.owner = module, owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(key in kwargs for key in KEYWORDS):
            return self.module._orig_mod(*args, **kwargs)  # type: ignore[operator]
        return type(self.module)._call_impl(self.module, *args, **kwargs)


def _being_compiled() -> bool:
    """Is this frame run on behalf of a compiled wrapper, frame by frame? Then our hooks would be compiled asleep."""
    return callable(get_eval_frame_callback())


def model_records(
    recorder: Recorder | AttentionListener,
    towers: dict[str, list[int]],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    output: Any,
    named: Sequence[Tokens] | None = None,
) -> dict[str, tuple[ModelRecord, list[int]]]:
    """A record per tower with the places of its layers; the only one of an ordinary model is named ""."""
    base = base_model(module)
    x = main_input(base, args, kwargs)
    records = {}
    whole = encoder_of(base) is base
    for tower, places in towers.items():
        layers = [
            recorder.layers[place] if place == i else replace(recorder.layers[place], index=i)
            for i, place in enumerate(places)
        ]
        stack = recorder.stacks[layers[0].name.rpartition(".")[0]]
        tokens = layers[0].attention.shape[-1]
        ids = (
            x
            if not x.is_floating_point()
            and x.shape == (stack.batch, tokens)
            and (not tower or reads_ids(base, layers[0].name))
            else None
        )
        fits = named is not None and [len(row) for row in named] == [tokens] * stack.batch
        first = places[0] == 0
        causal = all(recorder.stacks[layer.name.rpartition(".")[0]].causal for layer in layers)
        records[tower] = (
            ModelRecord(
                layers=tuple(layers),
                mask=stack.mask,
                input_ids=None if ids is None else ids.detach(),
                causal=tokens > 1 and causal,
                model_dtype=recorder.owner.dtype,
                embedding_sum=recorder.embedding_sum if first else None,
                replay=None
                if recorder.gather is not None
                else ModelReplay.of(module, args, kwargs, recorder.owner, layers, tower, first),
                read_tokens=recorder.owner.read_tokens,
                given_tokens=list(named)
                if named and fits and (ids is not None or not tower)
                else None,
                patches=patch_numbers(output, tokens),
                origin={
                    "model": base.config._name_or_path or type(base).__name__,
                    "model_type": base.config.model_type,
                }
                | ({"tower": tower} if tower else {})
                | ({"part": tower or "encoder"} if tower or not whole else {}),
            ),
            places,
        )
    return records
