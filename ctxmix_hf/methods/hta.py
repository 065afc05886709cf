"""Hidden Token Attribution (Brunner et al. 2020, eq. 11) and HTA x input (Modarressi et al. 2022, eq. 18)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.errors import OptionError, UnsupportedMethodError
from ctxmix_hf.methods.base import METHODS, About, InputMethod, LayerMethod
from ctxmix_hf.methods.jacobian import Chain, chains, layer_jacobian_norms
from ctxmix_hf.methods.rest import HALF
from ctxmix_hf.records import LayerRecord, ModelRecord
from ctxmix_hf.workspace import computed_once

# K replicas of an input [B, T, D] -> outputs, one per layer asked for, each [K*B, T, D]
Forward = Callable[[Tensor], list[Tensor]]


def jacobian_norms(
    run: Forward,
    x: Tensor,
    mask: Tensor,
    *,
    times_input: bool,
    sketch: int,
    seed: int,
    budget: Budget,
    targets: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`||d out_i / d x_j||_F` (times x_j) by batched backward passes: `[outs, B, T, T]`, and its
    standard error if sketched. With `targets` the rows of others stay zero.

    Exact: one backward pass per output coordinate. Sketched: `sketch` random sign vectors u per target, since
    `E ||u^T J||^2 = ||J||_F^2` for independent signs.
    """
    batch, tokens, _ = x.shape
    probe = run(x)
    width, outs = probe[0].shape[-1], len(probe)
    rows = sketch or width
    probes = _signs(sketch, width, seed).to(x)
    total, square = (
        x.new_zeros(outs, batch, tokens, tokens, dtype=torch.float64) for _ in range(2)
    )
    each = 40 * batch * tokens * (width + tokens) * outs * x.element_size()
    chosen_rows = range(tokens) if targets is None else targets
    pairs = [(i, r) for i in chosen_rows for r in range(rows)]
    for chunk in budget.chunks(len(pairs), each, limit=max(1, 2048 // (batch * tokens))):
        places, chosen = zip(*pairs[chunk], strict=True)
        copies = len(places)
        leaf = x.repeat(copies, 1, 1).requires_grad_()
        with torch.enable_grad():
            outputs = run(leaf)
        replicas = torch.arange(copies * batch)
        for o, output in enumerate(outputs):
            seeds = torch.zeros_like(output)
            rows_of = torch.tensor(places).repeat_interleave(batch)
            seeds[replicas, rows_of] = (
                probes[list(chosen)].repeat_interleave(batch, dim=0).to(output.dtype)
            )
            if not output.requires_grad:
                raise UnsupportedMethodError(
                    "hta: this model runs some of its layers without gradients, so there is no Jacobian."
                )
            (grad,) = torch.autograd.grad(output, leaf, seeds, retain_graph=o + 1 < outs)
            grad = grad * leaf.detach() if times_input else grad
            lengths = (
                grad.double().square().sum(dim=-1).unflatten(0, (copies, batch))
            )  # [copies, B, T]
            index = torch.tensor(places)
            total[o].index_add_(1, index, lengths.transpose(0, 1))
            square[o].index_add_(1, index, lengths.square().transpose(0, 1))
    return _lengths(total, square, mask, sketch, x.dtype)


def _lengths(
    total: Tensor, square: Tensor, mask: Tensor, sketch: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Norms from the sums over probes of squared lengths and of their squares `[outs, B, T, T]`; sketched, with their
    standard error.
    """
    mean = total / sketch if sketch else total
    real = mask[:, :, None] & mask[:, None, :]
    norms = mean.sqrt() * real
    if not sketch:
        return norms.to(dtype), None
    spread = (square / sketch - mean.square()).clamp(min=0) / max(
        1, sketch - 1
    )  # variance of the mean of squares
    error = spread.sqrt() / (2 * mean.sqrt()).clamp(min=1e-30) * real
    return norms.to(dtype), error.to(dtype)


def _signs(sketch: int, width: int, seed: int) -> Tensor:
    """Random signs `[sketch, width]`; without a sketch every coordinate alone `[width, width]`."""
    if not sketch:
        return torch.eye(width)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (sketch, width), generator=generator) * 2.0 - 1.0


def chained_norms(
    layers: Sequence[LayerRecord],
    run: Callable[[Tensor], tuple[Tensor | None, list[Tensor]]],
    x: Tensor,
    mask: Tensor,
    budget: Budget,
    targets: Sequence[int] | None = None,
    last_only: bool = False,
    sketch: int = 0,
    seed: int = 0,
) -> tuple[Tensor, Tensor | None] | None:
    """`||d e^l_i / d x_j||_F` `[L, B, T, T]` by the chain rule through the layers' closed forms, and
    its standard error if sketched.

    All targets: T D directions are pushed up, every layer's map comes from one walk; sketched, T
    times `sketch` random ones (`E ||J v||^2 = ||J||_F^2` for signs v). Some of them (`targets`, exact
    only): their D coordinates are pulled down from each layer, or from the last alone. `run` gives
    e^0 (None where x is e^0) and e^1 ... e^L. None where a layer has no closed form, or where the
    product is not the model's own Jacobian, which is tried on random directions.
    """
    if not chains(layers):
        return None
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        first, outputs = run(leaf)
    if not all(output.requires_grad for output in outputs):
        return None
    start = _first_jacobian(first, leaf)  # [B, T, D_x, D]
    examples = [Chain(layers, b, budget) for b in range(len(x))]
    places = [row.nonzero().squeeze(-1) for row in mask]
    if not _is_own(examples, places, start, leaf, outputs, layers[0]):
        return None
    batch, tokens, entering = x.shape
    width, depth = outputs[0].shape[-1], len(outputs)
    total, square = (
        torch.zeros(depth, batch, tokens, tokens, dtype=torch.float64, device=x.device)
        for _ in range(2)
    )
    probes = _signs(sketch, entering, seed).to(x)
    for b, (chain, real) in enumerate(zip(examples, places, strict=True)):
        n = len(real)
        each = 16 * n * (width + chain.layers[0].heads * n) * x.element_size()
        if targets is None or sketch:
            for j, place in enumerate(real):
                for chunk in budget.chunks(len(probes), each, limit=max(64, WALK // (n * width))):
                    directions = start.new_zeros(n, chunk.stop - chunk.start, width)
                    directions[j] = probes[chunk] @ start[b, place]
                    for level, pushed in enumerate(chain.push(directions)):
                        lengths = pushed.square().sum(dim=-1).double()  # [n, K]
                        total[level, b, real, place] += lengths.sum(dim=-1)
                        square[level, b, real, place] += lengths.square().sum(dim=-1)
            continue
        for level in range(depth - 1 if last_only else 0, depth):
            for i in (i for i, place in enumerate(real.tolist()) if place in targets):
                for chunk in budget.chunks(width, 2 * each, limit=max(64, WALK // (n * width))):
                    directions = start.new_zeros(n, chunk.stop - chunk.start, width)
                    directions[i] = torch.eye(width, dtype=x.dtype, device=x.device)[chunk]
                    pulled = chain.pull(directions, level + 1) @ start[b, real].mT
                    total[level, b, real[i], real] += pulled.square().sum(dim=(1, 2)).double()
    return _lengths(total, square, mask, sketch, x.dtype)


WALK = (
    2**21
)  # numbers of one tensor on the way: large enough for full-size products, and it stays small


def _first_jacobian(first: Tensor | None, leaf: Tensor) -> Tensor:
    """d e^0_j / d x_j `[B, T, D_x, D]`: nothing mixes tokens there, so all of them are taken at once."""
    if first is None:
        return torch.eye(leaf.shape[-1], dtype=leaf.dtype, device=leaf.device).expand(
            *leaf.shape[:2], -1, -1
        )
    made = leaf.new_zeros(*leaf.shape, first.shape[-1])
    for d in range(first.shape[-1]):
        seed = torch.zeros_like(first)
        seed[..., d] = 1
        (made[..., d],) = torch.autograd.grad(first, leaf, seed, retain_graph=True)
    return made


def _is_own(
    examples: Sequence[Chain],
    places: Sequence[Tensor],
    start: Tensor,
    leaf: Tensor,
    outputs: list[Tensor],
    layer: LayerRecord,
) -> bool:
    """Is the chain's product with a random direction that of the model, in every layer?"""
    generator = torch.Generator().manual_seed(0)
    noise = lambda like: torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
    direction = noise(leaf)
    ours = [torch.zeros_like(output) for output in outputs]
    for b, (chain, real) in enumerate(zip(examples, places, strict=True)):
        direction[b, ~torch.isin(torch.arange(leaf.shape[1], device=real.device), real)] = 0
        entering = (direction[b, real, None] @ start[b, real]).to(chain.layers[0].x.dtype)
        for made, pushed in zip(ours, chain.push(entering), strict=True):
            made[b, real] = pushed[:, 0].to(made.dtype)
    limit = {torch.float64: 1e-6}.get(leaf.dtype, 1e-3)
    limit = HALF if getattr(layer.replay, "narrow", False) else limit
    for output, made in zip(outputs, ours, strict=True):
        length = made.square().mean(dim=(1, 2), keepdim=True).sqrt()
        probe = (made + length * noise(made)) * (made != 0)
        (grad,) = torch.autograd.grad(output, leaf, probe, retain_graph=True)
        gap = (grad * direction).double().sum(dim=(1, 2)) - (probe * made).double().sum(dim=(1, 2))
        size = (
            probe.double().square().sum(dim=(1, 2)).sqrt()
            * made.double().square().sum(dim=(1, 2)).sqrt()
        )
        if not bool((gap.abs() <= limit * size).all()):
            return False
    return True


@METHODS.register("hta_x_input")
@dataclass(frozen=True)
class HtaTimesInput(LayerMethod):
    """`||J_ij diag(e^(l-1)_j)||_F`, J the Jacobian of one layer; rows become shares before they are rolled out.

    Exact by default: in closed form where the layer's projections, norms and feed-forward are known, else by one
    backward pass per output coordinate. `sketch=k` estimates it with k random probes per target.
    `times_input=False` leaves the factor out.
    """

    times_input: bool = True
    sketch: int = 0
    closed_form: bool = True
    seed: int = 0

    rolls_out_shares = True
    differentiable = False
    about = About(
        "length of the layer's Jacobian times its input",
        "Modarressi et al. 2022",
        "||J_ij diag(x_j)||_F",
        "closed form O(T D^3 + T^2 H D^2); else T D backward passes",
        "replay",
        "the whole layer, to first order",
        "what is not local: a derivative, not a difference",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sketch("hta_x_input", self.sketch)

    def layer_map(self, layer: LayerRecord, budget: Budget) -> Tensor:
        if self.closed_form and not self.sketch:
            exact = layer_jacobian_norms(layer, self.times_input, budget)
            if exact is not None:
                return exact * (layer.mask[:, :, None] & layer.mask[:, None, :])
        return _sketched_norms(layer, self, budget)[0]

    def layer_notes(self, layer: LayerRecord, budget: Budget) -> dict[str, Tensor]:
        error = _sketched_norms(layer, self, budget)[1] if self.sketch else None
        return {} if error is None else {"standard_error": error}


@computed_once
def _sketched_norms(
    layer: LayerRecord, method: HtaTimesInput, budget: Budget
) -> tuple[Tensor, Tensor | None]:
    """(norms `[B, T, T]`, their standard error where they are estimates)."""
    norms, error = jacobian_norms(
        _layer_run(layer),
        layer.layer_input,
        layer.mask,
        times_input=method.times_input,
        sketch=method.sketch,
        seed=method.seed,
        budget=budget,
    )
    return norms[0], None if error is None else error[0]


def _layer_run(layer: LayerRecord) -> Forward:
    replay = layer.replay
    if replay is None:
        raise UnsupportedMethodError(
            "This record was loaded from a file: HTA needs the model, record again."
        )
    if not getattr(replay, "callable", True):
        raise UnsupportedMethodError(
            f"{layer.title} has no module of its own to run again: hta_x_input works there in closed form only, "
            "which this layer's attention or the options do not allow."
        )
    return lambda x: [replay.from_hidden(x)]


@METHODS.register("hta")
@dataclass(frozen=True)
class Hta(InputMethod):
    """`||d e^l_i / d x_j||_F` as shares of the row, x the sum of embeddings before their norm
    (Brunner et al. 2020, eq. 11).

    Each layer's map is an aggregate through all layers below it: it is never rolled out. `with_respect_to="e0"` starts
    after the embedding norm. `sketch=k` estimates it with k random probes per target and reports its standard error.

    Exact by default: by the chain rule where every layer has a closed form, else by one backward
    pass per output coordinate.
    """

    sketch: int = 0
    with_respect_to: str = "embedding_sum"
    row_shares: bool = True
    seed: int = 0

    choices = {"with_respect_to": ("embedding_sum", "e0")}
    rows_sum_to_one = True
    differentiable = False
    has_rows = True
    about = About(
        "length of the Jacobian from the embeddings to a hidden token",
        "Brunner et al. 2020",
        "||d e^l_i / d x_j||_F, row shares",
        "T D directions through the layers' closed forms; else T D backward passes (T k with sketch=k)",
        "model",
        "the whole model up to layer l, to first order",
        "what is not local: a derivative, not a difference",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sketch("hta", self.sketch)

    def input_maps(self, record: ModelRecord, budget: Budget) -> tuple[Tensor, dict[str, Any]]:
        norms, error, notes = self._norms(record, budget, None, False)
        maps = norms.transpose(0, 1)
        total = maps.sum(dim=-1, keepdim=True).clamp(min=1e-30)
        if error is not None:
            scale = total if self.row_shares else torch.ones_like(total)
            notes["standard_error"] = error.transpose(0, 1) / scale
        return (to_shares(maps, record.mask) if self.row_shares else maps), notes

    def input_rows(
        self, record: ModelRecord, budget: Budget, targets: Sequence[int], every_layer: bool
    ) -> tuple[Tensor, dict[str, Any]]:
        """The maps' rows of some targets `[B, L, N, T]` (`[B, 1, N, T]`: of the last layer alone),
        at N / T of the cost.
        """
        norms, error, notes = self._norms(record, budget, targets, not every_layer)
        of = lambda x: x.transpose(0, 1)[:, (None if every_layer else -1) :, list(targets)]
        rows = of(norms)
        if error is not None:
            total = rows.sum(dim=-1, keepdim=True).clamp(min=1e-30)
            notes["standard_error"] = of(error) / (total if self.row_shares else 1)
        return (to_shares(rows) if self.row_shares else rows), notes

    def _norms(
        self, record: ModelRecord, budget: Budget, targets: Sequence[int] | None, last_only: bool
    ) -> tuple[Tensor, Tensor | None, dict[str, Any]]:
        """`[L, B, T, T]`, its standard error, and notes."""
        replay = record.replay
        if replay is None:
            raise UnsupportedMethodError(
                "This record was loaded from a file: HTA needs the model, record again."
            )
        before_norm = (
            self.with_respect_to == "embedding_sum"
            and record.embedding_sum is not None
            and replay.starts_at_norm
        )
        x = record.embedding_sum if before_norm else record[0].layer_input
        assert x is not None
        x = x.detach().expand(len(record.mask), -1, -1).to(record[0].layer_input.dtype)
        at = -1 if before_norm else 0

        def run(leaf: Tensor) -> tuple[Tensor | None, list[Tensor]]:
            again = replay.run(leaf, at=at)
            return (again.first if before_norm else None), again.layers

        notes: dict[str, Any] = {"with_respect_to": "embedding_sum" if before_norm else "e0"}
        options: dict[str, Any] = {"sketch": self.sketch, "seed": self.seed, "targets": targets}
        found = chained_norms(
            record.layers, run, x, record.mask, budget, last_only=last_only, **options
        )
        if found is not None:
            return *found, notes
        norms, error = jacobian_norms(
            lambda leaf: run(leaf)[1],
            x,
            record.mask,
            times_input=False,
            budget=budget,
            **options,
        )
        return norms, error, notes


def _check_sketch(method: str, sketch: int) -> None:
    if not isinstance(sketch, int) or sketch < 0 or sketch == 1:
        raise OptionError(f"{method}: sketch={sketch!r} must be 0 (exact) or at least 2 probes.")
