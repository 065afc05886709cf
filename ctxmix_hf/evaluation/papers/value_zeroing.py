"""Mohebbi et al. 2023 (Value Zeroing): cue words, probes, blank-out, and why the rolled-out map may lose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ctxmix_hf.aggregation.rollout import rollout
from ctxmix_hf.errors import UnsupportedMethodError
from ctxmix_hf.evaluation.context import Context
from ctxmix_hf.evaluation.cue_alignment import alignments
from ctxmix_hf.evaluation.features import hidden_states
from ctxmix_hf.evaluation.mdl_probe import codes
from ctxmix_hf.evaluation.metrics import Array, dot_product, rank_correlation
from ctxmix_hf.evaluation.papers.desk import ANALYSED, Desk
from ctxmix_hf.evaluation.papers.items import (
    Claim,
    Found,
    ItemRow,
    Ours,
    above,
    item,
    layer_name,
    mean_row,
    resampled,
)
from ctxmix_hf.evaluation.scores import BLANK_OUT_ABS, Scores
from ctxmix_hf.evaluation.sessions import Result, content_key, rounded
from ctxmix_hf.methods.rest import ZeroedValues
from ctxmix_hf.records import LayerRecord

PAPER = "mohebbi2023"
# fine-tuned models: ours are tuned on the task too
TABLE_2 = {
    "Rand": -0.02,
    "Attn": 0.08,
    "Attn-norm": 0.56,
    "Attn-norm+RES": -0.24,
    "Attn-norm+RES+LN": 0.17,
    "GlobEnc": -0.12,
    "ALTI": -0.12,
    "GradXinput": -0.99,
    "IG": -0.77,
    "DL": -1.00,
    "Value Zeroing": 0.64,
}
TABLE_2_PT = {
    "Rand": -0.07,
    "Attn": 0.10,
    "Attn-norm": 0.52,
    "Attn-norm+RES": -0.35,
    "Attn-norm+RES+LN": 0.12,
    "GlobEnc": -0.01,
    "ALTI": -0.01,
    "GradXinput": -0.96,
    "IG": -0.86,
    "DL": -0.97,
    "Value Zeroing": 0.65,
}
TABLE_3_PT = {
    "Rand": -0.01,
    "Attn": -0.10,
    "Attn-norm": 0.19,
    "Attn-norm+RES": 0.03,
    "Attn-norm+RES+LN": -0.08,
    "GlobEnc": -0.01,
    "ALTI": 0.17,
    "GradXinput": 0.11,
    "IG": 0.07,
    "DL": 0.20,
    "Value Zeroing": 0.26,
}
TABLE_3 = {
    "Rand": 0.00,
    "Attn": -0.07,
    "Attn-norm": 0.14,
    "Attn-norm+RES": -0.05,
    "Attn-norm+RES+LN": -0.17,
    "GlobEnc": -0.09,
    "ALTI": 0.19,
    "GradXinput": 0.16,
    "IG": 0.21,
    "DL": 0.29,
    "Value Zeroing": 0.31,
}
FIGURE_3 = {3: 1.52, 4: 1.72, 8: 2.03, 9: 2.45}  # of twelve layers, fine-tuned
MAPS = [label for label in ANALYSED if label not in ("Rand", "GradXinput", "IG", "DL")]
TUNED = "The paper's models are BERT, RoBERTa and ELECTRA; its numbers here are those of the fine-tuned ones."
MOST = 1000


def _best_layer(ours: Ours, label: str) -> float:
    values = [v for name, v in ours.items() if name.startswith(f"{label}, layer ")]
    return max(values, default=float("nan"))


def _zeroing_leads(ours: Ours) -> bool | None:
    others = [_best_layer(ours, label) for label in MAPS if label != "Value Zeroing"]
    return above(_best_layer(ours, "Value Zeroing"), max(others))


def _zeroing_best(ours: Ours) -> bool | None:
    others = [ours[label] for label in MAPS if label != "Value Zeroing"]
    return above(ours["Value Zeroing"], max(others))


def with_cues(context: Context) -> list[Scores]:
    return [s for s in context.scores if s.ready.sample.cues]


def _figure(desk: Desk, metric: str, sheet: str = "blimp") -> Found:
    scores = with_cues(desk.context(sheet, MOST))
    rows = [
        mean_row(layer_name(label, layer), values)
        for label, name in ANALYSED.items()
        for layer, values in enumerate(alignments(scores, name, metric)[0])
    ]
    return Found(rows, len(scores))


LEADS = (
    Claim("In its best layer Value Zeroing is ahead of every other map.", _zeroing_leads),
    Claim(
        "Gradients find the cue in early layers more than in late ones (gradient times input).",
        lambda ours: above(
            ours["GradXinput, layer 1"],
            [v for k, v in ours.items() if k.startswith("GradXinput, ")][-1],
        ),
    ),
)


@item(
    PAPER,
    "Figure 1a",
    "share of the masked token's row on the cue words, by layer (dot product), before tuning",
    "before",
    "blimp",
    LEADS[:1],
    "The figure gives no numbers; the model is the one given as before.",
)
def figure_1a(desk: Desk) -> Found:
    return _figure(desk, "dot_product", "blimp before")


@item(
    PAPER,
    "Figure 1b",
    "average precision of the masked token's row for the cue words, by layer, before tuning",
    "before",
    "blimp",
    LEADS[:1],
    "The figure gives no numbers; the model is the one given as before.",
)
def figure_1b(desk: Desk) -> Found:
    return _figure(desk, "average_precision", "blimp before")


@item(
    PAPER,
    "Figure 2a",
    "share of the masked token's row on the cue words, by layer (dot product)",
    "masked_lm",
    "blimp",
    LEADS,
    "The figure gives no numbers; the tuned model is Figure 2's.",
)
def figure_2a(desk: Desk) -> Found:
    return _figure(desk, "dot_product")


@item(
    PAPER,
    "Figure 2b",
    "average precision of the masked token's row for the cue words, by layer",
    "masked_lm",
    "blimp",
    LEADS[:1],
    "The figure gives no numbers; the tuned model is Figure 2's.",
)
def figure_2b(desk: Desk) -> Found:
    return _figure(desk, "average_precision")


@item(
    PAPER,
    "Figure A.2",
    "how many words have to be probed until a cue is met, by layer",
    "masked_lm",
    "blimp",
    (
        Claim(
            "Value Zeroing needs the fewest probes in its best layer.",
            lambda ours: above(
                min(_fewest(ours, label) for label in MAPS if label != "Value Zeroing"),
                _fewest(ours, "Value Zeroing"),
            ),
        ),
    ),
    "The figure gives no numbers.",
)
def figure_a2(desk: Desk) -> Found:
    return _figure(desk, "probes_needed")


def _fewest(ours: Ours, label: str) -> float:
    return min(v for k, v in ours.items() if k.startswith(f"{label}, layer "))


@item(
    PAPER,
    "Figure 3",
    "compression of the number by an online code, from the masked token after each layer",
    "masked_lm",
    "blimp",
    (
        Claim(
            "The number is easier to read after the last layer than in the embeddings.",
            lambda ours: above([*ours.values()][-1], ours["embeddings"]),
        ),
    ),
    "The paper names four layers of twelve; intervals resample the labels' code lengths.",
)
def figure_3(desk: Desk) -> Found:
    made = codes(desk.context("blimp"))  # all of them: one forward pass each
    rows = []
    for layer, code in enumerate(made):
        bits = list(code.each)
        uniform = code.uniform / len(bits)
        name = "embeddings" if layer == 0 else layer_name("compression", layer - 1)
        number = FIGURE_3.get(layer) if len(made) == 13 else None
        rows.append(
            resampled(name, bits, lambda some, u=uniform: u * len(some) / sum(some), number)  # type: ignore[misc]
        )
    return Found(rows, len(made[0].each))


def _with_probe(desk: Desk, sheet: str, paper: dict[str, float]) -> Found:
    context = desk.context(sheet, MOST)
    scores = with_cues(context)
    compression = [code.compression for code in codes(context)][1:]
    rows = []
    for label, name in ANALYSED.items():
        each = np.array(alignments(scores, name, "dot_product")[0])  # [L, n]

        def over_layers(some: Sequence[int], each: Array = each) -> float:
            return rank_correlation(each[:, list(some)].mean(axis=1), compression)

        rows.append(resampled(label, list(range(len(scores))), over_layers, paper[label]))
    return Found(rows, len(scores))


def _with_blank_out(desk: Desk, sheet: str, paper: dict[str, float]) -> Found:
    scores = desk.context(sheet, MOST).scores
    rows = [
        mean_row(
            label,
            [rank_correlation(s.final(name), s.final("blank_out")) for s in scores],
            paper[label],
        )
        for label, name in ANALYSED.items()
    ]
    return Found(rows, len(scores))


PROBED = (
    Claim("Value Zeroing follows the probe best of all maps.", _zeroing_best),
    Claim(
        "Gradients run against it.",
        lambda ours: ours["GradXinput"] < 0 and ours["IG"] < 0 and ours["DL"] < 0,
    ),
)
STEPS = (
    "With six layers a correlation over layers moves in large steps. The paper does not say how a gradient's "
    "coordinates become one score. Ours: GradXinput is the length of the product, IG and DL are its absolute sum. By "
    "length, DL from zero is GradXinput itself on a GELU encoder (a test shows it; captum's DeepLift gives the same), "
    "and so would be its number."
)
UNTUNED = "The paper's models are BERT, RoBERTa and ELECTRA as pre-trained; ours is the one given as before."


@item(
    PAPER,
    "Table 2",
    "Spearman's correlation over layers of cue alignment with compression",
    "masked_lm",
    "blimp",
    PROBED,
    f"{TUNED} {STEPS}",
)
def table_2(desk: Desk) -> Found:
    return _with_probe(desk, "blimp", TABLE_2)


@item(
    PAPER,
    "Table 2, PT",
    "Spearman's correlation over layers of cue alignment with compression, before tuning",
    "before",
    "blimp",
    PROBED,
    f"{UNTUNED} {STEPS}",
)
def table_2_before(desk: Desk) -> Found:
    return _with_probe(desk, "blimp before", TABLE_2_PT)


@item(
    PAPER,
    "Table 3",
    "Spearman's correlation of aggregated rows with blank-out",
    "masked_lm",
    "blimp",
    (Claim("Value Zeroing is the most faithful of all maps.", _zeroing_best),),
    TUNED,
)
def table_3(desk: Desk) -> Found:
    return _with_blank_out(desk, "blimp", TABLE_3)


@item(
    PAPER,
    "Table 3, PT",
    "Spearman's correlation of aggregated rows with blank-out, before tuning",
    "before",
    "blimp",
    (Claim("Value Zeroing is the most faithful of all maps.", _zeroing_best),),
    UNTUNED,
)
def table_3_before(desk: Desk) -> Found:
    return _with_blank_out(desk, "blimp before", TABLE_3_PT)


# ---- why does the rolled-out map lose? one thing varied at a time ---------------------------------------------------
VARIED = {"Value Zeroing": "value_zeroing", "ALTI": "alti", "GlobEnc": "globenc"}
KEPT = (0.25, 0.5, 0.75)
DISTANCES = ("cosine", "Euclidean", "Euclidean, length 1", "Spearman")
NORMALISED = "cosine, standardised"


def _words_only(s: Scores) -> Array:
    """Places that are neither special tokens nor the masked one."""
    return np.array(
        [i for i, x in enumerate(s.ready.special) if not x and i != s.ready.position], dtype=int
    )


def _followed(row: Array, reference: Array, places: Array | None = None) -> float:
    if places is not None:
        row, reference = row[places], reference[places]
    return rank_correlation(row, reference)


def residual_rows(context: Context) -> list[Result]:
    """Per sentence, the masked token's row of Value Zeroing rolled out with a share of each token kept."""
    bench = context.bench
    keys = [
        content_key("kept", item.sample.key, item.ids, bench.fingerprint, KEPT)
        for item in context.ready
    ]

    @torch.no_grad()
    def compute(batch: Sequence[int]) -> list[Result]:
        ready = [context.ready[i] for i in batch]
        asked = {"output_context_mixing": ["value_zeroing"]}
        layers = (
            bench.model(**bench.inputs_of(ready), **asked).context_mixing["value_zeroing"].layers
        )
        made = {
            str(share): rollout((1 - share) * layers + share * torch.eye(layers.shape[-1]))[:, -1]
            for share in KEPT
        }
        return [
            {
                share: rounded(whole[b, one.position, : len(one.ids)].tolist())
                for share, whole in made.items()
            }
            for b, one in enumerate(ready)
        ]

    order = bench.batches(context.ready)
    return context.store("kept").run(keys, order, compute, "residual shares", context.progress)


@item(
    PAPER,
    "Table 3 varied",
    "the same correlation with one thing changed at a time",
    "masked_lm",
    "blimp",
    (
        Claim(
            "Keeping a share of each token in the rollout brings Value Zeroing closer to blank-out.",
            lambda ours: above(
                max(ours[f"Value Zeroing, {int(100 * k)} % of each token kept"] for k in KEPT),
                ours["Value Zeroing, as in Table 3"],
            ),
        ),
        Claim(
            "Without special tokens Value Zeroing is ahead of ALTI and GlobEnc.",
            lambda ours: above(
                ours["Value Zeroing, words only"],
                max(ours["ALTI, words only"], ours["GlobEnc, words only"]),
            ),
        ),
        Claim(
            "Not rolled out (mean over layers) Value Zeroing is ahead of ALTI and GlobEnc.",
            lambda ours: above(
                ours["Value Zeroing, mean over layers"],
                max(ours["ALTI, mean over layers"], ours["GlobEnc, mean over layers"]),
            ),
        ),
        Claim(
            "With blank-out by [MASK] instead of [UNK] Value Zeroing is ahead of ALTI and GlobEnc.",
            lambda ours: (
                None
                if "ALTI, blank-out by [MASK]" not in ours
                else above(
                    ours["Value Zeroing, blank-out by [MASK]"],
                    max(ours["ALTI, blank-out by [MASK]"], ours["GlobEnc, blank-out by [MASK]"]),
                )
            ),
        ),
    ),
    "Not in the paper: a controlled comparison of why the order differs.",
)
def table_3_varied(desk: Desk) -> Found:
    context = desk.context("blimp", MOST)
    scores = context.scores
    middle = float(np.median([len(s.ready.ids) for s in scores]))
    kept = residual_rows(context)
    ways: dict[str, Callable[[Scores, str], float]] = {
        "as in Table 3": lambda s, m: _followed(s.final(m), s.final("blank_out")),
        "words only": lambda s, m: _followed(s.final(m), s.final("blank_out"), _words_only(s)),
        "absolute blank-out": lambda s, m: _followed(s.final(m), s.final(BLANK_OUT_ABS)),
        "last layer alone": lambda s, m: _followed(s.layers[m][-1], s.final("blank_out")),
        "mean over layers": lambda s, m: _followed(
            np.mean(s.layers[m], axis=0), s.final("blank_out")
        ),
    }
    rows: list[ItemRow] = []
    for label, name in VARIED.items():
        rows += [
            mean_row(f"{label}, {way}", [measure(s, name) for s in scores])
            for way, measure in ways.items()
        ]
        plain = ways["as in Table 3"]
        short = [plain(s, name) for s in scores if len(s.ready.ids) <= middle]
        long = [plain(s, name) for s in scores if len(s.ready.ids) > middle]
        rows.append(mean_row(f"{label}, at most {middle:.0f} tokens", short))
        rows.append(mean_row(f"{label}, more tokens", long))
    for label, name in VARIED.items():
        others = desk.context("blimp by mask", MOST).scores
        values = [_followed(s.final(name), s.final("blank_out")) for s in others]
        rows.append(mean_row(f"{label}, blank-out by [MASK]", values))
    for share in KEPT:
        values = [
            _followed(np.array(r[str(share)]), s.final("blank_out"))
            for r, s in zip(kept, scores, strict=True)
        ]
        rows.append(mean_row(f"Value Zeroing, {int(100 * share)} % of each token kept", values))
    return Found(rows, len(scores))


@dataclass(frozen=True)
class Standard:
    """Mean and standard deviation of every dimension of a layer's outputs, over the tokens of a corpus: `[D]` each."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, states: Sequence[Tensor], layer: int) -> Standard:
        """`layer` counts from 1, as `states` `[L+1, T, D]` begin with the embeddings."""
        every = torch.cat([state[layer] for state in states]).double()
        return cls(every.mean(dim=0), every.std(dim=0).clamp(min=1e-12))

    def __call__(self, vectors: Tensor) -> Tensor:
        return (vectors.double() - self.mean) / self.deviation


def zeroing_distances(record: LayerRecord, example: int, target: int, how: Standard) -> Tensor:
    """`1 - cos` of the target's output with and without each source's value, both standardised: `[T]`, not normalised.

    Every dimension has its mean taken away and is divided by its deviation before the distance, so
    that a few large ones cannot decide it (Timkey & van Schijndel 2021; Mohebbi et al. 2023, A.1).
    """
    zeroed = ZeroedValues.of(record)
    if zeroed is None:
        raise UnsupportedMethodError(
            f"Standardised Value Zeroing needs the rest of the layer in closed form, which {record.title} does not "
            "have: choose a BERT-like model."
        )
    sources = slice(0, int(record.mask[example].sum()))
    out = how(zeroed.outputs(example, sources, torch.tensor([target]))[:, 0])  # [S, D]
    plain = how(zeroed.output[example, target])
    unit = torch.nn.functional.normalize
    return 0.5 * (unit(out, dim=-1) - unit(plain, dim=-1)).square().sum(dim=-1)


def standardised_rows(context: Context) -> list[Result]:
    """Per sentence, the masked token's row of every layer by standardised cosine distance, as shares."""
    bench = context.bench
    states = hidden_states(bench, context.ready, context.progress)
    hows = [Standard.of(states, layer + 1) for layer in range(bench.depth)]
    corpus = [[item.sample.key, item.ids] for item in context.ready]
    keys = [
        content_key("standardised", item.sample.key, item.ids, bench.fingerprint, corpus)
        for item in context.ready
    ]

    @torch.no_grad()
    def compute(batch: Sequence[int]) -> list[Result]:
        ready = [context.ready[i] for i in batch]
        record = bench.model(**bench.inputs_of(ready), output_decomposition=True).decomposition
        results: list[Result] = []
        for b, one in enumerate(ready):
            rows = [
                zeroing_distances(layer, b, one.position, how)
                for layer, how in zip(record, hows, strict=True)
            ]
            results.append({"rows": rounded([(row / row.sum()).tolist() for row in rows])})
        return results

    order = bench.batches(context.ready)
    return context.store("standardised").run(keys, order, compute, "distances", context.progress)


@item(
    PAPER,
    "Figure A.1",
    "cue alignment of Value Zeroing by layer, for three distances and for normalised representations",
    "masked_lm",
    "blimp",
    (
        Claim(
            "The choice of distance matters little: best layers within 0.1 of each other.",
            lambda ours: (
                max(_best_layer(ours, d) for d in DISTANCES)
                - min(_best_layer(ours, d) for d in DISTANCES)
                < 0.1
            ),
        ),
        Claim(
            "Standardising the representations makes no noticeable difference: every layer within 0.1 (cosine).",
            lambda ours: all(
                abs(v - ours[name.replace(NORMALISED, "cosine")]) < 0.1
                for name, v in ours.items()
                if name.startswith(NORMALISED)
            ),
        ),
    ),
    "The figure gives no numbers. Standardised: every dimension by its mean and deviation over the tokens of these "
    "sentences (Timkey & van Schijndel 2021).",
)
def figure_a1(desk: Desk) -> Found:
    context = desk.context("blimp distances", 200)
    scores = with_cues(context)
    names = list(context.method_set.maps)
    rows = [
        mean_row(layer_name(label, layer), values)
        for label, name in zip(DISTANCES, names, strict=True)
        for layer, values in enumerate(alignments(scores, name, "dot_product")[0])
    ]
    made = [
        replace(s, layers={NORMALISED: np.array(r["rows"])})
        for s, r in zip(context.scores, standardised_rows(context), strict=True)
        if s.ready.sample.cues
    ]
    by_layer = zip(*[_dots(s) for s in made], strict=True)
    rows += [
        mean_row(layer_name(NORMALISED, layer), values) for layer, values in enumerate(by_layer)
    ]
    return Found(rows, len(scores))


def _dots(scores: Scores) -> list[float]:
    """The standardised row's share on the cue words, per layer."""
    cues = scores.ready.unit_mask(scores.ready.sample.cues)
    return [dot_product(scores.by_unit(row), cues) for row in scores.layers[NORMALISED]]
