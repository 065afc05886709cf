"""Runs the whole model again from an altered tensor: another embedding sum, or another input of layer l.

The hooks that record also inject: while an `Injection` is active they replace one tensor on its way and collect the
layers' outputs, so gradients with respect to e^0 are taken where METHODS.md section 9 wants them, not at
`inputs_embeds`, which would apply positions and norm a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ctxmix_hf.instrumentation.layout import HiddenLayout, first_tensor, turned
from ctxmix_hf.instrumentation.recorder import ACTIVE
from ctxmix_hf.instrumentation.replay import LayerCall, repeat_batch
from ctxmix_hf.records import LayerRecord

if TYPE_CHECKING:
    from ctxmix_hf.instrumentation.session import Instrumentation

EMBEDDING_SUM = -1


@dataclass
class Injection:
    """`tensor` takes the place of layer `at`'s input, or of the embedding norm's input for `EMBEDDING_SUM`."""

    owner: Instrumentation
    names: tuple[str, ...]  # of the recorded layers, in call order
    layout: HiddenLayout
    at: int | None
    tensor: Tensor | None
    calls: int = 0
    outputs: list[Tensor] = field(default_factory=list)
    on_module: Callable[[nn.Module, Tensor, Tensor], Tensor | None] | None = None  # may replace a leaf's output

    def module(self, module: nn.Module, x: Tensor, y: Tensor) -> Tensor | None:
        return None if self.on_module is None else self.on_module(module, x, y)

    def enter(self, module: nn.Module, name: str, args: Any, kwargs: Any) -> Any:
        if self.calls >= len(self.names) or name != self.names[self.calls]:
            return None
        call = LayerCall.of(module, name, args, kwargs)
        self.calls += 1
        if call is None or self.tensor is None or self.at != self.calls - 1 or self.owner.spans:
            return None
        hidden = turned(self.tensor, self.layout.order).to(call.hidden.dtype)
        if isinstance(call.position, int):
            return (*args[: call.position], hidden, *args[call.position + 1 :]), kwargs
        return args, {**kwargs, call.position: hidden}

    def leave(self, name: str, output: Any) -> Any:
        hidden = first_tensor(output)
        if hidden is None or name not in self.names or len(self.outputs) >= self.calls:
            return None
        self.outputs.append(self.layout.standard(hidden))
        last = self.calls == len(self.names)  # e^L enters no layer: it replaces the last one's output
        if self.tensor is None or self.at != self.calls or not (self.owner.spans or last):
            return None
        altered = turned(self.tensor, self.layout.order).to(hidden.dtype)
        return (altered, *output[1:]) if isinstance(output, tuple) else altered

    def first_hidden(self, output: Tensor) -> Tensor | None:
        if not self.owner.spans or self.at != 0 or self.tensor is None:
            return None
        return self.tensor.to(output.dtype)

    def embedding_sum(self) -> Tensor | None:
        return self.tensor if self.at == EMBEDDING_SUM else None


@dataclass(frozen=True)
class Rerun:
    """What a run from an altered tensor gave."""

    output: Any  # the model's ordinary output
    layers: list[Tensor]  # e^1 ... e^L, [K, T, D]


@dataclass(frozen=True)
class ModelReplay:
    """The recorded call of the whole model, to be repeated."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    owner: Instrumentation
    names: tuple[str, ...]
    layout: HiddenLayout
    starts_at_norm: bool  # whether there is an embedding norm to inject before

    @classmethod
    def of(cls, module: nn.Module, args: Any, kwargs: Any, owner: Instrumentation, layers: list[LayerRecord]) -> ModelReplay:
        layout = layers[0].replay.layout  # type: ignore[union-attr]
        names = tuple(layer.name for layer in layers)
        return cls(module, tuple(args), kwargs, owner, names, layout, owner.embeddings is not None)

    def run(
        self, tensor: Tensor | None = None, at: int | None = None,
        on_module: Callable[[nn.Module, Tensor, Tensor], Tensor | None] | None = None, **changed: Any,
    ) -> Rerun:  # fmt: skip
        """The model again, with `tensor` `[K, T, D]` at `at` (K a multiple of the batch) or with changed keywords."""
        copies = 1 if tensor is None else tensor.shape[0] // self.layout.batch
        copies = next((len(v) // self.layout.batch for v in changed.values() if isinstance(v, Tensor)), copies)
        layout = HiddenLayout(self.layout.batch * copies, self.layout.tokens, self.layout.order)
        injection = Injection(self.owner, self.names, layout, at, tensor, on_module=on_module)
        args = [repeat_batch(value, self.layout.batch, copies) for value in self.args]
        kwargs = {key: repeat_batch(value, self.layout.batch, copies) for key, value in self.kwargs.items()}
        token = ACTIVE.set(injection)
        try:
            output = self.module(*args, **{**kwargs, **changed})
        finally:
            ACTIVE.reset(token)
        return Rerun(output, injection.outputs)

    def hidden_of(self, input_ids: Tensor, layer: int) -> Tensor:
        """e^layer `[B, T, D]` of other token ids in the same call (same positions, segments and mask)."""
        with torch.no_grad():
            recorded = self.module(*self.args, **{**self.kwargs, "input_ids": input_ids}, output_decomposition=True)
        return recorded.decomposition.hidden_states[layer]  # type: ignore[no-any-return]
