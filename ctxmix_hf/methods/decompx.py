"""DecompX: every token's vector as a sum of one vector per input token, through all layers (Modarressi et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ctxmix_hf.algebra.budget import Budget
from ctxmix_hf.algebra.shares import to_shares
from ctxmix_hf.counting import layer_index
from ctxmix_hf.errors import InputError, UnsupportedMethodError
from ctxmix_hf.methods.base import METHODS, About, InputMethod
from ctxmix_hf.methods.linearised import LinearRest, Share, check_chain, no_share, rounding
from ctxmix_hf.records import LayerRecord, ModelRecord, ValueMap


@METHODS.register("decompx")
@dataclass(frozen=True)
class Decompx(InputMethod):
    """`||x^l[i<-k]||`: length of input token k's part of token i after layer l, `x^l_i = sum_k
    x^l[i<-k]` (Modarressi et al. 2023).

    The parts start as `x^0[i<-k] = (i=k) e^0_i` and pass every layer whole, section 3 of the paper:
    attention with its weights frozen, residuals, norms with the deviation of the whole vector, the
    feed-forward with each activation a line through zero,
    `phi(h)/h`. Every bias b is shared out over the parts it is added to, by default in proportion
    to `|<part, b>|`, so nothing is left over: the parts add up to the hidden states, which is
    checked at every layer. Each layer's map is from the input: it is never rolled out. Layers whose
    feed-forward or values are not proved are refused.

    Args:
        biases: who gets a bias: `"absdot"` in proportion to `|<part, b>|` (the paper's), `"abssim"`
            to the cosine's size, `"norm"` to the part's length, `"equal"` all parts alike,
            `"first"` the first token, `"none"` nobody (the parts then fall short).
        row_normalised: divide each row by its sum.
        public_code: in the first layer the bias of the values stays with the token whose value it
            is, as in the authors' code.

    Example:
        >>> m = cm.explain(model, "The keys to the cabinet are here.", "decompx")
        >>> record = model(**inputs, output_decomposition=True).decomposition
        >>> Decompx().vectors(record, target=3).sum(dim=0)      # token 3's last hidden state
    """

    biases: str = "absdot"
    row_normalised: bool = False
    public_code: bool = False

    choices = {"biases": ("absdot", "abssim", "norm", "equal", "first", "none")}
    differentiable = False
    about = About(
        "length of each input token's part of a hidden token",
        "Modarressi et al. 2023 (DecompX)",
        "||x^l[i<-k]||, x^l_i = sum_k x^l[i<-k]",
        "about T forward passes; two [T, T, D] tensors",
        "feed_forward",
        "all layers: attention, residuals, norms, feed-forward, biases",
        "why attention looks where it looks",
    )

    def check(self, record: ModelRecord) -> None:
        """Do the layers follow each other, and are their values and feed-forwards proved?"""
        check_chain(record, "decompx")
        for layer in record:
            LinearRest.of(layer, "decompx")
            _values(layer)

    def input_maps(self, record: ModelRecord, budget: Budget) -> tuple[Tensor, dict[str, Any]]:
        """`[B, L, T, T]`, and under `"gap"` how far the parts are from adding up."""
        tokens = record.mask.shape[1]
        maps = record[0].layer_input.new_zeros(len(record.mask), len(record), tokens, tokens)
        gaps = []
        for b in range(len(record.mask)):
            real = record.mask[b].nonzero().squeeze(-1)
            for index, parts in enumerate(self._walk(record, b, real, budget)):
                maps[b, index, real[:, None], real] = parts.norm(dim=-1)
                gaps.append(_gap(record[index], parts, b, real))
        for layer in record:
            layer.release()
        notes = {"gap": max(gaps)} if self.biases != "none" else {}
        return (to_shares(maps, record.mask) if self.row_normalised else maps), notes

    def vectors(
        self,
        record: ModelRecord,
        target: int,
        layer: int = -1,
        example: int = 0,
        max_memory: Any = None,
    ) -> Tensor:
        """The parts of one token themselves.

        Args:
            record: what `model(..., output_decomposition=True).decomposition` holds.
            target: the token's place in the batch's row.
            layer: after which layer, 1 to L; -1 the last.
            example: which example of the batch.
            max_memory: bytes for temporaries, or like `"500MB"`.

        Returns:
            `[T source, D]`, zero on padding; with `biases` other than `"none"` its sum is the token's hidden state.

        Raises:
            InputError: there is no such token, example or layer.
            UnsupportedMethodError: a layer of this model cannot be followed.

        Example:
            >>> Decompx().vectors(record, target=3).norm(dim=-1)
        """
        place = layer_index(layer, range(1, len(record) + 1))
        batch, tokens = record.mask.shape
        if not 0 <= example < batch or not 0 <= target < tokens or not record.mask[example, target]:
            raise InputError(
                f"There is no token {target} in example {example}: the batch has {batch} examples "
                f"of at most {tokens} tokens."
            )
        real = record.mask[example].nonzero().squeeze(-1)
        made = record[0].layer_input.new_zeros(tokens, record[0].layer_input.shape[-1])
        for index, parts in enumerate(self._walk(record, example, real, Budget.of(max_memory))):
            if index == place:
                made[real] = parts[int((real == target).nonzero())]
                break
        for held in record:
            held.release()
        return made

    def _walk(self, record: ModelRecord, b: int, real: Tensor, budget: Budget) -> Iterator[Tensor]:
        """The parts after each layer, `[n target, n source, D]` over the real tokens of example b;
        used up by the next step.
        """
        self.check(record)
        share: Share = no_share if self.biases == "none" else partial(_shared, by=self.biases)
        parts = torch.diag_embed(record[0].layer_input[b, real].mT).permute(1, 2, 0).contiguous()
        for layer in record:
            rest, values = LinearRest.of(layer, "decompx").on(b, real), _values(layer)
            own = self.public_code and layer.index == 0
            joined = _attended(layer, values, parts, b, real, budget, share, own)
            for targets in budget.chunks(len(real), rest.bytes_each(len(real))):
                parts[targets] = rest(joined[targets], 0, targets, share)
            if self.biases != "none":
                _prove(layer, parts, b, real)
            yield parts


def _attended(
    layer: LayerRecord,
    values: ValueMap,
    parts: Tensor,
    b: int,
    real: Tensor,
    budget: Budget,
    share: Share,
    own_bias: bool,
) -> Tensor:
    """Parts of the state before the first norm: `sum_j A[h,i,j] Wo_h Wv_h x[j<-k]`, residual and biases."""
    block = layer.block
    count, width = len(real), parts.shape[-1]
    weights = layer.attention[b][:, real[:, None], real]  # [H, n, n]
    heads, size = values.weight.shape[:2]
    into, out = values.weight.flatten(0, 1), block.projection.flatten(0, 1)  # [HE, D], [HE, D]
    bias = torch.einsum("hi,he,hed->id", weights.sum(dim=-1), values.bias[:, 0], block.projection)
    shift = torch.zeros_like(bias) if block.projection_bias is None else block.projection_bias
    bias = shift.expand_as(bias) if own_bias else bias + shift
    entered = parts
    if values.input_norm is not None:
        norm = values.input_norm
        entered = torch.empty_like(parts)
        each = 4 * count * width * parts.element_size()
        for tokens in budget.chunks(count, each):
            some = norm.direction(parts[tokens]) / norm.deviation[b, real[tokens]][:, None]
            entered[tokens] = some if norm.bias is None else share(some, norm.bias, tokens)
    joined = torch.empty_like(parts)
    each = 4 * count * max(width, heads * size) * parts.element_size()
    for sources in budget.chunks(count, each):
        made = entered[:, sources] @ into.mT  # [n, sources, HE]
        if own_bias:
            places = torch.arange(sources.start, sources.stop)
            made[places, places - sources.start] += values.bias.flatten()
        mixed = torch.einsum("hij,jkhe->ikhe", weights, made.unflatten(-1, (heads, size)))
        joined[:, sources] = mixed.flatten(2) @ out
    everyone = slice(0, count)
    if block.branch_norm is not None:
        norm = block.branch_norm
        joined = share(joined, bias, everyone)
        joined = norm.direction(joined) / norm.deviation[b, real][:, None]
        joined = joined if norm.bias is None else share(joined, norm.bias, everyone)
        return joined.add_(parts)
    return share(joined.add_(parts), bias, everyone)


def _shared(parts: Tensor, bias: Tensor, targets: slice, by: str) -> Tensor:
    """`part_ik + w_ik b`, the weights of a row summing to 1; where no part has any weight it is the token's own."""
    bias = bias.to(parts).expand(len(parts), -1)  # [t, D]
    dots = (parts @ bias[..., None]).squeeze(-1)
    lengths = parts.norm(dim=-1)
    if by == "absdot":
        weights = dots.abs()
    elif by == "abssim":
        scale = lengths * bias.norm(dim=-1, keepdim=True)
        weights = dots.abs() / torch.where(scale > 0, scale, 1.0)
    elif by == "norm":
        weights = lengths
    elif by == "equal":
        weights = (lengths > 0).to(parts)
    else:
        weights = torch.zeros_like(dots)
        weights[:, 0] = 1.0
    total = weights.sum(dim=-1, keepdim=True)
    places = torch.arange(targets.start, targets.stop, device=parts.device)
    own = torch.nn.functional.one_hot(places, parts.shape[1]).to(parts)
    weights = torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), own)
    return torch.baddbmm(parts, weights[..., None], bias[:, None])


def _values(layer: LayerRecord) -> ValueMap:
    """How this layer's values depend on its tokens, proved on the recorded ones."""
    found = layer.value_map
    if found is not None:
        x = layer.layer_input if found.input_norm is None else found.input_norm(layer.layer_input)
        made = torch.einsum("btd,hed->bhte", x, found.weight) + found.bias
        theirs = layer.values.transpose(1, 2)[layer.mask]
        gap = (made.transpose(1, 2)[layer.mask] - theirs).abs().max()
        if bool(gap <= rounding(layer) * theirs.abs().max().clamp(min=1.0)):
            return found
    raise UnsupportedMethodError(
        f"{layer.title}: its values were not found to be a linear map of its input or of a norm of "
        "it, so decompx cannot "
        "follow the parts through its attention. Use norm_ff with rollout, or cm.ledger."
    )


def _gap(layer: LayerRecord, parts: Tensor, b: int, real: Tensor) -> float:
    theirs = layer.output[b, real]
    return float((parts.sum(dim=1) - theirs).abs().max() / theirs.abs().max().clamp(min=1.0))


def _prove(layer: LayerRecord, parts: Tensor, b: int, real: Tensor) -> None:
    gap = _gap(layer, parts, b, real)
    if not gap <= 10 * layer.number * rounding(layer):
        raise UnsupportedMethodError(
            f"{layer.title}: the parts do not add up to its output (relative error {gap:.1e}), so decompx refuses them."
        )
