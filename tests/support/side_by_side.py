"""Which tests must not run at the same time, when pytest runs them in several processes (`pytest --numprocesses`)."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from slackwater_lab.cluster.cgroups import Cgroups
from tests.support.real_cgroup import lacks

MACHINE = "machine"
"""Those that use what a machine has once: the lab's names, its cgroups, the IP_VS guest."""
ROLLOUTS = "rollouts"
"""Rollouts and clean installs, on whole systems with names and a network of their own. A file's mark `xdist_group`
puts it here, so that an hour of them passes beside the lab's."""
LOW_WEIGHT = 10
"""A tenth of a cgroup's usual weight."""
FOLDER = "slackwater_turns"
FIXTURES = {"running_guest"}


def register(config: pytest.Config) -> None:
    """In one process nothing changes."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    config.pluginmanager.register(Groups())
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Turns(Path(config.workerinput[FOLDER])))
        if not lacks():
            config.pluginmanager.register(LowWeight(Cgroups.of_this_machine()))
    else:
        config.pluginmanager.register(PlaceOfTurns())


class Groups:
    """A plugin. A group's tests run in one process, one after the other: those of `MACHINE`, those that a file puts
    into a group, and those of each other file. What takes longest begins first: `MACHINE`, `ROLLOUTS`, then the group
    of most tests (with `--no-loadscope-reorder`)."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if item.get_closest_marker("xdist_group") is None:
                file = item.nodeid.partition("::")[0]
                item.add_marker(pytest.mark.xdist_group(MACHINE if _uses_machine(item) else file))
        tests = Counter(map(_group, items))
        items.sort(key=lambda item: (_group(item) != MACHINE, _group(item) != ROLLOUTS, -tests[_group(item)]))


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0]) if mark else ""


def _uses_machine(item: pytest.Item) -> bool:
    return item.get_closest_marker("lab") is not None or not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


class PlaceOfTurns:
    """A plugin of the process that starts the others: it gives all of them one folder."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="slackwater-turns-")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[FOLDER] = self.folder.name

    def pytest_unconfigure(self) -> None:
        self.folder.cleanup()


class Turns:
    """A plugin. While a test that is marked `alone` runs, the other processes wait before their next test."""

    def __init__(self, folder: Path) -> None:
        self.door, self.room = folder / "door", folder / "room"

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest-timeout's, which shall not count the waiting
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with self.turn(alone=item.get_closest_marker("alone") is not None):
            return (yield)

    @contextmanager
    def turn(self, *, alone: bool) -> Iterator[None]:
        """Whoever waits for an empty room holds the door, so that nobody else goes in before it."""
        with self.room.open("w") as room:
            with self.door.open("w") as door:
                fcntl.flock(door, fcntl.LOCK_EX)
                fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield


class LowWeight:
    """A plugin. A slow test that is not of `MACHINE`, and what it starts, run in a cgroup of low weight. The lab's
    stories beside it are about what happens within seconds; such a test takes all the CPU time that there is, and
    waits for events."""

    def __init__(self, cgroups: Cgroups) -> None:
        self.cgroups = cgroups
        self.usual, self.low = self._own_path(), f"slow-tests-{os.getpid()}"

    def _own_path(self) -> str:
        lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
        controller = "cpu" if self.cgroups.version == 1 else ""
        return next(path for _, names, path in lines if controller in names.split(",")).lstrip("/")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if item.get_closest_marker("slow") is None or _group(item) == MACHINE:
            return (yield)
        self.cgroups.make(self.low, weight=LOW_WEIGHT)
        self._move(os.getpid(), self.low)
        try:
            return (yield)
        finally:
            self._move(os.getpid(), self.usual)

    def _move(self, pid: int, path: str) -> None:
        (self.cgroups.roots[0] / path / "cgroup.procs").write_text(str(pid))

    def pytest_sessionfinish(self) -> None:
        for pid in self.cgroups.pids(self.low):  # such as connections that ssh keeps for the next command
            with suppress(ProcessLookupError):
                self._move(pid, self.usual)
        self.cgroups.remove(self.low)
