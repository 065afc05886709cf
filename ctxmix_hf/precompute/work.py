"""A worker: loads the model once, then turns tasks into parts of the store."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ctxmix_hf.errors import StoreError, StoreInUseError
from ctxmix_hf.hub import comparing
from ctxmix_hf.hub.computing import Kept
from ctxmix_hf.hub.folders import MANIFEST, write_atomic
from ctxmix_hf.hub.manifest import Manifest, load_manifest
from ctxmix_hf.hub.merging import copy_batches, empty_like
from ctxmix_hf.hub.store import MapStore
from ctxmix_hf.loading import load, quiet
from ctxmix_hf.precompute.compute import compute_batch
from ctxmix_hf.precompute.folder import Folder
from ctxmix_hf.precompute.job import Job
from ctxmix_hf.precompute.plan import Batch
from ctxmix_hf.text.kinds import Model, Tokenizer

LOCK_WAIT = 20.0  # seconds a worker that was just killed may take to let go of its part
Report = Callable[[int, int], None]  # sentences, tokens


def load_model(job: Job, device: str | None = None) -> tuple[Any, Any]:
    """Without a masked LM's head, which costs as much as the encoder of a small model and leaves nothing in a store."""
    quiet()
    torch.set_num_threads(job.threads)
    return load(
        job.model,
        revision=job.revision,
        dtype=job.dtype,
        device=device or job.device,
        lm_head=False,
        trust_remote_code=job.trust_remote_code,
    )


@dataclass
class TaskWorker:
    """A model that works off tasks."""

    job: Job
    model: Model
    tokenizer: Tokenizer
    manifest: Manifest

    @classmethod
    def begin(cls, job: Job, device: str | None = None) -> TaskWorker:
        """In a process of its own: the model is loaded here, and must be the store's."""
        manifest = load_manifest(Path(job.out) / MANIFEST)
        model, tokenizer = load_model(job, device)
        comparing.require_same(manifest, model, tokenizer)
        return cls(job, model, tokenizer, manifest)

    def make_part(self, number: int) -> int:
        """The part store of a task, finished; begun ones are continued."""
        folder = Folder(Path(self.job.out))
        path = folder.part(number)
        if is_finished(path):
            return number
        with folder.errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            folder.pid_file(number).write_text(f"{socket.gethostname()} {os.getpid()}\n")
        failed: dict[str, str] = {}
        with _open_part(path, self.manifest) as store:
            self.fill(store, folder.read_task(number), failed.update)
            with folder.errors():
                write_atomic(folder.failures_file(number), json.dumps(failed, ensure_ascii=False))
        return number

    def fill(
        self,
        store: MapStore,
        batches: list[Batch],
        failed: Callable[[dict[str, str]], None],
        report: Report | None = None,
    ) -> None:
        """Add every batch that is not there yet."""
        recipes = self.manifest.recipes()
        for batch in batches:
            if any(name in store for name, _, _ in batch):
                continue
            made, lost = compute_batch(
                self.model, self.tokenizer, recipes, batch, self.manifest.wanted()
            )
            failed(dict(lost))
            if made is not None:
                rows, maps, about, keys = made
                kept = [batch[i] for i in rows]
                labels = [label for _, _, label in kept]
                store.add_maps(
                    [name for name, _, _ in kept],
                    maps,
                    split=split_name(self.job.split),
                    labels=labels,
                    examples=about,
                    keys=keys,
                )
            if report is not None:
                report(
                    len(batch),
                    0 if made is None else _count(next(iter(made[1].values()))),
                )


def _count(made: Kept) -> int:
    """The tokens that went into a batch of maps, whatever their units are."""
    return sum(
        size
        for tokens, mask in zip(made.tokens, made.mask.tolist(), strict=True)
        for size, real in zip(tokens.sizes(), mask, strict=True)
        if real
    )


def split_name(split: str) -> str:
    """`train[:100]` as a file name."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in split)[:64]


def is_finished(path: Path) -> bool:
    return (path / MANIFEST).exists() and load_manifest(path / MANIFEST).complete


def is_sound(folder: Folder, number: int) -> bool:
    """Whether a part of an earlier run is finished and as it was written. A damaged one goes: it is made again."""
    path = folder.part(number)
    try:
        if not is_finished(path):
            return False
        MapStore.open(path).verify()
        folder.read_failures(number)
        return True
    except StoreError:
        folder.clear(f"parts/{path.name}")
        folder.failures_file(number).unlink(missing_ok=True)
        return False


def _open_part(path: Path, manifest: Manifest) -> MapStore:
    deadline = time.monotonic() + LOCK_WAIT
    while True:
        try:
            if (path / MANIFEST).exists():
                return MapStore.open(path, append=True, repair=True)
            return MapStore.from_manifest(path, empty_like(manifest))
        except StoreInUseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def take_in(store: MapStore, path: Path) -> None:
    """Append a part's batches to the store, those that are not there yet."""
    part = MapStore.open(path)
    missing = [item for item in part.index.batches if not any(name in store for name in item[1])]
    index = SimpleNamespace(batches=missing, rows=part.index.rows)
    copy_batches(store, SimpleNamespace(index=index, source=part.source, manifest=part.manifest))
