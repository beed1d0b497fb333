"""The bus: one door to NATS. Everything that the parts tell each other goes through here, on one machine too.

Subjects: `slackwater.sample.<pool>.<node>`, `slackwater.verdict.<pool>.<node>`, `slackwater.order.<pool>.<node>`,
`slackwater.change.<pool>`, `slackwater.cycle.<pool>`; requests: `slackwater.control.<pool>`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from slackwater import messages
from slackwater.messages import KINDS, Message, MessageError

log = logging.getLogger("slackwater.bus")


class BusError(Exception):
    """The bus cannot be reached, or nobody answered; the text says which address and what to look at."""


def subject_of(message: Message) -> str:
    """The subject that a message is published under."""
    kind = next(kind for kind, struct in KINDS.items() if isinstance(message, struct))
    subject = f"slackwater.{kind}.{message.pool}"
    node = getattr(message, "node", None)
    return subject if node is None else f"{subject}.{node}"


class Bus:
    """A connection that reconnects by itself for ever. Use `await Bus.connect(url)`."""

    def __init__(self, client: Client, url: str) -> None:
        self._client = client
        self.url = url

    @classmethod
    async def connect(cls, url: str, name: str, *, wait_s: float = 10.0) -> Bus:
        """Connects as `name`; raises BusError when there is no NATS at `url` within about `wait_s`."""

        async def on_error(error: Exception) -> None:
            if not isinstance(error, (ConnectionRefusedError, nats.errors.ConnectionClosedError)):
                log.warning("bus %s: %s", url, error)

        async def on_disconnect() -> None:
            log.warning("bus %s: connection lost, reconnecting", url)

        async def on_reconnect() -> None:
            log.warning("bus %s: connected again", url)

        wait_between_s = 0.2
        client = Client()
        try:
            await client.connect(
                url,
                name=name,
                allow_reconnect=True,
                connect_timeout=2,
                max_reconnect_attempts=max(1, round(wait_s / wait_between_s)),
                reconnect_time_wait=wait_between_s,
                ping_interval=5,
                error_cb=on_error,
                disconnected_cb=on_disconnect,
                reconnected_cb=on_reconnect,
            )
        except (OSError, nats.errors.Error, TimeoutError) as error:
            raise BusError(
                f"no NATS at {url} ({error or type(error).__name__}); is nats-server running and the address right?"
            ) from None
        client.options["max_reconnect_attempts"] = -1
        return cls(client, url)

    @property
    def connected(self) -> bool:
        return self._client.is_connected

    async def publish(self, message: Message) -> None:
        """Sends a message. While NATS is away it is kept by the client until its buffer is full, then dropped."""
        try:
            await self._client.publish(subject_of(message), messages.encode(message))
        except nats.errors.Error as error:
            log.debug("bus %s: not sent: %s", self.url, error)

    async def subscribe(self, kind: str, handle: Callable[[Any], None], *, pool: str | None = None) -> None:
        """Calls `handle(message)` for each message of a kind. One that cannot be read is logged and left out."""
        tail = f"{pool}" if pool else ""
        node_kind = "node" in KINDS[kind].__struct_fields__
        subject = f"slackwater.{kind}." + (f"{tail}.>" if tail and node_kind else tail or ">")

        async def on_message(raw: Msg) -> None:
            try:
                message = messages.decode(kind, raw.data)
            except MessageError as error:
                log.warning("bus: message on %s left out: %s", raw.subject, error)
                return
            if subject_of(message) != raw.subject:
                log.warning("bus: message on %s left out: it calls itself %s", raw.subject, subject_of(message))
                return
            handle(message)

        await self._client.subscribe(subject, cb=on_message)

    async def ask(self, subject: str, question: dict[str, Any], *, timeout_s: float = 3.0) -> dict[str, Any]:
        """Request and reply in JSON objects; raises BusError when nobody answers in time."""
        try:
            reply = await self._client.request(subject, json.dumps(question).encode(), timeout=timeout_s)
        except nats.errors.NoRespondersError:
            raise BusError(f"nobody answers on {subject} at {self.url}; is `slackwater serve` running?") from None
        except (nats.errors.Error, TimeoutError) as error:
            raise BusError(f"no answer on {subject} at {self.url} within {timeout_s:g} s ({error})") from None
        return dict(json.loads(reply.data))

    async def answer(self, subject: str, handle: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
        """Answers requests on a subject; what `handle` raises as ValueError is answered as `{"error": text}`."""

        async def on_request(raw: Msg) -> None:
            try:
                question = json.loads(raw.data)
                if not isinstance(question, dict):
                    raise ValueError(f"expected a JSON object, got {type(question).__name__}")
                reply = await handle(question)
            except ValueError as error:
                reply = {"error": str(error)}
            await raw.respond(json.dumps(reply).encode())

        await self._client.subscribe(subject, cb=on_request)

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Waits until what was published is at the server; raises nothing (the journal also has the Changes)."""
        try:
            await self._client.flush(timeout=max(1, round(timeout_s)))
        except (nats.errors.Error, TimeoutError, OSError) as error:
            log.debug("bus %s: not flushed: %s", self.url, error)

    async def close(self) -> None:
        try:
            await self._client.close()
        except (nats.errors.Error, OSError) as error:
            log.debug("bus %s: not closed cleanly: %s", self.url, error)
