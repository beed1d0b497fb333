"""The governor of one pool: in each step, which knobs are set, renewed and put back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from slackwater.core.config import NODE_POLICIES, GovernorSettings, PoolSettings
from slackwater.core.messages import GOVERNOR
from slackwater.governor.batch import turn
from slackwater.governor.lines import as_line
from slackwater.governor.node import GovernedNode
from slackwater.governor.on_node import PolicyNode
from slackwater.orders.access import BusAccess
from slackwater.orders.knobs import RELEASE, Value
from slackwater.orders.pool import OrderedPool

PUBLISH_EVERY_S = 1.0


class GovernedPool(OrderedPool[GovernedNode]):
    """`step` is called several times a second."""

    by, cause = GOVERNOR, "governor"

    def __init__(
        self,
        pool: PoolSettings,
        settings: GovernorSettings,
        access: BusAccess,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        *,
        target_ms: float | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """`target_ms`: another than the pool's. `tell` gets a line for each decision that differs from the last."""
        super().__init__(pool, settings, access, clock)
        self._settings, self._wall, self._tell = settings, wall, tell
        self._target_ms = pool.target_p95_ms if target_ms is None else target_ms
        self._published_s = -math.inf
        self._told: dict[str, str] = {}
        """Node -> the decision that `tell` had last."""

    def make_node(self, name: str) -> GovernedNode:
        make = PolicyNode if self._settings.policy in NODE_POLICIES else GovernedNode
        return make(name, self._pool.name, self._settings, self._target_ms)

    async def step(self) -> None:
        now_s = self._clock()
        for node in list(self.nodes.values()):
            values = self.due(node, now_s)
            if self.may_order:
                await self.renew(node, now_s, values.keys())
                await self.give(node, in_turn(node, values))
        is_time = now_s - self._published_s >= PUBLISH_EVERY_S
        if is_time:
            self._published_s = now_s
        for node in list(self.nodes.values()):
            tell = self._tell if self._told.get(node.name) != node.decision else None
            message = node.message(self.mode, self._wall(), now_s) if is_time or tell is not None else None
            if message is not None and is_time:
                await self._access.publish(message)
            if message is not None and tell is not None:
                self._told[node.name] = node.decision
                tell(as_line(message))

    async def end(self) -> None:
        """Everything that is set is given back; what cannot be given back now ends with its lease."""
        for node in list(self.nodes.values()) if self.acts else ():
            await self.give(node, in_turn(node, dict.fromkeys(node.held, RELEASE)), "the governor stops")


def in_turn(node: GovernedNode, values: Mapping[str, Value]) -> dict[str, Value]:
    """The values in the order in which they are sent."""
    before = {knob: held.value for knob, held in node.held.items()}
    return dict(sorted(values.items(), key=lambda item: turn(item[0], item[1], before.get(item[0]))))
