"""The retune process: a `Pool` for each pool, fed from the bus."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from retune import knowledge
from retune.best_values import BestValues
from retune.pool import Pool
from slackwater.config import ControllerSettings, PoolSettings
from slackwater.orders.access import BusAccess
from slackwater.orders.driving import run_pools
from slackwater.stopping import stop_event

log = logging.getLogger("retune")

STEP_S = 0.5


async def run(settings: ControllerSettings) -> None:
    """Serves all pools until SIGTERM or SIGINT. What is set then runs out with its leases, or is taken up again.

    Raises SigningError, KnowledgeError, JournalError, BusError at the start.
    """
    rules = knowledge.load(settings.retune.knowledge)
    best_values = BestValues(Path(settings.state_dir))

    def make(pool: PoolSettings, access: BusAccess) -> Pool:
        return Pool(pool, settings.retune, rules, best_values, access, time.monotonic)

    log.info("second stage: %s, %s", settings.retune.mode, settings.retune.policy)
    await run_pools(settings, "retune", settings.pool, make, stop_event(), STEP_S)
