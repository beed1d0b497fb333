"""How the supervisor notices that a child makes progress: the child reports it, or it answers."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import Protocol

from slackwater.config import host_and_port

GREET_EVERY_S = 1.0
READ_BYTES = 65536


class Progress(Protocol):
    """Never blocks."""

    def is_made(self) -> bool:
        """Whether there was progress since the last call."""

    def close(self) -> None:
        """Frees what one life of the child took."""


class Pipe:
    """Reports of the child itself, by `slackwater.heartbeat.Heartbeat`."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def close_writer(self) -> None:
        """Once the child has it."""
        os.close(self.writer)

    def is_made(self) -> bool:
        try:
            return bool(os.read(self._reader, READ_BYTES))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._reader)


class Greeting:
    """Observes a server that greets whoever connects (nats-server): each greeting is progress."""

    def __init__(self, listen: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = host_and_port(listen)
        self._clock = clock
        self._connection: socket.socket | None = None
        self._next_s = 0.0

    def is_made(self) -> bool:
        if self._connection is None:
            if self._clock() >= self._next_s:
                self._next_s = self._clock() + GREET_EVERY_S
                self._connect()
            return False
        try:
            greeted = bool(self._connection.recv(READ_BYTES))
        except (BlockingIOError, InterruptedError):
            return False  # it is waited for: a server that hangs gets no further connections
        except OSError:
            greeted = False
        self.close()
        return greeted

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> None:
        with contextlib.suppress(OSError):
            family, kind, protocol, _, address = socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM)[0]
            connection = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
            with contextlib.suppress(BlockingIOError):
                connection.connect(address)
            self._connection = connection
