"""A policy's input (`Observation`), its output (`Action`), and the hardware that it sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class GovernorError(Exception):
    """The governor cannot run as it is asked to; the text says what is missing."""


@dataclass(frozen=True)
class Configuration:
    """Cores with one clock for all of them."""

    cores: int
    clock_mhz: float
    smt: bool = False
    """Both hardware threads of each core serve."""


@dataclass(frozen=True)
class Hardware:
    """Cores, clocks and the power model of a machine.

    Power in W is `base_w` + per enabled core (`idle_w` + share of time busy x `busy_w`), each at the clock.
    """

    cores: int
    clocks_mhz: tuple[float, ...]
    """Ascending."""
    base_w: float
    idle_w: tuple[float, ...]
    """Static power of an enabled core, for each clock."""
    busy_w: tuple[float, ...]
    """Power that work adds to a core, for each clock."""
    turbo: bool = False
    """The last clock is above the nominal one."""
    smt_gain: float = 1.0
    """Throughput of a core with both hardware threads over that with one; 1: it has only one."""

    def __post_init__(self) -> None:
        if list(self.clocks_mhz) != sorted(set(self.clocks_mhz)) or not self.clocks_mhz:
            raise ValueError(f"clocks_mhz: expected ascending clocks, got {self.clocks_mhz}")
        if not len(self.clocks_mhz) == len(self.idle_w) == len(self.busy_w):
            raise ValueError("idle_w and busy_w: expected a value for each of clocks_mhz")

    @property
    def max_mhz(self) -> float:
        return self.clocks_mhz[-1]

    @property
    def highest(self) -> Configuration:
        """All cores at the highest clock."""
        return Configuration(self.cores, self.max_mhz, self.smt_gain > 1.0)

    def step_of(self, clock_mhz: float) -> int:
        """Number of the lowest clock that is at least this; the last number if none is."""
        last = len(self.clocks_mhz) - 1
        return next((step for step, mhz in enumerate(self.clocks_mhz) if mhz >= clock_mhz - 1e-9), last)

    def core_w(self, clock_mhz: float, busy_share: float) -> float:
        """Power of one enabled core."""
        step = self.step_of(clock_mhz)
        return self.idle_w[step] + busy_share * self.busy_w[step]

    def power_w(self, configuration: Configuration, busy_share: float) -> float:
        """Power of a configuration whose cores are busy for this share of the time."""
        return self.base_w + configuration.cores * self.core_w(configuration.clock_mhz, busy_share)

    def speed(self, configuration: Configuration) -> float:
        """Work per second, in cores at the highest clock without SMT."""
        gain = self.smt_gain if configuration.smt else 1.0
        return configuration.cores * gain * configuration.clock_mhz / self.max_mhz

    def configurations(self) -> list[Configuration]:
        """Every number of cores at every clock, with one hardware thread and with both where there are two."""
        return [
            Configuration(cores, clock_mhz, smt)
            for smt in ((False, True) if self.smt_gain > 1.0 else (False,))
            for cores in range(1, self.cores + 1)
            for clock_mhz in self.clocks_mhz
        ]


@dataclass(frozen=True)
class HotEvent:
    """A thread entered or left the hot function of its application."""

    core: int
    time_s: float
    entered: bool


@dataclass(frozen=True)
class Observation:
    """Measurements since the last Observation. None: it could not be measured, or there was no request."""

    time_s: float
    """When they end, on a monotonic clock."""
    rps: float = 0.0
    p95_ms: float | None = None
    p99_ms: float | None = None
    queue_delay_ms: float = 0.0
    """Longest wait for a core among the requests in the queue."""
    oldest_ms: float = 0.0
    """Age of the oldest unanswered request."""
    busy_shares: tuple[float, ...] = ()
    """Share of its time in which each core of the last Action was busy, as the operating system measures it."""
    power_w: float = 0.0
    """Measured, or that of the power model."""
    interference: bool = False
    """The detector's Verdict on this node is `interference`."""
    events: tuple[HotEvent, ...] = ()
    in_force: Configuration | None = None
    """The configuration of the machine, where others than the policy may set it; None: the last Action."""


@dataclass(frozen=True)
class Action:
    """The cores and clocks to set."""

    cores: tuple[int, ...]
    """Numbers of the cores that serve."""
    clocks_mhz: tuple[float, ...]
    """Clock of each of them."""
    smt: bool = False
    batch: bool = True
    """Batch jobs may run on the other cores."""
    why: str = field(default="", compare=False)
    """The reason, in words."""

    def __post_init__(self) -> None:
        if not self.cores or len(self.cores) != len(self.clocks_mhz):
            raise ValueError(f"expected a clock for each of one or more cores: {self.cores}, {self.clocks_mhz}")


class Policy(Protocol):
    """Decides every `period_s`. It learns, and touches nothing else."""

    name: str
    period_s: float

    def start(self) -> Action:
        """The Action before anything was observed."""

    def decide(self, seen: Observation) -> Action:
        """The Action from now on."""


def whole(configuration: Configuration, batch: bool = True, why: str = "") -> Action:
    """The first cores, all at one clock."""
    cores = tuple(range(configuration.cores))
    return Action(cores, (configuration.clock_mhz,) * len(cores), configuration.smt, batch, why)


def mean(values: Sequence[float]) -> float:
    """The mean of the values; 0 where there are none."""
    return sum(values) / len(values) if values else 0.0
