"""A policy beside a real pool: from what the nodes' monitors measure, what it would set. Nothing is set.

The policy's own configurations are never in force, so it is given what is (`Observation.in_force`): all of the node's
cores at the clock that the monitor reads. Only policies that judge by that can run here. One that tries a step and
measures its effect would find none.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from governor.policies.linux import Linux
from governor.policies.slackwater import Slackwater
from governor.power import hardware
from governor.types import Configuration, Hardware, Observation, Policy
from slackwater.config import GovernorSettings
from slackwater.messages import Sample, Verdict

POLICIES: dict[str, Callable[[Hardware, float], Policy]] = {
    "slackwater": Slackwater,
    "linux-ondemand": lambda of, _: Linux(of, "ondemand"),
    "linux-schedutil": lambda of, _: Linux(of, "schedutil"),
}
"""Name -> makes it, for a machine and the target of the p95 in ms."""
DEFAULT = "slackwater"
NOMINAL_MHZ = 1000.0
"""Stands for the only clock where the settings name none."""
OBSERVE_EVERY_S = 1.0


class GovernorError(Exception):
    """The governor cannot run as it is asked to; the text says what is missing."""


class Advice(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the policy would set on a node now, and what it saw in the last second."""

    pool: str
    node: str
    time_unix_s: float
    """Of the node's last Sample."""
    policy: str
    rps: float | None = None
    p95_ms: float | None = None
    target_p95_ms: float
    busy_cores: float | None = None
    """CPU time per second, stolen time included."""
    interference: bool = False
    cores: int | None = None
    """That are in force."""
    clock_mhz: float | None = None
    """That is in force; absent where the settings name no clocks."""
    would_cores: int | None = None
    would_clock_mhz: float | None = None
    watts: float | None = None
    """Of the power model, as it is."""
    would_watts: float | None = None
    """The same work in what the policy would set."""
    why: str


def machine(settings: GovernorSettings, cores: int) -> Hardware:
    """A node's cores."""
    return hardware(
        settings.curve,
        cores,
        settings.clocks_mhz or (NOMINAL_MHZ,),
        busy_w=settings.busy_w,
        base_w=0.0,
        idle_w=settings.idle_w,
    )


class Node:
    """One node, and the policy beside it. A node whose number of cores changes begins anew."""

    def __init__(self, settings: GovernorSettings, policy: str, target_ms: float) -> None:
        self._settings, self._name, self._target_ms = settings, policy, target_ms
        self._beside: tuple[Hardware, Policy] | None = None
        self._last: tuple[str, int] | None = None
        """Boot and number of the last Sample."""
        self._now_s = 0.0
        """Sum of the Samples' periods: a wall clock may be set."""

    def see(self, sample: Sample, verdict: Verdict | None) -> Advice | None:
        """What the policy would set after this Sample; None if it is an old one. `verdict`: None if it is not fresh."""
        if (sample.boot_id, sample.seq) == self._last:
            return None
        self._last = (sample.boot_id, sample.seq)
        advice = Advice(
            pool=sample.pool,
            node=sample.node,
            time_unix_s=sample.time_unix_s,
            policy=self._name,
            target_p95_ms=self._target_ms,
            interference=verdict is not None and verdict.state == "interference",
            why="",
        )
        cpu, traffic = sample.cpu, sample.traffic
        if traffic is None or traffic.rps is None:
            advice.why = "unknown: the Sample has no requests per second"
            return advice
        advice.rps, advice.p95_ms = traffic.rps, traffic.rt_p95_ms
        if cpu is None or cpu.utilisation is None or not cpu.cores:
            advice.why = "unknown: the Sample has no CPU utilisation"
            return advice
        of, policy = self._machine(max(1, round(cpu.cores)))
        in_force = Configuration(of.cores, self._clock_mhz(of, sample))
        # A quota's part of a core counts as the core: the share is of what is there.
        busy_share = min(1.0, cpu.utilisation)
        advice.busy_cores = busy_share * cpu.cores
        self._now_s += sample.period_s
        action = policy.decide(
            Observation(
                self._now_s,
                traffic.rps,
                traffic.rt_p95_ms,
                traffic.rt_p99_ms,
                oldest_ms=traffic.oldest_unanswered_ms or 0.0,
                busy_shares=(busy_share,) * of.cores,
                power_w=of.power_w(in_force, busy_share),
                interference=advice.interference,
                in_force=in_force,
            )
        )
        would = Configuration(len(action.cores), action.clocks_mhz[0])
        work = busy_share * of.speed(in_force)
        advice.cores, advice.would_cores = in_force.cores, would.cores
        if self._settings.clocks_mhz:
            advice.clock_mhz, advice.would_clock_mhz = in_force.clock_mhz, would.clock_mhz
        advice.watts = of.power_w(in_force, busy_share)
        advice.would_watts = of.power_w(would, min(1.0, work / of.speed(would)))
        advice.why = action.why
        return advice

    def _machine(self, cores: int) -> tuple[Hardware, Policy]:
        if self._beside is None or self._beside[0].cores != cores:
            of = machine(self._settings, cores)
            self._beside = of, POLICIES[self._name](of, self._target_ms)
        return self._beside

    def _clock_mhz(self, of: Hardware, sample: Sample) -> float:
        """The nearest clock to what the monitor reads; the highest where it reads none."""
        read_mhz = sample.frequency.mean_mhz if sample.frequency is not None else None
        if read_mhz is None or not self._settings.clocks_mhz:
            return of.max_mhz
        return min(of.clocks_mhz, key=lambda one: abs(one - read_mhz))
