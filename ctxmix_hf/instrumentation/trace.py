"""What happened inside one layer: a small graph of the tensor operations that matter.

A `Trace` numbers tensors by identity and keeps the operations that can carry a residual stream unharmed
(layout changes, sums, products with constants, linear maps, norms) plus the attention product. Everything else
is left out on purpose: an operation that is not in the graph breaks a path, and that is how nonlinearity is seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ctxmix_hf.algebra.rows import BlockAttention


@dataclass(frozen=True, slots=True)
class Event:
    """One operation: `kind` in {alias, add, scale, linear, norm?, attention}; nodes are numbers into the trace.

    `payload` holds what the kind needs: the constant of a scale, the callable of a linear map, the module of a
    possible norm (decided later, by numbers), the `AttentionProduct` of an attention.
    """

    kind: str
    inputs: tuple[int, ...]
    output: int
    payload: Any = None


@dataclass(frozen=True, slots=True)
class AttentionProduct:
    """The one product that mixes tokens: probabilities x values, as the model computed it."""

    probabilities: Tensor  # as found, [B, H, T, S], [B*H, T, S] or the layout of `equation`
    values: Tensor
    context: Tensor
    equation: str | None
    path: str  # "sdpa" or "eager"
    deferred: BlockAttention | None = (
        None  # makes rows of `probabilities`, which then hold no numbers
    )

    def with_context(self, context: Tensor) -> AttentionProduct:
        return replace(self, context=context)

    def on_tokens(self, chosen: Tensor) -> Tensor:
        """`chosen` `[B, T]` laid out to broadcast over the context."""
        batch = chosen.shape[0]
        if self.equation is None:
            if self.context.dim() == 4:
                return chosen[:, None, :, None]
            return chosen.repeat_interleave(self.context.shape[0] // batch, dim=0)[..., None]
        inputs, out = self.equation.split("->")
        a, v = inputs.split(",")
        target = next(c for c in a if c not in v)
        common = [c for c in a if c in v and c in out]
        sizes = dict(zip(out, self.context.shape, strict=True))
        example = common[0] if sizes[common[0]] == batch else common[1]
        shape = [batch if c == example else chosen.shape[1] if c == target else 1 for c in out]
        return (chosen if out.index(example) < out.index(target) else chosen.mT).reshape(shape)


def _is_parameter(value: Tensor) -> bool:
    """As `isinstance` says, which asks a metaclass; most tensors are plain ones, and every operation asks."""
    kind = type(value)
    return kind is nn.Parameter or (kind is not Tensor and isinstance(value, nn.Parameter))


@dataclass
class Trace:
    """Operations of one layer (or of the embeddings), in the order they ran."""

    events: list[Event] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    _nodes: dict[int, int] = field(default_factory=dict)
    probabilities: set[int] = field(
        default_factory=set
    )  # nodes that are a softmax, or still are one
    _constants: dict[int, Tensor] = field(
        default_factory=dict
    )  # views of parameters, and what is computed from parameters alone
    _derived: set[int] = field(default_factory=set)  # those of them that are computed, not viewed

    def node(self, tensor: Tensor) -> int:
        """The number of this tensor; a tensor object keeps its number while the trace lives."""
        number = self._nodes.get(id(tensor))
        return self._new(tensor) if number is None else number

    def known(self, tensor: Any) -> int | None:
        return self._nodes.get(id(tensor))

    def _new(self, tensor: Tensor) -> int:
        number = len(self.values)
        self.values.append(tensor)
        self._nodes[id(tensor)] = number
        return number

    def before_in_place(self, tensor: Tensor) -> int:
        """The old value gets a copy of its own, because `tensor` is about to change under our hands."""
        number = self.node(tensor)
        self.values[number] = tensor.clone()
        return number

    def after_in_place(self, tensor: Tensor) -> int:
        return self._new(tensor)

    def add(self, kind: str, inputs: tuple[int, ...], output: int, payload: Any = None) -> None:
        self.events.append(Event(kind, inputs, output, payload))

    def constant(self, value: Any) -> bool:
        """Does this operand belong to the model (a parameter, a view of one, a number) rather than to the input?"""
        if not isinstance(value, Tensor):
            return isinstance(value, int | float)
        if value.dim() == 0 or _is_parameter(value):
            return True
        if (
            id(value) in self._derived
        ):  # a factor or shift per coordinate; tables over tokens are not
            return value.numel() in (1, value.shape[-1])
        return id(value) in self._constants

    def of_model(self, value: Any) -> bool:
        """A parameter, or anything computed from parameters and numbers alone (the weights of DoRA and AdaLoRA)."""
        if isinstance(value, list | tuple):
            return all(self.of_model(item) for item in value)
        return not isinstance(value, Tensor) or _is_parameter(value) or id(value) in self._constants

    def view_of_constant(self, value: Tensor, of: Tensor | None = None) -> None:
        self._constants[id(value)] = value
        if of is not None and id(of) in self._derived:
            self._derived.add(id(value))

    def derived(self, value: Any) -> None:
        """`value` was computed from the model's parameters alone."""
        if isinstance(value, Tensor) and not _is_parameter(value):
            self._constants[id(value)] = value
            self._derived.add(id(value))

    def written_to(self, value: Any) -> None:
        """Something of the input was written into a constant: it is none any more."""
        self._constants.pop(id(value), None)
        self._derived.discard(id(value))

    def signature(self, start: int = 0) -> int:
        """Which program ran: kinds of operations and how they are wired, whatever the numbers."""
        return hash(
            tuple((event.kind, event.inputs, event.output) for event in self.events[start:])
        )

    def attentions(self, start: int = 0) -> list[Event]:
        return [event for event in self.events[start:] if event.kind == "attention"]


@dataclass(frozen=True, slots=True)
class LinearCall:
    """An affine map over the hidden axis, as it was called: `weight` is `[out, in]`, bias `[out]` or None."""

    weight: Tensor
    bias: Tensor | None
    groups: int = 1  # a grouped 1x1 convolution is a block-diagonal matrix
    hidden_axis: int = -1  # 1 for convolutions over [B, D, T]

    def dense(self) -> tuple[Tensor, Tensor | None]:
        """`(weight [out, in], bias)` with groups written out."""
        if self.groups == 1:
            return self.weight, self.bias
        return torch.block_diag(*self.weight.chunk(self.groups, dim=0)), self.bias


# Which torch functions are which kind. Keyed by name: `a + b`, torch.add and Tensor.add arrive under few names.
def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALIAS = names(
    """view reshape transpose permute contiguous flatten unflatten squeeze unsqueeze to type type_as float double half
    bfloat16 clone expand expand_as __getitem__ dropout swapaxes swapdims movedim narrow select view_as chunk split
    unbind tensor_split"""
)
KEEPS_PROBABILITIES = names("masked_fill masked_fill_ nan_to_num where dropout_")
ADD = names("add __add__ __radd__ add_ __iadd__")
DIVIDE = names("div true_divide __truediv__ div_ __itruediv__ divide")
MULTIPLY = names("mul multiply __mul__ __rmul__ mul_ __imul__")
SUBTRACT = names("sub __sub__ sub_ __isub__ subtract")
FACTORY = names("eye ones zeros full arange tensor as_tensor")
IN_PLACE = names(
    "add_ __iadd__ sub_ __isub__ mul_ __imul__ div_ __itruediv__ masked_fill_ dropout_"
)
ACTIVATION = names(
    "gelu relu relu_ silu tanh sigmoid leaky_relu elu celu mish hardtanh softplus relu6 hardswish"
)
