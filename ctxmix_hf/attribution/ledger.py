"""The ledger's scores through the attribution interface, so that evaluations, the command line and the page see it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from ctxmix_hf.attribution.base import ATTRIBUTIONS, AbstractAttribution, Case
from ctxmix_hf.attribution.gradients import check_signed, finish_signed
from ctxmix_hf.methods.base import About, check_choice


@ATTRIBUTIONS.register("ledger")
@dataclass(frozen=True)
class LedgerScores(AbstractAttribution):
    """`<dy/de_j, e_j>` with attention, deviations of norms and activation ratios frozen; y is a
    logit (Modarressi et al. 2023).

    With the biases' lines the scores sum to y; `cm.ledger` gives both, and the contributions at
    every layer. `layer=l` counts them at e^l. `signed=False` gives absolute shares.
    """

    rule: str = "frozen"
    gates: str = "half"
    signed: bool = True
    shares: bool | None = None

    only_logit: ClassVar[bool] = True
    about = About(
        "contributions that add up to the logit",
        "Modarressi et al. 2023 (DecompX); Ali et al. 2022",
        "<dy/de_j, e_j>, attention frozen",
        "one forward and one backward pass",
        "model",
        "the whole model, given its attention",
        "why attention looks where it looks",
    )

    def __post_init__(self) -> None:
        check_choice("ledger", "rule", self.rule, ("frozen", "through"))
        check_choice("ledger", "gates", self.gates, ("half", "frozen"))
        check_signed("ledger", self.signed, self.shares)

    def _drawn(self, case: Case) -> Any:
        question = replace(case.question, of="logit")
        return case.record.replay.draw_up(
            question.of_examples, case.record.mask, rule=self.rule, gates=self.gates
        )

    def scores(self, case: Case) -> Tensor:
        drawn = self._drawn(case)
        case.notes["gap"] = float(drawn.gap.max())
        case.notes["lines"] = float(drawn.total.sum() - drawn.scores.sum())
        rows = drawn.rows[:, case.layer] if case.layer else drawn.scores
        return finish_signed(rows, self.signed, self.shares, case.record.mask)

    def owed(self, case: Case) -> Tensor:
        """The plain forward pass's logit, less the lines of the biases."""
        drawn = self._drawn(case)
        lines = drawn.total - drawn.scores.sum(dim=-1)
        if case.layer:
            lines = drawn.above[:, case.layer]
        return replace(case.question, of="logit").score(case.logits).to(lines) - lines
