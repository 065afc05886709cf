"""The shape of the space that maps are measured in: anisotropy (Ferrando et al. 2022, figure 3) and outlier
weights of the norms (Modarressi et al. 2022, figure 5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctxmix_hf.counting import layer_number
from ctxmix_hf.errors import UnsupportedMethodError
from ctxmix_hf.evaluation.context import Context, evaluation
from ctxmix_hf.evaluation.metrics import NAN, Array, pearson
from ctxmix_hf.evaluation.sessions import watched
from ctxmix_hf.evaluation.table import Cell, EvaluationTable, Form
from ctxmix_hf.records import LayerRecord

SAMPLED = 20  # vectors per sentence and layer
SIGMA = 3.0


# ---- anisotropy ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Directions:
    """Sums of unit vectors, one per sentence: enough for the mean cosine between vectors of different sentences."""

    sums: Array  # [n, D]
    counts: Array  # [n]

    def mean_cosine(self, picks: Array | None = None) -> float:
        """Over all pairs of vectors from two different sentences; `picks` are the sentences of a resample."""
        chosen = np.arange(len(self.counts)) if picks is None else np.asarray(picks, dtype=int)
        sums, counts = self.sums[chosen], self.counts[chosen]
        different = chosen[:, None] != chosen[None]
        pairs = float((np.outer(counts, counts) * different).sum())
        return float(((sums @ sums.T) * different).sum() / pairs) if pairs else NAN


def transformed(layer: LayerRecord, targets: Tensor, sources: Tensor, example: int) -> Tensor:
    """The transformed vectors `T_i(x_j)` after the block's norm, `[K, D]`, for K pairs (Ferrando et al. 2022, eq. 6).

    Args:
        layer: a record with an exact decomposition.
        targets: `[K]`.
        sources: `[K]`.
        example: which of the batch.
    """
    parts = layer.parts("norm1")
    heads = parts.heads[example]  # [H, T, D]
    weights = layer.attention[example][:, targets, sources]  # [H, K]
    made = (weights.unsqueeze(-1) * heads[:, sources]).sum(dim=0)
    if parts.scale is not None:
        made = made * parts.scale[example, targets]
    own = (targets == sources).unsqueeze(-1)
    return torch.where(own, parts.diagonal[example, targets], made)


@torch.no_grad()
def directions(context: Context) -> dict[str, list[Directions]]:
    """`outputs` of the attention block and `transformed` vectors, one `Directions` per layer each."""
    context.need_sentences(2)
    bench, kept = context.bench, {"outputs": [], "transformed": []}  # type: ignore[var-annotated]
    order = context.bench.batches(context.ready)
    for batch in watched(order, "anisotropy", context.progress):
        ready = [context.ready[i] for i in batch]
        record = bench.model(**bench.inputs_of(ready), output_decomposition=True).decomposition
        for b, item in enumerate(ready):
            n = len(item.ids)
            draw = torch.Generator().manual_seed(context.seed + n)
            targets, sources = torch.randint(0, n, (2, min(SAMPLED, n * n)), generator=draw)
            for name in kept:
                vectors = [
                    layer.block.output[b, targets]
                    if name == "outputs"
                    else transformed(layer, targets, sources, b)
                    for layer in record
                ]
                units = [torch.nn.functional.normalize(v.double(), dim=-1) for v in vectors]
                kept[name].append((torch.stack([u.sum(dim=0) for u in units]), len(targets)))
    return {
        name: [
            Directions(
                np.stack([sums[layer].numpy() for sums, _ in found]),
                np.array([float(count) for _, count in found]),
            )
            for layer in range(len(found[0][0]))
        ]
        for name, found in kept.items()
    }


@evaluation(
    "anisotropy",
    "mean cosine between vectors of different sentences: block outputs and transformed vectors, by layer",
    "Ferrando et al. 2022, figure 3",
)
def anisotropy(context: Context) -> EvaluationTable:
    """One row per kind of vector and layer; near 0 is isotropic, near 1 is a narrow cone."""
    rows: list[list[Cell]] = [
        [name, layer_number(layer), made.mean_cosine(), len(made.counts)]
        for name, found in directions(context).items()
        for layer, made in enumerate(found)
    ]
    form = Form("lines", "vectors", "cosine", "layer", title="Mean cosine of random vectors")
    caption = f"mean cosine between {SAMPLED} random vectors per sentence, over pairs of sentences"
    return context.table(
        "anisotropy", ("vectors", "layer", "cosine", "n"), rows, caption, form=form
    )


# ---- norm weights -------------------------------------------------------------------------------------------------
def outliers(weights: Array, sigma: float = SIGMA) -> NDArray[np.intp]:
    """Dimensions whose weight is at least `sigma` standard deviations from the mean weight."""
    away = np.abs(weights - weights.mean())
    return np.flatnonzero((away >= sigma * weights.std()) & (away > 0))


@dataclass(frozen=True)
class NormWeights:
    """The weights of a layer's two norms and the dimensions in which either has an outlier."""

    first: Array  # [D]
    second: Array  # [D]
    dimensions: NDArray[np.intp]

    @property
    def correlation(self) -> float:
        """Pearson over the outlier dimensions; NaN below three of them."""
        return pearson(self.first[self.dimensions], self.second[self.dimensions])


def norm_weights(context: Context, sigma: float = SIGMA) -> list[NormWeights]:
    """One per layer of a model with two norms in each (post-LN); needs no data."""
    found = []
    for layer in context.bench._probe:
        norms = (layer.block.norm1, *layer.block.tail)
        if len(norms) != 2 or any(n is None or n.weight is None for n in norms):
            raise UnsupportedMethodError(
                f"norm_outliers compares the two norms of a post-LN layer, and {layer.title} does "
                "not have two with weights: choose a BERT-like model."
            )
        first, second = (n.weight.double().cpu().numpy() for n in norms if n is not None)
        either = np.union1d(outliers(first, sigma), outliers(second, sigma))
        found.append(NormWeights(first, second, either))
    return found


@evaluation(
    "norm_outliers",
    "outlier weights of the two norms of each layer and their correlation; needs no data",
    "Modarressi et al. 2022, figure 5",
)
def norm_outliers(context: Context) -> EvaluationTable:
    """One row per layer: how many dimensions have a weight three standard deviations off, in either norm, and Pearson
    between the two norms' weights there."""
    rows: list[list[Cell]] = [
        ["LN1, LN2", layer_number(i), made.correlation, len(made.dimensions), len(made.first)]
        for i, made in enumerate(norm_weights(context))
    ]
    form = Form("lines", "between", "pearson", "layer", title="Outlier weights of the two norms")
    columns = ("between", "layer", "pearson", "outliers", "n")
    caption = (
        "Pearson correlation of the two norms' weights in the dimensions where either is an outlier"
    )
    return context.table("norm_outliers", columns, rows, caption, form=form)
