"""A journal with a quarter of an hour of three servers: one beside a neighbour for a while, one with a single spike.
One fails, and one is down in the balancer."""

from __future__ import annotations

from collections.abc import Iterator

from slackwater.core.messages import (
    Change,
    Counters,
    Cpu,
    Cycle,
    Message,
    ResponseTimes,
    Sample,
    Sched,
    ServerState,
    Traffic,
    Verdict,
)
from tests.support.web_story import T0

BACK_S = 900
BESIDE = range(240, 280)
"""Seconds ago in which web2 had a neighbour, and weight 0."""
SPIKE = 120
"""Seconds ago at which one request to web3 took very long, and its probe stood still."""
SPIKE_P95_MS, SPIKE_CPI = 97_000.0, 100_000.0


def crowded_story(pool: str, servers: int, slow: int) -> Iterator[Message]:
    """A pool's last minute: this many servers, the first `slow` of them beside a neighbour since half a minute."""
    names = [f"web{n + 1:02}" for n in range(servers)]
    why = "interference: its programs wait 18 times as long for a CPU as usual, the other servers do not; it gets less"
    for ago in range(60, -1, -1):
        for name in names:
            traffic = Traffic(rps=80.0, rt_p50_ms=2.0, rt_p95_ms=4.0, rt_p99_ms=9.0)
            traffic.times = ResponseTimes(name, 0.3, [(40, 76), (90, 4)])
            cpu = Cpu("cgroup", 0.4)
            yield Sample(1, name, pool, T0 - ago, "boot", 60 - ago, 1.0, source="balancer", cpu=cpu, traffic=traffic)
        before = [ServerState(name, "up", 100, 100, 100) for name in names]
        yield Cycle(
            1, pool, T0 - ago, "act", False, "leastconn", "optimal", f"{pool}: unchanged", before, "concurrency"
        )
    for n, name in enumerate(names):
        if n >= slow:
            yield Verdict(1, name, pool, T0, "calm", T0 - 60, 0.0, [], "start")
            continue
        yield Verdict(1, name, pool, T0, "interference", T0 - 30, 0.6, ["its programs wait for a CPU"], "start")
        yield Change(1, f"{pool}-{name}", pool, T0 - 30, "weight", name, 100, 10, why, "lbengine", True)
    states = [
        ServerState(name, "up", 10 if n < slow else 100, 100, 10 if n < slow else 100, why=why if n < slow else "")
        for n, name in enumerate(names)
    ]
    yield Cycle(1, pool, T0, "act", False, "leastconn", "optimal", f"{pool}: {slow} lowered", states, "concurrency")


def plotted_story() -> Iterator[Message]:
    """Of pool `web`: a Sample a second of web1, web2 and web3, calm now.

    web1 fails 37 of 100 requests, web3 is down in the balancer.
    """
    for ago in range(BACK_S, -1, -1):
        unix_s = T0 - ago
        for node in ("web1", "web2", "web3"):
            noisy, spike = node == "web2" and ago in BESIDE, node == "web3" and ago == SPIKE
            p95 = SPIKE_P95_MS if spike else 120.0 if noisy else 4.0 + ago % 3
            traffic = Traffic(rps=80.0 + ago % 5, rt_p50_ms=2.0, rt_p95_ms=p95, rt_p99_ms=2 * p95)
            yield Sample(
                1, node, "web", unix_s, "boot", BACK_S - ago, 1.0, cpu=Cpu("cgroup", 0.4), traffic=traffic,
                sched=Sched(run_delay_per_cpu_s=20.0 if noisy else 0.2),
                counters=Counters("canary", cpi=SPIKE_CPI if spike else 40.0),
            )  # fmt: skip
        weights = {"web1": 100, "web2": 0 if ago in BESIDE else 100, "web3": 100}
        servers = [ServerState(node, "up", weight, 100, weight) for node, weight in weights.items()]
        for server, in_flight, errors_per_s in zip(servers, (3, 2, 0), (12.5, 0.0, 0.0), strict=True):
            server.in_flight, server.errors_per_s, server.queue = in_flight, errors_per_s, 0
        servers[0].failed_share, servers[0].peers_failed_share = 0.37, 0.0
        servers[2].condition = "down"
        yield Cycle(1, "web", unix_s, "act", False, "roundrobin", "optimal", "web: 3 unchanged", servers, "share")
    began, ended = T0 - BESIDE[-1], T0 - BESIDE[0]
    for node in ("web1", "web2", "web3"):
        yield Verdict(1, node, "web", T0 - BACK_S, "calm", T0 - BACK_S, 0.0, [], "start")
        if node == "web2":
            path = ["run delay is 20 times its calm baseline"]
            yield Verdict(1, node, "web", began, "interference", began, 0.6, path, "start", resource="cpu")
            yield Verdict(1, node, "web", ended, "interference", began, 0.6, path, "start", resource="cpu")
        yield Verdict(1, node, "web", T0, "calm", ended if node == "web2" else T0 - BACK_S, 0.0, [], "start")
    why = "interference: run delay is 20 times its calm baseline"
    yield Change(1, "p1", "web", began, "weight", "web2", 100, 0, why, "lbengine", True, cause="interference")
    yield Change(1, "p2", "web", ended, "weight", "web2", 0, 100, "calm", "lbengine", True, cause="calm")
