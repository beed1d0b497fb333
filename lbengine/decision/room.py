"""Room: how full the others would be, and the load that slow and drained servers keep so that they stay below the
threshold. Pure.

Some weights share the requests: a server's rate is in proportion to its weight. Under least connections
(`by_concurrency`) its requests in flight are in proportion to its weight. At a utilisation f a processor-sharing server
holds f/(1 - f) requests, so a search for the common factor gives the rates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from slackwater.lbengine.decision.loads import Load, capacities

OVER = 0.02
"""A utilisation this little above the threshold is within the noise of the estimates and of whole weights."""
FULLEST = 0.98
"""Highest utilisation for which the queue's length is computed, since it is infinite at 1."""
HELD = 2.0
"""Requests that a slow server holds under least connections with any weight above 0: one that it answers, and now and
then one that waits. Where more than these wait at the others for each drained server, users are better off with it."""
SURELY = 3.0
"""Standard deviations by which they must exceed that. Else chance alone ends the drains of a large pool."""
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


@dataclass(frozen=True)
class Room:
    """The servers that share the pool's requests, and the pool's rate."""

    loads: Sequence[Load]
    total_rps: float | None
    """None: not known."""
    u_threshold: float
    by_concurrency: bool
    step: int = 1
    """Weights are multiples of this."""
    undrained: Mapping[str, int] = field(default_factory=dict)
    """With `by_concurrency`: the weights of `split.concurrency_weights`, of the servers that a law reduces."""

    def filled(self, weights: Mapping[str, int], judged: Collection[str]) -> float:
        """Predicted utilisation of the fullest of the `judged` servers under these weights.

        It is predicted from the rate and the capacities. Where these are not known a server's present CPU utilisation
        is taken to follow its share of the weight; where that is not known either it is 0.
        """
        given = [weights[load.server] for load in self.loads]
        which = [load.server in judged for load in self.loads]
        if self._capacity is not None and self.total_rps is not None:
            return fullest(given, self._capacity, which, self.total_rps, self.by_concurrency)
        now = [load.cpu for load, judge in zip(self.loads, which, strict=True) if judge and load.weight and load.cpu]
        return sum(load.weight for load in self.loads) * max(now, default=0.0) / max(sum(given), 1)

    def give_back(self, weights: Mapping[str, int], low: Set[str]) -> tuple[float | None, dict[str, int]]:
        """How full the fullest server that keeps its weight would be (None: not too full, but requests wait there), and
        the weights that the servers in `low` get for that.

        They are raised until no server that keeps its weight is too full: each by the same share of the way to the
        weight at which it is as full itself. Under least connections they get the weights that share the requests in
        flight best, at once. Nothing is raised where none is too full and, beside drained servers, few requests wait.
        """
        kept = {load.server for load in self.loads if not load.reduce and load.server not in low}
        filled, limit = self.filled(weights, kept), self._limit()
        if low and low <= self.undrained.keys() and (filled > limit or self._wait(weights, kept, low)):
            more = {name: self.undrained[name] for name in low if self.undrained[name] > weights[name]}
            return filled if filled > limit else None, more
        if filled <= limit or not low:
            return filled, {}
        whole = {load.server: load.baseline for load in self.loads if load.server in low}
        most = self._as_full(weights, kept, whole)

        def raised(share: float, less: int = 0) -> dict[str, int]:
            """All weights, with those in `low` this share of the way to the most that they get, in steps rounded up;
            or `less` steps below that."""
            way = {name: share * (most[name] - weights[name]) / self.step for name in low}
            steps = {name: max(math.ceil(way[name] - 1e-9) - less, 0) for name in low}
            return {**weights, **{name: min(weights[name] + self.step * steps[name], whole[name]) for name in low}}

        below, above = 0.0, 1.0
        for _ in range(STEPS):
            middle = (below + above) / 2.0
            fits = self.filled(raised(middle), kept) <= limit - OVER
            below, above = (below, middle) if fits else (middle, above)
        fitting = raised(above)
        if self.filled(fitting, kept) > self.u_threshold + OVER:  # a step up may fill a small one yet more
            every = [load.server for load in self.loads]
            fitting = min((fitting, raised(above, less=1)), key=lambda trial: self.filled(trial, every))
        return filled, {name: fitting[name] for name in low if fitting[name] != weights[name]}

    def _as_full(
        self, weights: Mapping[str, int], kept: Collection[str], whole: Mapping[str, int]
    ) -> Mapping[str, float]:
        """The weights with which the servers in `whole` are as full as the fullest that keeps its weight, at most these
        baselines. They are not in whole steps: a small one rounded up would be full long before the others.
        """
        if self._capacity is None or self.total_rps is None:
            return whole
        # Under least connections servers with equal weights are equally full, whatever they carry.
        carries = {
            load.server: 1.0 if self.by_concurrency else mu for load, mu in zip(self.loads, self._capacity, strict=True)
        }
        fullest = max((weights[name] / carries[name] for name in kept), default=0.0)
        return {name: max(min(fullest * carries[name], whole[name]), weights[name]) for name in whole}

    def _wait(self, weights: Mapping[str, int], kept: Collection[str], low: Collection[str]) -> bool:
        """Whether surely more requests wait at the servers that keep their weights than the drained ones would hold."""
        drained = sum(weights[name] == 0 for name in low)
        queues = [load.queue for load in self.loads if load.server in kept]
        spread = math.sqrt(math.fsum(queue.variance for queue in queues))
        waits = math.fsum(queue.mean for queue in queues) > HELD * drained + SURELY * spread
        return self.by_concurrency and drained > 0 and waits

    @cached_property
    def _capacity(self) -> list[float] | None:
        return capacities(self.loads)

    @property
    def is_known(self) -> bool:
        """Whether it is known what the servers carry, and what comes."""
        return self._capacity is not None and self.total_rps is not None

    def _limit(self) -> float:
        """The highest utilisation that a server which keeps its weight may have."""
        if self._capacity is None or self.total_rps is None:
            return self.u_threshold + OVER
        return allowed(self._capacity, self.total_rps, self.u_threshold)
