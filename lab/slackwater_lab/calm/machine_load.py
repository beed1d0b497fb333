"""Whether the lab's machine is itself too small for the lab: then hosts wait for each other, which is no calm.

On each processor a probe, a process of a host's weight, sleeps and wakes; the kernel counts how long it waited for the
processor (/proc/PID/schedstat: kernel documentation, scheduler/sched-stats.rst). No quota of a host is in that figure.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from slackwater_lab.cluster.hosts import TOP
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.paths import LAB_DIR, LabError, system_program
from slackwater_lab.cluster.spawn import Program, placed

SLICE_S = 10.0
"""A slice counts or not as a whole."""
MOST_BUSY = 0.8
"""Share of the processors' time in a slice, what the hypervisor took included."""
MOST_WAIT_MS = 2.0
"""Mean wait of a probe for its processor, each time it wakes: about what a request takes of it."""
MOST_LATE_S = 1.0
PROBE = f"{TOP}/probe"
SLEEPS = "import time\nwhile True: time.sleep(0.02)"
RULE = (
    f"A slice of {SLICE_S:g} s counts when, in it and in the one before, the processors of the machine were busy for at"
    f" most {MOST_BUSY:.0%} of the time (what the hypervisor took included), and a process with a host's weight waited"
    f" at most {MOST_WAIT_MS:g} ms for a processor each time it woke, in the mean, on each processor; and the lab's own"
    f" program was at most {MOST_LATE_S:g} s late. Else the hosts were neighbours of each other."
)


@dataclass(frozen=True)
class SliceLoad:
    """The load of this machine in a slice."""

    busy_share: float
    wait_ms: float
    """On the worst processor."""
    late_s: float = 0.0
    """The longest delay of the lab's own program behind its plan."""

    @property
    def carried(self) -> bool:
        """Whether the machine carried it without hosts waiting for each other."""
        return self.busy_share <= MOST_BUSY and self.wait_ms <= MOST_WAIT_MS and self.late_s <= MOST_LATE_S


def parse_stat(text: str) -> tuple[int, int]:
    """Busy and all clock ticks of all processors since the start (proc(5), /proc/stat)."""
    line = next(line for line in text.splitlines() if line.startswith("cpu "))
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, line.split()[1:9])
    busy = user + nice + system + irq + softirq + steal
    return busy, busy + idle + iowait


def parse_schedstat(text: str) -> tuple[int, int]:
    """Nanoseconds that a process waited for a processor, and how often it got one."""
    _, waited_ns, times = map(int, text.split())
    return waited_ns, times


class MachineLoad:
    """The probes and the processors' counters, from slice to slice."""

    def __init__(self, lab: Lab) -> None:
        lab.cgroups.make(PROBE)
        taskset = system_program("taskset")
        self._probes = []
        for processor in sorted(os.sched_getaffinity(0)):
            argv = [taskset, "--cpu-list", str(processor), sys.executable, "-I", "-S", "-c", SLEEPS]
            wrapped = placed(argv, lab.cgroups.procs_files(PROBE))
            probe = Program.start(f"probe of processor {processor}", wrapped, LAB_DIR / "probe.log")
            self._probes.append(lab.add(probe))
        self._before = self._read()

    def _read(self) -> tuple[tuple[int, int], list[tuple[int, int]]]:
        try:
            waits = [
                parse_schedstat(Path(f"/proc/{probe.process.pid}/schedstat").read_text()) for probe in self._probes
            ]
        except OSError as error:
            raise LabError(f"how long a process waits for a processor cannot be read: {error}") from None
        return parse_stat(Path("/proc/stat").read_text()), waits

    def slice(self, late_s: float) -> SliceLoad:
        """Since the last call."""
        (busy, ticks), waits = now = self._read()
        (busy_before, ticks_before), waits_before = self._before
        self._before = now
        means_ms = [
            (waited_ns - earlier_ns) / max(1, times - before) / 1e6
            for (waited_ns, times), (earlier_ns, before) in zip(waits, waits_before, strict=True)
        ]
        return SliceLoad((busy - busy_before) / max(1, ticks - ticks_before), max(means_ms), late_s)
