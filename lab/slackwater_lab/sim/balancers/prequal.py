"""Prequal (B. Wydrowski, R. Kleinberg, S. M. Rumble, A. Archer: "Load is not what you should balance: Introducing
Prequal", NSDI 2024).

A probe asks a server for its requests in flight and for the response time to expect with so many: the median of the
latest that arrived at a like number. Each request probes 3 servers at random, and a pool keeps up to 16 answers for up
to a second. A server is hot when it has more in flight than the quantile `q_rif` of what probes found lately. Of the
pool, the quickest cold server is taken, or if all are hot the one with least in flight; what it then holds one more of
is noted in the pool. Each request removes a probe, the oldest and the worst in turn, and a probe serves at most so many
requests as the paper's formula allows. With fewer than two probes a server is taken at random.

Tuned: a probe is answered at once and costs nothing. A pool never holds more probes than there are servers, one each,
the latest: in a pool of three the paper's 16 would mostly be old ones.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from slackwater.detector.features.columns import Ints
from slackwater_lab.sim.balancers.base import Balancer

PROBES = 3
POOL = 16
OLDEST_S = 1.0
REMOVED = 1
SPARE = 1.0
"""The paper's delta: by how much probes must outnumber those that are removed."""
LATEST = 64
"""Response times that a server remembers; the paper says recent ones."""
RECENT = 64
"""Probes that the quantile is of."""


@dataclass
class Probe:
    """A server's report of itself."""

    server: int
    at_s: float
    in_flight: int
    expected_s: float
    uses: float


class Prequal(Balancer):
    """`q_rif` 0.84, the paper's base."""

    Q_RIF = 0.84

    def __init__(self, servers: int, weights: Ints, dice: np.random.Generator) -> None:
        super().__init__(servers, weights, dice)
        self._pool: list[Probe] = []
        self._size = min(POOL, servers)
        fresh = (1.0 - self._size / servers) * PROBES - REMOVED
        self._uses = max(1.0, (1.0 + SPARE) / fresh) if fresh > 0.0 else math.inf
        self._met = [deque[tuple[int, float]](maxlen=LATEST) for _ in range(servers)]
        """For each server's latest answers: requests in flight when the request came, and the time it took."""
        self._rifs: deque[int] = deque(maxlen=RECENT)
        self._arrived: dict[int, int] = {}
        self._removals = 0

    def pick(self, request: int, now_s: float) -> int:
        chosen = super().pick(request, now_s)
        self._arrived[request] = self.in_flight[chosen] - 1
        return chosen

    def answered(self, request: int, now_s: float) -> None:
        server, began_s = self._open[request]
        self._met[server].append((self._arrived.pop(request), now_s - began_s))
        super().answered(request, now_s)

    def choose(self, now_s: float) -> int:
        self._pool = [probe for probe in self._pool if now_s - probe.at_s <= OLDEST_S and probe.uses > 0.0]
        if len(self._pool) < 2:
            chosen = int(self.dice.integers(self.servers))
        else:
            best = self._ranked()[0]
            chosen = best.server
            best.uses -= 1.0
        for probe in self._pool:
            probe.in_flight += probe.server == chosen
        self._remove()
        self._probe(now_s, chosen)
        return chosen

    def _ranked(self) -> list[Probe]:
        """The pool, best first: cold ones by time, then hot ones by what they hold, as equals among the cold."""
        limit = sorted(self._rifs)[int(self.Q_RIF * (len(self._rifs) - 1))]

        def rank(probe: Probe) -> tuple[bool, float, int]:
            hot = probe.in_flight > limit
            return hot, 0.0 if hot else probe.expected_s, probe.in_flight

        return sorted(self._pool, key=rank)

    def _remove(self) -> None:
        """The oldest stands first: new ones are put behind."""
        if len(self._pool) > 2:
            self._removals += 1
            self._pool.remove(self._ranked()[-1] if self._removals % 2 == 0 else self._pool[0])

    def _probe(self, now_s: float, chosen: int) -> None:
        """The answers come after this request has left, so they count it."""
        for server in self.dice.permutation(self.servers)[:PROBES].tolist():
            held = self.in_flight[server] + (server == chosen)
            self._rifs.append(held)
            self._pool = [probe for probe in self._pool if probe.server != server]
            self._pool.append(Probe(server, now_s, held, self._expected_s(server, held), self._uses))
        self._pool = self._pool[-self._size :]

    def _expected_s(self, server: int, held: int) -> float:
        """The median over the nearest number in flight that was met."""
        met = self._met[server]
        if not met:
            return 0.0
        nearest = min(met, key=lambda point: abs(point[0] - held))[0]
        times = sorted(took_s for count, took_s in met if count == nearest)
        return times[len(times) // 2]


class Prequal60(Prequal):
    """`q_rif` 0.6: response times decide less often."""

    Q_RIF = 0.6
