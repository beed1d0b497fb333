"""The replace process: a `ReplacedPool` for each pool, fed from the bus."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from slackwater.core import programs
from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.stopping import stop_event
from slackwater.orders.access import BusAccess
from slackwater.orders.driving import run_pools
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
    """Serves all pools until SIGTERM or SIGINT.

    Raises JournalError, BusError at the start.
    """
    remembered = Remembered()

    def make(pool: PoolSettings, access: BusAccess) -> ReplacedPool:
        return ReplacedPool(pool, settings.replace, access, _reader(settings, pool, remembered), time.monotonic)

    log.info("replace: %s", settings.replace.command)
    await run_pools(settings, BY, settings.pool, make, stop_event(), STEP_S, END_WITHIN_S)


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
