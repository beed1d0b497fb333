"""Samples of servers from the balancer's counters and the packets' times. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from slackwater.core.messages import VERSION, ResponseTimes, RouteTraffic, Sample, Traffic
from slackwater.lbengine.view.counters import Counted
from slackwater.lbengine.view.packets import SnifferLine, SnifferRoute

NO_MONITOR = "the node has no monitor: what is known of it is what its balancer sees"
SECTIONS = ("cpu", "sched", "pressure", "counters")
OTHER_PROTOCOL = (
    "its answers are not HTTP/1 (HTTP/2, or TLS that the balancer passes through?), so packets do not show their times"
)
UNSEEN = ("traffic", "traffic.rps", "traffic.rt_p95_ms", "traffic.times")
"""The values that a Sample lacks while nothing is known of its server's requests."""
HANGS_MS = 1000.0
"""Where a request waits for this long, exchanges are no answers that have begun and that the balancer does not count
before their end, such as downloads."""
_ABSENT = dict.fromkeys(SECTIONS, NO_MONITOR)


class Origin(msgspec.Struct, frozen=True):
    """What all Samples of a pool have in common."""

    pool: str
    boot_id: str
    """The boot id of the balancer's host."""
    next_within_s: float


def sample_of(
    origin: Origin,
    node: str,
    server: str,
    seq: int,
    time_unix_s: float,
    counted: Counted,
    times: tuple[SnifferLine, SnifferLine] | None,
    why_not: str,
    *,
    complete: bool = False,
    quiet_s: float = 0.0,
) -> Sample:
    """A server's Sample. `server`: the balancer's name of it; `times`: its packets, and the line that ended their look;
    `why_not`: why there are none; `complete`: its packets show all of its requests; `quiet_s`: time before the look in
    which it was quiet and had no Sample, which this one covers too.

    It has no traffic where neither the balancer nor packets tell anything of the requests: zero would look like calm.
    """
    absent: Mapping[str, str] = _ABSENT
    if times is not None and times[0].is_foreign:
        times, why_not = None, OTHER_PROTOCOL
    if quiet_s > 0.0:
        counted = counted.after_quiet(quiet_s)
        if times is not None:
            times = times[0], msgspec.structs.replace(times[1], period_s=times[1].period_s + quiet_s)
    if times is not None:
        traffic = _of_packets(counted, server, *times, complete=complete)
    elif counted.rps is not None:
        traffic = _by_counters(counted, why_not)
        if why_not:
            absent = {**_ABSENT, **dict.fromkeys(UNSEEN[2:], why_not)}
    else:
        traffic = None
        absent = {**_ABSENT, **dict.fromkeys(UNSEEN, why_not or "no look at its packets has ended yet")}
    return Sample(
        v=VERSION,
        node=node,
        pool=origin.pool,
        time_unix_s=time_unix_s,
        boot_id=origin.boot_id,
        seq=seq,
        period_s=covered_s(counted, times, complete=complete),
        next_within_s=origin.next_within_s,
        source="balancer",
        traffic=traffic,
        absent=dict(absent),
    )


def covered_s(counted: Counted, times: tuple[SnifferLine, SnifferLine] | None, *, complete: bool) -> float:
    """The time that a look covers: the packets' where they show all requests, otherwise the counters'."""
    return times[1].period_s if times is not None and complete else counted.period_s


def _by_counters(counted: Counted, why_not: str) -> Traffic:
    """The traffic by the balancer's counters. Where packets are seen, and only their next look is missing, `why_not` is
    empty and the mean is left out: it would differ from the packets' mean."""
    return Traffic(
        rps=counted.rps,
        rt_mean_ms=counted.rt_mean_ms if why_not else None,
        in_flight=counted.in_flight,
        errors_per_s=counted.errors_per_s,
    )


def _of_packets(counted: Counted, server: str, times: SnifferLine, end: SnifferLine, *, complete: bool) -> Traffic:
    """The traffic with the packets' response times. Rates, errors and requests in flight are the balancer's, which
    counts all requests wherever they end. Where packets show all of them (`complete`) these are the packets', which
    come more often. Connections that fail are no exchanges, so the counters may show more errors then. While the
    balancer counts no answer, and none has begun, exchanges are its health checks: these go on where requests hang, and
    their times and errors are none of requests."""
    if not counted.answered_lately and (not counted.in_flight or times.oldest_unanswered_ms >= HANGS_MS):
        times = SnifferLine(
            in_flight=times.in_flight,
            oldest_unanswered_ms=times.oldest_unanswered_ms,
            unmatched=times.unmatched,
            holes=times.holes,
        )
    rps, errors_per_s, in_flight = counted.rps, counted.errors_per_s, counted.in_flight
    if complete:
        rps, in_flight = None, None
        errors_per_s = max(times.errors / end.period_s, errors_per_s or 0.0)
    return Traffic(
        rps=times.exchanges / end.period_s if rps is None else rps,
        rt_mean_ms=times.rt_mean_ms,
        rt_p50_ms=times.rt_p50_ms,
        rt_p95_ms=times.rt_p95_ms,
        rt_p99_ms=times.rt_p99_ms,
        in_flight=times.in_flight if in_flight is None else in_flight,
        oldest_unanswered_ms=times.oldest_unanswered_ms,
        errors_per_s=times.errors / end.period_s if errors_per_s is None else errors_per_s,
        drops=end.drops,
        unmatched=times.unmatched,
        holes=times.holes,
        routes=[_route(route, end.period_s) for route in times.routes] if times.routes else [],
        times=ResponseTimes(server, times.rt_sum_ms / 1000.0, times.rt_buckets) if times.rt_buckets else None,
    )


def _route(route: SnifferRoute, period_s: float) -> RouteTraffic:
    return RouteTraffic(
        route=route.name,
        rps=route.exchanges / period_s,
        rt_mean_ms=route.rt_mean_ms,
        rt_p95_ms=route.rt_p95_ms,
        errors_per_s=route.errors / period_s,
    )
