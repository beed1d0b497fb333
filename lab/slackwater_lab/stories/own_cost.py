"""What the monitors cost the web servers: CPU time of a request with them and without, at one load.

The load is the share of their CPU that the hosts use without monitors. It is not a share of what they answer in a
closed loop: a request that finds its server awake takes less CPU time, so 80% of that rate keep hosts all but full.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from slackwater_lab.cluster import machine
from slackwater_lab.cluster.bus_listener import BusListener
from slackwater_lab.cluster.commit import commit
from slackwater_lab.cluster.controller import VIEW, monitored, start_bus, start_view
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand
from slackwater_lab.cluster.paths import LabError, program
from slackwater_lab.compare import statistics as rounds
from slackwater_lab.experiment.cost import between, look
from slackwater_lab.experiment.policy_runners import MONITOR
from slackwater_lab.experiment.steady import WARM_UP_S, capacity_rps, stay, stop_programs, wait_for

WITHOUT = "without"
WITH = "with monitors"
CAPTURING = "with monitors that capture"
CAPTURE = "with a capture alone"
PERCENTILES = (50, 95, 99)
SPARED_WITHIN_S = 60.0
"""A deadline: until monitors have ended their captures."""
CORRECTIONS = 3
"""Number of corrections of the rate: a request takes less CPU time where there are more."""
COLUMNS = (
    "hosts' CPU",
    "CPU ms a request",
    "capacity lost",
    "monitor's own CPU, of a host's",
    *(f"p{percentile} ms" for percentile in PERCENTILES),
)


@dataclass(frozen=True)
class OwnCostTest:
    """Each round has `seconds` of load at `load` of the hosts' CPU, in random order: without monitors; with them beside
    the balancer's view, as at a site; with monitors that lack one collector, for each of `off`; and if `captures` with
    monitors without that view, and with a packet capture in their place."""

    load: float
    seconds: float
    rounds: int
    off: Sequence[str] = ()
    captures: bool = False
    seed: int = 1

    @property
    def variants(self) -> dict[str, tuple[str, ...] | None]:
        """Variant -> collectors that the monitors lack; None: no monitors."""
        result: dict[str, tuple[str, ...] | None] = {WITHOUT: None, WITH: ()}
        result |= {f"{WITH}, {name} off": (name,) for name in self.off}
        return result | ({CAPTURING: (), CAPTURE: None} if self.captures else {})

    def beside(self, lab: Lab, demand: Demand, variant: str) -> AbstractContextManager[None]:
        """Starts and ends the programs of a variant beside the web servers."""
        if variant == CAPTURE:
            return _captures(lab)
        off = self.variants[variant]
        return nullcontext() if off is None else _monitors(lab, off, None if variant == CAPTURING else demand)


def run(lab: Lab, test: OwnCostTest, progress: Callable[[str], None]) -> dict[str, Any]:
    """All rounds; gives the JSON. Raises LabError."""
    demand = Demand(rate_rps=_rate_rps(lab, test, progress))
    start_bus(lab)
    dice, runs = random.Random(test.seed), []
    for number in range(1, test.rounds + 1):
        for variant in dice.sample(list(test.variants), len(test.variants)):
            with test.beside(lab, demand, variant):
                measured = {"round": number, "variant": variant, **_measured(lab, demand, test.seconds)}
            runs.append(measured)
            progress(
                f"round {number} of {test.rounds}, {variant}: {measured['request_cpu_ms']:.3f} ms of CPU a request"
            )
    return {
        "commit": commit(),
        "machine": machine.describe(lab),
        "load": test.load,
        "rate_rps": demand.rate_rps,
        "seconds": test.seconds,
        "runs": runs,
        "rows": rows(runs),
    }


def _rate_rps(lab: Lab, test: OwnCostTest, progress: Callable[[str], None]) -> float:
    """Requests per second that take this share of the hosts' CPU."""
    rate_rps = round(test.load * capacity_rps(lab), 1)
    for _ in range(CORRECTIONS):
        share = _measured(lab, Demand(rate_rps=rate_rps), test.seconds)["cpu_share"]
        progress(f"{rate_rps} requests/s take {share:.1%} of the hosts' CPU")
        rate_rps = round(rate_rps * test.load / share, 1)
    progress(f"asked for {rate_rps} requests/s")
    return rate_rps


@contextmanager
def _monitors(lab: Lab, off: Sequence[str], demand: Demand | None) -> Iterator[None]:
    """They send Samples meanwhile. With a load they are beside the balancer's view, and have ended their captures."""
    try:
        with monitored(lab, off) as listener:
            if demand is not None:
                start_view(lab)
                _spared(lab, listener, demand)
            yield
    finally:
        stop_programs(lab, VIEW)
        stop_programs(lab, MONITOR)


def _spared(lab: Lab, listener: BusListener, demand: Demand) -> None:
    """Waits until no monitor captures packets, under load. Raises LabError where one still does."""

    def none_captures() -> bool:
        latest = {sample.node: sample for sample in listener.heard[-10 * len(lab.hosts) :]}
        return len(latest) == len(lab.hosts) and all("traffic.drops" in sample.absent for sample in latest.values())

    load = lab.load(demand, SPARED_WITHIN_S)
    try:
        if not wait_for(lab, none_captures, SPARED_WITHIN_S - 1.0, load):
            raise LabError(f"after {SPARED_WITHIN_S:g} s under load a monitor still captures packets")
    finally:
        load.stop()


@contextmanager
def _captures(lab: Lab) -> Iterator[None]:
    """In each host `tcpdump` captures meanwhile what a monitor would capture, and throws it away."""
    argv = [program("tcpdump"), "-i", "eth0", "-Z", "root", "-w", os.devnull, "port", "80"]
    for host_machine in lab.machines.values():
        lab.add(host_machine.start("tcpdump", argv, "tcpdump.log"))
    try:
        yield
    finally:
        stop_programs(lab, "tcpdump of ")


def _measured(lab: Lab, demand: Demand, seconds: float) -> dict[str, Any]:
    """One run: what a request takes of the hosts' CPU, all that they do included, its response time, and the share of
    its host's CPU that a monitor took itself."""
    load = lab.load(demand, WARM_UP_S + seconds)
    stay(lab, load.begin_mono_s + WARM_UP_S, load)
    begun_s, cpu_s, used = time.monotonic(), lab.vm_cpu_s(), look(lab)
    stay(lab, load.begin_mono_s + WARM_UP_S + seconds, load)
    ended_s, cpu_s, costs = time.monotonic(), lab.vm_cpu_s() - cpu_s, look(lab)
    core_share = between(used, costs, ended_s - begun_s).get("monitor", {}).get("core_share")
    whole_s = (ended_s - begun_s) * lab.settings.quota_cores * len(lab.hosts)
    requests = load.finish()
    counted = (requests.due_mono_s >= begun_s) & (requests.due_mono_s < ended_s)
    spent_ms = requests.seconds[counted] * 1000.0
    return {
        "requests": int(counted.sum()),
        "lost": requests.lost_count,
        "cpu_share": cpu_s / whole_s,
        "request_cpu_ms": cpu_s * 1000.0 / max(1, counted.sum()),
        "monitor_share": None if core_share is None else core_share / lab.settings.quota_cores,
        **{f"p{percentile}_ms": float(np.percentile(spent_ms, percentile)) for percentile in PERCENTILES},
    }


def rows(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each variant: medians, and how many times the CPU time and the p95 are those of the same round without
    monitors, with the interval."""
    by_variant: dict[str, list[dict[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: run["round"]):
        by_variant.setdefault(run["variant"], []).append(run)
    without = by_variant[WITHOUT]

    def times(measured: Sequence[dict[str, Any]], key: str) -> dict[str, float | None] | None:
        estimate = rounds.ratio((run[key], alone[key]) for run, alone in zip(measured, without, strict=True))
        return None if estimate is None else {"value": estimate.value, "low": estimate.low, "high": estimate.high}

    table = []
    for variant, measured in by_variant.items():
        row: dict[str, Any] = {"variant": variant, "rounds": len(measured)}
        for key in (
            "cpu_share",
            "request_cpu_ms",
            "monitor_share",
            *(f"p{percentile}_ms" for percentile in PERCENTILES),
        ):
            values = [run[key] for run in measured if run[key] is not None]
            row[key] = statistics.median(values) if values else None
        if variant != WITHOUT:
            row |= {f"{key}_times": times(measured, key) for key in ("request_cpu_ms", "p95_ms")}
        table.append(row)
    return sorted(table, key=lambda row: (row["variant"] != WITHOUT, row["variant"] != WITH))


def cells(row: dict[str, Any]) -> list[str]:
    """A row as text: its variant, then `COLUMNS`. A request that takes c times the CPU leaves 1 / c of the capacity."""
    more = row.get("request_cpu_ms_times")

    def lost(times: float) -> str:
        return f"{1.0 - 1.0 / times:.2%}"

    share = "-"
    if more:
        span = "" if more["low"] is None else f" ({lost(more['low'])} to {lost(more['high'])})"
        share = lost(more["value"]) + span
    own = "-" if row["monitor_share"] is None else f"{row['monitor_share']:.2%}"
    return [
        row["variant"],
        f"{row['cpu_share']:.1%}",
        f"{row['request_cpu_ms']:.3f}",
        share,
        own,
        *(f"{row[f'p{percentile}_ms']:.1f}" for percentile in PERCENTILES),
    ]
