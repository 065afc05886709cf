"""Makes the README's pictures from real runs of the model in the box: `python scripts/pictures.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import ctxmix_hf as cm

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SENTENCE = "The keys to the cabinet [MASK] on the table."
METHODS = ["attention", "attention_rollout", "globenc", "alti", "value_zeroing"]


def first_map(model) -> None:
    m = cm.explain(model, SENTENCE, "alti").words()
    rows = m.input[0]
    words = m.tokens[0].shown()
    target = words.index("[MASK]")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), gridspec_kw={"width_ratios": [1, 1.15]})
    shown = rows[-1] / rows[-1].sum(dim=-1, keepdim=True)
    image = left.imshow(shown, cmap="cividis", vmin=0)
    left.set_xticks(range(len(words)), words, rotation=55, ha="right")
    left.set_yticks(range(len(words)), words)
    left.set_title("ALTI, all six layers rolled out", fontsize=10)
    left.set_xlabel("source")
    left.set_ylabel("target")
    figure.colorbar(image, ax=left, fraction=0.046)
    table = []
    for name in METHODS:
        row = cm.explain(model, SENTENCE, name).words().input[0, -1, target]
        table.append((row / row.sum()).tolist())
    right.imshow(table, cmap="cividis", vmin=0, aspect="auto")
    for y, row in enumerate(table):
        best = row.index(max(row))
        right.text(best, y, f"{row[best]:.2f}", ha="center", va="center", fontsize=8, color="black")
    right.set_yticks(range(len(METHODS)), METHODS)
    right.set_xticks(range(len(words)), words, rotation=55, ha="right")
    right.set_title("what made [MASK]? five methods, the largest share written", fontsize=10)
    figure.tight_layout()
    figure.savefig(IMAGES / "first_map.png", dpi=110)


if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    first_map(cm.load_default()[0])
