"""A training loop that can be killed at any moment and goes on from its last checkpoint."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

LossAt = Callable[[int], Tensor]


@dataclass(frozen=True)
class Plan:
    """How long and how fast one stage learns. A checkpoint of another plan is refused, not mixed in."""

    name: str
    steps: int
    learning_rate: float
    seed: int
    warmup: int = 100
    weight_decay: float = 0.01
    ema_decay: float = 0.0
    checkpoint_every: int = 100


class Log:
    """One JSON object per line, appended at once, so that a killed run leaves its log behind."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, **entry: object) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(entry, sort_keys=True) + "\n")
        if not sys.stderr.isatty():
            print(json.dumps(entry, sort_keys=True), flush=True)


class LengthBatches:
    """Batch number -> indices, as a pure function of the seed, so that resuming needs only the step.

    Sentences of similar length share a batch: padding would cost half the time otherwise.
    """

    def __init__(self, lengths: list[int], size: int, seed: int, pool: int = 32) -> None:
        if len(lengths) < size:
            raise ValueError(f"{len(lengths)} examples do not fill one batch of {size}")
        self.lengths, self.size, self.seed, self.pool = lengths, size, seed, pool
        self.per_epoch = len(lengths) // size
        self._epoch, self._batches = -1, list[list[int]]()

    def __getitem__(self, step: int) -> list[int]:
        epoch, offset = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._shuffle(epoch)
        return self._batches[offset]

    def _shuffle(self, epoch: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(self.seed * 1000 + epoch)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        width = self.size * self.pool
        pools = [order[i : i + width] for i in range(0, len(order), width)]
        ordered = [i for pool in pools for i in sorted(pool, key=lambda j: self.lengths[j])]
        batches = [
            ordered[i : i + self.size] for i in range(0, self.per_epoch * self.size, self.size)
        ]
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def save_atomically(state: dict[str, object], file: Path) -> None:
    """A kill during the write leaves the previous checkpoint whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(file)


def train(
    model: nn.Module, plan: Plan, prepare: Callable[[], LossAt], work: Path, log: Log
) -> None:
    """Runs the steps that are still missing; afterwards `model` holds the averaged weights.

    `prepare` builds the batches, which a finished stage does not need; it returns the loss of a step, which
    may use torch's global generator.
    """
    finished = work / f"{plan.name}.done.pt"
    if finished.is_file():
        state = _matching(finished, plan)
        model.load_state_dict(state["model"])
        return
    loss_at = prepare()
    optimizer = _optimizer(model, plan)
    average = {k: v.clone() for k, v in model.state_dict().items()} if plan.ema_decay else None
    checkpoint = work / f"{plan.name}.checkpoint.pt"
    torch.manual_seed(plan.seed)
    start = _restore(checkpoint, plan, model, optimizer, average)
    log.write(event="resume" if start else "start", stage=plan.name, step=start, steps=plan.steps)
    _run(model, plan, loss_at, optimizer, average, checkpoint, log, start)
    if average is not None:
        model.load_state_dict(average)
    save_atomically({"plan": asdict(plan), "model": model.state_dict()}, finished)
    checkpoint.unlink(missing_ok=True)


def _run(
    model: nn.Module,
    plan: Plan,
    loss_at: LossAt,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor] | None,
    checkpoint: Path,
    log: Log,
    start: int,
) -> None:
    began, total, count = time.monotonic(), 0.0, 0
    model.train()
    steps = range(start, plan.steps)
    for step in tqdm(
        steps, desc=plan.name, initial=start, total=plan.steps, disable=not sys.stderr.isatty()
    ):
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * _share(step, plan)
        loss = loss_at(step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if average is not None:
            _follow(average, model, min(plan.ema_decay, (1 + step) / (10 + step)))
        total, count = total + loss.item(), count + 1
        if (step + 1) % plan.checkpoint_every == 0:
            save_atomically(_snapshot(plan, model, optimizer, average, step + 1), checkpoint)
            seconds = round(time.monotonic() - began, 1)
            log.write(
                event="step",
                stage=plan.name,
                step=step + 1,
                loss=round(total / count, 4),
                seconds=seconds,
            )
            total, count = 0.0, 0
    log.write(
        event="end", stage=plan.name, step=plan.steps, seconds=round(time.monotonic() - began, 1)
    )


def _share(step: int, plan: Plan) -> float:
    """Linear warm-up, then cosine to zero."""
    if step < plan.warmup:
        return (step + 1) / plan.warmup
    return 0.5 * (1 + math.cos(math.pi * (step - plan.warmup) / max(1, plan.steps - plan.warmup)))


def _optimizer(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    """No decay on biases and LayerNorm, as BERT was trained."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": plan.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.98), fused=True)


@torch.no_grad()
def _follow(average: dict[str, Tensor], model: nn.Module, decay: float) -> None:
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            average[name].lerp_(value, 1 - decay)


def _snapshot(
    plan: Plan,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor] | None,
    step: int,
) -> dict[str, object]:
    return {
        "plan": asdict(plan),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "average": average,
        "random": torch.get_rng_state(),
        "step": step,
    }


def _restore(
    file: Path,
    plan: Plan,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor] | None,
) -> int:
    if not file.is_file():
        return 0
    state = _matching(file, plan)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if average is not None:
        average.update(state["average"])
    torch.set_rng_state(state["random"])
    return int(state["step"])


def _matching(file: Path, plan: Plan) -> dict:
    state = torch.load(file, weights_only=True)
    if state["plan"] != asdict(plan):
        raise SystemExit(
            f"{file} belongs to another plan ({state['plan']}); remove it, or use another --work"
        )
    return state
