"""The fuzz target of the bus's socket: what a NATS server says goes in, a good connection or a lost one comes out."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from urllib.parse import urlparse

from nats.aio.client import Srv
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from slackwater.core.bus import client
from slackwater.core.bus.wire import LONGEST_LINE_BYTES, LONGEST_MESSAGE_BYTES, ProtocolError

SEPARATOR = b"\0"
"""Between a greeting and what follows the login."""


class _Wire(asyncio.Transport):
    """Where a client's words go: to nobody."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def abort(self) -> None: ...

    def is_closing(self) -> bool:
        return True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 4222) if name == "peername" else default


def bus_socket(data: bytes) -> None:
    """Bytes of a NATS server: a greeting, a NUL, and what follows the login; in pieces of 7 bytes, and whole.

    The client is good, or says that the connection is lost; and it has heard what is whole either way.
    """
    greeting, _, rest = data.partition(SEPARATOR)
    asyncio.run(_greeted(greeting))
    whole = asyncio.run(_heard([rest]))
    pieces = asyncio.run(_heard([rest[start : start + 7] for start in range(0, len(rest), 7)]))
    assert whole == pieces, "the same, however the bytes are cut"


async def _greeted(greeting: bytes) -> None:
    """A login with TLS and a password, on a connection without TLS: not one word is said there."""
    sent: list[bytes] = []
    wire = _Wire()
    wire.write = sent.append  # type: ignore[method-assign, assignment]
    transport = client.Transport(client.ConnectionRules(needs_tls=True, has_password=True))
    reader = asyncio.StreamReader()
    reader.feed_data(greeting)
    reader.feed_eof()
    transport._io_reader = reader
    transport._io_writer = asyncio.StreamWriter(
        wire, asyncio.StreamReaderProtocol(reader), reader, asyncio.get_running_loop()
    )
    for _ in range(2):
        with contextlib.suppress(ProtocolError, client.InsecureError):
            await transport.readline()
    with contextlib.suppress(client.InsecureError):
        transport.write(b"CONNECT {}")
    assert not sent


async def _heard(parts: list[bytes]) -> list[object]:
    """What a subscription and the error callback of a client hear; at the end, whether the connection is good."""
    heard: list[object] = []
    guarded = client.GuardedClient()
    subscription = Subscription(guarded, 1, "slackwater.sample.>", "", _no_callback)
    guarded._subs[1] = subscription
    guarded._flush_queue = asyncio.Queue()
    guarded.options["dont_randomize"] = True
    guarded._current_server = Srv(urlparse("nats://127.0.0.1:4222"))

    async def on_error(error: Exception) -> None:
        assert str(error)
        heard.append(type(error).__name__)

    guarded._error_cb = on_error
    good = True
    try:
        for part in parts:
            await guarded._ps.parse(part)
            assert len(guarded._ps._buffer) <= LONGEST_MESSAGE_BYTES + LONGEST_LINE_BYTES  # type: ignore[attr-defined]
    except ProtocolError:
        good = False
    while not subscription._pending_queue.empty():
        message = subscription._pending_queue.get_nowait()
        assert isinstance(message, client.Received)
        assert message.subject.isprintable()
        assert message.reply == "" or message.reply.startswith("_INBOX.")
        assert message.size_bytes >= len(message.data)
        heard.append((message.subject, message.reply, message.data, message.headers, message.size_bytes))
    return [*heard, good]


async def _no_callback(_: Msg) -> None: ...


def bus_words() -> list[str]:
    info = 'INFO {"server_id":"x","max_payload":1048576,"headers":true,"tls_required":true,"connect_urls":["a:1"]}\r\n'
    lines = [
        "PING\r\n",
        "PONG\r\n",
        "+OK\r\n",
        "-ERR 'x'\r\n",
        "-ERR\r\n",
        "MSG slackwater.sample.web.n1 1 3\r\nabc\r\n",
    ]
    return [info, *lines, "HMSG _INBOX.a 1 12 12\r\nNATS/1.0\r\n\r\n\r\n", "NATS/1.0 503", " _INBOX.b ", "\r\n", "\0"]
