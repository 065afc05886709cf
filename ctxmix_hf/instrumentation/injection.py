"""Runs the whole model again from an altered tensor: another embedding sum, or another input of layer l.

The hooks that record also inject: while an `Injection` is active they replace one tensor on its way and collect the
layers' outputs, so gradients with respect to e^0 are taken where the papers want them, not at
`inputs_embeds`, which would apply positions and norm a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ctxmix_hf.errors import UnsupportedMethodError
from ctxmix_hf.instrumentation.account import Brief, Drawn, Readout, draw_up
from ctxmix_hf.instrumentation.awake import run_awake
from ctxmix_hf.instrumentation.layout import (
    HiddenLayout,
    first_tensor,
    standard_attention,
    turned,
    with_first_tensor,
)
from ctxmix_hf.instrumentation.linear import Books, LinearTap
from ctxmix_hf.instrumentation.probe import without_caches
from ctxmix_hf.instrumentation.replay import LayerCall, repeat_batch
from ctxmix_hf.instrumentation.session import Instrumentation
from ctxmix_hf.instrumentation.tap import Tap, weakly
from ctxmix_hf.instrumentation.trace import AttentionProduct, Trace
from ctxmix_hf.records import LayerRecord

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
    first: Tensor | None = None  # what enters the first layer
    # may replace a leaf's output
    on_module: Callable[[nn.Module, Tensor, Tensor], Tensor | None] | None = None

    def module(self, module: nn.Module, x: Tensor, y: Tensor) -> Tensor | None:
        return None if self.on_module is None else self.on_module(module, x, y)

    def enter(
        self, module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.calls >= len(self.names) or name != self.names[self.calls]:
            return None
        call = LayerCall.of(module, name, args, kwargs)
        self.calls += 1
        if self.calls == 1 and call is not None:
            self.first = self.layout.standard(call.hidden)
        if call is None or self.tensor is None or self.at != self.calls - 1 or self.owner.spans:
            return None
        hidden = self._given(call.hidden)
        if isinstance(call.position, int):
            return (*args[: call.position], hidden, *args[call.position + 1 :]), kwargs
        return args, {**kwargs, call.position: hidden}

    def leave(self, name: str, output: Any) -> Any:
        hidden = first_tensor(output)
        if hidden is None or name not in self.names or len(self.outputs) >= self.calls:
            return None
        self.outputs.append(self.layout.standard(hidden))
        last = self.calls == len(
            self.names
        )  # e^L enters no layer: it replaces the last one's output
        if self.tensor is None or self.at != self.calls or not (self.owner.spans or last):
            return None
        return with_first_tensor(output, self._given(hidden))

    def _given(self, like: Tensor) -> Tensor:
        """`tensor` as the model lays it out; a copy, for some models write into their stream (xlm)."""
        assert self.tensor is not None
        return turned(self.tensor, self.layout.order).to(like.dtype, copy=True)

    def after_embedding_norm(self, output: Tensor) -> Tensor | None:
        if not self.owner.spans or self.at != 0 or self.tensor is None:
            return None
        return self.tensor.to(
            output.dtype, copy=True
        )  # [B, T, D] here, whatever the layers make of it (squeezebert)

    def before_embedding_norm(self) -> Tensor | None:
        return self.tensor.clone() if self.at == EMBEDDING_SUM and self.tensor is not None else None


@dataclass
class AttentionLeaves:
    """While it is awake every attention matrix of the recorded layers has a zero added to it, and
    so has the last layer's output: what derivatives are taken at. The fused kernels of sdpa have no
    matrix, so the product is made explicit."""

    owner: Instrumentation
    names: tuple[str, ...]  # of the recorded layers, in call order
    tap: Tap
    calls: int = 0
    products: list[AttentionProduct] = field(default_factory=list)
    zeros: list[Tensor] = field(default_factory=list)  # laid out as the products' probabilities
    last: Tensor | None = None  # laid out as the last layer's output

    def module(self, module: nn.Module, x: Tensor, y: Tensor) -> None: ...

    def enter(
        self, module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if (
            self.calls < len(self.names)
            and name == self.names[self.calls]
            and LayerCall.of(module, name, args, kwargs) is not None
        ):
            self.calls += 1
            self.tap.trace = Trace()

    def replace(self, product: AttentionProduct) -> Tensor:
        zero = torch.zeros_like(product.probabilities).requires_grad_()
        self.products.append(product)
        self.zeros.append(zero)
        raised = product.probabilities + zero
        if product.equation is not None:
            return torch.einsum(product.equation, raised, product.values)
        return raised @ product.values

    def leave(self, name: str, output: Any) -> Any:
        hidden = first_tensor(output)
        if self.tap.trace is None or hidden is None or name != self.names[self.calls - 1]:
            return None
        self.tap.trace = None
        if self.calls < len(self.names):
            return None
        self.last = torch.zeros_like(hidden).requires_grad_()
        return with_first_tensor(output, hidden + self.last)


@dataclass
class HeadLeaf:
    """While it is awake the last layer's output is a start of its own, and what follows it is linear (`linear.py`)."""

    owner: Instrumentation
    names: tuple[str, ...]  # of the recorded layers, in call order
    tap: LinearTap
    calls: int = 0
    leaf: Tensor | None = None

    def module(self, module: nn.Module, x: Tensor, y: Tensor) -> None: ...

    def enter(
        self, module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if (
            self.calls < len(self.names)
            and name == self.names[self.calls]
            and LayerCall.of(module, name, args, kwargs) is not None
        ):
            self.calls += 1

    def leave(self, name: str, output: Any) -> Any:
        hidden = first_tensor(output)
        if (
            self.leaf is not None
            or self.calls < len(self.names)
            or hidden is None
            or name != self.names[-1]
        ):
            return None
        self.tap.place, self.tap.level = "head", self.calls + 1
        self.leaf = hidden.detach().clone().requires_grad_()
        return with_first_tensor(output, self.leaf.clone())


@dataclass(frozen=True)
class Rerun:
    """What a run from an altered tensor gave."""

    output: Any  # the model's ordinary output
    layers: list[Tensor]  # e^1 ... e^L, [K, T, D]
    first: Tensor | None = None  # e^0 [K, T, D], where a hidden state enters the first layer


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
    tower: str = ""

    @classmethod
    def of(
        cls,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        owner: Instrumentation,
        layers: list[LayerRecord],
        tower: str,
        first: bool,
    ) -> ModelReplay:
        layout = layers[0].replay.layout  # type: ignore[union-attr]
        names = tuple(layer.name for layer in layers)
        return cls(
            module,
            tuple(args),
            kwargs,
            owner,
            names,
            layout,
            first and owner.embeddings is not None,
            tower,
        )

    def run(
        self,
        tensor: Tensor | None = None,
        at: int | None = None,
        on_module: Callable[[nn.Module, Tensor, Tensor], Tensor | None] | None = None,
        **changed: Any,
    ) -> Rerun:
        """The model again, with `tensor` `[K, T, D]` at `at` (K a multiple of the batch) or with changed keywords."""
        copies = 1 if tensor is None else tensor.shape[0] // self.layout.batch
        copies = next(
            (len(v) // self.layout.batch for v in changed.values() if isinstance(v, Tensor)), copies
        )
        layout = HiddenLayout(self.layout.batch * copies, self.layout.tokens, self.layout.order)
        injection = Injection(self.owner, self.names, layout, at, tensor, on_module=on_module)
        args = [repeat_batch(value, self.layout.batch, copies) for value in self.args]
        kwargs = {
            key: repeat_batch(value, self.layout.batch, copies)
            for key, value in self.kwargs.items()
        }
        output = run_awake(injection, None, lambda: self.module(*args, **{**kwargs, **changed}))
        return Rerun(output, injection.outputs, injection.first)

    def draw_up(self, readout: Readout, mask: Tensor | None = None, **options: Any) -> Drawn:
        """The ledger of `readout(output, examples)` for the recorded call (`account.draw_up`)."""
        examples = tuple(range(self.layout.batch))
        return draw_up(
            Brief(
                self.module,
                self.args,
                self.kwargs,
                self.owner,
                self.names,
                self.layout,
                readout,
                examples,
                mask,
                **options,
            )
        )

    def attention_gradients(
        self, score: Callable[[Any], Tensor]
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """`(A, d f / d A)` of every layer, `[B, H, T, T]` each, and `d f / d e^L` `[B, T, D]`, for
        `f = score(output)`, `[B]`.
        """
        tap = Tap()
        leaves = AttentionLeaves(self.owner, self.names, tap)
        tap.replace = weakly(leaves.replace)
        with torch.inference_mode(False), torch.enable_grad():
            f = run_awake(
                leaves, tap, lambda: score(self.module(*self.args, **without_caches(self.kwargs)))
            )
            if leaves.last is None or len(leaves.zeros) != len(self.names):
                raise UnsupportedMethodError(
                    f"{self.owner.family}: a second run did not pass the recorded layers one by one."
                )
            asked = [*leaves.zeros, leaves.last]
            found = torch.autograd.grad(f.sum(), asked, allow_unused=True)
        *grads, last = (
            torch.zeros_like(x) if g is None else g for x, g in zip(asked, found, strict=True)
        )
        batch, made = self.layout.batch, []
        with torch.no_grad():
            for product, grad in zip(leaves.products, grads, strict=True):
                plain = replace(
                    product,
                    probabilities=product.probabilities.detach(),
                    values=product.values.detach(),
                )
                plain = plain.with_context(product.context.detach())
                pair = (
                    standard_attention(p, batch).probabilities
                    for p in (plain, replace(plain, probabilities=grad))
                )
                made.append((next(pair), next(pair)))
            return made, self.layout.standard(last)

    def head_direction(self, readout: Readout) -> tuple[Tensor, Tensor]:
        """`y` `[B]` and the g `[B, T, D]` with `y = sum_i <g_i, e^L_i> + constants`: everything
        behind the last layer, linear.
        """
        batch = self.layout.batch
        tap = LinearTap(Books(batch, self.layout.tokens, self.layout.order), {})
        start = HeadLeaf(self.owner, self.names, tap)
        with torch.inference_mode(False), torch.enable_grad():
            y = run_awake(
                start,
                tap,
                lambda: readout(
                    self.module(*self.args, **without_caches(self.kwargs)), list(range(batch))
                ),
            )
            if start.leaf is None or not y.requires_grad:
                raise UnsupportedMethodError(
                    f"{self.owner.family}: what is explained does not depend on the last layer's output."
                )
            (g,) = torch.autograd.grad(y.sum(), start.leaf)
        with torch.no_grad():
            g, hidden = self.layout.standard(g), self.layout.standard(start.leaf.detach())
            y = y.detach().to(g.dtype)
            parts = (g * hidden).flatten(1)
            total = parts.sum(dim=1) + sum(
                (line.to(g.dtype) for line in tap.books.lines.values()), torch.zeros_like(y)
            )
            size = torch.maximum(y.abs(), parts.abs().sum(dim=1)).clamp(min=1e-30)
            if not tap.books.ambiguous and not bool(((total - y).abs() <= 1e-3 * size).all()):
                raise UnsupportedMethodError(
                    f"{self.owner.family}: what follows its last layer is not linear in it, "
                    "deviations and activation ratios frozen."
                )
        return y, g

    def hidden_of(self, input_ids: Tensor, layer: int) -> Tensor:
        """e^layer `[B, T, D]` of other token ids in the same call (same positions, segments and mask)."""
        with torch.no_grad():
            if not self.owner.spans:
                again = self.run(input_ids=input_ids)
                hidden = again.layers[layer - 1] if layer else again.first
                if hidden is not None:
                    return hidden
            recorded = self.module(
                *self.args, **{**self.kwargs, "input_ids": input_ids}, output_decomposition=True
            )
        record = recorded.decomposition[self.tower] if self.tower else recorded.decomposition
        return record.hidden_states[layer]  # type: ignore[no-any-return]
