"""The second stage of one pool: in each step, which nodes are in it, which values are set, renewed and put back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from slackwater.core.config import PoolSettings, RetuneSettings
from slackwater.core.messages import WSENGINE, Change, ChangeCause, Cycle, Knobs, KnobState, Sample, Verdict
from slackwater.orders.access import SILENT_S, NotNow
from slackwater.orders.knobs import FREQUENCY, RELEASE, RENEW_AT, Held, Value, reloads
from slackwater.retune.best_values import BestValues
from slackwater.retune.drain import ClusterAccess, drain_and_apply
from slackwater.retune.knowledge import MAXCONN, Knowledge, value_for
from slackwater.retune.node import Node
from slackwater.retune.searching import PoolSearch
from slackwater.retune.stage import Stage, has_room

log = logging.getLogger("retune")

VERDICT_FRESH_S = 3.0
LIMIT_FOR_S = 30.0
HOLD_FOR_S = 15.0
SLACK_FOR_S = 60.0
"""Calm with latency to spare for this long before the frequency may go down."""


class Pool:
    """Fed with messages by `see`; `step` is called twice a second. Not for several tasks at once."""

    def __init__(
        self,
        pool: PoolSettings,
        settings: RetuneSettings,
        knowledge: Knowledge,
        best_values: BestValues,
        cluster: ClusterAccess,
        clock: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.nodes: dict[str, Node] = {}
        self.cycle: Cycle | None = None
        self._cycle_s = 0.0
        self._pool = pool
        self._knowledge = knowledge
        self._best_values = best_values
        self._search = PoolSearch(knowledge, best_values, settings.search_measure_s)
        self._cluster = cluster
        self._clock = clock
        self._applying: asyncio.Task[None] | None = None
        """Sets values that need a reload; its name is the node's."""
        self._limits: dict[str, tuple[int, float]] = {}
        """Node -> the server's own maxconn, and when the limit was last requested."""
        self._hold = "", 0.0
        """The node that is to keep its weight, and when that was last requested."""
        self._logged: dict[str, str] = {}
        self._began_s = clock()

    # --- what comes in

    def node(self, name: str) -> Node:
        settings = self.settings
        if name not in self.nodes:
            not_ours = frozenset[str](settings.leave_alone)
            self.nodes[name] = Node(name, Stage(settings), searches=settings.policy == "search", not_ours=not_ours)
        return self.nodes[name]

    def see(self, message: Sample | Verdict | Cycle | Change | Knobs) -> None:
        """Takes a message of this pool."""
        now_s = self._clock()
        if isinstance(message, Sample):
            self.node(message.node).starvation.see(message)
        elif isinstance(message, Verdict):
            self.node(message.node).see_verdict(message, now_s)
        elif isinstance(message, Knobs):
            self.node(message.node).see_knobs(message, self._knowledge, now_s, self._cluster.has_sent)
        elif isinstance(message, Cycle):
            self.cycle, self._cycle_s = message, now_s
        elif message.by == WSENGINE and message.target in self.nodes:
            self.node(message.target).see_change(message, now_s, self.settings.lease_s)

    def forget(self) -> None:
        """Another controller leads now: what was known here is of the past, as at a start."""
        self.nodes = {}
        self._limits = {}
        self._hold = "", 0.0
        self.cycle = None
        self._search = PoolSearch(self._knowledge, self._best_values, self.settings.search_measure_s)
        self._began_s = self._clock()

    # --- each step

    @property
    def paused(self) -> bool:
        """A person paused the pool: what we have set is given back."""
        return self.cycle is not None and self.cycle.paused

    @property
    def acting(self) -> bool:
        """Whether any value may be set now."""
        fresh = self.cycle is not None and self._clock() - self._cycle_s < SILENT_S
        return self._may_act and fresh and not self.paused

    @property
    def _may_act(self) -> bool:
        """By the settings, the pool's too; else it only records what it would do."""
        return self.settings.mode == "act" and self._pool.mode == "act"

    async def step(self) -> None:
        """Does what is due."""
        now_s = self._clock()
        affected = {
            name: found for name, node in self.nodes.items() if (found := node.affected(now_s, VERDICT_FRESH_S))
        }
        well = [node for name, node in self.nodes.items() if name not in affected]
        capacities = [node.verdict.capacity_rps if node.verdict else None for node in well]
        room = has_room(self._total_rps(), capacities, self._pool.u_threshold)
        for name, node in list(self.nodes.items()):
            if node.stage.step(now_s, affected.get(name), room):
                self._entered_or_left(node)
            if not self._may_act:
                await self._note_intentions(node, now_s)
        if self.acting:
            await self._limit_servers(now_s)
            for node in list(self.nodes.values()):
                await self._renew(node, now_s)
                await self._apply_directly(node, now_s)
            if self.settings.policy == "search":
                await self._step_search(now_s, room)
        self._begin_next(now_s)

    async def end(self) -> None:
        """Cancels what is being applied, and waits until its node has its requests back."""
        if self._applying is not None:
            self._applying.cancel()
            await asyncio.gather(self._applying, return_exceptions=True)

    def _total_rps(self) -> float | None:
        rates = [server.rps for server in self.cycle.servers] if self.cycle else []
        return None if not rates or None in rates else sum(rate for rate in rates if rate is not None)

    def _entered_or_left(self, node: Node) -> None:
        node.left_alone.clear()
        node.noted.clear()
        if node.stage.entered:
            log.info("%s enters the second stage: %s", node.name, node.stage.why)
        else:
            self._search.left(node)
            log.info("%s leaves the second stage", node.name)
        node.forget_search()

    async def _note_intentions(self, node: Node, now_s: float) -> None:
        """Once for each value in an episode."""
        for knob, value in node.wanted(self._knowledge, now_s).items() if node.stage.entered else ():
            if node.noted.get(knob) != value:
                node.noted[knob] = value
                await self._cluster.note(
                    node.name, knob, node.usable(now_s)[knob].value, value, self._why(node), "second_stage"
                )

    def _why(self, node: Node) -> str:
        if not node.stage.entered:
            return "calm, with latency to spare"
        search = f"; {node.search_status}" if node.search_status else ""
        return f"{node.stage.why}; severity {node.stage.severity:.0%}{search}"

    # --- the balancer's own limit

    async def _limit_servers(self, now_s: float) -> None:
        # A limit of the run before ends first: a server's own maxconn is what it shows without us.
        if now_s - self._began_s < LIMIT_FOR_S and any(node.taken_over for node in self.nodes.values()):
            return
        for node in list(self.nodes.values()):
            server = self._cluster.server(node.name)
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
                await self._request("limit", node.name, self._why(node), for_s=LIMIT_FOR_S, maxconn=most)

    # --- Orders without a reload

    async def _renew(self, node: Node, now_s: float) -> None:
        # A renewal of the old value would overtake the Order for the new one, which would be refused for it.
        changing = self._pending(node, now_s).keys() if self._is_applying(node) else ()
        for knob, held in list(node.held.items()):
            if now_s - held.sent_s < self.settings.lease_s * RENEW_AT or knob in changing:
                continue
            if knob not in self._target_values(node, now_s):
                continue
            held.sent_s = now_s
            order = await self._order(node, knob, held.value, f"renewed: {self._why(node)}", "renewed")
            held.order = order or held.order

    async def _apply_directly(self, node: Node, now_s: float) -> None:
        for knob, value in self._pending(node, now_s).items():
            if not reloads(node.knobs, knob) and (order := await self._order(node, knob, value, self._why(node))):
                self._keep(node, knob, value, order)

    def _keep(self, node: Node, knob: str, value: Value, order: str) -> None:
        if value == RELEASE:
            node.held.pop(knob, None)
        else:
            node.held[knob] = Held(value, order, self._clock())

    async def _order(
        self, node: Node, knob: str, value: Value, why: str, cause: ChangeCause = "second_stage"
    ) -> str | None:
        try:
            order = await self._cluster.order(
                node.name, knob, value, why, "search_over" if node.announce_search_end else cause
            )
        except NotNow as error:
            self._log_once(node.name, str(error))
            return None
        node.announce_search_end = False
        return order

    # --- what should be

    def _target_values(self, node: Node, now_s: float) -> dict[str, Value]:
        """Knob -> the value that it should have on this node now."""
        if self.paused:
            return {}
        if node.stage.entered:
            return node.wanted(self._knowledge, now_s)
        return self._calm_values(node, now_s)

    def _calm_values(self, node: Node, now_s: float) -> dict[str, Value]:
        """A lower frequency, when calm and with latency to spare; off by default."""
        settings = self.settings
        verdict = node.verdict if now_s - node.verdict_s < VERDICT_FRESH_S else None
        calm = verdict is not None and verdict.state == "calm" and not node.starvation.starved
        if not calm or verdict is None or verdict.rt_p95_ms is None or verdict.rt_p95_ms >= settings.calm_below_p95_ms:
            node.calm_since_s = None
            return {}
        node.calm_since_s = now_s if node.calm_since_s is None else node.calm_since_s
        if not settings.calm_frequency or now_s - node.calm_since_s < SLACK_FOR_S:
            return {}
        value: Value = int(settings.calm_frequency) if settings.calm_frequency.isdigit() else settings.calm_frequency
        return {FREQUENCY: value} if FREQUENCY in node.usable(now_s) else {}

    def _pending(self, node: Node, now_s: float) -> dict[str, Value]:
        """Knob -> the value to order now; `baseline` gives it back."""
        target, usable = self._target_values(node, now_s), node.usable(now_s)
        due = {knob: value for knob, value in target.items() if knob not in node.held or node.held[knob].value != value}
        due |= {knob: RELEASE for knob in node.held if knob not in target and knob in usable}
        return due

    # --- Orders with a reload

    def _is_applying(self, node: Node) -> bool:
        return self._applying is not None and self._applying.get_name() == node.name

    def _begin_next(self, now_s: float) -> None:
        """One node of the pool at a time; the one that has waited longest goes first."""
        if self._applying is not None:
            if not self._applying.done():
                return
            self._applying.result()
            self._applying = None
        for node in sorted(self.nodes.values(), key=lambda node: (node.next_reload_s, -node.stage.severity, node.name)):
            due = self._pending(node, now_s)
            if self.acting:
                due = {knob: value for knob, value in due.items() if reloads(node.knobs, knob)}
            if due and now_s >= node.next_reload_s and (self.acting or self.paused):
                coming = self._apply(node, due) if self.acting else self._give_back(node, due)
                self._applying = asyncio.create_task(coming, name=node.name)
                return

    async def _apply(self, node: Node, due: Mapping[str, Value]) -> None:
        why = self._why(node) if node.stage.entered else "the episode is over"
        cause: ChangeCause = "search_over" if node.announce_search_end else "second_stage"
        outcome = await drain_and_apply(self._cluster, node.name, due, why, self.settings.drain_s, cause)
        if not outcome.trouble:
            node.announce_search_end = False
        now_s = self._clock()
        node.next_reload_s = now_s + self.settings.reload_min_interval_s
        for knob, change in outcome.changes.items():
            if change.applied:
                self._keep(node, knob, due[knob], change.follows)
            elif due[knob] == RELEASE:
                node.held.pop(knob, None)
            else:
                node.left_alone[knob] = change.why
                log.warning("%s: %s is left alone in this episode: %s", node.name, knob, change.why)
        if outcome.trouble:
            self._log_once(node.name, outcome.trouble)
        node.settled_s = now_s

    async def _give_back(self, node: Node, due: Mapping[str, Value]) -> None:
        """Without a drain, which lbengine would refuse: the reload itself cuts nothing."""
        for knob in due:
            await self._order(node, knob, RELEASE, "hands off: the pool is paused")
            node.held.pop(knob, None)
        node.next_reload_s = self._clock() + self.settings.reload_min_interval_s

    # --- the search

    async def _step_search(self, now_s: float, room: bool) -> None:
        for node in self.nodes.values():
            server = self._cluster.server(node.name)
            full_weight = server is not None and server.weight >= server.baseline
            node.full_weight_since_s = (node.full_weight_since_s or now_s) if full_weight else None

        def busy(node: Node) -> bool:
            return self._is_applying(node) or bool(self._pending(node, now_s))

        self._search.step(self.nodes.values(), now_s, busy, room)
        held, asked_s = self._hold
        active = self._search.active_node
        if held and held != active:
            await self._request("undo", held, "its values are no longer searched", what="hold")
            self._hold = "", 0.0
        if active and (held != active or now_s - asked_s >= HOLD_FOR_S * RENEW_AT):
            await self._request("hold", active, "its values are searched", for_s=HOLD_FOR_S)
            self._hold = active, now_s

    # --- requests and log

    async def _request(self, action: str, node: str, why: str, **fields: float | str) -> None:
        try:
            await self._cluster.request(action, node, why, **fields)
        except NotNow as error:
            self._log_once(node, str(error))

    def _log_once(self, name: str, what: str) -> None:
        """Logs a node's trouble when it is new, not twice a second."""
        if self._logged.get(name) != what:
            self._logged[name] = what
            log.warning("%s: %s: %s", self._pool.name, name, what)
