"""The configurations that a node's knobs allow, and the knobs' values for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from slackwater.core.config import BATCH_RUNNING, GovernorSettings
from slackwater.core.messages import Knobs, KnobState
from slackwater.governor.batch import BatchKnobs, batch_knobs
from slackwater.governor.power import hardware
from slackwater.governor.types import Configuration, Hardware
from slackwater.orders.knobs import FREQUENCY, Value, allows

CORES, QUOTA = "cpu.cores", "cpu.quota"
NOMINAL_MHZ = 1000.0
"""Stands for the clock where it cannot be chosen, and for all of the cores' time where a quota stands in for it."""


@dataclass(frozen=True)
class Levers:
    """A node's knobs. The highest configuration is the node as it is without us: no knob is set for it."""

    hardware: Hardware
    candidates: tuple[Configuration, ...]
    clock_knob: str
    """`cpu.frequency`, `cpu.quota` or empty."""
    quota_percent: int
    """Quota without us, in percent of one core; 0: that knob is not used."""
    sets_cores: bool
    batch: BatchKnobs | None = None
    """Batch jobs beside the web server; None: there are none to set."""

    def values(self, wanted: Configuration) -> dict[str, int]:
        """The knobs to set for it; the others stay as they are without us."""
        values = {}
        if self.sets_cores and wanted.cores != self.hardware.cores:
            values[CORES] = wanted.cores
        if self.clock_knob and wanted.clock_mhz != self.hardware.max_mhz:
            values[self.clock_knob] = self._clock_value(wanted)
        return values

    def _clock_value(self, wanted: Configuration) -> int:
        if self.clock_knob == FREQUENCY:
            return round(wanted.clock_mhz * 1000.0)
        share = wanted.clock_mhz / self.hardware.max_mhz
        return round(self.quota_percent * wanted.cores * share / self.hardware.cores)

    def in_force(self, values: Mapping[str, Value]) -> Configuration:
        """The configuration that these values are; every other knob is as it is without us."""
        cores, clock = values.get(CORES), values.get(self.clock_knob) if self.clock_knob else None
        count = self.hardware.cores if not isinstance(cores, int) else min(max(1, cores), self.hardware.cores)
        clocks_mhz = self.hardware.clocks_mhz
        if not isinstance(clock, int):
            return Configuration(count, clocks_mhz[-1])
        mhz = clock / 1000.0
        if self.clock_knob == QUOTA:
            mhz = clocks_mhz[-1] * clock * self.hardware.cores / (self.quota_percent * count)
        return Configuration(count, min(clocks_mhz, key=lambda clock_mhz: abs(clock_mhz - mhz)))

    def capacity_cores(self, configuration: Configuration) -> float:
        """CPU time per second that it may use."""
        if self.clock_knob != QUOTA:
            return float(configuration.cores)
        without_us = self.quota_percent / 100.0
        if configuration.clock_mhz == self.hardware.max_mhz:
            return min(without_us, float(configuration.cores))
        share = configuration.clock_mhz / self.hardware.max_mhz
        return without_us * share * configuration.cores / self.hardware.cores

    def nearest(self, wanted: Configuration) -> Configuration:
        """A configuration that can be set, at least as fast."""
        if wanted in self.candidates:
            return wanted
        speed = self.hardware.speed
        enough = [candidate for candidate in self.candidates if speed(candidate) >= speed(wanted) - 1e-9]
        return min(enough, key=speed, default=self.hardware.highest)

    def watts(self, configuration: Configuration, busy_cores: float) -> float:
        """Power by the model. A quota is no clock: its cores run at the highest one."""
        if self.clock_knob == QUOTA:
            configuration = Configuration(configuration.cores, self.hardware.max_mhz)
        return self.hardware.power_w(configuration, min(1.0, busy_cores / configuration.cores))


def levers(settings: GovernorSettings, knobs: Knobs, cores: int) -> Levers | None:
    """All that can be set on a node; None without a knob. `cores`: of the node, where `cpu.cores` does not tell."""
    states: dict[str, KnobState] = {
        knob.name: knob for knob in knobs.knobs if knob.name in settings.knobs and _is_there(knob)
    }
    count, lowest = cores, cores
    sets_cores = CORES in states
    if sets_cores:
        count = _number(states[CORES].baseline)
        lowest = min(count, max(1, states[CORES].lowest or 1))
    clocks_mhz, clock_knob, quota_percent = [NOMINAL_MHZ], "", 0
    if FREQUENCY in states and len(settings.clocks_mhz) > 1:
        clocks_mhz, clock_knob = list(settings.clocks_mhz), FREQUENCY
    elif QUOTA in states:
        clocks_mhz, clock_knob = [NOMINAL_MHZ * share for share in settings.quota_shares], QUOTA
        quota_percent = _number(states[QUOTA].baseline)
        # Cores that the quota cannot fill are of no use.
        count = max(1, min(count if sets_cores else cores, -(-quota_percent // 100)))
        lowest = min(lowest, count) if sets_cores else count
    if not sets_cores and not clock_knob:
        return None
    machine = hardware(settings.curve, count, clocks_mhz, busy_w=settings.busy_w, base_w=0.0, idle_w=settings.idle_w)
    batch = batch_knobs(states, _number(states[CORES].baseline)) if sets_cores else None
    every = Levers(machine, (), clock_knob, quota_percent, sets_cores, batch)
    candidates = tuple(
        configuration
        for configuration in machine.configurations()
        if configuration.cores >= lowest
        and all(allows(states[knob], value, value) for knob, value in every.values(configuration).items())
    )
    return replace(every, candidates=candidates)


def _is_there(knob: KnobState) -> bool:
    """It can be read, and has a whole number without us where it must."""
    whole = isinstance(knob.baseline, int) and knob.baseline >= 1 and knob.lowest is not None
    readable = knob.cause not in ("not_read", "unreadable")
    return readable and (whole or knob.name in (FREQUENCY, BATCH_RUNNING))


def _number(value: Value | None) -> int:
    return value if isinstance(value, int) else 1
