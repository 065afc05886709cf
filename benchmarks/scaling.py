"""Throughput of `ctxmix precompute` against one sentence at a time, cost per token and method, and
what that projects to.

python benchmarks/scaling.py            # writes benchmarks/results/scaling.json
python benchmarks/scaling.py --throughput   # only its part "throughput": what precompute adds to its model calls, what
                                        # those cost in batches, a second worker, Value Zeroing on a narrow model

500 sentences of mixed length: SST-2's validation set where it is at hand, else made of words. Times
are processor seconds of this process (one thread), so that other work on the machine does not
count; wall clock is kept beside them.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

import ctxmix_hf as cm
from ctxmix_hf.auto import model_path
from ctxmix_hf.precompute import Job, precompute
from ctxmix_hf.precompute.plan import Planner, longest_of
from ctxmix_hf.precompute.rows import read_rows

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


def in_turn(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Processor seconds of each, the best of several rounds in turn: other work on the machine only ever adds."""
    for run in runs.values():
        run()
    times = [{name: timed(run)["cpu_s"] for name, run in runs.items()} for _ in range(rounds)]
    return {name: min(one[name] for one in times) for name in runs}


def of_precompute(box: Any, data: Path, place: Path, budget: int, rounds: int) -> dict[str, float]:
    """The whole of `precompute`, without loading, its model calls alone, and plain passes of the same batches."""
    model, tokenizer = box
    job = Job(str(data), str(place / "unused"), NORMS, token_budget=budget)
    tasks = Planner(job, tokenizer, longest_of(model, tokenizer, None)).tasks(read_rows(job))
    batches = [
        tokenizer([text for _, text, _ in batch], padding=True, return_tensors="pt")
        for task in tasks
        for batch in task
    ]
    count = iter(range(1000))

    def whole() -> None:
        precompute(replace(job, out=str(place / f"whole{next(count)}")))

    def calls(**asked: Any) -> None:
        with torch.no_grad():
            for batch in batches:
                model(**batch, **asked)

    best = in_turn(
        {
            "loading": load_model,
            "whole": whole,
            "calls": lambda: calls(output_context_mixing=list(NORMS)),
            "plain": calls,
        },
        rounds,
    )
    spent = best["whole"] - best["loading"]
    return {
        **best,
        "whole_over_calls": spent / best["calls"],
        "whole_over_plain": spent / best["plain"],
        "calls_over_plain": best["calls"] / best["plain"],
    }


def of_workers(data: Path, place: Path, rounds: int) -> dict[str, float]:
    """Seconds on the clock of the command with one worker and with two, start and imports included."""

    def command(workers: int, out: Path) -> float:
        options = ["--dataset", str(data), "--out", str(out), "--methods", ",".join(NORMS)]
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "ctxmix_hf", "precompute", *options, "--workers", str(workers)],
            check=True,
            capture_output=True,
        )
        return time.perf_counter() - start

    times = [
        {n: command(n, place / f"workers{n}-{i}") for n in (1, 2)} for i in range(rounds)
    ]  # in turn
    best = {n: min(one[n] for one in times) for n in (1, 2)}
    return {"one_s": best[1], "two_s": best[2], "two_over_one": best[2] / best[1]}


def of_calls(rounds: int) -> dict[str, dict[str, float]]:
    """Model calls at MiniLM's size (random weights) over plain sdpa passes of the same batch."""
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    plain = transformers.BertModel(config).eval()
    model = cm.instrument(copy.deepcopy(plain))
    found = {}
    for batch, tokens in ((1, 32), (16, 32), (16, 128)):
        ids = torch.randint(1000, 20_000, (batch, tokens))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

        def call(*names: str, inputs: Any = inputs) -> Callable[[], Any]:
            def run() -> None:
                with torch.no_grad():
                    out = model(**inputs, output_context_mixing=list(names))
                for name, made in out.context_mixing.items():
                    made.input if name in ("attention_rollout", "globenc") else made.layers  # noqa: B018

            return run

        def pass_(inputs: Any = inputs) -> None:
            with torch.no_grad():
                plain(**inputs)

        best = in_turn(
            {
                "plain": pass_,
                "attention_rollout": call("attention_rollout"),
                "globenc": call("globenc"),
                "norm family (five in one call)": call(*NORMS, "globenc"),
            },
            rounds * (5 if batch == 1 else 2),
        )
        found[f"{batch} x {tokens}"] = {
            name: spent / best["plain"] for name, spent in best.items() if name != "plain"
        }
    return found


def of_value_zeroing(box: Any, rounds: int, tokens: int = 27) -> dict[str, float]:
    """Passes of the bundled model, 128 wide, for one sentence's Value Zeroing; T / 3 is what wide models take."""
    model = box[0]
    ids = torch.randint(1000, 7000, (1, tokens))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def run(**asked: Any) -> None:
        with torch.no_grad():
            model(**inputs, **asked)

    best = in_turn(
        {"plain": run, "maps": lambda: run(output_context_mixing=["value_zeroing"])}, 5 * rounds
    )
    return {"tokens": tokens, "passes": best["maps"] / best["plain"]}


def throughput(box: Any, texts: list[str], budget: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        data = place / "data.txt"
        data.write_text("\n".join(texts) + "\n", encoding="utf-8")
        return {
            "commit": subprocess.run(
                ["git", "rev-parse", "--short", "HEAD"],
                cwd=Path(__file__).parent,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip(),
            "sentences": len(texts),
            "model_calls": of_calls(rounds),
            "value_zeroing_narrow": of_value_zeroing(box, rounds),
            "precompute": of_precompute(box, data, place, budget, rounds),
            "workers": of_workers(data, place, max(1, rounds // 2)),
        }


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
    parser.add_argument("--throughput", action="store_true", help="measure that part only")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "scaling.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    box, texts = load_model(), sentences(args.count)
    part = throughput(box, texts, args.budget, args.rounds)
    if args.throughput:
        kept = json.loads(Path(args.out).read_text(encoding="utf-8"))
        kept["throughput"] = part
        Path(args.out).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(part, indent=1))
        return
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
        "throughput": part,
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
