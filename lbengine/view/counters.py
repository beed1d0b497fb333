"""What a balancer's counters say of each server since the look before. Pure.

The mean response time follows from Little's law ("A proof for the queuing formula L = lambda W", 1961): the requests in
flight over the rate of answers. The looks must come at random moments: at regular ones they would meet whatever else
is regular, such as the period of a CPU quota, always in the same phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from slackwater.lbengine.balancer import Server, Snapshot

WINDOW_S = 2.0
"""Least time over which the requests in flight are averaged."""
LEAST_LOOKS = 5
"""Fewest looks in the window for which a mean response time is given."""


class Counted(msgspec.Struct, frozen=True):
    """A server's counters since the look before."""

    period_s: float
    """Time since the look before."""
    in_flight: int | None
    """Requests in flight; None: the balancer counts connections, not requests."""
    rps: float | None
    """Answers per second; None: as for `in_flight`."""
    errors_per_s: float | None
    rt_mean_ms: float | None
    """Mean response time over the last `WINDOW_S`, or longer where looks are rare; None: nothing was answered then, or
    too little was seen."""
    count: int = 0
    """Answers; where the balancer counts no requests, connections that it sent to the server."""
    answered_lately: bool = True
    """Whether there were answers since the look before the last one. If not, exchanges that packets show up to now are
    no requests of this balancer."""

    def after_quiet(self, quiet_s: float) -> Counted:
        """These counters over a longer time, which begins with `quiet_s` in which nothing happened."""
        period_s = self.period_s + quiet_s
        rps, errors_per_s = (
            None if rate is None else rate * self.period_s / period_s for rate in (self.rps, self.errors_per_s)
        )
        return msgspec.structs.replace(self, period_s=period_s, rps=rps, errors_per_s=errors_per_s)


class _Count(msgspec.Struct, frozen=True):
    """A server's counters at one look."""

    time_s: float
    ended: int
    unanswered: int
    """Of those that ended: refused, or sent again. Counted as answers, they would make the server look fast."""
    errors: int
    in_flight: int

    @property
    def answered(self) -> int:
        return self.ended - self.unanswered


@dataclass(frozen=True)
class RecentCounters:
    """The looks of the last `WINDOW_S`, and at least `LEAST_LOOKS`."""

    counted: Mapping[str, Counted] = field(default_factory=dict)
    """By server. A server whose counters started again since the look before is missing."""
    _looks: Mapping[str, tuple[_Count, ...]] = field(default_factory=dict)
    _snapshot: Snapshot | None = None

    def after(self, now_s: float, snapshot: Snapshot) -> RecentCounters:
        """The counters after a fresh look. `now_s` is monotonic seconds."""
        anew = snapshot.restarted_since(self._snapshot)
        looks: dict[str, tuple[_Count, ...]] = {}
        counted: dict[str, Counted] = {}
        for server in snapshot.servers:
            if server.uncounted:
                continue
            before = () if anew else self._looks.get(server.name, ())
            counts_requests = snapshot.counts == "requests"
            now = _count(now_s, server, counts_requests)
            if before and (now.ended < before[-1].ended - before[-1].in_flight or now.errors < before[-1].errors):
                before = ()  # a server of this name was removed and added
            while len(before) > LEAST_LOOKS and before[1].time_s <= now_s - WINDOW_S:
                before = before[1:]
            looks[server.name] = (*before, now)
            if before:
                counted[server.name] = _since(looks[server.name], counts_requests)
        return RecentCounters(counted, looks, snapshot)


def _count(now_s: float, server: Server, counts_requests: bool) -> _Count:
    held = server.in_flight if counts_requests else 0
    unanswered = server.unanswered if counts_requests else 0
    return _Count(now_s, server.requests - held, unanswered, server.errors, held)


def _since(looks: tuple[_Count, ...], counts_requests: bool) -> Counted:
    """A server's counters since the look before. `looks`: at least two, the oldest first."""
    before, now = looks[-2:]
    period_s = max(now.time_s - before.time_s, 1e-6)
    count = max(0, now.answered - before.answered)
    if not counts_requests:
        return Counted(period_s, None, None, None, None, count)
    answered_lately = now.answered > looks[-3:][0].answered
    answered, window_s = now.answered - looks[0].answered, now.time_s - looks[0].time_s
    rt_mean_ms = None
    if answered > 0 and len(looks) > LEAST_LOOKS:
        held = sum(look.in_flight for look in looks[1:]) / (len(looks) - 1)
        rt_mean_ms = held * window_s / answered * 1000.0
    return Counted(
        period_s,
        now.in_flight,
        count / period_s,
        max(0, now.errors - before.errors) / period_s,
        rt_mean_ms or None,
        count,
        answered_lately,
    )
