"""The replacements of one pool: which machine is next, and the steps of one replacement.

Each step is recorded before it is made: the machine is chosen and drained (`chronic`), it is empty and the command is
called (`replacing`), the command has ended. The drain is a lease of lbengine that is renewed meanwhile, so the server
gets its requests back soon after we are gone, however that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from slackwater.core import programs
from slackwater.core.config import PoolSettings, ReplaceSettings
from slackwater.core.journal.journal import JournalError
from slackwater.core.messages import ChangeCause, Cycle, Sample, ServerState
from slackwater.orders.access import BusAccess, NotNow
from slackwater.replace.claims import Claims, Stopped
from slackwater.views.chronic import Machine
from slackwater.views.replacements import Attempt, Plan, in_the_way, servers_of

log = logging.getLogger("replace")

WHAT, BY = "replace", "replace"
LOOK_EVERY_S = 300.0
FIRST_LOOK_S = 10.0
"""After the start: Cycles and Samples are there by then."""
DRAIN_LEASE_S, RENEW_S = 10.0, 1.0
SHOWN_S = 5.0
"""A drain that the balancer does not show by then has been refused by the guard."""
BACK_S = 30.0
"""A machine is back when its last Sample is younger than this."""
EMPTY_S = 2.0
"""A server is empty when it has had no request for this long."""
WORDS: dict[ChangeCause, str] = {
    "chronic": "drained",
    "replacing": "the command is called",
    "replaced": "done",
    "replace_failed": "failed",
    "replace_timeout": "timed out",
    "replace_given_up": "given up",
    "replace_unknown": "the end is not known",
    "same_machine": "the same machine is back",
}
"""What a Change of a replacement says that became of it."""

_AFTER = {
    False: "before the command was called",
    True: "while the command ran, which was killed: look whether the machine is replaced",
}
"""By whether the command was called: when the controller ended, in words."""


@dataclass(frozen=True)
class Planned:
    """What the journal tells at one time: the plan, and the replacements that were begun in its days."""

    plan: Plan
    attempts: list[Attempt]
    is_noted: bool
    """Whether one was noted within a day that would have been begun."""


class ReplacedPool:
    """Fed with messages by `see`; `step` is called several times a second. Not for several tasks at once.

    `read` reads the journal, in a thread. `clock` is monotonic.
    """

    def __init__(
        self,
        pool: PoolSettings,
        settings: ReplaceSettings,
        access: BusAccess,
        claims: Claims,
        read: Callable[[], Planned],
        clock: Callable[[], float],
    ) -> None:
        self.cycle: Cycle | None = None
        self._claims = claims
        self._pool, self._settings, self._access, self._read, self._clock = pool, settings, access, read, clock
        self._look_s = clock() + FIRST_LOOK_S
        self._busy: asyncio.Task[None] | None = None
        self._is_leaving, self._runs = False, False
        self._boots: dict[str, tuple[str, float]] = {}
        """Node -> the boot of its monitor's last Sample, and when that came."""
        self._awaited: dict[str, tuple[str, str]] = {}
        """Node that was replaced -> its boot before, and the replacement's id."""
        self._unrecorded: list[tuple[str, ChangeCause, str, str]] = []
        """Ends of replacements that the journal did not take: node, cause, why, and the replacement's id."""
        self._ended: set[str] = set()
        """Ids of the replacements that we have ended."""
        self._obstacle = ""

    # --- messages

    def see(self, message: Any) -> None:
        """Takes a message of this pool."""
        if isinstance(message, Cycle):
            self.cycle = message
        elif isinstance(message, Sample) and message.source == "monitor":  # the balancer's tell of its own boot
            self._boots[message.node] = message.boot_id, self._clock()

    def forget(self) -> None:
        """Another controller leads now."""
        self.cycle = None

    # --- each step

    async def step(self) -> None:
        """Begins what is due. It never waits: a replacement takes minutes."""
        if self._is_leaving:
            return
        if self._busy is not None:
            if not self._busy.done():
                return
            self._busy.result()
            self._busy = None
            self._look_s = self._clock() + LOOK_EVERY_S
        if self._clock() >= self._look_s and self.cycle is not None and self._access.leads:
            self._busy = asyncio.create_task(self._look())

    async def end(self) -> None:
        """Ends what is under way: the server gets its requests back, and a command is killed."""
        if self._busy is not None:
            self._busy.cancel()
            await asyncio.gather(self._busy, return_exceptions=True)

    def leave(self) -> None:
        """Begins nothing more, for another process of ours is to follow. A command that runs goes on."""
        self._is_leaving = True
        if self._busy is not None and not self._runs:
            self._busy.cancel()

    @property
    def has_left(self) -> bool:
        """Whether nothing is under way any more, after `leave`."""
        return self._is_leaving and (self._busy is None or self._busy.done())

    async def _look(self) -> None:
        try:
            planned = await asyncio.to_thread(self._read)
        except JournalError as error:
            log.error("%s", error)
            return
        try:
            while self._unrecorded:
                await self._record(*self._unrecorded[0])
                del self._unrecorded[0]
            await self._close_unfinished(planned.attempts)
            await self._look_who_came_back()
            await self._begin(planned)
        except (NotNow, Stopped) as error:
            log.warning("%s: %s", self._pool.name, error)

    async def _close_unfinished(self, begun: list[Attempt]) -> None:
        """What a controller that died left is not taken up again; what another one is at is left to it."""
        left = [attempt for attempt in begun if attempt.applied and attempt.ended is None]
        of_others = await self._claims.of_others() if left else set()
        for attempt in left:
            if attempt.id not in of_others | self._ended:
                has_called = attempt.ran_unix_s is not None
                cause: ChangeCause = "replace_unknown" if has_called else "replace_given_up"
                await self._record(attempt.node, cause, f"the controller died {_AFTER[has_called]}", attempt.id)

    async def _look_who_came_back(self) -> None:
        """Records it where a machine that was replaced sends Samples of the boot that it had before."""
        for node, (boot_before, id_) in list(self._awaited.items()):
            boot, came_s = self._boots.get(node, ("", -math.inf))
            if self._clock() - came_s < BACK_S:
                del self._awaited[node]
                if boot == boot_before:
                    why = "the command said that it was replaced, and its Samples are of the same boot as before"
                    await self._record(node, "same_machine", why, id_)

    async def _begin(self, planned: Planned) -> None:
        """Replaces the machine that is next, or records that it would."""
        plan = planned.plan
        if not plan.node:
            return
        machine = next(machine for machine in plan.machines if machine.node == plan.node)
        if plan.obstacle is not None:
            if plan.waits != self._obstacle:
                log.info("%s: %s is not replaced now: %s", self._pool.name, plan.node, plan.waits)
            self._obstacle = plan.waits
            return
        self._obstacle = ""
        if self._acts:
            await self._replace(machine)
        elif not planned.is_noted:
            await self._access.record(machine.node, WHAT, WORDS["chronic"], machine.why, "chronic", applied=False)

    @property
    def _acts(self) -> bool:
        return self._pool.mode == "act" and self.cycle is not None and self.cycle.mode == "act"

    # --- one replacement

    async def _replace(self, machine: Machine) -> None:
        node = machine.node
        id_ = await self._record(node, "chronic", machine.why)
        drain = _Drain(self._access, node, machine.why, self._clock)
        boot, _ = self._boots.get(node, ("", 0.0))
        has_called, is_ended = False, False
        try:
            await self._claims.begin(id_, node)
            await drain.begin()
            await self._wait_until_empty(node, drain)
            await self._claims.call(id_)
            await self._record(node, "replacing", f"it is empty; {self._settings.command} is called", id_)
            # Recording may have taken long.
            servers = self._check(node, drain)
            if any(server.weight > 0 for server in servers):
                raise Stopped("it has its weight back")
            if not all(_is_empty(server) for server in servers):
                raise Stopped(f"it is not empty any more: {_what_is_left(servers)}")
            if not self._access.leads:  # it may have died, and then the server has its requests back
                raise Stopped("the lbengine of this controller does not drive the pool")
            has_called = self._runs = True
            drain.is_firm = True
            end = await programs.call(
                self._settings.command,
                self._about(machine),
                self._settings.timeout_s,
                dies_with_us=True,
                heard=lambda line: log.info("%s: replacement of %s: the command: %s", self._pool.name, node, line),
            )
            cause, why = self._end_in_words(end)
            if cause == "replaced" and boot:
                self._awaited[node] = boot, id_
            is_ended = True
            await self._record_end(node, cause, why, id_)
        except Stopped as error:
            is_ended = True
            await self._record_end(node, "replace_given_up", str(error), id_)
        finally:
            try:
                if not is_ended:  # we are ended, or a step could not be recorded
                    late: ChangeCause = "replace_unknown" if has_called else "replace_given_up"
                    await self._record_end(node, late, f"the controller ended {_AFTER[has_called]}", id_)
            finally:
                self._runs = False
                await drain.end()
                await self._claims.end(id_)

    async def _wait_until_empty(self, node: str, drain: _Drain) -> None:
        """Raises Stopped where that must not be, or does not happen."""
        began_s = self._clock()
        empty_since_s: float | None = None
        while True:
            has_news = await self._next_cycle()
            now_s = self._clock()
            servers = self._check(node, drain)
            if any(server.weight > 0 for server in servers):
                empty_since_s = None
                if now_s - began_s > SHOWN_S:
                    raise Stopped("it may not be drained now: the others have no room, or too many are drained")
            elif not all(_is_empty(server) for server in servers):
                empty_since_s = None
            elif has_news:
                empty_since_s = now_s if empty_since_s is None else empty_since_s
                if now_s - empty_since_s >= EMPTY_S:
                    return
            if now_s - began_s > self._settings.drain_s:
                raise Stopped(f"it is not empty after {self._settings.drain_s:g} s: {_what_is_left(servers)}")

    def _check(self, node: str, drain: _Drain) -> list[ServerState]:
        """The node's servers, while it may be drained. Raises Stopped."""
        if self.cycle is None:
            raise Stopped("another controller leads now")
        if drain.trouble and self._clock() - drain.renewed_s > DRAIN_LEASE_S / 2:
            raise Stopped(f"it cannot be drained: {drain.trouble}")
        if not self._acts:
            raise Stopped("the pool only observes now")
        obstacle = in_the_way(self.cycle, node, self._pool.servers)
        if obstacle is not None:
            raise Stopped(obstacle[1])
        return servers_of(self.cycle, node, self._pool.servers)

    async def _next_cycle(self) -> bool:
        """Waits for the next Cycle, for a while; whether it came."""
        seen = self._access.cycles()
        return await self._access.wait(lambda: self._access.cycles() > seen, RENEW_S)

    def _about(self, machine: Machine) -> dict[str, Any]:
        """What the command is told."""
        servers = servers_of(self.cycle, machine.node, self._pool.servers) if self.cycle is not None else []
        return {
            "event": "replace",
            "pool": self._pool.name,
            "node": machine.node,
            "servers": [server.server for server in servers],
            "machine_type": self._pool.machine_types.get(machine.node),
            "zone": self._pool.zones.get(machine.node),
            "machine": msgspec.to_builtins(machine),
        }

    def _end_in_words(self, end: programs.ProgramEnd) -> tuple[ChangeCause, str]:
        command, printed = self._settings.command, f"; it printed last: {end.last_line}" if end.last_line else ""
        if end.error:
            return "replace_failed", f"{command} cannot be called: {end.error}"
        if end.is_late:
            return "replace_timeout", f"{command} was killed after {self._settings.timeout_s:g} s{printed}"
        if end.status:
            return "replace_failed", f"{command} ended with status {end.status}{printed}"
        return "replaced", f"{command} has replaced it"

    async def _record_end(self, node: str, cause: ChangeCause, why: str, id_: str) -> None:
        """Records how a replacement ended; at a later look where the journal does not take it now."""
        self._ended.add(id_)
        try:
            await self._record(node, cause, why, id_)
        except NotNow as error:
            log.error("%s: %s", self._pool.name, error)
            self._unrecorded.append((node, cause, why, id_))

    async def _record(self, node: str, cause: ChangeCause, why: str, follows: str = "") -> str:
        (log.info if cause in ("chronic", "replacing", "replaced") else log.warning)(
            "%s: replacement of %s: %s: %s", self._pool.name, node, WORDS[cause], why
        )
        return await self._access.record(node, WHAT, WORDS[cause], why, cause, applied=True, follows=follows)


class _Drain:
    """Keeps a node drained by renewing lbengine's lease."""

    def __init__(self, access: BusAccess, node: str, why: str, clock: Callable[[], float]) -> None:
        self.is_firm = False
        """Whether it stays empty also where the others cannot carry its load."""
        self.trouble = ""
        """Why the last renewal failed; empty: it did not."""
        self.renewed_s = 0.0
        self._access, self._node, self._why, self._clock = access, node, why, clock
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Raises Stopped where lbengine refuses."""
        await self._renew()
        if self.trouble:
            raise Stopped(f"it cannot be drained: {self.trouble}")
        self._renewing = asyncio.create_task(self._keep())

    async def end(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
            with contextlib.suppress(NotNow):  # it ends by itself
                await self._access.request("undo", self._node, self._why, what="drain")

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            await self._renew()

    async def _renew(self) -> None:
        try:
            await self._access.request("drain", self._node, self._why, for_s=DRAIN_LEASE_S, firm=self.is_firm)
        except NotNow as error:
            self.trouble = str(error)
        else:
            self.trouble, self.renewed_s = "", self._clock()


def _is_empty(server: ServerState) -> bool:
    return server.in_flight == 0 and not server.queue and not server.rps


def _what_is_left(servers: list[ServerState]) -> str:
    def words(server: ServerState) -> Iterator[str]:
        if server.in_flight is None:
            yield "the balancer does not say how many requests it has"
        elif server.in_flight:
            yield f"{server.in_flight} requests in flight"
        if server.queue:
            yield f"{server.queue} in the queue"
        if server.rps:
            yield f"{server.rps:.1f} requests a second, which the balancer sends to no other server"

    return "; ".join(f"{server.server} has {', '.join(words(server))}" for server in servers if not _is_empty(server))
