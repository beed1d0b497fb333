"""Samples as columns: each field of a tick's Samples as one array, NaN where it is absent.

Fields are fetched one after the other for all Samples, by `attrgetter` in `map`, which loops in C: at thousands
of Samples a tick, a Python call for each field of each Sample would cost more than all the rest of the detector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slackwater.messages import Canary, Counters, Cpu, Disk, Memory, Network, Pressure, Sample, Sched, Traffic

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def _counters(source: str) -> Callable[[Sequence[Sample]], list[Any]]:
    """The section `counters` where it is of this source: hardware's cycles are no probe's cycles."""
    return lambda samples: [
        counters if (counters := sample.counters) is not None and counters.source == source else None
        for sample in samples
    ]


def _section(name: str) -> Callable[[Sequence[Sample]], list[Any]]:
    get = attrgetter(name)
    return lambda samples: list(map(get, samples))


_SECTIONS: dict[str, tuple[Callable[[Sequence[Sample]], list[Any]], Any, tuple[str, ...]]] = {
    "cpu": (_section("cpu"), Cpu(scope="system"), ("utilisation", "steal", "cores", "throttled")),
    "sched": (
        _section("sched"),
        Sched(),
        ("cpu_s_per_s", "run_delay_s_per_s", "run_delay_per_cpu_s", "involuntary_switches_per_s"),
    ),
    "pressure": (
        _section("pressure"),
        Pressure(),
        ("cpu_some", "memory_some", "io_some", "cgroup_cpu_some", "cgroup_memory_some", "cgroup_io_some"),
    ),
    "counters": (_section("counters"), Counters(source="canary"), ("wall_cpu_ratio",)),
    "pmu": (_counters("pmu"), Counters(source="pmu"), ("cpi", "cache_miss_rate")),
    "probe": (_counters("canary"), Counters(source="canary"), ("cpi", "cache_miss_rate")),
    "canary": (
        _section("canary"),
        Canary(),
        ("llc_cycles_per_load", "alu_cycles_per_op", "slow_share", "wall_cpu_ratio", "late_ms"),
    ),
    "traffic": (_section("traffic"), Traffic(), ("rps", "rt_mean_ms", "rt_p95_ms", "in_flight")),
    "memory": (_section("memory"), Memory(), ("major_faults_per_s",)),
    "disk": (_section("disk"), Disk(device=""), ("busy", "wait_ms")),
    "network": (_section("network"), Network(interface=""), ("saturation", "retransmits_per_s", "drops_per_s")),
}
"""Section of a column's name -> where it is, what stands in for an absent one (all fields absent), fields needed."""
NOT_A_SECTION = ("pmu", "probe")
"""Columns that are `counters` by source."""
_GETTERS = {field: attrgetter(field) for _, _, fields in _SECTIONS.values() for field in fields}

Columns = dict[str, Floats]
"""Dotted name (`sched.run_delay_per_cpu_s`; `pmu.cpi` and `probe.cpi` are `counters.cpi` by source) -> (M,)."""


def fields_read() -> dict[str, set[str]]:
    """Section of a Sample -> its fields that the detector reads."""
    found: dict[str, set[str]] = {"counters": {"source"}, "traffic": {"routes"}}
    for name, (_, _, fields) in _SECTIONS.items():
        found.setdefault("counters" if name in NOT_A_SECTION else name, set()).update(fields)
    return found


def columns_of(samples: Sequence[Sample]) -> Columns:
    """All columns of these Samples; infinite values count as absent."""
    found: Columns = {"period_s": _finite([sample.period_s for sample in samples])}
    for name, (get, stand_in, fields) in _SECTIONS.items():
        parts = get(samples)
        absent = parts.count(None)
        if absent == len(parts):
            nothing = np.full(len(parts), np.nan)
            found.update({f"{name}.{field}": nothing for field in fields})
            continue
        if absent:
            parts = [stand_in if part is None else part for part in parts]
        for field in fields:
            found[f"{name}.{field}"] = _finite(list(map(_GETTERS[field], parts)))
    return found


def _finite(values: Sequence[Any]) -> Floats:
    """As floats; None and infinities become NaN."""
    array = np.array(values, dtype=np.float64)
    array[np.isinf(array)] = np.nan
    return array
