"""What each method costs, as a ratio to one plain eager forward pass with attentions of the same model in the same run.

    python benchmarks/cost.py                    # bert-base size, one thread, B = 1, T = 32, 128, 512
    python benchmarks/cost.py --size minilm --threads 2 --batch 8 --tokens 32 128

Random weights: the arithmetic does not depend on them. Prints a table, writes benchmarks/results/cost-*.json and, with
matplotlib, a picture of cost against T. `python benchmarks/cost.py --straight` adds straightforward implementations.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import yaml
from transformers import BertConfig, BertForSequenceClassification, BertModel

import ctxmix_hf as cm

SIZES = {
    "bert-base": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    "minilm": {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
}
GROUPS = {
    "output_decomposition": None,
    "norm family (five in one call)": ["norm", "norm_res", "norm_resln", "norm_enc", "globenc"],
    "alti": ["alti"],
    "effective_attention": ["effective_attention"],
    "value_zeroing": ["value_zeroing"],
}
TARGETS = {  # ratios asked for: T -> at most
    "output_decomposition": dict.fromkeys((32, 128, 512), 1.3),
    "norm family (five in one call)": {32: 1.5, 128: 1.6, 512: 2.0},
    "alti": {32: 1.5, 128: 2.0, 512: 6.0},
    "effective_attention": {32: 1.5, 128: 2.0},
    "value_zeroing": {t: 0.40 * t for t in (32, 128, 512)},
}
AGGREGATED = ("globenc", "alti", "value_zeroing")
RESULTS = Path(__file__).parent / "results"


def clock(threads: int) -> Callable[[], float]:
    """CPU seconds where one thread works: the machine is shared, and waiting for it is not our cost."""
    return time.process_time if threads == 1 else time.perf_counter


def timed(run: Callable[[], object], repeats: int, now: Callable[[], float]) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = now()
        run()
        times.append(now() - start)
    return statistics.median(times)


def ratio_of(
    run: Callable[[], object], plain: Callable[[], object], repeats: int, now: Callable[[], float]
) -> tuple[float, float]:
    """(median of run / plain measured in turns, median seconds of the plain run)."""
    if repeats > 1:
        run()
    plain()
    ratios, base = [], []
    for _ in range(repeats):
        start = now()
        plain()
        middle = now()
        run()
        end = now()
        ratios.append((end - middle) / (middle - start))
        base.append(middle - start)
    return statistics.median(ratios), statistics.median(base)


def peak_extra(run: Callable[[], object]) -> float:
    """MB of tensors alive at the worst moment beyond those before, by torch's own allocation events."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    total = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            total += event.nbytes()
            peak = max(peak, total)
    return peak / 2**20


def straight_value_zeroing(model: BertModel, inputs: dict[str, torch.Tensor]) -> None:
    """As the paper's code does: every layer again for every token, by a hook on the value
    projection (one layer timed).
    """
    hidden = model(**inputs, output_hidden_states=True).hidden_states
    layer = model.encoder.layer[0]
    for j in range(inputs["input_ids"].shape[1]):

        def zero(_m: object, _a: object, out: torch.Tensor, j: int = j) -> torch.Tensor:
            out = out.clone()
            out[:, j] = 0
            return out

        handle = layer.attention.self.value.register_forward_hook(zero)
        layer(hidden[0])
        handle.remove()


def straight_alti(model: BertModel, inputs: dict[str, torch.Tensor]) -> None:
    """All transformed vectors `[H, T, T, D]` of one layer, then distances, as the paper's code does."""
    out = model(**inputs, output_hidden_states=True, output_attentions=True)
    block = model.encoder.layer[0].attention
    heads = model.config.num_attention_heads
    values = block.self.value(out.hidden_states[0]).unflatten(-1, (heads, -1)).transpose(1, 2)
    dense = block.output.dense.weight.view(model.config.hidden_size, heads, -1)
    transformed = torch.einsum("bhse,dhe->bhsd", values, dense)
    weighted = torch.einsum("bhts,bhsd->bhtsd", out.attentions[0], transformed).sum(1)
    y = out.hidden_states[0]
    torch.nn.functional.pairwise_distance(weighted, y.unsqueeze(2), p=1)


def authors_alti(
    checkout: Path, size: str, inputs: dict[str, torch.Tensor]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Ferrando et al.'s own code (github.com/mt-upc/transformer-contributions, a checkout of it): called as their
    notebooks do, which works the contributions out twice, and once.
    """
    here = Path.cwd()
    unused = types.SimpleNamespace(**dict.fromkeys(AUTHORS_IMPORTS))
    sys.modules.setdefault("captum.attr", unused)  # type: ignore[arg-type]
    reader = types.SimpleNamespace(parse_config=lambda path: yaml.safe_load(Path(path).read_text()))
    sys.modules.setdefault("pyaml_env", reader)  # type: ignore[arg-type]
    sys.path.insert(0, str(checkout))
    os.chdir(checkout)
    try:
        from src.contributions import ModelWrapper
    finally:
        os.chdir(here)
    torch.manual_seed(0)
    config = BertConfig(**SIZES[size], attn_implementation="eager")
    wrapper = ModelWrapper(BertForSequenceClassification(config).eval())
    yield "alti, the authors' code as called", lambda: wrapper(inputs)
    yield "alti, the authors' code, once", lambda: wrapper(inputs, contributions=False)


AUTHORS_IMPORTS = (
    *("IntegratedGradients", "Saliency", "InputXGradient"),
    *("InterpretableEmbeddingBase", "TokenReferenceBase"),
)


def measure(
    size: str,
    tokens: list[int],
    batch: int,
    threads: int,
    repeats: int,
    straight: bool,
    authors: Path | None = None,
) -> list[dict[str, object]]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = BertModel(BertConfig(**SIZES[size], attn_implementation="eager")).eval()
    cm.instrument(model)
    shallow = cm.instrument(
        BertModel(
            BertConfig(**{**SIZES[size], "num_hidden_layers": 1}, attn_implementation="eager")
        ).eval()
    )
    rows: list[dict[str, object]] = []
    promised = (size, batch, threads) == (
        "bert-base",
        1,
        1,
    )  # elsewhere the ratios are only reported
    now = clock(threads)
    for t in tokens:
        ids = torch.randint(1000, 20_000, (batch, t))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        count = repeats if t < 512 else max(3, repeats // 3)
        for name, methods in GROUPS.items():
            asked = (
                {"output_decomposition": True}
                if methods is None
                else {"output_context_mixing": methods}
            )
            slow = name == "value_zeroing"
            with torch.no_grad():
                once = 1 if slow and t >= 512 else 3 if slow else count
                ratio, plain = ratio_of(
                    lambda asked=asked: _touch(model(**inputs, **asked)),
                    lambda: model(**inputs, output_attentions=True),
                    once,
                    now,
                )
                probed = (
                    shallow if slow and t >= 512 else model
                )  # layers come one after another: one shows the peak
                extra = peak_extra(
                    lambda asked=asked, probed=probed: _touch(probed(**inputs, **asked))
                )
                base = peak_extra(lambda probed=probed: probed(**inputs, output_attentions=True))
            row = {
                "size": size,
                "batch": batch,
                "threads": threads,
                "T": t,
                "method": name,
                "ratio": round(ratio, 2),
                "target": TARGETS[name].get(t) if promised else None,
                "plain_seconds": round(plain, 4),
                "extra_MB": round(extra - base, 1),
            }
            rows.append(row)
            print(line(row), flush=True)
        if straight:
            rows += straight_rows(model, inputs, size, batch, threads, t, count)
        if authors is not None and t <= 128:
            for name, run in authors_alti(authors, size, inputs):
                with torch.no_grad():
                    ratio, _ = ratio_of(
                        run, lambda: model(**inputs, output_attentions=True), 3, now
                    )
                row = {"size": size, "batch": batch, "threads": threads, "T": t}
                rows.append({**row, "method": name, "ratio": round(ratio, 1), "target": None})
                print(line(rows[-1]), flush=True)
    return rows


def straight_rows(
    model: BertModel,
    inputs: dict[str, torch.Tensor],
    size: str,
    batch: int,
    threads: int,
    t: int,
    count: int,
) -> list:
    layers = model.config.num_hidden_layers
    rows = []
    with torch.no_grad():
        now = clock(threads)
        plain = timed(lambda: model(**inputs, output_attentions=True), count, now)
        for name, run in (
            ("value_zeroing, straightforward", straight_value_zeroing),
            ("alti, straightforward", straight_alti),
        ):
            if name.startswith("alti") and t > 128:
                continue  # 10 GB
            one = timed(lambda run=run: run(model, inputs), 1, now) - plain
            ratio = round((plain + one * layers) / plain, 1)
            rows.append(
                {
                    "size": size,
                    "batch": batch,
                    "threads": threads,
                    "T": t,
                    "method": name,
                    "ratio": ratio,
                    "target": None,
                }
            )
            print(line(rows[-1]), flush=True)
    return rows


def _touch(out: object) -> object:
    """Aggregates are lazy: ask for those the papers define (the norms and effective attention are maps of a layer)."""
    for name, made in (getattr(out, "context_mixing", None) or {}).items():
        made.input if name in AGGREGATED else made.layers  # noqa: B018
    return out


def line(row: dict) -> str:
    target = row.get("target")
    verdict = "" if target is None else ("ok" if row["ratio"] <= target else "ABOVE")
    extra = "" if row.get("extra_MB") is None else f"{row['extra_MB']:8.0f} MB"
    shown = "-" if target is None else target
    where = f"{row['size']:10} B={row['batch']} threads={row['threads']} T={row['T']:<4}"
    return (
        f"{where} {row['method']:32} {row['ratio']:7.2f}x  target {shown!s:<6} {verdict:6}{extra}"
    )


def picture(rows: list[dict], path: Path) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for name in dict.fromkeys(row["method"] for row in rows):
        points = [(row["T"], row["ratio"]) for row in rows if row["method"] == name]
        axes.plot(
            *zip(*points, strict=True),
            marker="o",
            label=name,
            linestyle="--" if "straight" in name else "-",
        )
    ts = sorted({row["T"] for row in rows})
    axes.plot(
        ts,
        [t / 3 for t in ts],
        color="grey",
        linewidth=1,
        linestyle=":",
        label="T / 3 (one feed-forward product per pair)",
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="tokens",
        ylabel="cost / plain forward",
        xticks=ts,
        xticklabels=ts,
    )
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="bert-base")
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--straight", action="store_true", help="also time straightforward implementations"
    )
    parser.add_argument(
        "--authors", type=Path, help="also time ALTI's own code, in a checkout of its repository"
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the rows of other lengths that an earlier run wrote",
    )
    options = parser.parse_args()
    rows = measure(
        options.size,
        options.tokens,
        options.batch,
        options.threads,
        options.repeats,
        options.straight,
        options.authors and options.authors.resolve(),
    )
    RESULTS.mkdir(exist_ok=True)
    name = f"cost-{options.size}-b{options.batch}-t{options.threads}"
    if options.keep and (RESULTS / f"{name}.json").is_file():
        before = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
        rows = sorted(
            [row for row in before if row["T"] not in options.tokens] + rows,
            key=lambda row: row["T"],
        )
    about = {
        "torch": torch.__version__,
        "machine": platform.machine(),
        "peak_rss_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    (RESULTS / f"{name}.json").write_text(
        json.dumps({"about": about, "rows": rows}, indent=1) + "\n"
    )
    picture(rows, RESULTS / f"{name}.png")


if __name__ == "__main__":
    main()
