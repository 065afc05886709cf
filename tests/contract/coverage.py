"""`python -m tests.contract.coverage` writes ctxmix_hf/architectures.json and prints the coverage table."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch
import transformers

from ctxmix_hf.errors import CtxmixError
from tests import zoo
from tests.contract.families import as_row, describe, record

TARGET = Path(__file__).parents[2] / "ctxmix_hf" / "architectures.json"


def main() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    rows = []
    for name in sorted(zoo.FAMILIES):
        try:
            rows.append(as_row(describe(name, record(name)[0])))
        except CtxmixError as error:
            print(f"{name:28} {error}", file=sys.stderr)
    exact = sum(row["level"] == 2 for row in rows)
    TARGET.write_text(
        json.dumps({"transformers": transformers.__version__, "families": rows}, indent=1) + "\n"
    )
    for row in rows:
        error = "-" if row["error"] is None else f"{row['error']:.0e}"
        print(
            f"{row['name']:28} {row['modality']:8} level {row['level']} {row['order']:10} "
            f"{row['norm']:18} {row['feed_forward']:8} {error}"
        )
    print(f"{exact} families exact, {len(rows)} recorded (transformers {transformers.__version__})")


if __name__ == "__main__":
    main()
