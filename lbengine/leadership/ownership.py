"""An engine and its leases. It renews the leases, and has the engine stand by or take over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from slackwater.core import tasks
from slackwater.core.bus.bus import BusError
from slackwater.core.config import PoolSettings
from slackwater.core.machine import Process
from slackwater.lbengine.baseline import Baseline, BaselineError
from slackwater.lbengine.engine import Engine
from slackwater.lbengine.engine_thread import EngineThread
from slackwater.lbengine.leadership.lease import RENEW_S, Bucket, Owner, keys_of
from slackwater.lbengine.leadership.leases import Leases
from slackwater.lbengine.state_file import StateFileError

log = logging.getLogger("lbengine")

BUCKET = "slackwater_lease"
KEPT_WITHIN_S = 1.0
SPREAD_EVERY_S = 10.0


class Store(Bucket, Protocol):
    """A bucket that can be kept by several servers, so that it does not die with one."""

    async def spread(self) -> None: ...


class Ownership:
    """Follows the leases of one engine. The engine's methods run in its `thread`, so never within a turn.

    `taken_over` is called after the engine has taken over from another lbengine, with the time when that was last heard
    of. Times are of the event loop's clock, which is monotonic.
    """

    def __init__(
        self,
        engine: Engine,
        pool: PoolSettings,
        bucket: Store,
        thread: EngineThread,
        taken_over: Callable[[float], None],
        process: Process | None = None,
    ) -> None:
        self.engine = engine
        self.pool = pool
        self._clock = asyncio.get_running_loop().time
        self.lease = Leases(bucket, keys_of(pool), str(engine.state_dir), self._clock, process)
        self._bucket = bucket
        self._spread_s = 0.0
        self._thread = thread
        self._taken_over = taken_over
        self._followed: tuple[Owner, bool, int] = ("unknown", False, 0)
        """The state that the engine follows: (owner, whether our stored baseline is out of date, how often the leases
        were taken after others).

        The count shows leases that were lost and taken again within one step.
        """
        self._error = ""
        """Why the engine could not take over at the last step; empty when it could."""
        self._one_at_a_time = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Tries to take the lease once, then goes on renewing it or waiting for it.

        Raises BusError while nobody knows who has it.
        """

        store = self.engine.store

        def mirror(baseline: Mapping[str, Baseline] | None) -> None:
            """Called in the engine's thread: the next holder must find the baseline before a weight is changed."""
            keeping = self.lease.keep(baseline, self.engine.paused, store.id)
            try:
                self._thread.wait_for(keeping, KEPT_WITHIN_S)
            except (BusError, TimeoutError) as error:
                log.warning(
                    "pool %s: the baseline weights are stored on this host, but not on the bus, where another"
                    " controller would need them to take over: %s",
                    self.pool.name,
                    error,
                )

        self.lease.hold(store.load(), self.engine.paused, store.id)
        self.engine.store.mirror = mirror
        await self.step()
        if self.lease.owner == "unknown" and not self._error:
            raise BusError("the lease could not be taken: the key-value store does not answer in time")
        self.engine.may_lower = lambda: self.lease.is_sure
        self._renewing = asyncio.create_task(self._renew())

    async def leave(self) -> None:
        """Stops renewing the lease, without giving it back."""
        if self._renewing is not None:
            await tasks.end(self._renewing)

    async def end(self) -> None:
        """Gives the lease back after the engine has stopped."""
        await self.leave()
        with contextlib.suppress(BusError):
            await self.lease.release(contested=self._clock() < self.engine.state.grace_until_s)

    async def step(self) -> None:
        """Renews the leases or looks who has them, and has the engine follow."""
        async with self._one_at_a_time:
            if self._followed[0] == "ours":
                self.lease.paused = self.engine.paused
            owner = await self.lease.step()
            before = self._followed[2]
            followed = owner, owner == "theirs" and self.lease.are_elsewhere, self.lease.taken_after_others
            if followed == self._followed:
                self._error = ""
                return
            try:
                await self._follow(owner, elsewhere=followed[1], after_another=followed[2] > before)
            except (BaselineError, StateFileError) as error:
                await self._let_go(str(error))
            else:
                self._followed, self._error = followed, ""

    async def _follow(self, owner: Owner, elsewhere: bool, after_another: bool) -> None:
        """Raises BaselineError, StateFileError where it cannot take over."""
        lease = self.lease
        if owner == "theirs":
            log.warning("pool %s: standing by: %s", self.pool.name, lease.other)
            await self._thread.run(self.engine.stand_by, lease.other, elsewhere)
        elif owner == "ours":
            stood_by = bool(self.engine.standby)
            left = lease.left(put_back=self.engine.store.put_back)
            stored = await self._thread.run(
                self.engine.take_over, left, lease.paused, self._clock(), stood_by or after_another
            )
            lease.hold(stored, self.engine.paused, self.engine.store.id)
            if stood_by:
                log.warning("pool %s: taking over", self.pool.name)
                self._taken_over(lease.heard_s)
        else:
            log.warning(
                "pool %s: no weight is lowered until the lease (the right to drive the balancer) is renewed; weights"
                " may still return to the baseline",
                self.pool.name,
            )

    async def _let_go(self, why: str) -> None:
        """Stands by, and gives the leases back. A later step takes them again where no other lbengine has them."""
        if self._error != why:
            log.error("pool %s: this lbengine cannot drive the balancer now: %s", self.pool.name, why)
        self._error = why
        await self._thread.run(self.engine.stand_by, f"this lbengine cannot: {why}", False)
        with contextlib.suppress(BusError):
            await self.lease.release(contested=True)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            await self.step()
            if self._followed[0] == "ours" and self._clock() - self._spread_s >= SPREAD_EVERY_S:
                self._spread_s = self._clock()
                with contextlib.suppress(BusError):
                    await self._bucket.spread()
