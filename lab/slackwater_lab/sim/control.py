"""Slackwater in simulated time: the detector's `Judge`, lbengine's `step`, imported
as they are; only bus, sockets and clocks are the simulation's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slackwater.core.config import DetectorSettings, LbengineSettings, PoolSettings
from slackwater.core.messages import Sample, Verdict
from slackwater.detector.classify.tree import SHIPPED, Model, load
from slackwater.detector.features.columns import Floats, Ints
from slackwater.detector.judge import Judge
from slackwater.lbengine.backends.haproxy.algorithms import weights_mean
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.balancer import Server, Snapshot
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.decision.position import Position
from slackwater.lbengine.decision.state import PoolState, PoolView
from slackwater.lbengine.decision.step import step
from slackwater.lbengine.verdicts import LatestVerdicts
from slackwater_lab.sim.balancers.table import BALANCERS
from slackwater_lab.sim.signals import POOL

BASE_WEIGHT = 100
BALANCE_STEP_S = 10.0
"""Time between two steps of weights in calm: an hour would be as long as a simulation."""


def pool_settings(law: str = "optimal", max_mitigated: float = 0.5, balances: bool = False) -> PoolSettings:
    """The pool as its settings would say. Raises msgspec.ValidationError for a law that there is none."""
    import msgspec

    given = {
        "balancer": HAProxyPool.word(),
        "name": POOL,
        "backend": POOL,
        "socket": "/simulated",
        "mode": "act",
        "law": law,
        "max_mitigated": max_mitigated,
        "balance_capacity": balances,
        "balance_step_s": BALANCE_STEP_S,
    }
    return msgspec.convert(given, HAProxyPool)


class Detecting:
    """The detector of the pool; its Verdicts go to every load balancer."""

    def __init__(self, *, stale_after_s: float = 1.0, model: Model | None = None) -> None:
        self.judge = Judge.of(POOL, DetectorSettings(stale_after_s=stale_after_s), model or load(SHIPPED))
        self.latest = LatestVerdicts()
        self.states: dict[str, str] = {}

    def tick(self, now_s: float, samples: Sequence[Sample]) -> list[Verdict]:
        """Judges what has arrived by now; gives the new Verdicts."""
        verdicts = self.judge.tick(now_s, samples)
        for verdict in verdicts:
            self.latest.put(verdict, now_s)
            self.states[verdict.node] = verdict.state
        return verdicts


class Balancing:
    """lbengine of one load balancer: it sees its own balancer's counters and the pool's Verdicts."""

    def __init__(self, names: Sequence[str], balance: str, pool: PoolSettings, settings: LbengineSettings) -> None:
        self.names = list(names)
        self.weights: Ints = np.full(len(names), BASE_WEIGHT, dtype=np.int64)
        """(servers,) as the balancer has them now."""
        self._balance = BALANCERS[balance].shown_as
        self._pool, self._settings = pool, settings
        self._index = {name: number for number, name in enumerate(names)}
        self._state = PoolState(
            "acting",
            baselines={name: Baseline(BASE_WEIGHT, BASE_WEIGHT) for name in names},
            positions={name: Position(BASE_WEIGHT) for name in names},
            started_s=0.0,
        )

    def cycle(
        self, now_s: float, verdicts: LatestVerdicts, requests: Sequence[int], in_flight: Sequence[int]
    ) -> Mapping[int, int]:
        """One turn: `requests` are counted since the start. Gives server -> new weight, which are in force at once."""
        servers = tuple(
            Server(name=name, weight=weight, configured=BASE_WEIGHT, in_flight=flying, requests=count)
            for name, weight, flying, count in zip(self.names, self.weights.tolist(), in_flight, requests, strict=True)
        )
        snapshot = Snapshot(balance=self._balance, weights_mean=weights_mean(self._balance), servers=servers)
        view = PoolView(now_s=now_s, snapshot=snapshot, verdicts=verdicts.fresh(now_s, self._settings.lease_s))
        self._state, actions = step(self._state, view, self._pool, self._settings)
        changed = {self._index[change.server]: change.after for change in actions.wanted}
        for number, weight in changed.items():
            self.weights[number] = weight
        return changed


class Turns:
    """Counts how often a server's weight turned from falling to rising or back, after it had time to settle."""

    def __init__(self, servers: int, settle_s: float) -> None:
        self.settle_s = settle_s
        self.counted = 0
        self.moves = 0
        self._last: Ints = np.zeros(servers, dtype=np.int64)
        self._changed_s: Floats = np.full(servers, -np.inf)

    def neighbour_changed(self, server: int, now_s: float) -> None:
        """The neighbour came or went: what follows within `settle_s` is the right answer, and its way there."""
        self._changed_s[server], self._last[server] = now_s, 0

    def moved(self, server: int, before: int, after: int, now_s: float) -> None:
        """Takes one change of a weight in."""
        self.moves += 1
        direction = 1 if after > before else -1
        if now_s - self._changed_s[server] > self.settle_s and self._last[server] == -direction:
            self.counted += 1
        self._last[server] = direction
