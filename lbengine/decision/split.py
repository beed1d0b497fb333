"""How the requests of a pool are shared out while some of its servers are slow. Pure.

Only servers that may be reduced get less than their baseline; the others keep the proportions of their baselines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from slackwater.lbengine.balancer import Snapshot
from slackwater.lbengine.decision import guard
from slackwater.lbengine.decision.loads import Load, capacities
from slackwater.lbengine.decision.room import in_flight
from slackwater.lbengine.laws import laws as law
from slackwater.lbengine.laws.grain import grain

LEAST_IN_FLIGHT = 0.5
"""Under least connections a server that should hold fewer requests than this is drained. Any weight above 0 brings it
one at a time: an idle server is taken first whatever its weight."""
LEAST_HELD = 1e-9
"""No server counts as holding less than this for each unit of its weight."""
Basis = Literal["capacities", "no_rate", "no_capacity"]
"""What a split follows from. no_rate, no_capacity: that is not known, so each server keeps the share of its capacity
that it has not lost."""


@dataclass(frozen=True)
class Share:
    """The weight that a server to reduce should have, and the numbers that led there. Rates in requests per second."""

    weight: int
    basis: Basis = "capacities"
    rps: float = 0.0
    """What the server should answer."""
    total_rps: float = 0.0
    """What the pool has to answer."""
    capacity_rps: float = 0.0
    """What the server can answer."""
    others_rps: float = 0.0
    """What the servers that are not reduced can answer together."""
    undrained: int = 0
    """Under least connections, the weight that it gets where it is not drained."""
    is_kept: bool = False
    """The weight is higher, since no more servers may be drained."""


def split(
    loads: Sequence[Load],
    total_rps: float | None,
    law_name: str,
    u_threshold: float,
    snapshot: Snapshot,
    most_drained: int,
) -> dict[str, Share]:
    """The shares of the servers to reduce, by name, for a pool that carries `total_rps` (None: not known).

    At most `most_drained` of them are drained, those with the greatest probable loss. The only server of a pool is
    never reduced. `room` asks later what the others have no room for.
    """
    if len(loads) < 2 or not any(load.reduce for load in loads):
        return {}
    capacity = capacities(loads)
    if total_rps is None or capacity is None:
        shares = _by_severity(loads, "no_rate" if total_rps is None else "no_capacity")
    else:
        shares = _by_law(loads, capacity, total_rps, law_name, u_threshold, snapshot)
    return _within(shares, [load for load in loads if load.reduce], most_drained)


def _within(shares: Mapping[str, Share], loads: Sequence[Load], most_drained: int) -> dict[str, Share]:
    """Limits the number of drained servers: those beyond it keep `guard.PART` of their baseline, or `Share.undrained`.

    A server that is drained now stays so for a while, so until then no other is drained in its place.
    """
    now = {load.server for load in loads if guard.is_drained(load.weight, load.baseline)}
    low = [load for load in loads if guard.is_drained(shares[load.server].weight, load.baseline)]
    low.sort(key=lambda load: (load.server not in now, -load.probability * load.severity, load.server))
    free = max(most_drained - len(now - {load.server for load in low}), 0)
    kept = {
        load.server: replace(share, weight=max(share.undrained, guard.least_weight(load.baseline)), is_kept=True)
        for load in low[free:]
        for share in (shares[load.server],)
    }
    return {**shares, **kept}


def _by_law(
    loads: Sequence[Load],
    capacity: Sequence[float],
    total_rps: float,
    law_name: str,
    u_threshold: float,
    snapshot: Snapshot,
) -> dict[str, Share]:
    rates, undrained = law_rates(loads, capacity, total_rps, law_name, u_threshold), dict[str, int]()
    if snapshot.by_concurrency:
        undrained = concurrency_weights(loads, capacity, rates)
        weights = undrained | dict.fromkeys(_to_drain(loads, capacity, total_rps, law_name, u_threshold), 0)
    else:
        weights = _rounded(loads, rates, step_of([load.baseline for load in loads], snapshot))
    others_rps = math.fsum(mu for load, mu in zip(loads, capacity, strict=True) if not load.reduce)
    return {
        load.server: Share(
            weights[load.server], "capacities", rate, total_rps, mu, others_rps, undrained.get(load.server, 0)
        )
        for load, mu, rate in zip(loads, capacity, rates, strict=True)
        if load.reduce
    }


def law_rates(
    loads: Sequence[Load], capacity: Sequence[float], total_rps: float, law_name: str, u_threshold: float
) -> list[float]:
    """The rates that the law wants, in requests per second.

    Without load all splits are equally good. With a little load assumed, slow servers are drained.
    """
    return LAWS[law_name](loads, capacity, max(total_rps, 0.001 * math.fsum(capacity)), u_threshold)


def step_of(baselines: Sequence[int], snapshot: Snapshot) -> int:
    """The step of which all weights are a multiple."""
    return grain(baselines) if snapshot.serves_in_runs else 1


def _by_severity(loads: Sequence[Load], basis: Basis) -> dict[str, Share]:
    """The shares where the rate or all capacities are unknown: each server keeps 1 - severity of its weight, the share
    of its capacity that is left."""
    return {load.server: Share(round(load.baseline * (1.0 - load.severity)), basis) for load in loads if load.reduce}


def _ice(loads: Sequence[Load], capacity: Sequence[float], total_rps: float, u_threshold: float) -> list[float]:
    """`ice` for each server to reduce; the others share the rest by their capacities."""
    weights = sum(load.baseline for load in loads)
    fair = [total_rps * load.baseline / weights for load in loads]
    rates = [
        law.ice(mu, load.cpu_predicted, load.rps, rate, u_threshold) if load.reduce else 0.0
        for load, mu, rate in zip(loads, capacity, fair, strict=True)
    ]
    fine_rps = math.fsum(mu for load, mu in zip(loads, capacity, strict=True) if not load.reduce)
    rest_rps = max(total_rps - math.fsum(rates), 0.0)
    return [
        rate if load.reduce else rest_rps * mu / fine_rps for load, mu, rate in zip(loads, capacity, rates, strict=True)
    ]


Law = Callable[[Sequence[Load], Sequence[float], float, float], list[float]]
"""(loads, their capacities, the pool's rate, u_threshold) -> wanted rates, all in requests per second."""
LAWS: dict[str, Law] = {
    "optimal": lambda _, capacity, total_rps, u_threshold: law.optimal(capacity, total_rps, u_threshold),
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
    steps_per_share = kept_weight // step / kept
    weights = [min(round(share * steps_per_share), load.baseline // step) for load, share in reduced]
    weight_of_kept = {load.server: load.baseline for load, _ in keeping if load.reduce}
    return weight_of_kept | {load.server: weight * step for (load, _), weight in zip(reduced, weights, strict=True)}


def concurrency_weights(loads: Sequence[Load], capacity: Sequence[float], rates: Sequence[float]) -> dict[str, int]:
    """Weights of the servers to reduce under least connections, where weights share the requests in flight and none is
    drained. `rates`: those of the law, in requests per second.

    A processor-sharing server with the rate r and the capacity μ holds r/(μ - r) requests, by Little's law. In a busy
    pool the law `optimal` makes that √μ for each server. So the slow ones are passed over while the others hold a few
    requests, and take what these would have to queue.
    """
    held = [in_flight(rate / mu) for rate, mu in zip(rates, capacity, strict=True)]
    keeping = [share / load.baseline for share, load in zip(held, loads, strict=True) if not load.reduce]
    most = max(keeping or [share / load.baseline for share, load in zip(held, loads, strict=True)])
    return {
        load.server: min(max(round(share / max(most, LEAST_HELD)), guard.least_weight(load.baseline)), load.baseline)
        for load, share in zip(loads, held, strict=True)
        if load.reduce
    }


def _to_drain(
    loads: Sequence[Load], capacity: Sequence[float], total_rps: float, law_name: str, u_threshold: float
) -> list[str]:
    """The servers to reduce that should hold hardly any requests under least connections, as far as the others can
    carry all load below the threshold without them.

    How many a server should hold follows from the rates at which servers work, not from their capacities.
    """
    working = [load.working_rps or mu for load, mu in zip(loads, capacity, strict=True)]
    rates = law_rates(loads, working, total_rps, law_name, u_threshold)
    held = [in_flight(rate / mu) for mu, rate in zip(working, rates, strict=True)]
    staying_rps, drained = math.fsum(capacity), list[str]()
    for held_here, mu, load in sorted(zip(held, capacity, loads, strict=True), key=lambda row: (row[0], row[2].server)):
        if load.reduce and held_here < LEAST_IN_FLIGHT and total_rps <= u_threshold * (staying_rps - mu):
            staying_rps -= mu
            drained.append(load.server)
    return drained
