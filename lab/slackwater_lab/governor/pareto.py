"""The table `pareto`: Prekas and others' dynamic policy between the static maximum and the Pareto bound (slide 25).

Xeon E5-2665: 8 cores, 16 hardware threads, 13 clocks from 1.2 to 2.4 GHz and the turbo: 224 configurations. memcached
under a slope, a step and a sine with noise, 4 minutes each.

Left open by the paper and fitted to the row `slope` alone (maximum 91 W, Pareto bound 39 W, batch bound 50%): the peak
of the load, and how power divides into base, static and busy power. The turbo with all cores (2.8 GHz), the gain of the
second hardware thread (1.3, from the open code), the levels of step and sine and the noise are assumptions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slackwater.governor.policies.slackwater import Slackwater
from slackwater.governor.power import hardware
from slackwater.governor.types import Action, Configuration, Hardware, Observation, Policy
from slackwater_lab.governor.causal_bound import least_cost, noisy
from slackwater_lab.governor.figures import Figure, one_by_one
from slackwater_lab.governor.fluid import FluidServer
from slackwater_lab.governor.policies.pareto import Pareto, batch_ladder, inferred_ladder
from slackwater_lab.governor.queues import Floats

TARGET_MS = 0.5
"""Target of the 99th percentile: the paper's value is lost; this is that of its group's other papers."""
BASE_MS = 0.1
RPS_OF_A_CORE = 600e3
PEAK_OF_CAPACITY = 0.75
BASE_W, IDLE_W, BUSY_W, SPIN = 2.5, 3.5, 15.0, 0.2
"""SPIN: share of its idle time in which a core polls and uses as much power as at work."""
STEP_S = 0.1
POLL_S = STEP_S * (1.0 + 1e-9)
"""Between two looks of a policy: a loop that sleeps is never early, as a sum of tenths is in floating point."""
LATE_SHARE = 0.01
"""A second misses the target if more of its requests do: the 99th percentile is that of a second (slide 22)."""
SECONDS = 240
CLOCKS_MHZ = (*(1200.0 + 100.0 * step for step in range(13)), 2800.0)
LEVELS = (0.1, 0.325, 0.55, 0.775, 1.0, 0.775, 0.55, 0.325)
NOISE = 0.03
"""Noise as a share of the peak, drawn anew each second."""
LEAST_LOAD = 0.02
KEPT_SHARE = 0.99
"""Share of the seconds that a policy should keep within the target."""
CAUSAL = {"bound, causal": STEP_S, "bound, causal, once a second": 1.0}
"""Name -> the share of a second in which its noise is unseen. The first knows when the noise changes."""
PAPER = {
    "slope": (91, 42, 39, 46, 50),
    "step": (92, 48, 41, 39, 47),
    "sine": (94, 53, 45, 32, 39),
}
"""Load -> W maximal, measured, Pareto; batch % of peak measured, Pareto."""


def machine(curve: str) -> Hardware:
    return hardware(curve, 8, CLOCKS_MHZ, busy_w=BUSY_W, base_w=BASE_W, idle_w=IDLE_W, turbo=True, smt_gain=1.3)


def loads(seed: int) -> dict[str, Floats]:
    """Load -> (N,) share of the peak in each interval of STEP_S."""
    time_s = np.arange(0.0, SECONDS, STEP_S)
    noise = np.random.default_rng(seed).normal(0.0, NOISE, SECONDS).repeat(round(1 / STEP_S))
    return {
        "slope": 1.0 - np.abs(time_s / (SECONDS / 2) - 1.0),
        "step": np.array(LEVELS)[(time_s / SECONDS * len(LEVELS)).astype(int)],
        "sine": np.clip(sine(time_s) + noise, LEAST_LOAD, 1.0),
    }


def sine(time_s: Floats) -> Floats:
    """Share of the peak, without the noise."""
    return 0.55 - 0.4 * np.cos(2 * np.pi * time_s / SECONDS)


@dataclass(frozen=True)
class LoadResult:
    watts: float
    batch_percent: float
    longest_s: int
    """Longest run of seconds whose 99th percentile is above the target."""
    kept_percent: float
    """Share of seconds within the target."""


class Table:
    """One machine with one power model."""

    def __init__(self, curve: str) -> None:
        self.hardware = machine(curve)
        self._server = FluidServer(self.hardware, RPS_OF_A_CORE, BASE_MS)
        self.peak_rps = PEAK_OF_CAPACITY * self._server.capacity_rps(self.hardware.highest)
        self._most = [
            (configuration, self._most_rps(configuration)) for configuration in self.hardware.configurations()
        ]

    def _most_rps(self, configuration: Configuration) -> float:
        """The highest load that the configuration carries within the target."""
        low, high = 0.0, self._server.capacity_rps(configuration)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if self._server.at_rest_ms(configuration, middle, 0.99) <= TARGET_MS else (low, middle)
            )
        return low

    def watts(self, configuration: Configuration, busy_share: float) -> float:
        return self.hardware.power_w(configuration, SPIN + (1.0 - SPIN) * busy_share)

    def batch_percent(self, configuration: Configuration) -> float:
        """Speed of the batch jobs on the cores that are left, in % of their speed alone."""
        return 100.0 * (1.0 - configuration.cores / self.hardware.cores)

    def bound(self, load: Floats) -> tuple[float, float]:
        """Watts of the cheapest static configuration for each second, and batch % of that with the fewest cores."""
        watts, batch = [], []
        for rps in load[:: round(1 / STEP_S)] * self.peak_rps:
            cheapest = self.cheapest(rps)
            watts.append(self.watts(cheapest, rps / self._server.capacity_rps(cheapest)))
            able = [configuration for configuration, most_rps in self._most if most_rps >= rps]
            batch.append(
                max(
                    map(
                        self.batch_percent,
                        (configuration for configuration in able if configuration in batch_ladder(self.hardware)),
                    )
                )
            )
        return float(np.mean(watts)), float(np.mean(batch))

    def cheapest(self, rps: float) -> Configuration:
        """The static configuration that carries this load within the target with the least power."""
        able = [configuration for configuration, most_rps in self._most if most_rps >= rps]
        return min(
            able, key=lambda configuration: self.watts(configuration, rps / self._server.capacity_rps(configuration))
        )

    def causal_bound(self, unseen_share: float) -> tuple[float, float]:
        """The least watts and the most batch % under the sine for a policy that knows its course and keeps
        `KEPT_SHARE`, but sees a second's noise only after this share of it: each in % of a policy's that knows it.
        """
        demand = noisy(sine(np.arange(SECONDS, dtype=float)), NOISE, LEAST_LOAD, 1.0) * self.peak_rps

        def watts(configuration: Configuration, rps: Floats) -> Floats:
            least, most = self.watts(configuration, 0.0), self.watts(configuration, 1.0)
            return least + (most - least) * np.minimum(1.0, rps / self._server.capacity_rps(configuration))

        def taken(configuration: Configuration, rps: Floats) -> Floats:
            return np.full(rps.shape, -self.batch_percent(configuration))

        bounds = []
        for options, cost in (
            (self._most, watts),
            ([option for option in self._most if option[0] in batch_ladder(self.hardware)], taken),
        ):
            known = least_cost(demand, options, cost, late_share=0.0, unseen_share=0.0)
            unknown = least_cost(demand, options, cost, late_share=1.0 - KEPT_SHARE, unseen_share=unseen_share)
            bounds.append((known, unknown))
        energy, batch = bounds
        return 100.0 * energy[0] / energy[1], 100.0 * batch[1] / batch[0]

    def highest(self, load: Floats) -> float:
        """Watts of the static maximum."""
        capacity_rps = self._server.capacity_rps(self.hardware.highest)
        return float(np.mean([self.watts(self.hardware.highest, rps / capacity_rps) for rps in load * self.peak_rps]))

    def run(self, policy: Policy, load: Floats) -> LoadResult:
        """One load under one policy."""
        server = FluidServer(self.hardware, RPS_OF_A_CORE, BASE_MS)
        action = policy.start()
        watts, batch, late_rps = [], [], []
        for number, rps in enumerate(load * self.peak_rps):
            now = _configuration(action)
            done = server.run(STEP_S, rps, now)
            watts.append(self.watts(now, done.busy_share))
            batch.append(self.batch_percent(now))
            late_rps.append(rps * done.share_above(TARGET_MS))
            action = policy.decide(
                Observation(
                    (number + 1) * POLL_S,
                    rps,
                    done.p95_ms,
                    done.p99_ms,
                    done.queue_delay_ms,
                    done.oldest_ms,
                    (done.busy_share,) * now.cores,
                    watts[-1],
                )
            )
        parts = round(1 / STEP_S)
        asked_rps = (load * self.peak_rps).reshape(-1, parts).sum(axis=1)
        seconds = np.array(late_rps).reshape(-1, parts).sum(axis=1) > LATE_SHARE * asked_rps
        return LoadResult(
            float(np.mean(watts)),
            float(np.mean(batch)),
            longest(seconds.tolist()),
            100.0 * (1.0 - float(np.mean(seconds))),
        )


def _configuration(action: Action) -> Configuration:
    return Configuration(len(action.cores), action.clocks_mhz[0], action.smt)


def longest(late: Sequence[bool]) -> int:
    """Length of the longest run of True."""
    most = now = 0
    for is_late in late:
        now = now + 1 if is_late else 0
        most = max(most, now)
    return most


def compare(seeds: Sequence[int], curve: str, progress: Callable[[str], None] = lambda _: None) -> list[Figure]:
    """The table's figures."""
    table = Table(curve)
    figures: list[Figure] = []
    for load, (most_w, measured_w, pareto_w, measured_batch, pareto_batch) in PAPER.items():
        patterns = [loads(seed)[load] for seed in seeds]
        bounds = [table.bound(pattern) for pattern in patterns]
        figures += [
            Figure(load, "static", "W", [table.highest(pattern) for pattern in patterns], str(most_w)),
            Figure(load, "bound", "W", [watts for watts, _ in bounds], str(pareto_w)),
            Figure(load, "bound", "batch %", [batch for _, batch in bounds], str(pareto_batch)),
        ]
        if load == "sine":
            for name, unseen_share in CAUSAL.items():
                energy_share, batch_share = table.causal_bound(unseen_share)
                figures += [
                    Figure(load, name, "% of the bound, W, 99% of the seconds", [energy_share]),
                    Figure(load, name, "% of the bound, batch, 99% of the seconds", [batch_share]),
                ]
        for name in ("pareto", "slackwater"):
            ours = name == "slackwater"
            energy, batch = (
                [
                    table.run(make(name, table.hardware), loads(seed)[load])
                    for seed in one_by_one(seeds, f"pareto: {load}, {name}, {measure}", progress)
                ]
                for measure, make in (("energy", _energy), ("batch", _batch))
            )
            share = [100.0 * bound[0] / run.watts for run, bound in zip(energy, bounds, strict=True)]
            of_batch = [100.0 * run.batch_percent / bound[1] for run, bound in zip(batch, bounds, strict=True)]
            figures += [
                Figure(load, name, "W", [run.watts for run in energy], "" if ours else str(measured_w)),
                Figure(
                    load,
                    name,
                    "% of the bound, W",
                    share,
                    "" if ours else f"{100 * pareto_w / measured_w:.0f}",
                    95.0 if ours else 81.0,
                    None if ours else 97.0,
                ),
                Figure(load, name, "longest violation s", [float(run.longest_s) for run in energy], "~1", None, 2.0),
                Figure(load, name, "seconds within target %", [run.kept_percent for run in energy]),
                Figure(
                    load, name, "batch %", [run.batch_percent for run in batch], "" if ours else str(measured_batch)
                ),
                Figure(
                    load,
                    name,
                    "% of the bound, batch",
                    of_batch,
                    "" if ours else f"{100 * measured_batch / pareto_batch:.0f}",
                    95.0 if ours else 78.0,
                    None if ours else 96.0,
                ),
                Figure(
                    load,
                    name,
                    "longest violation beside batch s",
                    [float(run.longest_s) for run in batch],
                    "~1",
                    None,
                    2.0,
                ),
            ]
    return figures


def _energy(name: str, processor: Hardware) -> Policy:
    return Pareto(processor, inferred_ladder(processor)) if name == "pareto" else _ours(processor, None)


def _batch(name: str, processor: Hardware) -> Policy:
    ladder = batch_ladder(processor)
    return Pareto(processor, ladder) if name == "pareto" else _ours(processor, ladder)


def _ours(processor: Hardware, ladder: list[Configuration] | None) -> Slackwater:
    """Our policy, to which a configuration costs its cores and then its clock: batch jobs want cores."""
    cost = None if ladder is None else (lambda configuration, _: configuration.cores + configuration.clock_mhz / 1e6)
    return Slackwater(
        processor, TARGET_MS, period_s=STEP_S, candidates=ladder, cost=cost, tail_of=lambda seen: seen.p99_ms
    )
