"""Fills the model cards (card_*.md) with the stored architecture and the measured accuracies."""

from __future__ import annotations

import json
from pathlib import Path

from corpus import HELDOUT_RULE
from evaluate import Measures

HERE = Path(__file__).resolve().parent
SETS = {
    "ana": "anaphor number",
    "darn": "subject-verb, relational noun between",
    "dna": "determiner-noun",
    "dnaa": "determiner-noun with adjective",
    "rpsv": "subject-verb, regular plural",
}
ARCHITECTURE = """\
## Architecture
BERT encoder: {num_hidden_layers} layers, {num_attention_heads} heads, hidden size {hidden_size},
feed-forward {intermediate_size}, {max_position_embeddings} positions, uncased WordPiece vocabulary of
{vocab_size} pieces. Weights are stored in float16; loading widens them to float32."""
LIMITS = """\
## Limits
For demonstration and testing only. The model learned from 60,000 template sentences and 67,000 film-review
phrases: its world is that small. Words outside it are cut into pieces the model hardly knows, and nothing
it predicts should decide anything about people. Film reviews and templates carry their authors' biases;
none were measured or removed."""


def write_cards(
    out: Path, agreement: Measures, linzen: Measures, sentiment: Measures, *, taught: bool
) -> None:
    """README.md into both model folders, with the accuracies of the stored weights."""
    labels = (
        "the mean of gold labels and a larger model's soft labels"
        if taught
        else "smoothed gold labels"
    )
    _fill("agreement", out, heldout_rule=HELDOUT_RULE, **_agreement_results(agreement, linzen))
    _fill("sentiment", out, labels=labels, **sentiment)


def _fill(name: str, out: Path, **values: object) -> None:
    """The architecture is read from the stored config, so that the card cannot disagree with the weights."""
    config = json.loads((out / name / "config.json").read_text(encoding="utf-8"))
    template = (HERE / f"card_{name}.md").read_text(encoding="utf-8")
    card = template.format(architecture=ARCHITECTURE.format(**config), limits=LIMITS, **values)
    (out / name / "README.md").write_text(card, encoding="utf-8")


def _agreement_results(measured: Measures, linzen: Measures) -> dict[str, object]:
    rows = [(f"{SETS[g]} (`{g}`)", share, n) for g, (share, n) in measured["per_group"].items()]
    rows.append(("all", measured["accuracy"], measured["pairs"]))
    return {
        "accuracy": measured["accuracy"],
        "left_out": measured["left_out"],
        "without_cue": measured.get("without_cue", "not measured"),
        "table": "\n".join(f"| {name} | {share:.3f} | {n} |" for name, share, n in rows),
        "linzen": _linzen_sentence(linzen) if linzen else "",
    }


def _linzen_sentence(linzen: Measures) -> str:
    several = ", ".join(
        f"{group}: {share:.3f} ({n})" for group, (share, n) in linzen["per_group"].items()
    )
    return (
        "On Wikipedia sentences, ordinary English outside this small world (Linzen et al. 2016; evaluation\n"
        f"only, never trained on): {linzen['accuracy']:.3f} on the {linzen['pairs']} whose two forms are "
        f"single pieces ({linzen['left_out']} left out).\nBy number of attractors: {several}."
    )
