"""Cgroups v1 and v2 behind one door: make with a quota, read CPU time, list and remove.

Files and units: kernel documentation, admin-guide/cgroup-v1/ and admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from slackwater_lab.cluster.paths import LabError

PERIOD_S = 0.05
"""CFS bandwidth period unless said otherwise; the kernel's default is twice as long (docs/decisions/0003)."""


@dataclass(frozen=True)
class Hierarchy:
    """Where the CPU controller is: v1 has one or two mounts (cpu, cpuacct), v2 one."""

    version: int
    roots: tuple[Path, ...]


def detect(mounts: str) -> Hierarchy:
    """Finds the CPU controller from the text of /proc/mounts; raises LabError, saying what is mounted instead."""
    v1: dict[str, Path] = {}
    v2: list[Path] = []
    for line in mounts.splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2":
            v2.append(Path(place))
        elif kind == "cgroup":
            for name in {"cpu", "cpuacct"} & set(options.split(",")):
                v1.setdefault(name, Path(place))
    for root in v2:
        controllers = root / "cgroup.controllers"
        if controllers.exists() and "cpu" in controllers.read_text().split():
            return Hierarchy(2, (root,))
    if len(v1) == 2:
        return Hierarchy(1, tuple(dict.fromkeys((v1["cpu"], v1["cpuacct"]))))
    seen = ", ".join([f"v2 without cpu at {root}" for root in v2] + [f"v1 {name} at {v1[name]}" for name in v1])
    raise LabError(f"no cgroup CPU controller here (found: {seen or 'no cgroup mounts'}); the lab needs v2's or v1's")


class Cgroups:
    """Makes and reads cgroups; paths are below the controller's root, such as `slackwater-lab/host1/vm`."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.version = hierarchy.version
        self.roots = hierarchy.roots

    @classmethod
    def of_this_machine(cls) -> Cgroups:
        return cls(detect(Path("/proc/mounts").read_text()))

    def writable(self) -> bool:
        return all(os.access(root, os.W_OK) for root in self.roots)

    def make(
        self,
        path: str,
        *,
        quota_cores: float | None = None,
        period_s: float = PERIOD_S,
        weight: int = 100,
        idle: bool = False,
    ) -> None:
        """Makes a cgroup (and its parents); `weight` as in v2, where 100 is the default.

        With a quota it gets so many cores on average, as `quota_cores` times `period_s` in each period. An `idle` one
        gets what no other wants, as SCHED_IDLE among processes: that class counts within a cgroup alone. Where the
        kernel cannot (before 5.15) it gets the least weight.
        """
        period_us = round(period_s * 1e6)
        for root in self.roots:
            place = root
            for part in Path(path).parts:
                if self.version == 2:
                    self._enable_cpu(place)
                place = place / part
                place.mkdir(exist_ok=True)
        cpu = self.roots[0] / path
        weight = 1 if idle else weight
        if idle and (cpu / "cpu.idle").exists():
            (cpu / "cpu.idle").write_text("1")
        elif self.version == 2:
            (cpu / "cpu.weight").write_text(str(weight))
        else:
            (cpu / "cpu.shares").write_text(str(round(1024 * weight / 100)))
        if quota_cores is None:
            return
        if self.version == 2:
            (cpu / "cpu.max").write_text(f"{round(quota_cores * period_us)} {period_us}")
        else:
            (cpu / "cpu.cfs_period_us").write_text(str(period_us))
            (cpu / "cpu.cfs_quota_us").write_text(str(round(quota_cores * period_us)))

    def _enable_cpu(self, place: Path) -> None:
        control = place / "cgroup.subtree_control"
        if "cpu" in control.read_text().split():
            return
        try:
            control.write_text("+cpu")
        except OSError as error:
            why = (
                "processes sit in this cgroup itself; move them to a child cgroup, or run the lab on the host"
                if error.errno == errno.EBUSY
                else str(error)
            )
            raise LabError(f"{control}: the CPU controller cannot be enabled for children: {why}") from None

    def procs_files(self, path: str) -> list[str]:
        """The files that a process writes its id into in order to join."""
        return [str(root / path / "cgroup.procs") for root in self.roots]

    def cpu_s(self, path: str) -> float:
        """CPU seconds that the cgroup and its children used so far."""
        if self.version == 2:
            pairs = (line.split() for line in (self.roots[0] / path / "cpu.stat").read_text().splitlines())
            return next(int(value) for key, value in pairs if key == "usage_usec") / 1e6
        return int((self.roots[-1] / path / "cpuacct.usage").read_text()) / 1e9

    def exists(self, path: str) -> bool:
        return any((root / path).exists() for root in self.roots)

    def pids(self, path: str) -> list[int]:
        """All processes in the cgroup and below."""
        members: set[int] = set()
        for root in self.roots:
            for file in (root / path).rglob("cgroup.procs") if (root / path).exists() else ():
                try:
                    members.update(int(line) for line in file.read_text().split())
                except OSError:  # the cgroup went away while we looked
                    continue
        return sorted(members)

    def clear(self, path: str, within_s: float) -> None:
        """Kills what runs in a cgroup, and removes it. Raises LabError when that has not ended by then."""
        until_s = time.monotonic() + within_s
        while self.exists(path):
            for pid in self.pids(path):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):  # busy until the last process is gone
                self.remove(path)
            if time.monotonic() > until_s:
                raise LabError(f"cgroup {path}: processes {self.pids(path)} do not end")
            time.sleep(0.02)

    def remove(self, path: str) -> None:
        """Removes an empty cgroup and those below it."""
        for root in self.roots:
            top = root / path
            if not top.exists():
                continue
            below = [folder for folder in top.rglob("*") if folder.is_dir()]
            for folder in [*sorted(below, key=lambda folder: -len(folder.parts)), top]:
                folder.rmdir()
