"""Batch jobs beside a web server: they have the cores that it does not serve with, or stand still."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slackwater.core.config import BATCH_CORES, BATCH_RUNNING
from slackwater.core.messages import KnobState
from slackwater.orders.knobs import RELEASE, Value

ON, OFF = "on", "off"


@dataclass(frozen=True)
class BatchKnobs:
    """What a node lets the governor do with its batch jobs, which without us may run on all cores that the web server
    has."""

    cores: int
    """Without us."""
    fewest: int | None
    """Of `batch.cores`; None: that knob is not there."""
    most: int
    stops: bool
    """`batch.running` is there."""

    def values(self, serving: int, may_run: bool) -> dict[str, Value]:
        """The knobs to set while so many cores serve. `may_run`: the policy lets batch jobs run at all."""
        left = self.cores - serving if may_run else 0
        found: dict[str, Value] = {}
        if self.fewest is not None:
            found[BATCH_CORES] = min(max(left, self.fewest), self.most)
        if left < 1 and self.stops:
            found[BATCH_RUNNING] = OFF
        return found

    def in_force(self, values: Mapping[str, Value]) -> int:
        """Cores that batch jobs have; 0: they stand still. A knob that is not in `values` is as it is without us."""
        cores = values.get(BATCH_CORES, self.cores)
        return 0 if values.get(BATCH_RUNNING) == OFF or not isinstance(cores, int) else cores


def batch_knobs(states: Mapping[str, KnobState], cores: int) -> BatchKnobs | None:
    """None: there is nothing to set. `cores`: that the web server has without us. `states`: the knobs that may be set.

    Where batch jobs have another number of cores than the web server, they do not share its cores, and are left alone.
    """
    own, running = states.get(BATCH_CORES), states.get(BATCH_RUNNING)
    fewest, most = None, cores
    if own is not None and own.lowest is not None and own.highest is not None:
        if own.baseline != cores:
            return None
        fewest, most = max(1, own.lowest), own.highest
    stops = running is not None and running.baseline == ON and OFF in running.words
    return BatchKnobs(cores, fewest, most, stops) if stops or fewest is not None else None


def turn(knob: str, value: Value, before: Value | None) -> int:
    """When an Order is sent: batch jobs yield first (0), then the web server gets back what is its own (1) or is set
    (2), and batch jobs gain last (3). `before`: the value in our Order; None: it is as it is without us."""
    if knob == BATCH_RUNNING:
        return 0 if value == OFF else 3
    if knob == BATCH_CORES:
        fewer = before is None or (isinstance(value, int) and isinstance(before, int) and value < before)
        return 0 if fewer and value != RELEASE else 3
    return 1 if value == RELEASE else 2
