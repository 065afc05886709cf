"""A call that asks for attention alone, of a model that earlier calls have proved: nothing else of it is looked at.

Small models pay for Python more than for arithmetic, so layers of one shape become one batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from ctxmix_hf.algebra.rows import BlockAttention
from ctxmix_hf.instrumentation.fused import (
    blocks_of_sdpa,
    named_arguments,
    probabilities_of_scores,
    sdpa_scores,
    widened,
)
from ctxmix_hf.instrumentation.layout import first_tensor
from ctxmix_hf.instrumentation.recorder import NeedsEvidence, Stack
from ctxmix_hf.instrumentation.session import FusedLayers, Instrumentation
from ctxmix_hf.instrumentation.tap import weakly
from ctxmix_hf.records import LayerRecord

JOINED = 2**20  # bytes of probabilities that are made at once: they stay near the processor


class AttentionTap(TorchFunctionMode):
    """Sees the arguments of the one torch function that is each layer's attention."""

    def __init__(self, heard: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self.heard = heard

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is scaled_dot_product_attention:
            self.heard(named_arguments(args, kwargs or {}))
        return func(*args, **(kwargs or {}))


@dataclass
class Waiting:
    """Layers of one shape whose attention has been heard, and not been made yet."""

    like: tuple[Any, ...]
    call: dict[str, Any]  # of the first of them
    scores: list[Tensor]  # of each, while its queries and keys were near the processor
    bytes: int = 0


class AttentionListener:
    """What hooks and tap report to instead of a `Recorder`. Whatever is not as the proofs found it raises
    `NeedsEvidence`, and the call is made again with a recorder.
    """

    embedding_sum = None

    def __init__(
        self,
        owner: Instrumentation,
        known: FusedLayers,
        batches: tuple[int, ...],
        mask: Tensor | None,
        gather: Any,
        defer_from: int | None,
    ) -> None:
        self.owner, self.known, self.batches, self.given_mask = owner, known, batches, mask
        self.gather, self.defer_from = gather, defer_from
        self.tap = AttentionTap(weakly(self._heard))
        self.layers: list[LayerRecord] = []
        self.stacks: dict[str, Stack] = {}
        self.open: list[str] = []  # the modules that run and may be layers, the innermost last
        self.count = 0  # layers whose attention was heard
        self.sums: list[Tensor] = []  # of their outputs: not finite where a number is not
        self.waiting: Waiting | None = None

    # ---- reports from the hooks -------------------------------------------------------------------------------
    def enter(
        self, module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.open.append(name)

    def leave(self, name: str, output: Any) -> None:
        if not self.open or self.open.pop() != name:
            raise NeedsEvidence
        if self.count == len(self.sums) + 1 and name == self.known.names[self.count - 1]:
            hidden = first_tensor(output)
            if hidden is None:
                raise NeedsEvidence
            with torch._C.DisableTorchFunction():
                self.sums.append(hidden.detach().sum(dtype=widened(hidden.dtype)))

    def module(self, module: nn.Module, x: Tensor, y: Tensor) -> None: ...

    def _heard(self, call: dict[str, Any]) -> None:
        query, key = call["query"], call["key"]
        expected = self.known.names[self.count : self.count + 1]
        if (
            not expected
            or expected[0] not in self.open
            or self.count != len(self.sums)
            or query.dim() != 4
            or query.shape[2] != key.shape[2]
            or query.shape[0] not in self.batches
        ):
            raise NeedsEvidence
        self.count += 1
        mask = call.get("attn_mask")
        like = (
            expected[0].rpartition(".")[0],
            query.shape,
            key.shape,
            query.dtype,
            id(mask),
            call.get("is_causal"),
            call.get("scale"),
        )
        if self.waiting is not None and self.waiting.like != like:
            self._finish()
        with torch._C.DisableTorchFunction(), torch.no_grad():
            deferred = None if self.defer_from is None else blocks_of_sdpa(call, self.defer_from)
            if deferred is not None:
                self._finish()
                self._add(like[0], 1, deferred)
                return
            scores = sdpa_scores(query.detach(), key.detach(), call.get("scale"))
        group = self.waiting
        if group is None:
            group = self.waiting = Waiting(like, call, [])
        group.scores.append(scores)
        group.bytes += scores.nbytes
        if group.bytes >= JOINED or not self.gather.reads.layers_joined:
            self._finish()

    # ---- from attention to maps -------------------------------------------------------------------------------
    def _finish(self) -> None:
        """The layers that wait, as records of one batch."""
        group, self.waiting = self.waiting, None
        if group is None:
            return
        with torch._C.DisableTorchFunction(), torch.no_grad():
            made = probabilities_of_scores(
                torch.stack(group.scores),
                group.call.get("attn_mask"),
                bool(group.call.get("is_causal")),
            )
            self._add(group.like[0], len(group.scores), made)

    def _add(self, stack_name: str, layers: int, made: Tensor | BlockAttention) -> None:
        """`layers` layers with attention `[layers, B, H, T, T]`, or one whose attention is left for later."""
        batch, heads, tokens = made.shape[-4:-1]
        nothing = torch.empty(batch, tokens, 0, device="meta")
        no_values = torch.empty(batch, 1, tokens, 0, device="meta")
        outline = torch.empty(batch, heads, tokens, tokens, dtype=made.dtype, device="meta")
        deferred = made if isinstance(made, BlockAttention) else None
        seen = made[0] if isinstance(made, Tensor) else made
        stack = self.stacks.get(stack_name)
        if stack is None or stack.mask.shape != (batch, tokens):
            if stack is not None:
                raise NeedsEvidence
            stack = self.stacks[stack_name] = Stack.of(batch, self.given_mask, seen)
        mask, probabilities = stack.mask, outline
        if isinstance(made, Tensor):
            probabilities = made.flatten(0, 1)
            stack.look_at(probabilities)
            if stack.padded:
                probabilities = (made * mask[:, None, :, None]).flatten(0, 1)
        else:
            stack.look_at(made)
        for _ in range(layers):
            index = len(self.layers)
            proof = self.known.proofs[index]
            self.layers.append(
                LayerRecord(
                    index=index,
                    name=self.known.names[index],
                    layer_input=nothing,
                    attention=outline,
                    values=no_values,
                    output=nothing,
                    mask=mask,
                    path="sdpa",
                    why_not=proof.refused or "nobody asked for its parts.",
                    refused=bool(proof.refused),
                    mixing=proof.mixing,
                    mixing_before=proof.before,
                )
            )
        record = LayerRecord(
            index=len(self.layers) - layers,
            name=self.layers[-layers].name,
            layer_input=nothing,
            attention=probabilities,
            values=no_values,
            output=nothing,
            mask=mask.expand(layers, -1, -1).flatten(0, 1),
            path="sdpa",
            deferred=deferred,
        )
        self.gather.add(record, layers)

    # ---- the end of the call ----------------------------------------------------------------------------------
    def towers(self) -> dict[str, list[int]]:
        """Which layers belong together, as the proofs found them, if all of them ran and all numbers are finite."""
        self._finish()
        if len(self.sums) != len(self.known.names) or self.open:
            raise NeedsEvidence
        if not bool(torch.stack(self.sums).isfinite().all()):
            raise NeedsEvidence  # a recorder says where
        for places in self.known.towers.values():
            if len({self.layers[place].attention.shape[-1] for place in places}) > 1:
                raise NeedsEvidence
        return self.known.towers

    def settle(self, run: Callable[[], Any], inputs: Any) -> None:
        """Nothing is left to be proved."""
