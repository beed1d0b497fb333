"""CPU starvation: is a node short of CPU that somebody else takes? Judged by its own Samples, without its peers.

The detector judges a node against the others of its pool. When all hosts are noisy there is no other to compare with.
So the second stage looks for the sign that a neighbour cannot hide: threads take longer for the same work, on a CPU
that this work does not fill.

Where the neighbour waits in the same kernel's run queue, threads wait. In a virtual machine the hypervisor reports the
time that it takes away as steal, or it is counted as the CPU time of whoever was running. So a request that costs more
CPU time than in calm tells how much of the time in use is the server's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.core.messages import Sample

FULL = 0.8
"""Above this share of its CPU a server's own load explains its waiting."""
FULL_TO_LEAVE = 0.9
"""The same for a node that is starved already: the retuning itself wins some of the CPU back."""
LONGER = 1.8
"""Threads must take this many times as long for the same work as in calm."""
NO_CALM = 1.4
"""Threads that take this many times as long, or longer, teach no calm."""
UNKNOWN_STRETCH = 3.0
"""A node's calm stretch until its own is known."""
SMOOTH_S = 5.0
"""Time constant of the means; single Samples of 0.2 s are coarse."""
CAP = 4.0
"""A Sample counts as this many times longer than in calm at most: one hiccup is no neighbour, and a neighbour that has
gone is soon forgotten."""
CALM_S = 60.0
"""Time constant of the means of calm."""
CALM_KNOWN_S = 15.0
"""After this much of it calm is known."""
CALM_ANYWAY_S = 1800.0
"""Time constant where it is not calm: requests that are dearer for good are a new normal."""
LEAST_USED = 0.05
"""Share of a CPU. With less in use, other programs of the node make its few threads wait."""


def _toward(mean: float, value: float, period_s: float, over_s: float) -> float:
    return mean + min(1.0, period_s / over_s) * (value - mean)


@dataclass
class CpuStarvation:
    """One node's means: CPU used over what it may use, threads waiting per core that it may use."""

    used: float | None = None
    """By the server itself: without steal, and without the time that its requests did not cost in calm."""
    waiting: float = 0.0
    """Threads per core that wait for a CPU, in the node's own kernel or for the hypervisor, and the time in use that is
    not the server's own."""
    starved: bool = False
    _counted: float = 0.0
    """CPU used as the kernel counts it, without steal."""
    _queued: float = 0.0
    _steal: float = 0.0
    _cost_s: float | None = None
    """CPU seconds per request."""
    _calm_cost_s: float = 0.0
    _calm_stretch: float = 1.0
    _calm_used: float = 0.0
    _calm_for_s: float = 0.0

    def see(self, sample: Sample) -> None:
        """Takes a Sample into account; one that lacks CPU or run delay leaves all as it is."""
        cpu, sched, period_s = sample.cpu, sample.sched, sample.period_s
        if cpu is None or sched is None or cpu.utilisation is None or sched.run_delay_s_per_s is None:
            return
        # Stolen time counts as used in `utilisation`, though somebody else took it.
        steal = cpu.steal or 0.0
        counted, queued = max(0.0, cpu.utilisation - steal), sched.run_delay_s_per_s / max(cpu.cores or 1.0, 0.05)
        first = self.used is None
        over_s = period_s if first else SMOOTH_S
        self._counted = _toward(self._counted, counted, period_s, over_s)
        if not first:
            queued = min(queued, CAP * self._expected() * max(self.used or 0.0, LEAST_USED))
        self._queued = _toward(self._queued, queued, period_s, over_s)
        self._steal = _toward(self._steal, steal, period_s, over_s)
        self._see_cost(sample)
        own = self._own_share()
        self.used = self._counted * own
        self.waiting = self._queued + self._steal + self._counted * (1.0 - own)
        stretch = stretch_of(self.used, self.waiting)
        self.starved = is_starved(self.used, stretch, self._expected(), FULL_TO_LEAVE if self.starved else FULL)
        self._learn(stretch, period_s)

    def _expected(self) -> float:
        """The stretch that its own load explains: as in calm, and longer where its CPU is fuller than then (M/M/1)."""
        if self._calm_for_s < CALM_KNOWN_S:
            return max(UNKNOWN_STRETCH, self._calm_stretch)
        free, calm_free = (max(1.0 - used, 1.0 - FULL_TO_LEAVE) for used in (self.used or 0.0, self._calm_used))
        return self._calm_stretch * max(1.0, calm_free / free)

    def _see_cost(self, sample: Sample) -> None:
        sched, traffic = sample.sched, sample.traffic
        if sched is None or sched.cpu_s_per_s is None or traffic is None or not traffic.rps:
            return
        cost_s = sched.cpu_s_per_s / traffic.rps
        if self._cost_s is None:
            self._cost_s = self._calm_cost_s = cost_s
        self._cost_s = _toward(self._cost_s, cost_s, sample.period_s, SMOOTH_S)

    def _own_share(self) -> float:
        """Share of the CPU time in use that its requests would have cost in calm."""
        return min(1.0, self._calm_cost_s / self._cost_s) if self._cost_s else 1.0

    def _learn(self, stretch: float, period_s: float) -> None:
        is_calm = not self.starved and (stretch < NO_CALM * self._expected() or self._calm_for_s < CALM_KNOWN_S)
        # A plain mean at first.
        over_s = min(CALM_S, max(period_s, self._calm_for_s)) if is_calm else CALM_ANYWAY_S
        self._calm_stretch = _toward(self._calm_stretch, stretch, period_s, over_s)
        self._calm_used = _toward(self._calm_used, self.used or 0.0, period_s, over_s)
        if self._cost_s is not None:
            self._calm_cost_s = _toward(self._calm_cost_s, self._cost_s, period_s, over_s)
        if is_calm:
            self._calm_for_s += period_s

    @property
    def severity(self) -> float:
        """Share of its CPU that it wants and does not get."""
        return 0.0 if self.used is None or not self.starved else min(1.0, max(0.0, 1.0 - self.used))


def stretch_of(used: float, waiting: float) -> float:
    """Time that threads take for a second of the server's own CPU time: at work, waiting, or stolen."""
    return (used + waiting) / max(used, LEAST_USED)


def is_starved(used: float, stretch: float, expected: float, full: float) -> bool:
    """Whether threads take longer than their own load explains, on a CPU that is not full."""
    return used <= full and stretch >= LONGER * expected
