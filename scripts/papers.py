"""docs/papers.md, written from benchmarks/results/papers.json: `python scripts/papers.py`.

`tests/evaluation/test_papers.py` fails if the two differ.
"""

from __future__ import annotations

import json
from pathlib import Path

from ctxmix_hf.evaluation.papers import written

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "papers.json"
PAGE = ROOT / "docs" / "papers.md"


def text() -> str:
    """The whole page."""
    return written(json.loads(RESULTS.read_text(encoding="utf-8")))


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} is written.")
