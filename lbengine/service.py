"""The lbengine process: one engine a pool, each in its own thread, fed with Verdicts and commands from the bus.

A Verdict that changes a node's state wakes the engine at once, and so does each Verdict of an episode's first second.
Otherwise the engine takes a turn every `cycle_s`, or every `REST_S` while there is nothing to look after.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from slackwater.core import tasks
from slackwater.core.bus.bus import Bus, BusError, NoStoreError
from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.core.control import request_of
from slackwater.core.heartbeat import Heartbeat
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.machine import Process
from slackwater.core.messages import Change, Verdict, shortened
from slackwater.core.stopping import HAND_OVER, stop_event
from slackwater.lbengine.backends.table import check, targets_of
from slackwater.lbengine.balancer import BalancerError
from slackwater.lbengine.baseline import BaselineError
from slackwater.lbengine.engine import Engine
from slackwater.lbengine.engine_thread import EngineThread
from slackwater.lbengine.hooks import Hooks
from slackwater.lbengine.leadership.ownership import BUCKET, Ownership
from slackwater.lbengine.outage_log import OutageLog
from slackwater.lbengine.overrides import temporary
from slackwater.lbengine.overrides.overrides import CommandError
from slackwater.lbengine.state_file import StateFileError

log = logging.getLogger("lbengine")

ASK_AGAIN_S = 1.0
REST_S = 1.0
"""Time between the turns of an engine at rest: readers of its Cycles know by them that it runs."""
STOP_WITHIN_S = 2.0
"""At the end restoring is tried for this long; the supervisor tries it afterwards."""


async def run(settings: ControllerSettings) -> None:
    """Drives all pools until SIGTERM or SIGINT, then puts the baseline weights back.

    On SIGUSR1 (`slackwater.core.stopping.HAND_OVER`) it ends and leaves the weights and the leases as they are. The
    supervisor starts the next lbengine at once, which continues from them as after a crash.

    A pool whose stored baseline cannot be read is logged and not driven. While the bus or a balancer is away, the
    function waits for it. Raises BaselineError when no pool is left, JournalError when the journal cannot be opened.
    """
    stop = stop_event()
    # Short: lowering a weight may not wait long for another writer of the journal.
    with Journal.open(journal_path(settings.state_dir), wait_s=1.0) as journal:
        episodes = Path(settings.state_dir) / "hooks.json"
        hooks = Hooks(settings.lbengine.hooks, settings.lbengine.hook_timeout_s, episodes)
        drivers = _drivers(settings, journal, hooks)

        def hand_over() -> None:
            for driver in drivers:
                driver.hands_over = True
            stop.set()

        asyncio.get_running_loop().add_signal_handler(HAND_OVER, hand_over)
        try:
            await drive(drivers, partial(Bus.connect, settings.controller_bus, "slackwater-lbengine", wait_s=2.0), stop)
        finally:
            await hooks.close()


async def drive(drivers: list[Driver], connect: Callable[[], Awaitable[Bus]], stop: asyncio.Event) -> None:
    """Runs all drivers until `stop`, and attaches them to the bus as soon as it answers. `connect` raises BusError."""
    connecting = asyncio.create_task(_connect(connect, drivers))
    driving = [asyncio.create_task(driver.drive(stop)) for driver in drivers]
    try:
        # A driver ends at `stop`. If a driver fails the process ends, and is started afresh.
        await asyncio.gather(*driving)
    finally:
        stop.set()
        await asyncio.gather(*driving, return_exceptions=True)
        await tasks.end(connecting)
        if not connecting.cancelled():
            bus = connecting.result()
            for driver in drivers:
                await driver.publish()
            await bus.flush()
            await bus.close()


def _drivers(settings: ControllerSettings, journal: Journal, hooks: Hooks) -> list[Driver]:
    drivers: list[Driver] = []
    refused: list[BaselineError] = []
    for pool in settings.pool:
        try:
            engine = Engine(pool, settings.lbengine, Path(settings.state_dir), journal)
        except BaselineError as error:
            log.error("pool %s is not driven: %s", pool.name, error)
            refused.append(error)
        else:
            if (mode := engine.commands.overrides.mode) != pool.mode:
                log.info("pool %s: mode %s, instead of the settings' mode %s", pool.name, mode, pool.mode)
            drivers.append(Driver(engine, pool, settings.lbengine.cycle_s, hooks))
    if not drivers:
        raise refused[0]
    heartbeat = Heartbeat(driver.pool.name for driver in drivers)
    for driver in drivers:
        driver.beat = partial(heartbeat.beat, driver.pool.name)
    return drivers


async def _connect(connect: Callable[[], Awaitable[Bus]], drivers: list[Driver]) -> Bus:
    """Connects, however long it takes. Without the bus the engines take their turns, and go back to the baseline."""
    complained = False
    while True:
        try:
            bus = await connect()
            break
        except BusError as error:
            (log.debug if complained else log.warning)("%s; waiting for it", error)
            complained = True
            await asyncio.sleep(0.5)
    for driver in drivers:
        await driver.attach(bus)
    log.info("bus %s: connected", bus.url)
    return bus


class Driver:
    """Runs one pool's engine in a thread of its own, so that a stuck balancer holds up no other pool.

    Times are of the event loop's clock, which is monotonic.
    """

    def __init__(
        self,
        engine: Engine,
        pool: PoolSettings,
        cycle_s: float,
        hooks: Hooks,
        thread: EngineThread | None = None,
        process: Process | None = None,
    ) -> None:
        self.engine = engine
        self.pool = pool
        self.cycle_s = cycle_s
        self.beat: Callable[[], None] = lambda: None
        """Called after each piece of work."""
        self.hands_over = False
        """Whether the weights stay as they are at the stop, for the next lbengine of this controller."""
        self._hooks = hooks
        self._bus: Bus | None = None
        self._wake = asyncio.Event()
        self._thread = thread or EngineThread(f"lbengine-{pool.name}")
        self._process = process
        self._clock = asyncio.get_running_loop().time
        self._ownership: Ownership | None = None
        self._owning: asyncio.Task[None] | None = None
        self._attached = asyncio.Event()
        self._outages = OutageLog(log, pool.name, pool.title)
        self._sentence = ""

    @property
    def _is_shared(self) -> bool:
        """Whether other hosts reach the balancer too."""
        return any(target.is_remote for target in targets_of(self.pool))

    async def attach(self, bus: Bus) -> None:
        """Takes the lease on the balancer, or stands by; then takes Verdicts and requests from the bus."""
        self._bus = bus
        if self.engine.acting:
            try:
                self._ownership = await self._own(bus)
            except BusError as error:
                log.warning("pool %s: %s; asking again", self.pool.name, error)
                # Another lbengine may drive the same balancer: nobody knows before the store answers.
                self.engine.may_lower = lambda: False
                if self._is_shared:
                    await self._thread.run(self.engine.stand_by, "who drives it is not known yet", False)
                self._owning = asyncio.create_task(self._own_later(bus))
        self._attached.set()
        await bus.subscribe("verdict", self._take, pool=self.pool.name)
        await bus.serve(f"slackwater.control.{self.pool.name}", self._control)
        await bus.serve(f"slackwater.request.{self.pool.name}", self._request)

    async def drive(self, stop: asyncio.Event) -> None:
        """Takes turns until `stop`, then puts the baseline weights back, or hands over.

        Where other hosts reach the balancer too, the first turn waits until it is known who drives it. It waits no
        longer than `lease_s`, since weights may stay lowered only that long while nobody decides.
        """
        stopping = asyncio.create_task(stop.wait())
        attached = asyncio.create_task(self._attached.wait())
        try:
            within_s = self.engine.settings.lease_s if self.engine.acting and self._is_shared else 0.0
            await asyncio.wait({attached, stopping}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            while not stop.is_set():
                self._wake.clear()
                await self._look_at_stale_lease()
                self.beat()
                await self._turn()
                await self._pause(stopping)
        finally:
            stopping.cancel()
            attached.cancel()
            if self._owning is not None:
                await tasks.end(self._owning)
            if self.hands_over:
                await self._hand_over()
            else:
                await self._look_at_stale_lease()
                await self._stop()
                if self._ownership is not None:
                    await self._ownership.end()

    async def _pause(self, stopping: asyncio.Task[bool]) -> None:
        """Waits until the next turn. The supervisor expects a heartbeat every `cycle_s`, so the wait is in pieces."""
        for _ in range(max(1, round(REST_S / self.cycle_s)) if self.engine.at_rest else 1):
            self.beat()
            waking = asyncio.create_task(self._wake.wait())
            await asyncio.wait({waking, stopping}, timeout=self.cycle_s, return_when=asyncio.FIRST_COMPLETED)
            waking.cancel()
            if self._wake.is_set() or stopping.done():
                return

    async def _look_at_stale_lease(self) -> None:
        """Looks who has the lease after the process was held up: another lbengine may drive the balancer."""
        if self._ownership is not None and self._ownership.lease.stale:
            await self._ownership.step()

    async def _own(self, bus: Bus) -> Ownership | None:
        """The lease on the balancer; None where the bus has no store. Raises BusError when it does not answer."""
        try:
            bucket = await bus.bucket(BUCKET)
        except NoStoreError as error:
            log.warning(
                "pool %s: %s; without that store nothing stops a controller on another host from setting the same"
                " weights (on this host a lock does)",
                self.pool.name,
                error,
            )
            self.engine.may_lower = lambda: True
            return None
        ownership = Ownership(
            self.engine,
            self.pool,
            bucket,
            self._thread,
            partial(self._hooks.take_over, self.pool.name),
            self._process,
        )
        await ownership.begin()
        return ownership

    async def _own_later(self, bus: Bus) -> None:
        """Tries again to take the lease: the store of a cluster that has no leader yet answers in some seconds."""
        while self._ownership is None:
            await asyncio.sleep(ASK_AGAIN_S)
            with contextlib.suppress(BusError):
                self._ownership = await self._own(bus)

    async def publish(self) -> None:
        """Publishes the engine's messages. Without a bus they are dropped; the journal has the Changes."""
        while self.engine.outbox:
            message = self.engine.outbox.popleft()
            if isinstance(message, Change):
                self._hooks.change(message)
            if self._bus is not None:
                await self._bus.publish(message)

    def _take(self, verdict: Verdict) -> None:
        if self.engine.inbox.put(verdict, self._clock()):
            self._wake.set()
            self._hooks.verdict(verdict, ours=not self.engine.standby)

    async def _turn(self) -> None:
        try:
            sentence = await self._thread.run(self.engine.cycle, self._clock())
        except BalancerError as error:
            self._outages.lost(str(error))
        else:
            self._outages.answered()
            log.log(logging.DEBUG if sentence == self._sentence else logging.INFO, "%s", sentence)
            self._sentence = sentence
        await self.publish()
        await self._thread.run(self.engine.settle)

    async def _control(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """Carries out a person's command; ValueError becomes the answer's `error`.

        In standby there is no answer (None): the lbengine that drives the pool answers.
        """
        if self.engine.standby:
            return None
        request = request_of(question)
        warnings: list[str] = []
        try:
            if request.mode == "act" and not self.engine.acting:
                warnings = await self._may_act()
            sentence = await self._thread.run(self.engine.command, request, self._clock())
        except (StateFileError, CommandError, BalancerError) as error:
            raise ValueError(str(error)) from None
        log.info("%s", sentence)
        await self.publish()
        await self._thread.run(self.engine.settle)
        return {"sentence": shortened("; ".join([*(f"warning: {warning}" for warning in warnings), sentence]))}

    async def _request(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """Grants the second stage a temporary override; otherwise as `_control`."""
        if self.engine.standby:
            return None
        if (action := question.get("action")) not in temporary.ACTIONS:
            known = ", ".join(f"`{name}`" for name in temporary.ACTIONS)
            raise ValueError(f"action {action!r} is not known; expected {known}")
        sentence = await self._thread.run(self.engine.override_temporarily, question, self._clock())
        log.info("%s", sentence)
        self._wake.set()
        return {"sentence": sentence}

    async def _may_act(self) -> list[str]:
        """Checks the balancer and takes the lease, which a pool that is only observed does not need; returns warnings.

        Raises BalancerError, CommandError.
        """
        acting = msgspec.structs.replace(self.pool, mode="act")
        warnings = await self._thread.run(check, acting, self.engine.settings, self.engine.state_dir)
        for warning in warnings:
            log.warning("%s", warning)
        if self._ownership is None and self._bus is not None:
            try:
                self._ownership = await self._own(self._bus)
            except BusError as error:
                raise CommandError(f"{self.pool.name}: {error}") from None
        if who := self.engine.standby:
            if self._ownership is not None:
                await self._ownership.end()
            self._ownership = None
            self.engine.look_on()
            raise CommandError(f"{self.pool.name}: {who}")
        return warnings

    async def _hand_over(self) -> None:
        """Ends without giving the lease back. Our successor may take it at once, since its process is gone; another
        host must wait."""
        log.info("%s: the weights stay as they are for the next lbengine", self.pool.name)
        if self._ownership is not None:
            await self._ownership.leave()
        await self._thread.run(self.engine.settle)
        self._thread.shutdown()

    async def _stop(self) -> None:
        until_s = self._clock() + STOP_WITHIN_S
        while True:
            try:
                log.info("%s", await self._thread.run(self.engine.stop, self._clock(), "lbengine stops"))
                break
            except (BalancerError, BaselineError) as error:
                if self._clock() >= until_s:
                    log.error(
                        "pool %s: the baseline weights could not be put back: %s; when %s answers, run"
                        " `slackwater restore --pool %s`",
                        self.pool.name,
                        error,
                        self.pool.title,
                        self.pool.name,
                    )
                    break
            await asyncio.sleep(0.2)
        await self._thread.run(self.engine.settle)
        self._thread.shutdown()
