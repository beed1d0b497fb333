"""The simulated bus: a broker with a key-value store, and one client for each process.

What is simulated ends at `slackwater.core.bus.bus`: `SimulatedBus` and `SimulatedBucket` do what `Bus` and `Bucket` do
for their callers. Messages are delayed, lost, doubled and overtake each other; each client can be cut off in one
direction or both. What the store did and what its client hears of it can differ, as on a real network.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from slackwater.core import messages
from slackwater.core.bus.bus import STORE_ANSWERS_WITHIN_S, Bus, BusError, subject_of
from slackwater.core.messages import Change, Message, Order
from tests.simulation.world import Process, World

Receive = Callable[[str, bytes, dict[str, str]], None]
"""Subject, payload, headers."""


@dataclass
class Link:
    """Between one machine and the broker."""

    sends: bool = True
    receives: bool = True
    lost: float = 0.0
    """Share of the messages."""
    doubled: float = 0.0
    slow_s: float = 0.0
    """Most that a message takes longer than usual; later ones may overtake it."""

    @property
    def whole(self) -> bool:
        return self.sends and self.receives


@dataclass
class Subscription:
    """What one client gets."""

    process: Process
    link: Link
    prefix: str
    receive: Receive


@dataclass
class Broker:
    """Passes messages on, and keeps keys with revisions."""

    world: World
    values: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    written: Callable[[Process, bytes], object] = field(default=lambda *_: None)
    """Called with who wrote a value, and the value."""
    ordered: Callable[[Process, Order], object] = field(default=lambda *_: None)
    """Called with who sends an Order, before it is on its way."""
    subscriptions: list[Subscription] = field(default_factory=list)
    served: dict[str, list[Subscription]] = field(default_factory=dict)
    inboxes: int = 0
    _revision: int = 0

    def pass_on(self, link: Link, forth: bool, deliver: Callable[[], None], process: Process | None = None) -> None:
        """One message over a link, if it comes through: once, or twice."""
        random = self.world.random
        if not (link.sends if forth else link.receives) or (link.lost and random.random() < link.lost):
            return
        for _ in range(2 if link.doubled and random.random() < link.doubled else 1):
            takes_s = 0.0005 + 0.002 * random.random()
            if link.slow_s and random.random() < 0.3:
                takes_s += link.slow_s * random.random()
            self.world.at(self.world.now_s + takes_s, deliver, process=process)

    def publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        """Sends a message to everybody who listens."""
        self.subscriptions = [subscription for subscription in self.subscriptions if subscription.process.is_alive]
        for subscription in self.subscriptions:
            if subject.startswith(subscription.prefix):
                self.deliver(subscription, subject, payload, headers)

    def deliver(self, to: Subscription, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        self.pass_on(to.link, False, lambda: to.receive(subject, payload, headers), to.process)

    def get(self, key: str) -> tuple[bytes, int] | None:
        return self.values.get(key)

    def put(self, by: Process, key: str, value: bytes, revision: int) -> int | None:
        """Compare and set."""
        if self.values.get(key, (b"", 0))[1] != revision:
            return None
        self._revision += 1
        self.values[key] = (value, self._revision)
        self.written(by, value)
        return self._revision


async def _ask(broker: Broker, process: Process, link: Link, work: Callable[[], Any], within_s: float) -> Any:
    """One request to the broker and its answer. Raises TimeoutError; it may have been done all the same."""
    process.check()
    future = process.create_future()

    def answer(result: Any) -> None:
        if not future.done():
            future.set_result(result)

    def at_broker() -> None:
        result = work()
        broker.pass_on(link, False, lambda: answer(result), process)

    broker.pass_on(link, True, at_broker)
    async with asyncio.timeout(within_s):
        return await future


class SimulatedBucket:
    """A `slackwater.core.bus.bus.Bucket` of the simulation."""

    def __init__(self, broker: Broker, process: Process, link: Link) -> None:
        self._broker, self._process, self._link = broker, process, link

    async def get(self, key: str) -> tuple[bytes, int] | None:
        entry: tuple[bytes, int] | None = await self._ask(lambda: self._broker.get(key))
        return entry

    async def put(self, key: str, value: bytes, revision: int) -> int | None:
        written: int | None = await self._ask(lambda: self._broker.put(self._process, key, value, revision))
        return written

    async def spread(self) -> None:
        """There is one broker."""

    async def _ask(self, work: Callable[[], Any]) -> Any:
        try:
            return await _ask(self._broker, self._process, self._link, work, STORE_ANSWERS_WITHIN_S)
        except TimeoutError:
            raise BusError("the key-value store does not answer") from None


class SimulatedBus(Bus):
    """A `slackwater.core.bus.bus.Bus` of the simulation; `connect` is `SimulatedBus.open`."""

    def __init__(self, broker: Broker, process: Process, link: Link) -> None:
        self._broker, self._process, self._link = broker, process, link
        self.url = "simulated"

    @classmethod
    async def open(cls, broker: Broker, process: Process, link: Link) -> Bus:
        """Raises BusError."""
        try:
            await _ask(broker, process, link, lambda: True, 2.0)
        except TimeoutError:
            raise BusError("no NATS at the simulated bus") from None
        return cls(broker, process, link)

    @property
    def connected(self) -> bool:
        return self._link.whole

    async def publish(self, message: Message, headers: Callable[[bytes], dict[str, str]] | None = None) -> None:
        self._process.check()
        if not self.connected and not isinstance(message, Change):
            return
        if isinstance(message, Order):
            self._broker.ordered(self._process, message)
        payload, subject = messages.encode(message), subject_of(message)
        sent = headers(payload) if headers else {}
        self._broker.pass_on(self._link, True, lambda: self._broker.publish(subject, payload, sent))

    async def subscribe(
        self,
        kind: str,
        handle: Callable[[Any], None],
        *,
        pool: str | None = None,
        decode: Callable[[bytes], Any] | None = None,
    ) -> None:
        read = decode or (lambda payload: messages.decode(kind, payload))
        prefix = f"slackwater.{kind}." if pool is None else f"slackwater.{kind}.{pool}"
        self.listen(prefix, lambda _, payload, __: handle(read(payload)))

    def listen(self, prefix: str, receive: Receive) -> None:
        """All messages whose subject begins so."""
        self._broker.subscriptions.append(Subscription(self._process, self._link, prefix, receive))

    async def serve(self, subject: str, handle: Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]) -> None:
        def receive(reply: str, payload: bytes, _: dict[str, str]) -> None:
            self._process.create_task(self._serve_one(reply, payload, handle))

        served = self._broker.served.setdefault(subject, [])
        served.append(Subscription(self._process, self._link, subject, receive))

    async def _serve_one(
        self, reply: str, payload: bytes, handle: Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]
    ) -> None:
        try:
            answer = await handle(json.loads(payload))
        except ValueError as error:
            answer = {"error": str(error)}
        if answer is not None:
            made = json.dumps(answer).encode()
            self._broker.pass_on(self._link, True, lambda: self._broker.publish(reply, made, {}))

    async def request(self, subject: str, question: dict[str, Any], *, timeout_s: float = 3.0) -> dict[str, Any]:
        self._process.check()
        future = self._process.create_future()
        broker, payload = self._broker, json.dumps(question).encode()
        broker.inboxes += 1
        inbox = f"_INBOX.{broker.inboxes}."

        def answered(_: str, answer: bytes, __: dict[str, str]) -> None:
            if not future.done():
                future.set_result(json.loads(answer))

        def at_broker() -> None:
            for served in broker.served.get(subject, ()):
                if served.process.is_alive:
                    broker.deliver(served, inbox, payload, {})

        listening = Subscription(self._process, self._link, inbox, answered)
        broker.subscriptions.append(listening)
        broker.pass_on(self._link, True, at_broker)
        try:
            async with asyncio.timeout(timeout_s):
                result: dict[str, Any] = await future
                return result
        except TimeoutError:
            raise BusError(f"no answer on {subject}") from None
        finally:
            if listening in broker.subscriptions:
                broker.subscriptions.remove(listening)

    async def bucket(self, name: str) -> Any:
        try:
            await _ask(self._broker, self._process, self._link, lambda: True, STORE_ANSWERS_WITHIN_S)
        except TimeoutError:
            raise BusError(f"no key-value store for {name}") from None
        return SimulatedBucket(self._broker, self._process, self._link)

    async def flush(self, timeout_s: float = 2.0) -> None:
        del timeout_s

    async def close(self) -> None:
        broker = self._broker
        broker.subscriptions = [
            subscription for subscription in broker.subscriptions if subscription.process is not self._process
        ]
