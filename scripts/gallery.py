"""The papers' pictures of single sentences, for any model: `python scripts/gallery.py --out gallery/`.

Abnar & Zuidema 2020, figures 1 to 3 (`views.png`); Brunner et al. 2020, figure 6 (`null.png`: raw, effective and null
attention of one head); Modarressi et al. 2022, figures 1 and A.1 to A.6, Ferrando et al. 2022, tables 1 and 3 to 9, and
Mohebbi et al. 2023, figures 4 and A.5 to A.18 (`<method>_layers.png` and `<method>_grid.png`: one token's row, and the
whole map, of every layer).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import ctxmix_hf as cm

TEXT = "The pictures of some hat [MASK] scaring Marcus."  # Mohebbi et al.'s
METHODS = ("attention_rollout", "norm_res", "norm_resln", "globenc", "alti", "value_zeroing")


def gallery(
    out: Path, model: str | None = None, text: str = TEXT, target: str = "[MASK]", head: int = 0
) -> list[Path]:
    """Draws into `out`, and says what it wrote."""
    out.mkdir(parents=True, exist_ok=True)
    opened, _ = cm.load_default() if model is None else cm.load(model)
    attention = cm.explain(opened, text, cm.method("attention", per_head=True))
    figures = {"views": attention.plot_views(target, residual=0.5)}
    parts = {"raw": attention}
    for part in ("effective", "null"):
        asked = cm.method("effective_attention", part=part, per_head=True)
        parts[part] = cm.explain(opened, text, asked)
    one_head = {
        name: replace(m, layers=m.heads[:, :, head], heads=None, aggregation="none")
        for name, m in parts.items()
    }
    figures["null"] = cm.plot_methods(one_head)
    for name, m in cm.explain(opened, text, list(METHODS)).items():
        figures[f"{name}_layers"] = m.plot_layers(target)
        figures[f"{name}_grid"] = m.plot_grid(scope="layer")
    made = []
    for name, figure in figures.items():
        made.append(out / f"{name}.png")
        figure.savefig(made[-1])
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gallery"))
    parser.add_argument("--model", help="Hub id or folder; the bundled one without it")
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--target", default="[MASK]", help="whose row is drawn over layers")
    parser.add_argument("--head", type=int, default=0, help="of raw, effective and null attention")
    print(*gallery(**vars(parser.parse_args())), sep="\n")
