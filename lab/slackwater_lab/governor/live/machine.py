"""What a policy sets and sees on a host of the lab: cores, and a quota of CPU time that stands in for a clock.

A core at the highest clock is a share of a core's time here, so that the load generator has room beside it. At a lower
clock it is less of it, in the same ratio. The service and the batch job have a cgroup each. The batch job runs on the
cores that the service leaves. Where it leaves none, the batch job runs on all of them, with the smallest weight.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater.governor.types import Action
from slackwater_lab.cluster.cgroups import Cgroups

BATCH_WEIGHT, LEAST_WEIGHT = 100, 1


@dataclass(frozen=True)
class Place:
    """Where a service and its batch job are, and what a core is worth."""

    service: str
    """The service's cgroup; paths are below the controller's root."""
    batch: str
    service_cpuset: str
    """File with its cores."""
    batch_cpuset: str
    processors: tuple[int, ...]
    """Processors of this machine; a policy's core 0 is the first of them."""
    core_share: float
    """Share of a processor's time that a core at the highest clock has."""
    period_s: float
    """Period of the quota."""


class ServingHost:
    """Sets Actions; `max_mhz` is what the clocks of an Action are shares of."""

    def __init__(self, cgroups: Cgroups, place: Place, max_mhz: float, pinned: Sequence[int] = ()) -> None:
        """`pinned`: processes of the service that are pinned to a core each, in this order."""
        self._cgroups, self._place, self._max_mhz, self._pinned = cgroups, place, max_mhz, pinned
        self.allowed_cores = 0.0
        """CPU time that the service may use in a second, in s."""
        self._cores: tuple[int, ...] = ()

    def set(self, action: Action) -> None:
        """Raises OSError."""
        place = self._place
        if action.cores != self._cores:
            own = [place.processors[core] for core in action.cores]
            others = [processor for processor in place.processors if processor not in own]
            writes = [
                (place.service_cpuset, own),
                (place.batch_cpuset, others or list(place.processors)),
            ]
            # Who gives cores away goes first.
            for file, processors in writes if len(own) < len(self._cores) else reversed(writes):
                Path(file).write_text(",".join(map(str, processors)))
            self._cgroups.make(place.batch, weight=BATCH_WEIGHT if others else LEAST_WEIGHT)
            for number, pid in enumerate(self._pinned):
                os.sched_setaffinity(pid, {own[number % len(own)]})
            self._cores = action.cores
        self.allowed_cores = place.core_share * sum(action.clocks_mhz) / self._max_mhz
        self._cgroups.make(place.service, quota_cores=self.allowed_cores, period_s=place.period_s)

    def service_cpu_s(self) -> float:
        """CPU time that the service used so far."""
        return self._cgroups.cpu_s(self._place.service)

    def batch_cpu_s(self) -> float:
        return self._cgroups.cpu_s(self._place.batch)


def waited_s(pids: Iterable[int], proc: Path = Path("/proc")) -> float:
    """How long all threads of the processes waited for a core since their start (sched-stats of the kernel)."""
    total_ns = 0
    for pid in pids:
        for file in (proc / str(pid) / "task").glob("*/schedstat"):
            try:
                total_ns += int(file.read_text().split()[1])
            except OSError:  # the thread has ended
                continue
    return total_ns / 1e9
