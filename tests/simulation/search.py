"""Runs many schedules, and says which of them break an invariant. The same seed gives the same schedule."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.queues import SimpleQueue
from multiprocessing.util import Finalize
from pathlib import Path

from tests.simulation.takeover import BrokenError, Takeover
from tests.simulation.world import World

MEMORY = Path("/dev/shm")  # the simulated disks: files that need no disk
A_PROCESS = 50
"""Schedules that a process runs before it ends. Crashed coroutines are garbage in cycles, and to end the process is
quicker than to collect it."""


@dataclass(frozen=True)
class Outcome:
    """One schedule."""

    seed: int
    broken: str
    """The invariant that did not hold, in words; empty: all held."""
    story: list[tuple[float, str, str]] = field(default_factory=list)
    """When (simulated seconds), who, what."""


@dataclass(frozen=True)
class Result:
    """Many schedules."""

    schedules: int
    took_s: float
    broken: list[Outcome]
    """The broken outcomes, in the order of their seeds."""


def run_one(seed: int, *, with_logs: bool = False) -> Outcome:
    """One schedule with its story, to which `with_logs` adds what the parts log."""
    with _quiet(), tempfile.TemporaryDirectory(dir=_folder(), prefix="slackwater-protocols-") as disk:
        return _run(seed, Path(disk), with_logs)


def search(
    seed: int, schedules: int, processes: int, stop_at: int = 10, progress: Callable[[int], object] = lambda _: None
) -> Result:
    """The schedules `seed`, `seed` + 1, ... in several `processes`, until `stop_at` of them broke something.

    `progress` hears how many more are done.
    """
    began_s = time.monotonic()
    broken: list[Outcome] = []
    done = 0
    parts = [(first, min(A_PROCESS, seed + schedules - first)) for first in range(seed, seed + schedules, A_PROCESS)]
    context = multiprocessing.get_context("fork")
    free = context.SimpleQueue()
    ours = sorted(os.sched_getaffinity(0))
    for number in range(processes):
        free.put(ours[number % len(ours)])
    with (
        tempfile.TemporaryDirectory(dir=_folder(), prefix="slackwater-protocols-") as disk,
        context.Pool(processes, _begin_process, (free,), maxtasksperchild=1) as pool,
    ):
        for (_, length), part in zip(parts, pool.imap(partial(_run_part, Path(disk)), parts), strict=False):
            done += length
            broken += part
            progress(length)
            if len(broken) >= stop_at:
                break
    return Result(done, time.monotonic() - began_s, broken)


def _folder() -> Path | None:
    return MEMORY if os.access(MEMORY, os.W_OK) else None


def _begin_process(free: SimpleQueue[int]) -> None:
    """Each on a processor of its own: threads of a simulation take turns, which is slow across processors."""
    processor = free.get()
    Finalize(None, free.put, (processor,), exitpriority=0)
    os.sched_setaffinity(0, {processor})
    gc.disable()
    _ignore_what_crashed()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What crashed coroutines would print when Python finds them unfinished is of no interest."""
    hook, disabled = sys.unraisablehook, logging.root.manager.disable
    with warnings.catch_warnings():
        _ignore_what_crashed()
        try:
            yield
        finally:
            gc.collect()
            sys.unraisablehook = hook
            logging.disable(disabled)


def _ignore_what_crashed() -> None:
    """Without an event loop its `finally` cannot begin anything, which that loop would then keep."""
    asyncio.set_event_loop(None)
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None
    logging.disable(logging.CRITICAL)


def _run_part(disk: Path, part: tuple[int, int]) -> list[Outcome]:
    first, length = part
    outcomes = [_run(seed, disk, with_logs=False) for seed in range(first, first + length)]
    return [outcome for outcome in outcomes if outcome.broken]


_folders = itertools.count()


def _run(seed: int, disk: Path, with_logs: bool) -> Outcome:
    world, folder = World(seed), disk / f"{os.getpid()}-{next(_folders)}"
    with _logs_into(world) if with_logs else contextlib.nullcontext():
        try:
            Takeover(world, folder).run()
        except BrokenError as error:
            return Outcome(seed, str(error), world.story)
        finally:
            world.close()
            shutil.rmtree(folder)
    return Outcome(seed, "", world.story)


@contextlib.contextmanager
def _logs_into(world: World) -> Iterator[None]:
    class ToStory(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            who = world.running.name if world.running is not None else "world"
            world.tell(who, f"logs: {record.getMessage()}")

    handler, root = ToStory(), logging.getLogger("lbengine")
    level, disabled = root.level, logging.root.manager.disable
    logging.disable(logging.NOTSET)
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        logging.disable(disabled)
