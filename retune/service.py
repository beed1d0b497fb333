"""The retune process: one `Pool` each, fed from the bus. Orders are signed, recorded first, and leases."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from retune import knowledge
from retune.best_values import BestValues
from retune.node import BY
from retune.orders import BusAccess
from retune.pool import Pool
from slackwater.bus.bus import Bus
from slackwater.bus.signing import Signer
from slackwater.config import ControllerSettings
from slackwater.heartbeat import Heartbeat
from slackwater.journal.journal import Journal, journal_path
from slackwater.machine import controller_id
from slackwater.stopping import stop_event

log = logging.getLogger("retune")

STEP_S = 0.5
KINDS = ("sample", "verdict", "cycle", "change", "knobs")


async def run(settings: ControllerSettings) -> None:
    """Serves all pools until SIGTERM or SIGINT. What is set then runs out with its leases, or is taken up again.

    Raises SigningError, KnowledgeError, JournalError, BusError at the start.
    """
    rules = knowledge.load(settings.retune.knowledge)
    signer = Signer.load(Path(settings.retune.order_key)) if settings.retune.mode == "act" else None
    best_values = BestValues(Path(settings.state_dir))
    stop = stop_event()
    with Journal.open(journal_path(settings.state_dir), wait_s=1.0) as journal:
        bus = await Bus.connect(settings.controller_bus, "slackwater-retune")
        try:
            pools = {}
            for pool in settings.pool:
                id_ = controller_id(settings.state_dir)
                access = BusAccess(pool, settings.retune.lease_s, bus, journal, signer, id_, by=BY)
                pools[pool.name] = access.pool = Pool(pool, settings.retune, rules, best_values, access, time.monotonic)
                for kind in KINDS:
                    await bus.subscribe(kind, access.take, pool=pool.name)
            log.info("second stage: %s, %s", settings.retune.mode, settings.retune.policy)
            await drive_all(pools, stop, STEP_S)
        finally:
            await bus.flush()
            await bus.close()


class Steps(Protocol):
    """One pool of a part of the controller."""

    async def step(self) -> None:
        """Does what is due."""

    async def end(self) -> None:
        """Once, at the end."""


async def drive_all(
    pools: Mapping[str, Steps], stop: asyncio.Event, step_s: float, end_within_s: float | None = None
) -> None:
    """Has pools, by name, step until `stop`, each with its heartbeat. When one fails the others are ended too, within
    `end_within_s` if that is given."""
    heartbeat = Heartbeat(pools)
    driving = [
        asyncio.create_task(drive(pool, partial(heartbeat.beat, name), stop, step_s)) for name, pool in pools.items()
    ]
    try:
        await asyncio.gather(*driving)
    finally:
        stop.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*driving, return_exceptions=True), end_within_s)


async def drive(pool: Steps, beat: Callable[[], None], stop: asyncio.Event, step_s: float = STEP_S) -> None:
    """Has the pool step until `stop`; `beat` is called after each step."""
    while not stop.is_set():
        await pool.step()
        beat()
        try:
            await asyncio.wait_for(stop.wait(), step_s)
        except TimeoutError:
            continue
    await pool.end()
