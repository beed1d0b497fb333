"""Which servers fail well above their peers, by the requests of the last `WINDOW_S` as the balancer counted them. Pure.

A server's share of failures is compared with that of all its peers together. Its lower confidence bound must be above
the upper bound of the peers' share. So a few failures among few requests do not suffice, and a few among many do. The
bounds are Chernoff's ("A measure of asymptotic efficiency for tests of a hypothesis", 1952), which hold for any number
of requests.

A server that was named stays named until the shares themselves are close again. Otherwise a server at the limit would
be named on and off, and load would move each time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slackwater.lbengine.balancer import Snapshot

WINDOW_S = 30.0
LOOK_S = 1.0
"""Time between the counts that are kept."""
DOUBT = 0.001
"""Probability that one of the two bounds is wrong. It is low since each server is judged several times a second."""
WELL_ABOVE = 0.01
"""Least distance of the bounds: one more failure in 100 requests is reported."""


@dataclass(frozen=True)
class Count:
    """Numbers of a server's requests in the window."""

    ended: int
    """Requests that were answered, failed or sent again to another server."""
    failed: int

    @property
    def share(self) -> float:
        return self.failed / self.ended if self.ended else 0.0


@dataclass(frozen=True)
class Failing:
    """A server whose share of failures is well above its peers'."""

    share: float
    peers: float
    """Share of failures of all its peers together."""


def failing(counts: Mapping[str, Count], before: Collection[str] = ()) -> dict[str, Failing]:
    """Servers that fail well above their peers, by name; no load should be moved to them.

    A server that did so `before` is still one of them while its share is more than `WELL_ABOVE` above theirs.
    """
    ended = sum(count.ended for count in counts.values())
    failed = sum(count.failed for count in counts.values())
    failing_servers = {}
    for server, count in counts.items():
        peers = Count(ended - count.ended, failed - count.failed)
        if not peers.ended or count.share <= peers.share + WELL_ABOVE:
            continue
        if server in before or _bound(count, 0.0) > _bound(peers, 1.0) + WELL_ABOVE:
            failing_servers[server] = Failing(count.share, peers.share)
    return failing_servers


def _bound(count: Count, towards: float) -> float:
    """The confidence bound of a counted share: below it (`towards` 0) or above it (`towards` 1)."""
    near, far, most = count.share, towards, math.log(1.0 / DOUBT)
    for _ in range(30):
        middle = (near + far) / 2.0
        if count.ended * _divergence(count.share, middle) <= most:
            near = middle
        else:
            far = middle
    return near


def _divergence(counted: float, true: float) -> float:
    """The Kullback-Leibler divergence of two shares."""
    return sum(p * math.log(p / q) for p, q in ((counted, true), (1.0 - counted, 1.0 - true)) if p > 0.0)


@dataclass(frozen=True)
class ErrorWindow:
    """The balancer's counts over about the last `WINDOW_S`."""

    looks: tuple[tuple[float, Mapping[str, tuple[int, int]]], ...] = ()
    """(time, (ended, failed) so far by server), oldest first."""

    def after(self, now_s: float, snapshot: Snapshot, restarted: bool) -> ErrorWindow:
        """Adds a fresh look; the window stays empty where the balancer counts connections.

        `restarted`: the balancer was made anew, so its counters start again.
        """
        if snapshot.counts == "connections":
            return ErrorWindow()
        now = {
            server.name: (server.requests - server.in_flight, server.errors)
            for server in snapshot.servers
            if not server.uncounted
        }
        looks = () if restarted or self._fell(snapshot) else self.looks
        while len(looks) > 1 and looks[1][0] <= now_s - WINDOW_S:
            looks = looks[1:]
        if len(looks) > 1 and looks[-1][0] - looks[-2][0] < LOOK_S:
            looks = looks[:-1]
        return ErrorWindow((*looks, (now_s, now)))

    def _fell(self, snapshot: Snapshot) -> bool:
        """Whether a count is lower than it was, as after a reload."""
        last = self.looks[-1][1] if self.looks else {}
        return any(
            server.name in last and server.errors < last[server.name][1]
            for server in snapshot.servers
            if not server.uncounted
        )

    def counts(self) -> dict[str, Count]:
        """Each server's numbers since the window's begin, or since it was first seen."""
        by_server = {}
        for server, (ended, failed) in (self.looks[-1][1] if self.looks else {}).items():
            first = next(look[server] for _, look in self.looks if server in look)
            more_failed = max(failed - first[1], 0)
            by_server[server] = Count(max(ended - first[0], more_failed), more_failed)
        return by_server
