"""Simulated second stages: `drive`, `RetunedPool` and `BusAccess`, each in a process beside its lbengine."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from slackwater.core.bus.bus import BusError
from slackwater.core.config import RetuneSettings
from slackwater.core.machine import controller_id
from slackwater.core.messages import Message
from slackwater.orders.access import BusAccess
from slackwater.orders.driving import KINDS, drive
from slackwater.orders.signing import Signer
from slackwater.retune import knowledge
from slackwater.retune.best_values import BestValues
from slackwater.retune.node import BY
from slackwater.retune.pool import RetunedPool
from slackwater.retune.service import STEP_S
from tests.simulation.controllers import POOL
from tests.simulation.network import Broker, Link, SimulatedBus
from tests.simulation.world import Process, World

SETTINGS = RetuneSettings(
    mode="act", order_key="simulated", long_after_s=0.4, no_room_after_s=0.4, leave_after_s=0.5, lease_s=3.0
)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
"""The same in all schedules: a seed gives the same signatures."""


@cache
def _rules() -> knowledge.Knowledge:
    return knowledge.load()


class Records:
    """The journal: which Changes are in it."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def record(self, *batch: Message, wait: bool = True) -> None:  # noqa: ARG002
        self.ids.update(id_ for message in batch if (id_ := getattr(message, "id", "")))


class SecondStage:
    """The second stage of one controller; it is started again when it has crashed."""

    def __init__(
        self,
        world: World,
        name: str,
        disk: Path,
        broker: Broker,
        link: Link,
        wall_offset_s: float,
        clock_offset_s: float,
    ) -> None:
        self.world, self.name = world, name
        self.process: Process | None = None
        self.records = Records()
        self._disk, self._broker, self._link = disk, broker, link
        self._wall_offset_s, self._clock_offset_s = wall_offset_s, clock_offset_s

    def start(self) -> None:
        """Begins a new process, unless there is one."""
        if self.process is None:
            process = Process(self.world, f"retune of {self.name}", self._clock_offset_s)  # type: ignore[abstract]
            self.process = process
            process.start(self._main(process))

    def crash(self) -> None:
        """SIGKILL. `start` begins another one."""
        if self.process is not None:
            self.world.tell(self.process.name, "crashes")
            self.process.crash()
            self.process = None

    async def _main(self, process: Process) -> None:
        while True:
            try:
                bus = await SimulatedBus.open(self._broker, process, self._link)
                break
            except BusError:
                await asyncio.sleep(0.5)
        access = BusAccess(
            POOL,
            SETTINGS.lease_s,
            bus,
            self.records,  # type: ignore[arg-type]
            Signer(KEY),
            controller_id(self._disk),
            by=BY,
            clock=process.time,
            wall=lambda: 1.8e9 + self.world.now_s + self._wall_offset_s,
        )
        access.pool = RetunedPool(POOL, SETTINGS, _rules(), BestValues(self._disk), access, process.time)
        for kind in KINDS:
            await bus.subscribe(kind, access.take, pool=POOL.name)
        await drive(access.pool, lambda: None, asyncio.Event(), STEP_S)
