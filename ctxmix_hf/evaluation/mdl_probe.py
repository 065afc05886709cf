"""How easily can the number be read from the masked token, layer by layer? Minimum description length by online coding.

Voita & Titov 2020, section 3.2: labels are sent in growing blocks, each coded with a probe trained
on all blocks before it.
`L = t_1 log2 K - sum_i log2 p_i(block i+1)`; compression is the uniform code `n log2 K` over `L`. Mohebbi et al. 2023,
section 6, compare its profile over layers with each method's cue alignment.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.errors import InputError
from ctxmix_hf.evaluation.bench import Ready
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.cue_alignment import layer_profile, with_cues
from ctxmix_hf.evaluation.features import hidden_states
from ctxmix_hf.evaluation.metrics import rank_correlation
from ctxmix_hf.evaluation.sessions import content_key, rounded, watched
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form

# Shares of the data at which the probe is trained again (Voita & Titov 2020, appendix B).
FRACTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Code:
    """The length of a code, in bits."""

    bits: float
    uniform: float
    accuracy: float  # of the predictions made before each label was sent
    each: tuple[float, ...] = ()  # bits of every label, in the order they were sent

    @property
    def compression(self) -> float:
        return self.uniform / self.bits


def block_ends(count: int, classes: int, fractions: Sequence[float] = FRACTIONS) -> list[int]:
    """`t_1 < t_2 < ... = count`; the first block holds at least one label per class."""
    return sorted(
        {
            max(classes, math.ceil(f * count))
            for f in fractions
            if max(classes, math.ceil(f * count)) <= count
        }
        | {count}
    )


def fit_probe(x: Tensor, y: Tensor, classes: int, penalty: float = 1.0) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression, `sum of losses + penalty/2 |W|^2`: `[D, K]` and `[K]`, found
    by L-BFGS in float64.
    """
    weight = torch.zeros(x.shape[1], classes, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias], max_iter=200, tolerance_grad=1e-7, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = (
            torch.nn.functional.cross_entropy(x @ weight + bias, y, reduction="sum")
            + penalty / 2 * weight.square().sum()
        )
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimiser.step(loss)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()


def online_code(
    features: Tensor, labels: Tensor, classes: int, fractions: Sequence[float] = FRACTIONS
) -> Code:
    """The online code of `labels` `[n]` given `features` `[n, D]`, in the order they come."""
    x, y = features.double(), labels.long()
    ends = block_ends(len(y), classes, fractions)
    bits, right = ends[0] * math.log2(classes), 0
    each = [math.log2(classes)] * ends[0]
    for start, end in itertools.pairwise(ends):
        mean = x[:start].mean(dim=0)
        scale = (
            (x[:start] - mean).square().mean().sqrt().clamp(min=1e-6)
        )  # one for all: early blocks hold few vectors
        weight, bias = fit_probe((x[:start] - mean) / scale, y[:start], classes)
        logits = (x[start:end] - mean) / scale @ weight + bias
        sent = torch.log_softmax(logits, dim=-1)[torch.arange(end - start), y[start:end]]
        bits -= float(sent.sum()) / math.log(2)
        each += (-sent / math.log(2)).tolist()
        right += int((logits.argmax(dim=-1) == y[start:end]).sum())
    coded = len(y) - ends[0]
    accuracy = right / coded if coded else float("nan")
    return Code(bits, len(y) * math.log2(classes), accuracy, tuple(each))


def _labelled(context: Context) -> tuple[list[Ready], list[int], list[str]]:
    ready = [item for item in context.ready if item.sample.label is not None]
    names = sorted({str(item.sample.label) for item in ready})
    if len(names) < 2 or len(ready) <= 2 * len(names):
        raise InputError(
            f"A probe needs labels of at least two kinds and a few of each: {len(ready)} labelled rows, kinds {names}."
        )
    order = np.random.default_rng(context.seed).permutation(len(ready))
    ready = [ready[i] for i in order]
    return ready, [names.index(str(item.sample.label)) for item in ready], names


def codes(context: Context) -> list[Code]:
    """One code per e^0 ... e^L."""
    ready, labels, names = _labelled(context)
    store = context.store("mdl_probe")
    described = [
        context.bench.fingerprint,
        [[r.sample.key, r.ids, r.position] for r in ready],
        labels,
        FRACTIONS,
    ]
    depth = int(context.bench.depth)
    keys = [content_key("mdl, one scale, each", layer, *described) for layer in range(depth + 1)]
    missing = [layer for layer in range(depth + 1) if keys[layer] not in store.known]
    if missing:
        states = hidden_states(context.bench, ready, context.progress)
        for layer in watched(missing, "probing layers", context.progress):
            features = torch.stack(
                [s[layer, r.position] for s, r in zip(states, ready, strict=True)]
            )
            code = online_code(features, torch.tensor(labels), len(names))
            store.keep(
                {
                    keys[layer]: {
                        "bits": code.bits,
                        "uniform": code.uniform,
                        "accuracy": code.accuracy,
                        "each": rounded(code.each),
                    }
                }
            )
    return [Code(**store.known[key]) for key in keys]


@evaluation(
    "mdl_probe",
    "compression of the labels by an online code, from every layer's target token",
    "Voita & Titov 2020; Mohebbi et al. 2023, section 6",
)
def mdl_probe(context: Context) -> EvaluationTable:
    """One row per e^l: code length in bits, compression (1 is no better than guessing), accuracy along the way."""
    found = codes(context)
    count = sum(item.sample.label is not None for item in context.ready)
    rows: list[list[Cell]] = [
        ["probe", layer, c.bits, c.uniform, c.compression, c.accuracy, count]
        for layer, c in enumerate(found)
    ]
    left = len(context.ready) - count
    note = f"{left} of {len(context.ready)} sentences left out: no label." if left else ""
    form = Form(
        "lines",
        "probe",
        "compression",
        "layer",
        title="Compression of the labels, by layer (0: embeddings)",
    )
    columns = ("probe", "layer", "bits", "uniform_bits", "compression", "accuracy", "n")
    caption = "minimum description length of the labels by online coding, from the target token after each layer"
    return context.table(
        "mdl_probe", columns, rows, caption, form=form, notes=(note,), sentences=count
    )


@evaluation(
    "mdl_alignment",
    "does a method point at the cue in the layers where the number becomes readable?",
    "Mohebbi et al. 2023, table 2",
)
def mdl_alignment(context: Context) -> EvaluationTable:
    """Spearman correlation, over layers, of a method's cue alignment with the compression after that layer."""
    compression = [code.compression for code in codes(context)][1:]
    gains = list(np.diff([code.compression for code in codes(context)]))
    scores, note = with_cues(context)
    rows: list[list[Cell]] = []
    for method in context.method_set.names:
        profile = layer_profile(scores, method)
        if profile is not None:
            rows.append(
                [
                    method,
                    rank_correlation(profile, compression),
                    rank_correlation(profile, gains),
                    len(profile),
                ]
            )
    form = Form("bars", "method", "spearman", title="Cue alignment against compression over layers")
    caption = (
        "Spearman correlation over layers between cue alignment and compression (and its "
        "gain from layer to layer)"
    )
    notes = (f"Only {len(compression)} layers: a correlation over so few points is rough.", note)
    return context.table(
        "mdl_alignment",
        ("method", "spearman", "spearman_gain", "layers"),
        rows,
        caption,
        form=form,
        notes=notes,
    )
