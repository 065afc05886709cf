"""Draws up a ledger: one linear forward pass (`linear.py`), one backward pass, and what both left behind.

The same hooks that record open and close the layers; the account is what they report to. Nothing stays on the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ctxmix_hf.errors import InputError, UnsupportedModelError
from ctxmix_hf.instrumentation.awake import run_awake
from ctxmix_hf.instrumentation.fused import widened
from ctxmix_hf.instrumentation.layout import HiddenLayout, first_tensor, standard_attention
from ctxmix_hf.instrumentation.linear import Books, LinearTap, Product, Tag, activation, watch
from ctxmix_hf.instrumentation.probe import without_caches
from ctxmix_hf.instrumentation.replay import LayerCall
from ctxmix_hf.instrumentation.session import Instrumentation

STARTS = ("input", "embeddings")
WORDS = "word embeddings"
COMPONENTS = ("attention", "feed-forward", "residual")
# How far the sum may be from the model's own number, relative to the larger of it and the sum of all parts' sizes; and,
# where both vanish, how far it may be at all.
BALANCES = {
    torch.float64: (1e-5, 1e-6),  # norms of many families compute in float32 all the same
    torch.float32: (1e-3, 1e-5),
    torch.bfloat16: (0.1, 1e-2),
    torch.float16: (0.05, 1e-3),
}
Readout = Callable[
    [Any, list[int]], Tensor
]  # (the model's output, which examples of the batch it holds) -> [B]


@dataclass
class Account:
    """What the hooks report to while a ledger is drawn up."""

    owner: Instrumentation
    names: tuple[str, ...]  # of the layers, in call order
    layout: HiddenLayout
    tap: LinearTap
    start: str
    # the order of hidden states between layers, where it is known beforehand
    entering: str | None = None
    by_layer: bool = False  # the backward pass runs each layer again, so that only one layer's activations are kept
    layer_calls: list[LayerCall] = field(default_factory=list)  # where it does
    words: Tensor | None = None  # the table of word embeddings
    calls: int = 0
    leaf: Tensor | None = None  # e^0
    tables: dict[str, Tensor] = field(
        default_factory=dict
    )  # embedding table -> its live rows, [B, T, D]
    rows: dict[int, Tensor] = field(
        default_factory=dict
    )  # l -> [B, T], contributions counted at e^l
    compiled: set[str] = field(
        default_factory=set
    )  # modules that an audit found to hide their operation

    def module(self, module: nn.Module, x: Tensor, y: Tensor) -> Tensor | None:
        """An activation compiled by the model itself (bloom's) is seen by nobody but the hook on its module."""
        hidden = (
            y.requires_grad and y.shape == x.shape and not any(True for _ in module.parameters())
        )
        if not hidden:
            return None
        tap, kind = self.tap, type(module).__qualname__
        x = tap.swap.get(id(x), (None, x))[1]
        if kind in self.owner.compiled:
            with torch._C.DisableTorchFunction():
                return activation(tap, module.forward, x)
        if (
            tap.audit is not None
            and not tap.keeps(module.forward, x)
            and _number_by_number(module, x)
        ):
            self.compiled.add(kind)
        return None

    def enter(
        self, module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self.calls >= len(self.names) or name != self.names[self.calls]:
            return
        call = LayerCall.of(module, name, args, kwargs)
        if call is None:
            return
        tap, layer = self.tap, self.calls
        with torch._C.DisableTorchFunction():
            hidden = tap.swap.get(id(call.hidden), (None, call.hidden))[1]
            if layer == 0:
                self._open(call.hidden)
                hidden = tap.swap.get(id(call.hidden), (None, call.hidden))[1]
            hidden._ctxmix_tag = Tag(role="stream", enters=layer)  # type: ignore[attr-defined]
            self._row(layer, hidden)
            if self.by_layer:
                self.layer_calls.append(call)
        self.calls += 1
        self.stand_in(layer)

    def stand_in(self, layer: int) -> None:
        """From now on constants belong to this layer (from 0)."""
        tap = self.tap
        tap.layer, tap.level, tap.place = layer, layer + 1, f"layer {layer + 1}"
        tap.prefix = self.names[layer]

    def _open(self, hidden: Tensor) -> None:
        """The first layer's input becomes the start; its shape tells how many tokens there are."""
        inside = self.layout.order
        order = self.entering or self.layout.order_of(hidden) or inside
        if hidden.dim() == 3:
            batch, tokens = (
                hidden.shape[axis] for axis in {"btd": (0, 1), "tbd": (1, 0), "bdt": (0, 2)}[order]
            )
        else:
            batch, tokens = self.layout.batch, hidden.shape[0] // self.layout.batch
        self.layout = HiddenLayout(batch, tokens, order)
        self.tap.books.tokens, self.tap.books.order = tokens, inside
        self.tap.on_embedding = None
        if self.start == "input" and not self.by_layer:
            self._begin_at(hidden)

    def _begin_at(self, hidden: Tensor) -> None:
        """From here on everything that descends from `hidden` is live."""
        self.leaf = hidden.detach().clone().requires_grad_()
        self.tap.swap[id(hidden)] = (hidden, self.leaf.clone())

    def _row(self, layer: int, hidden: Tensor) -> None:
        if not hidden.requires_grad:
            return
        value, layout, rows = hidden.detach(), self.layout, self.rows

        def credit(g: Tensor) -> None:
            rows[layer] = layout.standard((g * value).to(widened(g.dtype))).sum(dim=-1)

        watch(hidden, credit)

    def leave(self, name: str, output: Any) -> None:
        if not self.calls or name != self.names[self.calls - 1] or self.tap.layer < 0:
            return
        self.tap.layer = -1
        if self.calls == len(self.names):
            hidden = first_tensor(output)
            if hidden is not None:
                with torch._C.DisableTorchFunction():
                    if self.by_layer:
                        self._begin_at(hidden)
                    self._row(
                        self.calls,
                        hidden
                        if self.leaf is None or not self.by_layer
                        else self.tap.swap[id(hidden)][1],
                    )
            self.tap.place, self.tap.level, self.tap.prefix = "head", self.calls + 1, ""

    def close_products(self) -> None:
        """What each attention product passed on, as the attention's component; layer by layer,
        nothing else of it is kept.
        """
        books = self.tap.books
        for item in books.products:
            if item.gradient is not None and not item.closed:
                both = (
                    standard_context(item, books.batch, t) for t in (item.context, item.gradient)
                )
                context, gradient = both
                part = (context * gradient).to(widened(gradient.dtype)).sum(dim=-1)
                key = (item.layer, "attention")
                known = books.components.get(key)
                books.components[key] = part if known is None else known + part
                item.closed = True
        if self.by_layer:
            books.products.clear()

    def embed(self, table: Tensor, rows: Tensor) -> Tensor:
        """Rows of an embedding table, each of its own for every example, as a start of the ledger."""
        batch = self.tap.books.batch
        with torch._C.DisableTorchFunction():
            if rows.dim() == 2:
                rows = rows[None]
            if rows.dim() == 3 and rows.shape[0] == 1:
                rows = rows.expand(batch, -1, -1)
            leaf = rows.detach().clone().requires_grad_()
            name = (
                self.tap.names.get(id(table), "embedding")
                .removesuffix(".weight")
                .rpartition(".")[2]
            )
            if self.words is not None and table.data_ptr() == self.words.data_ptr():
                name = WORDS
            while name in self.tables:
                name += "'"
            self.tables[name] = leaf
            return leaf.clone()


def _number_by_number(module: nn.Module, x: Tensor) -> bool:
    with torch._C.DisableTorchFunction(), torch.no_grad():
        flat = x.detach().flatten()
        order = torch.randperm(len(flat), device=x.device)
        return torch.equal(module.forward(flat)[order], module.forward(flat[order]))


@dataclass
class Drawn:
    """A ledger as tensors; the layers above it give it names and a face."""

    value: Tensor  # [B], the model's own number
    scores: Tensor  # [B, T]
    lines: dict[str, Tensor]  # name -> [B] or [B, T]
    rows: Tensor  # [B, L + 1, T]
    above: Tensor  # [B, L + 1], the sum of the lines above each row
    mask: Tensor  # [B, T]
    attended: Tensor  # [B, L, 3, T]: attention, feed-forward, residual
    products: list[Product]
    batch: int

    @property
    def gap(self) -> Tensor:
        """[B], relative to the larger of the value and the sum of the parts' sizes; absolute where both vanish."""
        size = self.scores.abs().sum(dim=-1) + sum(
            line.flatten(1).abs().sum(dim=1) if line.dim() > 1 else line.abs()
            for line in self.lines.values()
        )
        scale = torch.maximum(self.value.abs(), size)
        difference = (self.total - self.value).abs()
        return torch.where(
            scale > 0, difference / scale.clamp(min=torch.finfo(scale.dtype).tiny), difference
        )

    @property
    def total(self) -> Tensor:
        """[B]: the scores and all lines."""
        return self.scores.sum(dim=-1) + sum(
            line.flatten(1).sum(dim=1) if line.dim() > 1 else line for line in self.lines.values()
        )

    def edges(self) -> Tensor:
        """`[B, L, T, T]`: `sum_h A[h, i, j] <dy/dcontext[h, i], V[h, j]>`, signed."""
        found: dict[int, Tensor] = {}
        for item in self.products:
            if item.gradient is None:  # nothing of this layer reaches the output
                continue
            product = item.product()
            attention = standard_attention(product, self.batch)
            heads = attention.values.shape[1]
            g = standard_attention(product.with_context(item.gradient), self.batch).context.to(
                attention.values.dtype
            )
            g = g.unflatten(-1, (heads, -1)).transpose(1, 2)
            edges = torch.zeros_like(attention.probabilities[:, 0])
            for head in range(heads):
                edges += attention.probabilities[:, head] * (
                    g[:, head] @ attention.values[:, head].mT
                )
            found[item.layer] = edges if item.layer not in found else found[item.layer] + edges
        size = self.scores.shape[1]
        empty = self.rows.new_zeros(self.batch, size, size)
        return torch.stack(
            [found.get(layer, empty).to(empty) for layer in range(self.rows.shape[1] - 1)], dim=1
        )


@dataclass(frozen=True)
class Brief:
    """What is to be drawn up: a call of the model, what is read out of it, and by which rules.

    `names` and `layout` are those of the recorded layers, `examples` which of the batch the call holds, `mask` `[B, T]`
    the real tokens.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    owner: Instrumentation
    names: tuple[str, ...]
    layout: HiddenLayout
    readout: Readout
    examples: tuple[int, ...]
    mask: Tensor | None = None
    rule: str = "frozen"
    gates: str = "half"
    start: str = "input"
    entering: str | None = None
    by_layer: bool = False

    def account(self) -> Account:
        names = {id(p): _line_name(name) for name, p in self.module.named_parameters()}
        tap = LinearTap(Books(self.layout.batch), names, self.rule, self.gates)
        made = Account(
            self.owner, self.names, self.layout, tap, self.start, self.entering, self.by_layer
        )
        if self.start == "embeddings":
            table = self.module.get_input_embeddings()  # type: ignore[operator]
            made.words = getattr(table, "weight", None)
            tap.on_embedding = made.embed
        return made

    def of_example(self, b: int) -> Brief:
        """The same for one example of the batch."""
        batch = self.layout.batch
        return replace(
            self,
            args=tuple(_example(value, b, batch) for value in self.args),
            kwargs={key: _example(value, b, batch) for key, value in self.kwargs.items()},
            layout=replace(self.layout, batch=1),
            examples=(self.examples[b],),
            mask=None if self.mask is None else self.mask[b : b + 1],
        )


def _line_name(parameter: str) -> str:
    return f"{parameter.removesuffix('.bias')} bias" if parameter.endswith(".bias") else parameter


def draw_up(brief: Brief) -> Drawn:
    """The ledger of one call.

    Where constants cannot be told apart by example (experts that read tokens of the whole batch),
    examples are drawn up one by one.
    """
    whole = type(brief.module).__name__
    if any(
        type(part).__module__.startswith("torch.ao.nn.quantized") for part in brief.module.modules()
    ):
        raise UnsupportedModelError(
            f"{whole} has quantised layers, which have no derivative: draw up the ledger of the "
            "model before it was quantised."
        )
    brief = replace(brief, kwargs=without_caches(brief.kwargs))
    account = brief.account()
    drawn = _draw(brief, account)
    batch = brief.layout.batch
    if account.tap.books.ambiguous and batch > 1:
        singles = [brief.of_example(b) for b in range(batch)]
        drawn = _joined([_draw(one, one.account()) for one in singles])
    relative, absolute = BALANCES.get(drawn_dtype(brief.module), BALANCES[torch.float32])
    off = (drawn.total - drawn.value).abs()
    if bool(((drawn.gap <= relative) | (off <= absolute)).all()):
        return drawn
    blamed, compiled = _audit(brief)
    if compiled - brief.owner.compiled:
        brief.owner.compiled |= compiled
        return draw_up(brief)
    raise UnsupportedModelError(
        f"{brief.owner.family}: the ledger does not balance (the parts are off by "
        f"{float(drawn.gap.max()):.1e} of the output): {blamed}."
    )


class VectorAccount:
    """The ledger's forward of one example, kept so that the vector it ends in can be asked about any number of times.

    `against(direction)` costs one backward pass; `parts(places)` gives the tokens' vectors, a
    batched backward of the backward pass.
    """

    def __init__(self, brief: Brief) -> None:
        """`brief.readout` gives the vector, `[1, D]`."""
        self.brief = replace(brief, kwargs=without_caches(brief.kwargs))
        self.account = self.brief.account()
        self.account.tap.vectors = True
        with torch.inference_mode(False), torch.enable_grad():
            self.vector = run_awake(self.account, self.account.tap, self._forward)
        leaf = self.account.leaf
        if leaf is None or not self.vector.requires_grad:
            raise UnsupportedModelError(
                f"{brief.owner.family}: the embedding does not depend on the first layer's input."
            )
        self.leaf = leaf
        self._graph: tuple[Tensor, Tensor] | None = None

    def _forward(self) -> Tensor:
        brief = self.brief
        return brief.readout(brief.module(*brief.args, **brief.kwargs), list(brief.examples))

    @property
    def whole(self) -> Tensor:
        """`[D]`."""
        return self.vector.detach()[0]

    def against(self, direction: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """`<P_j, d>` of every token `[T]`, and of every line, for a direction `[D]`."""
        books = self.account.tap.books
        for line in books.lines.values():
            line.zero_()
        books.credited.clear()
        with torch.inference_mode(False), torch.enable_grad():
            (g,) = torch.autograd.grad(
                self.vector, self.leaf, direction[None].to(self.vector), retain_graph=True
            )
            scores = self.account.layout.standard((g * self.leaf).detach())[0].sum(dim=-1)
        lines = {
            name: books.lines[name][0].clone() for name in books.lines if name in books.credited
        }
        return scores, lines

    def parts(self, places: Tensor, chunk: int = 32) -> Tensor:
        """`[K, D]`: `P_j`, what each of these tokens put into the vector."""
        with torch.inference_mode(False), torch.enable_grad():
            if self._graph is None:
                u = torch.zeros_like(self.vector, requires_grad=True)
                (g,) = torch.autograd.grad(self.vector, self.leaf, u, create_graph=True)
                self._graph = (u, g)
            u, g = self._graph
            own = self.account.layout.standard(self.leaf.detach())
            found = []
            for some in places.split(chunk):
                rows = own.new_zeros(len(some), *own.shape)
                rows[torch.arange(len(some)), 0, some] = own[0, some]
                seeds = torch.stack(
                    [self.account.layout.unmoved(row, self.leaf) for row in rows]
                ).to(g.dtype)
                found.append(
                    torch.autograd.grad(g, u, seeds, retain_graph=True, is_grads_batched=True)[0][
                        :, 0
                    ]
                )
        return torch.cat(found).detach()


def any_readout(output: Any, examples: list[int]) -> Tensor:
    """For a probe: a projection of what the model returns first, with another weight for every number."""
    first = first_tensor(output)
    if first is None:
        raise InputError("The model returned no tensor to read out.")
    weights = torch.linspace(-1, 1, first[0].numel(), dtype=first.dtype, device=first.device).sin()
    return (first.flatten(1) * weights).sum(dim=1)


def drawn_dtype(module: nn.Module) -> torch.dtype:
    """The precision the model computes in."""
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def _example(value: Any, b: int, batch: int) -> Any:
    if isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == batch:
        return value[b : b + 1]
    return tuple(_example(item, b, batch) for item in value) if type(value) is tuple else value


def _draw(brief: Brief, account: Account) -> Drawn:
    count = len(brief.examples)

    def forward() -> Tensor:
        return brief.readout(brief.module(*brief.args, **brief.kwargs), list(brief.examples))

    with torch.inference_mode(False), torch.enable_grad():
        y = run_awake(account, account.tap, forward)
        leaves = list(account.tables.values()) if account.leaf is None else [account.leaf]
        if not isinstance(y, Tensor) or y.shape != (count,):
            shape = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise InputError(f"A read-out gives one number per example ({count}), not {shape}.")
        if not leaves or not y.requires_grad:
            raise UnsupportedModelError(
                f"{account.owner.family}: what is read out does not depend on the first layer's input."
            )
        grads = torch.autograd.grad(y.sum(), leaves, allow_unused=True)
        if account.by_layer:
            leaves, grads = _down_the_layers(account, leaves[0], grads[0])
    return _collected(account, y.detach(), leaves, grads, brief.mask)


def _down_the_layers(account: Account, last: Tensor, grad: Tensor) -> Any:
    """From `dy/de^L` to `dy/de^0`, each layer run again: no activations of another layer are kept."""
    above, tap = last, account.tap
    for layer, call in reversed(list(enumerate(account.layer_calls))):
        leaf = call.hidden.detach().clone().requires_grad_()
        alive = leaf.clone()
        alive._ctxmix_tag = Tag(role="stream", enters=layer)  # type: ignore[attr-defined]
        account.stand_in(layer)
        output = first_tensor(run_awake(account, tap, partial(call.again, alive)))
        if (
            output is None
            or output.shape != above.shape
            or not _same(output.detach(), above.detach())
        ):
            raise UnsupportedModelError(
                f"{account.owner.family}: something happens between layer {layer + 1} and the next one, so the "
                "ledger cannot be drawn up layer by layer: leave checkpoint=True out."
            )
        (grad,) = torch.autograd.grad(output, leaf, grad)
        account.rows[layer] = account.layout.standard(
            (grad * leaf.detach()).to(widened(grad.dtype))
        ).sum(dim=-1)
        account.close_products()
        above = leaf
        del output, alive  # their graph, before the next layer makes its own
    return [above], [grad]


def _same(a: Tensor, b: Tensor) -> bool:
    """Up to the rounding of another order of summation."""
    limit = 1e-3 if a.dtype in (torch.float16, torch.bfloat16) else 1e-5
    return bool((a - b).abs().max() <= limit * b.abs().max().clamp(min=1e-30))


def _collected(
    account: Account, y: Tensor, leaves: list[Any], grads: Any, mask: Tensor | None
) -> Drawn:
    books, layout, wide = account.tap.books, account.layout, widened(y.dtype)
    shared = [
        (torch.zeros_like(leaf) if g is None else g * leaf.detach()).to(wide)
        for g, leaf in zip(grads, leaves, strict=True)
    ]
    lines: dict[str, Tensor] = {}
    if account.start == "input":
        scores = layout.standard(shared[0]).sum(dim=-1)
    else:
        held = {n: part.sum(dim=-1) for n, part in zip(account.tables, shared, strict=True)}
        if WORDS not in held:
            raise UnsupportedModelError(
                f"{account.owner.family}: no table of word embeddings was read, so start='embeddings' has no start."
            )
        scores = held.pop(WORDS)
        lines = {name: line for name, line in held.items() if bool(line.any())}
    account.close_products()
    depth, batch, tokens = len(account.names), books.batch, scores.shape[1]
    nothing = scores.new_zeros(batch)
    empty = scores.new_zeros(batch, tokens)
    rows = [account.rows.get(layer, empty).to(wide) for layer in range(depth + 1)]
    above = [nothing]
    for level in range(depth + 1, 0, -1):
        above.append(above[-1] + books.levels.get(level, nothing))
    attended = [
        torch.stack([books.components.get((k, what), empty).to(wide) for what in COMPONENTS], dim=1)
        for k in range(depth)
    ]
    lines |= {name: line.to(wide) for name, line in books.lines.items() if name in books.credited}
    return Drawn(
        y.to(wide),
        scores,
        lines,
        torch.stack(rows, dim=1),
        torch.stack(above[:0:-1], dim=1),
        _real(account, mask, scores),
        torch.stack(attended, dim=1),
        books.products,
        batch,
    )


def _real(account: Account, mask: Tensor | None, scores: Tensor) -> Tensor:
    """Real tokens: the caller's mask, or (frames of speech) the columns anybody attends to."""
    if mask is not None and mask.shape == scores.shape:
        return mask.to(scores.device)
    products = account.tap.books.products
    if mask is None or not products:
        return torch.ones_like(scores, dtype=torch.bool)
    seen = standard_attention(products[0].product(), len(scores)).probabilities
    return seen.amax(dim=(1, 2)) > 0


def standard_context(item: Product, batch: int, tensor: Tensor | None = None) -> Tensor:
    """The context of a product, or something laid out like it, as `[B, T, H * E]`, without asking
    for the probabilities.
    """
    context = item.context if tensor is None else tensor
    if item.equation is not None:
        return standard_attention(item.product().with_context(context), batch).context
    if context.dim() == 3:
        context = context.unflatten(0, (batch, -1))
    return context.transpose(1, 2).flatten(2)


def _joined(singles: list[Drawn]) -> Drawn:
    def join(parts: list[Tensor]) -> Tensor:
        return torch.cat(parts)

    names = dict.fromkeys(name for one in singles for name in one.lines)
    lines = {
        name: join([one.lines.get(name, torch.zeros_like(one.value)) for one in singles])
        for name in names
    }
    products: list[Product] = []
    for parts in zip(*(one.products for one in singles), strict=True):
        first = parts[0]
        if first.equation is None and all(p.gradient is not None for p in parts):
            held = list(parts)
            products.append(
                Product(
                    first.layer,
                    join([p.values for p in parts]),
                    None,
                    lambda held=held: torch.cat([p.probabilities() for p in held]),  # type: ignore[misc]
                    join([p.context for p in parts]),
                    join([p.gradient for p in parts if p.gradient is not None]),
                )
            )
    return Drawn(
        join([one.value for one in singles]),
        join([one.scores for one in singles]),
        lines,
        join([one.rows for one in singles]),
        join([one.above for one in singles]),
        join([one.mask for one in singles]),
        join([one.attended for one in singles]),
        products,
        len(singles),
    )


def _audit(brief: Brief) -> tuple[str, set[str]]:
    """Run again and check every operation alone: which one does not hand on what it received? And
    which modules hide theirs?
    """
    account = replace(brief, by_layer=False).account()
    account.tap.audit = []
    with contextlib.suppress(RuntimeError, UnsupportedModelError, InputError):
        _draw(brief, account)
    found = list(dict.fromkeys(f"{name} in {place}" for name, place in account.tap.audit))
    if not found:
        return (
            "something reaches the output past the operations that were seen",
            account.compiled,
        )
    more = f" and {len(found) - 2} more" if len(found) > 2 else ""
    return (
        f"no rule keeps {' and '.join(found[:2])}{more} linear in the tokens",
        account.compiled,
    )
