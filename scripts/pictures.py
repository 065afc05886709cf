"""Makes the pictures of README and docs from real runs of the model in the box: `python scripts/pictures.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

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


def all_methods(model, tokenizer) -> None:
    """The sentence under every registered method: scores for the answer on top, below them the masked token's row, from the input."""
    are, wrong = tokenizer.convert_tokens_to_ids(["are", "is"])
    scores = {
        info.name: cm.attribute(model, SENTENCE, info.name, class_index=are, foil=wrong).words() for info in cm.list_methods("attribution")
    }
    infos = [info for kind in ("input", "layer") for info in cm.list_methods(kind)]
    rows = {info.name: cm.explain(model, SENTENCE, info.name).words().attribution("[MASK]") for info in infos}
    one = cm.explain(model, SENTENCE, "attention")
    flat = replace(one, layers=torch.ones_like(one.layers) / one.size).words().attribution("[MASK]")
    title = "above the line: why 'are' and not 'is'; below: what made [MASK], from the input"
    heatmap({**scores, "(all pieces alike)": flat, **rows}, IMAGES / "all_methods.png", title, len(scores))


def one_layer(model) -> None:
    """The masked token's row inside the fifth layer, for methods that have layers of their own."""
    infos = cm.list_methods("layer")
    rows = {info.name: cm.explain(model, SENTENCE, info.name).words().attribution("[MASK]", layer=4, scope="layer") for info in infos}
    heatmap(rows, IMAGES / "one_layer.png", "what [MASK] took, inside the fifth layer")


def heatmap(rows, path: Path, title: str, line: int = 0) -> None:
    """One line per method, as shares of the line; the two largest are written."""
    words = list(rows.values())[-1].tokens[0].shown()
    values = [row.scores[0].abs() / row.scores[0].abs().sum() for row in rows.values()]
    figure, axes = plt.subplots(figsize=(9, 0.27 * len(rows) + 1.5))
    image = axes.imshow([v.tolist() for v in values], cmap="Blues", vmin=0, vmax=0.5, aspect="auto")
    for y, row in enumerate(values):
        for x in row.topk(2).indices.tolist():
            axes.text(x, y, f"{row[x]:.2f}", ha="center", va="center", fontsize=7, color="white" if row[x] > 0.3 else "black")
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8)
    axes.set_xticks(range(len(words)), words, rotation=40, ha="right", fontsize=9)
    if line:
        axes.axhline(line - 0.5, color="black", linewidth=1.2)
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02).ax.tick_params(labelsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    box, box_tokenizer = cm.load_default()
    first_map(box)
    all_methods(box, box_tokenizer)
    one_layer(box)
