"""The governor process: one `GovernedPool` each, fed from the bus."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from governor.pool import GovernedPool
from governor.types import GovernorError
from retune.orders import BusAccess
from retune.service import KINDS, drive_all
from slackwater.bus.bus import Bus
from slackwater.bus.signing import Signer
from slackwater.config import ControllerSettings
from slackwater.files import PRIVATE, open_file
from slackwater.journal.journal import Journal, journal_path
from slackwater.machine import controller_id
from slackwater.messages import GOVERNOR
from slackwater.stopping import stop_event

log = logging.getLogger(GOVERNOR)

STEP_S = 0.25
END_WITHIN_S = 2.0
"""`serve` waits three seconds; what is not given back by then ends with its lease."""


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
    governed = [one for one in settings.pool if only in (None, one.name) and (target_ms or one.target_p95_ms)]
    signer = Signer.load(Path(settings.retune.order_key)) if settings.governor.mode == "act" else None
    stop = stop_event()
    with only_one(Path(settings.state_dir)), Journal.open(journal_path(settings.state_dir), wait_s=1.0) as journal:
        bus = await Bus.connect(settings.controller_bus, "slackwater-governor")
        try:
            pools = {}
            id_ = controller_id(settings.state_dir)
            for one in governed:
                access = BusAccess(
                    one, settings.governor.lease_s, bus, journal, signer, id_, by=GOVERNOR, records_renewals=False
                )
                pools[one.name] = access.pool = GovernedPool(
                    one, settings.governor, access, target_ms=target_ms, tell=tell
                )
                for kind in KINDS:
                    await bus.subscribe(kind, access.take, pool=one.name)
            log.info("governor: %s, %s", settings.governor.mode, settings.governor.policy)
            if for_s is not None:
                asyncio.get_running_loop().call_later(for_s, stop.set)
            await drive_all(pools, stop, STEP_S, END_WITHIN_S)
        finally:
            await bus.flush()
            await bus.close()


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
