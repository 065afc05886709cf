"""The process that computes for visitors: one request at a time, within a memory limit, stopped
from outside when it overruns.

The server talks to it through a socket: (function, arguments) in, an answer or a sentence out. It
ends when the server does.
"""

from __future__ import annotations

import importlib
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from types import FrameType

from ctxmix_hf.demo.settings import READY

_busy = False


class Cancelled(BaseException):
    """The visitor left, or the time was up. `importing`: it struck an import, so some module may be there by half."""

    def __init__(self, importing: bool) -> None:
        self.importing = importing


def stop(_: int, frame: FrameType | None) -> None:
    if _busy:
        while frame is not None and "importlib" not in frame.f_code.co_filename:
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
        return pickle.dumps(("stopped", cancelled.importing))
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


def main(file: int, megabytes: int, most: int, threads: int, nice: int) -> None:
    """Serve requests from the socket `file` until the server is gone."""
    os.nice(nice)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C in the terminal is for the server, which then closes the socket
    signal.signal(signal.SIGUSR1, stop)
    connection, tasks = Connection(file), queue.SimpleQueue[bytes]()

    def read() -> None:
        try:
            while True:
                tasks.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)

    def tell(what: bytes) -> None:
        try:
            connection.send_bytes(what)
        except OSError:  # the server is gone: nobody is left to tell, and nothing to complain of
            os._exit(0)

    import torch

    from ctxmix_hf.demo import api, handlers, pictures, stores  # noqa: F401  everything a request may name

    torch.set_num_threads(threads)
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20, megabytes << 20))
    tell(READY)
    threading.Thread(target=read, daemon=True).start()
    while True:
        tell(answer(tasks.get(), most))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
