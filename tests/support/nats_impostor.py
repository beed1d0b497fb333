"""Who answers in a nats-server's place: it says what a test wants, and keeps what it hears."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

GREETING: dict[str, Any] = {"server_id": "x", "version": "2.9.10", "max_payload": 1048576, "proto": 1, "headers": True}


def greeting(**more: Any) -> bytes:
    return b"INFO " + json.dumps(GREETING | more).encode() + b"\r\n"


@dataclass
class Impostor:
    """`greet`: the greeting of the connection with this number, from 0; `then`: what follows the login's PONG."""

    greet: Callable[[int], bytes] = lambda _: greeting()
    then: Callable[[int], bytes] = lambda _: b""
    url: str = ""
    heard: list[bytes] = field(default_factory=list)
    """The bytes that each connection sent, in their order."""

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.heard)
        self.heard.append(b"")
        with contextlib.suppress(OSError):
            writer.write(self.greet(number))
            while data := await reader.read(65536):
                logged_in = b"PING\r\n" in self.heard[number]
                self.heard[number] += data
                answers = data.count(b"PING\r\n") * b"PONG\r\n"
                is_login = not logged_in and b"PING\r\n" in self.heard[number]
                writer.write(answers + (self.then(number) if is_login else b""))
        writer.close()


@asynccontextmanager
async def impostor(host: str = "127.0.0.1", **says: Any) -> AsyncIterator[Impostor]:
    """One that listens on a port of its own."""
    made = Impostor(**says)
    server = await asyncio.start_server(made._meet, host, 0)
    port = server.sockets[0].getsockname()[1]
    made.url = f"nats://{host}:{port}"
    try:
        yield made
    finally:
        server.close()
