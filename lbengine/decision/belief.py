"""What is believed of a server whose node reports a neighbour, once the balancer's own counts are weighed. Pure.

A processor-sharing server that is busy for a share u of the time holds k requests with a probability of (1 - u)·u^k, so
each look at the requests in flight says how fast it works. The detector's report is the prior, the looks are the
evidence, and Bayes' rule gives the belief. A server that holds hardly any requests has not lost the capacity that its
node claims, so a node that lies, or is wrong, does little harm.

A calm server may work faster than its capacity says (`calm`). Beside a neighbour that depends: a server that waits for
the processor whenever its neighbour has it is as slow as the capacity that is left, a server that had time to spare is
as fast as before. So all speeds between are possible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from slackwater.lbengine.decision.calm import Calm
from slackwater.lbengine.decision.loads import Load, calm_capacity, capacities
from slackwater.lbengine.decision.rates import WINDOW_S, Rates

GRID = 32
"""Number of capacities that are tried."""
SPEEDS = 5
"""Number of speeds that are tried."""
LOWEST = 0.02
"""A server keeps at least this share of its calm capacity."""
FULLEST = 0.98
"""A full server counts with this utilisation."""
OPEN_MIND = 0.1
"""Share of the prior that is even over all capacities: a report may be altogether wrong."""
RELAXATION = (1.0 - math.sqrt(0.8)) ** 2
"""A queue forgets at the rate (1 - √u)² times its capacity (P. M. Morse, "Stochastic properties of waiting lines",
Operations Research 3(3), 1955), taken at a utilisation of 80%. Looks that follow each other faster count for less."""
NOMINAL_ERROR = 0.5
"""Standard error, as a share, of a capacity that is reported without one."""


def shortest_s(looks: Mapping[str, Sequence[int]], rps: Mapping[str, float]) -> float:
    """The least mean time in s that a request spends at any of these servers, by Little's law; 0 where none is known.

    The wait for something that all servers share, such as a database, is in it: that is no queue at a server.
    `looks`: each server's requests in flight in the last second; `rps`: each server's rate.
    """
    times = [
        math.fsum(held) / len(held) / rps[server] for server, held in looks.items() if held and rps.get(server, 0.0) > 0
    ]
    return min(times, default=0.0)


def weighed(loads: list[Load], rates: Rates, calm: Calm) -> list[Load]:
    """The loads with the rates at which servers work, where the balancer counts requests. The servers to reduce have
    the capacities that its counts allow."""
    known = capacities(loads)
    if rates.rps is None or known is None or not any(load.reduce for load in loads):
        return loads
    per_weight, error = calm_capacity(loads, known)
    speed = calm.speed(len(loads), per_weight * sum(load.baseline for load in loads))
    each_s = shortest_s({load.server: rates.held_by(load.server) for load in loads}, rates.rps)
    return [
        believed(load, rates.held_by(load.server), load.baseline * per_weight, error, each_s, speed)
        if load.reduce
        else msgspec.structs.replace(load, working_rps=speed * load.baseline * per_weight)
        for load in loads
    ]


def believed(load: Load, looks: Sequence[int], calm_rps: float, calm_error: float, each_s: float, speed: float) -> Load:
    """The load with the capacity, its error and the rate of work that follow from the report and the counts.

    `looks`: requests in flight in the last second; `calm_rps`, `calm_error`: the server's capacity without a neighbour
    and its standard error as a share; `each_s`: as `shortest_s`; `speed`: that of the calm servers, as `Calm.speed`.
    """
    if not looks or not load.rps or calm_rps <= 0.0:
        return load
    held = math.fsum(max(look - load.rps * each_s, 0.0) for look in looks)
    counts = min(1.0, (1.0 + WINDOW_S * calm_rps * RELAXATION) / len(looks))

    def likelihood(working_rps: float) -> float:
        """Logarithm of the likelihood of what was held, for a server that works at this rate."""
        filled = min((load.rps or 0.0) / working_rps, FULLEST)
        return counts * (len(looks) * math.log(1.0 - filled) + held * math.log(filled))

    grid = _grid(calm_rps, load.served_rps)
    speeds = [speed ** (n / (SPEEDS - 1)) for n in range(SPEEDS)] if speed > 1.0 else [1.0]
    possible = [
        (mu, times * mu, load.probability * share / len(speeds), likelihood(times * mu))
        for mu, share in zip(grid, _prior(load, grid, calm_error), strict=True)
        for times in speeds
    ]
    around = (1.0 - calm_error, 1.0, 1.0 + calm_error)
    possible += [
        (
            calm_rps * factor,
            speed * calm_rps * factor,
            (1.0 - load.probability) / len(around),
            likelihood(speed * calm_rps * factor),
        )
        for factor in around
    ]
    most = max(log for *_, log in possible)
    weights = [(mu, working, share * math.exp(log - most)) for mu, working, share, log in possible]
    whole = math.fsum(weight for *_, weight in weights)
    if whole <= 0.0:
        return load
    mean = math.fsum(mu * weight for mu, _, weight in weights) / whole
    working_rps = math.fsum(working * weight for _, working, weight in weights) / whole
    variance = math.fsum((mu - mean) ** 2 * weight for mu, _, weight in weights) / whole
    return msgspec.structs.replace(
        load, capacity_rps=mean, capacity_stderr_rps=math.sqrt(variance), working_rps=working_rps
    )


def _grid(calm_rps: float, served_rps: float) -> list[float]:
    """Capacities beside a neighbour, evenly spread by their logarithm."""
    lowest_rps = max(LOWEST * calm_rps, min(served_rps, 0.9 * calm_rps))
    step = math.log(calm_rps / lowest_rps) / GRID
    return [lowest_rps * math.exp(step * (n + 0.5)) for n in range(GRID)]


def _prior(load: Load, grid: Sequence[float], calm_error: float) -> list[float]:
    """The probability of each capacity in the grid beside a neighbour, by the report; their sum is 1."""
    even = 1.0 / len(grid)
    if not load.capacity_rps:
        return [even] * len(grid)
    error = NOMINAL_ERROR
    if load.capacity_stderr_rps:
        error = min(max(load.capacity_stderr_rps / load.capacity_rps, calm_error), 1.0)
    bell = [math.exp(-0.5 * (math.log(mu / load.capacity_rps) / error) ** 2) for mu in grid]
    whole = math.fsum(bell)
    return [(1.0 - OPEN_MIND) * density / whole + OPEN_MIND * even if whole > 0.0 else even for density in bell]
