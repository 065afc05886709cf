"""DeepLift with the rescale rule on registered activation modules (Shrikumar et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ctxmix_hf.attribution.base import ATTRIBUTIONS, AbstractAttribution, Case
from ctxmix_hf.attribution.gradients import check_signed, finish_signed
from ctxmix_hf.attribution.integrated_gradients import baseline_hidden, change_from
from ctxmix_hf.methods.base import About, check_choice

# What the usual library rewrites. GELU, functional softmax and norms keep their plain gradient.
RESCALED = (nn.ReLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Softplus)
SMALL = 1e-10


class _Rescale(torch.autograd.Function):
    """The activation's own output forward; (change of output / change of input) instead of its slope backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, multiplier: Tensor) -> Tensor:
        ctx.save_for_backward(multiplier)
        return y.detach().clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (multiplier,) = ctx.saved_tensors
        return grads[0] * multiplier, None, None


@ATTRIBUTIONS.register("deeplift")
@dataclass(frozen=True)
class DeepLift(AbstractAttribution):
    """`m_j . (e_j - b_j)`, m the gradient with activations' slopes replaced by their average slope from the baseline.

    Only activation modules of known types are rewritten (ReLU, Tanh, Sigmoid, ...), as in the usual library: on GELU
    encoders without a Tanh pooler it equals gradient times (input - baseline). The default baseline
    is zero. `signed=False` gives absolute shares, as the papers compare them.
    """

    baseline: str | Tensor = "zero"
    signed: bool = True
    shares: bool | None = None  # of the absolute scores; None: where they are not signed
    reduce: str = "sum"  # or "l2": the length of the elementwise product, which has no sign

    about = About(
        "gradient times change from a baseline, rescaled activations",
        "Shrikumar et al. 2017",
        "m_j . (e_j - b_j)",
        "two forward passes, one backward",
        "model",
        "the whole model, activations rescaled",
        "GELU, attention and norms stay to first order",
    )

    def __post_init__(self) -> None:
        if isinstance(self.baseline, str):
            check_choice("deeplift", "baseline", self.baseline, ("zero", "mask", "auto"))
        check_choice("deeplift", "reduce", self.reduce, ("sum", "l2"))
        check_signed("deeplift", self.signed and self.reduce == "sum", self.shares)

    def scores(self, case: Case) -> Tensor:
        start = baseline_hidden(case, self.baseline)
        seen: list[tuple[Tensor, Tensor]] = []

        def remember(module: nn.Module, x: Tensor, y: Tensor) -> Tensor | None:
            if isinstance(module, RESCALED):
                seen.append((x.detach(), y.detach()))
            return None

        with torch.no_grad():
            case.score_from(start, on_module=remember)
        pairs = iter(seen)

        def rescale(module: nn.Module, x: Tensor, y: Tensor) -> Tensor | None:
            if not isinstance(module, RESCALED):
                return None
            old_x, old_y = next(pairs)
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                (slope,) = torch.autograd.grad(module.forward(leaf).sum(), leaf)
            moved = x.detach() - old_x
            multiplier = torch.where(
                moved.abs() < SMALL,
                slope,
                (y.detach() - old_y) / torch.where(moved == 0, 1.0, moved),
            )
            return _Rescale.apply(x, y, multiplier)  # type: ignore[no-any-return,no-untyped-call]

        product = case.gradient(case.hidden, on_module=rescale) * (case.hidden - start)
        parts = product.sum(dim=-1) if self.reduce == "sum" else product.norm(dim=-1)
        return finish_signed(
            parts, self.signed and self.reduce == "sum", self.shares, case.record.mask
        )

    def owed(self, case: Case) -> Tensor | None:
        """Shrikumar et al.'s summation to delta, which products of activations (attention, norms) break."""
        if self.reduce != "sum":
            return None
        return change_from(case, baseline_hidden(case, self.baseline))
