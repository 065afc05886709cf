"""What one pooled row of a long document costs, in plain forward passes of the same model in the same run.

    python benchmarks/long.py                          # 8 layers, 384 wide, T = 512 and 2,048
    python benchmarks/long.py --tokens 512 2048 8192 --shape base

CPU seconds of one thread; memory is the peak above the plain forward's. Each figure comes from a process of its own
and says at which commit and load of the machine it was taken. Results go to benchmarks/results/long.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import ModernBertConfig, ModernBertModel

import ctxmix_hf as cm

RESULTS = Path(__file__).parent / "results" / "long.json"
SHAPES = {"small": (8, 384, 6), "base": (22, 768, 12)}
METHODS = (
    *("attention_rollout", "globenc", "alti"),
    *("ledger", "ledger_checkpoint", "value_zeroing_row"),
)
TARGETS = {  # forward passes that were aimed at, at 512, 2,048 and 8,192 tokens
    "attention_rollout": {512: 1.6, 2048: 2.0, 8192: 2.5},
    "globenc": {512: 1.8, 2048: 2.5, 8192: 3.0},
    "alti": {512: 2.5, 2048: 4.0, 8192: 6.0},
    "ledger": {512: 2.5, 2048: 3.0, 8192: 3.5},
    "ledger_checkpoint": {512: 4.0, 2048: 4.0, 8192: 4.0},
    "value_zeroing_row": {512: 3.0, 2048: 4.0},
}
MEMORY = {  # gigabytes above the plain forward that were aimed at
    "small": {
        "attention_rollout": {8192: 0.3, 16384: 3.0},
        "globenc": {8192: 0.5},
        "alti": {8192: 0.5},
        "ledger": {8192: 1.5, 16384: 3.0},
        "ledger_checkpoint": {8192: 0.5},
        "value_zeroing_row": {2048: 0.5},
    },
    "base": {
        "attention_rollout": {8192: 1.7},
        "globenc": {8192: 2.8},
        "alti": {8192: 2.8},
        "ledger": {8192: 8.0},
        "ledger_checkpoint": {8192: 1.2},
    },
}


def model_of(shape: str) -> Any:
    layers, width, heads = SHAPES[shape]
    torch.manual_seed(0)
    config = ModernBertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=width * 3 // 2,
        vocab_size=1000,
        max_position_embeddings=16384,
        pad_token_id=0,
        bos_token_id=1,
        cls_token_id=1,
        eos_token_id=2,
        sep_token_id=2,
        attn_implementation="sdpa",
    )
    return ModernBertModel(config).eval()


def question(model: Any, method: str) -> Callable[[torch.Tensor], Any]:
    """What is timed, as a function of the ids."""
    if method.startswith("ledger"):
        pooled = lambda out: out.last_hidden_state.mean(dim=(1, 2))
        again = method == "ledger_checkpoint"
        return lambda ids: cm.ledger(model, {"input_ids": ids}, readout=pooled, checkpoint=again)
    if method == "value_zeroing_row":
        row = lambda ids: cm.method("value_zeroing", targets=(ids.shape[1] // 2,))
        return lambda ids: model(input_ids=ids, output_context_mixing=[row(ids)])
    asked = {"output_context_mixing": [method], "targets": ["mean_pool"]}
    return lambda ids: model(input_ids=ids, **asked)


def child(shape: str, tokens: int, method: str, repeats: int) -> dict[str, Any]:
    """One process: plain forwards and rows in turn, the smallest of each."""
    torch.set_num_threads(1)
    model = model_of(shape)
    ids = torch.randint(5, 900, (1, tokens))
    plain, rows = [], []
    cm.instrument(model)
    asked = question(model, method)

    def run(what: Callable[[torch.Tensor], Any]) -> float:
        started = time.process_time()
        with torch.no_grad():
            what(ids)
        return time.process_time() - started

    def forward(ids: torch.Tensor) -> Any:
        return model(input_ids=ids)

    asked(ids[:, :64])
    plain += [run(forward), run(forward)]  # the second one's peak is the usual one
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(repeats):
        rows.append(run(asked))
        plain.append(run(forward))
    above = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    return {
        "plain_seconds": min(plain),
        "seconds": min(rows),
        "ratio": min(rows) / min(plain),
        "gigabytes_above_plain": above,
        "repeats": repeats,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--mmap",
        action="store_true",
        help="the C library gives every tensor back to the system at once",
    )
    parser.add_argument("--child", nargs=2, metavar=("TOKENS", "METHOD"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.shape, int(given.child[0]), given.child[1], given.repeats)))
        return
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        cwd=RESULTS.parent,
    ).stdout.strip()
    for tokens in given.tokens:
        for method in given.methods:
            command = [sys.executable, __file__, "--shape", given.shape]
            command += ["--repeats", str(given.repeats), "--child", str(tokens), method]
            environment = {
                **os.environ,
                **({"MALLOC_MMAP_THRESHOLD_": "1048576"} if given.mmap else {}),
            }
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode:
                print(f"{method} at {tokens}: failed\n{done.stderr[-2000:]}")
                continue
            found = json.loads(done.stdout.strip().splitlines()[-1])
            found["target"] = TARGETS.get(method, {}).get(tokens)
            found["target_gigabytes"] = MEMORY[given.shape].get(method, {}).get(tokens)
            found["commit"] = commit
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            results.setdefault(given.shape, {}).setdefault(str(tokens), {})[
                f"{method}_mmap" if given.mmap else method
            ] = found
            wanted = f" (target {found['target']})" if found["target"] else ""
            print(
                f"{given.shape} T={tokens} {method}: {found['ratio']:.2f} plain forwards{wanted}, "
                f"{found['gigabytes_above_plain']:.2f} GB above, plain {found['plain_seconds']:.2f} s",
                flush=True,
            )
            results["torch"], results["threads"] = torch.__version__, 1
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
