"""Who the hooks report to, and a way to run something so that nothing of it outlives the call.

The hooks of an instrumented model sleep until `ACTIVE` names a recorder, an injection or a probe of
their owner. It is set in a context of its own and the tap is taken off the thread in `finally`, so
that an exception of any kind at any point (Ctrl-C among them) leaves this model, every other model
and the thread as they were.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from ctxmix_hf.instrumentation.forks import do_without_lost_threads

ACTIVE: ContextVar[Any] = ContextVar("ctxmix_active", default=None)

Result = TypeVar("Result")
Given = ParamSpec("Given")
_STATE = getattr(torch._C, "_get_torch_function_state", None)  # not in the oldest supported torch


def keeps_modes(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Whatever `function` raises, at whatever moment: this thread's grad mode, autocast and torch
    functions are put back.

    A `with torch.no_grad():` that an interrupt strikes between its enter and its exit leaves the
    thread without gradients.
    """

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        do_without_lost_threads()
        before = Modes()
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            _let_go(error.__traceback__)
            raise
        finally:
            try:
                before.restore()
            finally:  # a second interrupt may have hit the first try
                before.restore()

    return call


def _let_go(trace: TracebackType | None) -> None:
    """Collect now what would be collected when the exception is forgotten.

    torch takes a mode off the stack in a generator that puts it back when it ends
    (`_pop_mode_temporarily`); struck on entering, the generator lives on in a frame of contextlib,
    and would put our tap back long after the call.
    """
    while trace is not None:
        for frame in (
            trace.tb_frame,
            trace.tb_frame.f_back,
        ):  # a signal handler is called from the frame it struck
            if frame is not None and frame.f_code.co_filename == contextlib.__file__:
                with contextlib.suppress(RuntimeError):  # still running: it ends by itself
                    frame.clear()
        trace = trace.tb_next


class Modes:
    """What torch keeps per thread, as it is now. (Inference mode has no switch: torch's own guard ends it.)"""

    def __init__(self) -> None:
        self.grad = torch.is_grad_enabled()
        self.autocast = {device: torch.is_autocast_enabled(device) for device in ("cpu", "cuda")}
        self.functions = _STATE() if _STATE else None
        self.depth = torch._C._len_torch_function_stack()

    def restore(self) -> None:
        while torch._C._len_torch_function_stack() > self.depth:
            torch._C._pop_torch_function_stack()
        if _STATE:
            torch._C._set_torch_function_state(self.functions)  # type: ignore[attr-defined]
        if torch.is_grad_enabled() != self.grad:
            torch._C._set_grad_enabled(self.grad)
        for device, enabled in self.autocast.items():
            if torch.is_autocast_enabled(device) != enabled:
                torch.set_autocast_enabled(device, enabled)


@keeps_modes
def run_awake(active: Any, tap: TorchFunctionMode | None, run: Callable[[], Result]) -> Result:
    """`run()` with hooks reporting to `active` (None: asleep) and `tap` seeing the operations of this thread."""

    def inside() -> Result:
        ACTIVE.set(active)
        return run()

    if tap is not None:
        torch._C._push_on_torch_function_stack(tap)
    return copy_context().run(inside)
