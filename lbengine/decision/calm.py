"""How fast the servers of a calm pool are, by the requests that they hold. Pure.

A server's capacity says how many requests it can answer, not how quickly: one that may use 40% of a processor works at
the processor's full speed until that is spent. So while all are calm the requests in flight are compared with what is
predicted for servers of several speeds. By Little's law both stand for response times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SPEEDS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0)
"""Of a server while it works, over the speed at which its capacity would keep it busy all the time."""
MEMORY_S = 30.0
"""Time of calm after which what was seen counts for 1/e."""
PRIOR_S = 1.0
"""So long a pool counts as having been seen at speed 1 before it is seen at all."""
LONGEST_S = 1.0
"""A turn that comes later than this stands for no more time."""


@dataclass(frozen=True)
class Calm:
    """What was seen while all servers of a pool were calm."""

    held: float = 0.0
    """Request-seconds."""
    predicted: tuple[float, ...] = ()
    """The same as predicted, for each of `SPEEDS`; () before the first look."""
    seen_s: float | None = None
    """When calm was seen last."""
    requests: float = 0.0
    """So many came meanwhile."""

    def after(self, now_s: float, held: float, predicted: Sequence[float], rps: float = 0.0) -> Calm:
        """With one more look; `held`: requests in the pool now, `predicted`: for each of `SPEEDS`, `rps`: the rate."""
        if self.seen_s is None:
            return Calm(PRIOR_S * predicted[0], tuple(PRIOR_S * one for one in predicted), now_s, PRIOR_S * rps)
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
        """How long a request takes, by Little's law; None where no more is known."""
        return self.held / self.requests if self.requests > 0.0 else None

    @property
    def speed(self) -> float:
        """The one for which as much is predicted as was held; 1 where no more is known."""
        steps = list(zip(SPEEDS, self.predicted, strict=False))
        for (slower, more), (faster, less) in pairwise(steps):
            if self.held >= more:
                return slower
            if self.held > less:
                return slower + (faster - slower) * (more - self.held) / (more - less)
        return SPEEDS[-1] if steps else 1.0
