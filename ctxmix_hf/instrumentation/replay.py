"""The rest of a layer, and of the model, run again by the model itself from altered parts.

Universal and exact, whatever the architecture: the recorded call `layer(*args, **kwargs)` is repeated with the tap
zeroing rows of the values, or with another hidden state. Caches are dropped, or a second run would append to them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from ctxmix_hf.errors import UnsupportedMethodError
from ctxmix_hf.instrumentation.awake import run_awake
from ctxmix_hf.instrumentation.fused import widened
from ctxmix_hf.instrumentation.layout import HiddenLayout, Unmatched, first_tensor, turned
from ctxmix_hf.instrumentation.session import Instrumentation
from ctxmix_hf.instrumentation.tap import Edit, Tap
from ctxmix_hf.instrumentation.trace import AttentionProduct, Trace

CACHES = ("past_key_values", "past_key_value", "layer_past", "cache", "cache_params", "mems")


@dataclass(frozen=True)
class LayerCall:
    """How the model called a layer: enough to call it again."""

    module: nn.Module
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    position: int | str  # where the hidden state is: an index into args or a keyword

    @classmethod
    def of(
        cls, module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> LayerCall | None:
        """None if the module was not called with a hidden state."""
        kept = {key: value for key, value in kwargs.items() if key not in CACHES}
        kept |= {key: False for key in ("use_cache",) if key in kwargs}
        args = tuple(None if isinstance(value, Cache) else value for value in args)
        for i, value in enumerate(args):
            if isinstance(value, Tensor) and value.is_floating_point() and value.dim() >= 2:
                return cls(module, name, args, kept, i)
        for key in ("hidden_states", "x", "hidden_state", "inputs", "tensor"):
            if isinstance(kwargs.get(key), Tensor):
                return cls(module, name, args, kept, key)
        return None

    @property
    def hidden(self) -> Tensor:
        value = (
            self.args[self.position]
            if isinstance(self.position, int)
            else self.kwargs[self.position]
        )
        assert isinstance(value, Tensor)
        return value

    def widened(self, owner: Instrumentation) -> LayerCall | None:
        """The same call of a float32 copy of the layer, where the layer computes in half precision
        and can be copied.
        """
        if self.hidden.dtype == widened(self.hidden.dtype) or any(
            p.is_meta for p in self.module.parameters()
        ):
            return None
        try:
            module = copy.deepcopy(self.module, {id(owner): owner}).float()
        except (RuntimeError, TypeError, NotImplementedError):  # quantised weights and the like
            return None
        kwargs = {key: _wide(value) for key, value in self.kwargs.items()}
        return LayerCall(module, self.name, tuple(map(_wide, self.args)), kwargs, self.position)

    def again(self, hidden: Tensor | None = None, copies: int = 1) -> Any:
        """Call the layer again, with another hidden state and every batched argument repeated `copies` times."""
        batch = self.hidden.shape[0]
        args = [repeat_batch(value, batch, copies) for value in self.args]
        kwargs = {key: repeat_batch(value, batch, copies) for key, value in self.kwargs.items()}
        if hidden is not None:
            target: Any = args if isinstance(self.position, int) else kwargs
            target[self.position] = hidden
        return self.module(*args, **kwargs)


def repeat_batch(value: Any, batch: int, copies: int) -> Any:
    """Repeat what has a batch axis; tables and one-axis arguments stay."""
    if copies == 1:
        return value
    if (
        isinstance(value, Tensor)
        and value.dim() > 0
        and value.shape[0] == batch
        and batch * copies > 1
    ):
        return value.repeat(copies, *(1,) * (value.dim() - 1)) if value.dim() > 1 else value
    if isinstance(value, tuple):
        return tuple(repeat_batch(item, batch, copies) for item in value)
    return value


def _wide(value: Any) -> Any:
    """Half precision as float32, also inside tuples (rotary tables)."""
    if isinstance(value, Tensor):
        return value.to(widened(value.dtype))
    return tuple(map(_wide, value)) if isinstance(value, tuple) else value


class LayerReplay:
    """`Replay` of one recorded layer call. A layer in half precision is run again as a float32 copy of itself: the
    differences that are asked for drown in the rounding of the original."""

    def __init__(
        self, call: LayerCall, layout: HiddenLayout, owner: Instrumentation, callable: bool = True
    ) -> None:
        self.recorded, self.layout, self.owner = call, layout, owner
        self.callable = callable  # False where the layer has no module of its own (xlm)

    @cached_property
    def call(self) -> LayerCall:
        return self.recorded.widened(self.owner) or self.recorded

    @property
    def narrow(self) -> bool:
        """Does the model itself compute in half precision?"""
        return self.recorded.hidden.dtype != widened(self.recorded.hidden.dtype)

    def _output(self, result: Any, copies: int = 1) -> Tensor:
        hidden = first_tensor(result)
        assert hidden is not None
        layout = HiddenLayout(self.layout.batch * copies, self.layout.tokens, self.layout.order)
        return layout.standard(hidden)

    def _again(self, edit: Edit | None = None, copies: int = 1) -> Tensor:
        tap = None
        if edit is not None:
            tap = Tap()
            tap.edit, tap.trace = edit, Trace()
        with torch.no_grad():
            return run_awake(
                None, tap, lambda: self._output(self.call.again(copies=copies), copies)
            )

    def rerun(self, zeroed: int | None = None, head: int | None = None) -> Tensor:
        """One token at a time: works for every layer that can be called."""
        return self._again(
            None
            if zeroed is None
            else lambda product: _zero_row(product, zeroed, head, self.layout.batch)
        )

    def zeroed(self, sources: Sequence[int], head: int | None = None) -> Tensor:
        """Replicas of the batch, one per source, where that gives the same numbers; else one at a time."""
        if not self._replicates():
            return torch.stack([self.rerun(source, head) for source in sources])
        return self._zeroed_replicas(sources, head)

    def _zeroed_replicas(self, sources: Sequence[int], head: int | None) -> Tensor:
        copies, batch = len(sources), self.layout.batch
        index = torch.as_tensor(sources).repeat_interleave(batch)
        return self._again(lambda product: _zero_rows(product, index, head), copies).unflatten(
            0, (copies, batch)
        )

    def _replicates(self) -> bool:
        """Proved once per layer and shape: two replicas, each with another source zeroed, equal two runs one by one."""
        key = (self.recorded.name, self.layout.batch, self.layout.tokens, self.call.hidden.dtype)
        known = self.owner.replicas.get(key)
        if known is None:
            known = self.owner.replicas[key] = self.layout.order == "btd" and self._try_replicas()
        return known

    def _try_replicas(self) -> bool:
        ends = (0, self.layout.tokens - 1)
        alone = torch.stack([self.rerun(source) for source in ends])
        try:
            together = self._zeroed_replicas(ends, None)
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError, Unmatched):
            return False
        limit = {torch.float64: 1e-10}.get(alone.dtype, 1e-5)
        return bool((together - alone).abs().max() <= limit * alone.abs().max().clamp(min=1e-30))

    def from_hidden(self, hidden: Tensor) -> Tensor:
        """The layer on another input `[K, T, D]`; gradients flow where the caller enabled them."""
        copies = hidden.shape[0] // self.layout.batch
        if (
            copies > 1 and not self._replicates()
        ):  # batched arguments that cannot be told apart (wavlm, xlnet)
            return torch.cat([self.from_hidden(part) for part in hidden.split(self.layout.batch)])
        given = self.call.hidden
        moved = turned(hidden, self.layout.order_of(given) or self.layout.order).to(given.dtype)
        return run_awake(None, None, lambda: self._output(self.call.again(moved, copies), copies))


def _zero_row(product: AttentionProduct, source: int, head: int | None, batch: int) -> Tensor:
    """Values with row `source` at 0, in whatever layout they came."""
    values = product.values
    if product.equation is not None:
        return _zero_row_by_letters(product, source, head, batch)
    values = values.clone()
    if head is None:
        values[..., source, :] = 0
    elif values.dim() == 4 and values.shape[1] > head:
        values[:, head, source] = 0
    elif values.dim() == 3:
        values.unflatten(0, (batch, -1))[:, head, source] = 0
    else:
        raise UnsupportedMethodError(
            "These value vectors are shared by all heads: no single head can be zeroed."
        )
    return values


def _zero_row_by_letters(
    product: AttentionProduct, source: int, head: int | None, batch: int
) -> Tensor:
    assert product.equation is not None
    inputs, out = product.equation.split("->")
    a, v = inputs.split(",")
    axis = next(i for i, c in enumerate(v) if c in a and c not in out)
    values = product.values.clone()
    rows = values.select(axis, source)
    if head is None:
        rows.zero_()
        return values
    letters = [c for c in v if c != v[axis]]
    common = [c for c in letters if c in a and c in out]
    head_axis = letters.index(common[1] if values.shape[v.index(common[0])] == batch else common[0])
    rows.select(head_axis, head).zero_()
    return values


def _zero_rows(product: AttentionProduct, sources: Tensor, head: int | None) -> Tensor:
    """Replica r of the batch loses row `sources[r]`."""
    values = product.values.clone()
    rows = torch.arange(len(sources), device=values.device)
    sources = sources.to(values.device)
    if head is None:
        values[rows, :, sources] = 0
    elif values.shape[1] > head:
        values[rows, head, sources] = 0
    else:
        raise UnsupportedMethodError(
            "These value vectors are shared by all heads: no single head can be zeroed."
        )
    return values
