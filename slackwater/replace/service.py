"""The replace process: a `ReplacedPool` for each pool, fed from the bus."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from slackwater.core import programs, stopping
from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.orders.access import BusAccess
from slackwater.orders.driving import run_pools
from slackwater.replace.claims import Claims
from slackwater.replace.pool import BY, Planned, ReplacedPool
from slackwater.views.chronic import DAY_S
from slackwater.views.harm import Remembered
from slackwater.views.replacements import Plan, attempts, plan, servers_of
from slackwater.views.week import MOST_CHANGES, week

log = logging.getLogger("replace")

STEP_S = 0.5
END_WITHIN_S = 2.0
"""`serve` waits three seconds; the drain of a server that has not its requests back by then ends by itself."""


async def run(settings: ControllerSettings) -> None:
    """Serves all pools until SIGTERM or SIGINT. After HAND_OVER it ends when no command runs.

    Raises JournalError, BusError at the start.
    """
    remembered, stop, pools = Remembered(), stopping.stop_event(), list[ReplacedPool]()

    def make(pool: PoolSettings, access: BusAccess) -> ReplacedPool:
        claims = Claims(access.bucket, pool.name, access.controller, settings.replace, time.time)
        read = _reader(settings, pool, remembered)
        pools.append(ReplacedPool(pool, settings.replace, access, claims, read, time.monotonic))
        return pools[-1]

    log.info("replace: %s", settings.replace.command)
    leaving = asyncio.create_task(_leave(pools, stop))
    try:
        await run_pools(settings, BY, settings.pool, make, stop, STEP_S, END_WITHIN_S)
    finally:
        leaving.cancel()


async def _leave(pools: Collection[ReplacedPool], stop: asyncio.Event) -> None:
    """Waits for HAND_OVER, and ends us when nothing is under way any more."""
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(stopping.HAND_OVER, asked.set)
    await asked.wait()
    for pool in pools:
        pool.leave()
    while not all(pool.has_left for pool in pools):
        await asyncio.sleep(STEP_S)
    stop.set()


def _reader(settings: ControllerSettings, pool: PoolSettings, remembered: Remembered) -> Callable[[], Planned]:
    def read() -> Planned:
        with Journal.open(journal_path(settings.state_dir), read_only=True, wait_s=1.0) as journal:
            return planned(journal, settings, pool, time.time(), remembered)

    return read


def planned(
    journal: Journal,
    settings: ControllerSettings,
    pool: PoolSettings,
    now_unix_s: float,
    remembered: Remembered | None = None,
) -> Planned:
    """What the journal tells now. Raises JournalError."""
    days = settings.replace.days
    (of_pool,) = week(journal, settings, [pool], days, now_unix_s, remembered or Remembered()).pools
    since = now_unix_s - (days + 1) * DAY_S  # a replacement may have begun long before its command was called
    changes = journal.changes(pool.name, MOST_CHANGES, since, what="replace")
    cycle = journal.latest_cycle(pool.name)
    begun = attempts(changes)
    noted = any(not attempt.applied and now_unix_s - attempt.begun_unix_s < DAY_S for attempt in begun)
    next_step = plan(pool.name, of_pool.machines, changes, cycle, pool.servers, settings.replace, now_unix_s)
    if next_step.node and next_step.obstacle is None:
        _look_beyond(next_step, journal, settings)
    return Planned(next_step, begun, noted)


def _look_beyond(step: Plan, journal: Journal, settings: ControllerSettings) -> None:
    """Whether another pool has the machine too, and whether the command can be called."""
    for other in settings.pool:
        cycle = journal.latest_cycle(other.name) if other.name != step.pool else None
        shared = servers_of(cycle, step.node, other.servers) if cycle is not None else []
        if shared:
            step.obstacle = "other_pool"
            step.waits = f"{shared[0].server} of pool {other.name} is {step.node} too, and would not be drained"
            return
    if settings.replace.command and (problem := programs.why_not_callable(settings.replace.command)):
        step.obstacle, step.waits = "not_callable", problem
