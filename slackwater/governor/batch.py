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
    """The limits of a node's batch jobs. Without us they may run on all cores that the web server has."""

    cores: int
    """Cores of the batch jobs without us."""
    fewest: int | None
    """The lowest `batch.cores`; None: that knob is not there."""
    most: int
    stops: bool
    """`batch.running` is there."""

    def values(self, serving: int, may_run: bool) -> dict[str, Value]:
        """The knobs to set while so many cores serve. `may_run`: the policy lets batch jobs run at all."""
        left = self.cores - serving if may_run else 0
        values: dict[str, Value] = {}
        if self.fewest is not None:
            values[BATCH_CORES] = min(max(left, self.fewest), self.most)
        if left < 1 and self.stops:
            values[BATCH_RUNNING] = OFF
        return values

    def in_force(self, values: Mapping[str, Value]) -> int:
        """Cores that batch jobs have; 0: they stand still. Every other knob than those in `values` is as without us."""
        cores = values.get(BATCH_CORES, self.cores)
        return 0 if values.get(BATCH_RUNNING) == OFF or not isinstance(cores, int) else cores


def batch_knobs(states: Mapping[str, KnobState], cores: int) -> BatchKnobs | None:
    """None: there is nothing to set. `cores`: that the web server has without us. `states`: the knobs that may be set.

    Batch jobs with another number of cores than the web server do not share its cores, and are left alone.
    """
    jobs_cores, running = states.get(BATCH_CORES), states.get(BATCH_RUNNING)
    fewest, most = None, cores
    if jobs_cores is not None and jobs_cores.lowest is not None and jobs_cores.highest is not None:
        if jobs_cores.baseline != cores:
            return None
        fewest, most = max(1, jobs_cores.lowest), jobs_cores.highest
    stops = running is not None and running.baseline == ON and OFF in running.words
    return BatchKnobs(cores, fewest, most, stops) if stops or fewest is not None else None


def turn(knob: str, value: Value, before: Value | None) -> int:
    """The place of an Order among those that are sent together. Batch jobs yield first (0), then the web server gets
    its own values back (1) or is set (2), and batch jobs gain last (3). `before`: the value in our Order; None: there
    is none."""
    if knob == BATCH_RUNNING:
        return 0 if value == OFF else 3
    if knob == BATCH_CORES:
        fewer = before is None or (isinstance(value, int) and isinstance(before, int) and value < before)
        return 0 if fewer and value != RELEASE else 3
    return 1 if value == RELEASE else 2
