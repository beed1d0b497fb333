"""A real cgroup with a process in it, for the knobs of CPU time and cores."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from slackwater_lab.cluster.cgroups import Cgroups
from slackwater_lab.cluster.paths import LabError
from tests.support.real_wsengine import PROGRAM, wait_for

PERIOD_US = 50_000


def lacks() -> str:
    """Why there are no cgroups to make here; empty: there are."""
    if os.geteuid() != 0:
        return "needs root, to make cgroups"
    try:
        return "" if Cgroups.of_this_machine().writable() else "cgroups cannot be made here"
    except LabError as error:
        return str(error)


needs_cgroups = [
    pytest.mark.lab,
    pytest.mark.skipif(PROGRAM is None, reason="slackwater-wsengine is not built"),
    pytest.mark.skipif(bool(lacks()), reason=lacks()),
]


def remove(place: Path) -> None:
    wait_for(lambda: not (place / "cgroup.procs").read_text(), "the cgroup is empty")
    place.rmdir()


class Guest:
    """A cgroup with a process that sleeps in it, of 0.4 core; on version 1 also one for its cores."""

    def __init__(self, name: str, quota_cores: float | None = 0.4) -> None:
        self.name = name
        self.cgroups = Cgroups.of_this_machine()
        self.disables = self._enable_cpuset()
        self.cgroups.make(name, quota_cores=quota_cores)
        self.cpu = self.cgroups.roots[0] / name
        self.process = subprocess.Popen(["sleep", "600"])
        places = self.cgroups.procs_files(name)
        self.cpuset = self._cpuset()
        if self.cpuset is not None and self.cpuset != self.cpu:
            places.append(str(self.cpuset / "cgroup.procs"))
        for place in places:
            Path(place).write_text(str(self.process.pid))

    def _enable_cpuset(self) -> Path | None:
        """On version 2, where nobody has: the file in which it is switched off again."""
        control = self.cgroups.roots[0] / "cgroup.subtree_control"
        controllers = control.with_name("cgroup.controllers")
        if self.cgroups.version == 1 or "cpuset" not in controllers.read_text().split():
            return None
        if "cpuset" in control.read_text().split():
            return None
        control.write_text("+cpuset")
        return control

    def _cpuset(self) -> Path | None:
        """Version 1 has a tree of its own for cores, whose new folders are empty."""
        if self.cgroups.version == 2:
            return self.cpu if (self.cpu / "cpuset.cpus").exists() else None
        root = Path("/sys/fs/cgroup/cpuset")
        if not (root / "cpuset.cpus").exists():
            return None
        place = root / self.name
        place.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            (place / file).write_text((root / file).read_text())
        return place

    def share(self) -> tuple[int, int]:
        """Weight and quota, as the kernel shows them."""
        if self.cgroups.version == 2:
            return int((self.cpu / "cpu.weight").read_text()), int((self.cpu / "cpu.max").read_text().split()[0])
        return int((self.cpu / "cpu.shares").read_text()), int((self.cpu / "cpu.cfs_quota_us").read_text())

    def quota_percent(self) -> int | None:
        """The quota in percent of one core; None: there is none."""
        if self.cgroups.version == 2:
            quota, period = (self.cpu / "cpu.max").read_text().split()
        else:
            quota, period = ((self.cpu / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return None if quota in ("max", "-1") else round(100 * int(quota) / int(period))

    def set_quota_percent(self, percent: int) -> None:
        """Sets the quota, as an operator does."""
        if self.cgroups.version == 2:
            period = (self.cpu / "cpu.max").read_text().split()[1]
            (self.cpu / "cpu.max").write_text(f"{percent * int(period) // 100} {period}")
        else:
            period = (self.cpu / "cpu.cfs_period_us").read_text()
            (self.cpu / "cpu.cfs_quota_us").write_text(str(percent * int(period) // 100))

    def cores(self) -> int:
        """On how many cores the kernel lets the process run."""
        return len(os.sched_getaffinity(self.process.pid))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for place in (self.cpuset, *(root / self.name for root in self.cgroups.roots)):
            if place is not None and place.exists():
                remove(place)
        if self.disables is not None:
            self.disables.write_text("-cpuset")
