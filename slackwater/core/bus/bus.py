"""The bus: the only module that uses NATS. All messages between the parts pass through it, even on one machine.

Subjects: `slackwater.sample.<pool>.<node>`, `slackwater.verdict.<pool>.<node>`, `slackwater.order.<pool>.<node>`,
`slackwater.weight.<pool>.<node>`, `slackwater.ask.<pool>.<node>`, `slackwater.knobs.<pool>.<node>`,
`slackwater.governed.<pool>.<node>`, `slackwater.cycle.<pool>`; Changes of nodes `slackwater.change.<pool>.<node>`, of
the controller `slackwater.controller-change.<pool>`; requests `slackwater.control.<pool>` of people and
`slackwater.request.<pool>` of the second stage.

Whoever may publish on a subject has an identity by that alone: what a message says of its sender must fit its subject.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.kv import KeyValue

from slackwater.core import messages, tasks
from slackwater.core.bus.access import BusError as BusError
from slackwater.core.bus.access import inbox_of, login_of, rules_of
from slackwater.core.bus.access import without_password as without_password
from slackwater.core.bus.client import GuardedClient
from slackwater.core.bus.intake import BYTES_A_MESSAGE, PER_S, Intake
from slackwater.core.bus.parts import WholeCycles, payloads
from slackwater.core.complaints import Complaints
from slackwater.core.config import BusSettings
from slackwater.core.messages import KINDS, WSENGINE, Change, Message, MessageError, is_of_wsengine, plain_text

log = logging.getLogger("slackwater.bus")

CHANGES_PER_S = 20
"""The most Changes of one node in a second. A wsengine sends at most 10."""
FROM_NODES = {"sample": PER_S, "knobs": PER_S, "change": CHANGES_PER_S}
"""Kinds that nodes publish -> most messages a second of one node."""
LONGEST_CHANGE = BYTES_A_MESSAGE
"""Bytes of a node's Change. Of all that it publishes only Changes are kept."""
RECONNECT_EVERY_S = 0.2
DRAINED_WITHIN_S = 2.0
"""A broker that is gone answers no more, and the supervisor waits only some seconds for a part to end."""
STORE_ANSWERS_WITHIN_S = 0.5


def subject_of(message: Message) -> str:
    """The subject that a message is published under."""
    return _subject(next(kind for kind, struct in KINDS.items() if isinstance(message, struct)), message)


def _subject(kind: str, message: Any) -> str:
    node = getattr(message, "node", None)
    if isinstance(message, Change):
        kind, node = ("change", message.target) if message.by == WSENGINE else ("controller-change", None)
    subject = f"slackwater.{kind}.{message.pool}"
    return subject if node is None else f"{subject}.{node}"


def _from_node(change: Change, size: int, now_unix_s: float) -> Change:
    """A wsengine's Change, dated now at the latest. Raises MessageError for a Change that no wsengine may publish."""
    if size > LONGEST_CHANGE:
        raise MessageError(f"change: {size} bytes, expected at most {LONGEST_CHANGE}")
    if not is_of_wsengine(change):
        raise MessageError(f"change: $.what: expected a knob or `order`, got {change.what!r}")
    return msgspec.structs.replace(change, time_unix_s=min(change.time_unix_s, now_unix_s))


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a log record is news. nats-py turns a plain connection into a TLS one without telling asyncio's stream,
    so asyncio complains at the end of each such connection."""
    return (record.module, record.funcName) != ("sslproto", "_call_eof_received")


logging.getLogger("asyncio").addFilter(_is_news)


def _text(error: BaseException) -> str:
    return plain_text(str(error)) or type(error).__name__


async def _new_store(stream: JetStreamContext, name: str, is_cluster: bool) -> KeyValue:
    """A new store: kept by three servers if the broker is a cluster of at least three, so that one may die; else by
    one."""
    if is_cluster:
        with contextlib.suppress(nats.js.errors.APIError):
            return await stream.create_key_value(bucket=name, history=1, replicas=3)
    return await stream.create_key_value(bucket=name, history=1)


class NoStoreError(BusError):
    """The broker stores nothing: JetStream is switched off."""


class Bucket:
    """Keys with revisions. All methods raise BusError when the store does not answer."""

    def __init__(self, store: KeyValue, stream: JetStreamContext, name: str, client: GuardedClient) -> None:
        self._store = store
        self._stream = stream
        self._name = f"KV_{name}"
        self._client = client
        self._url = without_password(client.connected_url.geturl() if client.connected_url else "")

    async def get(self, key: str) -> tuple[bytes, int] | None:
        """Value and revision; None when it is not there."""
        try:
            entry = await self._store.get(key)
        except nats.js.errors.KeyNotFoundError:
            return None
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise BusError(f"the key-value store at {self._url} does not answer ({_text(error)})") from None
        return entry.value or b"", entry.revision or 0

    async def put(self, key: str, value: bytes, revision: int) -> int | None:
        """Sets the key if its revision is this one (0: if it does not exist); the new revision, or None if not set."""
        try:
            if revision == 0:
                return await self._store.create(key, value)
            return await self._store.update(key, value, last=revision)
        except nats.js.errors.KeyWrongLastSequenceError:
            return None
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise BusError(f"the key-value store at {self._url} does not answer ({_text(error)})") from None

    async def spread(self) -> None:
        """In a cluster: has three servers keep it, led by another one than ours.

        If our server led it, its death would also stop those who wait for our lease: a new leader takes 4 to 9 s.
        """
        if not self._client.discovered_servers:
            return
        try:
            info = await self._stream.stream_info(self._name)
            if info.config.num_replicas == 1:
                await self._stream.update_stream(info.config, num_replicas=3)
            elif info.cluster and info.cluster.leader == self._client._server_info.get("server_name"):
                await self._client.request(
                    f"$JS.API.STREAM.LEADER.STEPDOWN.{self._name}", timeout=STORE_ANSWERS_WITHIN_S
                )
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise BusError(f"the key-value store at {self._url} does not spread ({_text(error)})") from None


class Bus:
    """A connection that reconnects by itself for ever. Use `await Bus.connect(url)`."""

    def __init__(self, client: GuardedClient, url: str) -> None:
        self._client = client
        self._complaints = Complaints()
        self._intakes: list[Intake] = []
        self.url = without_password(url)

    @classmethod
    async def connect(cls, where: str | BusSettings, name: str, *, wait_s: float = 10.0) -> Bus:
        """Connects as `name`; raises BusError when there is no NATS there within `wait_s`, or we cannot log in."""
        try:
            settings = BusSettings(url=where) if isinstance(where, str) else where
        except ValueError as error:
            raise BusError(f"bus: {error}") from None
        url = settings.address
        client = GuardedClient(rules_of(settings))
        login = login_of(settings)
        shown = without_password(url)
        trouble = ""
        complaints = Complaints()

        async def on_error(error: Exception) -> None:
            nonlocal trouble
            if client.is_connected and _text(error) != trouble and complaints.are_due(_text(error)):
                log.warning("bus %s: %s", shown, _text(error))
            trouble = _text(error)

        async def on_disconnect() -> None:
            if not client.is_closed:
                log.warning("bus %s: connection lost, reconnecting", shown)

        async def on_reconnect() -> None:
            nonlocal trouble
            trouble = ""
            log.warning("bus %s: connected again", shown)

        try:
            connecting = client.connect(
                url,
                name=name,
                allow_reconnect=True,
                connect_timeout=2,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_EVERY_S,  # type: ignore[arg-type]  # it is only slept on
                ping_interval=5,
                inbox_prefix=inbox_of(settings.user),
                error_cb=on_error,
                disconnected_cb=on_disconnect,
                reconnected_cb=on_reconnect,
                **login,
            )
            await tasks.within(wait_s, connecting)
        except (OSError, ValueError, nats.errors.Error, TimeoutError) as error:
            if client.is_connecting or client.is_connected:
                await cls(client, url).close()
            raise BusError(
                f"no NATS at {shown} ({trouble or _text(error)}); is nats-server running and the address right?"
            ) from None
        return cls(client, url)

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._client.is_connected

    async def publish(self, message: Message, headers: Callable[[bytes], dict[str, str]] | None = None) -> None:
        """Sends a message. While NATS is away only Changes are kept for later: other messages would be stale.

        `headers` makes the headers that go with the message's bytes, such as a signature.
        """
        if not self.connected and not isinstance(message, Change):
            return
        subject = subject_of(message)
        try:
            for payload in payloads(message, subject, self._client.max_payload):
                await self._client.publish(subject, payload, headers=headers(payload) if headers else None)
        except MessageError as error:
            self._complain(subject, f"it is not sent: {error}")
        except nats.errors.Error as error:
            log.debug("bus %s: not sent: %s", self.url, _text(error))

    async def publish_together(self, messages: Sequence[Message]) -> None:
        """Sends messages, as `publish` does with each of them; many cost less together."""
        if not self.connected:
            return
        sent: list[tuple[bytes, bytes]] = []
        for message in messages:
            subject = subject_of(message)
            try:
                sent += [(subject.encode(), data) for data in payloads(message, subject, self._client.max_payload)]
            except MessageError as error:
                self._complain(subject, f"it is not sent: {error}")
        try:
            await self._client.publish_all(sent)
        except nats.errors.Error as error:
            log.debug("bus %s: not sent: %s", self.url, _text(error))

    async def subscribe(
        self,
        kind: str,
        handle: Callable[[Any], None],
        *,
        pool: str | None = None,
        decode: Callable[[bytes], Any] | None = None,
    ) -> None:
        """Calls `handle(message)` for each message of a kind. A message that cannot be read is logged and left out.

        Messages from nodes are limited by `slackwater.core.bus.intake`. `decode` replaces `messages.decode` for a
        reader that needs less of a message; it raises MessageError.
        """
        then: Callable[[Any], None] = WholeCycles(handle) if kind == "cycle" else handle
        has_node = kind == "change" or "node" in KINDS[kind].__struct_fields__

        def take(raw: Msg) -> None:
            try:
                message = messages.decode(kind, raw.data) if decode is None else decode(raw.data)
                if isinstance(message, Change) and message.by == WSENGINE:
                    message = _from_node(message, len(raw.data), time.time())
            except MessageError as error:
                self._complain(raw.subject, str(error))
                return
            subject = _subject(kind, message)
            if subject != raw.subject:
                self._complain(raw.subject, f"its fields belong to {subject}")
            elif pool in (None, message.pool):  # `web.>` also brings the pool `web.example`
                try:
                    then(message)
                except Exception as error:
                    self._complain(raw.subject, repr(error))

        async def on_message(raw: Msg) -> None:
            take(raw)

        subject = f"slackwater.{kind}.{'>' if pool is None else f'{pool}.>' if has_node else pool}"
        if kind == "change":
            await self._client.subscribe(f"slackwater.controller-change.{pool or '>'}", cb=on_message)
        if kind in FROM_NODES:
            intake = Intake(self._client, subject, take, per_s=FROM_NODES[kind])
            self._intakes.append(intake)
            await intake.start()
        else:
            await self._client.subscribe(subject, cb=on_message)

    def _complain(self, subject: str, reason: str) -> None:
        if self._complaints.are_due(subject):
            log.warning("bus: message on %s left out: %s", subject, reason)

    async def request(self, subject: str, question: dict[str, Any], *, timeout_s: float = 3.0) -> dict[str, Any]:
        """Sends a JSON object and returns the reply; raises BusError if there is none in time."""
        try:
            reply = await self._client.request(subject, json.dumps(question).encode(), timeout=timeout_s)
            answer = json.loads(reply.data)
        except nats.errors.NoRespondersError:
            raise BusError(f"no answer on {subject} at {self.url}; is `slackwater serve` running?") from None
        except (nats.errors.Error, TimeoutError) as error:
            raise BusError(f"no answer on {subject} at {self.url} within {timeout_s:g} s ({_text(error)})") from None
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise BusError(f"the answer on {subject} at {self.url} is no JSON object")
        return answer

    async def serve(self, subject: str, handle: Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]) -> None:
        """Answers requests on a subject; what `handle` raises as ValueError is answered as `{"error": text}`.

        None: another process answers.
        """

        async def on_request(raw: Msg) -> None:
            try:
                question = json.loads(raw.data)
                if not isinstance(question, dict):
                    raise ValueError(f"expected a JSON object, got {type(question).__name__}")
                reply: dict[str, Any] | None = await handle(question)
            except RecursionError:
                reply = {"error": "expected a JSON object, got one that is nested too deeply"}
            except ValueError as error:
                reply = {"error": str(error)}
            if reply is None or not raw.reply:
                return
            await raw.respond(json.dumps(reply).encode())

        await self._client.subscribe(subject, cb=on_request)

    async def bucket(self, name: str) -> Bucket:
        """A bucket of NATS key-value, made if it is not there. Raises NoStoreError without JetStream, BusError."""
        stream = self._client.jetstream(timeout=STORE_ANSWERS_WITHIN_S)
        try:
            try:
                store = await stream.key_value(name)
            except nats.js.errors.BucketNotFoundError:
                store = await _new_store(stream, name, bool(self._client.discovered_servers))
            return Bucket(store, stream, name, self._client)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            # Without JetStream there is no responder; a cluster without a leader answers with an error code.
            missing = isinstance(error, nats.js.errors.ServiceUnavailableError) and error.err_code is None
            raise (NoStoreError if missing else BusError)(
                f"no key-value store at {self.url} ({_text(error)}); is JetStream switched on?"
            ) from None

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Waits until published messages are at the server; raises nothing (the journal also has the Changes)."""
        try:
            async with asyncio.timeout(timeout_s):
                # nats-py 2.16 sends flush's PING ahead of the commands in its buffer: its PONG proves nothing
                # before that buffer is empty.
                while self._client.pending_data_size > 0:
                    await asyncio.sleep(0.001)
                await self._client.flush(timeout=max(1, round(timeout_s)))
        except (nats.errors.Error, TimeoutError, OSError) as error:
            log.debug("bus %s: not flushed: %s", self.url, _text(error))

    async def drain(self) -> None:
        """Handles the messages already sent to us, then ends the connection."""
        await self._stop_intakes()
        # nats-py 2.16's own drain waits 10 s for a broker that is gone, and cannot be cancelled cleanly.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAINED_WITHIN_S):
                await self.flush(DRAINED_WITHIN_S)
                while any(subscription.pending_msgs for subscription in self._client._subs.values()):
                    await asyncio.sleep(0.001)
        await self.close()

    async def close(self) -> None:
        """Sends what is pending and ends the connection."""
        await self._stop_intakes()
        try:
            await self._client.close()
        except (nats.errors.Error, OSError, AttributeError) as error:
            # nats-py 2.16 writes to a TLS stream that was closed meanwhile, which asyncio answers with AttributeError.
            log.debug("bus %s: not closed cleanly: %s", self.url, _text(error))
        if self._client._reconnection_task is not None:
            await tasks.end(self._client._reconnection_task)

    async def _stop_intakes(self) -> None:
        for intake in self._intakes:
            await intake.stop()
        self._intakes.clear()
