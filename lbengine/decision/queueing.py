"""A server's capacity and the probability of its neighbour, corrected by the balancer's own counts. Pure.

A processor-sharing server that is busy for a share u of the time holds k requests with a probability of (1 - u)·u^k, so
each look at the requests in flight says how fast it works. The detector's report is the prior, the looks are the
evidence, and Bayes' rule gives the belief. A server that holds hardly any requests has not lost the capacity that its
node claims. A server that holds far more than it should is full, although it is called calm.

A calm server may work faster than its capacity says (`calm`). Beside a neighbour that depends: a server that waits for
the processor whenever its neighbour has it is as slow as the capacity that is left, a server that had time to spare is
not. So its speed is unknown too, between 1 and that of the calm servers, and estimated together with its capacity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from lbengine.decision.law_weights import Load
from lbengine.decision.rates import WINDOW_S

GRID = 32
LOWEST = 0.02
"""A server keeps at least this share of its calm capacity."""
FULLEST = 0.98
"""A full server counts with this utilisation."""
SURPRISE = 0.01
"""A server that is called calm is full when the probability of its requests in flight is below this."""
LAST_LOOKS = 2
"""It must hold them at this many looks in a row: a calm server answers a burst between two looks."""
MOST_DEVIATIONS = 2.0
"""The number of requests that wait for something else has Poisson's distribution. This many standard deviations above
its mean are no queue."""
OPEN_MIND = 0.1
"""Share of the prior that is even over all capacities: a report may be altogether wrong."""
RELAXATION = (1.0 - math.sqrt(0.8)) ** 2
"""A queue forgets at the rate (1 - √u)² times its capacity (P. M. Morse, "Stochastic properties of waiting lines",
Operations Research 3(3), 1955), taken at a utilisation of 80%. Looks that follow each other faster count for less."""
SPEEDS = 5
"""Number of speeds in the grid."""
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


def believed(
    load: Load, looks: Sequence[int], calm_rps: float, calm_error: float, each_s: float, speed: float = 1.0
) -> Load:
    """The load with the capacity, error, speed and probability of a neighbour that follow from both sources.

    `looks`: requests in flight in the last second; `calm_rps`, `calm_error`: the server's capacity without a neighbour
    and its standard error as a share; `each_s`: as `shortest_s`; `speed`: that of the calm servers, as
    `calm.Calm.speed`.
    """
    if not looks or not load.rps or calm_rps <= 0.0:
        return load
    elsewhere = load.rps * each_s
    if load.reduce:
        held = [max(look - elsewhere, 0.0) for look in looks]
        return _suspected(load, held, calm_rps, calm_error, speed)
    queue = min(looks[-LAST_LOOKS:]) - elsewhere - MOST_DEVIATIONS * math.sqrt(elsewhere)
    return _called_calm(load, max(queue, 0.0), calm_rps, speed)


def _called_calm(load: Load, held: float, calm_rps: float, speed: float) -> Load:
    """A server that holds surprisingly many requests is full: the rate that it answers is its capacity, with the same
    certainty as a Verdict's."""
    filled = (load.rps or 0.0) / calm_rps
    if filled >= 1.0 or load.served_rps <= 0.0 or (filled / speed) ** held >= SURPRISE:
        return load
    full_rps = min(load.served_rps, calm_rps)
    full = {"capacity_rps": full_rps, "capacity_stderr_rps": math.sqrt(full_rps / WINDOW_S)}
    return msgspec.structs.replace(load, **full, slow=True, probability=1.0, speed=1.0)


def _suspected(load: Load, held: Sequence[float], calm_rps: float, calm_error: float, speed: float) -> Load:
    """Bayes' rule over capacities and speeds of a grid."""
    rps = load.rps or 0.0
    looks, together = len(held), math.fsum(held)
    counts = min(1.0, (1.0 + WINDOW_S * calm_rps * RELAXATION) / looks)
    grid = _grid(calm_rps, load.served_rps)
    shape = _prior(load, grid, calm_error)
    speeds = [speed ** (n / (SPEEDS - 1)) for n in range(SPEEDS)] if speed > 1.0 else [1.0]
    lost = {
        (mu, times): math.log(prior / len(speeds)) + counts * _log_likelihood(rps, times * mu, looks, together)
        for prior, mu in zip(shape, grid, strict=True)
        for times in speeds
    }
    around = (1.0 - calm_error, 1.0, 1.0 + calm_error)
    calm = [counts * _log_likelihood(rps, speed * calm_rps * factor, looks, together) for factor in around]
    most = max(*calm, *lost.values())
    weights = {pair: load.probability * math.exp(log_weight - most) for pair, log_weight in lost.items()}
    whole = math.fsum(weights.values())
    without = (1.0 - load.probability) * math.fsum(math.exp(log_weight - most) for log_weight in calm) / len(calm)
    if whole <= 0.0:
        return msgspec.structs.replace(load, probability=0.0)
    mean = math.fsum(mu * weight for (mu, _), weight in weights.items()) / whole
    variance = math.fsum((mu - mean) ** 2 * weight for (mu, _), weight in weights.items()) / whole
    log_speed = math.fsum(math.log(times) * weight for (_, times), weight in weights.items()) / whole
    return msgspec.structs.replace(
        load,
        probability=whole / (whole + without),
        capacity_rps=mean,
        capacity_stderr_rps=math.sqrt(variance),
        speed=math.exp(log_speed),
    )


def _grid(calm_rps: float, served_rps: float) -> list[float]:
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


def _log_likelihood(rps: float, working_rps: float, looks: int, held: float) -> float:
    """Logarithm of the likelihood of `held` requests in flight, summed over the looks."""
    filled = min(rps / working_rps, FULLEST)
    return looks * math.log(1.0 - filled) + held * math.log(filled)
