"""Heimdall's tabular reinforcement learner (section 3.2.2), with Hipster's parameters (section 4.1.7): learning rate
0.1, discount 0.6, exploration 0.05.

State: configuration and request rate in buckets. Action: one of ten estimates, in equal buckets from the least latency
to the QoS target, with all violations in the uppermost. Reward: minus the absolute error. It learns online, by `learn`
after each second. `predict_ms` predicts a hypothetical state (a weight that was not tried), and changes nothing.
"""

from __future__ import annotations

import numpy as np

from slackwater.detector.features.columns import Floats, Ints
from slackwater.detector.tail.data import Rows
from slackwater.detector.tail.estimator import NotFitted

ALPHA, GAMMA, EPSILON = 0.1, 0.6, 0.05
ACTIONS = 10
RPS_BUCKETS = 20
WAIT_EDGES = (0.5, 1.5, 4.0, 12.0)
"""Bucket edges of the run delay per CPU second: a table needs whole numbers, and a neighbour is there or not."""


class TabularLearner:
    """Tabular learner. `least_ms` and `target_ms` are by default the 1st and the 95th percentile of the rows."""

    name = "reinforcement learning"

    def __init__(self, least_ms: float | None = None, target_ms: float | None = None, seed: int = 0) -> None:
        self._given = (least_ms, target_ms)
        self._random = np.random.default_rng(seed)
        self._least_ms = self._target_ms = 0.0
        self._most_rps = 0.0
        self._values: dict[tuple[int, ...], Floats] = {}

    def fit(self, rows: Rows) -> None:
        """Learns from the rows in their order, once, from an empty table."""
        least_ms, target_ms = self._given
        self._least_ms = float(np.quantile(rows.p95_ms, 0.01)) if least_ms is None else least_ms
        self._target_ms = float(np.quantile(rows.p95_ms, 0.95)) if target_ms is None else target_ms
        self._most_rps = float(rows.inputs[:, 0].max(initial=1.0))
        self._values = {}
        for number in range(len(rows.p95_ms)):
            following = rows.inputs[number + 1] if number + 1 < len(rows.p95_ms) else None
            self.learn(rows.inputs[number], float(rows.p95_ms[number]), following)

    def learn(self, inputs: Floats, measured_ms: float, following: Floats | None = None) -> float:
        """Learns from a second with these inputs, (len(COLUMNS),), and its measured p95; returns the estimate in ms.

        The estimate is sometimes random (epsilon). Its reward is the higher the closer it is to the measured value.
        `following`: inputs of the next second.
        """
        self._check()
        values = self._values.setdefault(self._state(inputs), np.zeros(ACTIONS))
        action = int(self._random.integers(ACTIONS)) if self._random.random() < EPSILON else _best(values)
        estimate_ms = float(self.levels_ms[action])
        reward = -abs(estimate_ms - min(measured_ms, self._target_ms))
        next_values = self._values.get(self._state(following)) if following is not None else None
        best_next = float(next_values.max()) if next_values is not None else 0.0
        values[action] += ALPHA * (reward + GAMMA * best_next - values[action])
        return estimate_ms

    def predict_ms(self, inputs: Floats) -> Floats:
        """(N,) the middle of the likeliest bucket in ms. An unknown state counts as the nearest known one."""
        self._check()
        return np.array([self.levels_ms[_best(self._nearest(self._state(row)))] for row in inputs])

    def buckets(self, p95_ms: Floats) -> Ints:
        """(N,) bucket of each response time. Violations are in the uppermost."""
        width = (self._target_ms - self._least_ms) / ACTIONS
        return np.clip((p95_ms - self._least_ms) / max(width, 1e-9), 0, ACTIONS - 1).astype(np.int64)

    @property
    def levels_ms(self) -> Floats:
        """(ACTIONS,) the estimates in ms: the middles of the buckets."""
        width = (self._target_ms - self._least_ms) / ACTIONS
        return np.asarray(self._least_ms + width * (np.arange(ACTIONS) + 0.5), dtype=np.float64)

    def correctness(self, rows: Rows) -> float:
        """Share of rows whose estimate is in the bucket of the measured value (section 4.2.2)."""
        return float(np.mean(self.buckets(self.predict_ms(rows.inputs)) == self.buckets(rows.p95_ms)))

    def _state(self, inputs: Floats) -> tuple[int, ...]:
        rps, cores, clock, wait = (float(value) for value in inputs)
        bucket = min(RPS_BUCKETS - 1, int(rps / self._most_rps * RPS_BUCKETS))
        return bucket, round(cores * 10), round(clock / 100), int(np.searchsorted(WAIT_EDGES, wait))

    def _nearest(self, state: tuple[int, ...]) -> Floats:
        if state in self._values:
            return self._values[state]
        return self._values[min(self._values, key=lambda known: _distance(known, state))]

    def _check(self) -> None:
        if self._most_rps <= 0:
            raise NotFitted("the reinforcement learner has learnt nothing yet")


def _best(values: Floats) -> int:
    """The action of the highest value. Values start at 0 and rewards are negative, so each action is tried first."""
    return int(values.argmax())


def _distance(known: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, int]:
    """Distance of two states. Another configuration is further than any request rate."""
    return sum(abs(a - b) for a, b in zip(known[1:], other[1:], strict=True)), abs(known[0] - other[0])
