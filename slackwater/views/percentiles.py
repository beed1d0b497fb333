"""The percentiles of each server's response times over the last minutes, from its histogram in the journal."""

from __future__ import annotations

import msgspec

from slackwater.core.journal.journal import Journal
from slackwater.core.journal.response_times import WINDOW_S
from slackwater.core.response_times import Histogram

OF_MONITOR = "its monitor sends none; the node's own metric `slackwater_response_time_seconds` has them"
NO_SAMPLE = "nothing measures its response times: it has no monitor, and the balancer tells nothing of it"
WINDOW = f"{WINDOW_S // 60} minutes"
NO_REQUEST = f"no request was answered in the last {WINDOW}"


class ServerPercentiles(msgspec.Struct):
    """Of a server's response times over the last 5 minutes, within 3%; a percentile that is not known is None."""

    requests: int = 0
    """Number of response times."""
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    """p99.9."""
    absent: str = ""
    """Why some or all of them are None, in words; empty where all are there."""


def percentiles_of(recent: Histogram) -> ServerPercentiles:
    """The percentiles of a histogram."""
    count = recent.count
    p50_ms, p95_ms, p99_ms, p999_ms = (
        None if (value_s := recent.percentile_s(share)) is None else value_s * 1000.0
        for share in (0.5, 0.95, 0.99, 0.999)
    )
    absent = NO_REQUEST
    if count:
        least = next((least for share, least in ((p95_ms, 20), (p99_ms, 100), (p999_ms, 1000)) if share is None), 0)
        were = "was 1 request" if count == 1 else f"were {count} requests"
        absent = f"there {were} in the last {WINDOW}, and {least} are needed"
        absent = absent if least else ""
    return ServerPercentiles(count, p50_ms, p95_ms, p99_ms, p999_ms, absent)


class PoolPercentiles:
    """The percentiles of a pool's servers, now. Raises JournalError."""

    def __init__(self, journal: Journal, pool: str) -> None:
        self._times = journal.response_times(pool)
        self._reasons = journal.why_no_response_times(pool)

    def of(self, node: str, server: str) -> ServerPercentiles:
        """A server's percentiles; `server` is the balancer's name of it."""
        times = self._times.get((node, server))
        if times is not None and times.recent.count:
            return percentiles_of(times.recent)
        source, reason = self._reasons.get(node, ("", ""))
        if source == "monitor":
            reason = OF_MONITOR
        return ServerPercentiles(absent=reason or (NO_REQUEST if source else NO_SAMPLE))
