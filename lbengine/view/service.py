"""The part that looks at servers from the balancer: a Sample for each server and look, where the node has no monitor.

Its Samples go the same way as monitors' do. A node of which a monitor's Sample was heard lately has none from here. Of
several controllers of a pool one speaks: two would seem to be a machine that restarts with each Sample.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial

from slackwater.core.bus.bus import Bus
from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.core.heartbeat import Heartbeat
from slackwater.core.machine import kernel_id
from slackwater.core.messages import Sample, is_name
from slackwater.core.stopping import stop_event
from slackwater.lbengine.backends.table import balancer_of
from slackwater.lbengine.balancer import Balancer, BalancerError, Server, Snapshot
from slackwater.lbengine.view.agreement import Agreement
from slackwater.lbengine.view.counters import Counters
from slackwater.lbengine.view.packets import NO_SNIFFER, Line, Packets
from slackwater.lbengine.view.samples import Origin, sample_of

log = logging.getLogger("slackwater.view")

LISTENS_S = 3.0
"""Before the first Sample: a monitor sends one each second, also while nothing happens."""
MONITOR_GONE_AFTER_S = 60.0
"""A node whose monitor was silent for so long has none."""
IDLE_S = 5.0
"""From one look to the next while every server has a monitor."""
MOST_CORE_SHARE = 0.05
"""Of a core, for reading the balancer; looks at a pool of very many servers come less often for that."""
Publish = Callable[[Sample], Awaitable[None]]


async def run(settings: ControllerSettings) -> None:
    """Looks until SIGTERM or SIGINT. Raises BusError."""
    stop = stop_event()
    heartbeat = Heartbeat(pool.name for pool in settings.pool)
    bus = await Bus.connect(settings.controller_bus, "slackwater-balancer-view")
    try:
        views = [PoolView(pool, settings, bus.publish) for pool in settings.pool]
        for view in views:
            await bus.subscribe("sample", view.hear, pool=view.pool.name)
        await asyncio.gather(*(view.run(stop, partial(heartbeat.beat, view.pool.name)) for view in views))
    finally:
        await bus.close()


class PoolView:
    """One pool's servers."""

    def __init__(
        self,
        pool: PoolSettings,
        settings: ControllerSettings,
        publish: Publish,
        *,
        listens_s: float = LISTENS_S,
        balancer: Balancer | None = None,
    ) -> None:
        self.pool = pool
        own = settings.balancer_view
        self._look_s, self._listens_s = own.look_s, listens_s
        self._balancer = balancer or balancer_of(pool, settings.lbengine.socket_timeout_s)
        self._packets = Packets(own.sniffer, own.look_s) if own.sniffer else None
        self._publish = publish
        self._least_pause_s = 0.0
        """Until the next look, by what the last one has cost."""
        self._counters = Counters()
        self._agreement = Agreement()
        self._monitors: dict[str, float] = {}
        """Node -> time when its monitor was heard last."""
        self._boot_id = kernel_id()
        self._another_speaks_until_s = 0.0
        self._seq: dict[str, int] = {}
        self._complaint = ""
        self._dice = random.Random()

    def hear(self, sample: Sample) -> None:
        """Notes which nodes have a monitor, and whether another host speaks of those that have none."""
        if sample.source == "monitor":
            self._monitors[sample.node] = time.monotonic()
        elif sample.boot_id < self._boot_id:
            self._another_speaks_until_s = time.monotonic() + (sample.next_within_s or LISTENS_S)

    async def run(self, stop: asyncio.Event, beat: Callable[[], None] = lambda: None) -> None:
        """Looks until `stop`; calls `beat` after each look."""
        speaks_from_s = time.monotonic() + self._listens_s
        try:
            while not stop.is_set():
                for sample in await self._look():
                    if time.monotonic() >= max(speaks_from_s, self._another_speaks_until_s):
                        await self._publish(sample)
                beat()
                await self._pause(stop)
        finally:
            if self._packets is not None:
                await self._packets.close()

    async def _pause(self, stop: asyncio.Event) -> None:
        """Waits for the packets' next look; without packets until a random moment, as the counters need it."""
        least_s = self._least_pause_s
        await _first_of([stop], least_s)
        if self._packets is not None and self._packets.is_heard:
            self._packets.looked.clear()
            await _first_of([stop, self._packets.looked], 2 * self._look_s)
        else:
            await _first_of([stop], max(0.0, self._look_s * self._dice.uniform(0.5, 1.5) - least_s))

    def _read(self) -> Snapshot:
        begun_s = time.thread_time()
        try:
            return self._balancer.read()
        finally:
            self._least_pause_s = (time.thread_time() - begun_s) / MOST_CORE_SHARE

    async def _look(self) -> list[Sample]:
        """A Sample of each server without a monitor; none while the balancer does not answer."""
        try:
            snapshot = await asyncio.to_thread(self._read)
        except BalancerError as error:
            if not self._complaint:
                log.warning("pool %s: %s; its servers have no Samples from here meanwhile", self.pool.name, error)
            self._complaint = str(error)
            return []
        if self._complaint:
            log.warning("pool %s: %s answers again", self.pool.name, self.pool.title)
            self._complaint = ""
        self._counters = self._counters.after(time.monotonic(), snapshot)
        servers = [server for server in snapshot.servers if self._is_due(server)]
        if not servers:
            self._least_pause_s = max(self._least_pause_s, IDLE_S)
        times = await self._times(servers)
        time_unix_s = time.time()
        origin = Origin(self.pool.name, self._boot_id, 3 * (self._look_s + self._least_pause_s))
        samples = []
        for server in servers:
            if (counted := self._counters.counted.get(server.name)) is None:
                continue
            node = self._node(server)
            seq = self._seq[node] = self._seq.get(node, -1) + 1
            why_not = self._why_not(server)
            seen = None if why_not else times.get(server.name)
            samples.append(sample_of(origin, node, server.name, seq, time_unix_s, counted, seen, why_not))
        return samples

    async def _times(self, servers: list[Server]) -> dict[str, tuple[Line, Line]]:
        """By server, what the packets' newest look shows of it: its line, and the one that ended the look."""
        if self._packets is None:
            return {}
        await self._packets.watch(servers)
        by_address = self._packets.take()
        times = {server.name: by_address[server.address] for server in servers if server.address in by_address}
        self._agreement = self._agreement.after(
            {
                server.name: (self._packets.answered(server), (counted.rps or 0.0) * counted.period_s)
                for server in servers
                if server.is_encrypted
                and (counted := self._counters.counted.get(server.name)) is not None
                and not self._packets.why_not(server)
            }
        )
        return times

    def _why_not(self, server: Server) -> str:
        """Why a server has no times from packets, in words; empty where it has."""
        if self._packets is None:
            return NO_SNIFFER
        why_not = self._packets.why_not(server)
        return self._agreement.doubt(server.name) if server.is_encrypted and not why_not else why_not

    def _node(self, server: Server) -> str:
        return self.pool.servers.get(server.name, server.name)

    def _is_due(self, server: Server) -> bool:
        node = self._node(server)
        heard_s = self._monitors.get(node)
        has_monitor = heard_s is not None and time.monotonic() - heard_s < MONITOR_GONE_AFTER_S
        return not has_monitor and server.placeholder != "no_address" and is_name(node)


async def _first_of(events: list[asyncio.Event], within_s: float) -> None:
    """Waits until one of the events is set, `within_s` at most."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
