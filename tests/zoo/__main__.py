"""`python -m tests.zoo [name ...]`: one line per family, and how many keep their promises."""

from __future__ import annotations

import sys
import warnings

import torch
from transformers.utils import logging

from . import FAMILIES, MANDATORY, MISSING, REFUSED
from .check import Report, examine


def _line(kind: str, report: Report) -> str:
    return (
        f"{kind:8} {report.name:28} {report.shape!s:16} {report.attentions:14}"
        f" pad {report.padding:7.1e} {report.seconds:5.2f}s  {report.error or 'ok'}"
    )


def main(names: list[str]) -> int:
    """The number of families that break a promise."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    counts: dict[str, int] = {}
    broken = sorted(MANDATORY - set(FAMILIES) - set(MISSING))
    for name in names or FAMILIES:
        report = examine(name)
        kind = FAMILIES[name].modality if name in FAMILIES else "refused"
        print(_line(kind, report), flush=True)
        counts[kind] = counts.get(kind, 0) + 1
        broken += [name] if report.error else []
    for name in () if names else REFUSED:
        print(_line("refused", examine(name)), REFUSED[name][1], flush=True)
    print(f"families {counts}, refused {len(REFUSED)}, broken {broken}")
    print("missing", *(f"\n  {name}: {reason}" for name, reason in MISSING.items()))
    return len(broken)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 100))
