"""`heimdall-rf` and `heimdall-svm`: the p95 of every configuration is predicted from the load of the last second.

Source: Eggen and Eggen, "Estimating Tail-Latency of Latency-Sensitive Workloads" (NTNU 2019), sections 3.2 and 3.3. The
configuration with the highest prediction below the target less a slack of 10% is chosen (equation 3.2); where there is
none, the one with the lowest prediction. Ties go to the least power. Inputs are thousands of requests per second, cores
and the clock's step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slackwater.detector.features.columns import Floats
from slackwater.detector.tail.data import COLUMNS, Rows
from slackwater.detector.tail.estimator import TailEstimator
from slackwater.governor.types import Action, Configuration, Hardware, Observation, whole

SLACK_SHARE = 0.1
"""Share of the target."""


def inputs(hardware: Hardware, rps: Floats | float, configurations: Sequence[Configuration]) -> Floats:
    """(N, len(COLUMNS)) the estimators' inputs: one row for each configuration."""
    matrix = np.zeros((len(configurations), len(COLUMNS)))
    matrix[:, 0] = np.asarray(rps) / 1e3
    matrix[:, 1] = [configuration.cores for configuration in configurations]
    matrix[:, 2] = [hardware.step_of(configuration.clock_mhz) for configuration in configurations]
    return matrix


def rows(
    hardware: Hardware, rps: Floats, configurations: Sequence[Configuration], numbers: Sequence[int], p95_ms: Floats
) -> Rows:
    """What was measured, as the estimators take it: of each second the load, the configuration, its number, its p95."""
    return Rows(inputs(hardware, rps, configurations), p95_ms, np.asarray(numbers, dtype=np.int64))


def choose(predicted_ms: Floats, target_ms: float, watts: Floats) -> int:
    """Equation 3.2: number of the configuration."""
    slack_ms = SLACK_SHARE * target_ms
    below = predicted_ms < target_ms - slack_ms
    score = np.where(below, predicted_ms, target_ms - predicted_ms - slack_ms)
    if below.any():
        score = np.where(below, score, -np.inf)
    best = np.flatnonzero(score == score.max())
    return int(best[np.argmin(watts[best])])


class Heimdall:
    period_s = 1.0

    def __init__(self, name: str, hardware: Hardware, target_ms: float, estimator: TailEstimator) -> None:
        """`estimator` is fitted already."""
        self.name = name
        self._hardware, self._target_ms, self._estimator = hardware, target_ms, estimator
        self._all = hardware.configurations()
        self._watts = np.array([hardware.power_w(configuration, 1.0) for configuration in self._all])
        self._inputs = inputs(hardware, 0.0, self._all)

    def start(self) -> Action:
        return whole(self._hardware.highest)

    def decide(self, seen: Observation) -> Action:
        self._inputs[:, 0] = seen.rps / 1e3
        return whole(self._all[choose(self._estimator.predict_ms(self._inputs), self._target_ms, self._watts)])
