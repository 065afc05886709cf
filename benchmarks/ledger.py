"""What a ledger costs, in plain forward passes of the same model in the same run, beside other ways to explain a logit.

    python benchmarks/ledger.py                     # BERT-base size, one thread, one sentence, T = 32, 128, 512

CPU seconds, plain pass and explanation in turns; random weights, because the arithmetic does not
depend on them. Memory is what torch allocates at the worst moment beyond what was there before.
Written to benchmarks/results/ledger.json with the commit. captum's row needs captum (`pip install
--no-deps captum`). The propagation by hand carries one vector per source through all layers, as
DecompX does; it is timed on a few sources and multiplied by their number, and so are captum's steps
at 512 tokens.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu
from transformers import BertConfig, BertForSequenceClassification

import ctxmix_hf as cm

sys.path.insert(0, str(Path(__file__).parent))
from cost import SIZES, peak_extra

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "ledger.json"
SOURCES = 8  # of the propagation by hand
LITERATURE = {
    "DecompX (Modarressi et al. 2023)": "not run: its code needs transformers 4.38 or older. By "
    "its equations it carries one vector "
    "per source and token through every layer: about T forward passes, as the propagation by hand shows."
}


def in_turns(run: Callable[[], object], plain: Callable[[], object], repeats: int) -> float:
    """The median of run / plain, by CPU seconds; the first of several rounds does not count."""
    ratios = []
    for turn in range(repeats + (repeats > 1)):
        start = time.process_time()
        plain()
        middle = time.process_time()
        run()
        if turn or repeats == 1:
            ratios.append((time.process_time() - middle) / (middle - start))
    return statistics.median(ratios)


@torch.no_grad()
def by_hand(model: Any, inputs: dict[str, Tensor], sources: int) -> Tensor:
    """`[sources]`: contributions to the first logit, each source's vector carried through all
    layers (tests/test_ledger.py).
    """
    bert = model.bert
    seen = bert(**inputs, output_attentions=True, output_hidden_states=True)
    states = [state[0] for state in seen.hidden_states]
    attentions = [attention[0] for attention in seen.attentions]
    parts = torch.zeros(sources, *states[0].shape)
    for j in range(sources):
        parts[j, j] = states[0][j]
    for k, layer in enumerate(bert.encoder.layer):
        x, heads, own = states[k], attentions[k].shape[0], layer.attention.self
        attended = layer.attention.output
        value = (parts @ own.value.weight.T).unflatten(-1, (heads, -1))
        mixed = torch.einsum("hij,sjhe->sihe", attentions[k], value).flatten(2)
        context = (
            attentions[k] @ own.value(x).unflatten(-1, (heads, -1)).transpose(0, 1)
        ).transpose(0, 1)
        before = attended.dense(context.flatten(1)) + x
        parts = normed(attended.LayerNorm, mixed @ attended.dense.weight.T + parts, before)
        middle = attended.LayerNorm(before)
        inner = layer.intermediate.dense(middle)
        fed = (parts @ layer.intermediate.dense.weight.T) * (gelu(inner) / inner)
        before = layer.output.dense(gelu(inner)) + middle
        parts = normed(layer.output.LayerNorm, fed @ layer.output.dense.weight.T + parts, before)
    pooled = bert.pooler.dense(states[-1][0])
    first = (parts[:, 0] @ bert.pooler.dense.weight.T) * (pooled.tanh() / pooled)
    return first @ model.classifier.weight[0]


def normed(norm: Any, parts: Tensor, whole: Tensor) -> Tensor:
    deviation = (whole.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    return (parts - parts.mean(-1, keepdim=True)) / deviation * norm.weight


def captum_steps(model: Any, inputs: dict[str, Tensor], steps: int) -> Callable[[], object]:
    from captum.attr import LayerIntegratedGradients

    method = LayerIntegratedGradients(
        lambda ids, mask: model(ids, attention_mask=mask).logits, model.bert.embeddings
    )
    ids = inputs["input_ids"]
    return lambda: method.attribute(
        ids,
        ids * 0,
        target=0,
        additional_forward_args=(inputs["attention_mask"],),
        n_steps=steps,
        internal_batch_size=max(1, 1280 // ids.shape[1]),
    )


def measure(model: Any, plain_model: Any, tokens: int) -> list[dict[str, Any]]:
    ids = torch.randint(1000, 20_000, (1, tokens), generator=torch.Generator().manual_seed(tokens))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    @torch.no_grad()
    def plain() -> None:
        plain_model(**inputs)

    def scores(**options: Any) -> Any:
        return cm.ledger(model, inputs, class_index=0, **options)

    def everything() -> None:
        made = scores()
        made.layers, made.edges  # noqa: B018

    off = (by_hand(plain_model, inputs, SOURCES) - scores().scores[0, :SOURCES]).abs().max()
    if float(off) > 1e-4:
        raise SystemExit(f"the propagation by hand is another one: off by {off}")
    often = 7 if tokens < 512 else 3
    runs: list[tuple[str, Callable[[], object], int, float]] = [
        ("ledger: scores", scores, often, 1),
        ("ledger: scores, layers, edges", everything, often, 1),
        ("ledger: scores, checkpoint=True", lambda: scores(checkpoint=True), often, 1),
        (
            "integrated gradients, 20 Gauss-Legendre steps",
            lambda: cm.attribute(
                model,
                inputs,
                "integrated_gradients",
                class_index=0,
                of="logit",
                steps=20,
                rule="gauss_legendre",
                mask_token_id=103,
            ),
            1,
            1,
        ),
        (
            "propagation by hand, one vector per source",
            lambda: by_hand(plain_model, inputs, SOURCES),
            1,
            (tokens + 1) / SOURCES,
        ),
    ]
    if importlib.util.find_spec("captum"):
        for asked in (20, 50):
            steps = asked if tokens < 512 else 10
            runs.append(
                (
                    f"captum integrated gradients, {asked} steps",
                    captum_steps(plain_model, inputs, steps),
                    1,
                    asked / steps,
                )
            )
    memory = {
        "ledger: scores": scores,
        "ledger: scores, layers, edges": everything,
        "ledger: scores, checkpoint=True": lambda: scores(checkpoint=True),
    }
    held = peak_extra(plain)
    made = []
    for name, run, repeats, times in runs:
        row = {
            "asked": name,
            "T": tokens,
            "forwards": round(times * in_turns(run, plain, repeats), 2),
            "multiplied_by": round(times, 2),
            "plain_peak_mb": round(held, 1),
            "peak_mb": round(peak_extra(memory[name]), 1) if name in memory else None,
        }
        print(row, flush=True)
        made.append(row)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="*", default=[32, 128, 512])
    parser.add_argument("--size", choices=SIZES, default="bert-base")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = BertConfig(**SIZES[asked.size], attn_implementation="eager")
    plain = BertForSequenceClassification(config).eval().requires_grad_(False)
    model = BertForSequenceClassification(config).eval().requires_grad_(False)
    model.load_state_dict(plain.state_dict())
    model = cm.instrument(model)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    rows = [row for tokens in asked.tokens for row in measure(model, plain, tokens)]
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    found = {
        "commit": commit,
        "size": asked.size,
        "threads": 1,
        **versions,
        "rows": rows,
        "literature": LITERATURE,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
