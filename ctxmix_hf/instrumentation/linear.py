"""The ledger's forward pass: the model's own numbers, linear in its tokens and its constants.

`LinearTap` is the tap with one more duty: where an operation reads something that descends from the
ledger's start (a tensor that requires a gradient), it runs so that its value stays the model's own
and its derivative J satisfies `J x + c = y` for operands x and a constant c. Softmax, deviations of
norms, denominators and activation ratios are frozen; a product of two live factors passes half on
to each. Then one backward pass shares an output out over tokens and constants without a remainder:
every operation hands on what it received. The rules are by operation; no family is named here.

Whole-model linear decomposition: Modarressi et al. 2023 (DecompX); conservative propagation: Ali et al. 2022;
`rule="through"`: Achtibat et al. 2024 (AttnLRP).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ctxmix_hf.algebra.rows import BlockAttention
from ctxmix_hf.instrumentation.fused import (
    blocks_of_sdpa,
    multi_head_parts,
    named_arguments,
    repeat_heads,
    sdpa_probabilities,
    widened,
)
from ctxmix_hf.instrumentation.tap import Tap
from ctxmix_hf.instrumentation.trace import (
    ADD,
    ALIAS,
    DIVIDE,
    KEEPS_PROBABILITIES,
    MULTIPLY,
    SUBTRACT,
    AttentionProduct,
    names,
)

_GUARDS = names("clamp clamp_ clamp_min clamp_max clamp_min_ clamp_max_ hardtanh hardtanh_")
_UNNAMED = ("constants", "activation constants", "other inputs")
RULES = ("frozen", "through")
GATES = ("half", "frozen")

# One number in, one number out. What is not zero at zero (sigmoid, exp, softplus) has a constant part.
POINTWISE = names(
    """gelu relu silu tanh sigmoid leaky_relu elu celu selu mish hardtanh softplus relu6 hardswish
    hardsigmoid softsign logsigmoid
    exp expm1 erf erfc log1p sin cos atan arctan square pow __pow__ float_power clamp clamp_min
    clamp_max threshold softshrink hardshrink tanhshrink prelu rrelu asinh sinh
    fake_quantize_per_tensor_affine round ceil floor trunc"""
)
# Deviations, lengths and other measures of a vector: what is divided by them stays linear.
MEASURES = names(
    """rsqrt sqrt reciprocal norm vector_norm linalg_vector_norm linalg_norm var std var_mean std_mean
    rsqrt_ sqrt_ reciprocal_ sign heaviside log_softmax logsumexp log log2 log_ argmax argmin softmin"""
)
PRODUCTS = names(
    "matmul __matmul__ __rmatmul__ bmm mm mv dot tensordot inner outer vdot einsum _grouped_mm grouped_mm"
)
SAME_NUMBERS = names(
    "dropout contiguous clone to type type_as float double half bfloat16 view reshape expand expand_as alpha_dropout"
)


class _Ratio(torch.autograd.Function):
    """`y`, whose derivative is `ratio`: an activation as a frozen factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, made: Callable[[], tuple[Tensor, Tensor]]) -> Tensor:  # type: ignore[override]
        y, ratio = made()
        ctx.save_for_backward(ratio)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        (ratio,) = ctx.saved_tensors
        return g * ratio, None


class _Norm(torch.autograd.Function):
    """`y`, a norm of `x` over `axes` with its deviation frozen: `(x - mean) * scale`, or without the mean."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        made: Callable[[], tuple[Tensor, Tensor]],
        weight: Tensor | None,
        axes: tuple[int, ...] | None,
    ) -> Tensor:  # type: ignore[override]
        y, scale = made()
        ctx.save_for_backward(*((scale,) if weight is None else (scale, weight)))
        ctx.axes = axes
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        scale, *weight = ctx.saved_tensors
        g = g * weight[0] if weight else g
        g = g * scale.to(g.dtype)
        if ctx.axes is not None:
            g = g - g.mean(dim=ctx.axes, keepdim=True)
        return g, None, None, None


class _FrozenProduct(torch.autograd.Function):
    """`A V` of a fused call, A frozen. Its own derivative would work out those of queries and keys too, and keep the
    mask of every layer for that, widened to floats.
    """

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, made: Callable[[], Tensor], attention: BlockAttention
    ) -> Tensor:  # type: ignore[override]
        ctx.attention, ctx.heads, ctx.dtype = attention, value.shape[1], value.dtype
        return made()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        found = ctx.attention.back(g)
        if found.shape[1] != ctx.heads:  # grouped queries share a head of values
            found = found.unflatten(1, (ctx.heads, -1)).sum(dim=2)
        return found.to(ctx.dtype), None, None


@dataclass
class Tag:
    """What is remembered of a live tensor."""

    root: Tensor | None = None  # it is a number-by-number function of this one
    scaled: bool = True  # and only a multiple of it
    gate: bool = False  # an activation's output
    role: str = ""  # in its layer: "stream", "attention"
    bias: Tensor | None = None  # the constant its last linear map added
    enters: int = -1  # the layer it enters


_PLAIN = Tag()


def tag(tensor: Any) -> Tag:
    return getattr(tensor, "_ctxmix_tag", _PLAIN)


def _tagged(tensor: Tensor, made: Tag) -> Tensor:
    tensor._ctxmix_tag = made  # type: ignore[attr-defined]
    return tensor


def _are_probabilities(value: Any) -> bool:
    return getattr(value, "_ctxmix_probabilities", False)


def watch(tensor: Tensor, see: Callable[[Tensor], Tensor | None]) -> None:
    """Call `see` with the gradient that arrives at `tensor`; operations without a derivative (int8) send none."""
    tensor.register_hook(lambda g: None if g is None else see(g))


def live(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


@dataclass
class Product:
    """An attention product of the ledger's forward: enough to get the edges of its layer when they are asked for."""

    layer: int
    values: Tensor
    equation: str | None
    probabilities: Callable[[], Tensor]
    context: Tensor
    gradient: Tensor | None = None  # of the context, once the backward pass has come by
    closed: bool = False  # counted among the components

    def product(self) -> AttentionProduct:
        return AttentionProduct(
            self.probabilities(), self.values, self.context, self.equation, "eager"
        )


@dataclass
class Books:
    """What one ledger collects: lines of constants per example, attention products, what the
    components of a layer passed on.
    """

    batch: int
    tokens: int = 0
    order: str = "btd"
    lines: dict[str, Tensor] = field(default_factory=dict)  # name -> [B]
    levels: dict[int, Tensor] = field(
        default_factory=dict
    )  # all lines of a layer together: 0 embeddings, 1 to L, L + 1 head -> [B]
    products: list[Product] = field(default_factory=list)
    components: dict[tuple[int, str], Tensor] = field(
        default_factory=dict
    )  # (layer, component) -> [B, T]
    ambiguous: bool = False  # something could not be assigned to one example of the batch
    credited: set[str] = field(
        default_factory=set
    )  # lines that something arrived at: biases of queries and keys wait in vain

    def open(self, name: str, like: Tensor) -> None:
        if name not in self.lines:
            self.lines[name] = torch.zeros(
                self.batch, dtype=widened(like.dtype), device=like.device
            )

    def credit(self, name: str, level: int, parts: Tensor) -> None:
        """Add `parts`, laid out as the tensor they belong to (its last axes may be summed already), to a line."""
        found = self.per_example(parts).to(self.lines[name].dtype)
        self.lines[name] += found
        self.credited.add(name)
        known = self.levels.get(level)
        self.levels[level] = found if known is None else known + found

    def per_example(self, parts: Tensor) -> Tensor:
        """`[B]` sums of something that is laid out like an operand."""
        if self.batch == 1:
            return parts.sum().reshape(1)
        axis = self._axis(parts.shape)
        if axis is None:
            self.ambiguous = True
            return parts.sum().expand(self.batch) / self.batch
        if axis == 0 and parts.shape[0] != self.batch:  # [B * T, ...], [B * H, ...]
            parts = parts.unflatten(0, (self.batch, -1))
        return parts.movedim(axis, 0).flatten(1).sum(dim=1) if parts.dim() > 1 else parts

    def _axis(self, shape: torch.Size) -> int | None:
        """Where the examples are; None where a shape does not tell."""
        second = len(shape) > 1 and shape[1] == self.batch
        if len(shape) and shape[0] == self.batch:
            return None if second and self.order == "tbd" else 0
        if second:
            return 1
        flat = (
            (self.batch * self.tokens,)
            if len(shape) < 3
            else tuple(range(self.batch, shape[0] + 1, self.batch))
        )
        return 0 if len(shape) and shape[0] in flat else None

    def per_token(self, parts: Tensor) -> Tensor | None:
        """`[B, T]` of products `[..., D]` in one of the layouts of a hidden state, summed over the last axis."""
        shape = (self.batch, self.tokens)
        if parts.shape[:2] == shape and (self.order != "tbd" or self.batch != self.tokens):
            return parts.flatten(2).sum(dim=-1) if parts.dim() > 2 else parts
        if parts.shape[:2] == shape[::-1]:
            return (parts.flatten(2).sum(dim=-1) if parts.dim() > 2 else parts).mT
        if parts.shape[0] == self.batch * self.tokens:
            return parts.flatten(1).sum(dim=1).view(shape)
        return None


class LinearTap(Tap):
    """The tap while a ledger is drawn up. `names` are those of the parameters, for their lines."""

    def __init__(
        self, books: Books, names: dict[int, str], rule: str = "frozen", gates: str = "half"
    ) -> None:
        super().__init__()
        self.books, self.names, self.rule, self.gates = books, names, rule, gates
        # the backward pass will itself be differentiated, which fused kernels cannot
        self.vectors = False
        self.place = "embeddings"  # where the forward is: "embeddings", "layer 3", "head"
        self.layer = -1  # counted from 0, while a layer runs
        # 0 before the first layer, l in and after layer l, L + 1 behind the last one
        self.level = 0
        self.swap: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # id -> (a tensor of the model, the live one in its place)
        # (table, rows) -> live rows
        self.on_embedding: Callable[[Tensor, Tensor], Tensor] | None = None
        self.prefix = ""  # the path of the layer
        self._constants: dict[int, Tensor] = {}
        # operations that did not hand on what they received, and where
        self.audit: list[tuple[str, str]] | None = None

    # ---- operands ---------------------------------------------------------------------------------------------
    def _operand(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            swapped = self.swap.get(id(value))
            if swapped is not None:
                return swapped[1]
            if isinstance(value, nn.Parameter) and value.requires_grad:
                plain = self._constants.get(id(value))
                if plain is None:
                    plain = self._constants[id(value)] = value.detach()
                    self.names.setdefault(id(plain), self.names.get(id(value), ""))
                return plain
            return value
        if isinstance(value, list | tuple) and any(
            isinstance(item, Tensor | list | tuple) for item in value
        ):
            made = [self._operand(item) for item in value]
            return (
                made
                if isinstance(value, list)
                else tuple(made)
                if type(value) is tuple
                else type(value)(*made)
            )
        return value

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = kwargs or {}
        if name == "__get__" and func not in _TRANSPOSED:
            return func(*args, **kwargs)
        args = tuple([self._operand(value) for value in args])
        kwargs = {key: self._operand(value) for key, value in kwargs.items()} if kwargs else kwargs
        if self.on_embedding is not None and name == "embedding":
            return self._embedding(func, args, kwargs)
        operands = [v for v in _flat((*args, *kwargs.values())) if isinstance(v, Tensor)]
        if not any(v.requires_grad for v in operands):
            result = func(*args, **kwargs)
            if (
                name in _STILL_PROBABILITIES
                and isinstance(result, Tensor)
                and any(_are_probabilities(v) for v in operands)
            ):
                result._ctxmix_probabilities = True  # type: ignore[attr-defined]
            return result
        rule = _HANDLERS.get(name)
        with torch.enable_grad():  # also where the model itself takes no gradients
            return self._ruled(rule, func, name, args, kwargs)

    def _ruled(
        self,
        rule: Rule | None,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        run = func if rule is None else lambda *a, **k: rule(self, func, name, a, k)
        if self.audit is not None and not self.keeps(run, *args, **kwargs):
            self.audit.append((name, self.place))
        return run(*args, **kwargs)

    def keeps(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
        """One operation alone, on copies: does `<g, y>` arrive whole at its operands and its lines, for a random g?"""
        leaves: list[Tensor] = []

        def copied(value: Any) -> Any:
            if isinstance(value, Tensor):
                if not value.requires_grad:
                    return value.clone() if value is args[0] else value
                leaves.append(value.detach().clone().requires_grad_())
                return _inherit(leaves[-1].clone(), value)
            return (
                type(value)([copied(item) for item in value])
                if type(value) in (list, tuple)
                else value
            )

        a, k = tuple(map(copied, args)), {key: copied(value) for key, value in kwargs.items()}
        own, self.books = self.books, Books(1, self.books.tokens, self.books.order)
        audit, self.audit = self.audit, None
        try:
            made = run(*a, **k)
            for out in (v for v in _flat([a[0] if made is None else made]) if live(v)):
                for line in self.books.lines.values():
                    line.zero_()
                g = torch.randn_like(out)
                grads = torch.autograd.grad(out, leaves, g, retain_graph=True, allow_unused=True)
                arrived = [
                    d * v.detach() for d, v in zip(grads, leaves, strict=True) if d is not None
                ] + list(self.books.lines.values())
                total = sum(float(part.double().nan_to_num(0, 0, 0).sum()) for part in arrived)
                sent = (g * out.detach()).double().nan_to_num(0, 0, 0)
                if abs(total - float(sent.sum())) > 1e-4 * max(float(sent.abs().sum()), 1e-30):
                    return False
        finally:
            self.books, self.audit = own, audit
        return True

    def _embedding(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        rows = func(*args, **kwargs)
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        assert self.on_embedding is not None
        return self.on_embedding(weight, rows)

    # ---- lines ------------------------------------------------------------------------------------------------
    def line(
        self, result: Tensor, constant: Tensor | float | Callable[[], Tensor], name: str
    ) -> None:
        """What `constant`, a summand of `result`, passes on goes into a line."""
        if not result.requires_grad:
            return
        where = f"{self.place} {name}" if self.place != "head" or name in _UNNAMED else name
        books, level = self.books, self.level
        books.open(where, result)

        def credit(g: Tensor) -> None:
            c = constant() if callable(constant) else constant
            wide = widened(g.dtype)
            if (
                isinstance(c, Tensor)
                and c.dim() == 1
                and c.shape[0] == g.shape[-1]
                and bool(c.isfinite().all())
            ):
                parts = g.to(wide) @ c.to(wide)
            else:
                parts = g.to(wide) * (c.to(wide) if isinstance(c, Tensor) else c)
                if isinstance(c, Tensor) and not bool(c.isfinite().all()):
                    parts = parts.nan_to_num(
                        0.0, 0.0, 0.0
                    )  # a masked score: nothing passes through it
            books.credit(where, level, parts.detach())

        watch(result, credit)

    def name_of(self, value: Any) -> str:
        """A parameter by its name inside its layer; other constants together."""
        found = self.names.get(id(value), "") if isinstance(value, Tensor) else ""
        if found:
            return found.partition(f"{self.prefix}.")[2] or found if self.prefix else found
        tokens = (
            isinstance(value, Tensor)
            and value.dim() > 1
            and self.books.tokens > 1
            and value.numel() > value.shape[-1]
        )
        return "other inputs" if tokens else "constants"


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _scaled_gradient(result: Tensor, factor: float) -> Tensor:
    watch(result, lambda g: g * factor)
    return result


def _inherit(result: Any, source: Any, **changed: Any) -> Any:
    """The result is the source in another shape, or a multiple of it."""
    found = getattr(source, "_ctxmix_tag", None)
    if isinstance(result, Tensor) and result is not source and found is not None:
        result._ctxmix_tag = Tag(**{**found.__dict__, **changed}) if changed else found  # type: ignore[attr-defined]
    return result


# ---- rules
# ------------------------------------------------------------------------------------------------------------
Rule = Callable[[LinearTap, Any, str, tuple[Any, ...], dict[str, Any]], Any]


def _shape(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    result, source = func(*args, **kwargs), args[0] if args else None
    if isinstance(source, Tensor):
        kept = name in SAME_NUMBERS
        for out in result if isinstance(result, tuple | list) else (result,):
            _inherit(out, source) if kept else _inherit(
                out, source, bias=None, root=None, enters=-1
            )
            if _are_probabilities(source) and isinstance(out, Tensor):
                out._ctxmix_probabilities = True  # type: ignore[attr-defined]
    return result


def _frozen(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """A measure: its value, from which nothing descends."""
    return func(*_detached(args), **_detached(kwargs))


def _detached(values: Any) -> Any:
    if isinstance(values, Tensor):
        return values.detach() if values.requires_grad else values
    if isinstance(values, dict):
        return {key: _detached(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        made = [_detached(value) for value in values]
        return made if isinstance(values, list) else tuple(made)
    return values


def _softmax(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    x = args[0] if args else kwargs["input"]
    if tap.rule == "through":
        return _through_softmax(
            tap, x, func(*args, **kwargs), args[1] if len(args) > 1 else kwargs.get("dim", -1)
        )
    result = func(*_detached(args), **_detached(kwargs))
    result._ctxmix_probabilities = True
    return result


def _through_softmax(tap: LinearTap, x: Tensor, result: Tensor, dim: int) -> Tensor:
    """First order in the scores; what that leaves of the probabilities is a line of its own."""
    where, books, level = "softmax remainder", tap.books, tap.level
    books.open(where, result)
    s, scores = result.detach(), x.detach()

    def credit(g: Tensor) -> None:
        back = s * (g - (g * s).sum(dim=dim, keepdim=True))
        books.credit(
            where, level, (g * s - torch.where(s > 0, back * scores, 0.0)).to(widened(g.dtype))
        )

    watch(result, credit)
    result._ctxmix_probabilities = True  # type: ignore[attr-defined]
    return result


def _pointwise(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    x = args[0] if args else kwargs["input"]
    if not live(x):  # a live exponent or limit
        return _frozen(tap, func, name, args, kwargs)
    rest, options = (
        _detached(args[1:]),
        {k: v for k, v in _detached(kwargs).items() if k not in ("input", "inplace", "out")},
    )
    in_place = name.endswith("_") and not name.endswith("__")
    plain = getattr(torch.Tensor, name[:-1]) if in_place else func
    given = x.detach()
    with torch.no_grad():
        y = plain(given, *rest, **options)
        if name in _GUARDS and torch.equal(y, given):  # a guard that had nothing to do
            return x
        zero = plain(
            given.new_zeros(()).expand_as(given)
            if y.shape != given.shape or rest
            else given.new_zeros(1),
            *rest,
            **options,
        )
        constant = zero if bool((zero != 0).any()) else None
        moving = y if constant is None else y - constant
        ratio = torch.where(given == 0, 0.0, moving / given).to(y.dtype)
    result = _Ratio.apply(x, lambda: (y, ratio))
    if constant is not None:
        tap.line(
            result, constant if constant.numel() > 1 else float(constant), "activation constants"
        )
    known = tag(x)
    made = Tag(root=known.root if known.root is not None else x, scaled=False, gate=True)
    if in_place:
        return _tagged(x.copy_(result), made)
    return _tagged(result, made)


def activation(tap: LinearTap, func: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Any number-by-number function of a live tensor."""
    return _pointwise(tap, func, "activation", (x,), {})


def _glu(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    value, gate = args[0].chunk(2, dim=dim)
    return _times(tap, value, _pointwise(tap, torch.sigmoid, "sigmoid", (gate,), {}))


def _times(
    tap: LinearTap, a: Any, b: Any, func: Callable[..., Any] = torch.mul, **kwargs: Any
) -> Any:
    """A product, number by number."""
    if not (live(a) and live(b)):
        result = func(a, b, **kwargs)
        source, other = (a, b) if live(a) else (b, a)
        if _are_probabilities(a) or _are_probabilities(b):
            result._ctxmix_probabilities = True
        single = not isinstance(other, Tensor) or other.numel() == 1
        known = tag(source)
        return _tagged(
            result,
            Tag(
                root=(known.root if known.root is not None else source) if single else None,
                scaled=known.scaled,
                gate=known.gate,
                role=known.role if _per_row(other) else "",
                enters=known.enters if single else -1,
            ),
        )
    left, right = tag(a), tag(b)
    root_a, root_b = (
        (left.root if left.root is not None else a),
        (right.root if right.root is not None else b),
    )
    if root_a is root_b:  # x * g(x), written out: an activation
        hold = b if left.root is None or left.scaled else a
        result = func(a.detach(), b) if hold is a else func(a, b.detach())
        return _tagged(result, Tag(root=root_a, scaled=False, gate=True))
    if a.shape[-1] != b.shape[-1] and 1 in (
        a.shape[-1],
        b.shape[-1],
    ):  # one factor per token: routing, a scalar gate
        return func(a.detach(), b) if a.shape[-1] == 1 else func(a, b.detach())
    if tap.gates == "frozen" and left.gate != right.gate:
        return func(a.detach(), b) if left.gate else func(a, b.detach())
    return _scaled_gradient(func(a, b, **kwargs), 0.5)


def _per_row(factor: Any) -> bool:
    """A number, a vector over the coordinates, or one number per token: as in a norm."""
    return (
        not isinstance(factor, Tensor)
        or factor.dim() <= 1
        or factor.shape[-1] == 1
        or factor.numel() == factor.shape[-1]
    )


def _multiply(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    a, b = args[0], args[1] if len(args) > 1 else kwargs["other"]
    if name in ("mul_", "__imul__"):
        if live(a) and live(b):
            return a.copy_(_times(tap, a.clone(), b))
        return func(a, b)
    return _times(tap, a, b)


def _divide(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    a, b = args[0], args[1] if len(args) > 1 else kwargs["other"]
    if name in ("__rtruediv__", "__rdiv__"):
        a, b, func = b, a, torch.div
    result = func(a, _detached(b), **{k: v for k, v in kwargs.items() if k != "other"})
    if live(a) and result is not a:
        known, single = tag(a), not isinstance(b, Tensor) or b.numel() == 1
        root = (known.root if known.root is not None else a) if single else None
        _tagged(
            result,
            Tag(
                root=root,
                scaled=known.scaled,
                gate=known.gate,
                role=known.role if _per_row(b) else "",
            ),
        )
    if _are_probabilities(a):
        result._ctxmix_probabilities = True
    return result


def _add(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    a, b = args[0], args[1] if len(args) > 1 else kwargs["other"]
    sign = -1.0 if name in SUBTRACT or name in _REVERSED else 1.0
    factor = float(kwargs.get("alpha", 1))
    ids = (a, b)
    result = func(*args, **kwargs)
    if name in _REVERSED:  # b - a
        a, b = b, a
    if live(a) and live(b):
        if sign > 0:
            _meet(tap, a, b, result)
        elif b.shape[-1] == 1 != a.shape[-1] and result is not a:  # x - mean(x)
            _tagged(result, Tag(role=tag(a).role))
        return result
    source, constant = (
        (a, b) if live(a) or (result is ids[0] and result.requires_grad and not live(b)) else (b, a)
    )
    weight = sign * factor if constant is b else 1.0
    scalar = not isinstance(constant, Tensor) or constant.numel() == 1
    if not (isinstance(constant, int | float) and constant == 0):
        tap.line(result, constant if weight == 1.0 else constant * weight, tap.name_of(constant))
    known = tag(source)
    if result is not source:
        role = known.role if _per_row(constant) else ""
        _tagged(
            result,
            Tag(
                root=(known.root if known.root is not None else source) if scalar else None,
                scaled=False,
                gate=known.gate,
                role=role,
            ),
        )
    return result


def _meet(tap: LinearTap, a: Tensor, b: Tensor, result: Tensor) -> None:
    """Two live streams are added: in a layer that is the residual with the attention's or the feed-forward's output."""
    if tap.layer < 0 or result.dim() < 2 or a.shape != b.shape:
        return
    roles = {tag(a).role: a, tag(b).role: b}
    if "stream" in roles and len(roles) == 2:
        if tag(roles["stream"]).enters == tap.layer:
            _component(tap, "residual", result, roles["stream"])
        if "" in roles:
            _component(tap, "feed-forward", result, roles[""])
        _tagged(result, Tag(role="stream"))
    elif "attention" in roles and "" in roles:  # in parallel
        _component(tap, "feed-forward", result, roles[""])
        _tagged(result, Tag(role="attention"))
    elif set(roles) == {"attention"}:
        _tagged(result, Tag(role="attention"))


def _component(tap: LinearTap, what: str, total: Tensor, part: Tensor) -> None:
    """`<dy/dpart, part>` per token, without the part's own bias; a summand has the gradient of the sum."""
    books, layer, value, bias = tap.books, tap.layer, part.detach(), tag(part).bias

    def credit(g: Tensor) -> None:
        own = value if bias is None else value - bias
        found = books.per_token((g * own).to(widened(g.dtype)))
        if found is not None:
            known = books.components.get((layer, what))
            books.components[layer, what] = found if known is None else known + found

    watch(total, credit)


def _linear(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    names_ = ("input", "weight", "bias")
    call = {**dict(zip(names_, args, strict=False)), **kwargs}
    x, weight, bias = call["input"], call["weight"], call.get("bias")
    if live(weight):
        made = _bilinear(tap, F.linear, (x, weight), {})
        return made if bias is None else _add(tap, torch.add, "add", (made, bias), {})
    result = func(*args, **kwargs)
    if bias is not None:
        tap.line(result, bias, tap.name_of(bias))
    return _after_map(tap, x, result, bias)


def _after_map(tap: LinearTap, x: Any, result: Tensor, bias: Any = None) -> Tensor:
    role = "attention" if tag(x).role == "attention" else ""
    return _tagged(result, Tag(role=role, bias=bias if isinstance(bias, Tensor) else None))


def _addmm(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """`bias + x @ weight`, also with the bias of a whole batch."""
    given = {**dict(zip(("input", "mat1", "mat2"), args, strict=False)), **kwargs}
    bias, x, weight = (
        given["input"],
        given.get("mat1", given.get("batch1")),
        given.get("mat2", given.get("batch2")),
    )
    beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
    if (live(x) and live(weight)) or live(bias) or (beta, alpha) != (1, 1):
        product = _bilinear(
            tap, torch.bmm if name.startswith("baddbmm") else torch.matmul, (x, weight), {}
        )
        product = product if alpha == 1 else _times(tap, product, alpha)
        return (
            product
            if beta == 0
            else _add(tap, torch.add, "add", (product, bias if beta == 1 else bias * beta), {})
        )
    result = func(*args, **kwargs)
    tap.line(result, bias, tap.name_of(bias))
    return _after_map(tap, x, result, bias)


def _convolution(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    bias = args[2] if len(args) > 2 else kwargs.get("bias")
    result = func(*args, **kwargs)
    if bias is not None:
        tap.line(result, bias.reshape(-1, *(1,) * (result.dim() - 2)), tap.name_of(bias))
    return result


def _layer_norm(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    order = ["input", "normalized_shape", "weight", "bias", "eps"]
    call = {
        "weight": None,
        "bias": None,
        "eps": 1e-5,
        **dict(zip(order, args, strict=False)),
        **kwargs,
    }
    x, bias = call["input"], call["bias"]
    shape = tuple(call["normalized_shape"])

    def made() -> tuple[Tensor, Tensor]:
        y, _, scale = torch.native_layer_norm(x, shape, call["weight"], bias, call["eps"])
        return y, scale

    result = _Norm.apply(x, made, call["weight"], tuple(range(-len(shape), 0)))
    if bias is not None:
        tap.line(result, bias, tap.name_of(bias))
    return _inherit(result, x, root=None, bias=None, gate=False, scaled=True, enters=-1)


def _rms_norm(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    call = {
        "weight": None,
        "eps": None,
        **dict(zip(["input", "normalized_shape", "weight", "eps"], args, strict=False)),
        **kwargs,
    }
    x = call["input"]
    axes = tuple(range(-len(call["normalized_shape"]), 0))

    def made() -> tuple[Tensor, Tensor]:
        eps = torch.finfo(x.dtype).eps if call["eps"] is None else call["eps"]
        return func(*args, **kwargs), (
            x.to(widened(x.dtype)).square().mean(dim=axes, keepdim=True) + eps
        ).rsqrt()

    result = _Norm.apply(x, made, call["weight"], None)
    return _inherit(result, x, root=None, bias=None, gate=False, scaled=True, enters=-1)


def _group_norm(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Groups of channels `[B, C, ...]`, each with its own mean and deviation."""
    call = {
        "weight": None,
        "bias": None,
        "eps": 1e-5,
        **dict(zip(["input", "num_groups", "weight", "bias", "eps"], args, strict=False)),
        **kwargs,
    }
    x, groups, weight, bias = call["input"], call["num_groups"], call["weight"], call["bias"]
    split = x.unflatten(1, (groups, -1))
    axes = tuple(range(2, split.dim()))
    centred = split - split.mean(dim=axes, keepdim=True)
    with torch.no_grad():
        scale = (centred.square().mean(dim=axes, keepdim=True) + call["eps"]).rsqrt()
    result = (centred * scale).flatten(1, 2)
    wide = (-1, *(1,) * (x.dim() - 2))
    if weight is not None:
        result = result * weight.view(wide)
    if bias is not None:
        result = result + bias.view(wide)
        tap.line(result, bias.view(wide), tap.name_of(bias))
    return result


def _affine(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Linear but for a constant, which is what it gives at zero: joining with constants, padding,
    norms with stored statistics.
    """
    result = func(*args, **kwargs)
    if not live(result):
        return result
    shapes = _zeroed((args, kwargs))

    def constant() -> Tensor:
        a, k = _filled(shapes)
        with torch.no_grad():
            return func(*a, **k)

    tap.line(result, constant, "constants" if name == "batch_norm" else "other inputs")
    return result


class _Zeros:
    def __init__(self, like: Tensor) -> None:
        self.shape, self.dtype, self.device = like.shape, like.dtype, like.device

    def make(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


def _zeroed(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _Zeros(value) if value.requires_grad else value
    if isinstance(value, dict):
        return {key: _zeroed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        made = [_zeroed(item) for item in value]
        return made if isinstance(value, list) else tuple(made)
    return value


def _filled(value: Any) -> Any:
    if isinstance(value, _Zeros):
        return value.make()
    if isinstance(value, dict):
        return {key: _filled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        made = [_filled(item) for item in value]
        return made if isinstance(value, list) else tuple(made)
    return value


def _cat(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    parts = args[0] if args else kwargs.get("tensors", ())
    if all(live(part) or not part.numel() for part in parts):
        return func(*args, **kwargs)
    return _affine(tap, func, name, args, kwargs)


def _masked(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """`masked_fill`: what is filled in is a constant; scores keep their place before the softmax."""
    value = args[2] if len(args) > 2 else kwargs.get("value", 0.0)
    if live(value):
        return func(*args, **kwargs)
    mask = args[1] if len(args) > 1 else kwargs["mask"]
    result = func(*args, **kwargs)
    if float(value) != 0.0:
        filled = torch.as_tensor(value, dtype=result.dtype, device=result.device).detach()
        tap.line(result, lambda: torch.where(mask, filled, torch.zeros_like(filled)), "constants")
    return _inherit(result, args[0])


def _where(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if len(args) < 3 or (live(args[1]) and live(args[2])):
        return func(*args, **kwargs)
    other = args[2] if live(args[1]) else args[1]
    if (isinstance(other, int | float) and other == 0) or (
        isinstance(other, Tensor) and other.numel() == 1 and float(other) == 0.0
    ):
        return func(*args, **kwargs)
    return _affine(tap, func, name, args, kwargs)


def _write(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Written in place: what a constant buffer held, or a constant that is written over something live, is a line."""
    target = args[0]
    before = None if live(target) else target.detach().clone()
    result = func(*args, **kwargs)
    if live(target) and before is not None and bool((before != 0).any()):
        fresh = before
        rest = _detached(args[1:])
        zero = (
            tuple(
                v.new_zeros(v.shape) if live(o) else v
                for v, o in zip(rest, args[1:], strict=True)
                if True
            )
            if not kwargs
            else None
        )
        if zero is not None:
            with torch.no_grad():
                func(fresh, *zero)
            tap.line(target, fresh, "other inputs")
    elif live(target) and before is None and name == "__setitem__" and not live(args[2]):
        value = args[2]
        if not (isinstance(value, int | float) and value == 0) and bool(
            torch.as_tensor(value != 0).any()
        ):
            fresh = torch.zeros_like(target.detach())
            fresh[args[1]] = value
            tap.line(target, fresh, "constants")
    return result


def _held(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_held(item) for item in value]
    if not (_are_probabilities(value) and live(value)):
        return value
    made = value.detach()
    made._ctxmix_probabilities = True
    return made


def _bilinear(
    tap: LinearTap, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Contractions: with one live factor linear, with n of them each gets an n-th."""
    result = func(*args, **kwargs)
    count = sum(live(v) for v in _flat(args))
    if count < 2:
        source = next(v for v in _flat(args) if live(v))
        return _after_map(tap, source, result)
    return _scaled_gradient(result, 1.0 / count)


def _contraction(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if (
        tap.rule == "frozen"
    ):  # probabilities that come out of an autograd function of the model's own
        args = tuple(_held(value) for value in args)
    if name == "einsum" and isinstance(args[0], str):
        operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
        equation = args[0].replace(" ", "")
        if len(operands) == 2 and tap.layer >= 0:
            a, b = operands
            if _are_probabilities(a):
                return _attention(tap, _bilinear(tap, func, args, kwargs), a, b, equation)
            if _are_probabilities(b):
                left, right = equation.split("->")[0].split(",")
                return _attention(
                    tap,
                    _bilinear(tap, func, args, kwargs),
                    b,
                    a,
                    f"{right},{left}->{equation.split('->')[1]}",
                )
    elif len(args) >= 2 and tap.layer >= 0 and _are_probabilities(args[0]):
        return _attention(tap, _bilinear(tap, func, args, kwargs), args[0], args[1], None)
    return _bilinear(tap, func, args, kwargs)


def _attention(
    tap: LinearTap, context: Tensor, probabilities: Any, values: Tensor, equation: str | None
) -> Tensor:
    """The product that mixes tokens; `probabilities` is a tensor or makes one."""
    given = probabilities.detach() if isinstance(probabilities, Tensor) else None
    made = Product(
        tap.layer,
        values.detach(),
        equation,
        (lambda: given) if given is not None else probabilities,
        context.detach(),
    )
    tap.books.products.append(made)

    def keep(g: Tensor) -> None:
        made.gradient = g.detach()

    watch(context, keep)
    return _tagged(context, Tag(role="attention"))


def _sdpa(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    call = named_arguments(args, kwargs)
    value = call["value"]
    frozen_call = _detached(call)
    fixed = {**frozen_call, "value": value}
    blocks = blocks_of_sdpa(frozen_call)

    def probabilities() -> Tensor:
        return sdpa_probabilities(**frozen_call) if blocks is None else blocks.whole()

    if tap.rule == "through":
        context = _through_attention(tap, call)
    elif tap.vectors:
        context = probabilities().to(value.dtype) @ repeat_heads(value, call["query"])
    elif blocks is not None and live(value):
        context = _FrozenProduct.apply(value, lambda: func(**frozen_call), blocks)
    else:
        context = func(**fixed)
    if not live(value):
        return context
    wide = repeat_heads(value, call["query"])
    return _attention(tap, context, probabilities, wide, None)


def _through_attention(tap: LinearTap, call: dict[str, Any]) -> Tensor:
    """The fused product, written out so that relevance passes through the scores."""
    query, key, value = (
        call["query"],
        repeat_heads(call["key"], call["query"]),
        repeat_heads(call["value"], call["query"]),
    )
    scale = call.get("scale")
    scale = 1.0 / query.shape[-1] ** 0.5 if scale is None else scale
    scores = _times(tap, _bilinear(tap, torch.matmul, (query, key.mT), {}), scale)
    mask = call.get("attn_mask")
    if call.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if isinstance(mask, Tensor):
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -torch.inf)
        else:
            scores = _add(tap, torch.add, "add", (scores, mask.to(scores.dtype)), {})
    s = scores.softmax(dim=-1).nan_to_num(0.0)
    return _bilinear(tap, torch.matmul, (_through_softmax(tap, scores, s, -1), value), {})


def _multi_head(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """One torch function that holds a whole attention block (wavlm): its parts, each by its own rule."""
    with torch.no_grad():
        plain = func(*_detached(args), **_detached(kwargs))
        block = multi_head_parts(*_detached(args), **_detached(kwargs))
    value = args[2] if len(args) > 2 else kwargs["value"]
    weight, bias = block.value_weight, block.value_bias
    projected = F.linear(value, weight, bias)  # [T, B, D]
    if bias is not None:
        tap.line(projected, bias, "value bias")
    heads = block.probabilities.shape[1]
    values = projected.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
    context = _attention(tap, block.probabilities @ values, block.probabilities, values, None)
    merged = context.permute(2, 0, 1, 3).flatten(2)
    output = F.linear(merged, block.projection, block.projection_bias)
    if block.projection_bias is not None:
        tap.line(output, block.projection_bias, "output bias")
    return (_tagged(output, Tag(role="attention", bias=block.projection_bias)), *plain[1:])


def _normalise(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """`F.normalize`: the length is frozen."""
    x = args[0] if args else kwargs["input"]
    call = {
        "p": 2.0,
        "dim": 1,
        "eps": 1e-12,
        **dict(zip(("p", "dim", "eps"), args[1:], strict=False)),
        **{k: v for k, v in kwargs.items() if k != "input"},
    }
    with torch.no_grad():
        length = x.norm(call["p"], call["dim"], keepdim=True).clamp_min(call["eps"])
    return x / length


def _cosine(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    a, b = args[:2]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 1)
    with torch.no_grad():
        lengths = a.norm(dim=dim) * b.norm(dim=dim)
    return _times(tap, a, b).sum(dim=dim) / lengths


def _extreme(
    tap: LinearTap,
    func: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """`maximum`, `minimum` of two: whichever is taken; a constant one is a line."""
    if len(args) > 1 and isinstance(args[1], Tensor) and live(args[0]) and live(args[1]):
        return func(*args, **kwargs)
    if len(args) > 1 and isinstance(args[1], Tensor) and name in ("maximum", "minimum"):
        source = args[0] if live(args[0]) else args[1]
        other = args[1] if live(args[0]) else args[0]
        return _pointwise(tap, lambda x, *rest, **more: func(x, other), name, (source,), {})
    return func(*args, **kwargs)


_TRANSPOSED = frozenset((Tensor.T.__get__, Tensor.mT.__get__, Tensor.data.__get__))  # type: ignore[attr-defined]
_STILL_PROBABILITIES = ALIAS | KEEPS_PROBABILITIES | MULTIPLY | DIVIDE | names("dropout")
_REVERSED = names("__rsub__ rsub")

_HANDLERS: dict[str, Rule] = {
    **dict.fromkeys(ALIAS | {"dropout", "__get__"}, _shape),
    **dict.fromkeys(KEEPS_PROBABILITIES, _shape),
    **dict.fromkeys(POINTWISE | {f"{name}_" for name in POINTWISE}, _pointwise),
    **dict.fromkeys(MEASURES, _frozen),
    **dict.fromkeys(MULTIPLY, _multiply),
    **dict.fromkeys(DIVIDE | names("__rtruediv__ __rdiv__ __div__ floor_divide"), _divide),
    **dict.fromkeys(ADD | SUBTRACT | _REVERSED, _add),
    **dict.fromkeys(PRODUCTS, _contraction),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmm_", "baddbmm_"), _addmm),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"), _convolution
    ),
    **dict.fromkeys(
        (
            "batch_norm",
            "pad",
            "lerp",
            "masked_scatter",
            "index_put",
            "scatter",
            "index_copy",
            "addcmul",
            "addcdiv",
        ),
        _affine,
    ),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "hstack", "vstack"), _cat),
    **dict.fromkeys(("masked_fill", "masked_fill_"), _masked),
    **dict.fromkeys(
        (
            "__setitem__",
            "index_put_",
            "index_add_",
            "scatter_",
            "scatter_add_",
            "index_copy_",
            "masked_scatter_",
            "copy_",
        ),
        _write,
    ),
    **dict.fromkeys(("maximum", "minimum"), _extreme),
    **dict.fromkeys(("softmax", "_softmax"), _softmax),
    "linear": _linear,
    "glu": _glu,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "where": _where,
    "normalize": _normalise,
    "cosine_similarity": _cosine,
    "scaled_dot_product_attention": _sdpa,
    "multi_head_attention_forward": _multi_head,
}
