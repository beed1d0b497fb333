"""Whether another controller drives a pool. It is asked before baseline weights are set without an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path

from slackwater.core.bus.bus import Bus, BusError
from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.lbengine.backends.table import targets_of
from slackwater.lbengine.baseline import BaselineStore
from slackwater.lbengine.leadership.lease import LEASE_S, RENEW_S, Lease, keys_of
from slackwater.lbengine.leadership.ownership import BUCKET

TAKEN_OVER_WITHIN_S = LEASE_S + 3 * RENEW_S
"""Another lbengine takes over within 2.4 s of a death; by this time it has renewed its record too."""
CONNECTS_WITHIN_S = 1.0


def left_to_another(settings: ControllerSettings, pool: PoolSettings) -> str:
    """Which lbengine of another host drives the pool, or takes it over within `TAKEN_OVER_WITHIN_S`, in words.

    Then the baseline that is stored here is out of date, and removed. Empty: none, or the bus does not answer. The call
    takes some seconds where other hosts reach the balancer.
    """
    if not any(target.is_remote for target in targets_of(pool)):
        return ""
    try:
        driver = asyncio.run(_look(settings, pool))
    except BusError:  # without the bus nobody takes over
        return ""
    if driver:
        BaselineStore(Path(settings.state_dir), pool).forget()
    return driver


async def _look(settings: ControllerSettings, pool: PoolSettings) -> str:
    bus = await Bus.connect(settings.controller_bus, "slackwater-restore", wait_s=CONNECTS_WITHIN_S)
    try:
        bucket = await bus.bucket(BUCKET)
        leases = [Lease(bucket, key, settings.state_dir, time.monotonic) for key in keys_of(pool)]
        return await another_of(leases)
    finally:
        await bus.close()


async def another_of(leases: Iterable[Lease]) -> str:
    """Which lbengine of another controller has one of the leases, or takes it within `TAKEN_OVER_WITHIN_S`, in words;
    empty: none."""
    until_s = time.monotonic() + TAKEN_OVER_WITHIN_S
    while time.monotonic() < until_s:
        for lease in leases:
            if (
                await lease.step(take=False) == "theirs"
                and lease.is_another_controllers
                and lease.their_record is not None
            ):
                return f"lbengine of {lease.their_record.host} (pid {lease.their_record.pid}) drives it"
        await asyncio.sleep(RENEW_S / 2)
    return ""
