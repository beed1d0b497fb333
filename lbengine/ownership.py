"""An engine and its lease: renews it, and tells the engine when to stand by and when to take over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from lbengine.baseline import Baseline, BaselineError
from lbengine.engine import Engine
from lbengine.lease import RENEW_S, Bucket, Lease, Say, key_of
from lbengine.pause import PauseError
from slackwater.bus import BusError
from slackwater.config import PoolSettings

log = logging.getLogger("lbengine")

BUCKET = "slackwater_lease"
KEPT_WITHIN_S = 1.0
SPREAD_EVERY_S = 10.0


class Store(Bucket, Protocol):
    """A bucket whose keeper can be told not to die with us."""

    async def spread(self) -> None: ...


class Ownership:
    """`in_thread` runs a function in the engine's thread, so that nothing of it happens within a turn."""

    def __init__(
        self, engine: Engine, pool: PoolSettings, bucket: Store, in_thread: Callable[..., Awaitable[Any]]
    ) -> None:
        self.engine = engine
        self.pool = pool
        self.lease = Lease(bucket, key_of(pool), str(engine.state_dir), time.monotonic)
        self._bucket = bucket
        self._spread_s = 0.0
        self._in_thread = in_thread
        self._said: Say = "alone"
        self._one_at_a_time = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Asks for the lease once, then goes on renewing it or waiting for it."""
        loop = asyncio.get_running_loop()

        def mirror(baseline: Mapping[str, Baseline] | None) -> None:
            """From the engine's thread: what is to be put back is where the next one finds it, before it is needed."""
            keeping = asyncio.run_coroutine_threadsafe(self._keep(baseline), loop)
            try:
                keeping.result(KEPT_WITHIN_S)
            except (BusError, TimeoutError) as error:
                keeping.cancel()
                log.warning("pool %s: the baseline is on disk, but not with the lease: %s", self.pool.name, error)

        self.lease.baseline = self.engine.stored_baseline()
        self.lease.paused = self.engine.paused
        await self.step()
        self.engine.mirror_baseline(mirror)
        self._renewing = asyncio.create_task(self._renew())

    async def end(self) -> None:
        """Gives the lease back after the engine has stopped."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        with contextlib.suppress(BusError):
            await self.lease.release()

    async def step(self) -> None:
        """Renews or looks, and has the engine follow."""
        async with self._one_at_a_time:
            self.lease.paused = self.engine.paused if self._said == "ours" else self.lease.paused
            say = await self.lease.step()
            if say == self._said:
                return
            before, self._said = self._said, say
            await self._follow(before, say)

    async def _follow(self, before: Say, say: Say) -> None:
        lease = self.lease
        if say == "theirs" and lease.found is not None:
            told = f"lbengine of {lease.found.host} (pid {lease.found.pid}) drives it"
            log.warning("pool %s: standing by: %s", self.pool.name, told)
            await self._in_thread(self.engine.stand_by, told, not lease.is_neighbour)
        elif say == "ours":
            if before == "theirs":
                log.warning("pool %s: taking over", self.pool.name)
            baseline = lease.baseline if lease.inherited else None
            try:
                await self._in_thread(self.engine.take_over, baseline, lease.paused, time.monotonic())
            except (BaselineError, PauseError) as error:
                log.error("pool %s: %s", self.pool.name, error)
        else:
            log.warning("pool %s: the lease cannot be renewed; the way is to the baseline only", self.pool.name)

    async def _keep(self, baseline: Mapping[str, Baseline] | None) -> None:
        await self.lease.keep(baseline, self.engine.paused)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            await self.step()
            if self._said == "ours" and time.monotonic() - self._spread_s >= SPREAD_EVERY_S:
                self._spread_s = time.monotonic()
                with contextlib.suppress(BusError):
                    await self._bucket.spread()
