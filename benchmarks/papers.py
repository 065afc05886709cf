"""The papers' tables and figures, run again on models that can be had offline (or on any checkpoint: see docs/papers.md).

    python benchmarks/papers.py                                   # box models and MiniLM with its heads
    python benchmarks/papers.py --only minilm_sst2 --scale 2
    python benchmarks/papers.py --classifier textattack/bert-base-uncased-SST-2 --masked-lm bert-base-uncased --scale 4

Results: benchmarks/results/papers.json and papers_*.png. A killed run goes on where it was (--work keeps partial results).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import ctxmix_hf as cm

sys.path.insert(0, str(Path(__file__).parent))
from testbed import load_head

RESULTS = Path(__file__).parent / "results"
# GlobEnc's eight variants by rollout (attention_rollout is W_FIXEDRES), flow, ALTI and its norm rollout, Value Zeroing.
METHODS = [
    "attention", "attention_rollout", "attention_flow", "attention_res", "norm", "norm_fixedres", "norm_res", "norm_resln",
    "norm_rollout", "globenc", "alti", "value_zeroing", "random",
]  # fmt: skip
# table or figure -> (evaluation, sentences on MiniLM)
CLASSIFIER = {
    "abnar_tables_1_2": ("faithfulness_layers", 64),
    "globenc_table_1_alti_table_2": ("faithfulness", 64),
    "alti_figure_6": ("special_tokens", 64),
    "brunner_figure_1a": ("effective_attention", 60),
    "brunner_figure_2a": ("identifiability_layers", 24),
    "brunner_figure_3": ("mixing_own", 6),
    "brunner_figure_4": ("mixing_distance", 6),
}
MASKED_LM = {
    "value_zeroing_figure_1": ("cue_alignment", 64),
    "value_zeroing_figure_2": ("cue_alignment_sets", 64),
    "value_zeroing_table_2": ("faithfulness", 64),
    "value_zeroing_probing": ("mdl_probe", 200),
    "value_zeroing_table_3": ("mdl_alignment", 64),
}


@dataclass(frozen=True)
class Subject:
    """A model, its data and the pictures that are made of it."""

    name: str
    load: Callable[[], tuple[Any, Any]]
    data: str
    parts: dict[str, tuple[str, int]]


def subjects(folder: Path, classifier: str | None, masked_lm: str | None) -> list[Subject]:
    sst2, cues = str(folder / "sst2" / "dev.tsv"), str(folder / "blimp_number_agreement_cues.jsonl")
    if classifier or masked_lm:
        given = [(classifier, "classifier", sst2, CLASSIFIER), (masked_lm, "masked_lm", cues, MASKED_LM)]
        return [Subject(kind, lambda name=name: (name, None), data, parts) for name, kind, data, parts in given if name]
    return [
        Subject("minilm_sst2", lambda: load_head("minilm-sst2"), sst2, CLASSIFIER),
        Subject("minilm_agreement", lambda: load_head("minilm-agreement-mlm"), cues, MASKED_LM),
        Subject("box_sentiment", lambda: ("ctxmix/sentiment", None), sst2, CLASSIFIER),
        Subject("box_agreement", lambda: ("ctxmix/agreement", None), cues, MASKED_LM),
    ]


def run_subject(subject: Subject, work: Path, scale: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every table of one model as soon as it is made; pictures go to results/."""
    model, tokenizer = subject.load()
    for part, (evaluation, count) in subject.parts.items():
        start = time.process_time()  # of this process: other work on the machine does not count
        wanted = None if evaluation in ("mixing_own", "mixing_distance", "identifiability_layers", "effective_attention") else METHODS
        table = cm.evaluate(
            evaluation, model=model, tokenizer=tokenizer, data=subject.data, methods=wanted, limit=max(6, int(count * scale)),
            resume=work / subject.name,
        )  # fmt: skip
        if not subject.name.startswith("box"):  # the pictures are of the main evidence
            table.plot(RESULTS / f"papers_{subject.name}_{part}.png")
        seconds = round(time.process_time() - start, 1)
        print(f"{subject.name} {part}: {seconds} s, n = {table.meta['sentences']}", flush=True)
        yield part, {**table.to_dict(), "cpu_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=shared, help="folder with sst2/ and the cue file")
    parser.add_argument("--work", type=Path, default=Path("/tmp/ctxmix_papers"), help="partial results")
    parser.add_argument("--only", nargs="*", help="minilm_sst2, minilm_agreement, box_sentiment, box_agreement")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the numbers of sentences")
    parser.add_argument("--classifier", help="another SST-2 classifier: an id or a folder")
    parser.add_argument("--masked-lm", help="another masked LM: an id or a folder")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / ("papers.json" if not (arguments.classifier or arguments.masked_lm) else "papers_given.json")
    for subject in subjects(arguments.data, arguments.classifier, arguments.masked_lm):
        if arguments.only and subject.name not in arguments.only:
            continue
        for part, table in run_subject(subject, arguments.work, arguments.scale):
            made = json.loads(path.read_text()) if path.is_file() else {}  # another run may have added its own meanwhile
            made.setdefault(subject.name, {})[part] = table
            path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
