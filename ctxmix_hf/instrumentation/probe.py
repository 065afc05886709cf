"""Tries to refute what a record claims, by one more forward pass of the model with small changes in it.

Every layer is entered with its recorded input, one token j of it disturbed, and its attention product is replaced by
the recorded one, another token k of it disturbed. What follows from a decomposition is then checked:

- the output of every other token stays what it was: nothing but the attention moves information between tokens;
- the stream and what ran beside the attention stay what they were at k: they do not depend on it;
- the projected attention at k moves by exactly `projection` times the disturbance.

Between two layers the same is asked of whatever stands there. The probe knows no family and no module path. It runs in
the first record of a layer's program; a verdict is kept only where the input was long enough to give one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ctxmix_hf.instrumentation.awake import run_awake
from ctxmix_hf.instrumentation.blocks import Built, tolerance
from ctxmix_hf.instrumentation.layout import (
    HiddenLayout,
    Unmatched,
    first_tensor,
    merged_context,
    with_first_tensor,
)
from ctxmix_hf.instrumentation.replay import CACHES, LayerCall, LayerReplay
from ctxmix_hf.instrumentation.session import Instrumentation
from ctxmix_hf.instrumentation.tap import Tap, weakly
from ctxmix_hf.instrumentation.trace import AttentionProduct, Trace

CONCLUSIVE = 3  # real tokens: one to disturb on the way in, one in the attention, one to watch


@dataclass(frozen=True)
class Point:
    """A tensor of the trace, found again by where it stands: the output (-1) or an input of the n-th event."""

    event: int
    slot: int
    value: Tensor

    @classmethod
    def of(cls, trace: Trace, start: int, node: int) -> Point | None:
        for n, event in enumerate(trace.events[start:]):
            if event.output == node:
                return cls(n, -1, trace.values[node])
            if node in event.inputs:
                return cls(n, event.inputs.index(node), trace.values[node])
        return None

    def again(self, trace: Trace, start: int) -> Tensor | None:
        events = trace.events[start:]
        if self.event >= len(events):
            return None
        event = events[self.event]
        if self.slot >= len(event.inputs):
            return None
        return trace.values[event.output if self.slot < 0 else event.inputs[self.slot]]


@dataclass
class Evidence:
    """What the probe keeps of one recorded layer, as the model computed it; `verdict` is filled in by the probe."""

    index: int
    signature: int
    name: str
    module: nn.Module
    hidden: Tensor
    product: AttentionProduct
    output: Tensor
    layout: HiddenLayout
    mask: Tensor  # [B, T]
    replay: LayerReplay
    between: tuple[nn.Module, ...] = ()  # leaf modules that ran since the layer below ended
    chained: bool = True  # its input is the output of the layer below
    projection: Tensor | None = None  # [H*E, D]
    branch: Point | None = None
    beside: tuple[Point | None, ...] = ()
    # the layer's output is claimed to be a plain sum that the attention joins
    parallel: bool = False
    precision: torch.dtype = torch.float32
    fed: bool = False  # the feed-forward reproduces what the model computed
    refused: str = ""
    mixing: str = ""
    before: str = ""

    def claims(self, built: Built, trace: Trace, start: int) -> None:
        self.projection = built.block.projection.flatten(0, 1)
        self.branch = Point.of(trace, start, built.branch)
        self.beside = tuple(Point.of(trace, start, node) for node in built.beside)
        block = built.block
        self.parallel = (
            block.order == "parallel"
            and not block.tail
            and block.tail_complete
            and block.branch_norm is None
        )
        self.precision = built.precision


@dataclass
class Probe:
    """Reached by the hooks like a recorder; `entry` and `inner` name each example's disturbed
    tokens j and k (-1: none).
    """

    owner: Instrumentation
    evidence: list[Evidence]
    entry: Tensor
    inner: Tensor
    protected: frozenset[int]  # storage of weights, inputs and recorded tensors: never written to
    calls: int = 0
    open: list[str] = field(
        default_factory=list
    )  # frames, as the recorder opened them: its traces start at the outermost
    start: int = 0  # where the current layer starts in the trace
    current: Evidence | None = None
    previous: Evidence | None = None
    disturbance: Tensor | None = None
    tap: Tap = field(default_factory=Tap)

    def __post_init__(self) -> None:
        self.tap.replace = weakly(self._replaced)
        self.generator = torch.Generator().manual_seed(0)

    def module(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        if self.tap.trace is not None and y is not x:
            self.tap.trace.add("module", (self.tap.trace.node(x),), self.tap.trace.node(y), module)

    def enter(
        self, module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call = LayerCall.of(module, name, args, kwargs)
        if call is None:
            return None
        if not self.open:
            self.tap.trace = Trace()
        self.open.append(name)
        if (
            self.current is not None
            or self.calls >= len(self.evidence)
            or name != self.evidence[self.calls].name
        ):
            return None
        self.current = now = self.evidence[self.calls]
        self.calls += 1
        with torch._C.DisableTorchFunction():
            if self.previous is not None and not now.chained and _comparable(self.previous, now):
                gap = self._moved(now, call.hidden, now.hidden, watch_inner=True)
                if gap > locality_limit(now.hidden.dtype):
                    now.before = _what_mixes(now.between, self.owner.root)
            hidden = (
                call.hidden if self.owner.spans else self._disturbed(now, now.hidden, self.entry)
            )
            if not self.owner.spans and self._may_write(
                call.hidden
            ):  # what the model itself still reads is disturbed too
                hidden = call.hidden.copy_(hidden)
        assert self.tap.trace is not None
        self.tap.trace.node(hidden)
        self.start = len(self.tap.trace.events)
        if isinstance(call.position, int):
            return (*args[: call.position], hidden, *args[call.position + 1 :]), kwargs
        return args, {**kwargs, call.position: hidden}

    def leave(self, name: str, output: Any) -> Any:
        now, hidden, trace = self.current, first_tensor(output), self.tap.trace
        if self.open and self.open[-1] == name:
            self.open.pop()
        if not self.open:
            self.tap.trace = None
        if now is None or name != now.name or hidden is None:
            return None
        with torch._C.DisableTorchFunction():
            if self._moved(now, hidden, now.output) > locality_limit(now.output.dtype):
                leaves = tuple(
                    m for m in now.module.modules() if not any(True for _ in m.children())
                )
                now.mixing = _what_mixes(leaves, self.owner.root)
            if trace is not None and now.projection is not None and not now.refused:
                now.refused = self._refuted(now, trace, hidden)
            self.previous, self.current, self.disturbance = now, None, None
            return with_first_tensor(output, self._disturbed(now, now.output, self.entry))

    def _may_write(self, value: Tensor) -> bool:
        """A tensor of this run alone, no broadcast view, no weight, no input of the caller."""
        own = value.untyped_storage().data_ptr() not in self.protected
        return (
            own and value.is_contiguous() and not value.requires_grad and not value.is_inference()
        )

    def _replaced(self, product: AttentionProduct) -> Tensor:
        now = self.current
        if now is None or now.product.context.shape != product.context.shape:
            return product.context
        with torch._C.DisableTorchFunction():
            chosen = now.product.on_tokens(_one_hot(self.inner, now.mask))
            scale = now.product.context.detach().float().std().clamp(min=1e-3)
            noise = torch.randn(product.context.shape, generator=self.generator).to(
                product.context
            ) * scale.to(product.context.dtype)
            replaced = now.product.context + noise * chosen.to(noise.dtype)
            self.disturbance = replaced - now.product.context
        return replaced

    def _disturbed(self, now: Evidence, value: Tensor, tokens: Tensor) -> Tensor:
        """`value` with noise of its own size on one token of each example."""
        standard = now.layout.moved(value)
        noise = torch.randn(standard.shape, generator=self.generator).to(
            value
        ) * value.detach().float().std().clamp(min=1e-3).to(value.dtype)
        noise = noise * _one_hot(tokens, now.mask)[..., None].to(noise.dtype)
        return value + now.layout.unmoved(noise, value)

    def _moved(
        self, now: Evidence, value: Tensor, recorded: Tensor, watch_inner: bool = False
    ) -> float:
        """How far undisturbed tokens are from what they were, relative to the largest number."""
        watched = now.mask & ~_one_hot(self.entry, now.mask)
        if not watch_inner:
            watched = watched & ~_one_hot(self.inner, now.mask)
        a, b = now.layout.standard(value), now.layout.standard(recorded)
        if not bool(watched.any()):
            return 0.0
        return float((a - b)[watched].abs().max() / b[now.mask].abs().max().clamp(min=1.0))

    def _refuted(self, now: Evidence, trace: Trace, output: Tensor) -> str:
        chosen = _one_hot(self.inner, now.mask)
        if self.disturbance is None or not bool(chosen.any()):
            return ""
        limit = 10 * tolerance(now.precision)

        def change(point: Point | None) -> Tensor | None:
            value = None if point is None else point.again(trace, self.start)
            if point is None or value is None or value.shape != point.value.shape:
                return None
            return (now.layout.standard(value) - now.layout.standard(point.value))[chosen]

        moved = change(now.branch)
        if now.branch is None or moved is None:
            return "its operations are not the same when it runs again."
        size = now.layout.standard(now.branch.value)[now.mask].abs().max().clamp(min=1.0)
        assert now.projection is not None
        context = merged_context(now.product.with_context(self.disturbance), now.layout.batch).to(
            now.projection.dtype
        )
        error = float((moved - (context @ now.projection)[chosen]).abs().max() / size)
        if error > limit:
            return f"its parts do not add up (they miss {error:.1e} of what the attention adds)."
        for point in now.beside:
            beside = change(point)
            if beside is not None and float(beside.abs().max() / size) > limit:
                return "something that is added to the attention depends on it in another way than by a linear map."
        if now.parallel:
            after = (now.layout.standard(output) - now.layout.standard(now.output))[chosen]
            if float((after - moved).abs().max() / size) > limit:
                return (
                    "something is added to the attention before the rest of the layer reads both."
                )
        return ""


def locality_limit(dtype: torch.dtype) -> float:
    """What an undisturbed token may move, relative to the largest number: experts that round to
    float32 are grouped anew.
    """
    return max(tolerance(dtype), tolerance(torch.float32))


def _one_hot(tokens: Tensor, mask: Tensor) -> Tensor:
    """`[B, T]` bool, True on each example's chosen token (-1: none); towers of another batch size
    take the first rows.
    """
    places = torch.arange(mask.shape[1], device=mask.device)
    return places[None] == tokens.to(mask.device)[: len(mask), None]


def _comparable(below: Evidence, now: Evidence) -> bool:
    return (
        below.layout.tokens == now.layout.tokens
        and below.layout.batch == now.layout.batch
        and below.output.shape == now.hidden.shape
    )


def _what_mixes(leaves: tuple[nn.Module, ...], root: nn.Module | None) -> str:
    """Named by its module where it is a convolution, else in general words."""
    for module in leaves:
        if isinstance(module, _ConvNd) and max(module.kernel_size) > 1:
            names = {} if root is None else {m: name for name, m in root.named_modules()}
            return f"a convolution ({names.get(module, type(module).__name__)}) mixes neighbouring tokens"
    quantised = next((m for m in leaves if "quantized" in type(m).__module__), None)
    if quantised is not None:
        return f"dynamic quantisation ({type(quantised).__name__}) couples all tokens of a batch through one scale"
    return "an operation beside the attention moves information between tokens"


def probe(
    owner: Instrumentation,
    evidence: list[Evidence],
    run: Callable[[], Any],
    inputs: Iterable[Tensor],
    defer_from: int | None = None,
) -> bool:
    """Fill in the verdicts of `evidence`; False where the input is too short for verdicts that hold for longer ones.

    `run` calls the model again with `inputs`.
    """
    mask = evidence[0].mask
    real = [row.nonzero().squeeze(-1).tolist() for row in mask]
    conclusive = max(len(places) for places in real) >= CONCLUSIVE
    if conclusive:  # j in the middle, so that both neighbours are watched; k at the end
        rounds = [
            (
                [places[len(places) // 2] if len(places) >= CONCLUSIVE else -1 for places in real],
                [places[-1] if len(places) >= CONCLUSIVE else -1 for places in real],
            )
        ]
    else:
        none = [-1] * len(real)
        rounds = [
            (none, [places[-1] for places in real]),
            ([places[0] for places in real], none),
            ([places[-1] for places in real], none),
        ]
    model = () if owner.root is None else (*owner.root.parameters(), *owner.root.buffers())
    recorded = (
        tensor for seen in evidence for tensor in (seen.hidden, seen.output, seen.product.context)
    )
    protected = frozenset(
        t.untyped_storage().data_ptr() for t in (*model, *inputs, *recorded) if not t.is_meta
    )
    for entry, inner in rounds:
        running = Probe(owner, evidence, torch.tensor(entry), torch.tensor(inner), protected)
        running.tap.defer_from = defer_from
        with torch.no_grad(), torch.random.fork_rng():
            run_awake(running, running.tap, run)
        if running.calls < len(evidence):
            raise Unmatched("the model did not take the same way when it ran again.")
    return conclusive


def without_caches(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The same call, leaving no trace in a cache of keys and values."""
    kept = {key: value for key, value in kwargs.items() if key not in CACHES}
    return kept | ({"use_cache": False} if "use_cache" in kwargs else {})
