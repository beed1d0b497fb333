"""Samples as columns: each field of a tick's Samples is an array, with NaN where it is absent.

A Sample becomes a row of packed numbers as soon as it is read, by two calls in C, while it is still in the processor's
cache. All rows of a tick become arrays at once. At thousands of Samples a tick, a return to each Sample for each field
would cost more than all the rest of the detector.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from slackwater.core.messages import (
    Canary,
    Counters,
    Cpu,
    Disk,
    Frequency,
    Gaps,
    Memory,
    Network,
    Pressure,
    RouteTraffic,
    Sample,
    Sched,
    Traffic,
    is_binary,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SECTIONS: dict[str, tuple[msgspec.Struct, tuple[str, ...]]] = {
    "cpu": (Cpu(scope="system"), ("utilisation", "steal", "cores", "throttled")),
    "sched": (
        Sched(),
        ("cpu_s_per_s", "run_delay_s_per_s", "run_delay_per_cpu_s", "involuntary_switches_per_s", "threads"),
    ),
    "pressure": (
        Pressure(),
        ("cpu_some", "memory_some", "io_some", "cgroup_cpu_some", "cgroup_memory_some", "cgroup_io_some"),
    ),
    "counters": (Counters(source="canary"), ("cpi", "cache_miss_rate", "wall_cpu_ratio")),
    "canary": (
        Canary(),
        ("llc_cycles_per_load", "alu_cycles_per_op", "slow_share", "wall_cpu_ratio", "late_ms"),
    ),
    "traffic": (
        Traffic(),
        (
            *("rps", "rps_error", "rt_mean_ms", "rt_p50_ms", "rt_p95_ms", "in_flight"),
            *("oldest_unanswered_ms", "errors_per_s"),
        ),
    ),
    "gaps": (Gaps(), ("moments", "lost_share", "queued_share")),
    "memory": (Memory(), ("major_faults_per_s",)),
    "disk": (Disk(device=""), ("busy", "wait_ms")),
    "network": (Network(interface=""), ("saturation", "retransmits_per_s", "drops_per_s")),
    "frequency": (Frequency(), ("mean_mhz",)),
}
"""Section -> a section with all fields absent, which stands in for an absent one, and the numeric fields that the
detector reads."""
_WORDS = ("node", "pool", "boot_id", "counters.source", "traffic.routes", "absent", "source")
_PLAIN = ("time_unix_s", "period_s", "next_within_s", "seq", "samples_dropped")
_NUMBERS = (*_PLAIN, *(f"{name}.{field}" for name, (_, fields) in SECTIONS.items() for field in fields))
_NODE, _SOURCE = _WORDS.index("node"), _WORDS.index("source")
_words, _numbers = attrgetter(*_WORDS), attrgetter(*_NUMBERS)
_pack = struct.Struct(f"{len(_NUMBERS)}d").pack

Columns = dict[str, Floats]
"""Dotted name (`sched.run_delay_per_cpu_s`; `pmu.cpi` and `probe.cpi` are `counters.cpi` by source) -> (M,).

`balancer.rt_mean_ms` does not come from Samples: see `slackwater.detector.features.balancer_latency`. `balancer.only`
is 1 for a Sample that was made beside the balancer, of a server without a monitor, else 0."""
Row = tuple[tuple[Any, ...], bytes]
"""A Sample's words and its numbers, packed as doubles."""


def filled(values: Floats, absent: float) -> Floats:
    """The values, with `absent` in place of NaN."""
    return np.where(np.isnan(values), absent, values)


def clipped(values: Floats, low: float | Floats, high: float | Floats) -> Floats:
    """The values limited to low..high. `np.clip` takes several times as long for a few values."""
    return np.minimum(np.maximum(values, low), high)


def or_none(values: Floats) -> list[list[float | None]]:
    """(N, M) numbers of Python, with None for NaN and infinities."""
    numbers: list[list[float | None]] = values.tolist()
    for column, row in np.argwhere(~np.isfinite(values)).tolist():
        numbers[column][row] = None
    return numbers


def fields_read() -> dict[str, set[str]]:
    """Section of a Sample -> the fields of it that the detector reads."""
    fields_by_section = {name: set(fields) for name, (_, fields) in SECTIONS.items()}
    fields_by_section["counters"].add("source")
    fields_by_section["traffic"].add("routes")
    return fields_by_section


def row_of(sample: Sample) -> Row:
    """A Sample as a row."""
    try:
        words, numbers = _words(sample), _numbers(sample)
    except AttributeError:  # a section is absent
        absent = {name: part for name, (part, _) in SECTIONS.items() if getattr(sample, name) is None}
        whole = msgspec.structs.replace(sample, **absent)
        words, numbers = _words(whole), _numbers(whole)
    try:
        return words, _pack(*numbers)
    except struct.error:  # a value is absent
        return words, _pack(*(math.nan if value is None else value for value in numbers))


def node_of(row: Row) -> str:
    """The node that a row's Sample is about."""
    return str(row[0][_NODE])


def is_outside(row: Row) -> bool:
    """Whether a row's Sample was made beside the balancer."""
    return bool(row[0][_SOURCE] == "balancer")


@dataclass(frozen=True)
class Table:
    """M Samples of one pool, in the order in which they came."""

    nodes: Sequence[str]
    boot_ids: Sequence[str]
    seq: Ints
    samples_dropped: Ints
    time_unix_s: Floats
    columns: Columns
    routes: Sequence[Sequence[RouteTraffic]]
    absent: Sequence[Mapping[str, str] | msgspec.Raw]
    """Reasons for absent values, see `reasons`."""
    samples: Sequence[Sample]
    """The rows' Samples; empty where they were not kept."""

    def __len__(self) -> int:
        return len(self.nodes)

    def only(self, rows: Ints) -> Table:
        """The table of these rows, (K,)."""
        return Table(**{name: _some(values, rows) for name, values in vars(self).items()})


def _some(values: Any, rows: Ints) -> Any:
    """These rows of a table's field; empty for a field that was not kept."""
    if isinstance(values, dict):
        return {name: _some(column, rows) for name, column in values.items()}
    if isinstance(values, np.ndarray):
        return values[rows]
    return [values[row] for row in rows.tolist()] if values else []


def reasons(absent: Mapping[str, str] | msgspec.Raw) -> Mapping[str, str]:
    """A Sample's reasons for absent values, which may still be encoded; empty where they cannot be decoded."""
    if not isinstance(absent, msgspec.Raw):
        return absent
    decode = msgspec.msgpack.decode if is_binary(bytes(absent)) else msgspec.json.decode
    try:
        return decode(absent, type=dict[str, str])
    except msgspec.DecodeError:
        return {}


def table_of(rows: Sequence[Row], pool: str, samples: Sequence[Sample] = ()) -> Table:
    """The rows as a table. Infinite values count as absent. Raises ValueError for a Sample of another pool."""
    nodes, pools, boot_ids, sources, routes, absent, makers = zip(*(words for words, _ in rows), strict=True)
    if pools.count(pool) != len(pools):
        other = next(name for name in pools if name != pool)
        raise ValueError(f"a Sample of pool {other} was handed to the detector of pool {pool}")
    packed = np.frombuffer(b"".join([numbers for _, numbers in rows]))
    numbers = packed.reshape(len(rows), len(_NUMBERS)).T.copy()
    numbers[np.isinf(numbers)] = np.nan
    columns: Columns = dict(zip(_NUMBERS, numbers, strict=True))
    columns["balancer.rt_mean_ms"] = np.full(len(rows), np.nan)
    columns["balancer.only"] = np.array([maker == "balancer" for maker in makers], dtype=np.float64)
    hardware = np.array([source == "pmu" for source in sources])
    for field in ("cpi", "cache_miss_rate"):
        values = columns[f"counters.{field}"]
        columns[f"pmu.{field}"] = np.where(hardware, values, np.nan)
        columns[f"probe.{field}"] = np.where(hardware, np.nan, values)
    return Table(
        nodes=nodes,
        boot_ids=boot_ids,
        seq=columns["seq"].astype(np.int64),
        samples_dropped=columns["samples_dropped"].astype(np.int64),
        time_unix_s=columns["time_unix_s"],
        columns=columns,
        routes=routes,
        absent=absent,
        samples=samples,
    )
