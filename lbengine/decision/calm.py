"""How fast the servers of a calm pool are, by the requests that they hold. Pure.

A server's capacity says how many requests it can answer, not how quickly: a server that may use 40% of a processor
works at the processor's full speed until that share is spent. So while all servers are calm, the requests in flight are
compared with those predicted for servers of several speeds. By Little's law both stand for response times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SPEEDS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0)
"""How fast a server works, as a multiple of the speed at which its capacity would keep it busy all the time."""
MEMORY_S = 30.0
"""After this much calm an observation counts for 1/e."""
PRIOR_S = 1.0
"""Before its first look a pool counts as having been seen this long at speed 1."""
LONGEST_S = 1.0
"""A turn stands for no more time than this, however late it comes."""


@dataclass(frozen=True)
class Calm:
    """Sums over the time in which all servers of a pool were calm; older time counts less."""

    held: float = 0.0
    """Requests in flight times time, in request-seconds."""
    predicted: tuple[float, ...] = ()
    """The predicted request-seconds, for each of `SPEEDS`; () before the first look."""
    seen_s: float | None = None
    """Time of the last look at a calm pool."""
    requests: float = 0.0
    """Requests that came in that time."""

    def after(self, now_s: float, held: float, predicted: Sequence[float], rps: float = 0.0) -> Calm:
        """Adds a look.

        `held`: requests in the pool now; `predicted`: the same for each of `SPEEDS`; `rps`: the pool's rate.
        """
        if self.seen_s is None:
            return Calm(
                PRIOR_S * predicted[0], tuple(PRIOR_S * requests for requests in predicted), now_s, PRIOR_S * rps
            )
        passed_s = min(max(now_s - self.seen_s, 0.0), LONGEST_S)
        kept = math.exp(-passed_s / MEMORY_S)
        both = zip(self.predicted, predicted, strict=True)
        return Calm(
            kept * self.held + passed_s * held,
            tuple(kept * a + passed_s * b for a, b in both),
            now_s,
            kept * self.requests + passed_s * rps,
        )

    @property
    def wait_s(self) -> float | None:
        """Mean time of a request, by Little's law; None before the first request."""
        return self.held / self.requests if self.requests > 0.0 else None

    @property
    def speed(self) -> float:
        """The speed for which the prediction is what was held, interpolated in `SPEEDS`; 1 before the first look."""
        steps = list(zip(SPEEDS, self.predicted, strict=False))
        for (slower, more), (faster, less) in pairwise(steps):
            if self.held >= more:
                return slower
            if self.held > less:
                return slower + (faster - slower) * (more - self.held) / (more - less)
        return SPEEDS[-1] if steps else 1.0
