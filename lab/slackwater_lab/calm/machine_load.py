"""Whether the lab's machine carried a slice of the fleet: else hosts waited for each other, which is no calm."""

from __future__ import annotations

from dataclasses import dataclass

SLICE_S = 10.0
"""A slice counts or not as a whole."""
MOST_BUSY = 0.8
"""Share of the processors' time in a slice, what the hypervisor took included."""
MOST_WAIT_MS = 2.0
"""Mean wait of a probe for its processor, each time it wakes: about what a request takes of it."""
MOST_LATE_S = 1.0
RULE = (
    f"A slice of {SLICE_S:g} s counts when, in it and in the one before, the processors of the machine were busy for at"
    f" most {MOST_BUSY:.0%} of the time (what the hypervisor took included), and a process with a host's weight waited"
    f" at most {MOST_WAIT_MS:g} ms for a processor each time it woke, in the mean, on each processor; and the lab's own"
    f" program was at most {MOST_LATE_S:g} s late. Else the hosts were neighbours of each other."
)


@dataclass(frozen=True)
class SliceLoad:
    """The load of this machine in a slice (`slackwater_lab.cluster.machine_load`)."""

    busy_share: float
    wait_ms: float
    late_s: float = 0.0
    """The longest delay of the lab's own program behind its plan."""

    @property
    def carried(self) -> bool:
        """Whether the machine carried it without hosts waiting for each other."""
        return self.busy_share <= MOST_BUSY and self.wait_ms <= MOST_WAIT_MS and self.late_s <= MOST_LATE_S
