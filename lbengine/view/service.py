"""The part that looks at servers from the balancer: Samples of each server whose node has no monitor.

They go the same way as monitors' do. A node of which a monitor's Sample was heard lately has none from here. Where
packets show all of its requests, its monitor is told of them instead, so that it need not capture packets itself. Where
a pool has several controllers, one of them speaks of a node: two would look like a machine that restarts with each
Sample. The controller that speaks is one whose balancer has requests, since the servers look idle from a standby
balancer.

Packets are looked at five times a second. The balancer is asked as often only while a server is busy whose packets do
not show all of its requests; otherwise once a second, for its servers and its errors.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec

from slackwater.core.bus.bus import Bus
from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.core.heartbeat import Heartbeat
from slackwater.core.machine import kernel_id
from slackwater.core.messages import VERSION, Ask, Sample, is_name
from slackwater.core.stopping import stop_event
from slackwater.lbengine.backends.table import balancer_of
from slackwater.lbengine.balancer import Balancer, BalancerError, Server, Snapshot
from slackwater.lbengine.outage_log import OutageLog
from slackwater.lbengine.view.agreement import Agreement
from slackwater.lbengine.view.counters import Counted, RecentCounters
from slackwater.lbengine.view.others import BUSY_WITHIN_S, OtherControllers
from slackwater.lbengine.view.pace import QUIET_S, SamplePace, is_busy
from slackwater.lbengine.view.packets import NO_SNIFFER, SILENT, Packets, SnifferLine, end_of
from slackwater.lbengine.view.samples import Origin, covered_s, sample_of

log = logging.getLogger("slackwater.view")

LISTENS_S = 3.0
"""Time before the first Sample in which monitors are listened for: each sends a Sample every second, also when idle."""
MONITOR_GONE_AFTER_S = 10.0
"""A node whose monitor was silent for this long counts as without a monitor."""
IDLE_S = 5.0
"""Time from one look to the next while every server has a monitor."""
MOST_CORE_SHARE = 0.02
"""Share of a core that reading the balancer may take; a balancer with very many servers is asked less often."""
LBENGINE_TELLS_S = 10.0
"""This part logs that the balancer is away after this time; lbengine logs it at once."""
ASKED_EVERY_S = 1.0
"""Time between two questions to the balancer while packets show all requests of its servers."""
COLLECT_AFTER = 50_000
"""New objects until the garbage collector looks for circles. A look at 1,000 servers makes some 10,000 objects and no
circle, and with Python's own 700 the collector would look ten times in each."""
TOLD_FOR_S = 3.0
"""How long a monitor captures nothing after it was told of its requests."""
Publish = Callable[[Sequence[Sample | Ask]], Awaitable[None]]


async def run(settings: ControllerSettings) -> None:
    """Looks until SIGTERM or SIGINT. Raises BusError."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)
    stop = stop_event()
    heartbeat = Heartbeat(pool.name for pool in settings.pool)
    bus = await Bus.connect(settings.controller_bus, "slackwater-balancer-view")
    try:
        views = [PoolWatcher(pool, settings, bus.publish_together) for pool in settings.pool]
        for view in views:
            await bus.subscribe("sample", view.hear, pool=view.pool.name)
        await asyncio.gather(*(view.run(stop, partial(heartbeat.beat, view.pool.name)) for view in views))
    finally:
        await bus.close()


class ViewedServer(msgspec.Struct, frozen=True):
    """A server as the balancer showed it last."""

    server: Server
    node: str
    end: str
    """The server's address in the sniffer's form."""
    why_not: str
    """Why the server has no times from packets, in words; empty where it has."""
    complete: bool
    """Whether its packets show all of its requests."""
    has_monitor: bool
    """Its monitor is told of its requests, as far as packets show all of them."""


class PoolWatcher:
    """Watches the servers of one pool."""

    def __init__(
        self,
        pool: PoolSettings,
        settings: ControllerSettings,
        publish: Publish,
        *,
        listens_s: float = LISTENS_S,
        quiet_s: float = QUIET_S,
        balancer: Balancer | None = None,
    ) -> None:
        self.pool = pool
        own = settings.balancer_view
        self._look_s, self._listens_s = own.look_s, listens_s
        self._tells_monitors = own.tells_monitors and bool(own.sniffer)
        self._balancer = balancer or balancer_of(pool, settings.lbengine.socket_timeout_s)
        self._packets = Packets(own.sniffer, own.look_s) if own.sniffer else None
        self._publish = publish
        self._least_pause_s = 0.0
        """Least time until the balancer is asked again, by the cost of the last question."""
        self._asked_s = -math.inf
        """Monotonic time when the balancer answered last."""
        self._counts_requests = True
        self._servers: list[ViewedServer] = []
        self._counters = RecentCounters()
        self._agreement = Agreement()
        self._pace = SamplePace(quiet_s)
        self._unseen: set[str] = set()
        """Servers of whose requests nothing is known."""
        self._newly_unseen: dict[str, list[str]] = {}
        """Reason, in words -> servers of which it was not logged yet."""
        self._monitors: dict[str, float] = {}
        """Node -> time when its monitor was heard last."""
        self._boot_id = kernel_id()
        self._others = OtherControllers(self._boot_id, LISTENS_S)
        self._busy_s = -math.inf
        """Monotonic time when some server had requests last."""
        self._seq: dict[str, int] = {}
        self._outages = OutageLog(log, pool.name, pool.title, patience_s=LBENGINE_TELLS_S)
        self._dice = random.Random()

    def hear(self, sample: Sample) -> None:
        """Notes which nodes have a monitor, and of which another controller speaks."""
        now_s = time.monotonic()
        if sample.source == "monitor":
            self._monitors[sample.node] = now_s
        else:
            self._others.hear(sample, now_s, we_are_busy=now_s - self._busy_s < BUSY_WITHIN_S)

    async def run(self, stop: asyncio.Event, beat: Callable[[], None] = lambda: None) -> None:
        """Looks until `stop`; calls `beat` after each look."""
        speaks_from_s = time.monotonic() + self._listens_s
        try:
            while not stop.is_set():
                messages, now_s = await self._look(), time.monotonic()
                if now_s >= speaks_from_s:
                    await self._publish(
                        [message for message in messages if not self._others.speak_of(message.node, now_s)]
                    )
                beat()
                await self._pause(stop)
        finally:
            if self._packets is not None:
                await self._packets.close()

    async def _pause(self, stop: asyncio.Event) -> None:
        """Waits for the packets' next look; without packets until a random moment, as the counters need it."""
        if self._packets is not None and self._packets.is_heard:
            self._packets.looked.clear()
            if self._packets.is_ahead:
                return
            await _first_of([stop, self._packets.looked], 2 * self._look_s)
        else:
            until_asked_s = self._asked_s + self._least_pause_s - time.monotonic()
            await _first_of([stop], max(until_asked_s, self._look_s * self._dice.uniform(0.5, 1.5)))

    async def _look(self) -> list[Sample | Ask]:
        """The Samples that are due, and what monitors are told; none while the balancer does not answer."""
        by_end = {} if self._packets is None else self._packets.take()
        is_fresh = self._should_ask(by_end)
        if is_fresh and not await self._ask():
            return []
        now_s, time_unix_s = time.monotonic(), time.time()
        messages: list[Sample | Ask] = []
        for seen in self._servers:
            if seen.has_monitor and not seen.complete:
                continue
            name = seen.server.name
            times = None if seen.why_not else by_end.get(seen.end)
            counted = self._counters.counted.get(name)
            if counted is None or (times is None if seen.complete else not is_fresh):
                continue
            if not (is_fresh or counted.answered_lately):  # the packets' look is newer than the counters
                counted = msgspec.structs.replace(counted, answered_lately=True)
            busy = is_busy(None if times is None else times[0], counted if is_fresh else None)
            self._busy_s = now_s if busy else self._busy_s
            period_s = covered_s(counted, times, complete=seen.complete)
            if not self._pace.is_due(name, now_s, period_s, busy=busy):
                continue
            seq = self._seq.get(seen.node, -1) + 1
            within_s = 3 * (self._look_s + (0.0 if seen.complete else self._least_pause_s))
            made = sample_of(
                Origin(self.pool.name, self._boot_id, within_s + (0.0 if busy else self._pace.quiet_s)),
                *(seen.node, name, seq, time_unix_s, counted, times, seen.why_not),
                complete=seen.complete,
                quiet_s=self._pace.take_skipped_s(name),
            )
            if seen.has_monitor:
                # A balancer without requests may be the standby of another one, whose controller tells.
                if now_s - self._busy_s < BUSY_WITHIN_S and (ask := _ask_for(made)) is not None:
                    messages.append(ask)
                continue
            self._seq[seen.node] = seq
            messages.append(made)
            self._note_unseen(seen.server, made)
        self._report_unseen()
        return messages

    def _should_ask(self, by_end: Mapping[str, tuple[SnifferLine, SnifferLine]]) -> bool:
        """Whether the balancer is to be asked now. `by_end`: the newest look of the packets."""
        since_s = time.monotonic() - self._asked_s
        if since_s < self._least_pause_s:
            return False
        if since_s >= ASKED_EVERY_S or self._packets is None or not self._packets.is_heard:
            return True
        return self._counts_requests and any(
            not (self._answered_lately(seen) if seen.complete else seen.has_monitor)
            and (is_busy(by_end.get(seen.end, (SILENT,))[0], None) or is_busy(None, self._counted(seen)))
            for seen in self._servers
        )

    def _answered_lately(self, seen: ViewedServer) -> bool:
        """Whether the balancer counted answers of the server lately. Otherwise it is asked what the packets' exchanges
        are: the first requests after a quiet time, or health checks."""
        counted = self._counted(seen)
        return counted is not None and counted.answered_lately

    def _counted(self, seen: ViewedServer) -> Counted | None:
        return self._counters.counted.get(seen.server.name)

    async def _ask(self) -> bool:
        """Reads the balancer; False when it does not answer."""
        try:
            snapshot = await asyncio.to_thread(self._read)
        except BalancerError as error:
            self._outages.lost(f"{error}; its servers have no Samples from here meanwhile")
            return False
        self._outages.answered()
        self._counters = self._counters.after(time.monotonic(), snapshot)
        servers = [server for server in snapshot.servers if self._is_viewed(server)]
        if self._packets is not None:
            await self._packets.watch(servers)
            self._compare(self._packets, servers)
        self._asked_s, self._counts_requests = time.monotonic(), snapshot.counts == "requests"
        self._servers = [
            ViewedServer(
                server,
                self._node(server),
                end_of(server.address),
                why_not := self._why_not(server),
                not why_not and (not self._counts_requests or self._agreement.is_complete(server.name)),
                self._has_monitor(self._node(server)),
            )
            for server in servers
        ]
        if all(seen.has_monitor and seen.why_not for seen in self._servers):
            self._least_pause_s = max(self._least_pause_s, IDLE_S)
        return True

    def _read(self) -> Snapshot:
        begun_s = time.thread_time()
        try:
            return self._balancer.read()
        finally:
            self._least_pause_s = (time.thread_time() - begun_s) / MOST_CORE_SHARE

    def _compare(self, packets: Packets, servers: list[Server]) -> None:
        """Compares the requests that packets showed with those that the balancer counted since it was asked before."""
        self._agreement = self._agreement.after(
            {
                server.name: (packets.answered(server), counted.count)
                for server in servers
                if (counted := self._counters.counted.get(server.name)) is not None and not packets.why_not(server)
            }
        )

    def _why_not(self, server: Server) -> str:
        """Why a server has no times from packets, in words; empty where it has."""
        if self._packets is None:
            return NO_SNIFFER
        return self._packets.why_not(server) or self._agreement.doubt(server.name, is_encrypted=server.is_encrypted)

    def _note_unseen(self, server: Server, made: Sample) -> None:
        """Notes whether a server's Sample tells nothing of its requests."""
        is_unseen = made.traffic is None and not (self._packets is not None and self._packets.awaits(server))
        if not is_unseen:
            self._unseen.discard(server.name)
        elif server.name not in self._unseen:
            self._unseen.add(server.name)
            self._newly_unseen.setdefault(made.absent["traffic"], []).append(server.name)

    def _report_unseen(self) -> None:
        """Logs of which servers nothing is known that was known before."""
        for reason, servers in self._newly_unseen.items():
            log.warning(
                "pool %s: nothing is known of the requests to %s: %s; without a monitor they are not judged",
                *(self.pool.name, ", ".join(servers), reason),
            )
        self._newly_unseen.clear()

    def _node(self, server: Server) -> str:
        return self.pool.servers.get(server.name, server.name)

    def _is_viewed(self, server: Server) -> bool:
        """Whether anything is to be said of a server. The counters alone tell a monitor nothing."""
        node = self._node(server)
        is_told = self._tells_monitors or not self._has_monitor(node)
        return is_told and server.placeholder != "no_address" and is_name(node)

    def _has_monitor(self, node: str) -> bool:
        heard_s = self._monitors.get(node)
        return heard_s is not None and time.monotonic() - heard_s < MONITOR_GONE_AFTER_S


def _ask_for(sample: Sample) -> Ask | None:
    """What a monitor is told of its requests; None: nothing is known of them."""
    traffic = sample.traffic
    if traffic is None or traffic.rps is None:
        return None
    return Ask(
        *(VERSION, sample.node, sample.pool, sample.time_unix_s, TOLD_FOR_S),
        period_s=sample.period_s,
        traffic=msgspec.structs.replace(traffic, routes=[], times=None),
    )


async def _first_of(events: list[asyncio.Event], within_s: float) -> None:
    """Waits until one of the events is set, `within_s` at most."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
