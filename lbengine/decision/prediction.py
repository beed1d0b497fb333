"""How many requests a pool would hold under some weights. Pure.

By Little's law that is its rate times its mean response time, so the weights that hold fewest answer soonest.

Weights that share requests leave each server a queue of its own: u + u²/(1 - u)·(c² + 1)/2 at a utilisation u, where
c² is the squared variation of the times between its requests (J. F. C. Kingman, "The single server queue in heavy
traffic", Proc. Cambridge Phil. Soc. 57, 1961). A balancer that goes round spaces them: of Poisson arrivals a server
with the share s gets every 1/s-th, so c² = s. At s = 1 that is M/G/1 under processor sharing, u/(1 - u).

Least connections lies between two models. `one_queue`: a request finds an idle server while there is one, and no
server idles while requests wait. With the idle server taken at random this is exact for servers of different speeds (H.
Gumbel, "Waiting lines with heterogeneous servers", Operations Research 8(4), 1960), and no balancer does better without
looking at speeds. `own_queues`: processor-sharing servers whose requests in flight are in proportion to the weights.

A server may work faster than its capacity says, but it answers no more than its capacity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

FULL = 0.95
"""Above this utilisation a queue is taken to grow evenly with its load, since it is infinite at 1."""
SLOPE = 1.0 / (1.0 - FULL) ** 2
"""How fast it grows there: requests for each unit of utilisation."""
EXACT = 16
"""`one_queue` is exact up to this number of servers. With more servers a request hardly ever waits."""
NEWTON = 12
"""Most steps of Newton's method."""
PRECISION = 1e-9
"""Newton's method ends when at most this share of the rate is missing."""


@dataclass(frozen=True)
class Alike:
    """`count` servers that are predicted alike. Each has this weight, and is full at `capacity_rps`."""

    count: int
    weight: float
    capacity_rps: float
    speed: float = 1.0
    """The rate of a working server as a multiple of its capacity. It is above 1 where a server may use only a part of
    its processor."""

    @property
    def working_rps(self) -> float:
        """The rate of a working server, in requests per second."""
        return self.speed * self.capacity_rps


def in_server(filled: float, variation: float = 1.0, speed: float = 1.0) -> float:
    """Requests in a server at the utilisation `filled`; finite and convex above `FULL`.

    `variation`: c² in the module's docstring; `speed`: as `Alike.speed`.
    """
    within = min(filled, FULL)
    busy = within / speed
    waiting = busy * busy / (1.0 - busy) * (variation + 1.0) / 2.0
    return busy + waiting + SLOPE * (filled - within)


def by_share(groups: Sequence[Alike], total_rps: float) -> float:
    """Requests in the pool when the weights are shares of the rate."""
    whole = math.fsum(group.count * group.weight for group in groups)
    return math.fsum(
        group.count
        * in_server(total_rps * group.weight / whole / group.capacity_rps, group.weight / whole, group.speed)
        for group in groups
        if group.weight > 0.0
    )


def own_queues(groups: Sequence[Alike], total_rps: float) -> float:
    """Requests in the pool when each server holds them in proportion to its weight."""
    used = [group for group in groups if group.weight > 0.0]
    able_rps = math.fsum(group.count * group.capacity_rps for group in used)
    served_rps = min(total_rps, FULL * able_rps)
    held = in_flight_each(used, served_rps) * math.fsum(group.count * group.weight for group in used)
    return held + SLOPE * (total_rps - served_rps) / able_rps


def in_flight_each(groups: Sequence[Alike], total_rps: float) -> float:
    """Requests that a server of `own_queues` holds for each unit of its weight.

    A rate above `FULL` of the capacity counts as `FULL` of it. The same equation gives the rate at which idle servers
    get requests (`_limited`).
    """
    used = [group for group in groups if group.weight > 0.0]
    served_rps = min(total_rps, FULL * math.fsum(group.count * group.capacity_rps for group in used))
    # Σ min(s·μ·w·x/(1 + w·x), μ) = rate: concave and rising in x, so Newton from the left of the root never overshoots.
    each = 0.0
    for _ in range(NEWTON):
        value = slope = 0.0
        for group in used:
            below = 1.0 + group.weight * each
            answered_rps = group.working_rps * group.weight * each / below
            if answered_rps < group.capacity_rps:
                slope += group.count * group.working_rps * group.weight / below**2
            value += group.count * min(answered_rps, group.capacity_rps)
        if served_rps - value <= PRECISION * served_rps:
            break
        each += (served_rps - value) / slope
    return each


def one_queue(groups: Sequence[Alike], total_rps: float) -> float:
    """Requests in the pool when no server idles while a request waits. All weights above 0 count alike."""
    used = [group for group in groups if group.weight > 0.0]
    able_rps = math.fsum(group.count * group.capacity_rps for group in used)
    served_rps = min(total_rps, FULL * able_rps)
    used, rate_rps = _limited(used, served_rps)
    count = sum(group.count for group in used)
    if count > EXACT:
        held = math.fsum(group.count * rate_rps / (rate_rps + group.working_rps) for group in used)
    else:
        held = _few(used, count, served_rps)
    return held + SLOPE * (total_rps - served_rps) / able_rps


def _limited(used: Sequence[Alike], rps: float) -> tuple[list[Alike], float]:
    """The groups, slower where their servers would answer more than their capacity, and the rate g at which each idle
    server gets requests.

    A server that works at the rate μ is busy for g/(g + μ) of the time (A. L. Stolyar, "Pull-based load distribution in
    large-scale heterogeneous service systems", Queueing Systems 80, 2015). That is `own_queues` with the weights 1/μ.
    """
    rate_rps = in_flight_each([replace(group, weight=1.0 / group.working_rps) for group in used], rps)
    limited = []
    for group in used:
        if group.working_rps * rate_rps > group.capacity_rps * (rate_rps + group.working_rps):
            group = replace(group, speed=rate_rps / (rate_rps - group.capacity_rps))
        limited.append(group)
    return limited, rate_rps


def _few(used: Sequence[Alike], count: int, rps: float) -> float:
    """Requests held by n = `count` servers, exactly.

    P(k busy) is in proportion to (n - k)!/n! · λ^k · e_k(1/μ), with e_k the elementary symmetric polynomials. Beyond n
    it falls by the factor of the utilisation with each request.
    """
    symmetric = [1.0] + [0.0] * count
    for group in used:
        busy = rps / group.working_rps
        for _ in range(group.count):
            for k in range(count, 0, -1):
                symmetric[k] += busy * symmetric[k - 1]
    chances = []
    orders = 1.0
    for k, value in enumerate(symmetric):
        chances.append(value * orders)
        orders /= max(count - k, 1)
    filled = rps / math.fsum(group.count * group.working_rps for group in used)
    waiting = filled / (1.0 - filled)
    whole = math.fsum(chances) + chances[-1] * waiting
    held = math.fsum(k * chance for k, chance in enumerate(chances))
    return (held + chances[-1] * waiting * (count + 1.0 / (1.0 - filled))) / whole
