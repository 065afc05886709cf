"""Flow and HTA against straightforward implementations of the same numbers, in one run: prints
ratios, writes results/exact.json.

    python benchmarks/exact.py [--only "hta T=16" ...]

Every part is written when it is done, into what was measured before.

- attention_flow: every pair of the last layer's first tokens, against scipy's maximum_flow (Dinic, in C++; capacities
  rounded to millionths, for it takes whole numbers only) and networkx's preflow_push on the same graph (a sample of
  pairs).
- hta_x_input, exact: against batched autograd Jacobians (vmap of vjp, chunks of 64). At T = 64 the
  baseline is timed on a sample of its chunks and scaled, because the whole takes the better part of
  an hour.
- hta, exact by the chain rule, and sketch=32: against one backward pass per output coordinate (timed on one target's
  and scaled).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertModel

import ctxmix_hf as cm
from ctxmix_hf.aggregation.flow import flow

RESULTS = Path(__file__).parent / "results" / "exact.json"
MINILM = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}


def seconds(run) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def flows(layers: int = 12, tokens: int = 40, sample: int = 6) -> dict[str, float]:
    import networkx as nx
    from networkx.algorithms.flow import preflow_push
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.full(tokens, 0.3), size=(layers, tokens))
    maps = torch.from_numpy(0.5 * weights + 0.5 * np.eye(tokens))[None]
    flow(maps[:, :2], row_shares=False)  # compile
    result: list[torch.Tensor] = []
    ours = seconds(lambda: result.append(flow(maps, row_shares=False))) / (layers * tokens * tokens)
    graph = nx.DiGraph()
    for layer in range(layers):
        for i in range(tokens):
            for j in range(tokens):
                graph.add_edge((layer + 1, i), (layer, j), capacity=float(maps[0, layer, i, j]))
    gaps, spent = [], 0.0
    for k in range(sample):
        layer, start, sink = layers - k % 3, int(rng.integers(tokens)), int(rng.integers(tokens))
        value: list[float] = []
        spent += seconds(
            lambda: value.append(
                nx.maximum_flow_value(graph, (layer, start), (0, sink), flow_func=preflow_push)
            )
        )
        gaps.append(abs(value[0] - float(result[0][0, layer - 1, start, sink])))
    number = lambda layer, i: layer * tokens + i
    ends = [(number(*a), number(*b)) for a, b in graph.edges]
    sizes = [round(1e6 * data["capacity"]) for *_, data in graph.edges(data=True)]
    count = (layers + 1) * tokens
    sparse = csr_array((np.array(sizes, dtype=np.int32), np.array(ends).T), shape=(count, count))
    rival = seconds(
        lambda: [
            maximum_flow(sparse, number(layers, k), number(0, tokens - 1 - k))
            for k in range(sample)
        ]
    )
    return {
        "scipy_us_per_pair": 1e6 * rival / sample,
        "scipy_ratio": rival / sample / ours,
        "us_per_pair": 1e6 * ours,
        "networkx_us_per_pair": 1e6 * spent / sample,
        "ratio": spent / sample / ours,
        "gap": max(gaps),
    }


def batched_jacobian(layer, x: torch.Tensor, chunks: int | None) -> int:
    """vmap of vjp over the rows of the identity, 64 at a time; gives the number of chunks there are."""
    _, pull = torch.func.vjp(lambda h: _first(layer(h)), x)
    rows = x.numel()
    identity = torch.eye(rows).view(rows, *x.shape)
    total = (rows + 63) // 64
    for k in range(total if chunks is None else min(chunks, total)):
        torch.func.vmap(pull)(identity[64 * k : 64 * (k + 1)])
    return total


def _first(output):
    return output[0] if isinstance(output, tuple) else output


def jacobians(tokens: int, sample: int | None) -> dict[str, float]:
    model = cm.instrument(BertModel(BertConfig(**MINILM, attn_implementation="eager")).eval())
    ids = torch.randint(1000, 20_000, (1, tokens))
    with torch.no_grad():
        record = model(input_ids=ids, output_decomposition=True).decomposition
        ours = seconds(lambda: model(input_ids=ids, output_context_mixing=["hta_x_input"]))
    layer, x = model.encoder.layer[0], record[0].layer_input
    counted: list[int] = []
    spent = seconds(lambda: counted.append(batched_jacobian(layer, x, sample)))
    theirs = spent * (1 if sample is None else counted[0] / sample) * len(record)
    return {
        "T": tokens,
        "seconds": ours,
        "autograd_seconds": theirs,
        "ratio": theirs / ours,
        "autograd_sampled": sample is not None,
    }


def backward_passes(record, target: int) -> None:
    """One target's Jacobians from every layer, 64 coordinates at a time."""
    x, width = record.embedding_sum, MINILM["hidden_size"]
    for first in range(0, width, 64):
        leaf = x.repeat(64, 1, 1).requires_grad_()
        for output in record.replay.run(leaf, at=-1).layers:
            seeds = torch.zeros_like(output)
            seeds[torch.arange(64), target, first + torch.arange(64)] = 1
            torch.autograd.grad(output, leaf, seeds, retain_graph=True)


def hidden_tokens(tokens: int, probes: int = 32) -> dict[str, float]:
    model = cm.instrument(BertModel(BertConfig(**MINILM, attn_implementation="eager")).eval())
    ids = torch.randint(1000, 20_000, (1, tokens))

    def asked(**options) -> float:
        method = cm.method("hta", **options)
        return seconds(lambda: model(input_ids=ids, output_context_mixing=[method]))

    with torch.no_grad():
        record = model(input_ids=ids, output_decomposition=True).decomposition
        exact, sketched = asked(), asked(sketch=probes)
    row = seconds(lambda: backward_passes(record, 1))
    return {
        "T": tokens,
        "exact_seconds": exact,
        "backward_seconds": row * tokens,
        "ratio": row * tokens / exact,
        "probes": probes,
        "sketch_seconds": sketched,
        "sketch_ratio": exact / sketched,
    }


PARTS = {
    "flow": flows,
    "hta_x_input T=16": lambda: jacobians(16, 12),
    "hta_x_input T=64": lambda: jacobians(64, 3),
    "hta T=16": lambda: hidden_tokens(16),
    "hta T=32": lambda: hidden_tokens(32),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(PARTS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    for name, part in PARTS.items():
        if arguments.only and name not in arguments.only:
            continue
        torch.manual_seed(0)
        found = {**part(), "commit": done.stdout.strip()}
        held = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
        kept = {key: value for key, value in held.items() if key in PARTS} | {name: found}
        RESULTS.write_text(
            json.dumps({key: kept[key] for key in PARTS if key in kept}, indent=1) + "\n"
        )
        print(name, found, flush=True)


if __name__ == "__main__":
    main()
