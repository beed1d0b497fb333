"""How busy the lab's machine itself is, and how long a host's process waits for it: where it is too small for the lab,
hosts wait for each other.

On each processor a probe, a process of a host's weight, sleeps and wakes; the kernel counts how long it waited for the
processor (/proc/PID/schedstat: kernel documentation, scheduler/sched-stats.rst). No quota of a host is in that figure.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple, Self

from slackwater_lab.cluster.hosts import TOP
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.paths import LAB_DIR, LabError, system_program
from slackwater_lab.cluster.spawn import Program, placed

PROBE = f"{TOP}/probe"
SLEEPS = "import time\nwhile True: time.sleep(0.02)"


class Ticks(NamedTuple):
    """Clock ticks of all processors since the start."""

    busy: int
    """What the hypervisor took included."""
    low: int
    """Those of them in which a program of a lower priority ran, which gives way to the lab."""
    whole: int


class Load(NamedTuple):
    """The load of this machine in a while."""

    busy_share: float
    """Share of the processors' time, what the hypervisor took included."""
    low_share: float
    """The part of it of programs of a lower priority."""
    wait_ms: float
    """Mean wait of the probe for its processor, each time it woke; on the worst processor."""


def parse_stat(text: str) -> Ticks:
    """The ticks of /proc/stat (proc(5))."""
    line = next(line for line in text.splitlines() if line.startswith("cpu "))
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, line.split()[1:9])
    busy = user + nice + system + irq + softirq + steal
    return Ticks(busy, nice, busy + idle + iowait)


def parse_schedstat(text: str) -> tuple[int, int]:
    """Nanoseconds that a process waited for a processor, and how often it got one."""
    _, waited_ns, times = map(int, text.split())
    return waited_ns, times


class MachineLoad:
    """The probes and the processors' counters, while it is entered."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._probes: list[Program] = []

    def __enter__(self) -> Self:
        self._lab.cgroups.make(PROBE)
        taskset = system_program("taskset")
        for processor in sorted(os.sched_getaffinity(0)):
            argv = [taskset, "--cpu-list", str(processor), sys.executable, "-I", "-S", "-c", SLEEPS]
            wrapped = placed(argv, self._lab.cgroups.procs_files(PROBE))
            probe = Program.start(f"probe of processor {processor}", wrapped, LAB_DIR / "probe.log")
            self._probes.append(self._lab.add(probe))
        self._before = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        for probe in self._probes:
            probe.stop()
            self._lab.programs.remove(probe)

    def _read(self) -> tuple[Ticks, list[tuple[int, int]]]:
        try:
            waits = [
                parse_schedstat(Path(f"/proc/{probe.process.pid}/schedstat").read_text()) for probe in self._probes
            ]
        except OSError as error:
            raise LabError(f"how long a process waits for a processor cannot be read: {error}") from None
        return parse_stat(Path("/proc/stat").read_text()), waits

    def since_last(self) -> Load:
        """Since the last call, or the begin. Raises LabError."""
        ticks, waits = now = self._read()
        ticks_before, waits_before = self._before
        self._before = now
        means_ms = [
            (waited_ns - earlier_ns) / max(1, times - before) / 1e6
            for (waited_ns, times), (earlier_ns, before) in zip(waits, waits_before, strict=True)
        ]
        busy, low, whole = (after - before for after, before in zip(ticks, ticks_before, strict=True))
        return Load(busy / max(1, whole), low / max(1, whole), max(means_ms))
