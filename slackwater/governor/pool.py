"""The governor of one pool: in each step, which knobs are set, renewed and put back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from slackwater.core.config import NODE_POLICIES, GovernorSettings, PoolSettings
from slackwater.core.messages import (
    GOVERNOR,
    WSENGINE,
    Change,
    ChangeCause,
    Cycle,
    Governed,
    Knobs,
    Message,
    Sample,
    Verdict,
)
from slackwater.governor.batch import turn
from slackwater.governor.lines import as_line
from slackwater.governor.node import GovernedNode
from slackwater.governor.on_node import PolicyNode
from slackwater.orders.access import SILENT_S, NotNow, OrderAccess
from slackwater.orders.knobs import RELEASE, RENEW_AT, Held, Value

log = logging.getLogger(GOVERNOR)

PUBLISH_EVERY_S = 1.0


class PublishingAccess(OrderAccess, Protocol):
    """What a governed pool needs of the bus; `slackwater.orders.access.BusAccess` has it."""

    async def publish(self, message: Message) -> None:
        """On the bus."""


class GovernedPool:
    """Fed with messages by `see`; `step` is called several times a second. Not for several tasks at once."""

    def __init__(
        self,
        pool: PoolSettings,
        settings: GovernorSettings,
        access: PublishingAccess,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        *,
        target_ms: float | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """`target_ms`: another than the pool's. `tell` gets a line for each decision that differs from the last."""
        self.nodes: dict[str, GovernedNode] = {}
        self.cycle: Cycle | None = None
        self.latest: dict[str, Governed] = {}
        self._cycle_s = float("-inf")
        self._pool, self._settings, self._access = pool, settings, access
        self._target_ms = pool.target_p95_ms if target_ms is None else target_ms
        self._clock, self._wall, self._tell = clock, wall, tell
        self._published_s = float("-inf")
        self._told: dict[str, str] = {}
        self._logged: dict[str, str] = {}

    # --- what comes in

    def see(self, message: Sample | Verdict | Cycle | Change | Knobs) -> None:
        """Takes a message of this pool."""
        now_s = self._clock()
        if isinstance(message, Cycle):
            self.cycle, self._cycle_s = message, now_s
        elif isinstance(message, Change):
            if message.by == WSENGINE and message.target in self.nodes:
                self.nodes[message.target].see_change(message, now_s)
        elif isinstance(message, Knobs):
            self._node(message.node).see_knobs(message, now_s, self._access.has_sent)
        elif isinstance(message, Verdict):
            self._node(message.node).see_verdict(message, now_s)
        else:
            self._node(message.node).see_sample(message, now_s)

    def _node(self, name: str) -> GovernedNode:
        if name not in self.nodes:
            make = PolicyNode if self._settings.policy in NODE_POLICIES else GovernedNode
            self.nodes[name] = make(name, self._pool.name, self._settings, self._target_ms)
        return self.nodes[name]

    def forget(self) -> None:
        """Another controller leads now: what is set is its to renew or to put back."""
        self.nodes, self.cycle = {}, None

    # --- each step

    @property
    def _may_act(self) -> bool:
        return self._settings.mode == "act" and self._pool.mode == "act"

    @property
    def _fresh(self) -> bool:
        return self.cycle is not None and self._clock() - self._cycle_s < SILENT_S

    @property
    def _paused(self) -> bool:
        return self.cycle is not None and self.cycle.paused

    async def step(self) -> None:
        """Does what is due."""
        now_s = self._clock()
        for node in list(self.nodes.values()):
            target = {} if self._paused else node.target_values(now_s)
            if self._may_act and self._fresh:
                await self._renew(node, target, now_s)
                await self._apply(node, target, now_s)
            elif not self._may_act:
                await self._note(node, target)
        if now_s - self._published_s >= PUBLISH_EVERY_S:
            self._published_s = now_s
            for node in list(self.nodes.values()):
                said = node.message("act" if self._may_act else "observe", self._wall(), now_s)
                self.latest[node.name] = said
                await self._access.publish(said)
        self._tell_news()

    async def end(self) -> None:
        """Everything that is set is given back; what cannot be given back now ends with its lease."""
        for node in list(self.nodes.values()):
            held = sorted(node.held, key=lambda knob: turn(knob, RELEASE, None))
            for knob in held if self._may_act else ():
                await self._order(node, knob, RELEASE, "the governor stops")
                node.held.pop(knob, None)

    async def _renew(self, node: GovernedNode, target: dict[str, Value], now_s: float) -> None:
        for knob, held in list(node.held.items()):
            if now_s - held.sent_s >= self._settings.lease_s * RENEW_AT and target.get(knob) == held.value:
                held.sent_s = now_s
                held.order = await self._order(node, knob, held.value, "renewed", "renewed") or held.order

    async def _apply(self, node: GovernedNode, target: dict[str, Value], now_s: float) -> None:
        due = {knob: RELEASE for knob in node.held if knob not in target and knob in node.usable(now_s)}
        due |= {
            knob: value  # type: ignore[misc]
            for knob, value in target.items()
            if knob not in node.held or node.held[knob].value != value
        }
        why = "the pool is paused" if self._paused else node.reason()
        turns = {
            knob: turn(knob, value, node.held[knob].value if knob in node.held else None) for knob, value in due.items()
        }
        for knob, value in sorted(due.items(), key=lambda one: turns[one[0]]):
            order = await self._order(node, knob, value, why)
            if order and value == RELEASE:
                node.held.pop(knob, None)
            elif order:
                node.held[knob] = Held(value, order, now_s)

    async def _order(
        self, node: GovernedNode, knob: str, value: Value, why: str, cause: ChangeCause = "governor"
    ) -> str | None:
        try:
            return await self._access.order(node.name, knob, value, why, cause)
        except NotNow as error:
            self._log_once(node.name, str(error))
            return None

    def _log_once(self, name: str, what: str) -> None:
        """Logs a node's trouble when it is new, not several times a second."""
        if self._logged.get(name) != what:
            self._logged[name] = what
            log.warning("%s: %s: %s", self._pool.name, name, what)

    async def _note(self, node: GovernedNode, target: dict[str, Value]) -> None:
        """Records what it would set, once for each value."""
        if not node.knows_its_knobs:
            return
        for knob in sorted({*target, *node.noted}):
            before, after = node.noted.get(knob), target.get(knob)
            if before == after:
                continue
            why = node.reason()
            await self._access.note(node.name, knob, before or RELEASE, after or RELEASE, why, "governor")
            if after is None:
                node.noted.pop(knob)
            else:
                node.noted[knob] = after

    def _tell_news(self) -> None:
        for node in self.nodes.values() if self._tell is not None else ():
            if self._told.get(node.name) != node.decision and self._tell is not None:
                self._told[node.name] = node.decision
                self._tell(as_line(node.message("act" if self._may_act else "observe", self._wall(), self._clock())))
