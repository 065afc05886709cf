"""The committed run of the papers' items: `ctxmix papers` with MiniLM's heads and the corpora at hand.

    python benchmarks/papers.py [--data ../shared/data] [--work /tmp/ctxmix_papers] [--only NAME ...]

Writes benchmarks/results/papers.json after every part and can be stopped and started again;
`python scripts/papers.py` writes docs/papers.md of it. On your own models: `ctxmix papers`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ctxmix_hf.evaluation.papers import reproduce

sys.path.insert(0, str(Path(__file__).parent))
from testbed import load_head

RESULTS = Path(__file__).parent / "results" / "papers.json"
SST2, AGREEMENT = "minilm-sst2", "minilm-agreement-mlm"


@dataclass(frozen=True)
class Part:
    """Some items on one model: None is the bundled one."""

    name: str
    papers: list[str]
    items: list[str]
    limit: int | None
    classifier: str | None = None
    masked_lm: str | None = None
    encoder: str | None = None


VARIANTS = ["Table 1", "Table 2", "Figure 3"]
HIDDEN = ["Figure 3a", "Figure 3b", "Figure 4a", "Figure 18b"]
HEADS = ["Section 3.1", "Figure 1a", "Figure 1b", "Figure 1c", "Figure 5a", "Figure 5b"]
CUES = ["Figure 2a", "Figure 2b", "Figure A.2", "Figure 3", "Table 2", "Table 3", "Table 3 varied"]
# what the issue asks first, the slow ones last; ctxmix papers takes whole corpora without a limit
PARTS = (
    Part("agreement cues", ["value_zeroing"], CUES, 1000),
    Part("agreement verbs", ["alti"], ["Table 2 (linzen)"], 500),
    Part("minilm heads", ["brunner"], HEADS, 408, encoder=AGREEMENT),
    Part("minilm layers", ["abnar"], ["Table 3"], 100, SST2),
    Part("agreement layers", ["abnar"], ["Table 1", "Table 2"], 500),
    Part("minilm identified", ["brunner"], ["Figure 2a"], 408, encoder=AGREEMENT),
    Part("minilm spaces", ["alti"], ["Figure 3"], 500, SST2),
    Part("minilm single layers", ["globenc"], ["Figure 4"], 60, SST2),
    Part("minilm consistency", ["alti"], ["Figure 7"], 200, SST2),
    Part("minilm variants", ["globenc"], [*VARIANTS, "Figure 5"], None, SST2),
    Part("minilm sentiment", ["alti"], ["Table 2 (sst2)", "Figure 6"], None, SST2),
    Part("sentiment variants", ["globenc"], VARIANTS, None),
    Part("minilm cues", ["value_zeroing"], CUES, 200, masked_lm=AGREEMENT),
    Part("minilm verbs", ["alti"], ["Table 2 (linzen)"], 300, masked_lm=AGREEMENT),
    Part("agreement distances", ["value_zeroing"], ["Figure A.1"], 200),
    Part("minilm hidden", ["brunner"], ["Figure 2b", "Figure 11"], 408, encoder=AGREEMENT),
    Part("agreement mixing", ["brunner"], HIDDEN, 20),
)


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries by paper, item, model and corpus; what was made now takes the old one's place."""
    known = {(e["paper"], e["item"], e["model"], e["data"]): e for e in [*old, *new]}
    return [known[key] for key in sorted(known)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=shared, help="sst2/, blimp/, linzen/, mrpc/")
    parser.add_argument("--work", type=Path, default=Path("/tmp/ctxmix_papers"))
    parser.add_argument("--only", nargs="*", help=", ".join(part.name for part in PARTS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = {
        "sst2": str(arguments.data / "sst2" / "dev.tsv"),
        "blimp": str(arguments.data / "blimp"),
        "linzen": str(arguments.data / "linzen" / "subj_agr_filtered.text"),
        "mrpc": str(arguments.data / "mrpc" / "msr_paraphrase_test.txt"),
    }
    heads: dict[str, Any] = {}
    for part in PARTS:
        if arguments.only and part.name not in arguments.only:
            continue
        models = {}
        for role in ("classifier", "masked_lm", "encoder"):
            name = getattr(part, role)
            if name is not None:
                heads[name] = heads.get(name) or load_head(name)
                models[role] = heads[name]
        report = reproduce(
            arguments.work,
            part.papers,
            items=part.items,
            limit=part.limit,
            data=data,
            **models,
        )
        made = list(report.entries)
        held = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else []
        RESULTS.write_text(
            json.dumps(merged(held if isinstance(held, list) else [], made), indent=1) + "\n",
            encoding="utf-8",
        )
        for entry in made:
            print(part.name, entry["item"], f"n = {entry['n']},", entry["seconds"], "s", flush=True)


if __name__ == "__main__":
    main()
