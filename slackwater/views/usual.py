"""What a node's response times and signals mostly were in the last days, and which nodes are far slower now."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from slackwater.core.journal.journal import Journal
from slackwater.core.journal.pool_totals import Requests
from slackwater.core.journal.usual import SIGNALS, Row, recent, rolled
from slackwater.views.percentile import pooled_ms

HOURS, MINUTES = 48, 360
"""The median is that of this many rolled-up hours; before `LEAST_HOURS` are known, of this many minutes."""
LEAST_HOURS, LEAST_MINUTES = 6, 5
MOST_ROWS = 100_000
"""Most rows that are read of a pool; with many nodes they cover less time."""
TIMES_USUAL = 3.0
LEAST_MS = 10.0
"""A p95 is slow if it is this many times the usual one, and above it by this much."""
RECENT_S = 10.0
"""A server is slow if its p95 over this time is, and for more than half of it: one long request is not enough."""
MOST_APART_S = 1.5
"""A Sample tells of the time since the one before, and of no more than this."""
LEAST_REQUESTS = 20
"""A time with fewer requests says nothing."""
RENEW_S = 60.0
RESOURCES: dict[str, dict[str, tuple[float, float]]] = {
    "CPU": {"run_delay_per_cpu_s": (2.0, 0.05), "steal": (1.5, 0.02)},
    "disk": {"pressure_io": (2.0, 0.03)},
    "memory": {"pressure_memory": (2.0, 0.03), "cpi": (1.3, 0.0)},
}
"""Signals that tell of a resource; they are as usual up to this multiple of the usual value, plus this amount."""
Medians = Mapping[str, float]
"""Signal -> median; what was not measured is absent."""


class Slow(NamedTuple):
    """A node that is far slower than it mostly was."""

    rt_p95_now_ms: float
    rt_p95_usual_ms: float
    as_in_calm: list[str]
    """The resources whose signals are as they mostly were."""


def usual(journal: Journal, pool: str, now_unix_s: float) -> dict[str, Medians]:
    """The medians of each node of which enough is known. Raises JournalError."""
    medians: dict[str, Medians] = {}
    each = MOST_ROWS // max(len(journal.received("sample", pool)), 1)
    since = now_unix_s - min(HOURS, max(each, LEAST_HOURS + 1)) * 3600.0
    hours = rolled(journal, pool, since, now_unix_s, by_hours=True)
    known = {node for node, rows in hours.items() if len(rows) >= LEAST_HOURS}
    since = now_unix_s - min(MINUTES, max(each, LEAST_MINUTES + 1)) * 60.0
    minutes = rolled(journal, pool, since, now_unix_s, by_hours=False, without=known)
    for node, rows in {**minutes, **{node: hours[node] for node in known}}.items():
        if node in known or len(rows) >= LEAST_MINUTES:
            medians[node] = _medians(rows)
    return medians


class Usual:
    """`usual`, renewed once a minute. May be called from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, dict[str, Medians]]] = {}

    def __call__(self, journal: Journal, pool: str, now_unix_s: float) -> dict[str, Medians]:
        with self._lock:
            known = self._known.get(pool)
            if known is None or not 0.0 <= now_unix_s - known[0] < RENEW_S:
                known = self._known[pool] = (now_unix_s, usual(journal, pool, now_unix_s))
            return known[1]


def slow(
    journal: Journal, pool: str, p95_ms: Mapping[str, float | None], mostly: Mapping[str, Medians]
) -> dict[str, Slow]:
    """Nodes that are far slower than usual. `p95_ms`: each node's p95 now, which tells which ones to look at."""
    suspects = [
        node for node, now in p95_ms.items() if now is not None and _is_slow(now, mostly.get(node, {}).get("rt_p95_ms"))
    ]
    slow_nodes = {}
    for node, rows in (recent(journal, pool, suspects, RECENT_S) if suspects else {}).items():
        before = mostly[node]
        p95_now = _p95_where_slow(rows, before["rt_p95_ms"])
        if p95_now is not None:
            slow_nodes[node] = Slow(p95_now, before["rt_p95_ms"], as_in_calm(_medians(rows), before))
    return slow_nodes


def _p95_where_slow(rows: Sequence[Row], usual_ms: float) -> float | None:
    """The p95 over these Samples, the oldest first; None where the server is not slow.

    Time in which requests waited and none was answered is slow if the next answers are.
    """
    answered: list[Requests] = []
    slow_s = waited_s = 0.0
    for before, row in pairwise(rows):
        covers_s = min((row["time_unix_s"] or 0.0) - (before["time_unix_s"] or 0.0), MOST_APART_S)
        p95_ms = row["rt_p95_ms"]
        if p95_ms is None:
            waited_s = waited_s + covers_s if row["in_flight"] else 0.0
            continue
        answered.append(((row["rps"] or 0.0) * covers_s, row["rt_p50_ms"], p95_ms, row["rt_p99_ms"]))
        if _is_slow(p95_ms, usual_ms):
            slow_s += covers_s + waited_s
        waited_s = 0.0
    if 2.0 * slow_s <= RECENT_S or math.fsum(count for count, *_ in answered) < LEAST_REQUESTS:
        return None
    p95_ms = pooled_ms(answered, 0.95)
    return p95_ms if p95_ms is not None and _is_slow(p95_ms, usual_ms) else None


def as_in_calm(now: Medians, mostly: Medians) -> list[str]:
    """The resources with a measured signal, all of whose signals are as they mostly were."""
    resources = []
    for resource, signals in RESOURCES.items():
        measured = signals.keys() & now.keys() & mostly.keys()
        if measured and all(now[name] <= signals[name][0] * mostly[name] + signals[name][1] for name in measured):
            resources.append(resource)
    return resources


def _is_slow(now_ms: float, usual_ms: float | None) -> bool:
    return usual_ms is not None and now_ms >= max(TIMES_USUAL * usual_ms, usual_ms + LEAST_MS)


def _medians(rows: Iterable[Mapping[str, float | None]]) -> dict[str, float]:
    rows = list(rows)
    known = {name: [value for row in rows if (value := row[name]) is not None] for name in SIGNALS}
    return {name: median(values) for name, values in known.items() if values}
