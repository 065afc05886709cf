"""Ctrl-C at any moment: the next call of this and of any other model is clean."""

from __future__ import annotations

import contextlib
import gc
import inspect
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers import pipeline

import ctxmix_hf as cm
from ctxmix_hf.instrumentation.awake import ACTIVE
from ctxmix_hf.precompute.job import Job
from ctxmix_hf.precompute.run import precompute
from tests import zoo

TRIES = 12


class Interrupted(KeyboardInterrupt):
    """Raised by the alarm, as Ctrl-C would be: not an Exception."""


def modes() -> dict[str, object]:
    """What torch keeps per thread and a `with` of ours changes."""
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "functions": torch._C._is_torch_function_enabled(),
        "stack": torch._C._len_torch_function_stack(),
    }


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    def ring(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def calls(tmp_path) -> dict[str, Callable[[], object]]:
    model, tokenizer = cm.load_default()
    text = "The keys to the cabinet [MASK] on the table."
    tokens = torch.randint(5, 90, (1, 9))
    fresh = {"n": 0}
    (tmp_path / "texts.txt").write_text(f"{text}\nThe boy [MASK] old.\n")

    def precomputed() -> object:
        fresh["n"] += 1
        job = Job(
            model="ctxmix/agreement",
            dataset=str(tmp_path / "texts.txt"),
            out=str(tmp_path / f"run{fresh['n']}"),
            methods=("alti",),
        )
        return precompute(job)

    def stored() -> object:
        fresh["n"] += 1
        with cm.MapStore.create(
            tmp_path / f"maps{fresh['n']}", model=model, tokenizer=tokenizer, methods=["alti"]
        ) as store:
            store.add(["a"], [text])
        return store

    pipe = pipeline("context-mixing", model=model, tokenizer=tokenizer)
    return {
        "direct": lambda: model(
            input_ids=tokens,
            output_context_mixing=["alti", "value_zeroing"],
            output_decomposition=True,
        ),
        "streamed": lambda: model(input_ids=tokens, output_context_mixing=["alti"]),
        "first": lambda: cm.instrument(cm.uninstrument(model))(
            input_ids=tokens, output_context_mixing=["norm_enc"]
        ),
        "explain": lambda: cm.explain(model, text, ["alti", "hta_x_input"]),
        "attribute": lambda: cm.attribute(model, text, "integrated_gradients", steps=8),
        "store": stored,
        "precompute": precomputed,
        "pipeline": lambda: pipe(text),
        "ledger": lambda: cm.ledger(model, text),
        "similarity": lambda: cm.similarity(model, text, "The keys are old."),
        "rank": lambda: cm.rank(model, text, ["The keys are old.", "A boy."]),
        "lens": lambda: cm.logit_lens(model, text),
        "verify": lambda: cm.verify(model, {"input_ids": tokens}),
        "model": lambda: model,  # type: ignore[dict-item]
    }


WAYS = ["direct", "streamed", "first", "explain", "attribute", "store", "precompute", "pipeline"]
WAYS += ["ledger", "similarity", "rank", "lens", "verify"]


def test_every_public_function_that_runs_a_model_puts_the_modes_back() -> None:
    """What reads no weights, and what only takes hooks off, needs no guard."""
    quiet = {"list_methods", "load_default", "method", "mixing_ratios", "plot_methods"}
    quiet |= {"supported_architectures", "uninstrument"}
    functions = {name for name in cm.__all__ if inspect.isfunction(getattr(cm, name))}
    assert {name for name in functions if not hasattr(getattr(cm, name), "__wrapped__")} == quiet


@pytest.mark.parametrize("tries", [TRIES, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", WAYS)
def test_after_an_interrupt_everything_is_as_before(way: str, tries: int, alarm, tmp_path) -> None:
    warnings.simplefilter("ignore")
    ways = calls(tmp_path)
    model, run = ways["model"](), ways[way]
    other, inputs = zoo.build("bert")
    shapes = [torch.randint(5, 90, (2, n)) for n in (4, 7, 11)]
    with torch.no_grad():
        expected = [model(input_ids=ids).logits for ids in shapes]
        theirs = other(**inputs)[0]
    run()
    started = time.perf_counter()
    run()
    seconds = time.perf_counter() - started
    chance, struck, before = random.Random(0), 0, modes()
    for n in range(tries):
        try:
            alarm(max(1e-5, chance.random() * seconds))
            run()
            alarm(0)
            seconds *= 0.7  # it was measured while the machine was busier
        except Interrupted:
            struck += 1
        finally:
            alarm(0)
        assert ACTIVE.get() is None
        assert modes() == before, "a mode stayed on the thread"
        if way == "first":  # may have been struck while the model was plain
            cm.instrument(model)
        with torch.no_grad():
            plain = model(input_ids=shapes[n % 3])
            assert torch.equal(plain.logits, expected[n % 3]) and not hasattr(
                plain, "context_mixing"
            )
            assert torch.equal(other(**inputs)[0], theirs)
    assert struck > tries // 4, "the alarm hardly ever struck inside a call"
    assert run() is not None


class Stops(TorchFunctionMode):
    """Raises at the n-th operation of a call, leaving the grad mode as a `with` struck between
    enter and exit leaves it.
    """

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.left -= 1
        if self.left == 0:
            torch._C._set_grad_enabled(not torch.is_grad_enabled())
            torch.set_autocast_enabled("cpu", True)
            raise Interrupted
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("way", WAYS)
def test_whatever_an_interrupt_leaves_switched_is_switched_back(way: str, tmp_path) -> None:
    """The strike that random moments hit once in hundreds: inside `torch.no_grad()`, before its
    exit is on the stack.
    """
    warnings.simplefilter("ignore")
    run, before = calls(tmp_path)[way], modes()
    run()
    for after in (1, 20):
        try:
            with pytest.raises(Interrupted), Stops(after):
                run()
            assert modes() == before
        finally:  # the tests after this one
            torch.set_grad_enabled(True)
            torch.set_autocast_enabled("cpu", False)


# precompute is struck while transformers loads its model, under a mode of its own; rank here runs under none of ours
@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("precompute", "rank")])
def test_what_torch_put_aside_does_not_come_back(way: str, tmp_path) -> None:
    """Struck where torch has just taken our mode off the stack in a generator that puts it back
    when it is collected: that is when the exception is forgotten, long after the call."""
    warnings.simplefilter("ignore")
    run, before, struck = calls(tmp_path)[way], modes(), []
    run()

    def leaving(frame: FrameType, event: str, _: object) -> object:
        if event == "return":
            sys.settrace(None)
            struck.append(frame.f_lineno)
            raise Interrupted
        return leaving

    def entering(frame: FrameType, event: str, _: object) -> object:
        inside = (
            frame.f_code.co_name == "__enter__" and frame.f_code.co_filename == contextlib.__file__
        )
        return (
            leaving
            if inside
            and frame.f_back is not None
            and frame.f_back.f_code.co_name == "handle_torch_function"
            else None
        )

    sys.settrace(entering)
    try:
        run()
    except Interrupted:
        pass
    finally:
        sys.settrace(None)
    gc.collect()
    try:
        assert struck and modes() == before
    finally:
        while torch._C._len_torch_function_stack():
            torch._C._pop_torch_function_stack()


def test_any_exception_inside_a_layer_is_cleaned_up() -> None:
    """Also those that are no Exception, raised by the model itself."""
    model, inputs = zoo.build("bert")
    cm.instrument(model)

    def strike(*_: object) -> None:
        raise SystemExit(3)

    handle = model.encoder.layer[1].output.register_forward_hook(strike)
    with pytest.raises(SystemExit):
        model(**inputs, output_context_mixing=["alti"])
    handle.remove()
    assert ACTIVE.get() is None and not torch.overrides._get_current_function_mode_stack()
    with torch.no_grad():
        assert not hasattr(model(**inputs), "context_mixing")
        assert len(model(**inputs, output_context_mixing=["alti"]).context_mixing) == 1
