"""What sets the weights in a simulation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slackwater.core.config import LbengineSettings
from slackwater.core.messages import Sample
from slackwater.detector.classify.tree import Model
from slackwater.detector.features.columns import Floats, Ints
from slackwater.lbengine.backends.haproxy.algorithms import weights_mean
from slackwater.lbengine.decision.room import in_flight
from slackwater.lbengine.laws import laws as law
from slackwater_lab.sim.balancers.table import BALANCERS
from slackwater_lab.sim.control import BASE_WEIGHT, Balancing, Detecting, pool_settings
from slackwater_lab.sim.outcome import Score
from slackwater_lab.sim.setup import LAWS, WITHOUT_MONITORS, Setup, SimulationError

DRAIN_BELOW = 0.95
"""The oracle drains noisy servers as long as the others stay below this share of their capacity."""
STALE_PERIODS = 5
"""A node is quiet after this number of periods without a Sample: 1 s at the default period, as in the settings."""


class Driver:
    """The policy of a simulation: weights of each balancer, (balancers, servers)."""

    def __init__(self, setup: Setup, policy: str, score: Score, model: Model | None) -> None:
        if policy != "static" and not BALANCERS[setup.balance].takes_weights:
            usable = " or ".join(name for name, balancer in BALANCERS.items() if balancer.takes_weights)
            raise SimulationError(f"{policy} with {setup.balance}, which takes no weights: expected {usable}")
        self.setup = setup
        self.weights: Ints = np.full((setup.balancers, setup.servers), BASE_WEIGHT, dtype=np.int64)
        self.has_monitors = policy not in WITHOUT_MONITORS
        self._policy, self._score = policy, score
        self._detecting: Detecting | None = None
        self._balancing: list[Balancing] = []
        self._capacity = setup.capacities()
        self._changed: set[int] = set()
        self.neighbours_changed(0.0, np.zeros(setup.servers))
        if policy in LAWS:
            stale_after_s = max(1.0, STALE_PERIODS * setup.period_s)
            self._detecting = Detecting(stale_after_s=stale_after_s, model=model)
            settings = LbengineSettings(lease_s=max(3.0, 3 * setup.period_s))
            pool = pool_settings(LAWS[policy], balances=policy == "slackwater-even")
            self._balancing = [Balancing(setup.names, setup.balance, pool, settings) for _ in range(setup.balancers)]

    @property
    def idle(self) -> bool:
        """Nobody listens to Samples."""
        return self._detecting is None

    def take_changes(self) -> list[Ints | None]:
        """The weights of each balancer where they changed since the last call, None where not."""
        changes = [self.weights[n] if n in self._changed else None for n in range(self.setup.balancers)]
        self._changed.clear()
        return changes

    def neighbours_changed(self, now_s: float, taken: Floats) -> None:
        """Tells the oracles the share that is taken from each server from now on."""
        if self._policy not in ("oracle", "oracle-split"):
            return
        left = self._capacity * (1.0 - taken)
        total_rps = self.setup.load * float(self._capacity.sum())
        quiet = np.where(taken > 0.0, 0.0, self._capacity)
        if self._policy == "oracle-split":
            wanted = self._weights_for(left, total_rps)
        elif not taken.any():
            wanted = np.full(self.setup.servers, BASE_WEIGHT, dtype=np.int64)
        elif total_rps <= DRAIN_BELOW * float(quiet.sum()):
            wanted = np.where(taken > 0.0, 0, BASE_WEIGHT)
        else:
            wanted = np.maximum(1, self._weights_for(left, total_rps))
        for number in range(self.setup.balancers):
            for server in np.flatnonzero(wanted != self.weights[number]).tolist():
                self.weights[number, server] = wanted[server]
                self._changed.add(number)
                self._score.moved(number, server, int(wanted[server]), now_s)

    def _weights_for(self, left: Floats, total_rps: float) -> Ints:
        """The split of least mean response time over what each server can carry."""
        rates = np.asarray(law.optimal(left.tolist(), total_rps))
        if weights_mean(self.setup.balance) == "concurrency":
            rates = np.array([in_flight(rate / mu) if mu > 0.0 else 0.0 for rate, mu in zip(rates, left, strict=True)])
        return np.asarray(np.round(BASE_WEIGHT * rates / max(float(rates.max()), 1e-9)), dtype=np.int64)

    def cycle(
        self, now_s: float, samples: Sequence[Sample], requests: Sequence[Sequence[int]], in_flight: Sequence[int]
    ) -> None:
        """One decision of each balancer. `requests` counts since the start, by balancer and server."""
        if self._detecting is None:
            return
        self._detecting.tick(now_s, samples)
        own = [round(held / self.setup.balancers) for held in in_flight]
        for number, balancing in enumerate(self._balancing):
            changed = balancing.cycle(now_s, self._detecting.latest, requests[number], own)
            for server, weight in changed.items():
                self.weights[number, server] = weight
                self._changed.add(number)
                self._score.moved(number, server, weight, now_s)
