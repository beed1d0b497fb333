"""The second stage of one pool: in each turn, who is in it, what is to be turned, renewed and put back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from retune import choreography
from retune.choreography import Door, NotNow
from retune.knowledge import MAXCONN, Knowledge, Value, value_for
from retune.memory import Memory
from retune.node import FREQUENCY, RELEASE, Held, Node, reloads
from retune.searching import Searching
from retune.stage import Stage, Timing, has_room
from slackwater.config import PoolSettings, RetuneSettings
from slackwater.messages import Change, ChangeCause, Cycle, Knobs, KnobState, Sample, Verdict

log = logging.getLogger("retune")

VERDICT_FRESH_S = 3.0
LIMIT_FOR_S = 30.0
HOLD_FOR_S = 15.0
RENEW_AT = 1 / 3
"""A lease is renewed when this share of it has passed: two renewals may get lost."""
SILENT_S = 3.0
"""Without Cycles for this long lbengine does not drive the pool: nothing is begun."""
SLACK_FOR_S = 60.0
"""Calm with latency to spare for this long before the frequency may go down."""


class Site(Door, Protocol):
    """What the pool needs of the world beside `Door`."""

    async def note(self, node: str, what: str, before: Value | None, after: Value | None, why: str) -> None:
        """Records what would have been done."""

    async def limit(self, node: str, maxconn: int, why: str, for_s: float) -> None:
        """Asks lbengine for a limit; raises NotNow."""


class Pool:
    """Fed with messages; `turn` is called twice a second. Not for several tasks at once."""

    def __init__(
        self,
        pool: PoolSettings,
        settings: RetuneSettings,
        knowledge: Knowledge,
        memory: Memory,
        site: Site,
        clock: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.nodes: dict[str, Node] = {}
        self.cycle: Cycle | None = None
        self._cycle_s = 0.0
        self._pool = pool
        self._knowledge = knowledge
        self._searching = Searching(knowledge, memory, settings.search_measure_s)
        self._site = site
        self._clock = clock
        self._turning: asyncio.Task[None] | None = None
        self._limits: dict[str, tuple[int, float]] = {}
        """Node -> the server's own maxconn, and when the limit was last asked for."""
        self._hold = "", 0.0
        """The node that is to keep its weight, and when that was last asked for."""
        self._said: dict[str, str] = {}
        self._began_s = clock()

    # --- what comes in

    def node(self, name: str) -> Node:
        settings = self.settings
        if name not in self.nodes:
            timing = Timing(settings.long_after_s, settings.no_room_after_s, settings.leave_after_s)
            self.nodes[name] = Node(name, Stage(timing), searches=settings.policy == "search")
        return self.nodes[name]

    def see(self, message: Sample | Verdict | Cycle | Change | Knobs) -> None:
        """Takes a message of this pool."""
        now_s = self._clock()
        if isinstance(message, Sample):
            self.node(message.node).squeeze.see(message)
        elif isinstance(message, Verdict):
            self.node(message.node).see_verdict(message, now_s)
        elif isinstance(message, Knobs):
            self.node(message.node).see_knobs(message, self._knowledge, now_s)
        elif isinstance(message, Cycle):
            self.cycle, self._cycle_s = message, now_s
        elif message.by == "wsengine" and message.target in self.nodes:
            self.node(message.target).see_change(message, now_s, self.settings.lease_s)

    # --- the turn

    @property
    def paused(self) -> bool:
        """Somebody said: hands off. What we have turned is given back."""
        return self.cycle is not None and self.cycle.paused

    @property
    def acting(self) -> bool:
        """Whether anything may be turned now."""
        fresh = self.cycle is not None and self._clock() - self._cycle_s < SILENT_S
        return self._may_act and fresh and not self.paused

    @property
    def _may_act(self) -> bool:
        """By the settings, the pool's too; else it only says what it would do."""
        return self.settings.mode == "act" and self._pool.mode == "act"

    async def turn(self) -> None:
        """Does what is due."""
        now_s = self._clock()
        affected = {
            name: found for name, node in self.nodes.items() if (found := node.affected(now_s, VERDICT_FRESH_S))
        }
        well = [node for name, node in self.nodes.items() if name not in affected]
        capacities = [node.verdict.capacity_rps if node.verdict else None for node in well]
        room = has_room(self._total_rps(), capacities, self._pool.u_threshold)
        for name, node in self.nodes.items():
            if node.stage.turn(now_s, affected.get(name), room):
                self._entered_or_left(node)
            if not self._may_act:
                await self._say_what_would_be(node, now_s)
        if self.acting:
            await self._limit_servers(now_s)
            for node in self.nodes.values():
                await self._renew(node, now_s)
                await self._turn_directly(node, now_s)
            if self.settings.policy == "search":
                await self._search(now_s, room)
        self._begin_next(now_s)

    async def end(self) -> None:
        """Lets a turn that has begun come to its end: its node gets its requests back."""
        if self._turning is not None:
            self._turning.cancel()
            await asyncio.gather(self._turning, return_exceptions=True)

    def _total_rps(self) -> float | None:
        rates = [server.rps for server in self.cycle.servers] if self.cycle else []
        return None if not rates or None in rates else sum(rate for rate in rates if rate is not None)

    def _entered_or_left(self, node: Node) -> None:
        entered, stage = node.stage.entered, node.stage
        node.lost.clear()
        node.noted.clear()
        if not entered:
            self._searching.left(node)
        node.forget_search()
        if not entered:
            log.info("%s leaves the second stage", node.name)
            return
        log.info("%s enters the second stage: %s", node.name, stage.why)

    async def _say_what_would_be(self, node: Node, now_s: float) -> None:
        """Once for each value in an episode."""
        for knob, value in node.wanted(self._knowledge, now_s).items() if node.stage.entered else ():
            if node.noted.get(knob) != value:
                node.noted[knob] = value
                await self._site.note(node.name, knob, node.usable(now_s)[knob].value, value, self._why(node))

    def _why(self, node: Node) -> str:
        if not node.stage.entered:
            return "calm, with latency to spare"
        told = f"; {node.search_told}" if node.search_told else ""
        return f"{node.stage.why}; severity {node.stage.severity:.0%}{told}"

    # --- the balancer's own limit

    async def _limit_servers(self, now_s: float) -> None:
        # A limit of the run before ends first: a server's own maxconn is what it shows without us.
        if now_s - self._began_s < LIMIT_FOR_S and any(node.taken_over for node in self.nodes.values()):
            return
        for node in self.nodes.values():
            server = self._site.server(node.name)
            rule = self._knowledge.get(MAXCONN)
            if not node.stage.entered or rule is None or server is None or server.maxconn is None:
                if self._limits.pop(node.name, None) is not None:
                    await self._try(node.name, self._site.ask("undo limit", node.name, "the episode is over"))
                continue
            own, asked_s = self._limits.get(node.name, (server.maxconn, -LIMIT_FOR_S))
            if now_s - asked_s < LIMIT_FOR_S * RENEW_AT:
                continue
            most = value_for(rule, _limit_knob(own), node.stage.severity)
            if isinstance(most, int):
                self._limits[node.name] = (own, now_s)
                await self._try(node.name, self._site.limit(node.name, most, self._why(node), LIMIT_FOR_S))

    # --- Orders without a reload

    async def _renew(self, node: Node, now_s: float) -> None:
        # A renewal of the old value would overtake the Order for the new one, which would be refused for it.
        changing = self._due(node, now_s).keys() if self._is_turning(node) else ()
        for knob, held in list(node.held.items()):
            if now_s - held.sent_s < self.settings.lease_s * RENEW_AT or knob not in self._wish(node, now_s):
                continue
            if knob in changing:
                continue
            held.sent_s = now_s
            if (
                order := await self._order(node, knob, held.value, f"renewed: {self._why(node)}", "renewed")
            ) is not None:
                held.order = order

    async def _turn_directly(self, node: Node, now_s: float) -> None:
        for knob, value in self._due(node, now_s).items():
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
            order = await self._site.order(node.name, knob, value, why, "search_over" if node.tells_end else cause)
        except NotNow as error:
            self._say(node.name, str(error))
            return None
        node.tells_end = False
        return order

    # --- what should be

    def _wish(self, node: Node, now_s: float) -> dict[str, Value]:
        """What our knobs should be on this node now."""
        if self.paused:
            return {}
        if node.stage.entered:
            return node.wanted(self._knowledge, now_s)
        return self._calm_wish(node, now_s)

    def _calm_wish(self, node: Node, now_s: float) -> dict[str, Value]:
        """A lower frequency, when calm and with latency to spare; off by default."""
        settings, verdict = self.settings, node.verdict
        fresh = verdict is not None and now_s - node.verdict_s < VERDICT_FRESH_S
        slack = fresh and verdict is not None and verdict.state == "calm" and not node.squeeze.squeezed
        p95_ms = verdict.rt_p95_ms if verdict is not None else None
        slack = slack and p95_ms is not None and p95_ms < settings.calm_below_p95_ms
        if not slack:
            node.calm_since_s = None
            return {}
        node.calm_since_s = now_s if node.calm_since_s is None else node.calm_since_s
        if not settings.calm_frequency or now_s - node.calm_since_s < SLACK_FOR_S:
            return {}
        value: Value = int(settings.calm_frequency) if settings.calm_frequency.isdigit() else settings.calm_frequency
        return {FREQUENCY: value} if FREQUENCY in node.usable(now_s) else {}

    def _due(self, node: Node, now_s: float) -> dict[str, Value]:
        """Knob -> the value to order now; `baseline` gives it back."""
        wish, usable = self._wish(node, now_s), node.usable(now_s)
        due = {knob: value for knob, value in wish.items() if knob not in node.held or node.held[knob].value != value}
        due |= {knob: RELEASE for knob in node.held if knob not in wish and knob in usable}
        return due

    # --- Orders with a reload

    def _is_busy(self, node: Node, now_s: float) -> bool:
        """It is being turned, or is to be."""
        return self._is_turning(node) or bool(self._due(node, now_s))

    def _is_turning(self, node: Node) -> bool:
        return self._turning is not None and self._turning.get_name() == node.name

    def _begin_next(self, now_s: float) -> None:
        """One node of the pool at a time; the one that has waited longest goes first."""
        if self._turning is not None:
            if not self._turning.done():
                return
            self._turning.result()
            self._turning = None
        for node in sorted(self.nodes.values(), key=lambda node: (node.again_s, -node.stage.severity, node.name)):
            due = self._due(node, now_s)
            if self.acting:
                due = {knob: value for knob, value in due.items() if reloads(node.knobs, knob)}
            if due and now_s >= node.again_s and (self.acting or self.paused):
                coming = self._retune(node, due) if self.acting else self._give_back(node, due)
                self._turning = asyncio.create_task(coming, name=node.name)
                return

    async def _retune(self, node: Node, due: Mapping[str, Value]) -> None:
        why = self._why(node) if node.stage.entered else "the episode is over"
        cause: ChangeCause = "search_over" if node.tells_end else "second_stage"
        outcome = await choreography.turn(self._site, node.name, due, why, self.settings.drain_s, cause)
        if not outcome.trouble:
            node.tells_end = False
        now_s = self._clock()
        node.again_s = now_s + self.settings.reload_min_interval_s
        for knob, said in outcome.changes.items():
            if said.applied:
                self._keep(node, knob, due[knob], said.follows)
            elif due[knob] == RELEASE:
                node.held.pop(knob, None)
            else:
                node.lost[knob] = said.why
                log.warning("%s: %s is left alone in this episode: %s", node.name, knob, said.why)
        if outcome.trouble:
            self._say(node.name, outcome.trouble)
        node.settled_s = now_s

    async def _give_back(self, node: Node, due: Mapping[str, Value]) -> None:
        """Without a drain, which lbengine would refuse: the reload itself cuts nothing."""
        for knob in due:
            await self._order(node, knob, RELEASE, "hands off: the pool is paused")
            node.held.pop(knob, None)
        node.again_s = self._clock() + self.settings.reload_min_interval_s

    # --- the search

    async def _search(self, now_s: float, room: bool) -> None:
        for node in self.nodes.values():
            server = self._site.server(node.name)
            standing = server is not None and server.weight >= server.baseline
            node.standing_since_s = (node.standing_since_s or now_s) if standing else None
        self._searching.turn(self.nodes.values(), now_s, lambda node: self._is_busy(node, now_s), room)
        held, asked_s = self._hold
        at_work = self._searching.at_work
        if held and held != at_work:
            await self._try(held, self._site.ask("undo hold", held, "its values are no longer searched"))
            self._hold = "", 0.0
        if at_work and (held != at_work or now_s - asked_s >= HOLD_FOR_S * RENEW_AT):
            await self._try(at_work, self._site.ask("hold", at_work, "its values are searched", HOLD_FOR_S))
            self._hold = at_work, now_s

    # --- words

    async def _try(self, name: str, coming: Awaitable[None]) -> None:
        try:
            await coming
        except NotNow as error:
            self._say(name, str(error))

    def _say(self, name: str, what: str) -> None:
        """Once, not twice a second."""
        if self._said.get(name) != what:
            self._said[name] = what
            log.warning("%s: %s: %s", self._pool.name, name, what)


def _limit_knob(own: int) -> KnobState:
    return KnobState(MAXCONN, own, own, 1, own)
