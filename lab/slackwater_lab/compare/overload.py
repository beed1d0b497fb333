"""Whether this machine carried a run. Where it did not, hosts waited for each other, or for what else the machine did:
then the run says nothing of a policy.

How busy the processors were does not decide: the lab goes before what else runs (`LAB_WEIGHT`). With four busy programs
of usual priority beside it, `leastconn` in `two` was as fast as without. The generator's lateness is of requests that
found a connection free, so it is no consequence of slow servers.
"""

from __future__ import annotations

import msgspec

MOST_WAIT_MS = 1.0
"""Mean wait of a probe for its processor, each time it wakes; 0.1 to 0.3 ms where nothing else runs."""
MOST_LATE_MS = 10.0
RULE = (
    f"A run counts when a process with a host's weight waited at most {MOST_WAIT_MS:g} ms for a processor each time it"
    f" woke, in the mean, on each processor, and the load generator sent 99% of the requests for which it had a"
    f" connection at most {MOST_LATE_MS:g} ms late. Else it is measured again."
)


class RunLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The load of this machine in a run, until its neighbours ended."""

    busy_share: float
    """Of the processors' time, without programs of a lower priority."""
    wait_ms: float
    late_ms: float

    @property
    def is_carried(self) -> bool:
        """Whether the machine carried the run."""
        return self.wait_ms <= MOST_WAIT_MS and self.late_ms <= MOST_LATE_MS

    def __str__(self) -> str:
        return (
            f"processors {self.busy_share:.0%} busy, a wait of {self.wait_ms:.1f} ms for one, the generator"
            f" {self.late_ms:.1f} ms late"
        )
