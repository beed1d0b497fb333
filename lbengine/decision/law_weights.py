"""The weights that a law wants for a pool's servers.

Only servers that may be reduced get less than their baseline; the others keep the split that their baselines give.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from lbengine.balancer import Snapshot
from lbengine.decision import residual
from lbengine.laws import laws as law
from lbengine.laws.rounding import closest, grain

LEAST_IN_FLIGHT = 1.0
"""Where weights share the requests in flight, a server that should hold fewer than this gets weight 0: weights can't
express less."""
ROOM_TO_DRAIN = 0.95
"""A server is drained if the others can carry everything within this share of their room. It stays drained while they
can carry it within all of their room."""
LEAST_RPS = 1e-3
"""No capacity counts as less than this."""
CAUTION = 1.0
"""Capacities are lowered by this many standard errors. Response times rise ever steeper with a server's load, so an
estimate that is too high costs more than one that is too low."""
MOST_CAUTION = 0.5
"""A capacity is lowered by at most this share."""


class Load(msgspec.Struct, frozen=True):
    """One server that can take requests, as the laws see it. Rates in requests per second."""

    server: str
    baseline: int
    """The weight that the server has when nothing is wrong; for a server that is left alone its present weight."""
    reduce: bool = False
    """The server may be reduced: it has interference, and the guard admits it."""
    slow: bool = False
    """The server has interference or overload: its capacity is believed although it is low."""
    capacity_rps: float | None = None
    capacity_stderr_rps: float = 0.0
    severity: float = 0.0
    cpu_predicted: float | None = None
    rps: float | None = None
    served_rps: float = 0.0
    """The rate that the server answers now, by the balancer's count: a lower bound of its capacity."""
    drained: bool = False
    """The server's weight is 0 now."""
    weight: int | None = None
    """The present weight; None: the baseline."""
    cpu: float | None = None
    """The present CPU utilisation, 0 to 1; None: not known."""
    probability: float = 0.0
    """Probability of a neighbour."""
    speed: float | None = None
    """The rate at which the server works beside its neighbour, as a multiple of its capacity; None: its queue has not
    shown it."""

    @property
    def weight_now(self) -> int:
        return self.baseline if self.weight is None else self.weight

    @property
    def sure_rps(self) -> float | None:
        """The capacity that can be counted on, in requests/s; None: not known."""
        if self.capacity_rps is None:
            return None
        sure_rps = self.capacity_rps - CAUTION * self.capacity_stderr_rps
        return max(sure_rps, self.capacity_rps * (1.0 - MOST_CAUTION), self.served_rps)


@dataclass(frozen=True)
class Want:
    """A weight that the law wants, with the numbers that led there."""

    weight: int
    why: str


def wanted_weights(
    loads: Sequence[Load],
    total_rps: float | None,
    law_name: str,
    u_threshold: float,
    snapshot: Snapshot,
    spare_slow: bool = True,
) -> dict[str, Want]:
    """The weights of the servers to reduce, by name, for a pool that carries `total_rps` (None: not known).

    Under any law they keep enough load that no other server is pushed over `u_threshold`, as far as that can be
    predicted. Without `spare_slow` a server that is slow or full itself, but is not reduced, is not counted among these
    others.
    """
    affected = [load for load in loads if load.reduce]
    if not affected:
        return {}
    capacity = capacities(loads)
    if capacity is None or total_rps is None:
        return _by_severity(loads, "the pool's rate is not" if total_rps is None else "no capacity is", u_threshold)
    # Without load all splits are equally good. With a little load assumed, slow servers are drained.
    total_rps = max(total_rps, 0.001 * math.fsum(capacity))
    rates = LAWS[law_name](loads, capacity, total_rps, u_threshold)
    step = grain([load.baseline for load in loads]) if snapshot.serves_in_runs else 1
    if snapshot.by_concurrency:
        weights = _by_concurrency(loads, capacity, rates, total_rps, u_threshold)
    else:
        weights = _rounded(loads, rates, step)
    spared = [not load.reduce and (spare_slow or not load.slow) for load in loads]
    given = residual.give_back(
        [weights.get(load.server, load.baseline) for load in loads],
        [load.baseline for load in loads],
        capacity,
        spared,
        total_rps,
        u_threshold,
        snapshot.by_concurrency,
        step,
    )
    fine_rps = math.fsum(capacity_rps for load, capacity_rps in zip(loads, capacity, strict=True) if not load.reduce)
    wants = {}
    for load, capacity_rps, rate, weight in zip(loads, capacity, rates, given, strict=True):
        if load.reduce:
            share = (
                f"{law_name}: {rate:.0f} of {total_rps:.0f} requests/s"
                f" (capacity {capacity_rps:.0f} or more, the others' {fine_rps:.0f})"
            )
            if weight > weights[load.server]:
                share += "; raised, or the others would be too full"
            wants[load.server] = Want(weight, share)
    return wants


def _by_severity(loads: Sequence[Load], missing: str, u_threshold: float) -> dict[str, Want]:
    """The weights where the rate or all capacities are unknown (`missing`, in words).

    A server keeps 1 - severity of its weight, the share of its capacity that is left. It keeps more where the others'
    CPU is known to be too high to take the rest.
    """
    affected = [load for load in loads if load.reduce]
    now = [load.weight_now for load in loads]
    least = residual.least_weight(now, [load.cpu for load in loads], [not load.reduce for load in loads], u_threshold)
    kept = sum(load.baseline for load in loads if not load.reduce)
    left = math.fsum(load.baseline * (1.0 - load.severity) for load in affected)
    lost = sum(load.baseline for load in affected) - left
    share = min(max((least - kept - left) / lost, 0.0), 1.0) if lost > 0.0 else 0.0
    wants = {}
    for load in affected:
        weight = load.baseline * (1.0 - load.severity * (1.0 - share))
        why = f"{missing} known, so it keeps what is left of its capacity"
        if share > 0.0:
            weight, why = math.ceil(weight - 1e-9), f"{why}, and what the others' CPU has no room for"
        wants[load.server] = Want(min(round(weight), load.baseline), why)
    return wants


def capacities(loads: Sequence[Load]) -> list[float] | None:
    """Each server's capacity in requests per second, as the laws should take it; None when no capacity is known.

    A calm server counts with the median of the calm servers' capacities per weight, so that a single bad estimate
    changes little. A slow server that keeps its baseline weight counts with its own capacity. A calm server's capacity
    is at least the rate that it carries now. A reduced server whose capacity is not known has lost `severity` of a calm
    one. Known capacities are lowered by `CAUTION` standard errors.
    """
    known = [(load, load.sure_rps / load.baseline) for load in loads if load.sure_rps and load.baseline > 0]
    calm = [max(per, (load.rps or 0.0) / load.baseline) for load, per in known if not load.reduce and not load.slow]
    before = [per / (1.0 - load.severity) for load, per in known if load.reduce and load.severity < 1.0]
    if not calm and not before:
        return None
    per_weight = statistics.median(calm) if calm else min(before)
    return [max(_capacity(load, per_weight), LEAST_RPS) for load in loads]


def _capacity(load: Load, per_weight: float) -> float:
    calm_rps = load.baseline * per_weight
    if load.reduce:
        return load.sure_rps if load.sure_rps is not None else (1.0 - load.severity) * calm_rps
    return min(load.sure_rps, calm_rps) if load.slow and load.sure_rps is not None else calm_rps


def _ice(loads: Sequence[Load], capacity: Sequence[float], total_rps: float, u_threshold: float) -> list[float]:
    """`ice` for each server to reduce, but at least the rate that the others cannot carry below the threshold."""
    weights = sum(load.baseline for load in loads)
    fair = [total_rps * load.baseline / weights for load in loads]
    rates = [
        law.ice(mu, load.cpu_predicted, load.rps, rate, u_threshold) if load.reduce else 0.0
        for load, mu, rate in zip(loads, capacity, fair, strict=True)
    ]
    affected_rps = math.fsum(mu for load, mu in zip(loads, capacity, strict=True) if load.reduce)
    fine_rps = math.fsum(capacity) - affected_rps
    left_rps = residual.left_rps(fine_rps, affected_rps, total_rps, u_threshold)
    rates = [
        max(rate, left_rps * mu / affected_rps) if load.reduce else 0.0
        for load, mu, rate in zip(loads, capacity, rates, strict=True)
    ]
    rest_rps = max(total_rps - math.fsum(rates), 0.0)
    return [
        rate if load.reduce else rest_rps * mu / fine_rps for load, mu, rate in zip(loads, capacity, rates, strict=True)
    ]


def _tail(_: Sequence[Load], capacity: Sequence[float], total_rps: float, u_threshold: float) -> list[float]:
    from lbengine.laws.tail import tail  # with scipy: see `prepare`

    return tail(capacity, total_rps, u_threshold)


def prepare(law_name: str) -> None:
    """Imports the law's module in advance, so that its first decision does not wait for the import."""
    if law_name == "tail":
        import lbengine.laws.tail  # noqa: F401


Law = Callable[[Sequence[Load], Sequence[float], float, float], list[float]]
"""(loads, their capacities, the pool's rate, u_threshold) -> wanted rates, all in requests per second."""
LAWS: dict[str, Law] = {
    "optimal": lambda _, capacity, total_rps, u_threshold: law.optimal(capacity, total_rps, u_threshold),
    "tail": _tail,
    "equalise": lambda _, capacity, total_rps, __: law.equalise(capacity, total_rps),
    "ice": _ice,
}


def _rounded(loads: Sequence[Load], shares: Sequence[float], step: int = 1) -> dict[str, int]:
    """Weights of the servers to reduce, in proportion to `shares`; the other servers keep their baselines.

    The weights are multiples of `step`, as all baselines are.
    """
    reduced = [(load, share) for load, share in zip(loads, shares, strict=True) if load.reduce]
    keeping = [(load, share) for load, share in zip(loads, shares, strict=True) if not load.reduce]
    if not keeping:  # the server with the largest share for its baseline keeps it
        keeping = [max(reduced, key=lambda pair: (pair[1] / pair[0].baseline, pair[0].server))]
        reduced = [pair for pair in reduced if pair is not keeping[0]]
    kept_weight, kept = sum(load.baseline for load, _ in keeping), math.fsum(share for _, share in keeping)
    if kept_weight <= 0 or kept <= 0.0:
        return {load.server: load.baseline for load in loads if load.reduce}
    most = [load.baseline // step for load, _ in reduced]
    weights = closest(kept_weight // step, kept, [share for _, share in reduced], most)
    weight_of_kept = {load.server: load.baseline for load, _ in keeping if load.reduce}
    return weight_of_kept | {load.server: weight * step for (load, _), weight in zip(reduced, weights, strict=True)}


def _by_concurrency(
    loads: Sequence[Load], capacity: Sequence[float], rates: Sequence[float], total_rps: float, u_threshold: float
) -> dict[str, int]:
    """Weights of the servers to reduce under least connections, where weights share the requests in flight.

    A processor-sharing server with the rate r and the capacity μ holds r/(μ - r) requests, by Little's law.

    Below about one request weights have no effect (an idle server is taken first whatever its weight). A server that
    should hold less gets 0, if the others can carry all load below the threshold without it.
    """
    held = []
    for mu, rate in zip(capacity, rates, strict=True):
        held.append(residual.in_flight(rate / mu) if mu > 0 else 0.0)
    rounded = _rounded(loads, held)
    staying_rps = math.fsum(capacity)
    weights: dict[str, int] = {}
    for held_here, mu, load in sorted(zip(held, capacity, loads, strict=True), key=lambda row: (row[0], row[2].server)):
        if not load.reduce:
            continue
        room_rps = u_threshold * (staying_rps - mu) * (1.0 if load.drained else ROOM_TO_DRAIN)
        if held_here < LEAST_IN_FLIGHT and total_rps <= room_rps:
            staying_rps -= mu
            weights[load.server] = 0
        else:
            weights[load.server] = max(1, rounded[load.server])
    return weights
