"""Who used a host's CPU while neighbours were loud: its server or its neighbour."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from slackwater_lab.cluster.hosts import Host


class CpuShare:
    """`cpu_s` gives the CPU seconds that a cgroup has used so far, `clock` seconds that never go back."""

    def __init__(
        self, cpu_s: Callable[[str], float], hosts: Sequence[Host], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cpu_s, self._hosts, self._clock = cpu_s, hosts, clock
        self._last: dict[str, tuple[float, float, float]] | None = None
        self.used = {host.name: {"vm_s": 0.0, "neighbour_s": 0.0, "loud_s": 0.0} for host in hosts}
        """CPU seconds of each host's server and neighbour while anybody was loud, and how long that was."""

    def turn(self, loud: bool) -> None:
        """Whether anybody is loud from now on."""
        now = {host.name: (self._cpu_s(host.vm), self._cpu_s(host.neighbour), self._clock()) for host in self._hosts}
        if self._last is not None:
            for name, used in self.used.items():
                for key, begin, end in zip(used, self._last[name], now[name], strict=True):
                    used[key] += end - begin
        self._last = now if loud else None
