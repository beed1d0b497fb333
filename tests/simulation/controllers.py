"""Simulated controllers: lbengine's own `drive`, `Driver`, `Ownership`, `Leases` and `Engine`, each in a process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from slackwater.core import machine
from slackwater.core.bus.bus import Bus
from slackwater.core.config import LbengineSettings
from slackwater.core.messages import Message
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.engine import Engine
from slackwater.lbengine.engine_thread import EngineThread
from slackwater.lbengine.hooks import Hooks
from slackwater.lbengine.service import Driver, drive
from tests.simulation.balancer import Connection, HAProxy
from tests.simulation.network import Broker, Link, SimulatedBus
from tests.simulation.world import Process, World

POOL = HAProxyPool(name="web", backend="web", socket="tcp://10.0.0.1:9999", allow_tcp_socket=True, mode="act")
SETTINGS = LbengineSettings(cycle_s=0.4)
PIDS = 8
"""Few, so that the same one is often found on several machines."""

Result = TypeVar("Result")


class SimulatedThread(EngineThread):
    """An `EngineThread` in a thread of the simulation."""

    def __init__(self, process: Process, haproxy: HAProxy) -> None:
        self._process, self._haproxy = process, haproxy
        self._queue: deque[tuple[partial[Any], asyncio.Future[Any]]] = deque()
        self._is_busy = False

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        future: asyncio.Future[Result] = self._process.create_future()
        self._queue.append((partial(work, *arguments), future))
        self._begin_next()
        return await future

    def _begin_next(self) -> None:
        while self._queue and not self._is_busy:
            work, future = self._queue.popleft()
            if not future.cancelled():
                self._is_busy = True
                begin = self._at_once if self._waits_for_nothing(work) else self._process.in_thread
                self._process.call_soon(begin, work, partial(self._done, future))

    def _waits_for_nothing(self, work: partial[Any]) -> bool:
        """Neither for the event loop nor, this time, for the balancer."""
        method, engine = getattr(work.func, "__func__", None), getattr(work.func, "__self__", None)
        if method is Engine.cycle and isinstance(engine, Engine):
            if engine.state.phase == "standby":
                return True
            # A baseline that is on the disk is not written again.
            return not self._haproxy.slow_s and engine.store.is_current() and self._process.world.random.random() < 0.7
        return method in (Engine.settle, Engine.stand_by)

    def _at_once(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """What no thread of the simulation is needed for, since threads take time."""
        try:
            result = work()
        except Exception as error:  # whoever waits for it gets it
            done(None, error)
        else:
            done(result, None)

    def _done(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._is_busy = False
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        self._begin_next()

    def wait_for(self, coroutine: Coroutine[Any, Any, Result], within_s: float) -> Result:
        if self._process.world.strand is None:
            coroutine.close()
            raise TimeoutError
        strand, process = self._process.world.strand, self._process
        tasks: list[asyncio.Task[Result]] = []
        is_late = False

        def begin() -> None:
            tasks.append(process.create_task(coroutine))
            tasks[0].add_done_callback(ended)

        def ended(_: object) -> None:
            if not is_late:
                timer.cancel()
                strand.waker()

        def expired() -> None:
            nonlocal is_late
            is_late = True
            for task in tasks:
                task.cancel()
            strand.waker()

        process.call_soon(begin)
        timer = process.call_later(within_s, expired)
        strand.pause()
        if is_late:
            raise TimeoutError
        return tasks[0].result()

    def shutdown(self) -> None:
        """Nothing of it is left when its work is done."""


class Records:
    """It stands in the journal's place, which is not tried here."""

    def record(self, *batch: Message, wait: bool = True) -> None:
        pass

    def force(self) -> None:
        pass


@dataclass
class Machine:
    """A machine, or a container with its own process ids: what outlives its processes."""

    name: str
    machine_id: str
    running: dict[int, Process] = field(default_factory=dict)
    """Process id -> the process. Containers with the same process ids share it."""
    boot: int = 1
    pid_namespace: int = 1

    def begin(self, process: Process) -> machine.Process:
        """The identity of a process that begins here. All machines have the same host name."""
        free = [pid for pid in range(1, PIDS + 1) if pid not in self.running]
        pid = process.world.random.choice(free)
        self.running[pid] = process
        space = f"{self.machine_id} {self.boot} pid:[{self.pid_namespace}]"
        return machine.Process("lb", space, pid, lambda pid: pid not in self.running)

    def end(self, process: Process) -> None:
        for pid in [pid for pid, running_process in self.running.items() if running_process is process]:
            del self.running[pid]


class Controller:
    """One controller: a machine, a disk, a link, and its lbengine, which is started again when it ends."""

    def __init__(
        self, world: World, name: str, on: Machine, disk: Path, broker: Broker, haproxy: HAProxy, clock_offset_s: float
    ) -> None:
        self.world, self.name, self.machine, self.disk = world, name, on, disk
        self.broker, self.haproxy, self.link = broker, haproxy, Link()
        self.clock_offset_s = clock_offset_s
        self.process: Process | None = None
        self.driver: Driver | None = None
        self.well_since_s = world.now_s
        """Since when nothing keeps it from leading."""
        self.is_connected = False
        """Its process has reached the bus since it started."""
        self.held_up_s = -1e9
        """When it was last frozen, or its link in trouble."""
        self._stop: asyncio.Event | None = None
        self._starts = 0
        disk.mkdir(parents=True, exist_ok=True)

    @property
    def owner(self) -> str:
        """Its own opinion: `ours`, `theirs`, `unknown`."""
        ownership = self.driver._ownership if self.driver is not None else None
        return ownership.lease.owner if ownership is not None else "unknown"

    def start(self) -> None:
        """Begins a new process, unless there is one."""
        if self.process is not None:
            return
        self._starts += 1
        name = f"{self.name}{self._starts}"
        process = Process(self.world, name, self.clock_offset_s)  # type: ignore[abstract]  # as in `World`
        self.process, self.is_connected = process, False
        process.ended = partial(self._ended, process)
        process.start(self._main(process, self.machine.begin(process)))
        self.world.tell(process.name, "starts")
        self.well_since_s = self.world.now_s

    async def _main(self, process: Process, identity: machine.Process) -> None:
        self._stop = asyncio.Event()
        engine = Engine(
            POOL,
            SETTINGS,
            self.disk,
            Records(),
            balancer=Connection(self.haproxy, process, self.name, SETTINGS.socket_timeout_s),
            wall=lambda: 1.8e9 + self.world.now_s,
        )
        hooks = Hooks([], 1.0, self.disk / "hooks.json", process.time)
        self.driver = Driver(engine, POOL, SETTINGS.cycle_s, hooks, SimulatedThread(process, self.haproxy), identity)
        await drive([self.driver], partial(self._connect, process), self._stop)

    async def _connect(self, process: Process) -> Bus:
        bus = await SimulatedBus.open(self.broker, process, self.link)
        self.is_connected = True
        return bus

    def stop(self) -> None:
        """SIGTERM."""
        if self.process is not None and self._stop is not None:
            self.process.call_soon(self._stop.set)

    def crash(self) -> None:
        """SIGKILL. It is not started again by itself."""
        if self.process is not None:
            self.world.tell(self.process.name, "crashes")
            self.process.crash()
            self._gone(self.process)

    def reboot(self) -> None:
        """A crash, after which process ids mean something else."""
        self.crash()
        self.machine.boot += 1

    def _ended(self, process: Process) -> None:
        self.world.tell(process.name, "has ended")
        process.crash()
        self._gone(process)
        self.world.at(self.world.now_s + 0.3, self.start)

    def _gone(self, process: Process) -> None:
        self.machine.end(process)
        self.process, self.driver, self._stop = None, None, None
