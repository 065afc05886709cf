"""The bundled models: the only list of them. Nothing is loaded here, so the command line can start with it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path


@dataclass(frozen=True)
class BundledModel:
    """One of them; `head` is a name of `heads.HEADS`, `example` what is explained where nobody gave a text."""

    name: str
    head: str
    example: str = ""

    @property
    def path(self) -> str:
        """Its folder inside the package."""
        folder = self.name.removeprefix("ctxmix/")
        return str(Path(str(resources.files("ctxmix_hf"))) / "models" / folder)


AGREEMENT = BundledModel(
    "ctxmix/agreement", "MaskedLM", "The keys to the cabinet [MASK] on the table."
)
SENTIMENT = BundledModel(
    "ctxmix/sentiment", "SequenceClassification", "A warm, funny film that is never dull."
)
DIGITS = BundledModel("ctxmix/digits", "ImageClassification")
BUNDLED = {model.name: model for model in (AGREEMENT, SENTIMENT, DIGITS)}
