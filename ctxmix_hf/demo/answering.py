"""One request answered: what was asked as bytes in, an answer or a sentence as bytes out; it can be told to stop."""

from __future__ import annotations

import importlib
import pickle
import traceback
from types import FrameType

_busy = False


class Cancelled(BaseException):
    """The visitor left, or the time was up. `halfway`: it struck an import or a compilation, so some module or
    compiled function may be there by half.
    """

    def __init__(self, halfway: bool) -> None:
        self.halfway = halfway


BREAKABLE = (
    "importlib",
    "/numba/core/",
)  # code that leaves something broken behind if it is stopped


def stop(_: int, frame: FrameType | None) -> None:
    if _busy:
        while frame is not None and not any(part in frame.f_code.co_filename for part in BREAKABLE):
            frame = frame.f_back
        raise Cancelled(frame is not None)


def answer(task: bytes, most: int) -> bytes:
    """What goes back: ("ok", value), ("error", name of the class, text), or ("stopped", whether this process is of no
    more use)."""
    global _busy
    from ctxmix_hf.errors import CtxmixError

    try:
        _busy = True
        module, name, args, kwargs = pickle.loads(task)
        made = pickle.dumps(("ok", getattr(importlib.import_module(module), name)(*args, **kwargs)))
        _busy = False
        if len(made) > most:
            text = (
                f"The answer would have {len(made) / 1e6:,.0f} MB; this server sends at most "
                f"{most / 1e6:,.0f}. Ask for less."
            )
            return pickle.dumps(("error", "RefusedError", text))
        return made
    except Cancelled as cancelled:
        return pickle.dumps(("stopped", cancelled.halfway))
    except CtxmixError as error:
        return pickle.dumps(("error", type(error).__name__, str(error)))
    except Exception as error:
        if (
            isinstance(error, MemoryError)
            or "allocate memory" in str(error)
            or "enough memory" in str(error)
        ):
            text = (
                "This request needs more memory than the server gives to one. Choose a smaller "
                "model, a shorter text or another method."
            )
            return pickle.dumps(("error", "RefusedError", text))
        traceback.print_exc()
        return pickle.dumps(
            (
                "error",
                "RefusedError",
                "Something unexpected went wrong; the server's log has the details.",
            )
        )
    finally:
        _busy = False
