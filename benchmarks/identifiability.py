"""How long one map of identifiability takes to learn with the paper's set-up (Brunner et al. 2020, appendix B.1): the
first of ten folds, the last layer of MiniLM on MRPC's pairs. Prints seconds of one core, writes
results/identifiability.json.

    python benchmarks/identifiability.py [--data ../shared/data] [--only "linear, cosine" ...]

The target is six minutes a map. Every map is written when it is learned, into what was measured before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch

from ctxmix_hf.evaluation.features import hidden_states
from ctxmix_hf.evaluation.fitting import FOUR, PAPER
from ctxmix_hf.evaluation.identifiability import RecoveryTask, counted, folds, learn
from ctxmix_hf.evaluation.papers.desk import Desk

sys.path.insert(0, str(Path(__file__).parent))
from testbed import load_head

RESULTS = Path(__file__).parent / "results" / "identifiability.json"
MODEL, PAIRS = "minilm-agreement-mlm", 408  # the paper's number of pairs
TARGET = 360.0  # seconds of one core


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=shared, help="mrpc/")
    names = [f"{kind}, {distance}" for kind, distance in FOUR]
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    corpus = str(arguments.data / "mrpc" / "msr_paraphrase_test.txt")
    context = Desk({"encoder": load_head(MODEL)}, {"mrpc": corpus}).context("mrpc", PAIRS)
    states = hidden_states(context.bench, context.ready, False)
    fold = next(folds(len(states), context.seed, PAPER.folds))
    tokens = sum(state.shape[1] for state in states)
    for kind, distance in FOUR:
        name = f"{kind}, {distance}"
        if name not in arguments.only:
            continue
        task = RecoveryTask(kind, distance, context.bench.depth)  # type: ignore[arg-type]
        start = time.process_time()
        model = learn(states, task, fold, context.seed, PAPER)
        seconds = time.process_time() - start
        pairs = counted(states, task, fold[2], model)
        found = {
            "seconds": round(seconds, 1),
            "target": TARGET,
            "learned_from": sum(states[i].shape[1] for i in fold[0]),
            "tokens": tokens,
            "identified": round(sum(r for r, _ in pairs) / sum(t for _, t in pairs), 4),
            "tested": sum(t for _, t in pairs),
            "model": MODEL,
            "fitting": str(PAPER),
            "commit": done.stdout.strip(),
        }
        held = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
        RESULTS.write_text(json.dumps({**held, name: found}, indent=1) + "\n", encoding="utf-8")
        print(name, found, flush=True)


if __name__ == "__main__":
    main()
