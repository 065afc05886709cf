"""Is the ledger right? Cue alignment, faithfulness, erasure, plausibility and sanity on the
bundled models and MiniLM's heads.

    python benchmarks/ledger_evidence.py                        # all four models, 600 sentences each
    python benchmarks/ledger_evidence.py --only box_agreement --sentences 100

Data: BLiMP sentences with known cues for the masked word, and SST-2's dev sentences. A word of an
    SST-2 sentence counts as marked by people where it is a phrase of its own in the training file,
    labelled like the sentence. The ledger and integrated gradients are signed, of the answer
    against its foil. Results: benchmarks/results/ledger_evidence.json, with the commit.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import ctxmix_hf as cm
from ctxmix_hf.evaluation import signed

sys.path.insert(0, str(Path(__file__).parent))
from testbed import load_head

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "ledger_evidence.json"
MAPS = ["attention_rollout", "globenc", "alti", "value_zeroing"]
METHODS = [*MAPS, "ledger", signed("integrated_gradients"), signed("grad_dot_input"), "random"]
SANITY = 30  # sentences: each is explained by every method at every stage


@dataclass(frozen=True)
class Subject:
    name: str
    load: Callable[[], tuple[Any, Any]]
    data: Any
    tables: tuple[str, ...]


def marked(folder: Path) -> list[dict[str, Any]]:
    """SST-2's dev sentences, with the words that people labelled like the sentence when they saw them alone."""
    with (folder / "train.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    alone = {row["text"].strip(): row["label"] for row in rows if len(row["text"].split()) == 1}
    with (folder / "dev.tsv").open(encoding="utf-8") as file:
        dev = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    made = []
    for row in dev:
        words = row["text"].split()
        gold = [i for i, word in enumerate(words) if alone.get(word) == row["label"]]
        made.append({"words": words, "label": int(row["label"]), "rationale_indices": gold})
    return made


def subjects(folder: Path) -> list[Subject]:
    cues, sst2 = str(folder / "blimp_number_agreement_cues.jsonl"), marked(folder / "sst2")
    agreement, sentiment = (
        ("cue_alignment", "faithfulness", "erasure"),
        ("faithfulness", "erasure", "plausibility"),
    )
    return [
        Subject("box_agreement", lambda: ("ctxmix/agreement", None), cues, agreement),
        Subject("minilm_agreement", lambda: load_head("minilm-agreement-mlm"), cues, agreement),
        Subject("box_sentiment", lambda: ("ctxmix/sentiment", None), sst2, sentiment),
        Subject("minilm_sst2", lambda: load_head("minilm-sst2"), sst2, sentiment),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = ROOT.parent / "shared" / "data"
    parser.add_argument("--data", type=Path, default=shared)
    parser.add_argument("--work", type=Path, default=Path("/tmp/ctxmix_ledger_evidence"))
    parser.add_argument("--only", nargs="*", help="models")
    parser.add_argument("--tables", nargs="*", help="evaluations")
    parser.add_argument("--sentences", type=int, default=600, help="0: sanity only")
    parser.add_argument("--sanity", type=int, default=SANITY, help="sentences; 0: none")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    for subject in subjects(asked.data):
        if asked.only and subject.name not in asked.only:
            continue
        model, tokenizer = subject.load()
        plan: list[tuple[str, Any, int]] = []
        if asked.sentences:
            chosen = [name for name in subject.tables if name in (asked.tables or subject.tables)]
            plan += [(name, METHODS, asked.sentences) for name in chosen]
        if asked.sanity:
            plan += [(name, None, asked.sanity) for name in ("randomisation", "completeness")]
        for name, methods, count in plan:
            start = time.process_time()
            table = cm.evaluate(
                name,
                model=model,
                tokenizer=tokenizer,
                data=subject.data,
                methods=methods,
                limit=count,
                resume=asked.work / subject.name,
                progress=False,
            )
            seconds = round(time.process_time() - start, 1)
            print(f"{subject.name} {name}: {seconds} s, n = {table.meta['sentences']}", flush=True)
            found = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
            row = {**table.to_dict(), "commit": commit, "cpu_seconds": seconds}
            found.setdefault(subject.name, {})[name] = row
            RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
