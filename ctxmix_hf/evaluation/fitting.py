"""How the maps of identifiability are learned: every knob of Brunner et al. 2020, appendix B.1."""

from __future__ import annotations

from dataclasses import dataclass

from ctxmix_hf.errors import OptionError

FOUR = (("linear", "cosine"), ("linear", "l2"), ("mlp", "cosine"), ("mlp", "l2"))


@dataclass(frozen=True)
class Fitting:
    """How maps are learned. The default is quick; `PAPER` is Brunner et al. 2020, appendix B.1.

    folds     every sentence is tested once, by the fold that did not see it
    bias      of the maps
    hidden    width of the MLP's hidden layer; None: that of the model
    rate      Adam's learning rate
    batch     tokens per step
    epochs    at most
    patience  epochs without a better validation loss before it stops
    start     "ridge" (the linear map starts at the least-squares solution) or "glorot"
    fraction  of the training sentences that are used (Figure 7's question)
    maps      those that are learned where the paper shows four
    """

    folds: int = 3
    bias: bool = True
    hidden: int | None = None
    rate: float = 1e-3
    batch: int = 128
    epochs: int = 60
    patience: int = 4
    start: str = "ridge"
    fraction: float = 1.0
    maps: tuple[tuple[str, str], ...] = (("linear", "cosine"),)

    def __post_init__(self) -> None:
        if self.start not in ("ridge", "glorot"):
            raise OptionError(f"start must be 'ridge' or 'glorot', got {self.start!r}.")
        if self.folds < 2:
            raise OptionError(f"folds must be at least 2, got {self.folds}.")
        if not 0 < self.fraction <= 1:
            raise OptionError(f"fraction must be above 0 and at most 1, got {self.fraction}.")
        wrong = [pair for pair in self.maps if pair not in FOUR]
        if wrong:
            raise OptionError(f"maps must be of {FOUR}, got {wrong[0]!r}.")

    def __str__(self) -> str:
        """In words, as results tell it."""
        start = "least squares (an MLP: random)" if self.start == "ridge" else "Glorot's numbers"
        width = "the model's width" if self.hidden is None else f"{self.hidden} wide"
        part = "" if self.fraction == 1 else f", {100 * self.fraction:.0f} % of the data"
        return (
            f"{self.folds} folds by sentence, {'a bias' if self.bias else 'no bias'}, "
            f"Adam at {self.rate:g} from {start}, {self.batch} tokens a step, "
            f"at most {self.epochs} epochs and {self.patience} without a gain, MLP {width}{part}"
        )


QUICK = Fitting()
PAPER = Fitting(10, False, 1000, 1e-4, 256, 2000, 20, "glorot", maps=FOUR)
