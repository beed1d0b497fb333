"""Residual capacity: how full the others would be, and the load that a slow or drained server keeps so that they stay
below the threshold. Pure functions of weights and rates.

Some weights share the requests: a server's rate is in proportion to its weight. Under least connections
(`by_concurrency`) its requests in flight are in proportion to its weight. At a utilisation f a processor-sharing server
holds f/(1 - f) requests, so a search for the common factor gives the rates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

OVER = 0.02
"""A utilisation this little above the threshold is within the noise of the estimates and of whole weights."""
FULLEST = 0.98
"""Highest utilisation for which the queue's length is computed, since it is infinite at 1."""
HALVINGS = 40
STEPS = 8
"""Steps of the search for the share to give back, which find it to within 1/256."""


def allowed(capacity: Sequence[float], total_rps: float, u_threshold: float) -> float:
    """The utilisation that no server should exceed: the threshold, or if higher that of all servers filled alike."""
    return max(u_threshold, total_rps / math.fsum(capacity)) + OVER


def in_flight(filled: float) -> float:
    """Requests that a processor-sharing server holds on average at this utilisation."""
    filled = min(filled, FULLEST)
    return filled / (1.0 - filled)


def fullest(
    weights: Sequence[int], capacity: Sequence[float], kept: Sequence[bool], total_rps: float, by_concurrency: bool
) -> float:
    """Predicted utilisation of the fullest of the `kept` servers under these weights; 0 when there is none.

    Under least connections a pool that is full gives its rate over its capacity instead.
    """
    alike = Counter(zip(weights, capacity, kept, strict=True))
    whole = sum(weight * count for (weight, _, _), count in alike.items())
    judged = [(weight, mu) for weight, mu, keeps in alike if keeps and weight > 0]
    if not judged:
        return 0.0
    if not by_concurrency:
        return max(total_rps * weight / whole / mu for weight, mu in judged)
    able_rps = math.fsum(mu * count for (weight, mu, _), count in alike.items() if weight > 0)
    if total_rps >= FULLEST * able_rps:
        return total_rps / able_rps
    low, high = 0.0, 2.0 * in_flight(FULLEST)  # requests in flight for each unit of weight
    for _ in range(HALVINGS):
        factor = (low + high) / 2.0
        served = math.fsum(
            count * mu * weight * factor / (1.0 + weight * factor) for (weight, mu, _), count in alike.items()
        )
        low, high = (low, factor) if served >= total_rps else (factor, high)
    return max(weight * high / (1.0 + weight * high) for weight, _ in judged)


def give_back(
    weights: Sequence[int],
    baselines: Sequence[int],
    capacity: Sequence[float],
    kept: Sequence[bool],
    total_rps: float,
    u_threshold: float,
    by_concurrency: bool,
    step: int = 1,
) -> list[int]:
    """The weights, raised for the servers that are not `kept` until no kept server is too full.

    Each is raised by the same share of the way to its baseline, in whole `step`s.
    """
    limit = allowed(capacity, total_rps, u_threshold)

    def given_back(share: float) -> list[int]:
        return [
            weight if keeps else min(weight + step * math.ceil(share * (baseline - weight) / step), baseline)
            for weight, baseline, keeps in zip(weights, baselines, kept, strict=True)
        ]

    def fits(trial: Sequence[int]) -> bool:
        return fullest(trial, capacity, kept, total_rps, by_concurrency) <= limit

    if fits(weights):
        return list(weights)
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if fits(given_back(middle)) else (middle, high)
    return given_back(high)


def left_rps(others_rps: float, own_rps: float, total_rps: float, u_threshold: float) -> float:
    """The part of `total_rps` that servers of capacity `own_rps` keep beside others of capacity `others_rps`.

    It is what the others cannot carry below the threshold, but at most what fills all servers alike.
    """
    too_much = max(total_rps - u_threshold * others_rps, 0.0)
    return min(too_much, total_rps * own_rps / (others_rps + own_rps))


def weight_for(
    rate: float,
    capacity: float,
    others: Sequence[int],
    others_capacity: Sequence[float],
    others_rate: float,
    by_concurrency: bool,
) -> int:
    """The least weight at which a server gets `rate`, beside others with these weights that get `others_rate`."""
    whole = sum(others)
    if rate <= 0.0 or whole <= 0 or others_rate <= 0.0:
        return 0
    if not by_concurrency:
        return math.ceil(whole * rate / others_rate)
    able_rps = math.fsum(mu for weight, mu in zip(others, others_capacity, strict=True) if weight > 0)
    able_count = sum(weight > 0 for weight in others)
    return max(1, math.ceil(whole / able_count * in_flight(rate / capacity) / in_flight(others_rate / able_rps)))


def least_weight(
    weights: Sequence[int], cpu: Sequence[float | None], kept: Sequence[bool], u_threshold: float
) -> float:
    """Sum of the pool's weights below which the CPU of the fullest kept server is predicted above the threshold.

    It is for pools whose rate or capacities are not known: a server's CPU is taken to follow its share of the weight.
    0 when no kept server's CPU is known.
    """
    kept_cpus = [use for weight, use, keeps in zip(weights, cpu, kept, strict=True) if keeps and weight and use]
    return sum(weights) * max(kept_cpus, default=0.0) / u_threshold
