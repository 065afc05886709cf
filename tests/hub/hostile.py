"""A server that does as it likes: it answers each connection with bytes, slowly, never, or for ever."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

Answer = Callable[[socket.socket, str], None]


class HostileServer:
    """Each request is given, with its first line and headers, to `answer`."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.requests, self.sent = answer, [], 0  # type: ignore[var-annotated]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.stop = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> HostileServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop.set()
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(
                    target=self._one, args=(self._listener.accept()[0],), daemon=True
                ).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            asked = b""
            while b"\r\n\r\n" not in asked:
                asked += connection.recv(65536)
            self.requests.append(asked.decode("latin1"))
            self.answer(connection, self.requests[-1])

    def send(self, connection: socket.socket, data: bytes) -> None:
        connection.sendall(data)
        self.sent += len(data)

    # ---- ways to be hostile
    def silent(self, connection: socket.socket, _: str) -> None:
        self.stop.wait(60)

    def drip(self, connection: socket.socket, _: str) -> None:
        self.send(connection, b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1000\r\n\r\n")
        while not self.stop.wait(0.05):
            self.send(connection, b"x")

    def endless(self, connection: socket.socket, _: str) -> None:
        self.send(connection, b"HTTP/1.1 206 Partial Content\r\nConnection: close\r\n\r\n")
        while not self.stop.is_set() and self.sent < 1 << 31:
            self.send(connection, b"x" * (1 << 20))


def reply(status: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    fields = {"Content-Length": str(len(body)), "Connection": "close", **headers}
    return (
        f"HTTP/1.1 {status}\r\n".encode()
        + b"".join(f"{k}: {v}\r\n".encode() for k, v in fields.items())
        + b"\r\n"
        + body
    )
