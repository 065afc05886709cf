"""The process that computes for visitors: one request at a time, within a memory limit, stopped
from outside when it overruns.

The server talks to it through a socket: (function, arguments) in, an answer or a sentence out. It
ends when the server does.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection

from ctxmix_hf.demo.answering import answer, stop
from ctxmix_hf.demo.settings import READY


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

    from ctxmix_hf.demo import api, documents, handlers, pictures, stores  # noqa: F401  everything a request may name

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
