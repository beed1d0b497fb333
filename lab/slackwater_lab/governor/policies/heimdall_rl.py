"""`heimdall-rl`: Heimdall's choice with its reinforcement learner, which goes on learning from what is in use.

The thesis evaluates this learner (section 3.2.2) but never schedules with it (section 4.2.2): the scheduling is ours.
"""

from __future__ import annotations

from slackwater.detector.tail.table import TabularLearner
from slackwater.governor.types import Action, Configuration, Hardware, Observation
from slackwater_lab.governor.policies.heimdall import Heimdall, inputs

LEAST_MS = 0.5
"""Lowest estimate (section 4.1.7)."""


class HeimdallRl(Heimdall):
    def __init__(self, hardware: Hardware, target_ms: float, table: TabularLearner) -> None:
        """`table` is fitted already."""
        super().__init__("heimdall-rl", hardware, target_ms, table)
        self._table = table
        self._now = hardware.highest
        self._inputs[:, 2] = [configuration.clock_mhz for configuration in self._all]

    def decide(self, seen: Observation) -> Action:
        if seen.p95_ms is not None:
            here = inputs(self._hardware, seen.rps, [self._now])[0]
            here[2] = self._now.clock_mhz
            self._table.learn(here, seen.p95_ms)
        action = super().decide(seen)
        self._now = Configuration(len(action.cores), action.clocks_mhz[0], action.smt)
        return action
