"""Reads what a NATS server sends: https://docs.nats.io/reference/reference-protocols/nats-protocol

It takes the place of nats-py's reader, which trusts the bytes: its loop ended at a header of one byte, at a reply
subject that is no UTF-8, at a late PONG, and the connection looked alive. Here bytes that are no protocol are a
ProtocolError, which is a lost connection; what is within a message is looked at by nobody but its reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec
import nats.errors

LONGEST_LINE_BYTES = 64 * 1024
"""An INFO names all servers of a cluster; all other lines are a tenth of that."""
LONGEST_MESSAGE_BYTES = 1024 * 1024
"""A server's own limit, unless it is set higher. A longer message is left out, and counted."""
MOST_DIGITS = 18
END = b"\r\n"


class ProtocolError(nats.errors.ProtocolError):
    """What came is no NATS; the text says what it is. nats-py's own error has no text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text = text

    def __str__(self) -> str:
        return f"no NATS protocol: {self._text}"


@dataclass(frozen=True, slots=True)
class WireFrame:
    """A message as it came. `size_bytes` is what it took on the wire, with its line and its headers."""

    sid: int
    subject: bytes
    reply: bytes
    headers: bytes
    data: bytes
    size_bytes: int


class Info(msgspec.Struct, omit_defaults=True):
    """What is used of what a server says of itself; any listener on the way can say it in its place."""

    server_id: str = ""
    server_name: str = ""
    version: str = ""
    headers: bool = False
    max_payload: int = LONGEST_MESSAGE_BYTES
    client_id: int | None = None
    client_ip: str | None = None
    auth_required: bool = False
    tls_required: bool = False
    tls_available: bool = False
    nonce: str | None = None
    connect_urls: list[str] | None = None
    ldm: bool = False


_info = msgspec.json.Decoder(Info)


def info_of(text: bytes) -> Info:
    """The server's JSON. Raises ProtocolError for a text that is no such JSON."""
    try:
        return _info.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"INFO: {error}") from None


class FrameReceiver(Protocol):
    """Who gets what was read."""

    async def take(self, frame: WireFrame) -> None: ...

    async def take_info(self, info: Info) -> None: ...

    async def take_error(self, text: str) -> None: ...

    async def take_ping(self) -> None: ...

    async def take_pong(self) -> None: ...


class Reader:
    """The state between two reads of a connection. It keeps one line or one message at most."""

    def __init__(self, receiver: FrameReceiver) -> None:
        self._receiver = receiver
        self.reset()

    def reset(self) -> None:
        """A new connection begins."""
        self._buffer = bytearray()
        self._head: _Head | None = None
        """The head of the message whose content comes next."""
        self._left_out_bytes = 0
        """Bytes that are still to come of a message that is too long."""

    async def parse(self, data: bytes = b"") -> None:
        """Hands on what is whole by now. Raises ProtocolError for what is no NATS."""
        self._buffer += data
        while self._buffer:
            if self._left_out_bytes:
                passed_bytes = min(self._left_out_bytes, len(self._buffer))
                del self._buffer[:passed_bytes]
                self._left_out_bytes -= passed_bytes
            elif self._head is not None:
                if (frame := self._content_of(self._head)) is None:
                    return
                self._head = None
                await self._receiver.take(frame)
            elif (line := self._next_line()) is None:
                return
            else:
                await self._take_line(line)

    def _next_line(self) -> bytes | None:
        end = self._buffer.find(END, 0, LONGEST_LINE_BYTES)
        if end < 0:
            if len(self._buffer) >= LONGEST_LINE_BYTES:
                raise ProtocolError(f"a line is longer than {LONGEST_LINE_BYTES} bytes")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + len(END)]
        return line

    async def _take_line(self, line: bytes) -> None:
        verb, _, rest = line.partition(b" ")
        match verb:
            case b"MSG" | b"HMSG":
                head = _head_of(rest, verb == b"HMSG", len(line) + len(END))
                if head.content_bytes <= LONGEST_MESSAGE_BYTES:
                    self._head = head
                else:
                    self._left_out_bytes = head.content_bytes + len(END)
                    await self._receiver.take(head.frame(b"", b""))
            case b"PING":
                await self._receiver.take_ping()
            case b"PONG":
                await self._receiver.take_pong()
            case b"INFO":
                await self._receiver.take_info(info_of(rest))
            case b"-ERR":
                await self._receiver.take_error(rest.decode("utf-8", "backslashreplace").strip().strip("'"))
            case b"+OK":
                pass
            case _:
                raise ProtocolError(f"a line that begins with {line[:20]!r}")

    def _content_of(self, head: _Head) -> WireFrame | None:
        """The message, once all of it is there."""
        size_bytes = head.content_bytes
        if len(self._buffer) < size_bytes + len(END):
            return None
        if self._buffer[size_bytes : size_bytes + len(END)] != END:
            raise ProtocolError(f"a message of {size_bytes} bytes does not end there")
        headers = bytes(self._buffer[: head.header_bytes])
        data = bytes(self._buffer[head.header_bytes : size_bytes])
        del self._buffer[: size_bytes + len(END)]
        return head.frame(headers, data)


@dataclass(frozen=True, slots=True)
class _Head:
    """The line of a message. `content_bytes`: headers and data."""

    sid: int
    subject: bytes
    reply: bytes
    header_bytes: int
    content_bytes: int
    line_bytes: int

    def frame(self, headers: bytes, data: bytes) -> WireFrame:
        size_bytes = self.line_bytes + self.content_bytes
        return WireFrame(self.sid, self.subject, self.reply, headers, data, size_bytes)


def _head_of(line: bytes, has_headers: bool, line_bytes: int) -> _Head:
    """`SUBJECT SID [REPLY] [HEADER BYTES] BYTES`; a server of a cluster may write two spaces for a missing reply."""
    words = list(filter(None, line.split(b" ")))
    numbers = 2 if has_headers else 1
    if len(words) not in (2 + numbers, 3 + numbers):
        raise ProtocolError(f"a message's line has {len(words)} words")
    subject, sid, *reply = words[:-numbers]
    *header_bytes, content_bytes = words[-numbers:]
    for number in (sid, *header_bytes, content_bytes):
        if not number.isdigit() or len(number) > MOST_DIGITS:
            raise ProtocolError(f"a message's line has {number[:20]!r} for a number")
    head = _Head(int(sid), subject, b"".join(reply), int(b"".join(header_bytes) or 0), int(content_bytes), line_bytes)
    if head.header_bytes > head.content_bytes:
        raise ProtocolError(f"{head.header_bytes} bytes of headers in a message of {head.content_bytes} bytes")
    return head
