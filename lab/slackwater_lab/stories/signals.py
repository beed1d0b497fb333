"""What a neighbour does to each signal of a host, as a ratio to calm: which signals a kind of host shows at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from slackwater.core.messages import Sample
from slackwater_lab.cluster import machine
from slackwater_lab.cluster.bus_listener import BusListener
from slackwater_lab.cluster.commit import commit
from slackwater_lab.cluster.controller import monitored, start_bus
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand
from slackwater_lab.experiment.neighbour_share import aim
from slackwater_lab.experiment.steady import SETTLE_S, capacity_rps, stay

MARGIN_S = 3.0
OF_THE_MESSAGE = ("v", "seq", "time_unix_s", "period_s")
LOW, HIGH = 10, 90
"""Percentiles of the range."""


@dataclass(frozen=True)
class SignalsTest:
    """Each kind of neighbour takes `lost` of the host's capacity for `seconds`, after as much calm, at each load."""

    kinds: Sequence[str]
    lost: float
    loads: Sequence[float]
    seconds: float


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a message in plain form, by dotted name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if name or key not in OF_THE_MESSAGE:
                yield from numbers(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, float(value)


def by_signal(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """The values of each signal that the Samples have."""
    by_name: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in numbers(msgspec.to_builtins(sample)):
            by_name.setdefault(name, []).append(value)
    return by_name


def compared(calm: Sequence[Sample], beside: Sequence[Sample]) -> list[dict[str, Any]]:
    """A row for each signal that both have: medians, and the ratio to the calm median with its range.

    The ratio is null where the calm median is 0: there the change alone says something.
    """
    before, after = by_signal(calm), by_signal(beside)
    rows = []
    for name in before.keys() & after.keys():
        still, loud = float(np.median(before[name])), float(np.median(after[name]))
        low, high = (float(value) for value in np.percentile(after[name], (LOW, HIGH)))
        ratios = (None, None, None) if still == 0.0 else (loud / still, low / still, high / still)
        row = {"signal": name, "calm": still, "beside": loud, "samples": len(after[name])}
        rows.append(row | dict(zip(("ratio", "ratio_low", "ratio_high"), ratios, strict=True)))
    return sorted(rows, key=lambda row: row["signal"])


def run(lab: Lab, test: SignalsTest, progress: Callable[[str], None]) -> dict[str, Any]:
    """All kinds at all loads; gives the JSON. Raises LabError."""
    capacity = capacity_rps(lab)
    progress(f"capacity {capacity:.0f} requests/s in calm")
    facts = machine.describe(lab)
    aims = {kind: aim(lab, lab.noisy, kind, test.lost, lab.settings.quota_cores) for kind in test.kinds}
    start_bus(lab)
    states = []
    with monitored(lab) as listener:
        for load in test.loads:
            for kind in test.kinds:
                calm, beside = _state(lab, listener, round(load * capacity, 1), kind, aims[kind].weight, test.seconds)
                states.append({"load": load, "taken": aims[kind].as_fact(), "signals": compared(calm, beside)})
                progress(f"{kind} at {load:.0%} load: {len(calm)} Samples in calm, {len(beside)} beside it")
    return {"commit": commit(), "machine": facts, "seconds": test.seconds, "states": states}


def _state(
    lab: Lab, listener: BusListener, rate_rps: float, kind: str, weight: int, seconds: float
) -> tuple[list[Sample], list[Sample]]:
    """The Samples of the noisy host in calm and beside a neighbour."""
    load = lab.load(Demand(rate_rps=rate_rps), 2 * (SETTLE_S + seconds))

    def heard() -> list[Sample]:
        begin = len(listener.heard)
        stay(lab, time.monotonic() + seconds, load)
        listener.check()
        return [sample for sample in listener.heard[begin:] if sample.node == lab.noisy.name]

    stay(lab, load.begin_mono_s + SETTLE_S, load)
    calm = heard()
    noise = lab.noise(lab.noisy, kind, 1.0, SETTLE_S + seconds + MARGIN_S, weight)
    try:
        stay(lab, time.monotonic() + SETTLE_S / 2, load)
        beside = heard()
    finally:
        noise.stop()
    load.finish()
    return calm, beside
