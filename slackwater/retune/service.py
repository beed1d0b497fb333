"""The retune process: a `RetunedPool` for each pool, fed from the bus."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.core.stopping import stop_event
from slackwater.orders.access import BusAccess
from slackwater.orders.driving import run_pools
from slackwater.retune import knowledge
from slackwater.retune.best_values import BestValues
from slackwater.retune.pool import RetunedPool

log = logging.getLogger("retune")

STEP_S = 0.5


async def run(settings: ControllerSettings) -> None:
    """Serves all pools until SIGTERM or SIGINT. Knobs that are set by then are put back when their leases end, or the
    next run takes them up.

    Raises SigningError, KnowledgeError, JournalError, BusError at the start.
    """
    rules = knowledge.load(settings.retune.knowledge)
    best_values = BestValues(Path(settings.state_dir))

    def make(pool: PoolSettings, access: BusAccess) -> RetunedPool:
        return RetunedPool(pool, settings.retune, rules, best_values, access, time.monotonic)

    log.info("second stage: %s, %s", settings.retune.mode, settings.retune.policy)
    await run_pools(
        settings,
        "retune",
        settings.pool,
        make,
        stop_event(),
        STEP_S,
        lease_s=settings.retune.lease_s,
        gives_orders=settings.retune.mode == "act",
    )
