"""Sees probabilities x values as they meet, and the few operations around that product, without changing any.

A `TorchFunctionMode` is per thread and needs no cooperation from the model: it works under eager and sdpa, for
families that ignore every registry, and leaves nothing behind. Fused kernels that hide the product (flash, flex)
leave no attention event, which the session reports as an error.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ctxmix_hf.algebra.rows import BlockAttention
from ctxmix_hf.instrumentation.fused import (
    blocks_of_sdpa,
    multi_head_parts,
    named_arguments,
    repeat_heads,
    sdpa_probabilities,
)
from ctxmix_hf.instrumentation.norm_modules import NormCall
from ctxmix_hf.instrumentation.trace import (
    ACTIVATION,
    ADD,
    ALIAS,
    DIVIDE,
    FACTORY,
    IN_PLACE,
    KEEPS_PROBABILITIES,
    MULTIPLY,
    SUBTRACT,
    AttentionProduct,
    LinearCall,
    Trace,
)

Given = ParamSpec("Given")
Result = TypeVar("Result")
Edit = Callable[
    [AttentionProduct], Tensor
]  # an attention product -> the values (or the context) to use instead


def weakly(method: Callable[Given, Result]) -> Callable[Given, Result]:
    """A method of whoever holds the tap, without holding it in turn: in a cycle, the tensors of a call would stay
    until Python next collects.
    """
    held = weakref.WeakMethod(method)

    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        mine = held()
        assert mine is not None, "its owner is alive while the tap is used"
        return mine(*args, **kwargs)

    return call


class Tap(TorchFunctionMode):
    """Writes the operations of the running thread into `trace` while there is one."""

    def __init__(self, on_attention: Callable[[Trace], None] | None = None) -> None:
        super().__init__()
        self.trace: Trace | None = None
        self.edit: Edit | None = None
        self.replace: Edit | None = None
        self.on_attention = on_attention
        self.defer_from: int | None = None  # tokens from which probabilities are left for later
        self.fused = 0  # attention products that were one torch function

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs, trace = kwargs or {}, self.trace
        if trace is None:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if (
            name in FACTORY or (isinstance(first, Tensor) and trace.of_model(first))
        ) and trace.of_model([*args, *kwargs.values()]):
            result = func(*args, **kwargs)
            if name not in VIEWS:
                trace.derived(result)
            elif isinstance(result, Tensor):
                trace.view_of_constant(result, first)
            return result
        if name.endswith("_") and isinstance(first, Tensor):  # in place, __setitem__ among them
            trace.written_to(first)
        handler = HANDLERS.get(name)
        return func(*args, **kwargs) if handler is None else handler(self, func, args, kwargs)

    def context(self, product: AttentionProduct) -> Tensor:
        """The product as the model computed it, or what an experiment puts in its place."""
        return product.context if self.replace is None else self.replace(product)

    def saw(self, product: AttentionProduct) -> None:
        assert self.trace is not None
        self.trace.add("attention", (), self.trace.node(product.context), product)
        if self.on_attention is not None:
            self.on_attention(self.trace)


def _hidden_like(value: Any) -> bool:
    """Residual streams are [B, T, D], or [B*T, D] where a family flattens; scores and heads have four axes."""
    return isinstance(value, Tensor) and value.dim() in (2, 3) and value.is_floating_point()


def _run(
    trace: Trace, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[int | None, int | None], Any, Any]:
    """Run `func` and give (nodes of the first two operands, their values, result), minding in-place functions."""
    operands = (*args[:2], kwargs.get("other"))[:2] if len(args) < 2 else args[:2]
    in_place = func.__name__ in IN_PLACE and isinstance(operands[0], Tensor)
    first = (
        trace.before_in_place(operands[0]) if in_place and _tracked(trace, operands[0]) else None
    )
    result = func(*args, **kwargs)
    if first is not None:
        trace.after_in_place(result)
    nodes = (first if first is not None else _node(trace, operands[0]), _node(trace, operands[1]))
    return nodes, operands, result


def _tracked(trace: Trace, value: Tensor) -> bool:
    return _hidden_like(value) or trace.known(value) is not None


def _node(trace: Trace, value: Any) -> int | None:
    return trace.node(value) if isinstance(value, Tensor) and _tracked(trace, value) else None


def _alias(
    tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    result = func(*args, **kwargs)
    trace = tap.trace
    if (
        trace is not None and isinstance(result, Tensor) and trace.constant(args[0])
    ):  # a bias laid out like the stream
        trace.view_of_constant(result, args[0])
    source = trace.known(args[0]) if trace is not None and args else None
    if trace is None or source is None:
        return result
    for out in result if isinstance(result, tuple | list) else (result,):
        if isinstance(out, Tensor) and out is not args[0]:
            node = trace.node(out)
            trace.add("alias", (source,), node)
            if source in trace.probabilities:
                trace.probabilities.add(node)
    return result


_TRANSPOSES = frozenset((Tensor.T.__get__, Tensor.mT.__get__, Tensor.data.__get__))  # type: ignore[attr-defined]


def _attribute(
    tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return _alias(tap, func, args, kwargs) if func in _TRANSPOSES else func(*args, **kwargs)


def _still_probabilities(
    tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    result = func(*args, **kwargs)
    if tap.trace is not None and any(
        tap.trace.known(arg) in tap.trace.probabilities for arg in args
    ):
        tap.trace.probabilities.add(tap.trace.node(result))
    return result


def _add(tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    trace = tap.trace
    if trace is None or not any(_hidden_like(arg) for arg in args):
        return func(*args, **kwargs)
    (left, right), (a, b), result = _run(trace, func, args, kwargs)
    out = trace.node(result)
    if trace.constant(b) and left is not None:
        trace.add("shift", (left,), out, b)
    elif trace.constant(a) and right is not None:
        trace.add("shift", (right,), out, a)
    elif left is not None and right is not None and kwargs.get("alpha", 1) == 1:
        trace.add("add", (left, right), out)
    return result


def _subtract(
    tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`x - constant` is a shift; a difference of two streams carries neither unharmed."""
    trace = tap.trace
    if trace is None or not any(_hidden_like(arg) for arg in args):
        return func(*args, **kwargs)
    (left, _), (_, b), result = _run(trace, func, args, kwargs)
    out = trace.node(result)
    if trace.constant(b) and left is not None:
        trace.add("shift", (left,), out, -b)
    return result


def _scale(
    tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    trace = tap.trace
    if trace is None or not any(_hidden_like(arg) or trace.known(arg) is not None for arg in args):
        return func(*args, **kwargs)
    (left, right), (a, b), result = _run(trace, func, args, kwargs)
    if left in trace.probabilities or right in trace.probabilities:
        trace.probabilities.add(trace.node(result))
    elif func.__name__ in DIVIDE:
        if trace.constant(b) and left is not None:
            trace.add("scale", (left,), trace.node(result), 1.0 / b)
    elif trace.constant(b) and left is not None:
        trace.add("scale", (left,), trace.node(result), b)
    elif trace.constant(a) and right is not None:
        trace.add("scale", (right,), trace.node(result), a)
    elif left is not None and right is not None:
        trace.add("gate", (left, right), trace.node(result))
    return result


def _linear(
    tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    result = func(*args, **kwargs)
    if tap.trace is not None and func.__name__ == "linear":
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        x = args[0] if args else kwargs["input"]
        _saw_linear(tap.trace, x, result, LinearCall(weight, bias))
    elif (
        tap.trace is not None and len(args) == 3 and tap.trace.constant(args[2])
    ):  # addmm(bias, x, weight)
        _saw_linear(tap.trace, args[1], result, LinearCall(args[2].mT, args[0]))
    return result


def _saw_linear(trace: Trace, x: Tensor, result: Tensor, call: LinearCall) -> None:
    trace.add("linear", (trace.node(x),), trace.node(result), call)


def _conv1d(
    tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    result = func(*args, **kwargs)
    if tap.trace is not None and len(args) >= 2 and args[1].shape[-1] == 1:
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        groups = args[6] if len(args) > 6 else kwargs.get("groups", 1)
        call = LinearCall(args[1].squeeze(-1), bias, groups, hidden_axis=1)
        _saw_linear(tap.trace, args[0], result, call)
    return result


def _norm(tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = func(*args, **kwargs)
    if tap.trace is not None:
        rest = ["weight", "bias", "eps"] if func.__name__ == "layer_norm" else ["weight", "eps"]
        names = ["input", "normalized_shape", *rest]
        call = {
            "weight": None,
            "bias": None,
            "eps": None,
            **dict(zip(names, args, strict=False)),
            **kwargs,
        }
        eps = (
            torch.finfo(result.dtype).eps if call["eps"] is None else call["eps"]
        )  # rms_norm's own default
        if func.__name__ == "layer_norm" and call["eps"] is None:
            eps = 1e-5
        kind: Any = "layer" if func.__name__ == "layer_norm" else "rms"
        norm = NormCall(kind, call["weight"], call["bias"], eps)
        tap.trace.add("norm", (tap.trace.node(call["input"]),), tap.trace.node(result), norm)
    return result


def _activation(
    tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    result = func(*args, **kwargs)
    source = tap.trace.known(args[0]) if tap.trace is not None else None
    if tap.trace is not None and source is not None and result is not args[0]:
        rest = args[1:]
        tap.trace.add(
            "activation", (source,), tap.trace.node(result), lambda x: func(x, *rest, **kwargs)
        )
    return result


def _clamp(
    tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A guard against overflow that had nothing to do (T5 in float16) carries the stream unharmed."""
    result = func(*args, **kwargs)
    if (
        tap.trace is not None
        and result is not args[0]
        and tap.trace.known(args[0]) is not None
        and torch.equal(result, args[0])
    ):
        tap.trace.add("alias", (tap.trace.node(args[0]),), tap.trace.node(result))
    return result


def _cat(tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Joined to nothing (an empty cache of keys and values) it is still the same tensor."""
    result = func(*args, **kwargs)
    parts = [
        t
        for t in (args[0] if args else kwargs.get("tensors", ()))
        if isinstance(t, Tensor) and t.numel()
    ]
    if tap.trace is not None and len(parts) == 1 and tap.trace.known(parts[0]) is not None:
        tap.trace.add("alias", (tap.trace.node(parts[0]),), tap.trace.node(result))
    return result


def _softmax(
    tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    result = func(*args, **kwargs)
    if tap.trace is not None and result.dim() >= 3:
        tap.trace.probabilities.add(tap.trace.node(result))
    return result


def _matmul(
    tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    trace = tap.trace
    if trace is None or len(args) < 2:
        return func(*args, **kwargs)
    probabilities, values = args[0], args[1]
    if trace.known(probabilities) in trace.probabilities:
        return _product(tap, lambda v: func(probabilities, v), probabilities, values, None)
    result = func(*args, **kwargs)
    if (
        trace.known(probabilities) is not None
        and trace.known(values) is not None
        and result.dim() >= 3
    ):
        trace.add("scores", (trace.node(probabilities), trace.node(values)), trace.node(result))
    if isinstance(values, Tensor) and trace.of_model(values) and values.dim() == 2:
        _saw_linear(trace, probabilities, result, LinearCall(values.mT, None))
    return result


def _einsum(
    tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    trace = tap.trace
    operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    if trace is None or len(operands) != 2 or not isinstance(args[0], str):
        return func(*args, **kwargs)
    equation, (a, b) = args[0].replace(" ", ""), operands
    if trace.known(a) in trace.probabilities:
        return _product(tap, lambda v: func(equation, a, v), a, b, equation)
    if trace.known(b) in trace.probabilities:
        left, right = equation.split("->")[0].split(",")
        swapped = f"{right},{left}->{equation.split('->')[1]}"
        return _product(tap, lambda v: func(equation, v, b), b, a, swapped)
    result = func(*args, **kwargs)
    if isinstance(b, torch.nn.Parameter):
        _saw_einsum(trace, equation, a, b, result)
    return result


def _saw_einsum(trace: Trace, equation: str, x: Tensor, weight: Tensor, result: Tensor) -> None:
    """`ibnd,hnd->ibh`: a linear map written as a contraction of the last axes with a parameter."""
    inputs, outputs = equation.split("->")
    left, right = inputs.split(",")
    summed = [c for c in right if c not in outputs]
    kept = [c for c in right if c in outputs]
    if left.endswith("".join(summed)) and outputs.endswith("".join(kept)):
        order = [right.index(c) for c in kept + summed]
        size = math.prod(weight.shape[right.index(c)] for c in kept)
        _saw_linear(trace, x, result, LinearCall(weight.permute(order).reshape(size, -1), None))


def _product(
    tap: Tap, run: Callable[[Tensor], Tensor], a: Tensor, values: Tensor, equation: str | None
) -> Tensor:
    if tap.edit is not None:
        values = tap.edit(AttentionProduct(a, values, values, equation, "eager"))
    context = tap.context(AttentionProduct(a, values, run(values), equation, "eager"))
    tap.saw(AttentionProduct(a, values, context, equation, "eager"))
    return context


def _sdpa(tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if tap.trace is None:
        return func(*args, **kwargs)
    tap.fused += 1
    call = named_arguments(args, kwargs)
    deferred = _deferred(tap, call)
    if deferred is not None:
        probabilities = torch.empty(deferred.shape, dtype=deferred.dtype, device="meta")
    else:
        with torch.set_grad_enabled(torch.is_grad_enabled() and call["query"].requires_grad):
            probabilities = sdpa_probabilities(**call)
    values = repeat_heads(call["value"], call["query"])
    if tap.edit is not None:
        call["value"] = values = tap.edit(
            AttentionProduct(probabilities, values, values, None, "sdpa")
        )
        call["key"] = repeat_heads(call["key"], call["query"])
    context = tap.context(AttentionProduct(probabilities, values, func(**call), None, "sdpa"))
    trace = tap.trace
    trace.add(
        "scores", (trace.node(call["query"]), trace.node(call["key"].mT)), trace.node(probabilities)
    )
    trace.add("alias", (trace.node(call["key"]),), trace.events[-1].inputs[1])
    if values is not call["value"]:  # grouped queries: the same value heads, repeated
        trace.add("alias", (trace.node(call["value"]),), trace.node(values))
    tap.saw(AttentionProduct(probabilities, values, context, None, "sdpa", deferred))
    return context


def _deferred(tap: Tap, call: dict[str, Any]) -> BlockAttention | None:
    """Where nobody needs whole maps of a long input: what makes their rows later."""
    if tap.defer_from is None or tap.edit is not None:
        return None
    return blocks_of_sdpa(call, tap.defer_from)


def _multi_head(
    tap: Tap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """One torch function that holds a whole attention block, projections included (wavlm)."""
    result = func(*args, **kwargs)
    if tap.trace is None:
        return result
    block = multi_head_parts(*args, **kwargs)
    values, output = block.values, result[0]
    if tap.edit is not None:
        values = tap.edit(AttentionProduct(block.probabilities, values, values, None, "sdpa"))
    context = tap.context(
        AttentionProduct(block.probabilities, values, block.probabilities @ values, None, "sdpa")
    )
    tap.saw(AttentionProduct(block.probabilities, values, context, None, "sdpa"))
    merged = context.permute(2, 0, 1, 3).flatten(2)  # [T, B, H*E], this function's own layout
    if tap.edit is not None or tap.replace is not None:
        output = torch.nn.functional.linear(merged, block.projection, block.projection_bias)
    tap.trace.add("alias", (tap.trace.node(context),), tap.trace.node(merged))
    _saw_linear(tap.trace, merged, output, LinearCall(block.projection, block.projection_bias))
    return (output, *result[1:])


VIEWS = ALIAS | {"__get__"}
HANDLERS: dict[str, Callable[[Tap, Any, Any, Any], Any]] = {
    **dict.fromkeys(ALIAS, _alias),
    **dict.fromkeys(KEEPS_PROBABILITIES, _still_probabilities),
    **dict.fromkeys(ADD, _add),
    **dict.fromkeys(SUBTRACT, _subtract),
    **dict.fromkeys(MULTIPLY | DIVIDE, _scale),
    **dict.fromkeys(ACTIVATION, _activation),
    **dict.fromkeys(("linear", "addmm"), _linear),
    **dict.fromkeys(("matmul", "__matmul__", "bmm"), _matmul),
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    "__get__": _attribute,
    "cat": _cat,
    "clamp": _clamp,
    "conv1d": _conv1d,
    "einsum": _einsum,
    "softmax": _softmax,
    "scaled_dot_product_attention": _sdpa,
    "multi_head_attention_forward": _multi_head,
}
