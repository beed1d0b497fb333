"""Decisions of the peers and of the oracle: no sockets, no clocks; the same looks give the same answers.

Peers are built from their documentation, which each names, and tuned in their favour where the documented default could
not work on a pool of three servers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slackwater.core.messages import Verdict
from slackwater.lbengine.backends.haproxy.algorithms import weights_mean
from slackwater.lbengine.decision.guard import limit
from slackwater.lbengine.decision.room import in_flight
from slackwater.lbengine.laws.laws import optimal

INTERVAL_S = 1.0
"""Peers look once a second; Envoy's `interval` is 10 s and the usual agent-inter 2 s, which would be to our favour."""


@dataclass(frozen=True)
class Seen:
    """One server at a look; what is of a time is of the time since the look before."""

    server: str
    baseline: int = 100
    weight: int = 100
    requests: int = 0
    """Answered since the look before."""
    rt_mean_ms: float | None = None
    cpu_idle: float | None = None
    """Share of its CPU that is not used, as the server itself sees it."""
    noisy: bool = False
    """This and the next are for the oracle only."""
    capacity: float | None = None
    """Capacity beside the noise, in the unit of the baselines; None: the same as the baseline."""
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Look:
    """All servers at a time."""

    now_s: float
    servers: Sequence[Seen]
    load: float | None = None
    """Share of the pool's capacity in calm that is demanded; the oracle knows it. None: not known, so it drains."""


@dataclass(frozen=True)
class Answer:
    """Weights by server, and knobs of the web server by server and name."""

    weights: dict[str, int]
    knobs: dict[str, dict[str, int]] = field(default_factory=dict)


class Decider(Protocol):
    """Answers looks one after the other; what it remembers is its own."""

    def __call__(self, look: Look) -> Answer: ...


class AgentCheck:
    """Weights by idle CPU: an agent answers `75%` when three quarters of the CPU are idle, and HAProxy sets that share
    of the configured weight (HAProxy Configuration Manual 2.6, `agent-check`: "an ASCII representation of a positive
    integer percentage"; loadbalancer.org's feedback agent for Linux answers with vmstat's idle column).

    Tuned: never below 1%, since all servers at 0% would be no server.
    """

    def __call__(self, look: Look) -> Answer:
        weights = {}
        for seen in look.servers:
            percent = 100 if seen.cpu_idle is None else max(1, math.floor(100 * min(max(seen.cpu_idle, 0.0), 1.0)))
            weights[seen.server] = max(1, round(seen.baseline * percent / 100))
        return Answer(weights)


class Outlier:
    """Ejection of outliers as Envoy's documentation has it (Envoy, "Outlier detection", success rate): at each interval
    a host beyond `stdev_factor` standard deviations of the mean over all hosts is ejected for `base_ejection_s` times
    the number of its ejections, at most `max_share` of the hosts at a time but always one. A host that stays in for an
    interval has its number lowered by one.

    Envoy looks at success rates, and noise makes no errors: here it is the mean response time, as the documentation
    names latency as an axis that outliers may be on. Tuned for small pools: in a pool of n hosts none can be further
    than √(n-1) deviations from the mean, so Envoy asks for 5 hosts and 1.9; here 3 hosts are enough with 1.2, if the
    host is also `times` as slow as the median (or any two of three would eject the third). Up to half of the hosts
    rather than 10%, ejections of 5 s rather than 30 s, a volume of 20 requests rather than 100.
    """

    def __init__(
        self,
        *,
        interval_s: float = INTERVAL_S,
        stdev_factor: float = 1.9,
        small_factor: float = 1.2,
        times: float = 2.0,
        base_ejection_s: float = 5.0,
        max_share: float = 0.5,
        volume: int = 20,
        least_hosts: int = 3,
    ) -> None:
        self._interval_s, self._base_s, self._max_share = interval_s, base_ejection_s, max_share
        self._factors, self._times = (stdev_factor, small_factor), times
        self._volume, self._least_hosts = volume, least_hosts
        self._next_s = -math.inf
        self._until_s: dict[str, float] = {}
        self._number: dict[str, int] = {}

    def __call__(self, look: Look) -> Answer:
        if look.now_s >= self._next_s:
            self._next_s = look.now_s + self._interval_s
            self._sweep(look)
        return Answer({seen.server: 0 if seen.server in self._until_s else seen.baseline for seen in look.servers})

    def _sweep(self, look: Look) -> None:
        for server in [server for server, until_s in self._until_s.items() if until_s <= look.now_s]:
            del self._until_s[server]
        times = {
            seen.server: seen.rt_mean_ms
            for seen in look.servers
            if seen.rt_mean_ms is not None and seen.requests >= self._volume and seen.server not in self._until_s
        }
        out = self._beyond(times)
        for server in times.keys() - set(out):
            self._number[server] = max(0, self._number.get(server, 0) - 1)
        for server in out:
            allowed = max(1, math.floor(self._max_share * len(look.servers)))
            if len(self._until_s) < allowed:
                self._number[server] = self._number.get(server, 0) + 1
                self._until_s[server] = look.now_s + self._base_s * self._number[server]

    def _beyond(self, times: Mapping[str, float]) -> list[str]:
        """The outliers, slowest first."""
        if len(times) < self._least_hosts:
            return []
        mean, deviation = statistics.fmean(times.values()), statistics.pstdev(times.values())
        limit_ms = mean + self._factors[len(times) < 5] * deviation
        slow_ms = self._times * statistics.median(times.values())
        return sorted(
            (server for server in times if times[server] > max(limit_ms, slow_ms)), key=lambda server: -times[server]
        )


@dataclass(frozen=True)
class Oracle:
    """Knows the noise, the load and what each server can do: it drains noisy servers at the onset as long as the others
    can carry everything, and else splits the load for the least mean response time
    (`slackwater.lbengine.laws.laws.optimal`).

    On `leastconn` a weight says how many requests a server should hold, by Little's law r·T, and r/(μ - r) under
    processor sharing.
    """

    balance: str = "roundrobin"
    drains: bool = True
    """If false, the split of least mean response time is kept all the time, also in calm."""

    ROOM = 0.95

    def __call__(self, look: Look) -> Answer:
        base = {seen.server: seen.baseline for seen in look.servers}
        if self.drains and not any(seen.noisy for seen in look.servers):
            return Answer(base)
        if look.load is None:
            drained = {seen.server: 0 if seen.noisy else seen.baseline for seen in look.servers}
            return Answer(drained if any(drained.values()) else base)
        total = look.load * sum(base.values())
        able = [float(seen.baseline if seen.capacity is None else seen.capacity) for seen in look.servers]
        quiet = [0.0 if seen.noisy else mu for seen, mu in zip(look.servers, able, strict=True)]
        if self.drains and total <= self.ROOM * sum(quiet):
            able = quiet
        if sum(able) <= 0.0:
            return Answer(base)
        wanted = optimal(able, total)
        if weights_mean(self.balance) == "concurrency":
            wanted = [in_flight(rate / mu) if mu > 0.0 else 0.0 for rate, mu in zip(wanted, able, strict=True)]
        most = max(wanted)
        return Answer(
            {seen.server: round(seen.baseline * w / most) for seen, w in zip(look.servers, wanted, strict=True)}
        )


class WebServerOnly:
    """IC²: the web server is reconfigured, the balancer is left alone (A. K. Maji, S. Mitra, B. Zhou, S. Bagchi, A.
    Verma: "Mitigating Interference in Cloud Services by Middleware Reconfiguration", Middleware 2014, as ICE's slides
    compare themselves with it): during interference MaxClients falls, KeepAliveTimeout and php-fpm's children rise.

    Tuned: it has our detector instead of its own, which takes 15 to 20 s; and what was set stays so until there was
    no sign of interference for `LEAVE_AFTER_S`, since a reload to and fro costs more than a wrong value.
    """

    LEAVE_AFTER_S = 5.0

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def __call__(self, look: Look) -> Answer:
        for server in _slow(look):
            self._until_s[server] = look.now_s + self.LEAVE_AFTER_S
        slow = [seen.server for seen in look.servers if look.now_s < self._until_s.get(seen.server, -math.inf)]
        return Answer({seen.server: seen.baseline for seen in look.servers}, _knobs(slow, len(look.servers)))


KNOBS: dict[str, tuple[int, int]] = {
    "php_fpm.max_children": (4, 16),
    "apache.max_request_workers": (512, 256),
    "apache.keepalive_timeout": (60, 120),
}
"""Name as wsengine has it -> the lab's value in calm, value beside a neighbour. Directions as IC² and ICE have them
(ICE's slide 13: least latency at MaxClients 8 with 2 children in calm, at 4 with 4 beside LLCProbe: workers halved);
children as many as serve best beside LLCProbe in this lab (docs/results/second-stage.md), which is to their favour, and
first asked for: what became of a full Apache is only known when the requests before that question are answered."""


def _slow(look: Look) -> list[str]:
    """Servers with interference."""
    return [seen.server for seen in look.servers if seen.verdict is not None and seen.verdict.state == "interference"]


def _knobs(slow: Sequence[str], servers: int) -> dict[str, dict[str, int]]:
    """Knobs of slow servers; of at most half of all, as with weights."""
    return {server: {name: values[1] for name, values in KNOBS.items()} for server in slow[: limit(servers, 0.5)]}
