"""Finds the roles in a layer from its trace: output projection, residual, norms and their order.

No module path is used. From the attention product the walk follows everything that is affine in it (given frozen
norm statistics) until it meets the residual stream; from there it follows sums and norms to the layer's output.
What is found is accepted only if the parts add up to the captured tensors (see `session`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ctxmix_hf.instrumentation.layout import HiddenLayout, StandardAttention, Unmatched, find_layout
from ctxmix_hf.instrumentation.norm_modules import NormCall, as_norm
from ctxmix_hf.instrumentation.trace import Event, LinearCall, Trace

Affine = Callable[[Tensor], Tensor]  # [N, in] -> [N, out]


@dataclass(frozen=True)
class LinearStep:
    weight: Tensor  # [out, in]
    bias: Tensor | None

    @classmethod
    def of(cls, call: LinearCall) -> LinearStep:
        weight, bias = call.dense()
        return cls(weight.detach(), None if bias is None else bias.detach())

    def __call__(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return torch.nn.functional.linear(x, self.weight.to(x.dtype), bias)


@dataclass(frozen=True)
class Branch:
    """A tensor that is affine in the attention product: `norm?(steps(context))`, plus what ran in parallel."""

    steps: tuple[Affine, ...] = ()
    projected: bool = False
    norm: tuple[NormCall, int] | None = None  # with the node of the norm's input
    parallel: tuple[int, ...] = ()

    def then(self, step: Affine) -> Branch:
        return replace(self, steps=(*self.steps, step))

    def __call__(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


@dataclass(frozen=True)
class Residual:
    """Where the attention branch joins the residual stream."""

    branch: Branch
    stream: int  # node of the residual
    joined: int  # node of their sum
    position: int  # index of the event after which the trunk starts
    layout: HiddenLayout


@dataclass(frozen=True)
class Trunk:
    """From the joined state to the layer output: norms before the first sum, the sum, norms after it."""

    norm1: tuple[NormCall, int] | None
    block_output: int
    first_sum: Event | None  # where the feed-forward joins
    tail: tuple[tuple[NormCall, int], ...]
    complete: bool


def norm_of(trace: Trace, event: Event) -> NormCall | None:
    """The norm an event is: either a torch norm function, or a module that turns out to be one."""
    if event.kind == "norm":
        return event.payload  # type: ignore[no-any-return]
    if event.kind == "module":
        return as_norm(event.payload, trace.values[event.inputs[0]], trace.values[event.output])
    return None


class BranchFinder:
    """One pass over the events of a layer, in order."""

    def __init__(
        self, trace: Trace, start: int, layer_input: int, attention: StandardAttention, batch: int
    ) -> None:
        self.trace, self.start = trace, start
        self.attention, self.batch = attention, batch
        self.stream = {
            layer_input
        }  # nodes that are linear in the layer's input: candidates for the residual
        self.branches: dict[int, Branch] = {}
        self.layout: HiddenLayout | None = None

    def find(self, product: Event) -> Residual:
        for position in range(self.start, len(self.trace.events)):
            event = self.trace.events[position]
            if event is product:
                self.branches[event.output] = Branch()
            elif any(node in self.branches for node in event.inputs):
                found = self._join(event)
                if found is not None and self.layout is not None:
                    return Residual(*found, event.output, position, self.layout)
                self._extend(event)
            elif any(node in self.stream for node in event.inputs) and self._keeps_stream(event):
                self.stream.add(event.output)
        if self.layout is None:
            raise Unmatched("no output projection reads the attention product.")
        raise Unmatched("the projected attention never meets a residual stream by a plain sum.")

    def _keeps_stream(self, event: Event) -> bool:
        if event.kind == "module":
            return norm_of(self.trace, event) is not None
        return event.kind in ("alias", "shift", "scale", "linear", "add", "norm")

    def _join(self, event: Event) -> tuple[Branch, int] | None:
        if event.kind != "add":
            return None
        for mine, other in (event.inputs, event.inputs[::-1]):
            branch = self.branches.get(mine)
            if branch is not None and branch.projected and other in self.stream:
                return branch, other
        return None

    def _extend(self, event: Event) -> None:
        node = next(n for n in event.inputs if n in self.branches)
        branch = self.branches[node]
        extended: Branch | None = None
        if event.kind == "alias":
            extended = branch
            if self.layout is not None:
                self.layout = self.layout.after(
                    self.trace.values[node], self.trace.values[event.output]
                )
        elif event.kind == "linear":
            extended = self._project(branch, event)
        elif (
            event.kind in ("scale", "shift")
            and branch.norm is None
            and (branch.projected or _is_factor(event))
        ):
            extended = branch.then(_constant_step(event))
        elif event.kind == "add":
            extended = self._sum(event)
        elif branch.projected and branch.norm is None:
            norm = norm_of(self.trace, event)
            extended = None if norm is None else replace(branch, norm=(norm, event.inputs[0]))
        if extended is not None:
            self.branches[event.output] = extended

    def _project(self, branch: Branch, event: Event) -> Branch | None:
        if branch.norm is not None:
            return None
        if not branch.projected:
            self.layout = find_layout(
                self.attention, self.trace.values[event.inputs[0]], self.batch
            )
        return replace(branch.then(LinearStep.of(event.payload)), projected=True)

    def _sum(self, event: Event) -> Branch | None:
        left, right = (self.branches.get(node) for node in event.inputs)
        if left is not None and right is not None:  # adapters: two affine maps of the same product
            if left.norm or right.norm or not (left.projected and right.projected):
                return None
            return Branch(
                (lambda x: left(x) + right(x),), True, None, left.parallel + right.parallel
            )
        branch, other = (left, event.inputs[1]) if left is not None else (right, event.inputs[0])
        assert branch is not None
        return replace(branch, parallel=(*branch.parallel, other)) if branch.projected else None


def _is_factor(event: Event) -> bool:
    """One number: it commutes with the projection, so it may come before it."""
    return event.kind == "scale" and not isinstance(event.payload, Tensor)


def _constant_step(event: Event) -> Affine:
    constant = event.payload
    if isinstance(constant, Tensor):
        constant = constant.detach()

        def cast(x: Tensor) -> Tensor:
            return (
                constant.reshape(-1, x.shape[-1])[0].to(x.dtype)
                if constant.numel() > 1
                else constant.to(x.dtype)
            )

        return (lambda x: x * cast(x)) if event.kind == "scale" else (lambda x: x + cast(x))
    return (lambda x: x * constant) if event.kind == "scale" else (lambda x: x + constant)


def follow_trunk(trace: Trace, residual: Residual, output: int) -> Trunk:
    """The path of sums and norms from the joined state to the layer output."""
    consumers: dict[int, list[Event]] = defaultdict(list)
    for event in trace.events[residual.position + 1 :]:
        if event.kind in ("alias", "add", "scale", "shift", "norm", "module"):
            for node in event.inputs:
                consumers[node].append(event)
    path, complete = _path(trace, consumers, residual.joined, output)
    if not complete and _sums(path) == 0:
        raise Unmatched("what follows the attention block is neither a sum nor a norm.")
    norm1: tuple[NormCall, int] | None = None
    tail: list[tuple[NormCall, int]] = []
    block_output, first_sum = residual.joined, None
    for event in path:
        norm = norm_of(trace, event) or _affine(event)
        if event.kind == "add":
            first_sum = first_sum or event
        elif norm is not None and first_sum is None:
            if norm1 is not None:
                raise Unmatched("two norms follow each other after the attention block.")
            norm1, block_output = (norm, event.inputs[0]), event.output
        elif norm is not None:
            tail.append((norm, event.inputs[0]))
    return Trunk(norm1, block_output, first_sum, tuple(tail), complete)


def _affine(event: Event) -> NormCall | None:
    """A constant factor or shift on the trunk counts as a norm without statistics."""
    if event.kind not in ("scale", "shift"):
        return None
    constant = torch.as_tensor(event.payload).detach()
    return (
        NormCall("affine", constant, None, 0.0)
        if event.kind == "scale"
        else NormCall("affine", None, constant, 0.0)
    )


def _path(
    trace: Trace, consumers: dict[int, list[Event]], start: int, goal: int
) -> tuple[list[Event], bool]:
    """Depth first, norms before sums; the path to `goal`, else the one that passes most sums."""
    best: list[Event] = []
    stack: list[tuple[int, list[Event]]] = [(start, [])]
    seen: set[int] = set()
    while stack:
        node, path = stack.pop()
        if node == goal:
            return path, True
        if node in seen:
            continue
        seen.add(node)
        if (_sums(path), len(path)) > (_sums(best), len(best)):
            best = path
        steps = [e for e in consumers[node] if e.kind != "module" or norm_of(trace, e) is not None]
        steps.sort(key=lambda e: e.kind in ("norm", "module"))  # the last one pushed is tried first
        stack.extend((event.output, [*path, event]) for event in steps)
    return best, False


def _sums(path: list[Event]) -> int:
    return sum(event.kind == "add" for event in path)
