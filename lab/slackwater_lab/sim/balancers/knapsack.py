"""KnapsackLB (R. Gandhi, S. Narayana: "KnapsackLB: Enabling Performance-Aware Layer-4 Load Balancing", arXiv
2404.17783).

For each server it learns a curve from weight to mean response time: a polynomial of second degree through a few
measurements, up to the highest weight that was tried. Then it chooses the weights of the least mean response time, an
integer program over a grid of weights (here solved exactly, server by server). Where a server's measured time is above
its curve, the server has lost capacity: the curve is compressed along the weights until it fits, and the program is
solved anew. The weights drive a weighted round robin.

Tuned: it looks every second at the response times of all requests, where the paper sends probes and takes seconds to
minutes; a new measurement counts half, so that chance does not move the weights; and every server keeps a weight of 2%,
at which it is still measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from slackwater.detector.features.columns import Floats, Ints
from slackwater_lab.sim.balancers.haproxy import RoundRobin

INTERVAL_S = 1.0
STEPS = 50
"""Steps of the grid of weights."""
TRIED = (1.0, 0.5, 1.5, 0.75, 1.25)
"""Multiples of an even share at which servers are measured first."""
ENOUGH = 10
"""Requests that a measurement takes."""
FRESH = 0.5
LOST = np.geomspace(1.0, 20.0, 61)
"""The factors by which a curve may be compressed."""
GRID = np.linspace(0.0, 1.0, STEPS + 1)


def fitted(shares: Sequence[float], times_s: Sequence[float]) -> tuple[float, float, float]:
    """The polynomial a + b·w + c·w², all 0 or more, that is nearest to these times at these weights."""
    weights = np.asarray(shares)
    coefficients, _ = nnls(np.stack([np.ones_like(weights), weights, weights**2], axis=1), np.asarray(times_s))
    return float(coefficients[0]), float(coefficients[1]), float(coefficients[2])


def curve(polynomial: tuple[float, float, float], highest: float, lost: float) -> Floats:
    """(STEPS + 1,) response time at each weight of the grid for a server whose weights count `lost` times as much;
    infinite beyond the highest weight that was tried, but for the first step, which every server keeps."""
    weights = GRID * lost
    times = polynomial[0] + polynomial[1] * weights + polynomial[2] * weights**2
    return np.where((weights <= highest + 0.5 * lost / STEPS) | (np.arange(STEPS + 1) <= 1), times, np.inf)


def split(curves: Sequence[Floats]) -> list[int]:
    """The weights, in steps of the grid, 1 at least and `STEPS` together, with the least mean response time.

    Servers are added one by one: `best[n]` is the least sum for those so far with n steps together.
    """
    steps = np.arange(STEPS + 1)
    costs = [np.where(steps >= 1, steps * curve, np.inf) for curve in curves]
    best, chosen = costs[0], []
    for cost in costs[1:]:
        table = np.full((STEPS + 1, STEPS + 1), np.inf)
        for own in range(1, STEPS + 1):
            table[own:, own] = best[: STEPS + 1 - own] + cost[own]
        chosen.append(table.argmin(axis=1))
        best = table.min(axis=1)
    left, weights = STEPS, []
    for taken in reversed(chosen):
        weights.append(int(taken[left]))
        left -= weights[-1]
    return [left, *reversed(weights)]


class Knapsack(RoundRobin):
    """Weights are its own."""

    takes_weights = False

    def __init__(self, servers: int, weights: Ints, dice: np.random.Generator) -> None:
        super().__init__(servers, weights, dice)
        self._next_s = INTERVAL_S
        self._round = 0
        self._seen: list[list[float]] = [[] for _ in range(servers)]
        self._shares: list[list[float]] = [[] for _ in range(servers)]
        self._times_s: list[list[float]] = [[] for _ in range(servers)]
        self._polynomials: list[tuple[float, float, float]] = []
        self._lost = [1.0] * servers

    def choose(self, now_s: float) -> int:
        if now_s >= self._next_s:
            self._next_s = now_s + INTERVAL_S
            self._control()
        return super().choose(now_s)

    def learn(self, server: int, _now_s: float, took_s: float) -> None:
        self._seen[server].append(took_s)

    def _control(self) -> None:
        total = sum(self.weights)
        measured = [
            (server, self.weights[server] / total, float(np.mean(times)))
            for server, times in enumerate(self._seen)
            if len(times) >= ENOUGH
        ]
        for server, _, _ in measured:
            self._seen[server] = []
        if self._polynomials:
            self._follow(measured)
            return
        self._round += 1
        for server, share, time_s in measured:
            self._shares[server].append(share)
            self._times_s[server].append(time_s)
        if self._round <= 2 * len(TRIED) or not all(self._shares):
            tried = [TRIED[(self._round + number) % len(TRIED)] for number in range(self.servers)]
            self.set_weights(np.round(100 * np.array(tried)).astype(np.int64))
            return
        self._polynomials = [fitted(*pair) for pair in zip(self._shares, self._times_s, strict=True)]
        self._solve()

    def _follow(self, measured: Sequence[tuple[int, float, float]]) -> None:
        for server, share, time_s in measured:
            flat, line, bend = self._polynomials[server]
            expected_s = flat + line * share * LOST + bend * (share * LOST) ** 2
            lost = float(LOST[np.abs(expected_s - time_s).argmin()])
            self._lost[server] += FRESH * (lost - self._lost[server])
        if measured:
            self._solve()

    def _solve(self) -> None:
        """Solves for the shares; assumes less lost everywhere where the servers cannot take all requests together."""
        less = 1.0
        while True:
            curves = [
                curve(polynomial, max(shares), max(1.0, lost * less))
                for polynomial, shares, lost in zip(self._polynomials, self._shares, self._lost, strict=True)
            ]
            if sum(int(np.flatnonzero(np.isfinite(values))[-1]) for values in curves) >= STEPS:
                break
            if less < 1e-3:
                curves = [curve(polynomial, 1.0, 1.0) for polynomial in self._polynomials]
                break
            less *= 0.9
        self.set_weights(np.array(split(curves)))
