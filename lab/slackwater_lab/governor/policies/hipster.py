"""`hipster`: a state machine fills a table of rewards, which then decides.

Source: Eggen and Eggen 2019, section 4.1.8 (learning rate 0.6, discount 0.9, buckets of 4% of the highest load, 500 s
of learning, two orders of the configurations), and for what it leaves out its author's thesis (R. Nishtala, chapter 4):
up from 0.80 of the target, the reward, and the update in both phases. That thesis steps down below 0.20 of the target,
which memcached never reaches here: the thresholds are parameters. A load bucket without a good entry gets the highest
configuration. The relearning, whose limit no source gives, is left out.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

import numpy as np

from slackwater.detector.features.columns import Floats
from slackwater.governor.types import Action, Configuration, Hardware, Observation, whole

ALPHA, GAMMA = 0.6, 0.9
BUCKET = 0.04
LEARN_S = 500.0
SAFE = 0.8
"""Share of the target; above it the reward is smaller, at random."""


def ordered(hardware: Hardware, by: Literal["energy", "ips"]) -> list[Configuration]:
    """Configurations by power, or with the most instructions per joule first; of a stress loop, without idle power."""

    def ips_per_w(configuration: Configuration) -> float:
        return hardware.speed(configuration) / (
            hardware.power_w(configuration, 1.0) - hardware.power_w(configuration, 0.0)
        )

    if by == "energy":
        return sorted(hardware.configurations(), key=lambda configuration: hardware.power_w(configuration, 1.0))
    return sorted(
        hardware.configurations(), key=lambda configuration: (-ips_per_w(configuration), hardware.speed(configuration))
    )


class Hipster:
    period_s = 1.0

    def __init__(
        self,
        hardware: Hardware,
        target_ms: float,
        most_rps: float,
        by: Literal["energy", "ips"],
        *,
        up: float = SAFE,
        down: float = 0.65,
        learn_s: float = LEARN_S,
        seed: int = 0,
    ) -> None:
        self.name = f"hipster {by}"
        self._hardware, self._target_ms, self._most_rps, self._learn_s = hardware, target_ms, most_rps, learn_s
        self._up, self._down = up, down
        self._order = ordered(hardware, by)
        self._highest = self._order.index(hardware.highest)
        self._most_w = hardware.power_w(hardware.highest, 1.0)
        self._number = self._highest
        self._random = np.random.default_rng(seed)
        self._values: dict[int, Floats] = defaultdict(lambda: np.zeros(len(self._order)))
        self._bucket = 0

    def start(self) -> Action:
        return whole(self._order[self._number])

    def decide(self, seen: Observation) -> Action:
        bucket = int(seen.rps / self._most_rps / BUCKET)
        late = (seen.p95_ms or 0.0) / self._target_ms
        mine = self._values[self._bucket]
        gain = self._reward(late, seen.power_w) + GAMMA * float(self._values[bucket].max())
        mine[self._number] += ALPHA * (gain - mine[self._number])
        self._bucket = bucket
        if seen.time_s <= self._learn_s:
            if late > self._up:
                self._number = min(len(self._order) - 1, self._number + 1)
            elif late < self._down:
                self._number = max(0, self._number - 1)
        else:
            known = self._values[bucket]
            self._number = int(known.argmax()) if known.max() > 0.0 else self._highest
        return whole(self._order[self._number])

    def _reward(self, late: float, watts: float) -> float:
        power = self._most_w / max(1e-9, watts)
        if late < SAFE:
            return late + 1.0 + power
        if late < 1.0:
            return late + 1.0 - float(self._random.random()) + power
        return -late - 1.0 + power
