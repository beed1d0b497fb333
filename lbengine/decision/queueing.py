"""What the balancer's own counts say of a server, whatever its node says. Pure.

A processor-sharing server that is busy for a share u of the time holds k requests with a probability of (1 - u)·u^k, so
each look at the requests in flight says something of how fast it works. What the detector reports is the prior, the
looks are the evidence, and Bayes' rule gives what to believe: a server that holds hardly anything has not lost what its
node claims. And one that holds far more than it should is full, though it is called calm.

A calm server may work faster than its capacity says (`calm`). Beside a neighbour it may or may not: one that waits for
the processor whenever its neighbour has it is as slow as what it has left, one that had time to spare is not. So its
speed is unknown too, between 1 and that of the calm servers, and learnt together with its capacity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from lbengine.decision.law_weights import Load
from lbengine.decision.rates import WINDOW_S

GRID = 32
LOWEST = 0.02
"""Share of its calm capacity that a server keeps at least."""
FULLEST = 0.98
"""Utilisation that a full server counts as."""
SURPRISE = 0.01
"""A server that is called calm is full when so many requests in flight are less likely than this."""
LAST_LOOKS = 2
"""It must hold them at so many looks: a calm server has answered a burst by the next one."""
MOST_DEVIATIONS = 2.0
"""Requests that wait for something else vary as Poisson's distribution: so many standard deviations are no queue."""
OPEN_MIND = 0.1
"""Share of the prior that knows nothing of the capacity: a report may be wrong altogether."""
RELAXATION = (1.0 - math.sqrt(0.8)) ** 2
"""A queue forgets at the rate (1 - √u)² times its capacity (P. M. Morse, "Stochastic properties of waiting lines",
Operations Research 3(3), 1955), taken at a utilisation of 80%. Looks that follow each other faster count for less."""
SPEEDS = 5
"""So many speeds are told apart."""
NOMINAL_ERROR = 0.5
"""Standard error of a reported capacity (as a share of it) that comes without one."""


def shortest_s(looks: Mapping[str, Sequence[int]], rps: Mapping[str, float]) -> float:
    """Least mean time that a request spends at any of these servers, by Little's law: what they all wait for, such as
    a database, is no queue at a server. `looks`: each server's requests in flight in the last second."""
    times = [
        math.fsum(held) / len(held) / rps[server] for server, held in looks.items() if held and rps.get(server, 0.0) > 0
    ]
    return min(times, default=0.0)


def believed(
    load: Load, looks: Sequence[int], calm_rps: float, calm_error: float, each_s: float, speed: float = 1.0
) -> Load:
    """The load with what both sources give together: its capacity, with its error, and the probability of a neighbour.

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
    """A server that holds surprisingly much is full: what it answers is its capacity, as surely as by a Verdict."""
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
        (mu, times): math.log(one / len(speeds)) + counts * _log_likelihood(rps, times * mu, looks, together)
        for one, mu in zip(shape, grid, strict=True)
        for times in speeds
    }
    around = (1.0 - calm_error, 1.0, 1.0 + calm_error)
    calm = [counts * _log_likelihood(rps, speed * calm_rps * factor, looks, together) for factor in around]
    most = max(*calm, *lost.values())
    weights = {both: load.probability * math.exp(one - most) for both, one in lost.items()}
    whole = math.fsum(weights.values())
    without = (1.0 - load.probability) * math.fsum(math.exp(one - most) for one in calm) / len(calm)
    if whole <= 0.0:
        return msgspec.structs.replace(load, probability=0.0)
    mean = math.fsum(mu * one for (mu, _), one in weights.items()) / whole
    variance = math.fsum((mu - mean) ** 2 * one for (mu, _), one in weights.items()) / whole
    log_speed = math.fsum(math.log(times) * one for (_, times), one in weights.items()) / whole
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
    """How likely each capacity is beside a neighbour, by the report; their sum is 1."""
    even = 1.0 / len(grid)
    if not load.capacity_rps:
        return [even] * len(grid)
    error = NOMINAL_ERROR
    if load.capacity_stderr_rps:
        error = min(max(load.capacity_stderr_rps / load.capacity_rps, calm_error), 1.0)
    bell = [math.exp(-0.5 * (math.log(mu / load.capacity_rps) / error) ** 2) for mu in grid]
    whole = math.fsum(bell)
    return [(1.0 - OPEN_MIND) * one / whole + OPEN_MIND * even if whole > 0.0 else even for one in bell]


def _log_likelihood(rps: float, working_rps: float, looks: int, held: float) -> float:
    """`held`: requests in flight at all looks together."""
    filled = min(rps / working_rps, FULLEST)
    return looks * math.log(1.0 - filled) + held * math.log(filled)
