"""How long requests take in a pool whose servers are all calm, and how fast these work. Pure.

Both follow, by Little's law, from the requests that the balancer holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MEMORY_S = 30.0
"""After this much calm an observation counts for 1/e."""
PRIOR_S = 1.0
MOST_SPEED = 8.0
LONGEST_S = 1.0
"""A turn stands for no more time than this, however late it comes."""


@dataclass(frozen=True)
class Calm:
    """Sums over the time in which all servers of a pool were calm; older time counts less."""

    held: float = 0.0
    """Requests in flight times time, in request-seconds."""
    requests: float = 0.0
    """Requests that came in that time."""
    seconds: float = 0.0
    """The time in which all servers were calm."""
    seen_s: float | None = None
    """Time of the last look at a calm pool."""

    def after(self, now_s: float, held: float, rps: float) -> Calm:
        """Adds a look: `held` requests in the pool now, `rps` requests a second."""
        passed_s = 0.0 if self.seen_s is None else min(max(now_s - self.seen_s, 0.0), LONGEST_S)
        kept = math.exp(-passed_s / MEMORY_S)
        return Calm(
            kept * self.held + passed_s * held,
            kept * self.requests + passed_s * rps,
            kept * self.seconds + passed_s,
            now_s,
        )

    @property
    def wait_s(self) -> float | None:
        """Mean time of a request, by Little's law; None before the first request."""
        return self.held / self.requests if self.requests > 0.0 else None

    def speed(self, servers: int, capacity_rps: float) -> float:
        """How fast these calm servers work, as a multiple of what their capacity (in all) says; 1 to `MOST_SPEED`.

        A server that may use 40% of a processor works at the processor's full speed until that share is spent. One that
        is busy for a share u of the time holds u + k·u²/(1 - u) requests. Of n servers that a balancer visits in turn
        each has k = (1 + 1/n)/2 (J. F. C. Kingman, "The single server queue in heavy traffic", Proc. Cambridge Phil.
        Soc. 57, 1961). Least connections waits less than n queues of their own (k = 1) and more than a single queue
        (k = 1/n), so the same stands for it. Before anything was seen the pool counts as seen for `PRIOR_S` at speed 1.
        """
        if self.seconds <= 0.0 or not 0.0 < self.requests < capacity_rps * self.seconds:
            return 1.0
        filled, k = self.requests / self.seconds / capacity_rps, (1.0 + 1.0 / servers) / 2.0
        at_speed_1 = filled + k * filled**2 / (1.0 - filled)
        held = (self.held / servers + PRIOR_S * at_speed_1) / (self.seconds + PRIOR_S)
        root = math.sqrt((1.0 + held) ** 2 - 4.0 * (1.0 - k) * held)
        busy = 2.0 * held / (1.0 + held + root)
        return min(max(filled / busy, 1.0), MOST_SPEED)
