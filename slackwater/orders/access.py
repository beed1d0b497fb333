"""Sends Orders and requests over the bus, and knows their answers: a `BusAccess` for each pool of a giver of Orders."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from slackwater.core.bus.bus import Bucket, Bus, BusError
from slackwater.core.config import PoolSettings
from slackwater.core.journal.journal import Journal, JournalError
from slackwater.core.messages import (
    VERSION,
    WSENGINE,
    Change,
    ChangeCause,
    Cycle,
    Knobs,
    Message,
    Order,
    ServerState,
    shortened,
)
from slackwater.orders.knobs import REACHES_S, Value
from slackwater.orders.signing import Signer

ORDERS_KEPT = 1000
SILENT_S = 3.0
"""Without Cycles for this long lbengine does not drive the pool: nothing is begun."""
log = logging.getLogger("slackwater.orders")


class NotNow(Exception):
    """lbengine refused, or nobody answers; the text says which."""


class SentOrder(NamedTuple):
    node: str
    sent_s: float


class Receiver(Protocol):
    """Gets the messages of its pool (`slackwater.orders.pool`)."""

    cycle: Cycle | None

    def see(self, message: Any) -> None: ...
    def forget(self) -> None: ...


class BusAccess:
    """Orders to the nodes of one pool and requests to its lbengine, over the bus and the journal.

    Where several controllers share a bus, only the controller whose lbengine leads gives Orders: it made the last Cycle
    of the acting pool. The others stand by with their lbengines, and send nothing. `clock` is monotonic. `by`: the
    giver of the Orders. `records_renewals`: a renewal, which changes nothing, is recorded too.
    """

    def __init__(
        self,
        pool: PoolSettings,
        lease_s: float,
        bus: Bus,
        journal: Journal,
        signer: Signer | None,
        controller: str,
        *,
        by: str,
        records_renewals: bool = True,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._pool, self._lease_s, self._controller, self._by = pool, lease_s, controller, by
        self._bus, self._journal, self._signer = bus, journal, signer
        self._records_renewals, self._clock, self._wall = records_renewals, clock, wall
        self._led_s = -math.inf
        """When a Cycle of our own lbengine came last."""
        self._other_led_s = -math.inf
        """When a Cycle of another controller that acts came last."""
        self._observes = False
        """The mode of our own lbengine is observe."""
        self._stands_by = False
        self.pool: Receiver | None = None
        self._news = asyncio.Event()
        self._cycles = 0
        self._orders: OrderedDict[str, SentOrder] = OrderedDict()
        """Id -> the Order, as it was sent."""
        self._answers: dict[str, Change] = {}
        """Id of the Order -> its answer."""
        self._reports: dict[str, tuple[Knobs, float]] = {}
        """Node -> its last report, and when it came."""

    def take(self, message: Any) -> None:
        """A message of the pool came."""
        if isinstance(message, Cycle):
            self._see_leader(message)
            if message.controller != self._controller:
                return
            self._cycles += 1
        if self._stands_by:
            return
        if isinstance(message, Change) and message.by == WSENGINE:
            order = self._orders.get(message.follows)
            if order is not None and order.node == message.target:
                self._answers[message.follows] = message
        if isinstance(message, Knobs):
            self._reports[message.node] = message, self._clock()
        if self.pool is not None:
            self.pool.see(message)
        self._news.set()

    def _see_leader(self, cycle: Cycle) -> None:
        now_s = self._clock()
        if cycle.controller == self._controller:
            self._led_s, self._observes = now_s, cycle.mode == "observe"
            # Who only observes leads nobody, so it stands by for as long as another controller acts.
            self._stands_by = self._stands_by and self._observes and now_s - self._other_led_s < SILENT_S
            return
        if cycle.mode != "act":
            return
        self._other_led_s = now_s
        only_records = self._pool.mode == "observe" and self._observes  # the other controller takes nothing from it
        if not (only_records and self.leads) and not self._stands_by:
            log.info("%s: pool %s: standing by: another controller leads", self._by, self._pool.name)
            self._stands_by = True
            self._orders.clear()
            self._answers.clear()
            if self.pool is not None:
                self.pool.forget()

    @property
    def controller(self) -> str:
        """The id of this controller."""
        return self._controller

    async def bucket(self, name: str) -> Bucket:
        """A key-value store of the bus. Raises BusError."""
        return await self._bus.bucket(name)

    @property
    def leads(self) -> bool:
        """Whether the lbengine of this controller drives the pool."""
        return not self._stands_by and self._clock() - self._led_s < SILENT_S

    def _check_leads(self) -> None:
        if not self.leads:
            raise NotNow("the lbengine of this controller does not drive the pool")

    # --- requests and Orders

    async def request(self, action: str, node: str, why: str, **fields: float | str) -> None:
        """Asks lbengine for `drain`, `limit`, `hold` or `undo`, with its fields. Raises NotNow."""
        self._check_leads()
        question = {"action": action, "node": node, "by": self._by, "why": why, **fields}
        try:
            answer = await self._bus.request(f"slackwater.request.{self._pool.name}", question)
        except BusError as error:
            raise NotNow(str(error)) from None
        if "error" in answer:
            raise NotNow(f"lbengine: {answer['error']}")

    async def order(self, node: str, knob: str, value: Value, why: str, cause: ChangeCause) -> str:
        """Records and sends an Order; its id. Raises NotNow when it cannot be recorded or sent."""
        if self._signer is None or not self._bus.connected:
            raise NotNow("the bus is away" if self._signer else "there is no key to sign Orders with")
        self._check_leads()
        reason = f"for {self._lease_s:g} s: {why}"
        change = self._change(node, f"order {knob}", None, value, reason, cause, applied=True)
        order = Order(
            VERSION, change.id, node, change.pool, change.time_unix_s, knob, value, self._lease_s, why, self._by
        )
        recorded = cause != "renewed" or self._records_renewals
        if recorded:
            try:
                await asyncio.to_thread(self._journal.record, change)
            except JournalError as error:
                raise NotNow(f"no Order without a record of it: {error}") from None
            self._check_leads()  # recording may have taken long
        self._orders[order.id] = SentOrder(node, self._clock())
        while len(self._orders) > ORDERS_KEPT:
            self._answers.pop(self._orders.popitem(last=False)[0], None)
        if recorded:
            await self._bus.publish(change)
        await self._bus.publish(order, headers=self._signer.headers)
        return order.id

    async def note(
        self, node: str, knob: str, before: Value | None, after: Value | None, why: str, cause: ChangeCause
    ) -> None:
        """Records an Order that would have been given."""
        change = self._change(node, knob, before, after, why, cause, applied=False)
        try:
            await asyncio.to_thread(self._journal.record, change)
        except JournalError as error:
            log.error("%s", error)
        await self._bus.publish(change)

    async def record(
        self, node: str, what: str, after: Value, why: str, cause: ChangeCause, *, applied: bool, follows: str = ""
    ) -> str:
        """Records a step of ours, on the disk; its id. Raises NotNow when it cannot be recorded."""
        change = self._change(node, what, None, after, why, cause, applied=applied, follows=follows)
        try:
            await asyncio.to_thread(self._journal.record, change)
        except JournalError as error:
            raise NotNow(f"nothing is done without a record of it: {error}") from None
        await self._bus.publish(change)
        return change.id

    def _change(
        self,
        node: str,
        what: str,
        before: Value | None,
        after: Value | None,
        why: str,
        cause: ChangeCause,
        *,
        applied: bool,
        follows: str = "",
    ) -> Change:
        return Change(
            VERSION,
            uuid.uuid4().hex,
            self._pool.name,
            self._wall(),
            what,
            node,
            before,
            after,
            shortened(why),
            self._by,
            applied,
            follows=follows,
            cause=cause,
        )

    async def publish(self, message: Message) -> None:
        """On the bus; not while another controller leads."""
        if not self._stands_by:
            await self._bus.publish(message)

    # --- answers

    def server(self, node: str) -> ServerState | None:
        """The node's server as the last Cycle showed it."""
        cycle = self.pool.cycle if self.pool is not None else None
        servers = cycle.servers if cycle is not None else []
        return next((state for state in servers if self._pool.servers.get(state.server, state.server) == node), None)

    def cycles(self) -> int:
        """The number of Cycles that came so far."""
        return self._cycles

    def sent_s(self, order: str) -> float | None:
        """When this run sent the Order; None: an earlier run of ours did, or another controller."""
        sent = self._orders.get(order)
        return sent.sent_s if sent is not None else None

    def answer(self, order: str) -> Change | None:
        """The Change by which the node's wsengine answered an Order."""
        return self._answers.get(order)

    def is_lost(self, order: str) -> bool:
        """Whether the node's wsengine reports that this Order neither waits nor is in force."""
        sent = self._orders.get(order)
        knobs, came_s = self._reports.get(sent.node, (None, 0.0)) if sent is not None else (None, 0.0)
        if sent is None or knobs is None or knobs.waiting is None or came_s < sent.sent_s + REACHES_S:
            return False
        return order not in self._answers and order not in {*knobs.waiting, *(knob.order for knob in knobs.knobs)}

    async def wait(self, ready: Callable[[], bool], within_s: float) -> bool:
        """Waits for something to become true; False when it does not in time."""
        until_s = self._clock() + within_s
        while not ready():
            left_s = until_s - self._clock()
            if left_s <= 0.0:
                return False
            self._news.clear()
            try:
                async with asyncio.timeout(left_s):  # `wait_for` may lose a cancellation
                    await self._news.wait()
            except TimeoutError:
                continue
        return True
