"""CPU starvation: is a node short of CPU that somebody else takes? Judged by its own Samples, without its peers.

The detector judges a node against the others of its pool. When all hosts are noisy there is no other to compare with,
so the second stage looks at what a neighbour cannot hide: threads wait for a CPU although they use less than is theirs.
A full server waits for itself too, but then its CPU is full.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.messages import Sample

FULL = 0.8
"""Above this share of its CPU a server's own load explains its waiting."""
FULL_TO_LEAVE = 0.9
"""Once starved, up to here: the retuning itself wins some of the CPU back."""
LONGER = 3.0
"""Threads must wait so many times longer than the same load makes them wait on a CPU of their own (M/M/1)."""
SMOOTH_S = 3.0
"""Time constant of the means; single Samples of 0.2 s are coarse."""


@dataclass
class CpuStarvation:
    """One node's means: CPU used over what it may use, threads waiting per core that it may use."""

    used: float | None = None
    waiting: float = 0.0
    """Threads per core."""
    starved: bool = False

    def see(self, sample: Sample) -> None:
        """Takes a Sample into account; one that lacks CPU or run delay leaves all as it is."""
        cpu, sched = sample.cpu, sample.sched
        if cpu is None or sched is None or cpu.utilisation is None or sched.run_delay_s_per_s is None:
            return
        # Stolen time counts as used in `utilisation`: it is what somebody else took.
        used = max(0.0, cpu.utilisation - (cpu.steal or 0.0))
        waiting = sched.run_delay_s_per_s / max(cpu.cores or 1.0, 0.05)
        if self.used is None:
            self.used, self.waiting = used, waiting
        weight = min(1.0, sample.period_s / SMOOTH_S)
        self.used += weight * (used - self.used)
        self.waiting += weight * (waiting - self.waiting)
        self.starved = is_starved(self.used, self.waiting, FULL_TO_LEAVE if self.starved else FULL)

    @property
    def severity(self) -> float:
        """Share of its CPU that it wants and does not get."""
        return 0.0 if self.used is None or not self.starved else min(1.0, max(0.0, 1.0 - self.used))


def is_starved(used: float, waiting: float, full: float) -> bool:
    """Whether the waiting is more than its own load explains, on a CPU that is not full."""
    if used > full:
        return False
    own = used * used / max(1.0 - used, 1.0 - FULL_TO_LEAVE)
    return waiting >= LONGER * max(1.0, own)
