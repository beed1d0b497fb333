"""Room: how full the others would be, and the load that a slow or drained server keeps so that they stay below the
threshold. Pure.

Some weights share the requests: a server's rate is in proportion to its weight. Under least connections
(`by_concurrency`) its requests in flight are in proportion to its weight. At a utilisation f a processor-sharing server
holds f/(1 - f) requests, so a search for the common factor gives the rates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from slackwater.lbengine.decision.loads import Load, capacities

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
    """The weights, raised for the servers that are not `kept` until no kept server is too full, or those are as full.

    Each is raised by the same share of the way to its baseline, in whole `step`s.
    """
    raised = [not keeps for keeps in kept]
    limit = allowed(capacity, total_rps, u_threshold)

    def given_back(share: float) -> list[int]:
        return [
            weight if keeps else min(weight + step * math.ceil(share * (baseline - weight) / step), baseline)
            for weight, baseline, keeps in zip(weights, baselines, kept, strict=True)
        ]

    def fits(trial: Sequence[int]) -> bool:
        filled = fullest(trial, capacity, kept, total_rps, by_concurrency)
        return filled <= limit or filled <= fullest(trial, capacity, raised, total_rps, by_concurrency)

    if fits(weights):
        return list(weights)
    share = least_share(lambda share: fits(given_back(share)))
    above, below = given_back(share), given_back(share - 0.5**STEPS)
    if fullest(above, capacity, kept, total_rps, by_concurrency) <= limit:
        return above
    every = [True] * len(kept)
    return min((above, below), key=lambda trial: fullest(trial, capacity, every, total_rps, by_concurrency))


def least_share(fits: Callable[[float], bool]) -> float:
    """The least share, 0 to 1 and to within 1/256, that fits; 1 if none does. More never fits worse."""
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


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


@dataclass(frozen=True)
class Room:
    """The servers that share the pool's requests (`staying`), those to drain (`leaving`), and the pool's rate."""

    staying: Sequence[Load]
    leaving: Sequence[Load]
    total_rps: float | None
    """None: not known."""
    u_threshold: float
    by_concurrency: bool

    @cached_property
    def rps(self) -> float | None:
        """Requests/s that the staying servers have to carry; None: not known."""
        return None if self.total_rps is None else self.total_rps - self._left_rps

    def limit(self) -> float:
        """The highest utilisation, as `filled` predicts it, that a server which keeps its weight may have."""
        capacity, rps = self._able, self.rps
        if capacity is None or rps is None:
            return self.u_threshold + OVER
        return allowed(capacity, rps, self.u_threshold)

    def filled(self, weights: Mapping[str, int], without: Collection[str] = ()) -> float:
        """Predicted utilisation of the fullest server that is neither reduced nor named in `without`.

        It is predicted from the rate and the capacities; where these are not known from the present CPU utilisations;
        without these it is 0.
        """
        given = [weights[load.server] for load in self.staying]
        kept = [not load.reduce and load.server not in without for load in self.staying]
        capacity, rps = self._able, self.rps
        if capacity is not None and rps is not None:
            return fullest(given, capacity, kept, rps, self.by_concurrency)
        now = [load.weight for load in self.staying]
        least = least_weight(now, [load.cpu for load in self.staying], kept, self.u_threshold)
        return least * self.u_threshold / max(sum(given), 1)

    def keeps(self, weights: Mapping[str, int], min_change: float) -> dict[str, int]:
        """The weights of the servers to drain: 0, or as much as the staying servers cannot carry with `weights`.

        A change below `min_change`, as a share of the baseline, is not made.
        """
        if not self.leaving:
            return {}
        others = [weights[load.server] for load in self.staying]
        kept = {}
        for load, wanted in zip(self.leaving, self._keep(others), strict=True):
            weight, now = min(wanted, load.baseline), load.weight
            if 0 < abs(weight - now) < min_change * load.baseline and weight > 0 and now < load.baseline:
                weight = now
            kept[load.server] = weight
        return kept

    def _keep(self, others: Sequence[int]) -> list[int]:
        capacity, left_rps, rps = self._all, self._left_rps, self.rps
        if capacity is None or rps is None:
            least = least_weight(
                [*(load.weight for load in self.staying), *(load.weight for load in self.leaving)],
                [load.cpu for load in (*self.staying, *self.leaving)],
                [not load.reduce for load in self.staying] + [False] * len(self.leaving),
                self.u_threshold,
            )
            return [math.ceil(max(least - sum(others), 0.0) / len(self.leaving)) for _ in self.leaving]
        able, own = capacity[: len(self.staying)], capacity[len(self.staying) :]
        return [weight_for(left_rps * mu / math.fsum(own), mu, others, able, rps, self.by_concurrency) for mu in own]

    @cached_property
    def _able(self) -> list[float] | None:
        return capacities(self.staying)

    @cached_property
    def _all(self) -> list[float] | None:
        return capacities([*self.staying, *self.leaving])

    @cached_property
    def _left_rps(self) -> float:
        """Requests/s that the servers to drain keep together; 0 where that is not known."""
        if not self.leaving or self._all is None or self.total_rps is None:
            return 0.0
        able, own = self._all[: len(self.staying)], self._all[len(self.staying) :]
        return left_rps(math.fsum(able), math.fsum(own), self.total_rps, self.u_threshold)
