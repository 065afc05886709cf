"""Prompt tuning of a masked LM on target against foil (Mohebbi et al. 2023, section 4.2), so that the figures of a
model before and after tuning can be had: `tune("bert-base-uncased", "tuned/", "blimp/")`, `ctxmix tune`."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

from ctxmix_hf.auto import model_path
from ctxmix_hf.bundled import AGREEMENT
from ctxmix_hf.errors import InputError, OptionError, StoreError
from ctxmix_hf.evaluation.bench import Bench, Ready, open_bench
from ctxmix_hf.evaluation.data import read_data
from ctxmix_hf.evaluation.heldout import EVERY_SET, is_heldout
from ctxmix_hf.evaluation.metrics import SampleSummary, summarise
from ctxmix_hf.evaluation.papers.desk import rows_of
from ctxmix_hf.evaluation.sessions import content_key, watched
from ctxmix_hf.instrumentation.awake import keeps_modes
from ctxmix_hf.loading import in_words
from ctxmix_hf.modeling import uninstrument
from ctxmix_hf.text.kinds import Model, Tokenizer
from ctxmix_hf.unwrapping import base_model

STATE, MOMENTS, MODEL, HELDOUT = "tuning.json", "moments.safetensors", "model", "heldout.json"


@dataclass(frozen=True)
class Tuned:
    """What tuning gave: the accuracy on the held-out half before and after each epoch, and where the model is."""

    model: str
    folder: Path
    learned: int  # sentences
    held_out: int
    accuracy: tuple[SampleSummary, ...]  # before, then after each epoch

    def to_json(self) -> str:
        held = {**asdict(self), "folder": str(self.folder)}
        return json.dumps(held, indent=1)

    def __str__(self) -> str:
        lines = [
            f"{self.model}, tuned on {self.learned} sentences, asked about {self.held_out} it never saw:"
        ]
        for epoch, found in enumerate(self.accuracy):
            when = "before" if epoch == 0 else f"after epoch {epoch}"
            lines.append(f"  {when}: {found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]")
        return "\n".join([*lines, f"The model is {self.folder}."])


@keeps_modes
def tune(
    model: Model | str,
    out: str | Path,
    data: Any = None,
    *,
    epochs: int = 3,
    rate: float = 2e-5,
    batch: int = 32,
    limit: int | None = None,
    only_head: bool = False,
    seed: int = 0,
    progress: bool | None = None,
) -> Tuned:
    """Tune a masked LM to prefer the target to the foil: cross entropy over these two logits at the mask alone.

    Half of the sentences, by a hash of their text, is never learned from; the tuned folder says so
    (`heldout.json`), and evaluations of it take the other half only.

    Args:
        model: Hub id or folder of a masked LM, or `(model, tokenizer)`; what is given stays as it is.
        out: a folder. `model/` in it is the tuned model; the same call again goes on after the last whole epoch.
        data: rows with a target and a foil: BLiMP's folder, a Hub id, a file, or rows; None is the built-in sentences.
        epochs: how often every sentence is learned from.
        rate: AdamW's learning rate.
        batch: sentences per step.
        limit: at most so many sentences are learned from, drawn with the seed.
        only_head: keep the encoder as it is and tune what stands on top of it.
        seed: of the order, the draw and dropout.
        progress: a bar: True, False, or None where stderr is a terminal.

    Returns:
        Accuracies with intervals, and the folder of the model.

    Raises:
        InputError: No sentence has a target and a foil, or one half is empty.
        StoreError: `out` holds the tuning of something else.

    Example:
        >>> tuned = tune("bert-base-uncased", "tuned/", "blimp/")
        >>> reproduce("out/", "value_zeroing", masked_lm=str(tuned.folder), before="bert-base-uncased")
    """
    for name, value in (("epochs", epochs), ("batch", batch), ("limit", limit)):
        if value is not None and value < 1:
            raise OptionError(f"{name} must be at least 1, got {value}.")
    if not rate > 0:
        raise OptionError(f"rate must be above 0, got {rate}.")
    own, tokenizer, name = _opened(model)
    bench = open_bench(own, tokenizer, "masked_lm", AGREEMENT.name, heldout_only=False)
    learned, held_out = _halves(bench, data, limit, seed)
    uninstrument(own)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    asked = {
        "model": name,
        "start": bench.fingerprint,
        "data": content_key("tuning", [r.sample.key for r in (*learned, *held_out)]),
        "options": [rate, batch, limit, only_head, seed],
    }
    state = _state(folder, asked)
    if not state["accuracy"]:
        state["accuracy"] = [asdict(accuracy(bench, own, held_out))]
    chosen = _chosen(own, only_head)
    optimiser = torch.optim.AdamW([p for _, p in chosen], lr=rate)
    done = len(state["accuracy"]) - 1
    if done > epochs:
        raise StoreError(f"{folder} holds {done} epochs; give another folder to tune for {epochs}.")
    if 0 < done < epochs:
        _take_up(folder / f"epoch-{done}", own, optimiser, chosen)
    for epoch in range(done, epochs):
        _learn(bench, own, learned, optimiser, batch, seed + 1_000_003 * (epoch + 1), progress)
        state["accuracy"].append(asdict(accuracy(bench, own, held_out)))
        _keep(folder / f"epoch-{epoch + 1}", own, tokenizer, optimiser, chosen, held_out)
        _put(folder / STATE, {"asked": asked, **state})
        shutil.rmtree(folder / f"epoch-{epoch}", ignore_errors=True)
    last = folder / f"epoch-{epochs}"
    if last.is_dir():
        shutil.rmtree(folder / MODEL, ignore_errors=True)
        shutil.copytree(last, folder / MODEL, ignore=shutil.ignore_patterns(MOMENTS))
    found = tuple(SampleSummary(**one) for one in state["accuracy"])
    return Tuned(name, folder / MODEL, len(learned), len(held_out), found)


def _opened(model: Model | str) -> tuple[Any, Any, str]:
    """`(a model of our own, tokenizer, its name)`."""
    if isinstance(model, tuple | list):
        given, tokenizer = base_model(model[0]), model[1]
        own: Any = type(given)(copy.deepcopy(given.config))
        own.load_state_dict(given.state_dict())
        return (
            own.to(given.device),
            tokenizer,
            str(given.config._name_or_path or type(given).__name__),
        )
    path, plain = model_path(str(model)), {"trust_remote_code": False}
    with in_words(str(model)):
        try:
            return (
                AutoModelForMaskedLM.from_pretrained(path, dtype=torch.float32, **plain),
                AutoTokenizer.from_pretrained(path, **plain),
                str(model),
            )
        except ValueError as error:
            if "trust_remote_code" not in str(error):
                raise
            raise InputError(
                f"The model {str(model)!r} brings code of its own, which tuning never runs: "
                "choose a model whose class is one of transformers."
            ) from error


def _halves(
    bench: Bench, data: Any, limit: int | None, seed: int
) -> tuple[list[Ready], list[Ready]]:
    """Sentences with a target and a foil: to learn from, and held out."""
    read = read_data("agreement" if data is None else rows_of("blimp", data))
    ready, _ = bench.prepare(read.kept)
    usable = [r for r in ready if r.good is not None and r.bad is not None]
    learned = [r for r in usable if not is_heldout(r.sample)]
    held_out = [r for r in usable if is_heldout(r.sample)]
    if not learned or not held_out:
        raise InputError(
            f"{len(usable)} sentences have a target and a foil that are one piece each, and both halves need some: "
            "give rows with words, target_index, good_word and bad_word, or BLiMP's folder."
        )
    if limit is not None and limit < len(learned):
        order = torch.randperm(len(learned), generator=torch.Generator().manual_seed(seed))
        learned = [learned[i] for i in sorted(order[:limit].tolist())]
    return learned, held_out


def two_logits(bench: Bench, own: Any, some: Sequence[Ready]) -> Tensor:
    """The logits of target and foil at the mask, `[B, 2]`."""
    logits = own(**bench.inputs_of(some)).logits
    rows = torch.arange(len(some))
    at = logits[rows, torch.tensor([r.position for r in some])]
    pairs = torch.tensor([[r.good, r.bad] for r in some], device=logits.device)
    return at.gather(1, pairs)


@torch.no_grad()
def accuracy(bench: Bench, own: Any, some: Sequence[Ready]) -> SampleSummary:
    """How often the target is preferred, with its 95 % bootstrap interval."""
    own.train(False)
    right = [0.0] * len(some)
    for rows in bench.batches(some):
        pair = two_logits(bench, own, [some[i] for i in rows])
        for i, value in zip(rows, (pair[:, 0] > pair[:, 1]).tolist(), strict=True):
            right[i] = float(value)
    return summarise(right)


def _chosen(own: Any, only_head: bool) -> list[tuple[str, Tensor]]:
    """The parameters that are tuned: all, or those outside the encoder that the head does not share with it."""
    inside = {id(p) for p in own.base_model.parameters()} if only_head else set()
    named = [(name, p) for name, p in own.named_parameters() if id(p) not in inside]
    if not named:
        raise OptionError("only_head=True: this model has no parameters outside its encoder.")
    return named


def _learn(
    bench: Bench,
    own: Any,
    learned: Sequence[Ready],
    optimiser: Any,
    batch: int,
    seed: int,
    progress: bool | None,
) -> None:
    """One epoch; its order and dropout depend on the seed alone, so that a resumed run is the same run."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        own.train(True)
        steps = torch.split(torch.randperm(len(learned)), batch)
        for rows in watched(steps, "tuning", progress, len(steps)):
            pair = two_logits(bench, own, [learned[int(i)] for i in rows])
            first = torch.zeros(len(rows), dtype=torch.long, device=pair.device)
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(pair, first).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    own.train(False)


def _keep(
    place: Path,
    own: Any,
    tokenizer: Tokenizer,
    optimiser: Any,
    chosen: Any,
    held_out: Sequence[Ready],
) -> None:
    """A whole epoch as a folder that transformers can open, and what the optimiser remembers."""
    part = place.with_name(f".{place.name}.{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    own.save_pretrained(part)
    tokenizer.save_pretrained(part)
    held = {
        "sets": EVERY_SET,
        "rows": len(held_out),
        "rule": "Held out if the first byte of the SHA-256 of the normalised text with its target masked is even "
        "(ctxmix_hf.evaluation.heldout).",
    }
    _put(part / HELDOUT, held)
    moments = {
        f"{name}/{key}": value.detach().clone().contiguous()
        for name, parameter in chosen
        for key, value in optimiser.state[parameter].items()
    }
    save_file(moments, part / MOMENTS)
    shutil.rmtree(place, ignore_errors=True)
    part.replace(place)


def _take_up(place: Path, own: Any, optimiser: Any, chosen: Any) -> None:
    """Weights and the optimiser's memory of the last whole epoch."""
    if not (place / MOMENTS).is_file():
        raise StoreError(f"{place} is not whole; move {place.parent} away to tune anew.")
    held = AutoModelForMaskedLM.from_pretrained(place, dtype=torch.float32)
    own.load_state_dict(held.state_dict())
    moments = load_file(place / MOMENTS)
    for name, parameter in chosen:
        optimiser.state[parameter] = {
            key.rpartition("/")[2]: value
            for key, value in moments.items()
            if key.rpartition("/")[0] == name
        }


def _state(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    path = folder / STATE
    if not path.is_file():
        return {"accuracy": []}
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        same, found = held["asked"] == asked, list(held["accuracy"])
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is not a tuning; move it away to start anew.") from error
    if not same:
        raise StoreError(
            f"{folder} holds the tuning of another model, data or options: give another folder."
        )
    return {"accuracy": found}


def _put(path: Path, held: dict[str, Any]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(held, indent=1), encoding="utf-8")
    part.replace(path)
