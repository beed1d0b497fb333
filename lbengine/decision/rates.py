"""The pool's request rate, from the balancer's own counters: the requests that it really sent to each server.

The nodes' reports are used only where the balancer counts connections, since a connection may carry many requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from slackwater.lbengine.balancer import Snapshot

WINDOW_S = 1.0
LEAST_S = 0.4
"""A rate needs at least this much time between its counts."""
FORGETS = 6.0
"""Looks tell of each other for so many times the time of a request: twice the sum of the autocorrelations of a queue
that is half full (P. M. Morse, "Stochastic properties of waiting lines", Operations Research 3(3), 1955)."""


class Backlog(NamedTuple):
    """Requests of a server that wait, over the last second."""

    mean: float = 0.0
    """Mean requests in flight beyond those that a calm server holds at this rate; negative where it holds less."""
    variance: float = 0.0
    """The variance that this mean has where the server is calm."""


@dataclass(frozen=True)
class Meter:
    """Rates per second over about the last `WINDOW_S`, from counters that only grow."""

    seen: tuple[tuple[float, Mapping[str, int]], ...] = ()
    """(time, count by server), oldest first."""

    def fell(self, counts: Mapping[str, int]) -> bool:
        """Whether a counter is lower than it was, as after a reload."""
        return bool(self.seen) and any(count < self.seen[-1][1].get(server, 0) for server, count in counts.items())

    def after(self, now_s: float, counts: Mapping[str, int], anew: bool) -> Meter:
        """Adds each server's count so far; `anew`: the measurement starts again."""
        seen = (*(() if anew else self.seen), (now_s, counts))
        while len(seen) > 2 and seen[1][0] <= now_s - WINDOW_S:
            seen = seen[1:]
        return Meter(seen)

    @property
    def window_s(self) -> float:
        """Time between the first and the last count."""
        return self.seen[-1][0] - self.seen[0][0] if self.seen else 0.0

    def rates(self) -> dict[str, float] | None:
        """Each server's rate; None while the counts span less than `LEAST_S`."""
        if self.window_s < LEAST_S:
            return None
        (first_s, first), (last_s, last) = self.seen[0], self.seen[-1]
        return {server: (last[server] - first.get(server, last[server])) / (last_s - first_s) for server in last}


@dataclass(frozen=True)
class Rates:
    """A pool's rates, all per second."""

    rps: Mapping[str, float] | None = None
    """Requests by server; None: the rate of some server that takes requests is not known."""
    errors: Mapping[str, float] | None = None
    """Failed requests by server; None: not known."""
    total_rps: float | None = None
    """Requests of the whole pool; None: not known."""
    counted_rps: float | None = None
    """Requests of the whole pool when all its servers' rates were last known; None: they never were."""
    served: Mapping[str, float] | None = None
    """Answered requests by server; None: not known."""
    looks: tuple[tuple[float, Mapping[str, int]], ...] = ()
    """(time, requests in flight by server) of the last `WINDOW_S`, where the balancer counts requests."""
    requests: Meter = field(default_factory=Meter)
    answers: Meter = field(default_factory=Meter)
    failures: Meter = field(default_factory=Meter)

    def held_by(self, server: str) -> list[int]:
        """Requests in flight at this server at each look of the last `WINDOW_S`."""
        return [held[server] for _, held in self.looks if server in held]

    def queue_at(self, server: str, calm_s: float | None) -> Backlog:
        """The requests that wait at this server. A calm one holds as many as follow from its rate by Little's law.

        `calm_s`: mean time of a request in calm; nothing waits where it is not known.
        """
        looks = self.held_by(server)
        if not looks or not calm_s or self.rps is None:
            return Backlog()
        in_calm = self.rps.get(server, 0.0) * calm_s
        independent = max(min(len(looks), WINDOW_S / (FORGETS * calm_s)), 1.0)
        return Backlog(sum(looks) / len(looks) - in_calm, in_calm * (1.0 + in_calm) / independent)

    def after(self, now_s: float, snapshot: Snapshot, reported: Mapping[str, float], restarted: bool = False) -> Rates:
        """The rates after a fresh look.

        `reported`: requests per second that nodes report, by server; `restarted`: the balancer was made anew, so its
        counters start again.
        """
        requests, answers, failures, errors = self.requests, self.answers, self.failures, self.errors
        if restarted:
            requests, answers, failures = Meter(), Meter(), Meter()
        rps: Mapping[str, float] | None = None
        served: Mapping[str, float] | None = None
        looks: tuple[tuple[float, Mapping[str, int]], ...] = ()
        if snapshot.counts == "connections":
            rps = _with_reported({}, snapshot, reported)
        else:
            counted = [server for server in snapshot.servers if not server.uncounted]
            asked = {server.name: server.requests for server in counted}
            answered = {server.name: server.requests - server.in_flight for server in counted}
            failed = {server.name: server.errors for server in counted}
            anew = requests.fell(asked)
            requests, answers = requests.after(now_s, asked, anew), answers.after(now_s, answered, anew)
            failures = failures.after(now_s, failed, failures.fell(failed))
            looks = tuple(look for look in self.looks if look[0] > now_s - WINDOW_S)
            looks = (*looks, (now_s, {server.name: server.in_flight for server in counted}))
            rps, served, errors = requests.rates(), answers.rates(), failures.rates()
            if rps is not None and len(counted) < len(snapshot.servers):
                rps = _with_reported(rps, snapshot, reported)
        counted_rps = self.counted_rps if rps is None else sum(rps.values())
        total_rps = counted_rps
        if total_rps is None and reported and snapshot.counts == "requests":  # the balancer has given no rate yet
            total_rps = sum(reported.values())
        return Rates(rps, errors, total_rps, counted_rps, served, looks, requests, answers, failures)


def _with_reported(
    rps: Mapping[str, float], snapshot: Snapshot, reported: Mapping[str, float]
) -> Mapping[str, float] | None:
    """The rates by server, with the nodes' reports where the balancer has no counts.

    None where the rate of some server that takes requests is not known.
    """
    serving = {
        server.name for server in snapshot.servers if server.available and not server.backup and server.weight > 0
    }
    known = {**reported, **rps}
    return known if serving and serving <= known.keys() else None
