"""The steps in which weights are set where a balancer serves them in runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

FINE = 20
"""A baseline of this many steps can be lowered finely enough, by 5% each."""


def grain(baselines: Sequence[int]) -> int:
    """The step of which all weights should be a multiple where weights without a common divisor do harm
    (`Snapshot.serves_in_runs`).

    It is the largest number that divides all baselines and leaves the largest baseline at least `FINE` steps.
    """
    common = math.gcd(*baselines)
    most = max(baselines, default=0)
    return next((step for step in range(min(common, most // FINE), 1, -1) if common % step == 0), 1)
