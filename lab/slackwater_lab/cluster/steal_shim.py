"""A stand-in for a hypervisor that reports steal, where guests are emulated and QEMU reports none: only for the lab.

Monitors of virtual machines publish on a bus of their own. Each Sample is passed on to Slackwater's bus in the name of
its node, with the steal that this machine's scheduler knows: how long the thread that is the guest's CPU waited for a
processor (schedstat(5), second field), over the time since the Sample before.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from slackwater.core.bus.bus import Bus, BusError
from slackwater.core.config import BusSettings
from slackwater.core.messages import Sample
from slackwater_lab.cluster import bus
from slackwater_lab.cluster.background import Background
from slackwater_lab.cluster.hosts import BRIDGE_ADDRESS
from slackwater_lab.cluster.paths import LabError

LISTEN = f"{BRIDGE_ADDRESS}:14223"
SECTION = f'[bus]\nurl = "nats://{LISTEN}"\n'
"""The bus section of a monitor whose Samples pass through the shim."""
CPU_THREAD = "CPU 0/"
RETRY_S = 0.2


def cpu_thread(pid: int, proc: Path = Path("/proc")) -> Path:
    """The folder of the thread that is a guest's CPU. Raises LabError where the process has none."""
    for task in (proc / str(pid) / "task").glob("*"):
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().startswith(CPU_THREAD):
                return task
    raise LabError(f"process {pid} has no thread `{CPU_THREAD}...`: it is no guest of QEMU")


def waited_s(task: Path) -> float:
    """Seconds that a thread has waited for a processor so far."""
    return int((task / "schedstat").read_text().split()[1]) / 1e9


class StealShim(Background):
    """Passes Samples on while it is entered. Its bus must be up."""

    def __init__(self, guests: Mapping[str, int]) -> None:
        """`guests`: QEMU's process id by node."""
        super().__init__("passing Samples on")
        self._tasks = {node: cpu_thread(pid) for node, pid in guests.items()}
        self._before: dict[str, tuple[float, float]] = {}
        self._outward: dict[str, Bus] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def with_steal(self, sample: Sample) -> Sample:
        """The Sample with the steal since the one before; unchanged if it is the first of its node."""
        now = time.monotonic(), waited_s(self._tasks[sample.node])
        before = self._before.get(sample.node)
        self._before[sample.node] = now
        if before is None or sample.cpu is None or now[0] <= before[0]:
            return sample
        steal = min(max((now[1] - before[1]) / (now[0] - before[0]), 0.0), 1.0)
        absent = {name: why for name, why in sample.absent.items() if name != "cpu.steal"}
        return msgspec.structs.replace(sample, cpu=msgspec.structs.replace(sample.cpu, steal=steal), absent=absent)

    def _run(self) -> None:
        asyncio.run(self._pass_on())

    async def _pass_on(self) -> None:
        inward = await self._connected(BusSettings(f"nats://{LISTEN}"), "lab-steal-in")
        for node in self._tasks:
            settings = bus.as_node(bus.SITE, node, bus.SITE.bus.address)
            self._outward[node] = await self._connected(settings, f"lab-steal-{node}")
        await inward.subscribe("sample", self._take)
        await asyncio.to_thread(self._end.wait)
        for connection in (inward, *self._outward.values()):
            await connection.close()

    async def _connected(self, settings: BusSettings, name: str) -> Bus:
        while True:
            try:
                return await Bus.connect(settings, name)
            except BusError:
                if self._end.is_set():
                    raise
                await asyncio.sleep(RETRY_S)

    def _take(self, sample: Sample) -> None:
        if sample.node in self._outward:
            task = asyncio.create_task(self._outward[sample.node].publish(self.with_steal(sample)))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
