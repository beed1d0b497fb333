"""Simulated time and processes. One seed gives one schedule: which process goes on next, and how long all takes.

Each process has an event loop of its own, with its own clock, and runs real code. A process goes on alone until its
next `await` (or, in an engine's thread, until it waits for the balancer). There it may be frozen, or crash: then it is
dropped as it stands.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.strands import Crashed, Strand

NO_FAULT: tuple[int, Callable[[], None]] = (1 << 60, lambda: None)


class Handle:
    """A callback of one process that is due, or will be."""

    __slots__ = ("_when_s", "arguments", "callback", "context", "is_cancelled", "process")

    def __init__(
        self,
        process: Process,
        callback: Callable[..., Any],
        arguments: tuple[Any, ...],
        when_s: float,
        context: contextvars.Context | None,
    ) -> None:
        self.process, self.callback, self.arguments = process, callback, arguments
        self.context = context
        self._when_s = when_s
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        """The time by its process's clock."""
        return self._when_s


class World:
    """The processes and what they have in common: the time, the order, the story."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.story: list[tuple[float, str, str]] = []
        """(seconds, process, event)"""
        self.running: Process | None = None
        self.strand: Strand | None = None
        """The thread that runs now, if one does."""
        self._processes: list[Process] = []
        self._timers: list[tuple[float, int, Handle]] = []
        self._numbers = itertools.count()
        self._outside = Process(self, "world")  # type: ignore[abstract]  # it has what asyncio's own code uses

    def tell(self, who: str, event: str) -> None:
        """Adds an event of a process to the story."""
        self.story.append((self.now_s, who, event))

    def at(
        self, when_s: float, callback: Callable[..., Any], *arguments: Any, process: Process | None = None
    ) -> Handle:
        """Has something happen at a time: outside of all processes, or in one as far as it lives and is not frozen."""
        owner = process or self._outside
        handle = Handle(owner, callback, arguments, when_s + owner.clock_offset_s, None)
        self.push(when_s, handle)
        return handle

    def push(self, when_s: float, handle: Handle) -> None:
        heapq.heappush(self._timers, (when_s, next(self._numbers), handle))

    def add(self, process: Process) -> None:
        self._processes.append(process)

    def remove(self, process: Process) -> None:
        if process in self._processes:
            self._processes.remove(process)

    def run(self, until_s: float) -> None:
        """Everything that is due until then, in an order that the seed gives."""
        try:
            self._run(until_s)
        finally:
            self.running = None
            asyncio._set_running_loop(None)

    def _run(self, until_s: float) -> None:
        while True:
            due = [process for process in self._processes if process.ready and not process.is_frozen]
            if due:
                process = due[0] if len(due) == 1 else due[int(self.random.random() * len(due))]
                process.step()
                continue
            if not self._timers or self._timers[0][0] > until_s:
                self.now_s = until_s
                return
            self.now_s = max(self.now_s, self._timers[0][0])
            while self._timers and self._timers[0][0] <= self.now_s:
                _, _, handle = heapq.heappop(self._timers)
                if not handle.is_cancelled:
                    handle.process.ready.append(handle)

    def close(self) -> None:
        """Ends all processes as if they crashed."""
        for process in list(self._processes):
            process.crash()


class Process(asyncio.AbstractEventLoop):
    """One simulated process: its event loop, clock and threads."""

    def __init__(self, world: World, name: str, clock_offset_s: float = 0.0) -> None:
        self.world, self.name, self.clock_offset_s = world, name, clock_offset_s
        self.ready: deque[Handle] = deque()
        self.is_frozen = False
        self.is_alive = True
        self.ended: Callable[[], None] = lambda: None
        """Called when the main coroutine has ended by itself."""
        self.failures: list[BaseException] = []
        self.steps = 0
        self.at_step = NO_FAULT
        """What happens to it before this step of its own."""
        self.main: asyncio.Task[Any] | None = None
        self._strands: list[Strand] = []
        self._tasks: list[asyncio.Task[Any]] = []
        world.add(self)

    # --- what happens to it

    def start(self, main: Coroutine[Any, Any, Any]) -> None:
        """Begins its main coroutine."""
        self.main = self.create_task(main)
        self.main.add_done_callback(self._main_ended)

    def _main_ended(self, main: asyncio.Task[Any]) -> None:
        if not main.cancelled() and (error := main.exception()) is not None:
            self.failures.append(error)
        self.ended()

    def step(self) -> None:
        """Goes on until its next await."""
        self.steps += 1
        if self.steps >= self.at_step[0]:
            happens = self.at_step[1]
            self.at_step = NO_FAULT
            happens()
            if self.is_frozen or not self.is_alive:
                return
        handle = self.ready.popleft()
        if handle.is_cancelled:
            return
        if self.world.running is not self:
            self.world.running = self
            asyncio._set_running_loop(self)
        if handle.context is None:
            handle.callback(*handle.arguments)
        else:
            handle.context.run(handle.callback, *handle.arguments)

    def freeze(self, for_s: float) -> None:
        """Stops it as SIGSTOP does, or as a machine that is held up: its clock goes on."""
        self.is_frozen = True
        self.world.at(self.world.now_s + for_s, self._thaw)

    def _thaw(self) -> None:
        self.is_frozen = False

    def crash(self) -> None:
        """Drops it as it stands: nothing of it goes on, not even its `finally` has any effect."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.world.remove(self)
        self.ready.clear()
        for strand in self._strands:
            strand.crash()
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._strands.clear()
        self._tasks.clear()

    def check(self) -> None:
        """Whatever leaves the process calls this first: a process that is no more has no effect."""
        if not self.is_alive:
            raise Crashed

    # --- its threads

    def in_thread(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Runs a function in a thread, which may `sleep`; then calls `done` in the event loop."""
        strand = Strand.begin(work)
        self._strands.append(strand)

        def go_on() -> None:
            self.world.strand = strand
            strand.go_on()
            self.world.strand = None
            if strand.is_done:
                self._strands.remove(strand)
                result, error = strand.outcome()
                if self.is_alive:
                    done(result, error)

        strand.waker = go_on
        go_on()

    def sleep(self, seconds: float) -> None:
        """From within a thread of it: the rest of the process goes on meanwhile. Elsewhere it takes no time."""
        strand = self.world.strand
        if strand is None:
            return
        self.world.at(self.world.now_s + seconds, strand.waker, process=self)
        strand.pause()

    # --- the event loop

    def time(self) -> float:
        return self.world.now_s + self.clock_offset_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(self, callback, args, 0.0, context)
        if self.is_alive:
            self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(self, callback, args, when, context)
        if self.is_alive:
            self.world.push(when - self.clock_offset_s, handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        if len(self._tasks) > 64:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """`asyncio.to_thread` comes here: for work that waits for nothing simulated, so that it needs no thread."""
        del executor
        future = self.create_future()

        def work() -> None:
            if future.done():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # whoever waits for it gets it
                future.set_exception(error)

        self.call_soon(work)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self.is_alive

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a task raised and nobody awaited."""
        error = context.get("exception")
        if self.is_alive and isinstance(error, Exception):
            self.failures.append(error)
