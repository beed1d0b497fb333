"""nats-py's client, guarded: it says nothing where others could listen, and no bytes of a server or of a publisher
leave it deaf. `tests/slackwater/test_bus_client.py` asserts the version that this was written for.

What of nats-py is replaced, and why:

- its reader (`wire.py`), and its read loop, which ended in silence at whatever was raised in it;
- its transport, which started TLS only if the server asked for it: the greeting comes before TLS, so anybody on the
  way can take that out, or name servers of his own;
- what it does with a complaint of the server: it closed itself for ever;
- messages: the headers and replies of others are dropped unread. Only an answer to a question of ours has headers.
"""

from __future__ import annotations

import asyncio
import contextlib
import pwd
import re
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import ParseResult

import msgspec
from nats import errors
from nats.aio.client import Client, Srv
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport

from slackwater.core.bus.peers import user_at
from slackwater.core.bus.wire import END, Info, ProtocolError, Reader, WireFrame, info_of
from slackwater.core.config import ADDRESS_PATTERN, is_loopback_host
from slackwater.core.messages import plain_text

INBOX = b"_INBOX."
"""Where answers go. Nobody but the controller and its broker may publish there."""
LONGEST_HEADERS_BYTES = 4096
"""The longest headers of an answer; those of the key-value store are a tenth of it."""
READ_BYTES = 32 * 1024
CLOSED_WITHIN_S = 0.5
MOST_SERVERS = 16
"""The most servers of a cluster that are tried."""


class InsecureError(ConnectionError):
    """Something would be said where others could listen."""


@dataclass(frozen=True)
class ConnectionRules:
    """What may be said on which connection."""

    needs_tls: bool = False
    has_password: bool = False
    follows: bool = True
    """Whether servers that the server names are tried too. They are named before TLS, so only a certificate of a
    private authority tells them from a stranger's."""
    users: frozenset[int] = frozenset()
    """Users whose process may be at the other end of a connection without TLS; empty: any user's."""

    def apply_to(self, info: Info) -> Info:
        """The greeting as we go by it: TLS is what we want, also where somebody took it out."""
        is_tls = info.tls_required or self.needs_tls
        urls = [url for url in info.connect_urls or () if re.search(ADDRESS_PATTERN, url)] if self.follows else []
        return msgspec.structs.replace(info, tls_required=is_tls, connect_urls=urls[:MOST_SERVERS] or None)

    def check(self, writer: asyncio.StreamWriter) -> None:
        """Raises InsecureError unless the other end of the connection may hear us."""
        if writer.get_extra_info("ssl_object") is not None:
            return
        if self.needs_tls:
            raise InsecureError("the connection is not encrypted, and the settings demand it (tls:// or tls_ca)")
        host = str((writer.get_extra_info("peername") or ("nowhere",))[0])
        if self.has_password and not is_loopback_host(host):
            raise InsecureError(f"the password would go to {host} in the clear; use tls://")

    def check_user(self, writer: asyncio.StreamWriter) -> None:
        """Raises InsecureError where a process of another user answers. TLS has certificates for that."""
        if not self.users or self.needs_tls:
            return
        other, own = (writer.get_extra_info(name)[:2] for name in ("peername", "sockname"))
        try:
            user = user_at(other, own)
        except OSError:  # the kernel does not show it
            return
        if user not in self.users:
            listens = "no process of this machine" if user is None else f"a process of user {_user_name(user)}"
            names = " or ".join(sorted(map(_user_name, self.users)))
            raise InsecureError(
                f"{listens} answers there, and the controller's own nats-server is of {names}: the password is not"
                f" sent. See who listens: ss -lntp 'sport = :{other[1]}'"
            )


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


DEFAULT_RULES = ConnectionRules()


class Transport(TcpTransport):
    """A connection that keeps to the rules, whatever the server says in its greeting."""

    def __init__(self, rules: ConnectionRules) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rules = rules
        self._is_greeted = False

    async def readline(self) -> bytes:
        """A line of the greeting: INFO, and after our login PONG or -ERR. Raises ProtocolError for any other line."""
        line = await self._line()
        if not self._is_greeted:
            self._is_greeted = True
            info = _info_in(line)
            if self._bare_io_writer is not None:
                self._rules.check_user(self._bare_io_writer)
            if self._rules.needs_tls and not (info.tls_required or info.tls_available):
                raise InsecureError("it offers no TLS, and the settings demand it (tls:// or tls_ca)")
            return b"INFO " + msgspec.json.encode(self._rules.apply_to(info)) + END
        while line.startswith(b"INFO "):  # the cluster has changed meanwhile; the next greeting says how
            line = await self._line()
        if not line.startswith((b"PONG\r\n", b"-ERR ")):
            raise ProtocolError(f"no answer to the login, but {line[:20]!r}")
        return line

    async def _line(self) -> bytes:
        try:
            return bytes(await super().readline())  # type: ignore[no-untyped-call]
        except ValueError:
            raise ProtocolError("a line of the greeting is too long") from None

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Turns the connection into a TLS one. A connection whose upgrade failed is given up at once: it is neither
        plain nor TLS."""
        try:
            await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        except BaseException:
            self.abort()
            self._io_writer = self._io_reader = None
            raise

    def abort(self) -> None:
        """Gives the socket up, with what is still to be sent."""
        if self._bare_io_writer is not None:
            self._bare_io_writer.transport.abort()

    async def wait_closed(self) -> None:
        """Waits for the connection's end, but not the half minute that TLS gives the other end to say farewell."""
        try:
            async with asyncio.timeout(CLOSED_WITHIN_S):
                await super().wait_closed()  # type: ignore[no-untyped-call]
        except TimeoutError:
            self.abort()
        except asyncio.CancelledError:
            # A wait that was given up before has cancelled what all of them wait for.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            self.abort()

    def write(self, payload: bytes) -> None:
        """Raises InsecureError."""
        self._check()
        super().write(payload)  # type: ignore[no-untyped-call]

    def writelines(self, payload: list[bytes]) -> None:
        """Raises InsecureError."""
        self._check()
        super().writelines(payload)  # type: ignore[no-untyped-call]

    def _check(self) -> None:
        if self._io_writer is not None:
            self._rules.check(self._io_writer)


def _info_in(line: bytes) -> Info:
    verb, _, text = line.partition(b" ")
    if verb != b"INFO":
        raise ProtocolError(f"no greeting of a NATS server, but {line[:20]!r}")
    return info_of(text)


@dataclass
class Received(Msg):
    """A message. `size_bytes`: on the wire, with what was dropped of it."""

    size_bytes: int = 0


def size_of(message: Msg) -> int:
    """Bytes on the wire, as far as they are known."""
    return message.size_bytes if isinstance(message, Received) else len(message.data)


class GuardedClient(Client):
    """See above. It is used as nats-py's."""

    def __init__(self, rules: ConnectionRules = DEFAULT_RULES) -> None:
        super().__init__()
        self._rules = rules
        self._ps = Reader(self)  # type: ignore[assignment]

    # --- connecting ----------------------------------------------------------------------------------------------

    async def _connect_to_server(self, s: Srv) -> None:
        """A transport for each attempt: nats-py uses one again, and leaves the last attempt's socket open."""
        s.last_attempt = time.monotonic()
        if isinstance(self._transport, Transport):
            self._transport.abort()
        self._transport = Transport(self._rules)
        await self._transport.connect(s.uri, READ_BYTES, self.options["connect_timeout"])

    async def _process_connect_init(self) -> None:
        """Whatever a greeting breaks is a failed attempt: nats-py lets some of it end its attempts for ever."""
        try:
            await super()._process_connect_init()
        except (OSError, errors.Error, TimeoutError):
            raise
        except Exception as error:
            raise ProtocolError(f"a greeting that cannot be read: {error!r}") from error

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """The servers that the newest INFO names replace those of the INFO before."""
        if initial_connection or info.get("connect_urls"):
            self._server_pool = [server for server in self._server_pool if not server.discovered]
        await super()._process_info(info, initial_connection)

    # --- publishing ----------------------------------------------------------------------------------------------

    async def publish_all(self, messages: Iterable[tuple[bytes, bytes]]) -> None:
        """Sends messages, each a subject and its bytes, as one piece: for a thousand at a time it costs a third of
        `publish`. Subjects and lengths are good, which `publish` would check. Raises nats-py's errors."""
        if self.is_closed:
            raise errors.ConnectionClosedError
        commands = [b"PUB %b %d\r\n%b\r\n" % (subject, len(data), data) for subject, data in messages]
        self.stats["out_msgs"] += len(commands)
        self.stats["out_bytes"] += sum(map(len, commands))
        await self._send_command(b"".join(commands))
        await self._flush_pending()

    # --- reading -------------------------------------------------------------------------------------------------

    async def _read_loop(self) -> None:
        """Ends with its connection; for whatever reason it ends, the connection is lost."""
        transport = self._transport
        try:
            while transport is not None and transport is self._transport:
                if not (data := await transport.read(READ_BYTES)):
                    raise errors.UnexpectedEOF
                await self._ps.parse(data)
        except Exception as error:
            if transport is self._transport and not (self.is_closed or self.is_reconnecting):
                await self._error_cb(error)
                await self._process_op_err(error)

    async def take(self, frame: WireFrame) -> None:
        """Hands a message to its subscription. Of what others say beside the data nothing is read."""
        self.stats["in_msgs"] += 1
        subscription = self._subs.get(frame.sid)
        if subscription is None:
            return
        subscription._received += 1
        if 0 < subscription._max_msgs <= subscription._received:
            self._subs.pop(frame.sid, None)
        message = Received(
            self,
            subject=_text(frame.subject),
            reply=_text(frame.reply) if frame.reply.startswith(INBOX) else "",
            data=frame.data,
            headers=await self._headers_of(frame),
            _sid=frame.sid,
            size_bytes=frame.size_bytes,
        )
        if subscription._pending_size + len(frame.data) <= subscription._pending_bytes_limit:
            with contextlib.suppress(asyncio.QueueFull):
                subscription._pending_queue.put_nowait(message)
                subscription._pending_size += len(frame.data)

    async def _headers_of(self, frame: WireFrame) -> dict[str, str] | None:
        """The headers of an answer to us, if they can be read."""
        if not frame.headers or not frame.subject.startswith(INBOX):
            return None
        if len(frame.headers) <= LONGEST_HEADERS_BYTES:
            with contextlib.suppress(LookupError, ValueError):
                return await self._process_headers(frame.headers)
        return None

    async def take_info(self, info: Info) -> None:
        """A change of the cluster."""
        await self._process_info(msgspec.to_builtins(self._rules.apply_to(info)))

    async def take_error(self, text: str) -> None:
        """Logs a complaint of the server. Whether the connection lives is seen on the connection."""
        await self._error_cb(errors.Error(f"nats: {text}"))

    async def take_ping(self) -> None:
        await self._process_ping()

    async def take_pong(self) -> None:
        """The answer to the oldest PING, whether or not somebody still waits for it."""
        self._pings_outstanding = 0
        if self._pongs and not (waiting := self._pongs.pop(0)).done():
            waiting.set_result(True)


def _text(subject: bytes) -> str:
    """A subject as printable text. One that is no ASCII becomes a text that is no message's subject."""
    text = subject.decode("ascii", "backslashreplace")
    return text if text.isprintable() else plain_text(text)
