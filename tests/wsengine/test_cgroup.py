"""`cpu.share` and `cpu.cores` on a real cgroup with a process in it: what the kernel makes of it, and the way back."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster.cgroups import Cgroups
from lab.cluster.paths import LabError
from tests.support.real_wsengine import PROGRAM, Controller, Engine, Nats, make_keys, wait_for

PERIOD_US = 50_000


def lacks() -> str:
    """Why there are no cgroups to make here; empty: there are."""
    if os.geteuid() != 0:
        return "needs root"
    try:
        return "" if Cgroups.of_this_machine().writable() else "cgroups cannot be made here"
    except LabError as error:
        return str(error)


pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(PROGRAM is None, reason="slackwater-wsengine is not built"),
    pytest.mark.skipif(bool(lacks()), reason=lacks()),
]


def remove(place: Path) -> None:
    wait_for(lambda: not (place / "cgroup.procs").read_text(), "the cgroup is empty")
    place.rmdir()


class Guest:
    """A cgroup of 0.4 core with a process that sleeps in it; on version 1 also one for its cores."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cgroups = Cgroups.of_this_machine()
        self.disables = self._enable_cpuset()
        self.cgroups.make(name, quota_cores=0.4)
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


@pytest.fixture
def guest() -> Iterator[Guest]:
    guest = Guest(f"slackwater-test-{os.getpid()}")
    yield guest
    guest.close()


@pytest.fixture
def control(tmp_path: Path, guest: Guest) -> Iterator[tuple[Controller, Engine]]:
    private, public = make_keys(tmp_path)
    nats = Nats(tmp_path / "nats")
    controller = Controller(nats.url, private)
    sections = f'[cpu]\ncgroup = "{guest.name}"\nshare = [10, 400]\ncores = [1, 64]\n'
    engine = Engine(tmp_path, nats.url, public, sections)
    engine.start()
    yield controller, engine
    engine.close()
    controller.close()
    nats.stop()


def test_weight_and_quota_of_a_real_cgroup_are_scaled_and_put_back(
    control: tuple[Controller, Engine], guest: Guest
) -> None:
    controller, engine = control
    weight, quota_us = guest.share()
    assert quota_us == 0.4 * PERIOD_US
    change = controller.order("cpu.share", 200)
    assert (change.before, change.after, change.applied) == (100, 200, True), change.why
    assert guest.share() == (2 * weight, 2 * quota_us)
    assert controller.order("cpu.share", 50).applied
    assert guest.share() == (weight // 2, quota_us // 2)
    assert engine.end() == 0
    assert guest.share() == (weight, quota_us)


def test_a_crash_leaves_the_share_for_the_next_start_to_put_back(
    control: tuple[Controller, Engine], guest: Guest
) -> None:
    controller, engine = control
    before = guest.share()
    assert controller.order("cpu.share", 300).applied
    engine.end(signal.SIGKILL)
    assert guest.share() != before
    engine.start()
    wait_for(lambda: guest.share() == before, "the share is as before")


def test_the_kernel_keeps_the_process_on_as_many_cores_as_ordered(
    control: tuple[Controller, Engine], guest: Guest
) -> None:
    if guest.cpuset is None:
        pytest.skip("no cpuset controller here")
    if guest.cores() < 2:
        pytest.skip("one core only")
    controller, engine = control
    all_of_them = guest.cores()
    change = controller.order("cpu.cores", 1)
    assert (change.before, change.after, change.applied) == (all_of_them, 1, True), change.why
    assert guest.cores() == 1
    assert engine.end() == 0
    assert guest.cores() == all_of_them
