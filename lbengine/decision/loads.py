"""What is known of a server's load and capacity when requests are shared out. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from slackwater.lbengine.decision.rates import Backlog

LEAST_RPS = 1e-3
"""No capacity counts as less than this."""
CAUTION = 2.0
"""A capacity whose standard error is the share e of it counts as 1/(1 + `CAUTION`·e²) of it. Response times rise ever
steeper with a server's load, so what a doubt costs grows with its variance."""
MOST_CAUTION = 0.5
"""A capacity is lowered by at most this share."""
LEAST_ERROR, MOST_ERROR = 0.05, 0.9
"""The standard error of a calm server's capacity is between these shares of it."""


class Load(msgspec.Struct, frozen=True):
    """One server that can take requests. Rates in requests per second."""

    server: str
    baseline: int
    """The weight that the server has when nothing is wrong; for a server that is left alone its present weight."""
    weight: int
    """The present weight."""
    reduce: bool = False
    """The server may be reduced: it has interference, and the guard admits it."""
    slow: bool = False
    """The server has interference or overload: its capacity is believed although it is low."""
    capacity_rps: float | None = None
    capacity_stderr_rps: float = 0.0
    severity: float = 0.0
    """Share of the capacity that is lost."""
    cpu_predicted: float | None = None
    rps: float | None = None
    served_rps: float = 0.0
    """The rate that the server answers now, by the balancer's count: a lower bound of its capacity."""
    cpu: float | None = None
    """The present CPU utilisation, 0 to 1; None: not known."""
    probability: float = 0.0
    """Probability of a neighbour."""
    warming: bool = False
    """It came up, and has not shown yet that it is warm."""
    queue: Backlog = Backlog()
    working_rps: float | None = None
    """The rate at which it works while it has requests: a server that may use 40% of a processor works at the
    processor's full speed until that share is spent. None: its capacity."""

    @property
    def sure_rps(self) -> float | None:
        """The capacity that can be counted on, in requests/s; None: not known."""
        if self.capacity_rps is None:
            return None
        error = self.capacity_stderr_rps / max(self.capacity_rps, LEAST_RPS)
        part = max(1.0 / (1.0 + CAUTION * error**2), 1.0 - MOST_CAUTION)
        return max(self.capacity_rps * part, self.served_rps)


def capacities(loads: Sequence[Load]) -> list[float] | None:
    """Each server's capacity in requests per second; None when no capacity is known.

    A calm server counts with the median of the calm servers' capacities per weight, so that a single bad estimate
    changes little. A slow server that keeps its baseline weight counts with its own capacity. A calm server's capacity
    is at least the rate that it carries now. A reduced server whose capacity is not known has lost `severity` of a calm
    one. Known capacities are lowered by their doubt (`CAUTION`).
    """
    known = [(load, load.sure_rps / load.baseline) for load in loads if load.sure_rps and load.baseline > 0]
    calm = [max(per, (load.rps or 0.0) / load.baseline) for load, per in known if not load.reduce and not load.slow]
    before = [per / (1.0 - load.severity) for load, per in known if load.reduce and load.severity < 1.0]
    if not calm and not before:
        return None
    per_weight = statistics.median(calm) if calm else min(before)
    return [max(_capacity(load, per_weight), LEAST_RPS) for load in loads]


def calm_capacity(loads: Sequence[Load], known: Sequence[float]) -> tuple[float, float]:
    """A calm server's capacity for each unit of its weight, in requests/s, and its standard error as a share.

    `known`: capacity of each server in `loads`, in requests/s.
    """
    per_weight = [(load, rps / load.baseline) for load, rps in zip(loads, known, strict=True) if load.baseline > 0]
    calm = [per for load, per in per_weight if not load.reduce]
    errors = sorted(
        load.capacity_stderr_rps / load.capacity_rps for load in loads if not load.reduce and load.capacity_rps
    )
    error = errors[len(errors) // 2] if errors else LEAST_ERROR
    before = [per / max(1.0 - load.severity, 0.05) for load, per in per_weight]
    return max(calm or before, default=0.0), min(max(error, LEAST_ERROR), MOST_ERROR)


def _capacity(load: Load, per_weight: float) -> float:
    calm_rps = load.baseline * per_weight
    if load.reduce:
        return load.sure_rps if load.sure_rps is not None else (1.0 - load.severity) * calm_rps
    return min(load.sure_rps, calm_rps) if load.slow and load.sure_rps is not None else calm_rps
