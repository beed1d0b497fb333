"""A node's wsengine as a model: one knob that needs no reload, turned by signed Orders.

It is written after `judge` and `admit` of wsengine/src/order.rs and wsengine/src/engine/mod.rs: signature, address,
repeated ids, lease, clock, the later Order in force. That the real one keeps to this is tried in tests/wsengine/. Left
out: reloads, its own crash and its disk, and values that somebody else changes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from slackwater.core import messages
from slackwater.core.messages import VERSION, WSENGINE, Change, ChangeCause, Knobs, KnobState, Order
from slackwater.orders.knobs import FREQUENCY, RELEASE
from slackwater.orders.signing import HEADER
from tests.simulation.network import Broker, Link, Subscription
from tests.simulation.world import Process, World

WITHOUT_US = "schedutil"
WORDS = ("performance", "powersave")
CLOCK_SKEW_S = 5.0
LONGEST_LEASE_S = 600.0
PUBLISHED_EVERY_S = 1.0


@dataclass
class Lease:
    """What an Order made of the knob."""

    order: Order
    value: str
    until_s: float


class Node:
    """One node; `world.now_s` is its monotonic clock too. `replaced` is called with two Orders of one lease."""

    def __init__(
        self, world: World, name: str, broker: Broker, key: Ed25519PublicKey, replaced: Callable[[Order, Order], object]
    ) -> None:
        self.name, self.link = name, Link()
        self.held_up_s = -1e9
        self.lease: Lease | None = None
        self._world, self._broker, self._key, self._replaced = world, broker, key, replaced
        self._process = Process(world, f"wsengine of {name}")  # type: ignore[abstract]  # as in `World`
        self._seen: set[str] = set()
        self._changes = 0
        subject = f"slackwater.order.web.{name}"
        broker.subscriptions.append(Subscription(self._process, self.link, subject, self._receive))
        self._publish_knobs()

    def refusal(self, order: Order) -> str:
        """Why it is not carried out; empty: it is."""
        age_s = self._wall_s() - order.time_unix_s
        if (order.v, order.node, order.pool, order.knob) != (VERSION, self.name, "web", FREQUENCY):
            return "it is for another one"
        if order.id in self._seen:
            return "it was here before"
        if not 0.0 < order.lease_s <= LONGEST_LEASE_S or age_s < -CLOCK_SKEW_S or age_s >= order.lease_s:
            return "its lease is over, or a clock is wrong"
        if order.value not in (*WORDS, RELEASE):
            return "its value is not allowed"
        return "a later Order is in force" if self.is_older(order) else ""

    def is_older(self, order: Order) -> bool:
        """Whether it is older than the Order in force."""
        return self.lease is not None and self.lease.order.time_unix_s > order.time_unix_s

    def _receive(self, _: str, payload: bytes, headers: dict[str, str]) -> None:
        try:
            self._key.verify(base64.b64decode(headers[HEADER]), payload)
        except (KeyError, InvalidSignature):
            return
        order = messages.decode("order", payload)
        assert isinstance(order, Order)
        refusal = self.refusal(order)
        self._seen.add(order.id)
        before = self.lease.value if self.lease is not None else WITHOUT_US
        if not refusal and order.value == RELEASE and self.lease is None:
            refusal = "it is not set"
        if refusal:
            self._change(before, str(order.value), "refused", order.id)
            return
        if self.lease is not None:
            self._replaced(self.lease.order, order)
        if order.value == RELEASE:
            self._put_back("given_back", order.id)
            return
        left_s = min(order.lease_s, order.lease_s - (self._wall_s() - order.time_unix_s))
        self.lease = Lease(order, str(order.value), self._world.now_s + left_s)
        self._world.at(self.lease.until_s, self._expire, self.lease, process=self._process)
        if before != order.value:
            self._world.tell(self.name, f"{FREQUENCY} {before} -> {order.value}")
            self._change(before, str(order.value), "ordered", order.id)

    def _expire(self, lease: Lease) -> None:
        if lease is self.lease:
            self._put_back("lease_ended", lease.order.id)

    def _put_back(self, cause: ChangeCause, id_: str) -> None:
        assert self.lease is not None
        before, self.lease = self.lease.value, None
        self._world.tell(self.name, f"{FREQUENCY} {before} -> {WITHOUT_US} ({cause})")
        self._change(before, WITHOUT_US, cause, id_)

    def _change(self, before: str, after: str, cause: ChangeCause, id_: str) -> None:
        self._changes += 1
        change = Change(
            VERSION, f"{self.name}-{self._changes}", "web", self._wall_s(), FREQUENCY, self.name, before, after, "word",
            WSENGINE, cause != "refused", follows=id_, cause=cause,
        )  # fmt: skip
        self._publish(f"slackwater.change.web.{self.name}", messages.encode(change))

    def _publish_knobs(self) -> None:
        lease = self.lease
        state = KnobState(
            FREQUENCY, lease.value if lease else WITHOUT_US, WITHOUT_US, words=list(WORDS),
            order=lease.order.id if lease else "", by=lease.order.by if lease else "",
        )  # fmt: skip
        knobs = Knobs(VERSION, self.name, "web", self._wall_s(), "any", [state])
        self._publish(f"slackwater.knobs.web.{self.name}", messages.encode(knobs))
        self._world.at(self._world.now_s + PUBLISHED_EVERY_S, self._publish_knobs, process=self._process)

    def _publish(self, subject: str, payload: bytes) -> None:
        self._broker.pass_on(self.link, True, lambda: self._broker.publish(subject, payload, {}))

    def _wall_s(self) -> float:
        return 1.8e9 + self._world.now_s
