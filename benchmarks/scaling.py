"""Throughput of `ctxmix precompute` against one sentence at a time, cost per token and method, and
what that projects to.

python benchmarks/scaling.py            # writes benchmarks/results/scaling.json

500 sentences of mixed length: SST-2's validation set where it is at hand, else made of words. Times
are processor seconds of this process (one thread), so that other work on the machine does not
count; wall clock is kept beside them.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import ctxmix_hf as cm
from ctxmix_hf.auto import model_path
from ctxmix_hf.precompute import Job, precompute

SST2 = Path(__file__).parents[2] / "shared" / "data" / "sst2" / "dev.tsv"
NORMS = ("norm", "norm_res", "norm_resln", "norm_enc")
CORPORA = {
    "SST-2 (67k phrases)": (67_349, 12),
    "MNLI (393k pairs)": (392_702, 40),
    "a million sentences": (1_000_000, 25),
}


def sentences(count: int) -> list[str]:
    if SST2.is_file():
        return [
            line.partition("\t")[0].strip()
            for line in SST2.read_text(encoding="utf-8").splitlines()[1 : count + 1]
        ]
    draw = random.Random(0)
    words = [f"word{i}" for i in range(500)]
    return [" ".join(draw.choices(words, k=draw.randint(2, 40))) for _ in range(count)]


def load_model() -> tuple[Any, Any]:
    """The bundled encoder, without its language-model head: for both sides of the comparison, as
    `precompute` loads it.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path("ctxmix/agreement"))
    return cm.AutoContextMixingModel.from_pretrained(
        "ctxmix/agreement", tokenizer=tokenizer
    ), tokenizer


def timed(work: Callable[[], Any]) -> dict[str, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}


def one_by_one(
    texts: list[str], methods: tuple[str, ...], box: Any, folder: Path
) -> dict[str, float]:
    """The same store, a sentence per call."""

    def work() -> None:
        with cm.MapStore.create(
            folder, model=box[0], tokenizer=box[1], methods=list(methods)
        ) as store:
            store.add([str(i) for i in range(len(texts))], texts, batch_size=1)

    return timed(work)


def batched(data: Path, methods: tuple[str, ...], folder: Path, budget: int) -> dict[str, float]:
    """`ctxmix precompute`, with planning and without the time the model takes to load."""
    loading = least([timed(load_model) for _ in range(2)])
    whole = timed(lambda: precompute(Job(str(data), str(folder), methods, token_budget=budget)))
    return {key: whole[key] - loading[key] for key in whole}


def least(times: list[dict[str, float]]) -> dict[str, float]:
    """The best of several runs: other work on the machine only ever adds."""
    return {key: min(item[key] for item in times) for key in times[0]}


def per_method(texts: list[str], box: Any, budget: int, names: list[str]) -> dict[str, Any]:
    """Processor microseconds per token for each method alone, plain forward included, in batches as
    precompute makes them.
    """
    model, tokenizer = box
    lengths = sorted((len(tokenizer(text)["input_ids"]), text) for text in texts)
    batches: list[list[str]] = [[]]
    for length, text in lengths:
        if batches[-1] and (len(batches[-1]) + 1) * length > budget:
            batches.append([])
        batches[-1].append(text)
    encoded = [tokenizer(batch, padding=True, return_tensors="pt") for batch in batches]
    tokens = sum(length for length, _ in lengths)

    def forward(wanted: list[str]) -> Callable[[], None]:
        extra: dict[str, Any] = {"output_context_mixing": wanted} if wanted else {}

        def work() -> None:
            with torch.no_grad():
                for batch in encoded:
                    model(**batch, **extra)

        return work

    def cost(wanted: list[str]) -> float:
        return 1e6 * min(timed(forward(wanted))["cpu_s"] for _ in range(3)) / tokens

    forward(["norm_enc"])()
    return {"plain forward": cost([]), **{name: cost([name]) for name in names}}


def bytes_per_sentence(texts: list[str], box: Any) -> float:
    """Of one method in float32: 4 L T^2."""
    return statistics.mean(
        4 * box[0].config.num_hidden_layers * len(box[1](text)["input_ids"]) ** 2 for text in texts
    )


def projected(cost: dict[str, float], layers: int) -> dict[str, Any]:
    """Core hours and gigabytes for whole corpora on this machine's kind of core, method by method."""
    found = {}
    for name, (count, length) in CORPORA.items():
        hours = {method: count * length * us / 1e6 / 3600 for method, us in cost.items()}
        found[name] = {
            "sentences": count,
            "tokens_each": length,
            "core_hours": hours,
            "gigabytes_per_method": 4e-9 * layers * length**2 * count,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "scaling.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    box, texts = load_model(), sentences(args.count)
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data.txt"
        data.write_text("\n".join(texts) + "\n", encoding="utf-8")
        cm.explain(box[0], texts[:4], list(NORMS), tokenizer=box[1])
        rounds = range(args.rounds)
        budgets = (256, args.budget, 4096)
        single, together = [], {str(b): [] for b in budgets}
        for i in rounds:  # in turn, so that a busy minute meets all of them
            single.append(one_by_one(texts, NORMS, box, Path(place) / f"one{i}"))
            for b in budgets:
                together[str(b)].append(batched(data, NORMS, Path(place) / f"b{b}-{i}", b))
    one, many = least(single), {b: least(times) for b, times in together.items()}
    cost = per_method(
        texts[:100],
        box,
        args.budget,
        ["attention_rollout", *NORMS, "globenc", "alti", "value_zeroing"],
    )
    best = many[str(args.budget)]
    made = {
        "sentences": len(texts),
        "methods": list(NORMS),
        "model": "ctxmix/agreement",
        "token_budget": args.budget,
        "one_by_one": one,
        "batched": many,
        "rounds": args.rounds,
        "sentences_per_cpu_second": {
            "one_by_one": len(texts) / one["cpu_s"],
            "batched": len(texts) / best["cpu_s"],
        },
        "speedup_cpu": one["cpu_s"] / best["cpu_s"],
        "speedup_wall": one["wall_s"] / best["wall_s"],
        "cpu_us_per_token": cost,
        "bytes_per_sentence_and_method": bytes_per_sentence(texts, box),
        "projection": projected(cost, box[0].config.num_hidden_layers),
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "threads": 1,
        },
    }
    Path(args.out).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(
        json.dumps(
            {
                key: made[key]
                for key in (
                    "speedup_cpu",
                    "speedup_wall",
                    "sentences_per_cpu_second",
                    "cpu_us_per_token",
                )
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
