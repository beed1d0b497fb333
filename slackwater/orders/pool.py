"""A pool whose nodes get Orders: takes its messages, sends and renews Orders, and gives everything back in a pause."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

from slackwater.core.config import GovernorSettings, PoolSettings, RetuneSettings
from slackwater.core.messages import WSENGINE, Change, ChangeCause, Cycle, Knobs, Mode, Verdict
from slackwater.orders.access import SILENT_S, BusAccess, NotNow
from slackwater.orders.knobs import RELEASE, RENEW_AT, Value
from slackwater.orders.node import OrderedNode

log = logging.getLogger("slackwater.orders")
N = TypeVar("N", bound=OrderedNode)


class OrderedPool(ABC, Generic[N]):
    """Fed with messages by `see`; `step` is called several times a second. Not for several tasks at once.

    Where the settings have mode observe it decides as in act mode, and records the Orders instead of sending them; a
    search needs values in force, and is not begun. Where a person switches to observe, everything is given back.
    """

    by: str
    """The giver of the Orders, as in their `by`."""
    cause: ChangeCause
    """The cause of its Orders; a renewal has its own."""

    def __init__(
        self,
        pool: PoolSettings,
        settings: RetuneSettings | GovernorSettings,
        access: BusAccess,
        clock: Callable[[], float],
    ) -> None:
        """`clock` is monotonic."""
        self.nodes: dict[str, N] = {}
        self.cycle: Cycle | None = None
        """The last Cycle."""
        self.acts = settings.mode == "act" and pool.mode == "act"
        """Whether the settings let it send Orders at all; else it records them."""
        self._cycle_s = -math.inf
        self._pool, self._lease_s, self._access, self._clock = pool, settings.lease_s, access, clock
        self._logged: dict[str, str] = {}

    @abstractmethod
    def make_node(self, name: str) -> N:
        """A node that nothing is known of."""

    @abstractmethod
    async def step(self) -> None:
        """Does what is due."""

    @abstractmethod
    async def end(self) -> None:
        """Once, at the end."""

    def node(self, name: str) -> N:
        if name not in self.nodes:
            self.nodes[name] = self.make_node(name)
        return self.nodes[name]

    def see(self, message: Any) -> None:
        """Takes a message of this pool: a Sample, a Verdict, a Cycle, a Change or a node's Knobs."""
        now_s = self._clock()
        if isinstance(message, Cycle):
            self.cycle, self._cycle_s = message, now_s
        elif isinstance(message, Change):
            if message.by == WSENGINE and message.target in self.nodes:
                self.nodes[message.target].see_change(message, now_s)
        elif isinstance(message, Knobs):
            self.node(message.node).see_knobs(message, now_s, self._sent_s)
        elif isinstance(message, Verdict):
            self.node(message.node).see_verdict(message, now_s)
        else:
            self.node(message.node).see_sample(message, now_s)

    def _sent_s(self, order: str) -> float | None:
        """When an Order was sent, for `OrderedNode.see_knobs`. Who only observes takes up no Order of another
        run: it may be another controller's."""
        sent_s = self._access.sent_s(order) if self.acts else None
        return -math.inf if sent_s is None and self.acts and not self._observes else sent_s

    def forget(self) -> None:
        """Another controller leads now: the knobs are its to renew or to put back."""
        self.nodes, self.cycle, self._cycle_s = {}, None, -math.inf

    @property
    def _observes(self) -> bool:
        """Whether the last Cycle observes. A person may switch a pool that acts by the settings."""
        return self.cycle is not None and self.cycle.mode == "observe"

    @property
    def sets_nothing(self) -> bool:
        """A person paused the pool, or switched it to observe: everything is given back."""
        return self.cycle is not None and (self.cycle.paused or (self.acts and self._observes))

    @property
    def mode(self) -> Mode:
        """The mode that settings and last Cycle give together."""
        return "act" if self.acts and not self._observes else "observe"

    @property
    def may_order(self) -> bool:
        """Whether Orders may be given now; in a pause only those that give back."""
        return not self.acts or self._clock() - self._cycle_s < SILENT_S

    def target(self, node: N, now_s: float) -> dict[str, Value]:
        """Knob -> the value that it should have now."""
        return {} if self.sets_nothing else node.target_values(now_s)

    def due(self, node: N, now_s: float) -> dict[str, Value]:
        """Knob -> the value to order now."""
        return node.due(self.target(node, now_s), now_s)

    def reason(self, node: N, knob: str, value: Value) -> str:
        if self.sets_nothing:
            return "the pool is paused" if self.cycle is not None and self.cycle.paused else "the pool only observes"
        if value == RELEASE and node.is_left_alone(knob, self._clock()):
            return "the knob is left alone: an Order for it was refused, or somebody else changed it"
        return node.reason(knob, value)

    async def renew(self, node: N, now_s: float, changing: Collection[str]) -> None:
        """Renews the leases. A renewal of a knob that is `changing` would overtake the Order for its new value, which
        would be refused for it."""
        target = self.target(node, now_s)
        for knob, held in list(node.held.items()):
            is_due = self.acts and now_s - held.sent_s >= self._lease_s * RENEW_AT
            if is_due and knob in target and knob not in changing:
                held.sent_s = now_s
                why = f"renewed: {node.reason(knob, held.value)}"
                if order := await self.order(node, knob, held.value, why, "renewed"):
                    node.hold(knob, held.value, order, now_s)

    async def give(self, node: N, values: Mapping[str, Value], why: str = "") -> None:
        """Orders the values, in this order. `why`: empty for the reason of each."""
        for knob, value in values.items():
            if (order := await self.order(node, knob, value, why or self.reason(node, knob, value))) is not None:
                node.hold(knob, value, order, self._clock())

    async def order(self, node: N, knob: str, value: Value, why: str, cause: ChangeCause | None = None) -> str | None:
        """Sends an Order, and returns its id; None: it could not be sent now."""
        if self.sets_nothing and value != RELEASE:
            return None  # a person paused the pool since this step began
        if not self.acts:
            await self._access.note(node.name, knob, node.value(knob), value, why, cause or self.cause)
            return ""
        try:
            return await self._access.order(node.name, knob, value, why, cause or self.cause)
        except NotNow as error:
            self.log_once(node.name, str(error))
            return None

    def log_once(self, name: str, problem: str) -> None:
        """Logs a node's trouble when it is new, not several times a second."""
        if self._logged.get(name) != problem:
            self._logged[name] = problem
            log.warning("%s: %s: %s: %s", self.by, self._pool.name, name, problem)
