"""The governor process: a `GovernedPool` for each pool with a target, fed from the bus."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.core.files import PRIVATE, open_file
from slackwater.core.messages import GOVERNOR
from slackwater.core.stopping import stop_event
from slackwater.governor.pool import GovernedPool
from slackwater.governor.types import GovernorError
from slackwater.orders.access import BusAccess
from slackwater.orders.driving import run_pools

log = logging.getLogger(GOVERNOR)

STEP_S = 0.25
END_WITHIN_S = 2.0
"""`serve` waits three seconds; a knob that is not given back by then is put back when its lease ends."""


async def run(
    settings: ControllerSettings,
    *,
    only: str | None = None,
    target_ms: float | None = None,
    tell: Callable[[str], None] | None = None,
    for_s: float | None = None,
) -> None:
    """Governs all pools that have a target until SIGTERM or SIGINT, and puts everything back then.

    `only`: this pool. `target_ms`: another target. `tell` gets a line for each decision. `for_s`: not longer.
    Raises GovernorError, SigningError, JournalError, BusError at the start.
    """
    governed = [pool for pool in settings.pool if only in (None, pool.name) and (target_ms or pool.target_p95_ms)]
    stop = stop_event()
    if for_s is not None:
        asyncio.get_running_loop().call_later(for_s, stop.set)

    def make(pool: PoolSettings, access: BusAccess) -> GovernedPool:
        return GovernedPool(pool, settings.governor, access, target_ms=target_ms, tell=tell)

    with only_one(Path(settings.state_dir)):
        log.info("governor: %s, %s", settings.governor.mode, settings.governor.policy)
        await run_pools(
            settings,
            "governor",
            governed,
            make,
            stop,
            STEP_S,
            END_WITHIN_S,
            lease_s=settings.governor.lease_s,
            gives_orders=settings.governor.mode == "act",
            records_renewals=False,
        )


@contextlib.contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Two governors of one controller would undo each other's work. Raises GovernorError."""
    path = state_dir / "governor.lock"
    descriptor = open_file(path, os.O_RDWR | os.O_CREAT, PRIVATE)
    deadline_s = time.monotonic() + END_WITHIN_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    raise GovernorError(
                        f"{path}: another governor of this controller runs; is governor.mode on in `slackwater serve`?"
                    ) from None
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)
