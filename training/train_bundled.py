"""Trains the bundled models: an agreement masked LM and a sentiment classifier (see README.md here)."""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from cards import write_cards
from corpus import load
from evaluate import evaluate_agreement, evaluate_linzen, evaluate_sentiment
from examples import training_text
from export import export, write_heldout
from loop import Log, Plan
from stages import Bench, agreement_model, language_model, make_tokenizer, sentiment_model
from teacher import soft_labels

STAGES = ("tokenizer", "mlm", "agreement", "sentiment", "cards")
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Job:
    """One call of the script: the bench, where to write, and the plan of each stage."""

    bench: Bench
    source: str
    out: Path
    plans: dict[str, Plan]
    teacher: str | None


def set_up(source: str, work: Path, log: Log) -> Bench:
    """Reads the data once; the tokenizer is trained unless an earlier run left it."""
    data = load(source)
    text = training_text(data)
    folder = work / "tokenizer"
    if not (folder / "tokenizer.json").is_file():
        make_tokenizer(data, text).save_pretrained(folder)
    return Bench(data, text, AutoTokenizer.from_pretrained(folder), work, log)


def plans(seed: int, scale: float) -> dict[str, Plan]:
    """Learning rates and lengths found by trial; `scale` shortens all stages for a rehearsal."""
    full = (
        Plan("mlm", steps=2400, learning_rate=1.5e-3, warmup=200, seed=seed),
        Plan("agreement", steps=1800, learning_rate=1e-3, warmup=100, ema_decay=0.998, seed=seed),
        Plan("sentiment", steps=3300, learning_rate=4e-4, warmup=200, ema_decay=0.999, seed=seed),
    )
    return {plan.name: replace(plan, steps=max(2, round(plan.steps * scale))) for plan in full}


def run_agreement(job: Job) -> None:
    start = language_model(job.bench, job.plans["mlm"])
    model = agreement_model(start, job.bench, job.plans["agreement"])
    export(model, job.bench.tokenizer, job.out / "agreement")
    write_heldout(job.bench.data, job.out / "agreement")


def run_sentiment(job: Job) -> None:
    start = language_model(job.bench, job.plans["mlm"])
    plan, teacher = job.plans["sentiment"], None
    if job.teacher:  # under its own name, so that checkpoints with and without a teacher do not mix
        plan, teacher = (
            replace(plan, name="sentiment_taught"),
            soft_labels(job.teacher, job.bench.data, job.bench.work),
        )
    model = sentiment_model(start, job.bench, plan, teacher)
    export(model, job.bench.tokenizer, job.out / "sentiment")


def run_cards(job: Job) -> None:
    """Measures the weights as stored, not as trained, and writes what was measured into the cards."""
    agreement = evaluate_agreement(job.out / "agreement", job.bench.data)
    linzen = evaluate_linzen(job.out / "agreement", Path(job.source) / "linzen")
    sentiment = evaluate_sentiment(job.out / "sentiment", job.bench.data)
    job.bench.log.write(event="measured", agreement=agreement, linzen=linzen, sentiment=sentiment)
    write_cards(job.out, agreement, linzen, sentiment, taught=job.teacher is not None)


def run(stage: str, job: Job) -> None:
    """The tokenizer stage is the set-up itself: it is over when this is called."""
    if stage == "mlm":
        language_model(job.bench, job.plans["mlm"])
    elif stage == "agreement":
        run_agreement(job)
    elif stage == "sentiment":
        run_sentiment(job)
    elif stage == "cards":
        run_cards(job)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", required=True, help="folder like shared/data, or 'nyu-mll/blimp,stanfordnlp/sst2'"
    )
    parser.add_argument("--out", type=Path, default=HERE.parent / "ctxmix_hf" / "models")
    parser.add_argument(
        "--work", type=Path, default=HERE / "work", help="checkpoints, kept so that a rerun resumes"
    )
    parser.add_argument("--log", type=Path, help="JSON lines (default: log.jsonl in --work)")
    parser.add_argument("--stage", choices=(*STAGES, "all"), default="all")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the steps, for a rehearsal"
    )
    parser.add_argument(
        "--teacher", help="optional: folder of a sequence classifier whose soft labels are learned"
    )
    parser.add_argument("--fresh", action="store_true", help="forget the checkpoints in --work")
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    if options.fresh:
        shutil.rmtree(options.work, ignore_errors=True)
    log = Log(options.log or options.work / "log.jsonl")
    bench = set_up(options.data, options.work, log)
    job = Job(bench, options.data, options.out, plans(options.seed, options.scale), options.teacher)
    for stage in STAGES if options.stage == "all" else (options.stage,):
        run(stage, job)


if __name__ == "__main__":
    main()
