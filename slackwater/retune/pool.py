"""The second stage of one pool: in each step, which nodes are in it, which values are set, renewed and put back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from slackwater.core.config import PoolSettings, RetuneSettings
from slackwater.core.messages import ChangeCause, KnobState
from slackwater.orders.access import BusAccess, NotNow
from slackwater.orders.knobs import RELEASE, RENEW_AT, Value, reloads
from slackwater.orders.pool import OrderedPool
from slackwater.retune.best_values import BestValues
from slackwater.retune.drain import drain_and_apply
from slackwater.retune.knowledge import MAXCONN, Knowledge, value_for
from slackwater.retune.node import BY, RetunedNode
from slackwater.retune.searching import PoolSearch
from slackwater.retune.stage import has_room

log = logging.getLogger("retune")

LIMIT_FOR_S = 30.0
HOLD_FOR_S = 15.0


class RetunedPool(OrderedPool[RetunedNode]):
    """`step` is called twice a second."""

    by, cause = BY, "second_stage"

    def __init__(
        self,
        pool: PoolSettings,
        settings: RetuneSettings,
        knowledge: Knowledge,
        best_values: BestValues,
        access: BusAccess,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(pool, settings, access, clock)
        self._settings, self._knowledge, self._best_values = settings, knowledge, best_values
        self._applying: asyncio.Task[None] | None = None
        """Sets values that need a reload; its name is the node's."""
        self._begin()

    def _begin(self) -> None:
        self._search = PoolSearch(self._best_values, self._settings.search_measure_s)
        self._limits: dict[str, tuple[int, float]] = {}
        """Node -> the server's own maxconn, and when the limit was last requested."""
        self._hold = "", 0.0
        """The node that is to keep its weight, and when that was last requested."""
        self._began_s = self._clock()

    def make_node(self, name: str) -> RetunedNode:
        return RetunedNode(name, self._settings, self._knowledge)

    def forget(self) -> None:
        super().forget()
        self._begin()

    # --- each step

    async def step(self) -> None:
        now_s = self._clock()
        room = self._step_stages(now_s)
        may_set = self.acts and self.may_order and not self.sets_nothing
        if may_set:
            await self._limit_servers(now_s)
        for node in list(self.nodes.values()) if self.may_order else ():
            await self.renew(node, now_s, self.due(node, now_s).keys() if self._is_applying(node) else ())
            await self._give_directly(node, now_s)
        if may_set and self._settings.policy == "search":
            await self._step_search(now_s, room)
        self._begin_next(now_s, may_set)

    async def end(self) -> None:
        """Cancels what is being applied, and waits until its node has its requests back."""
        if self._applying is not None:
            self._applying.cancel()
            await asyncio.gather(self._applying, return_exceptions=True)

    def _step_stages(self, now_s: float) -> bool:
        """Nodes enter and leave the second stage; whether the others could carry the load of those affected."""
        affected = {name: sign for name, node in self.nodes.items() if (sign := node.affected(now_s)) is not None}
        well = [node for name, node in self.nodes.items() if name not in affected]
        rates = [server.rps for server in self.cycle.servers] if self.cycle is not None else []
        total_rps = None if not rates or None in rates else sum(rate for rate in rates if rate is not None)
        verdicts = [node.fresh_verdict(now_s) for node in well]
        capacities_rps = [verdict.capacity_rps for verdict in verdicts if verdict is not None]
        room = has_room(total_rps, capacities_rps, self._pool.u_threshold)
        for name, node in self.nodes.items():
            if not node.stage.step(now_s, affected.get(name), room):
                continue
            if node.stage.entered:
                log.info("%s enters the second stage: %s", name, node.stage.why)
            else:
                self._search.left(node)
                log.info("%s leaves the second stage", name)
            node.entered_or_left()
        return room

    # --- the balancer's own limit

    async def _limit_servers(self, now_s: float) -> None:
        # A limit of the run before ends first: a server's own maxconn is what it shows without us.
        if now_s - self._began_s < LIMIT_FOR_S and any(node.was_taken_up for node in self.nodes.values()):
            return
        for node in list(self.nodes.values()):
            server = self._access.server(node.name)
            rule = self._knowledge.get(MAXCONN)
            if not node.stage.entered or rule is None or server is None or server.maxconn is None:
                if self._limits.pop(node.name, None) is not None:
                    await self._request("undo", node.name, "the episode is over", what="limit")
                continue
            own, asked_s = self._limits.get(node.name, (server.maxconn, -LIMIT_FOR_S))
            if now_s - asked_s < LIMIT_FOR_S * RENEW_AT:
                continue
            most = value_for(rule, KnobState(MAXCONN, own, own, 1, own), node.stage.severity)
            if isinstance(most, int):
                self._limits[node.name] = (own, now_s)
                why = node.reason(MAXCONN, most)
                await self._request("limit", node.name, why, for_s=LIMIT_FOR_S, maxconn=most)

    # --- Orders

    async def order(
        self, node: RetunedNode, knob: str, value: Value, why: str, cause: ChangeCause | None = None
    ) -> str | None:
        order = await super().order(node, knob, value, why, "search_over" if node.search.announces_end else cause)
        if order is not None:
            node.search.announces_end = False
        return order

    async def _give_directly(self, node: RetunedNode, now_s: float) -> None:
        """The values that need no reload. In a pause all are given back so: lbengine would refuse the drain, and the
        reload itself cuts nothing. What is being applied then is given back as soon as that has stopped."""
        values = self.due(node, now_s)
        if self.acts and (not self.sets_nothing or self._is_applying(node)):
            values = {knob: value for knob, value in values.items() if not reloads(node.knobs, knob)}
        if values:
            await self.give(node, values)
            node.search.settled_s = now_s
        if values and self.sets_nothing:
            node.next_reload_s = now_s + self._settings.reload_min_interval_s

    def _is_applying(self, node: RetunedNode) -> bool:
        return self._applying is not None and self._applying.get_name() == node.name

    def _begin_next(self, now_s: float, may_set: bool) -> None:
        """Values that need a reload, one node of the pool at a time; the one that has waited longest goes first."""
        if self._applying is not None:
            if not self._applying.done():
                return
            self._applying.result()
            self._applying = None
        nodes = sorted(self.nodes.values(), key=lambda node: (node.next_reload_s, -node.stage.severity, node.name))
        for node in nodes if may_set else ():
            values = {knob: value for knob, value in self.due(node, now_s).items() if reloads(node.knobs, knob)}
            if values and now_s >= node.next_reload_s:
                self._applying = asyncio.create_task(self._apply(node, values), name=node.name)
                return

    async def _apply(self, node: RetunedNode, values: Mapping[str, Value]) -> None:
        cause: ChangeCause = "search_over" if node.search.announces_end else self.cause
        reasons = {knob: self.reason(node, knob, value) for knob, value in values.items()}
        outcome = await drain_and_apply(
            self._access,
            node.name,
            values,
            reasons,
            self._settings.drain_s,
            cause,
            must_stop=lambda: self.sets_nothing,
        )
        now_s = self._clock()
        node.next_reload_s = now_s + self._settings.reload_min_interval_s
        for knob, change in outcome.changes.items():
            if change.applied or values[knob] == RELEASE:
                node.hold(knob, values[knob], change.follows, now_s, is_carried_out=change.applied)
            else:
                node.leave_alone(knob, change.why, now_s)
        for knob, order in outcome.unanswered.items() if self.sets_nothing else ():
            if values[knob] != RELEASE:  # it may yet be carried out, so the next step gives it back
                node.hold(knob, values[knob], order, now_s)
        if outcome.trouble:
            self.log_once(node.name, outcome.trouble)
        else:
            node.search.announces_end = False
        node.search.settled_s = now_s

    # --- the search

    async def _step_search(self, now_s: float, room: bool) -> None:
        for node in self.nodes.values():
            server = self._access.server(node.name)
            full_weight = server is not None and server.weight >= server.full_weight
            node.full_weight_since_s = (node.full_weight_since_s or now_s) if full_weight else None

        def busy(node: RetunedNode) -> bool:
            return self._is_applying(node) or bool(self.due(node, now_s))

        self._search.step(self.nodes.values(), now_s, busy, room)
        held, asked_s = self._hold
        active = self._search.active_node
        if held and held != active:
            await self._request("undo", held, "its values are no longer searched", what="hold")
            self._hold = "", 0.0
        if active and (held != active or now_s - asked_s >= HOLD_FOR_S * RENEW_AT):
            await self._request("hold", active, "its values are searched", for_s=HOLD_FOR_S)
            self._hold = active, now_s

    async def _request(self, action: str, node: str, why: str, **fields: float | str) -> None:
        try:
            await self._access.request(action, node, why, **fields)
        except NotNow as error:
            self.log_once(node, str(error))
