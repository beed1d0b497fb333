"""A process of the controller that asks lbengine or the nodes for something: its pools get the messages of the bus and
step at an interval."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from slackwater.core.bus.bus import Bus
from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.core.heartbeat import Heartbeat
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.machine import controller_id
from slackwater.orders.access import BusAccess, Receiver
from slackwater.orders.signing import Signer

KINDS = ("sample", "verdict", "cycle", "change", "knobs")
"""Kinds of messages that a pool gets."""


class SteppedPool(Receiver, Protocol):
    """One pool of such a process."""

    async def step(self) -> None:
        """Does what is due."""

    async def end(self) -> None:
        """Once, at the end."""


async def run_pools(
    settings: ControllerSettings,
    by: str,
    pools: Iterable[PoolSettings],
    make: Callable[[PoolSettings, BusAccess], SteppedPool],
    stop: asyncio.Event,
    step_s: float,
    end_within_s: float | None = None,
    *,
    lease_s: float = 0.0,
    gives_orders: bool = False,
    records_renewals: bool = True,
) -> None:
    """Has the pools step until `stop`, each with its heartbeat. `by`: of what they ask for. `lease_s`: of their Orders.

    Raises SigningError, JournalError, BusError at the start.
    """
    signer = Signer.load(Path(settings.retune.order_key)) if gives_orders else None
    with Journal.open(journal_path(settings.state_dir), wait_s=1.0) as journal:
        bus = await Bus.connect(settings.controller_bus, f"slackwater-{by}")
        try:
            made: dict[str, SteppedPool] = {}
            for pool in pools:
                access = BusAccess(
                    pool,
                    lease_s,
                    bus,
                    journal,
                    signer,
                    controller_id(settings.state_dir),
                    by=by,
                    records_renewals=records_renewals,
                )
                made[pool.name] = access.pool = make(pool, access)
                for kind in KINDS:
                    await bus.subscribe(kind, access.take, pool=pool.name)
            await _drive_all(made, stop, step_s, end_within_s)
        finally:
            await bus.flush()
            await bus.close()


async def _drive_all(
    pools: Mapping[str, SteppedPool], stop: asyncio.Event, step_s: float, end_within_s: float | None
) -> None:
    """When one pool fails the others are ended too, within `end_within_s` if that is given."""
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


async def drive(pool: SteppedPool, beat: Callable[[], None], stop: asyncio.Event, step_s: float) -> None:
    """Has the pool step until `stop`; `beat` is called after each step."""
    while not stop.is_set():
        await pool.step()
        beat()
        try:
            await asyncio.wait_for(stop.wait(), step_s)
        except TimeoutError:
            continue
    await pool.end()
