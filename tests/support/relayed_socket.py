"""A Unix socket that leads to another one and changes the answers on their way."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Answer = Callable[[bytes], bytes]


class Relay:
    """One question and its answer a connection; hangs up behind what `answer` makes of the answer."""

    def __init__(self, listener: socket.socket, to: str) -> None:
        self.answer: Answer = lambda answer: answer
        self._listener, self._to = listener, to

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), connection, socket.socket(socket.AF_UNIX) as inner:
                inner.connect(self._to)
                inner.sendall(connection.recv(65536))
                answer = b""
                while chunk := inner.recv(65536):
                    answer += chunk
                connection.sendall(self.answer(answer))


@contextmanager
def relayed(path: Path, to: str) -> Iterator[Relay]:
    """A socket at `path` that leads to the one at `to`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)
        relay = Relay(listener, to)
        thread = threading.Thread(target=relay.serve, daemon=True)
        thread.start()
        try:
            yield relay
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5.0)
